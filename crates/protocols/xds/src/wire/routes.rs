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

use super::{
    WireError, action, check_retry, encode_retry, labels_of, labels_on_wire, milliseconds, port,
    service_key,
};

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
        let opened = PackedRoutes::copied(bytes).open()?;
        Ok(Self {
            routes: opened.routes().collect::<Result<_, _>>()?,
            connections: opened.connections().collect::<Result<_, _>>()?,
        })
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> wire::Routes {
        let one = |route: &WireRoute| wire::Route {
            name: route.name.to_string(),
            matches: route.matches.iter().map(encode_match).collect(),
            destinations: route.destinations.iter().map(encode_destination).collect(),
            timeout_ms: route.timeout.map_or(0, milliseconds),
            retry: route.retry.as_ref().map(encode_retry),
            answer: route.answer.as_ref().map(action::encode_answer),
            rewrite: route.rewrite.as_ref().map(action::encode_rewrite),
            headers: action::encode_headers(&route.headers),
            fault: route.fault.as_ref().map(action::encode_fault),
            cors: route.cors.as_deref().map(action::encode_cors),
            mirrors: route.mirrors.iter().map(encode_mirror).collect(),
            missing_status: match route.missing_status {
                HttpRoute::MISSING => 0,
                other => other.into(),
            },
        };
        wire::Routes {
            routes: self.routes.iter().map(one).collect(),
            connections: self.connections.iter().map(encode_connection).collect(),
        }
    }
}

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

    /// As they travel.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Finds where each begins.
    ///
    /// # Errors
    /// They are not what they should be.
    pub fn open(&self) -> Result<OpenedRoutes, WireError> {
        Ok(OpenedRoutes(wire::PackedRoutes::decode(self.0.clone())?))
    }
}

impl From<&Routes> for PackedRoutes {
    fn from(routes: &Routes) -> Self {
        Self::new(routes.encode().encode_to_vec())
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
            let checked = message.and_then(|message| route(&message));
            checked.map_err(|error| error.within(&format!("routes[{index}]")))
        })
    }

    /// Those of connections.
    pub fn connections(&self) -> impl Iterator<Item = Result<ConnectionRoute, WireError>> {
        self.0.connections.iter().enumerate().map(|(index, bytes)| {
            let message = wire::ConnectionRoute::decode(bytes.clone()).map_err(WireError::from);
            let checked = message.and_then(|message| connection(&message));
            checked.map_err(|error| error.within(&format!("connections[{index}]")))
        })
    }
}

fn connection(message: &wire::ConnectionRoute) -> Result<ConnectionRoute, WireError> {
    let mut matches = Vec::with_capacity(message.matches.len());
    for (index, one) in message.matches.iter().enumerate() {
        matches.push(connection_match(one).map_err(|e| e.within(&format!("matches[{index}]")))?);
    }
    let mut destinations = Vec::with_capacity(message.destinations.len());
    for (index, one) in message.destinations.iter().enumerate() {
        destinations
            .push(destination(one).map_err(|e| e.within(&format!("destinations[{index}]")))?);
    }
    if destinations.iter().all(|one| one.weight == 0) {
        return Err(WireError::new("destinations", "all weights are 0"));
    }
    Ok(ConnectionRoute {
        matches,
        destinations,
    })
}

fn connection_match(message: &wire::ConnectionMatch) -> Result<ConnectionMatch, WireError> {
    let mut subnets = Vec::with_capacity(message.destinations.len());
    for (index, one) in message.destinations.iter().enumerate() {
        let range = super::AddressRange::check(one);
        let range = range.map_err(|e| e.within(&format!("destinations[{index}]")))?;
        subnets.push(AddressRange {
            address: range.address,
            prefix: range.prefix,
        });
    }
    let names = message.server_names.iter();
    Ok(ConnectionMatch {
        server_names: names.map(|name| name.as_str().into()).collect(),
        subnets,
        port: match message.port {
            0 => None,
            number => Some(port("port", number)?),
        },
        source_labels: labels_of(&message.source_labels),
    })
}

