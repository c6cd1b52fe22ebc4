//! Istio's VirtualService: matches, order and actions of routes. `Mesh::virtual_services` has the VirtualServices in
//! force, in the mesh and at gateways. Analysis also sees those with fields that are not yet in force
//! (`Mesh::intents`).

mod destination;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::mesh::action::{Cors, DirectResponse, Fault, HeaderRules, Mirror, Rewrite};
use crate::mesh::delegate::whole;
use crate::mesh::{Mesh, MeshService, RetrySettings, Visibility};
use crate::names::{Hostname, Namespace, Port, ResourceName};
use crate::source::Source;
pub use destination::{RouteAttachment, RouteDestinationKind, ServicesByHost};

/// Name of the mesh's proxies in `gateways` of a VirtualService.
pub const MESH: &str = "mesh";

/// One resource.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualService {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Hosts that it routes, made whole by its namespace. None makes it a delegate's.
    pub hosts: Vec<(Hostname, Source)>,
    /// Gateways at which it holds; `None` stands for the proxies of the mesh.
    pub gateways: Vec<(Option<ResourceName>, Source)>,
    /// Namespaces that see it.
    pub visibility: Visibility,
    /// Routes of requests, the first that matches wins.
    pub http: Vec<HttpRoute>,
    /// Routes of TLS connections by name.
    pub tls: Vec<LayerFourRoute>,
    /// Routes of connections.
    pub tcp: Vec<LayerFourRoute>,
}

impl VirtualService {
    /// Returns true if proxies in the mesh apply it.
    #[must_use]
    pub fn is_for_mesh(&self) -> bool {
        self.gateways.iter().any(|(gateway, _)| gateway.is_none())
    }

    /// Everything it sends traffic to.
    pub fn destinations(&self) -> impl Iterator<Item = &RouteDestination> {
        let http = self.http.iter().flat_map(HttpRoute::destinations);
        let others = self.tls.iter().chain(&self.tcp);
        http.chain(others.flat_map(|route| route.route.iter().map(|one| &one.to)))
    }
}

/// One of `http`.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpRoute {
    /// File and line of its definition.
    pub source: Source,
    /// Its name, if any.
    pub name: Option<Arc<str>>,
    /// One of these; none matches everything.
    pub matches: Vec<HttpMatch>,
    /// Destinations of requests, by weight.
    pub route: Vec<WeightedDestination>,
    /// Response of the proxy itself, without forwarding.
    pub answer: Option<DirectResponse>,
    /// Destinations of copies.
    pub mirrors: Vec<Mirror>,
    /// Another VirtualService with further routes.
    pub delegate: Option<Delegate>,
    /// Rewrite of path and authority.
    pub rewrite: Option<Rewrite>,
    /// Header edits for all destinations.
    pub headers: HeaderRules,
    /// Faults injected on purpose.
    pub fault: Option<Fault>,
    /// Permissions for pages of other origins.
    pub cors: Option<Arc<Cors>>,
    /// Time limit of a request; `None` is no limit.
    pub timeout: Option<Duration>,
    /// Retries; `None` is the destination's policy.
    pub retries: Option<RetrySettings>,
    /// Status for requests to a missing destination.
    pub missing_status: u16,
}

/// One of `route`.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedDestination {
    /// The destination.
    pub to: RouteDestination,
    /// Its share of the requests. One alone takes all of them.
    pub weight: u32,
    /// Header edits for this destination, applied before the route's.
    pub headers: HeaderRules,
}

impl HttpRoute {
    /// Status that Istio's proxies return for a missing destination.
    pub const MISSING: u16 = 503;
    /// Status that Gateway API demands in that case.
    pub const MISSING_IN_GATEWAY_API: u16 = 500;

    /// Everything it sends requests to, copies included.
    pub fn destinations(&self) -> impl Iterator<Item = &RouteDestination> {
        let weighted = self.route.iter().map(|one| &one.to);
        weighted.chain(self.mirrors.iter().map(|mirror| &mirror.to))
    }
}

/// `delegate`.
#[derive(Debug, Clone, PartialEq)]
pub struct Delegate {
    /// Name of the delegate.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
}

