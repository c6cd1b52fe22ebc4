//! Gateway API's resources, each valid by itself. `attach` decides attachment and translates them into the Gateways and
//! VirtualServices of Istio's API; `said` has the conditions of each.

mod conditions;
mod tls;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mesh::HttpRoute;
use crate::mesh::action::{HeaderRules, RequestShare};
use crate::mesh::routing_intent::ServerTlsMode;
use crate::mesh::waypoint::InboundBinding;
use crate::names::{Hostname, Labels, Port, ResourceName};
use crate::source::Source;
pub use conditions::{
    ConditionReason, PartConditions, RefusedCondition, ResourceConditions, StatusCondition,
};
pub use tls::{ClientValidation, GatewayTlsConfig};

/// Group of Gateway API's kinds.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// Label with a Pod's Gateway: on Pods that users start, and on generated ones.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Label with the Gateway's class, on generated resources.
pub const GATEWAY_CLASS: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Controllers of the GatewayClasses that Voile serves: its own name, and Istio's, which users have already written.
pub const CONTROLLERS: [&str; 2] = [
    "voile.dev/gateway-controller",
    "istio.io/gateway-controller",
];
/// Classes that are there without being declared, as Istio declares its own.
pub const CLASSES: [&str; 2] = ["voile", "istio"];

/// Longest value of a label; the name of a Gateway may be longer.
const MAX_LABEL: usize = 63;

/// The name of a Gateway as the value of the label [`GATEWAY_NAME`].
#[must_use]
pub fn label_value(name: &str) -> Cow<'_, str> {
    shortened(name, MAX_LABEL)
}

/// A name of ASCII characters of at most this length: a longer one ends with a hash of the whole.
pub(crate) fn shortened(whole: &str, length: usize) -> Cow<'_, str> {
    if whole.len() <= length {
        return Cow::Borrowed(whole);
    }
    let mut hash: u32 = 0x811c_9dc5; // FNV-1a: stable, and no secret is kept by it
    for byte in whole.bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    Cow::Owned(format!("{}-{hash:08x}", &whole[..length - 9]))
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayApi {
    /// GatewayClasses.
    pub classes: BTreeMap<Arc<str>, Arc<GatewayClass>>,
    /// Gateways, oldest first (creation time, then name).
    pub gateways: Vec<Arc<Gateway>>,
    /// ListenerSets, in the same order.
    pub listener_sets: Vec<Arc<ListenerSet>>,
    /// Routes of all kinds, in the same order.
    pub routes: Vec<Arc<GatewayApiRoute>>,
    /// BackendTLSPolicies, in the same order.
    pub backend_tls: Vec<Arc<BackendTls>>,
    /// ReferenceGrants.
    pub grants: Vec<Arc<ReferenceGrant>>,
    /// The status of each resource.
    pub said: Arc<[ResourceConditions]>,
}

impl GatewayApi {
    /// Returns true if Gateways of a class are ours, and neither waypoints nor gateways between networks.
    #[must_use]
    pub fn is_ours(&self, class: &str) -> bool {
        match self.classes.get(class) {
            Some(declared) => CONTROLLERS.contains(&&*declared.controller),
            None => CLASSES.contains(&class),
        }
    }

    /// Returns true if there are no resources of Gateway API.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
            && self.gateways.is_empty()
            && self.listener_sets.is_empty()
            && self.routes.is_empty()
            && self.backend_tls.is_empty()
            && self.grants.is_empty()
    }
}

/// A GatewayClass.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayClass {
    /// Its name; it is of no namespace.
    pub name: Arc<str>,
    /// File and line of its definition.
    pub source: Source,
    /// Its controller.
    pub controller: Arc<str>,
    /// Location of `parametersRef`; Voile has no parameters.
    pub parameters: Option<Source>,
}

