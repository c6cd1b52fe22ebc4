//! Actions of routes on requests ⇄ the messages of `voile.proxy.v1.Routes`. Every value is checked again: the proxy must not
//! trust the sender.

use voile_model::mesh::action::{
    Abort, AbortStatus, Cors, Delay, DirectResponse, Fault, HeaderEdits, HeaderRules, Origin,
    OriginMatch, PathRewrite, Redirect, RedirectPort, Regex, RegexRewrite, RequestShare, Rewrite,
};
use voile_proto::proxy as wire;

use super::fields::forms::or_default;
use super::fields::{wire_tuple, wire_type};
use super::{WireError, WireType};

/// Status codes that a route may answer with.
const STATUSES: std::ops::RangeInclusive<u32> = 200..=599;

fn status(field: &str, number: u32) -> Result<u16, WireError> {
    let status = u16::try_from(number).ok();
    let status = status.filter(|_| STATUSES.contains(&number));
    status.ok_or_else(|| WireError::new(field, format!("{number} is not a status")))
}

impl WireType<wire::RouteAnswer> for DirectResponse {
    fn to_wire(&self) -> wire::RouteAnswer {
        let (status, redirect, body) = match self {
            Self::Direct { status, body } => (status, None, body.to_vec()),
            Self::Redirect { to, status } => (status, Some(to.to_wire()), Vec::new()),
        };
        wire::RouteAnswer {
            status: (*status).into(),
            redirect,
            body,
        }
    }

    fn from_wire(form: wire::RouteAnswer) -> Result<Self, WireError> {
        let status = status("status", form.status)?;
        match form.redirect {
            None => Ok(Self::Direct {
                status,
                body: form.body.into(),
            }),
            Some(redirect) => Ok(Self::Redirect {
                to: Redirect::from_wire(redirect).map_err(|error| error.within("redirect"))?,
                status,
            }),
        }
    }
}

wire_type! { Redirect as wire::Redirect { scheme, host, path, port = (port, port_of), } }

impl WireType<(u32, i32)> for RedirectPort {
    fn to_wire(&self) -> (u32, i32) {
        use wire::redirect::PortOf;
        let (port, port_of) = match *self {
            Self::Request => (0, PortOf::Request),
            Self::Listener => (0, PortOf::Listener),
            Self::Scheme => (0, PortOf::Scheme),
            Self::Exact(port) => (port, PortOf::Request),
        };
        (port.into(), port_of.into())
    }

    fn from_wire((port, port_of): (u32, i32)) -> Result<Self, WireError> {
        use wire::redirect::PortOf;
        match (u16::try_from(port), PortOf::try_from(port_of)) {
            (Ok(0), Ok(PortOf::Request)) => Ok(Self::Request),
            (Ok(0), Ok(PortOf::Listener)) => Ok(Self::Listener),
            (Ok(0), Ok(PortOf::Scheme)) => Ok(Self::Scheme),
            (Ok(0), Err(_)) => Err(WireError::new("port_of", "unknown")),
            (Ok(port), _) => Ok(Self::Exact(port)),
            (Err(_), _) => Err(WireError::new("port", "no port")),
        }
    }
}

impl WireType<wire::PathRewrite> for PathRewrite {
    fn to_wire(&self) -> wire::PathRewrite {
        use wire::path_rewrite::Path;
        let path = match self {
            Self::Full(text) => Path::Full(text.clone()),
            Self::Prefix(text) => Path::Prefix(text.clone()),
            Self::Segments(text) => Path::Segments(text.clone()),
            Self::Regex(regex) => Path::Regex(wire::RegexRewrite {
                pattern: regex.pattern().to_owned(),
                substitution: regex.substitution().to_owned(),
            }),
        };
        wire::PathRewrite { path: Some(path) }
    }