/// One of `match`: all of it must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpMatch {
    /// File and line of its definition.
    pub source: Source,
    /// Its name, if any: in Istio the route that it becomes is called by the route's and its own.
    pub name: Option<Arc<str>>,
    /// Criteria by subject.
    pub criteria: BTreeMap<Subject, Criterion>,
    /// True if `uri` is compared case-insensitively.
    pub any_case: bool,
}

/// The subject of a criterion.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Path and query.
    Uri,
    /// `scheme`.
    Scheme,
    /// `method`.
    Method,
    /// `authority`.
    Authority,
    /// One of `headers`, in lower case; or a claim of a verified token, as `@request.auth.claims[NAME][INNER]…` ([`claim`]).
    Header(Arc<str>),
    /// One of `withoutHeaders`, likewise.
    WithoutHeader(Arc<str>),
    /// One of `queryParams`.
    QueryParam(Arc<str>),
    /// The port that was called.
    Port,
    /// A label of the caller's.
    SourceLabel(Arc<str>),
    /// The caller's namespace.
    SourceNamespace,
    /// The gateways at which it holds.
    Gateways,
    /// Server names of TLS.
    SniHosts,
    /// Addresses that were called.
    DestinationSubnets,
}

/// Prefix of a header name that means a claim of the request's verified token.
pub const CLAIMS: &str = "@request.auth.claims";

/// The path of the claim for which the name of a header stands that was read: the claim, and names within it.
pub fn claim(name: &str) -> Option<impl Iterator<Item = &str>> {
    let inner = name.strip_prefix(CLAIMS)?.strip_prefix('[')?;
    Some(inner.strip_suffix(']')?.split("]["))
}

impl Subject {
    /// Returns true if only a proxy that verifies tokens can evaluate it.
    fn is_claim(&self) -> bool {
        match self {
            Self::Header(name) | Self::WithoutHeader(name) => claim(name).is_some(),
            _ => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri => f.write_str("uri"),
            Self::Scheme => f.write_str("scheme"),
            Self::Method => f.write_str("method"),
            Self::Authority => f.write_str("authority"),
            Self::Header(name) => write!(f, "headers[{name}]"),
            Self::WithoutHeader(name) => write!(f, "withoutHeaders[{name}]"),
            Self::QueryParam(name) => write!(f, "queryParams[{name}]"),
            Self::Port => f.write_str("port"),
            Self::SourceLabel(name) => write!(f, "sourceLabels[{name}]"),
            Self::SourceNamespace => f.write_str("sourceNamespace"),
            Self::Gateways => f.write_str("gateways"),
            Self::SniHosts => f.write_str("sniHosts"),
            Self::DestinationSubnets => f.write_str("destinationSubnets"),
        }
    }
}

/// The test of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Criterion {
    /// It matches.
    Is(TextMatch),
    /// It does not.
    IsNot(TextMatch),
    /// It is one of these.
    OneOf(Vec<Arc<str>>),
}

/// Istio's StringMatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextMatch {
    /// This.
    Exact(Arc<str>),
    /// A text with this prefix.
    Prefix(Arc<str>),
    /// A path with these segments, and all paths below it. It has no slash at the end, except for the root.
    Segments(Arc<str>),
    /// All of it matches this expression.
    Regex(Arc<str>),
    /// It is there.
    Present,
}

impl TextMatch {
    /// Returns true if every text that `other` matches is matched, as far as known without parsing expressions.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Present, _) => true,
            (Self::Regex(mine), _) if &**mine == ".*" => true,
            (Self::Prefix(mine), Self::Prefix(text) | Self::Exact(text)) => {
                text.starts_with(&**mine)
            }
            (Self::Segments(mine), Self::Segments(text) | Self::Exact(text)) => {
                let rest = text.strip_prefix(mine.trim_end_matches('/'));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            (mine, other) => mine == other,
        }
    }

    /// With its letters in lower case.
    #[must_use]
    pub fn folded(&self) -> Self {
        let fold = |text: &str| text.to_lowercase().into();
        match self {
            Self::Exact(text) => Self::Exact(fold(text)),
            Self::Prefix(text) => Self::Prefix(fold(text)),
            Self::Segments(text) => Self::Segments(fold(text)),
            Self::Regex(_) | Self::Present => self.clone(),
        }
    }
}

