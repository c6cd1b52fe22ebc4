//! Actions of routes on requests ⇄ the messages of `voile.proxy.v1.Routes`. Every value is checked again: the proxy must not
//! trust the sender.

use std::time::Duration;

use voile_model::mesh::action::{
    Abort, AbortStatus, Cors, Delay, DirectResponse, Fault, HeaderEdits, HeaderRules, Origin,
    OriginMatch, PathRewrite, Redirect, RedirectPort, Regex, RegexRewrite, RequestShare, Rewrite,
};
use voile_proto::proxy as wire;

use super::{WireError, milliseconds};

/// Status codes that a route may answer with.
const STATUSES: std::ops::RangeInclusive<u32> = 200..=599;

fn status(field: &str, number: u32) -> Result<u16, WireError> {
    let status = u16::try_from(number).ok();
    let status = status.filter(|_| STATUSES.contains(&number));
    status.ok_or_else(|| WireError::new(field, format!("{number} is not a status")))
}

fn said(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) fn answer(message: &wire::RouteAnswer) -> Result<DirectResponse, WireError> {
    let status = status("answer.status", message.status)?;
    let Some(redirect) = &message.redirect else {
        let body = message.body.as_slice().into();
        return Ok(DirectResponse::Direct { status, body });
    };
    let port = match u16::try_from(redirect.port) {
        Ok(0) => match wire::redirect::PortOf::try_from(redirect.port_of) {
            Ok(wire::redirect::PortOf::Request) => RedirectPort::Request,
            Ok(wire::redirect::PortOf::Listener) => RedirectPort::Listener,
            Ok(wire::redirect::PortOf::Scheme) => RedirectPort::Scheme,
            Err(_) => return Err(WireError::new("answer.redirect.port_of", "unknown")),
        },
        Ok(port) => RedirectPort::Exact(port),
        Err(_) => return Err(WireError::new("answer.redirect.port", "no port")),
    };
    let to = Redirect {
        scheme: said(&redirect.scheme).map(str::to_owned),
        host: said(&redirect.host).map(str::to_owned),
        port,
        path: path_rewrite("answer.redirect.path", redirect.path.as_ref())?,
    };
    Ok(DirectResponse::Redirect { to, status })
}

pub(super) fn encode_answer(answer: &DirectResponse) -> wire::RouteAnswer {
    match answer {
        DirectResponse::Direct { status, body } => wire::RouteAnswer {
            status: (*status).into(),
            redirect: None,
            body: body.to_vec(),
        },
        DirectResponse::Redirect { to, status } => {
            use wire::redirect::PortOf;
            let (port, port_of) = match to.port {
                RedirectPort::Request => (0, PortOf::Request),
                RedirectPort::Listener => (0, PortOf::Listener),
                RedirectPort::Scheme => (0, PortOf::Scheme),
                RedirectPort::Exact(port) => (port, PortOf::Request),
            };
            wire::RouteAnswer {
                status: (*status).into(),
                redirect: Some(wire::Redirect {
                    scheme: to.scheme.clone().unwrap_or_default(),
                    host: to.host.clone().unwrap_or_default(),
                    path: to.path.as_ref().map(encode_path),
                    port: port.into(),
                    port_of: port_of.into(),
                }),
                body: Vec::new(),
            }
        }
    }
}

fn path_rewrite(
    field: &str,
    message: Option<&wire::PathRewrite>,
) -> Result<Option<PathRewrite>, WireError> {
    use wire::path_rewrite::Path;
    let Some(message) = message else {
        return Ok(None);
    };
    Ok(Some(match &message.path {
        Some(Path::Full(text)) => PathRewrite::Full(text.clone()),
        Some(Path::Prefix(text)) => PathRewrite::Prefix(text.clone()),
        Some(Path::Segments(text)) => PathRewrite::Segments(text.clone()),
        Some(Path::Regex(said)) => {
            let read = RegexRewrite::new(&said.pattern, &said.substitution);
            let read = read.map_err(|error| WireError::new(field, error.to_string()))?;
            PathRewrite::Regex(read)
        }
        None => return Err(WireError::new(field, "is empty")),
    }))
}

fn encode_path(path: &PathRewrite) -> wire::PathRewrite {
    use wire::path_rewrite::Path;
    let path = match path {
        PathRewrite::Full(text) => Path::Full(text.clone()),
        PathRewrite::Prefix(text) => Path::Prefix(text.clone()),
        PathRewrite::Segments(text) => Path::Segments(text.clone()),
        PathRewrite::Regex(regex) => Path::Regex(wire::RegexRewrite {
            pattern: regex.pattern().to_owned(),
            substitution: regex.substitution().to_owned(),
        }),
    };
    wire::PathRewrite { path: Some(path) }
}

pub(super) fn rewrite(message: &wire::Rewrite) -> Result<Rewrite, WireError> {
    Ok(Rewrite {
        path: path_rewrite("rewrite.path", message.path.as_ref())?,
        authority: said(&message.authority).map(Into::into),
    })
}

pub(super) fn encode_rewrite(rewrite: &Rewrite) -> wire::Rewrite {
    wire::Rewrite {
        path: rewrite.path.as_ref().map(encode_path),
        authority: rewrite.authority.as_deref().unwrap_or_default().to_owned(),
    }
}

