//! Gateway API's resources, each valid by itself. Who is attached to what, and what becomes of it, is decided by `attach`, which
//! makes of them the same Gateways and VirtualServices that Istio's kinds are; `said` has the conditions of each.

mod said;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::HttpRoute;
use super::action::{HeaderRules, Share};
use super::waypoint::InboundBinding;
use crate::names::{Hostname, Labels, Port, ResourceName};
use crate::source::Source;
pub use said::{Condition, Part, Reason, Refusal, Said};

/// Group of Gateway API's kinds.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// Which of our Gateways a Pod is for: on Pods that somebody else starts, and on those that are started for one.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Its class, on what is made for it.
pub const GATEWAY_CLASS: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Whose GatewayClasses are ours: our own name, and Istio's, under which users have written them.
pub const CONTROLLERS: [&str; 2] = [
    "voile.dev/gateway-controller",
    "istio.io/gateway-controller",
];
/// Classes that are there without being declared, as Istio declares its own.
pub const CLASSES: [&str; 2] = ["voile", "istio"];

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
    pub routes: Vec<Arc<Route>>,
    /// BackendTLSPolicies, in the same order.
    pub backend_tls: Vec<Arc<BackendTls>>,
    /// ReferenceGrants.
    pub grants: Vec<Arc<Grant>>,
    /// What is said of each of them.
    pub said: Arc<[Said]>,
}

impl GatewayApi {
    /// Whether nothing of it is written.
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
    /// Where it was written.
    pub source: Source,
    /// Whose it is.
    pub controller: Arc<str>,
    /// Where it asks for parameters, which we have none of.
    pub parameters: Option<Source>,
}

/// A Gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Its class.
    pub class: (Arc<str>, Source),
    /// What it listens to.
    pub listeners: Vec<Listener>,
    /// Where it asks for addresses of its own.
    pub addresses: Option<Source>,
    /// These addresses, by type and value.
    pub places: Vec<(Arc<str>, Arc<str>, Source)>,
    /// The service account that it is said to have, where it stands for another mesh's.
    pub account: Option<Arc<str>>,
    /// How its pods are called, where it is a waypoint and they are no proxies of ours.
    pub binding: Option<InboundBinding>,
    /// Where it asks for parameters.
    pub parameters: Option<Source>,
    /// Whose ListenerSets may add to it.
    pub allowed_listeners: Admission,
    /// Labels of what is made for it.
    pub labels: Labels,
    /// Annotations of what is made for it.
    pub annotations: Labels,
    /// Its own labels.
    pub own_labels: Labels,
}

/// A ListenerSet: further listeners of a Gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerSet {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
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
    /// Where it was written.
    pub source: Source,
    /// Its name.
    pub name: Arc<str>,
    /// Its port.
    pub port: Port,
    /// What is spoken.
    pub protocol: Arc<str>,
    /// The host that is served; `None` is any.
    pub hostname: Option<Hostname>,
    /// What ends TLS, if it does here.
    pub tls: Option<ListenerTls>,
    /// Of which namespaces routes may attach.
    pub from: Admission,
    /// Of which kinds, by group and kind; none is those that its protocol carries.
    pub kinds: Vec<(Arc<str>, Arc<str>)>,
}

/// `tls` of a listener.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerTls {
    /// Where it was written.
    pub source: Source,
    /// It ends behind us.
    pub passthrough: bool,
    /// What is shown to clients.
    pub certificates: Vec<Reference>,
}

/// Something that is pointed at.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// Where it was written.
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
    /// Whether it is of this kind.
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
    /// `matchExpressions`: a key, what is asked, and values.
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
    /// Whether it selects what has these labels.
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
pub struct Route {
    /// Its kind.
    pub kind: RouteKind,
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Hosts it is for; none is all of what it attaches to.
    pub hostnames: Vec<Hostname>,
    /// What it attaches to.
    pub parents: Vec<Parent>,
    /// What becomes of requests.
    pub rules: Vec<Rule>,
    /// Of TLSRoute and TCPRoute: where connections go.
    pub connections: Vec<ConnectionRule>,
}

/// One of `parentRefs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parent {
    /// What.
    pub to: Reference,
    /// Only this listener.
    pub section: Option<Arc<str>>,
    /// Only listeners, or a Service's port, of this number.
    pub port: Option<Port>,
}

/// One of `rules`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What it takes and does, but for where it leads: that depends on who permits it.
    pub route: HttpRoute,
    /// Where requests go.
    pub backends: Vec<Backend>,
    /// Where copies go.
    pub mirrors: Vec<(BackendTo, Share)>,
    /// How long the answer of one backend may take.
    pub backend_timeout: Option<std::time::Duration>,
}

/// One of `rules` of a TLSRoute or TCPRoute.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionRule {
    /// Where it was written.
    pub source: Source,
    /// Where connections go.
    pub backends: Vec<Backend>,
}

/// A Service and its port.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendTo {
    /// Which.
    pub to: Reference,
    /// Which port of it.
    pub port: Option<Port>,
}

/// One of `backendRefs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// What.
    pub to: BackendTo,
    /// Its share of the requests.
    pub weight: u32,
    /// What becomes of headers of those that go here.
    pub headers: HeaderRules,
}

/// A BackendTLSPolicy: Services are spoken to in TLS, and must have a certificate.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendTls {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Which Services, each with the name of its port if only one is meant.
    pub targets: Vec<(Reference, Option<Arc<str>>)>,
    /// Whom the certificate must be by.
    pub authorities: BackendAuthorities,
    /// The name that is asked for; none where it could not be read.
    pub hostname: Option<Arc<str>>,
    /// Names of which the certificate must have one instead of it.
    pub subject_alt_names: Vec<Arc<str>>,
}

/// Whose certificates of backends are believed.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendAuthorities {
    /// Those of the system.
    System,
    /// `wellKnownCACertificates` of a name that is not known here.
    Unknown(Arc<str>, Source),
    /// What these hold.
    Held(Vec<Reference>),
}

/// A ReferenceGrant: who may point from other namespaces into its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// Its name; its namespace is the one pointed into.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// Group, kind and namespace of what points.
    pub from: Vec<[Arc<str>; 3]>,
    /// What is pointed at.
    pub to: Vec<GrantTo>,
}

/// Group and kind of what may be pointed at, and its name if only one is meant.
pub type GrantTo = (Arc<str>, Arc<str>, Option<Arc<str>>);

impl Grant {
    /// Whether it permits a reference from a kind and namespace.
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