impl Criterion {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Is(mine), Self::Is(other)) => mine.covers(other),
            (Self::OneOf(mine), Self::OneOf(other)) => other.iter().all(|one| mine.contains(one)),
            (mine, other) => mine == other,
        }
    }
}

/// All criteria of a match, by subject.
pub type Criteria = BTreeMap<Subject, Criterion>;

/// Returns true if the match can apply to clients of a namespace at this place. Other criteria are ignored. `own` is
/// the VirtualService's namespace.
fn is_theirs(
    criteria: &Criteria,
    own: &Namespace,
    client: Option<&Namespace>,
    place: RouteAttachment<'_>,
) -> bool {
    let named = |name: &Arc<str>| match place {
        RouteAttachment::Mesh => &**name == MESH,
        RouteAttachment::Gateway(gateway) => {
            crate::mesh::gateway_name(name, own).as_ref() == Some(gateway)
        }
    };
    let here = match criteria.get(&Subject::Gateways) {
        Some(Criterion::OneOf(names)) => names.iter().any(named),
        _ => true,
    };
    let of = source_namespace(criteria);
    here && of.is_none_or(|of| client.is_some_and(|own| own.as_str() == of))
}

/// The namespace that callers must be of.
fn source_namespace(criteria: &Criteria) -> Option<&str> {
    match criteria.get(&Subject::SourceNamespace) {
        Some(Criterion::Is(TextMatch::Exact(name))) => Some(name),
        _ => None,
    }
}

impl HttpMatch {
    /// Returns true if it tests a claim of a token; only gateways can do that.
    #[must_use]
    pub fn asks_claims(&self) -> bool {
        self.criteria.keys().any(Subject::is_claim)
    }

    /// Returns true if it matches every request that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.criteria.iter().all(|(subject, mine)| {
            let Some(other_one) = other.criteria.get(subject) else {
                return false;
            };
            if *subject != Subject::Uri {
                return mine.covers(other_one);
            }
            match (mine, other_one, self.any_case, other.any_case) {
                (Criterion::Is(mine), Criterion::Is(other), true, _) => {
                    mine.folded().covers(&other.folded())
                }
                (_, _, false, true) => false,
                _ => mine.covers(other_one),
            }
        })
    }
}

/// One of `tls` or `tcp`: destinations of connections, by TLS server name and called address.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerFourRoute {
    /// File and line of its definition.
    pub source: Source,
    /// One of these; none matches everything. Of `tls` each has names.
    pub matches: Vec<Criteria>,
    /// Destinations of connections, by weight.
    pub route: Vec<WeightedDestination>,
}

impl LayerFourRoute {
    /// The alternatives that connections of clients in a namespace can be; `None` where none can take this route. Empty:
    /// everything. `own` is the VirtualService's namespace.
    #[must_use]
    pub fn matches_of(
        &self,
        own: &Namespace,
        client: Option<&Namespace>,
        place: RouteAttachment<'_>,
    ) -> Option<Vec<&Criteria>> {
        let matches = self.matches.iter();
        let matches: Vec<&Criteria> = matches
            .filter(|one| is_theirs(one, own, client, place))
            .collect();
        (self.matches.is_empty() || !matches.is_empty()).then_some(matches)
    }

    /// As of [`HttpRoute::shares`].
    pub fn shares(&self) -> impl Iterator<Item = (&WeightedDestination, u32)> {
        shares(&self.route)
    }
}

/// Destinations with a share of the traffic, and their shares. A single destination takes everything, independent of
/// its weight.
fn shares(all: &[WeightedDestination]) -> impl Iterator<Item = (&WeightedDestination, u32)> {
    let alone = all.len() == 1;
    let taking = all.iter().filter(move |to| alone || to.weight > 0);
    taking.map(move |to| (to, if alone { 1 } else { to.weight }))
}

/// Somewhere that traffic is sent to.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteDestination {
    /// File and line of its definition.
    pub source: Source,
    /// The field, such as `spec.http[0].route[1].destination`.
    pub field: Arc<str>,
    /// Which service; a short name is made whole by the VirtualService's namespace.
    pub host: Hostname,
    /// Which part of it.
    pub subset: Option<(Arc<str>, Source)>,
    /// Which port of it.
    pub port: Option<(Port, Source)>,
    /// Reason for a destination that never exists; it overrides the other fields.
    pub nowhere: Option<Arc<str>>,
}