pub(super) fn headers(message: Option<&wire::HeaderRules>) -> Result<HeaderRules, WireError> {
    let Some(message) = message else {
        return Ok(HeaderRules::default());
    };
    let edits = |field: &str, said: Option<&wire::HeaderEdits>| {
        let fields = |list: &[wire::HeaderField]| {
            let one = |field: &wire::HeaderField| (field.name.clone(), field.value.clone());
            list.iter().map(one).collect()
        };
        let edits = said.map_or_else(HeaderEdits::default, |said| HeaderEdits {
            remove: said.remove.clone(),
            set: fields(&said.set),
            add: fields(&said.add),
        });
        let checked = edits.check();
        checked.map_err(|error| WireError::new(field, error.to_string()))?;
        Ok::<_, WireError>(edits)
    };
    Ok(HeaderRules {
        request: edits("headers.request", message.request.as_ref())?,
        response: edits("headers.response", message.response.as_ref())?,
    })
}

pub(super) fn encode_headers(rules: &HeaderRules) -> Option<wire::HeaderRules> {
    let edits = |edits: &HeaderEdits| {
        let fields = |list: &[(String, String)]| {
            let one = |(name, value): &(String, String)| wire::HeaderField {
                name: name.clone(),
                value: value.clone(),
            };
            list.iter().map(one).collect()
        };
        (!edits.is_empty()).then(|| wire::HeaderEdits {
            remove: edits.remove.clone(),
            set: fields(&edits.set),
            add: fields(&edits.add),
        })
    };
    (!rules.is_empty()).then(|| wire::HeaderRules {
        request: edits(&rules.request),
        response: edits(&rules.response),
    })
}

pub(super) fn fault(message: &wire::Fault) -> Result<Fault, WireError> {
    use wire::fault_abort::With;
    let delay = message.delay.as_ref().map(|delay| Delay {
        fixed: Duration::from_millis(delay.fixed_ms.into()),
        share: RequestShare::of_millionths(delay.millionths),
    });
    let abort = match &message.abort {
        None => None,
        Some(abort) => Some(Abort {
            with: match abort.with {
                Some(With::HttpStatus(number)) => {
                    AbortStatus::Http(status("fault.abort.http_status", number)?)
                }
                Some(With::GrpcStatus(number @ 0..=16)) => AbortStatus::Grpc(number as u16),
                Some(With::GrpcStatus(_)) | None => {
                    return Err(WireError::new("fault.abort", "has no status"));
                }
            },
            share: RequestShare::of_millionths(abort.millionths),
        }),
    };
    Ok(Fault { delay, abort })
}

pub(super) fn encode_fault(fault: &Fault) -> wire::Fault {
    use wire::fault_abort::With;
    let abort = |abort: Abort| wire::FaultAbort {
        with: Some(match abort.with {
            AbortStatus::Http(status) => With::HttpStatus(status.into()),
            AbortStatus::Grpc(status) => With::GrpcStatus(status.into()),
        }),
        millionths: abort.share.millionths(),
    };
    wire::Fault {
        delay: fault.delay.map(|delay| wire::FaultDelay {
            fixed_ms: milliseconds(delay.fixed),
            millionths: delay.share.millionths(),
        }),
        abort: fault.abort.map(abort),
    }
}

pub(super) fn cors(message: &wire::Cors) -> Result<Cors, WireError> {
    let origins = message.origins.iter().map(origin);
    Ok(Cors {
        origins: origins.collect::<Result<_, _>>()?,
        methods: message.methods.clone(),
        headers: message.headers.clone(),
        expose: message.expose.clone(),
        max_age: message.max_age,
        credentials: message.credentials,
        forward_unmatched: message.forward_unmatched,
    })
}

fn origin(message: &wire::Origin) -> Result<Origin, WireError> {
    use wire::origin::Origin as Said;
    let field = "cors.origins";
    Ok(match &message.origin {
        Some(Said::Any(true)) => Origin::Any,
        Some(Said::Exact(text)) => Origin::Text(OriginMatch::Exact(text.clone())),
        Some(Said::Prefix(text)) => Origin::Text(OriginMatch::Prefix(text.clone())),
        Some(Said::Suffix(text)) => Origin::Text(OriginMatch::Suffix(text.clone())),
        Some(Said::Regex(text)) => {
            let read = Regex::new(text);
            let read = read.map_err(|error| WireError::new(field, error.to_string()))?;
            Origin::Text(OriginMatch::Regex(read))
        }
        Some(Said::Within(said)) => Origin::Within(said.before.clone(), said.after.clone()),
        Some(Said::Any(false)) | None => return Err(WireError::new(field, "is empty")),
    })
}

pub(super) fn encode_cors(cors: &Cors) -> wire::Cors {
    use wire::origin::Origin as Said;
    let origin = |origin: &Origin| wire::Origin {
        origin: Some(match origin {
            Origin::Any => Said::Any(true),
            Origin::Text(OriginMatch::Exact(text)) => Said::Exact(text.clone()),
            Origin::Text(OriginMatch::Prefix(text)) => Said::Prefix(text.clone()),
            Origin::Text(OriginMatch::Suffix(text)) => Said::Suffix(text.clone()),
            Origin::Text(OriginMatch::Regex(regex)) => Said::Regex(regex.as_str().to_owned()),
            Origin::Within(before, after) => Said::Within(wire::OriginWithin {
                before: before.clone(),
                after: after.clone(),
            }),
        }),
    };
    wire::Cors {
        origins: cors.origins.iter().map(origin).collect(),
        methods: cors.methods.clone(),
        headers: cors.headers.clone(),
        expose: cors.expose.clone(),
        max_age: cors.max_age,
        credentials: cors.credentials,
        forward_unmatched: cors.forward_unmatched,
    }
}