/// A Gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Its class.
    pub class: (Arc<str>, Source),
    /// Its listeners.
    pub listeners: Vec<Listener>,
    /// `tls` of all of them.
    pub tls: GatewayTlsConfig,
    /// Location of `addresses`, if it requests some that no Service assigns.
    pub addresses: Option<Source>,
    /// These addresses, by type and value.
    pub places: Vec<(Arc<str>, Arc<str>, Source)>,
    /// The service account that it is said to have, where it stands for another mesh's.
    pub account: Option<Arc<str>>,
    /// The way to call the pods of a waypoint that run another program than Voile.
    pub binding: Option<InboundBinding>,
    /// Location of `parametersRef`, if it has one that nobody follows.
    pub parameters: Option<Source>,
    /// ListenerSets that may add listeners to it.
    pub allowed_listeners: Admission,
    /// Labels of generated resources.
    pub labels: Labels,
    /// Annotations of generated resources.
    pub annotations: Labels,
    /// Its own labels.
    pub own_labels: Labels,
}

/// A ListenerSet: further listeners of a Gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerSet {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// The Gateway.
    pub parent: Reference,
    /// Its listeners.
    pub listeners: Vec<Listener>,
}

/// One of `listeners`.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// File and line of its definition.
    pub source: Source,
    /// Its name.
    pub name: Arc<str>,
    /// Its port.
    pub port: Port,
    /// Its protocol.
    pub protocol: Arc<str>,
    /// The host that is served; `None` is any.
    pub hostname: Option<Hostname>,
    /// TLS termination, if it terminates TLS.
    pub tls: Option<ListenerTls>,
    /// Of which namespaces routes may attach.
    pub from: Admission,
    /// Of which kinds, by group and kind; none is those that its protocol carries.
    pub kinds: Vec<(Arc<str>, Arc<str>)>,
}

/// `tls` of a listener.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerTls {
    /// File and line of its definition.
    pub source: Source,
    /// It ends behind us.
    pub passthrough: bool,
    /// Certificates for clients.
    pub certificates: Vec<Reference>,
    /// Of `options`: what clients show, if TLS ends here.
    pub mode: ServerTlsMode,
    /// Of `options`: the suites of TLS 1.2; none is all there are.
    pub cipher_suites: Vec<Arc<str>>,
}

/// A reference to another resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// File and line of its definition.
    pub source: Source,
    /// The field, such as `spec.rules[0].backendRefs[1]`.
    pub field: Arc<str>,
    /// Group of its kind; empty is Kubernetes' own.
    pub group: Arc<str>,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its name, in the namespace that is meant.
    pub name: ResourceName,
}

impl Reference {
    /// Returns true if it refers to this kind.
    #[must_use]
    pub fn is(&self, group: &str, kind: &str) -> bool {
        &*self.group == group && &*self.kind == kind
    }
}

/// Namespaces of which something may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Any.
    All,
    /// The one of what lets it in.
    Same,
    /// Those with such labels.
    Selected(LabelSelector),
    /// None.
    Nobody,
}

/// Kubernetes' label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// `matchLabels`.
    pub labels: Labels,
    /// `matchExpressions`: a key, an operator, and values.
    pub expressions: Vec<(Arc<str>, Operator, Vec<Arc<str>>)>,
}

/// `operator` of a label selector's expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Its value is one of these.
    In,
    /// It has no value that is one of these.
    NotIn,
    /// It is there.
    Exists,
    /// It is not.
    DoesNotExist,
}

impl LabelSelector {
    /// Returns true if it selects these labels.
    #[must_use]
    pub fn selects(&self, labels: &Labels) -> bool {
        let holds = |(key, operator, values): &(Arc<str>, Operator, Vec<Arc<str>>)| {
            let value = labels.get(key);
            let one_of = value.is_some_and(|value| values.iter().any(|one| **one == *value));
            match operator {
                Operator::In => one_of,
                Operator::NotIn => !one_of,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        };
        self.labels.selects(labels) && self.expressions.iter().all(holds)
    }
}

/// Which of the kinds of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// HTTPRoute.
    Http,
    /// GRPCRoute.
    Grpc,
    /// TLSRoute.
    Tls,
    /// TCPRoute.
    Tcp,
}

