//! Our own RateLimit: how many requests a workload takes, by route and by who asks. Istio has no resource for it.

use std::sync::Arc;
use std::time::Duration;

use super::authorization::TargetReference;
use super::gateway_api::{GATEWAY_NAME, Gateway};
use super::{HttpMatch, Mesh, ProviderService, Service, ServiceOrigin, Workload};
use crate::names::{Labels, Namespace, ResourceName};
use crate::source::Source;

/// Keys that one limit tells apart unless it says otherwise.
pub const DEFAULT_KEYS: u32 = 8_192;

/// Most keys that one limit tells apart: 19 MB in each proxy.
pub const MAX_KEYS: u32 = 1 << 20;

/// Most limits of one rule: each is asked for each of its requests.
pub const MAX_LIMITS: usize = 8;

/// How long the service that counts for several proxies may take where nothing is said: Envoy's.
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
    /// Where it was written.
    pub source: Source,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
    /// Services and gateways of its own namespace, of which it is for the workloads; none where it does not aim at any.
    pub targets: Vec<TargetReference>,
    /// Who counts what its rules describe.
    pub global: Option<GlobalLimits>,
    /// The first that takes a request counts.
    pub rules: Vec<LimitRule>,
}

/// One of `rules`.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRule {
    /// Where it was written.
    pub source: Source,
    /// What clients read it is called.
    pub name: Arc<str>,
    /// It takes what matches any of them; without any, everything.
    pub matches: Vec<HttpMatch>,
    /// All of them hold; none lets everything pass.
    pub limits: Vec<Limit>,
    /// What the service that counts for all is told of a request that the limits let pass; nothing: it is not asked.
    pub descriptors: Vec<Descriptor>,
    /// How much each request counts there.
    pub hits: u32,
}

/// `global`: the service that counts for several proxies together (`envoy.service.ratelimit.v3.RateLimitService`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalLimits {
    /// Where it is.
    pub service: ProviderService,
    /// Whose limits it is asked for, in its own configuration.
    pub domain: Arc<str>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// What it would have been asked about passes while it cannot be.
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
    /// What the service's configuration calls it.
    pub key: Arc<str>,
    /// What is told.
    pub value: DescriptorValue,
}

/// What an entry tells; what a request does not have is told as empty, so that nobody leaves a limit by leaving it out.
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
    /// Whose requests are counted together.
    pub by: LimitBy,
    /// Keys that are told apart.
    pub keys: u32,
}

/// What requests are told apart by; by nothing, they have one bucket together.
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
    /// Whether all requests have one bucket.
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

    /// The RateLimits that hold at a waypoint, by name, each with the services behind it that it aims at; those that are for the
    /// waypoint's own Pod count whatever it takes, and have none.
    pub fn rate_limits_at<'m>(
        &'m self,
        waypoint: &'m Gateway,
        own: Option<&'m Workload>,
    ) -> impl Iterator<Item = (&'m Arc<RateLimit>, Vec<&'m Service>)> {
        self.rate_limits.values().filter_map(move |one| {
            if own.is_some_and(|own| self.is_limited(one, &own.key.namespace, &own.labels)) {
                return Some((one, Vec::new()));
            }
            let behind = self.services_behind(waypoint);
            let aimed: Vec<_> = behind.map(|one| &**one).filter(|s| aims(one, s)).collect();
            (!aimed.is_empty()).then_some((one, aimed))
        })
    }

    /// Whether what a target of a namespace means is counted by a proxy that no workload of ours need show: a Gateway's own, or the
    /// waypoint before a Service, which counts its requests, so that they are not counted once more at its workloads.
    #[must_use]
    pub fn is_counted_before(&self, target: &TargetReference, namespace: &Namespace) -> bool {
        let mut meant = self.services.values();
        self.is_gateway(target, namespace)
            || meant.any(|one| means(target, namespace, one) && self.waypoint_of(one).is_some())
    }

    /// Whether a target of a namespace is a Gateway that is there.
    #[must_use]
    pub fn is_gateway(&self, target: &TargetReference, namespace: &Namespace) -> bool {
        let mut gateways = self.gateway_api.gateways.iter();
        &*target.kind == "Gateway"
            && gateways.any(|one| one.name.namespace == *namespace && one.name.name == target.name)
    }

    /// Whether a RateLimit is for the workloads of a namespace that have these labels.
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

    /// Whether such workloads stand behind a Service, or are the gateway of a Gateway.
    #[must_use]
    pub fn is_target(
        &self,
        target: &TargetReference,
        namespace: &Namespace,
        labels: &Labels,
    ) -> bool {
        if &*target.kind == "Gateway" {
            return labels
                .get(GATEWAY_NAME)
                .is_some_and(|name| *name == *target.name);
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

/// Whether a RateLimit aims at a service.
fn aims(one: &RateLimit, service: &Service) -> bool {
    let mut targets = one.targets.iter();
    targets.any(|target| means(target, &one.name.namespace, service))
}

/// Whether a target that is named in a namespace is the service.
fn means(target: &TargetReference, namespace: &Namespace, service: &Service) -> bool {
    &*target.kind == "Service"
        && service.key.namespace == *namespace
        && service.name == target.name
        && service.origin == ServiceOrigin::Kubernetes
}