fn encode_connection(one: &ConnectionRoute) -> wire::ConnectionRoute {
    let matched = |one: &ConnectionMatch| wire::ConnectionMatch {
        server_names: one.server_names.iter().map(ToString::to_string).collect(),
        destinations: one
            .subnets
            .iter()
            .map(|range| wire::AddressRange {
                address: super::address_bytes(range.address),
                prefix: range.prefix.into(),
            })
            .collect(),
        port: one.port.map_or(0, |port| port.get().into()),
        source_labels: labels_on_wire(&one.source_labels),
    };
    wire::ConnectionRoute {
        matches: one.matches.iter().map(matched).collect(),
        destinations: one.destinations.iter().map(encode_destination).collect(),
    }
}

fn route(message: &wire::Route) -> Result<WireRoute, WireError> {
    let mut matches = Vec::with_capacity(message.matches.len());
    for (index, one) in message.matches.iter().enumerate() {
        matches.push(request_match(one).map_err(|e| e.within(&format!("matches[{index}]")))?);
    }
    let mut destinations = Vec::with_capacity(message.destinations.len());
    for (index, one) in message.destinations.iter().enumerate() {
        destinations
            .push(destination(one).map_err(|e| e.within(&format!("destinations[{index}]")))?);
    }
    let answer = message.answer.as_ref().map(action::answer).transpose()?;
    if answer.is_none() && destinations.iter().all(|one| one.weight == 0) {
        return Err(WireError::new("destinations", "all weights are 0"));
    }
    let mut mirrors = Vec::with_capacity(message.mirrors.len());
    for (index, one) in message.mirrors.iter().enumerate() {
        mirrors.push(mirror(one).map_err(|e| e.within(&format!("mirrors[{index}]")))?);
    }
    let timeout =
        (message.timeout_ms > 0).then(|| Duration::from_millis(message.timeout_ms.into()));
    Ok(WireRoute {
        name: message.name.as_str().into(),
        matches,
        destinations,
        timeout,
        retry: message.retry.as_ref().map(check_retry),
        answer,
        rewrite: message.rewrite.as_ref().map(action::rewrite).transpose()?,
        headers: action::headers(message.headers.as_ref())?,
        fault: message.fault.as_ref().map(action::fault).transpose()?,
        cors: match &message.cors {
            Some(cors) => Some(Arc::new(action::cors(cors)?)),
            None => None,
        },
        mirrors,
        missing_status: match message.missing_status {
            0 => HttpRoute::MISSING,
            status => u16::try_from(status)
                .ok()
                .filter(|status| (400..600).contains(status))
                .ok_or_else(|| WireError::new("missing_status", "it is not an error status"))?,
        },
    })
}

pub(super) fn request_match(message: &wire::RequestMatch) -> Result<RequestMatch, WireError> {
    let text = |field: &str, message: &Option<wire::TextMatch>| match message {
        None => Ok(None),
        Some(message) => text(field, message).map(Some),
    };
    let named = |field: &str, list: &[wire::NamedMatch]| {
        let one = |one: &wire::NamedMatch| {
            let field = format!("{field}[{}]", super::shown(&one.name));
            let matched = text(&field, &one.text)?;
            let matched = matched.ok_or_else(|| WireError::new(&field, "missing"))?;
            Ok((one.name.as_str().into(), matched))
        };
        list.iter().map(one).collect::<Result<Vec<_>, WireError>>()
    };
    Ok(RequestMatch {
        uri: path(&message.uri)?,
        any_case: message.any_case,
        scheme: text("scheme", &message.scheme)?,
        method: text("method", &message.method)?,
        authority: text("authority", &message.authority)?,
        headers: named("headers", &message.headers)?,
        without_headers: named("without_headers", &message.without_headers)?,
        query: named("query", &message.query)?,
        port: match message.port {
            0 => None,
            number => Some(port("port", number)?),
        },
        source_labels: labels_of(&message.source_labels),
    })
}

/// Reads a path condition; only paths have conditions on segments.
fn path(message: &Option<wire::TextMatch>) -> Result<Option<TextMatch>, WireError> {
    use wire::text_match::Text;
    match message {
        None => Ok(None),
        Some(wire::TextMatch {
            text: Some(Text::Segments(text)),
        }) => Ok(Some(TextMatch::Segments(text.as_str().into()))),
        Some(message) => text("uri", message).map(Some),
    }
}

