//! Voile's own RateLimit: limits the requests of a workload, by route and by caller. Istio has no resource for it.

use std::sync::Arc;
use std::time::Duration;

use crate::mesh::authorization::TargetReference;
use crate::mesh::gateway_api::Gateway;
use crate::mesh::{HttpMatch, Mesh, MeshService, ProviderService, ServiceOrigin, Workload};
use crate::names::{Labels, Namespace, ResourceName};
use crate::source::Source;

/// Keys that one limit tells apart unless it says otherwise.
pub const DEFAULT_KEYS: u32 = 8_192;

/// Most keys that one limit tells apart: 19 MB in each proxy.
pub const MAX_KEYS: u32 = 1 << 20;

/// Most limits of one rule: each is asked for each of its requests.
pub const MAX_LIMITS: usize = 8;

/// Default time limit of a question to the rate limit service: Envoy's.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(20);

/// Most descriptors of one rule: each is counted for each of its requests.
pub const MAX_DESCRIPTORS: usize = 8;

/// Most entries of one descriptor.
pub const MAX_ENTRIES: usize = 8;

/// Most RateLimits that hold for one workload: each is asked for each request.
pub const MAX_RATE_LIMITS: usize = 32;

/// One resource.
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimit {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
    /// Services and gateways of its own namespace, of which it is for the workloads; none where it does not aim at any.
    pub targets: Vec<TargetReference>,
    /// The rate limit service that counts its descriptors.
    pub global: Option<GlobalLimits>,
    /// The first that takes a request counts.
    pub rules: Vec<LimitRule>,
}

/// One of `rules`.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRule {
    /// File and line of its definition.
    pub source: Source,
    /// Name that clients see.
    pub name: Arc<str>,
    /// It takes what matches any of them; without any, everything.
    pub matches: Vec<HttpMatch>,
    /// All of them hold; none lets everything pass.
    pub limits: Vec<Limit>,
    /// Descriptors sent to the rate limit service for a request that the limits allow. If empty, the service is not
    /// asked.
    pub descriptors: Vec<Descriptor>,
    /// Hits that each request adds there.
    pub hits: u32,
}

/// `global`: the service that counts for several proxies together (`envoy.service.ratelimit.v3.RateLimitService`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalLimits {
    /// Its address.
    pub service: ProviderService,
    /// Domain of the limits in the service's own configuration.
    pub domain: Arc<str>,
    /// Time limit of an answer.
    pub timeout: Duration,
    /// True if requests pass while the service cannot be asked.
    pub fail_open: bool,
}

/// One of `rules[].descriptors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// In the order in which the service reads them.
    pub entries: Vec<DescriptorEntry>,
}

/// One of its `entries`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptorEntry {
    /// Key in the service's configuration.
    pub key: Arc<str>,
    /// Its value.
    pub value: DescriptorValue,
}

/// Source of an entry's value. A missing value is sent as empty text, so that a client cannot evade a limit by leaving
/// it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DescriptorValue {
    /// This text.
    Text(Arc<str>),
    /// A header of this name, in lower case.
    Header(Arc<str>),
    /// The caller's proven identity.
    Identity,
    /// The client's address.
    Address,
    /// The method.
    Method,
    /// The path without its query, as policies compare it.
    Path,
}

/// One of `rules[].limits`: a bucket of tokens, or one for each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// So many requests …
    pub requests: u32,
    /// … in this time.
    pub per: Duration,
    /// Most at once.
    pub burst: u32,
    /// Key of the buckets.
    pub by: LimitBy,
    /// Keys that are told apart.
    pub keys: u32,
}

/// Properties that separate requests into buckets; without any, all requests share one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitBy {
    /// The caller's proven identity; callers without one count together.
    pub identity: bool,
    /// The client's address.
    pub address: bool,
    /// Values of these headers, in lower case; requests without one count together.
    pub headers: Vec<Arc<str>>,
}

