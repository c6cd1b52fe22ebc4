//! Routes of requests ⇄ `voile.proxy.v1.Routes`. The control plane makes the checked type, with names resolved. The message
//! carries it, and the proxy gets the same checked type. A message with a part that this end does not know is refused whole:
//! without one route, its requests would take the next one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use voile_model::mesh::action::{Cors, DirectResponse, Fault, HeaderRules, RequestShare, Rewrite};
use voile_model::mesh::{AddressRange, HttpRoute, RetrySettings, TextMatch};
use voile_model::{Labels, Port, ServiceKey};
use voile_proto::proxy as wire;

use super::fields::forms::{or_default, required};
use super::fields::{wire_tuple, wire_type};
use super::{WireError, WireType, service_key};

/// Routes of one service's requests; the first that matches counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Routes {
    /// Of requests, in order. None where there are connections: requests go to the service itself.
    pub routes: Vec<WireRoute>,
    /// Of what is no HTTP; the closest counts.
    pub connections: Vec<ConnectionRoute>,
}

/// Route of a connection, by its TLS server name and the address that it called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionRoute {
    /// One of these; none matches everything.
    pub matches: Vec<ConnectionMatch>,
    /// Not all of weight 0, and without headers.
    pub destinations: Vec<RouteDestination>,
}

/// Conditions on a connection: all must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionMatch {
    /// Names of which its client asks for one, in TLS; `*` is any, and none. Empty: it need not be TLS.
    pub server_names: Vec<Arc<str>>,
    /// Subnets of the called address; empty is any.
    pub subnets: Vec<AddressRange>,
    /// The port that was called.
    pub port: Option<Port>,
    /// Labels that the caller must have.
    pub source_labels: Labels,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireRoute {
    /// For logs; may be empty.
    pub name: Arc<str>,
    /// One of these; none matches everything.
    pub matches: Vec<RequestMatch>,
    /// Not all of weight 0, and empty only where there is an answer.
    pub destinations: Vec<RouteDestination>,
    /// Timeout of a request.
    pub timeout: Option<Duration>,
    /// Retry policy; `None` is the destination's policy.
    pub retry: Option<RetrySettings>,
    /// Answer that the proxy gives itself.
    pub answer: Option<DirectResponse>,
    /// Rewrite of the request's path or authority.
    pub rewrite: Option<Rewrite>,
    /// Changes of headers, after those of the destination.
    pub headers: HeaderRules,
    /// Injected faults.
    pub fault: Option<Fault>,
    /// CORS policy for pages of other origins.
    pub cors: Option<Arc<Cors>>,
    /// Targets of copies.
    pub mirrors: Vec<Mirror>,
    /// Status of the answer if the destination does not exist.
    pub missing_status: u16,
}

impl WireRoute {
    /// A route for everything, to these.
    #[must_use]
    pub fn to(destinations: Vec<RouteDestination>) -> Self {
        Self {
            name: "".into(),
            matches: Vec::new(),
            destinations,
            timeout: None,
            retry: None,
            answer: None,
            rewrite: None,
            headers: HeaderRules::default(),
            fault: None,
            cors: None,
            mirrors: Vec::new(),
            missing_status: HttpRoute::MISSING,
        }
    }
}

/// Target of copies of some requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Target, or the missing part of it.
    pub to: Result<RouteTarget, Arc<str>>,
    /// Share of requests that are copied.
    pub share: RequestShare,
}

/// Conditions on a request: all must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestMatch {
    /// Path and query.
    pub uri: Option<TextMatch>,
    /// Letters' case means nothing in `uri`.
    pub any_case: bool,
    /// `http` or `https`.
    pub scheme: Option<TextMatch>,
    /// The method.
    pub method: Option<TextMatch>,
    /// The authority, as it came.
    pub authority: Option<TextMatch>,
    /// Fields that are there and match; names in lower case.
    pub headers: Vec<(Arc<str>, TextMatch)>,
    /// Fields that are not there, or do not match; names in lower case.
    pub without_headers: Vec<(Arc<str>, TextMatch)>,
    /// Parameters of the query.
    pub query: Vec<(Arc<str>, TextMatch)>,
    /// The port that was called.
    pub port: Option<Port>,
    /// Labels that the caller must have.
    pub source_labels: Labels,
}

/// Destination of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteDestination {
    /// Target, or the missing part of it.
    pub to: Result<RouteTarget, Arc<str>>,
    /// Share of the requests.
    pub weight: u32,
    /// Changes of headers.
    pub headers: HeaderRules,
}