fn text(field: &str, message: &wire::TextMatch) -> Result<TextMatch, WireError> {
    use wire::text_match::Text;
    match &message.text {
        Some(Text::Exact(text)) => Ok(TextMatch::Exact(text.as_str().into())),
        Some(Text::Prefix(text)) => Ok(TextMatch::Prefix(text.as_str().into())),
        Some(Text::Regex(text)) => Ok(TextMatch::Regex(text.as_str().into())),
        Some(Text::Present(true)) => Ok(TextMatch::Present),
        // An unknown condition of a later version is an error: without it the route would match everything.
        Some(Text::Present(false) | Text::Segments(_)) | None => {
            Err(WireError::new(field, "empty or unknown"))
        }
    }
}

fn destination(message: &wire::RouteDestination) -> Result<RouteDestination, WireError> {
    let to = match message.service.as_str() {
        "" => Err(message.missing.as_str().into()),
        name => Ok(RouteTarget {
            service: service_key("service", name)?,
            subset: Some(message.subset.as_str())
                .filter(|name| !name.is_empty())
                .map(Into::into),
            port: match message.port {
                0 => None,
                number => Some(port("port", number)?),
            },
        }),
    };
    Ok(RouteDestination {
        to,
        weight: message.weight,
        headers: action::headers(message.headers.as_ref())?,
    })
}

fn mirror(message: &wire::Mirror) -> Result<Mirror, WireError> {
    let to = message.to.as_ref();
    let to = to.ok_or_else(|| WireError::new("to", "missing"))?;
    Ok(Mirror {
        to: destination(to)?.to,
        share: RequestShare::of_millionths(message.millionths),
    })
}

fn encode_mirror(one: &Mirror) -> wire::Mirror {
    let to = RouteDestination {
        to: one.to.clone(),
        weight: 0,
        headers: HeaderRules::default(),
    };
    wire::Mirror {
        to: Some(encode_destination(&to)),
        millionths: one.share.millionths(),
    }
}

pub(super) fn encode_match(one: &RequestMatch) -> wire::RequestMatch {
    let text = |text: &Option<TextMatch>| text.as_ref().map(encode_text);
    let named = |list: &[(Arc<str>, TextMatch)]| {
        let one = |(name, text): &(Arc<str>, TextMatch)| wire::NamedMatch {
            name: name.to_string(),
            text: Some(encode_text(text)),
        };
        list.iter().map(one).collect()
    };
    wire::RequestMatch {
        uri: text(&one.uri),
        any_case: one.any_case,
        scheme: text(&one.scheme),
        method: text(&one.method),
        authority: text(&one.authority),
        headers: named(&one.headers),
        without_headers: named(&one.without_headers),
        query: named(&one.query),
        port: one.port.map_or(0, |port| port.get().into()),
        source_labels: labels_on_wire(&one.source_labels),
    }
}

fn encode_text(text: &TextMatch) -> wire::TextMatch {
    use wire::text_match::Text;
    let text = match text {
        TextMatch::Exact(text) => Text::Exact(text.to_string()),
        TextMatch::Prefix(text) => Text::Prefix(text.to_string()),
        TextMatch::Segments(text) => Text::Segments(text.to_string()),
        TextMatch::Regex(text) => Text::Regex(text.to_string()),
        TextMatch::Present => Text::Present(true),
    };
    wire::TextMatch { text: Some(text) }
}

fn encode_destination(one: &RouteDestination) -> wire::RouteDestination {
    let message = wire::RouteDestination {
        weight: one.weight,
        headers: action::encode_headers(&one.headers),
        ..wire::RouteDestination::default()
    };
    match &one.to {
        Err(missing) => wire::RouteDestination {
            missing: missing.to_string(),
            ..message
        },
        Ok(to) => wire::RouteDestination {
            service: to.service.to_string(),
            subset: to.subset.as_deref().unwrap_or_default().to_owned(),
            port: to.port.map_or(0, |port| port.get().into()),
            ..message
        },
    }
}