impl VirtualService {
    /// The namespaces whose clients may get other routes than the rest: those that it names.
    pub fn namespaces(&self) -> impl Iterator<Item = Namespace> {
        let seeing = match &self.visibility {
            Visibility::Public => None,
            Visibility::Namespaces(list) => Some(list.iter().cloned()),
        };
        let http = self.http.iter().flat_map(|route| &route.matches);
        let others = self.tls.iter().chain(&self.tcp);
        let others = others.flat_map(|route| &route.matches);
        let matches = http.map(|one| &one.criteria).chain(others);
        let named = matches.filter_map(|one| Namespace::new(source_namespace(one)?));
        seeing.into_iter().flatten().chain(named)
    }

    /// Precision of its match of a host, if it routes the host: the exact name first, then the longest pattern.
    fn closeness(&self, host: &Hostname) -> Option<(bool, usize)> {
        let covering = self.hosts.iter().filter(|(own, _)| own.covers(host));
        let rank = |(own, _): &(Hostname, Source)| (!own.is_wildcard(), own.as_str().len());
        covering.map(rank).max()
    }

    fn is_seen(&self, namespace: Option<&Namespace>) -> bool {
        match (&self.visibility, namespace) {
            (Visibility::Public, _) => true,
            (visibility, Some(namespace)) => visibility.includes(namespace),
            (Visibility::Namespaces(_), None) => false,
        }
    }
}

/// Which VirtualServices a service's callers may have to obey, looked up by host.
#[derive(Debug)]
pub struct Routing<'m> {
    /// In the order of the mesh, with the routes of those that they hand over to.
    all: Vec<Arc<VirtualService>>,
    by_host: HashMap<&'m Hostname, Vec<usize>>,
    by_pattern: Vec<usize>,
}

impl<'m> Routing<'m> {
    /// Of a mesh.
    #[must_use]
    pub fn new(mesh: &'m Mesh) -> Self {
        let all = mesh.virtual_services.as_slice();
        let by_name = all.iter().map(|one| (&one.name, one)).collect();
        let mut routing = Self {
            all: all.iter().map(|one| whole(one, &by_name)).collect(),
            by_host: HashMap::new(),
            by_pattern: Vec::new(),
        };
        let ours = all.iter().enumerate();
        for (index, one) in ours.filter(|(_, one)| one.is_for_mesh()) {
            for (host, _) in &one.hosts {
                match host.is_wildcard() {
                    true => routing.by_pattern.push(index),
                    false => routing.by_host.entry(host).or_default().push(index),
                }
            }
        }
        routing
    }

    /// Returns true if there are no VirtualServices.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_host.is_empty() && self.by_pattern.is_empty()
    }

    /// Those that route a service for any client, oldest first.
    #[must_use]
    pub fn of(&self, service: &MeshService) -> Vec<&Arc<VirtualService>> {
        let host = &service.key.hostname;
        let named = self.by_host.get(host).into_iter().flatten();
        let mut found: Vec<usize> = named.chain(&self.by_pattern).copied().collect();
        found.sort_unstable();
        found.dedup();
        let found = found.into_iter().map(|index| &self.all[index]);
        found.filter(|one| one.closeness(host).is_some()).collect()
    }
}

/// The VirtualService in force for clients of a namespace (`None`: a namespace that none names). Of those that the
/// clients see, the closest match of the service's name wins, then the oldest. As in Istio, they are not merged in the
/// mesh.
#[must_use]
pub fn holding<'m>(
    routing: &[&'m Arc<VirtualService>],
    service: &MeshService,
    namespace: Option<&Namespace>,
) -> Option<&'m Arc<VirtualService>> {
    let seen = routing.iter().filter(|one| one.is_seen(namespace));
    let ranked = seen.filter_map(|one| Some((one.closeness(&service.key.hostname)?, *one)));
    let narrower = |best: ((bool, usize), _), other: ((bool, usize), _)| match other.0 > best.0 {
        true => other,
        false => best,
    };
    ranked.reduce(narrower).map(|(_, one)| one)
}