impl RouteKind {
    /// Gateway API's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
        }
    }
}

/// A route.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayApiRoute {
    /// Its kind.
    pub kind: RouteKind,
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Hosts it is for; empty means all hosts of its parents.
    pub hostnames: Vec<Hostname>,
    /// The Gateways and Services that it attaches to.
    pub parents: Vec<Parent>,
    /// Rules for requests.
    pub rules: Vec<RouteRule>,
    /// Of TLSRoute and TCPRoute: where connections go.
    pub connections: Vec<ConnectionRule>,
}

/// One of `parentRefs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parent {
    /// The parent.
    pub to: Reference,
    /// Only this listener.
    pub section: Option<Arc<str>>,
    /// Only listeners, or a Service's port, of this number.
    pub port: Option<Port>,
}

/// One of `rules`.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteRule {
    /// Its matches and actions, without destinations: those depend on ReferenceGrants.
    pub route: HttpRoute,
    /// Destinations of the requests.
    pub backends: Vec<Backend>,
    /// Destinations of the copies.
    pub mirrors: Vec<(BackendTo, RequestShare)>,
    /// Time limit of a backend's response.
    pub backend_timeout: Option<std::time::Duration>,
}

/// One of `rules` of a TLSRoute or TCPRoute.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionRule {
    /// File and line of its definition.
    pub source: Source,
    /// Destinations of the connections.
    pub backends: Vec<Backend>,
}

/// A Service and its port.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendTo {
    /// The Service.
    pub to: Reference,
    /// Its port.
    pub port: Option<Port>,
}

/// One of `backendRefs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// The destination.
    pub to: BackendTo,
    /// Its share of the requests.
    pub weight: u32,
    /// Header edits of requests to this backend.
    pub headers: HeaderRules,
}

/// A BackendTLSPolicy: Services are spoken to in TLS, and must have a certificate.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendTls {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Which Services, each with the name of its port if only one is meant.
    pub targets: Vec<(Reference, Option<Arc<str>>)>,
    /// Authorities that must have issued the certificate.
    pub authorities: BackendAuthorities,
    /// The name that is asked for; none where it could not be read.
    pub hostname: Option<Arc<str>>,
    /// Names of which the certificate must have one instead of it.
    pub subject_alt_names: Vec<Arc<str>>,
}

/// Trusted authorities for certificates of backends.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendAuthorities {
    /// Those of the system.
    System,
    /// `wellKnownCACertificates` of a name that is not known here.
    Unknown(Arc<str>, Source),
    /// Authorities in these ConfigMaps or Secrets.
    Held(Vec<Reference>),
}

/// A ReferenceGrant: permits references from other namespaces into its own.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceGrant {
    /// Its name; its namespace is the one pointed into.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// Group, kind and namespace of the referring resource.
    pub from: Vec<[Arc<str>; 3]>,
    /// Resources that may be referred to.
    pub to: Vec<GrantTo>,
}

/// Group and kind of a permitted target, and its name if only one is meant.
pub type GrantTo = (Arc<str>, Arc<str>, Option<Arc<str>>);

impl ReferenceGrant {
    /// Returns true if it permits a reference from this kind and namespace.
    #[must_use]
    pub fn permits(&self, kind: &str, namespace: &str, to: &Reference) -> bool {
        let comes = |from: &[Arc<str>; 3]| {
            let [group, of, own] = from;
            &**group == GROUP && &**of == kind && &**own == namespace
        };
        let goes = |one: &GrantTo| {
            let (group, kind, name) = one;
            to.is(group, kind) && name.as_ref().is_none_or(|name| *name == to.name.name)
        };
        self.name.namespace == to.name.namespace
            && self.from.iter().any(comes)
            && self.to.iter().any(goes)
    }
}