/// A service, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTarget {
    /// Which service.
    pub service: ServiceKey,
    /// Which part; `None` is the whole.
    pub subset: Option<Arc<str>>,
    /// Which port; `None` is the one that was called.
    pub port: Option<Port>,
}

impl Routes {
    /// Everything that requests may be sent to, copies included; or what is missing there.
    pub fn ways(&self) -> impl Iterator<Item = &Result<RouteTarget, Arc<str>>> {
        let requests = self.routes.iter().flat_map(|route| {
            let destinations = route.destinations.iter().map(|one| &one.to);
            destinations.chain(route.mirrors.iter().map(|one| &one.to))
        });
        let connections = self.connections.iter();
        let connections = connections.flat_map(|route| &route.destinations);
        requests.chain(connections.map(|one| &one.to))
    }

    /// Targets that exist.
    pub fn targets(&self) -> impl Iterator<Item = &RouteTarget> {
        self.ways().filter_map(|to| to.as_ref().ok())
    }

    /// Checks the bytes of a `voile.proxy.v1.Routes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Self::from_wire(wire::Routes::decode(bytes)?)
    }
}

wire_type! { Routes as wire::Routes { routes, connections, } }

/// [`Routes`] as they travel, to be read one at a time: all at once they are fifty times as much for a moment, and what the heap
/// grew by then hardly goes back to the kernel.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PackedRoutes(Bytes);

impl PackedRoutes {
    /// The bytes of a `voile.proxy.v1.Routes`; they are checked where they are read.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        // Spare capacity would stay allocated as long as the bytes do.
        Self(bytes.into_boxed_slice().into())
    }

    /// The same out of something larger, which does not stay for their sake.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }

    /// Finds where each begins.
    ///
    /// # Errors
    /// They are not what they should be.
    pub fn open(&self) -> Result<OpenedRoutes, WireError> {
        Ok(OpenedRoutes(wire::PackedRoutes::decode(self.0.clone())?))
    }
}

impl WireType<Vec<u8>> for PackedRoutes {
    fn to_wire(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    fn from_wire(form: Vec<u8>) -> Result<Self, WireError> {
        Ok(Self::new(form))
    }
}

impl From<&Routes> for PackedRoutes {
    fn from(routes: &Routes) -> Self {
        Self::new(routes.to_wire().encode_to_vec())
    }
}

impl fmt::Debug for PackedRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedRoutes({} bytes)", self.0.len())
    }
}

/// Routes that are read one at a time.
#[derive(Debug)]
pub struct OpenedRoutes(wire::PackedRoutes);

impl OpenedRoutes {
    /// Those of requests, in order, each checked where it is reached.
    pub fn routes(&self) -> impl Iterator<Item = Result<WireRoute, WireError>> {
        self.0.routes.iter().enumerate().map(|(index, bytes)| {
            let message = wire::Route::decode(bytes.clone()).map_err(WireError::from);
            let checked = message.and_then(WireRoute::from_wire);
            checked.map_err(|error| error.within(&format!("routes[{index}]")))
        })
    }

    /// Those of connections.
    pub fn connections(&self) -> impl Iterator<Item = Result<ConnectionRoute, WireError>> {
        self.0.connections.iter().enumerate().map(|(index, bytes)| {
            let message = wire::ConnectionRoute::decode(bytes.clone()).map_err(WireError::from);
            let checked = message.and_then(ConnectionRoute::from_wire);
            checked.map_err(|error| error.within(&format!("connections[{index}]")))
        })
    }
}

wire_type! {
    ConnectionRoute as wire::ConnectionRoute { matches, destinations, }
    verify leads_somewhere
}

fn leads_somewhere(route: &ConnectionRoute) -> Result<(), WireError> {
    has_weight(&route.destinations)
}

fn has_weight(destinations: &[RouteDestination]) -> Result<(), WireError> {
    match destinations.iter().all(|one| one.weight == 0) {
        true => Err(WireError::new("destinations", "all weights are 0")),
        false => Ok(()),
    }
}

wire_type! {
    ConnectionMatch as wire::ConnectionMatch {
        server_names,
        subnets = destinations,
        port,
        source_labels,
    }
}

wire_type! {
    WireRoute as wire::Route {
        name,
        matches,
        destinations,
        timeout = timeout_ms,
        retry,
        answer,
        rewrite,
        headers with or_default,
        fault,
        cors,
        mirrors,
        missing_status with error_status,
    }
    verify answers_or_leads_somewhere
}

fn answers_or_leads_somewhere(route: &WireRoute) -> Result<(), WireError> {
    match route.answer {
        Some(_) => Ok(()),
        None => has_weight(&route.destinations),
    }
}