    fn from_wire(form: wire::PathRewrite) -> Result<Self, WireError> {
        use wire::path_rewrite::Path;
        match form.path {
            Some(Path::Full(text)) => Ok(Self::Full(text)),
            Some(Path::Prefix(text)) => Ok(Self::Prefix(text)),
            Some(Path::Segments(text)) => Ok(Self::Segments(text)),
            Some(Path::Regex(said)) => RegexRewrite::new(&said.pattern, &said.substitution)
                .map(Self::Regex)
                .map_err(|error| WireError::new("", error.to_string())),
            None => Err(WireError::new("", "is empty")),
        }
    }
}

wire_type! { Rewrite as wire::Rewrite { path, authority, } }

wire_type! {
    HeaderRules as wire::HeaderRules { request with or_default, response with or_default, }
}

wire_type! { HeaderEdits as wire::HeaderEdits { remove, set, add, } verify are_permitted }
wire_tuple! { (String, String) as wire::HeaderField { name, value } }

fn are_permitted(edits: &HeaderEdits) -> Result<(), WireError> {
    let checked = edits.check();
    checked.map_err(|error| WireError::new("", error.to_string()))
}

wire_type! { Fault as wire::Fault { delay, abort, } }
wire_type! { Delay as wire::FaultDelay { fixed = fixed_ms, share = millionths, } }
wire_type! { Abort as wire::FaultAbort { with = with, share = millionths, } }

impl WireType<Option<wire::fault_abort::With>> for AbortStatus {
    fn to_wire(&self) -> Option<wire::fault_abort::With> {
        use wire::fault_abort::With;
        Some(match *self {
            Self::Http(status) => With::HttpStatus(status.into()),
            Self::Grpc(status) => With::GrpcStatus(status.into()),
        })
    }

    fn from_wire(form: Option<wire::fault_abort::With>) -> Result<Self, WireError> {
        use wire::fault_abort::With;
        match form {
            Some(With::HttpStatus(number)) => status("http_status", number).map(Self::Http),
            Some(With::GrpcStatus(number @ 0..=16)) => Ok(Self::Grpc(number as u16)),
            Some(With::GrpcStatus(_)) | None => Err(WireError::new("", "has no status")),
        }
    }
}

/// In millionths.
impl WireType<u32> for RequestShare {
    fn to_wire(&self) -> u32 {
        self.millionths()
    }

    fn from_wire(form: u32) -> Result<Self, WireError> {
        Ok(Self::of_millionths(form))
    }
}

wire_type! {
    Cors as wire::Cors {
        origins,
        methods,
        headers,
        expose,
        max_age,
        credentials,
        forward_unmatched,
    }
}

impl WireType<wire::Origin> for Origin {
    fn to_wire(&self) -> wire::Origin {
        use wire::origin::Origin as Said;
        let origin = match self {
            Self::Any => Said::Any(true),
            Self::Text(OriginMatch::Exact(text)) => Said::Exact(text.clone()),
            Self::Text(OriginMatch::Prefix(text)) => Said::Prefix(text.clone()),
            Self::Text(OriginMatch::Suffix(text)) => Said::Suffix(text.clone()),
            Self::Text(OriginMatch::Regex(regex)) => Said::Regex(regex.as_str().to_owned()),
            Self::Within(before, after) => Said::Within(wire::OriginWithin {
                before: before.clone(),
                after: after.clone(),
            }),
        };
        wire::Origin {
            origin: Some(origin),
        }
    }

    fn from_wire(form: wire::Origin) -> Result<Self, WireError> {
        use wire::origin::Origin as Said;
        Ok(match form.origin {
            Some(Said::Any(true)) => Self::Any,
            Some(Said::Exact(text)) => Self::Text(OriginMatch::Exact(text)),
            Some(Said::Prefix(text)) => Self::Text(OriginMatch::Prefix(text)),
            Some(Said::Suffix(text)) => Self::Text(OriginMatch::Suffix(text)),
            Some(Said::Regex(text)) => {
                let read = Regex::new(&text);
                let read = read.map_err(|error| WireError::new("", error.to_string()))?;
                Self::Text(OriginMatch::Regex(read))
            }
            Some(Said::Within(said)) => Self::Within(said.before, said.after),
            Some(Said::Any(false)) | None => return Err(WireError::new("", "is empty")),
        })
    }
}