impl LimitBy {
    /// Returns true if all requests share one bucket.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Mesh {
    /// The RateLimits that hold for a workload, by name: those of its namespace and of the root namespace that select it.
    pub fn rate_limits_for<'m>(
        &'m self,
        workload: &'m Workload,
    ) -> impl Iterator<Item = &'m Arc<RateLimit>> {
        let namespace = &workload.key.namespace;
        let all = self.rate_limits.values();
        all.filter(move |one| self.is_limited(one, namespace, &workload.labels))
    }

    /// The RateLimits at a waypoint, by name, each with its target services behind the waypoint. RateLimits for the
    /// waypoint's own Pods count all requests and have no services.
    pub fn rate_limits_at<'m>(
        &'m self,
        waypoint: &'m Gateway,
        own: Option<&'m Workload>,
    ) -> impl Iterator<Item = (&'m Arc<RateLimit>, Vec<&'m MeshService>)> {
        self.rate_limits.values().filter_map(move |one| {
            if own.is_some_and(|own| self.is_limited(one, &own.key.namespace, &own.labels)) {
                return Some((one, Vec::new()));
            }
            let behind = self.services_behind(waypoint);
            let aimed: Vec<_> = behind.map(|one| &**one).filter(|s| aims(one, s)).collect();
            (!aimed.is_empty()).then_some((one, aimed))
        })
    }

    /// Returns true if a proxy outside the target's workloads counts its requests: a Gateway's own proxy, or the
    /// waypoint of a Service. Its workloads then do not count them again.
    #[must_use]
    pub fn is_counted_before(&self, target: &TargetReference, namespace: &Namespace) -> bool {
        let mut meant = self.services.values();
        self.is_gateway(target, namespace)
            || meant.any(|one| means(target, namespace, one) && self.waypoint_of(one).is_some())
    }

    /// Returns true if the target in this namespace is an existing Gateway.
    #[must_use]
    pub fn is_gateway(&self, target: &TargetReference, namespace: &Namespace) -> bool {
        let mut gateways = self.gateway_api.gateways.iter();
        &*target.kind == "Gateway"
            && gateways.any(|one| one.name.namespace == *namespace && one.name.name == target.name)
    }

    /// Returns true if a RateLimit applies to the workloads of a namespace with these labels.
    #[must_use]
    pub fn is_limited(&self, one: &RateLimit, namespace: &Namespace, labels: &Labels) -> bool {
        let own = one.name.namespace == *namespace;
        if !one.targets.is_empty() {
            let mut targets = one.targets.iter();
            return own && targets.any(|target| self.is_target(target, namespace, labels));
        }
        let near = own || one.name.namespace == self.config.root_namespace;
        let selector = one.selector.as_ref();
        near && selector.is_none_or(|wanted| wanted.selects(labels))
    }

    /// Returns true if these workloads are endpoints of the target Service, or the proxies of the target Gateway.
    #[must_use]
    pub fn is_target(
        &self,
        target: &TargetReference,
        namespace: &Namespace,
        labels: &Labels,
    ) -> bool {
        if target.is_gateway_of(labels) {
            return true;
        }
        let services = self.services.values();
        let mut services = services.filter(|service| means(target, namespace, service));
        services.any(|service| {
            let selector = service.selector.as_ref();
            selector.is_some_and(|wanted| !wanted.is_empty() && wanted.selects(labels))
                && self.waypoint_of(service).is_none()
        })
    }
}

/// Returns true if a RateLimit targets the service.
fn aims(one: &RateLimit, service: &MeshService) -> bool {
    let mut targets = one.targets.iter();
    targets.any(|target| means(target, &one.name.namespace, service))
}

/// Returns true if a target in this namespace is the service.
fn means(target: &TargetReference, namespace: &Namespace, service: &MeshService) -> bool {
    &*target.kind == "Service"
        && service.key.namespace == *namespace
        && service.name == target.name
        && service.origin == ServiceOrigin::Kubernetes
}