mod error_status {
    use super::{HttpRoute, WireError};

    pub(super) fn to_wire(status: &u16) -> u32 {
        match *status {
            HttpRoute::MISSING => 0,
            other => other.into(),
        }
    }

    pub(super) fn from_wire(form: u32) -> Result<u16, WireError> {
        match u16::try_from(form) {
            Ok(0) => Ok(HttpRoute::MISSING),
            Ok(status @ 400..600) => Ok(status),
            _ => Err(WireError::new("", "it is not an error status")),
        }
    }
}

wire_type! {
    RouteDestination as wire::RouteDestination {
        to = (service, subset, port, missing),
        weight,
        headers with or_default,
    }
}

type Target = (String, String, u32, String);

impl WireType<Target> for Result<RouteTarget, Arc<str>> {
    fn to_wire(&self) -> Target {
        match self {
            Ok(to) => {
                let (service, subset) = (to.service.to_wire(), to.subset.to_wire());
                (service, subset, to.port.to_wire(), String::new())
            }
            Err(missing) => (String::new(), String::new(), 0, missing.to_wire()),
        }
    }

    fn from_wire((service, subset, port, missing): Target) -> Result<Self, WireError> {
        if service.is_empty() {
            return Ok(Err(missing.into()));
        }
        let port: Result<_, WireError> = WireType::from_wire(port);
        Ok(Ok(RouteTarget {
            service: service_key("service", &service)?,
            subset: WireType::from_wire(subset)?,
            port: port.map_err(|error| error.within("port"))?,
        }))
    }
}

wire_type! { Mirror as wire::Mirror { to with destination, share = millionths, } }

/// A destination of which only the target counts.
mod destination {
    use super::{Arc, HeaderRules, RouteDestination, RouteTarget, WireError, required, wire};

    pub(super) fn to_wire(to: &Result<RouteTarget, Arc<str>>) -> Option<wire::RouteDestination> {
        required::to_wire(&RouteDestination {
            to: to.clone(),
            weight: 0,
            headers: HeaderRules::default(),
        })
    }

    pub(super) fn from_wire(
        form: Option<wire::RouteDestination>,
    ) -> Result<Result<RouteTarget, Arc<str>>, WireError> {
        required::from_wire(form).map(|one: RouteDestination| one.to)
    }
}

wire_type! {
    RequestMatch as wire::RequestMatch {
        uri by path,
        any_case,
        scheme,
        method,
        authority,
        headers,
        without_headers,
        query,
        port,
        source_labels,
    }
}

wire_tuple! { (Arc<str>, TextMatch) as wire::NamedMatch { name, text } }

/// A path; nothing else has conditions on segments.
fn path(form: Option<wire::TextMatch>) -> Result<Option<TextMatch>, WireError> {
    use wire::text_match::Text::Segments;
    match form {
        Some(wire::TextMatch {
            text: Some(Segments(text)),
        }) => Ok(Some(TextMatch::Segments(text.into()))),
        other => WireType::from_wire(other),
    }
}

impl WireType<wire::TextMatch> for TextMatch {
    fn to_wire(&self) -> wire::TextMatch {
        use wire::text_match::Text;
        let text = match self {
            Self::Exact(text) => Text::Exact(text.to_string()),
            Self::Prefix(text) => Text::Prefix(text.to_string()),
            Self::Segments(text) => Text::Segments(text.to_string()),
            Self::Regex(text) => Text::Regex(text.to_string()),
            Self::Present => Text::Present(true),
        };
        wire::TextMatch { text: Some(text) }
    }

    fn from_wire(form: wire::TextMatch) -> Result<Self, WireError> {
        use wire::text_match::Text;
        match form.text {
            Some(Text::Exact(text)) => Ok(Self::Exact(text.into())),
            Some(Text::Prefix(text)) => Ok(Self::Prefix(text.into())),
            Some(Text::Regex(text)) => Ok(Self::Regex(text.into())),
            Some(Text::Present(true)) => Ok(Self::Present),
            // An unknown condition of a later version is an error: without it the route would match everything.
            Some(Text::Present(false) | Text::Segments(_)) | None => {
                Err(WireError::new("", "empty or unknown"))
            }
        }
    }
}

/// Of a named value; it must be there.
impl WireType<Option<wire::TextMatch>> for TextMatch {
    fn to_wire(&self) -> Option<wire::TextMatch> {
        required::to_wire(self)
    }

    fn from_wire(form: Option<wire::TextMatch>) -> Result<Self, WireError> {
        required::from_wire(form)
    }
}
