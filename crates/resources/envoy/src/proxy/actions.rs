//! Actions of a route on requests besides forwarding, in Envoy's terms: answers, rewrites, edits of headers, faults, CORS,
//! copies. If Envoy would act differently from the mesh's meaning, a limit says so, and the route's requests are refused.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use voile_model::mesh::action::{
    AbortStatus, Cors, DirectResponse, Fault, HeaderEdits, HeaderRules, Origin, OriginMatch,
    PathRewrite, Redirect, RedirectPort, Rewrite,
};
use voile_model::mesh::{Criterion, HttpMatch, HttpRoute, Subject, TextMatch};

use crate::json::{duration, message, share, typed};
use crate::matchers::quoted;

/// The filters that routes have settings for, by the names under which they say them.
const FAULT: &str = "envoy.filters.http.fault";
const CORS: &str = "envoy.filters.http.cors";
/// Longest answer of a route's own that Envoy is to take, in bytes: as long as the model lets them be.
pub(super) const MAX_BODY: u32 = 1 << 20;

/// The setting of a route that means something else to Envoy, and the reason.
type Unsaid = &'static str;

/// The filters that do nothing but what routes ask of them, in the order in which our own proxies decide.
pub(super) fn filters() -> [Value; 2] {
    [
        typed(
            FAULT,
            "extensions.filters.http.fault.v3.HTTPFault",
            json!({}),
        ),
        typed(CORS, "extensions.filters.http.cors.v3.Cors", json!({})),
    ]
}

/// Settings for all of a route's requests, whatever their destination: faults, CORS, its edits of headers.
pub(super) fn around(route: &HttpRoute) -> Result<Value, Unsaid> {
    let mut made = json!({});
    edit(&route.headers, &mut made);
    let mut settings = json!({});
    if let Some(fault) = route.fault.as_ref().and_then(fault) {
        settings[FAULT] = fault;
    }
    if let Some(cors) = &route.cors {
        settings[CORS] = self::cors(cors)?;
    }
    if settings != json!({}) {
        made["typed_per_filter_config"] = settings;
    }
    Ok(made)
}

/// Answer in place of a forwarded request: the kind of route, and its content. `called` is the port that clients know.
pub(super) fn answer(
    answer: &DirectResponse,
    alternative: Option<&HttpMatch>,
    called: u16,
) -> Result<(&'static str, Value), Unsaid> {
    Ok(match answer {
        DirectResponse::Direct { status, body } => {
            let mut made = json!({ "status": status });
            match std::str::from_utf8(body) {
                _ if body.is_empty() => {}
                Ok(text) => made["body"] = json!({ "inline_string": text }),
                Err(_) => made["body"] = json!({ "inline_bytes": STANDARD.encode(body) }),
            }
            ("direct_response", made)
        }
        DirectResponse::Redirect { to, status } => {
            let mut made = redirect(to, alternative, called)?;
            made["response_code"] = json!(match status {
                302 => "FOUND",
                303 => "SEE_OTHER",
                307 => "TEMPORARY_REDIRECT",
                308 => "PERMANENT_REDIRECT",
                _ => "MOVED_PERMANENTLY",
            });
            ("redirect", made)
        }
    })
}

fn redirect(to: &Redirect, alternative: Option<&HttpMatch>, called: u16) -> Result<Value, Unsaid> {
    let mut made = json!({});
    if let Some(scheme) = &to.scheme {
        made["scheme_redirect"] = json!(scheme);
    }
    let port = match to.port {
        RedirectPort::Request => None,
        RedirectPort::Exact(port) => Some(port),
        RedirectPort::Listener => Some(called),
        // The one that goes without saying; Envoy leaves out of the request's authority what another scheme implied.
        RedirectPort::Scheme => match to.scheme.as_deref() {
            Some("https") => Some(443),
            Some(_) => Some(80),
            None => return Err("a redirect with a port derived from a scheme that is not set"),
        },
    };
    let implied = match to.scheme.as_deref() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    };
    if let Some(host) = &to.host {
        let own_port = port.is_some();
        made["host_redirect"] = json!(if own_port { without_port(host) } else { host });
    }
    // A port that goes without saying is left out where that does not bring back the request's own.
    if let Some(port) = port.filter(|port| to.host.is_none() || Some(*port) != implied) {
        made["port_redirect"] = json!(port);
    }
    match &to.path {
        None => {}
        Some(PathRewrite::Full(path)) => made["path_redirect"] = json!(path),
        Some(path) => {
            let (field, value) = rewritten(path, alternative)?;
            made[field] = value;
        }
    }
    Ok(made)
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => authority,
    }
}

/// The path that requests go on with.
pub(super) fn rewrite(
    rewrite: &Rewrite,
    alternative: Option<&HttpMatch>,
    action: &mut Value,
) -> Result<(), Unsaid> {
    if let Some(path) = &rewrite.path {
        let (field, value) = rewritten(path, alternative)?;
        action[field] = value;
    }
    Ok(())
}

/// Rewrite of a path, or of the prefix that an alternative matched.
fn rewritten(
    path: &PathRewrite,
    alternative: Option<&HttpMatch>,
) -> Result<(&'static str, Value), Unsaid> {
    const QUERY: Unsaid = "a rewritten path that contains a query";
    let by_regex = |pattern: &str, substitution: &str| {
        let value = json!({ "pattern": { "regex": pattern }, "substitution": substitution });
        ("regex_rewrite", value)
    };
    let uri = alternative.and_then(|one| one.criteria.get(&Subject::Uri));
    match path {
        PathRewrite::Full(full) if full.contains('?') => Err(QUERY),
        PathRewrite::Full(full) => Ok(by_regex("^.*$", &full.replace('\\', "\\\\"))),
        PathRewrite::Prefix(prefix) if prefix.contains('?') => Err(QUERY),
        // Envoy would send a path that is none, or take an empty text for nothing said.
        PathRewrite::Prefix(prefix) if !prefix.starts_with('/') => {
            Err("a rewritten path that does not begin with `/`")
        }
        PathRewrite::Prefix(prefix) => Ok(("prefix_rewrite", json!(prefix))),
        PathRewrite::Segments(_) if matches!(uri, Some(Criterion::Is(TextMatch::Regex(_)))) => {
            Err("path segments that replace the match of a regular expression")
        }
        PathRewrite::Segments(segments) => {
            let matched = match uri {
                Some(Criterion::Is(TextMatch::Prefix(text) | TextMatch::Segments(text))) => {
                    text.trim_end_matches('/')
                }
                _ => "",
            };
            let becomes = segments.trim_end_matches('/');
            Ok(match (matched, becomes) {
                ("", _) => by_regex("^/$|^(/.*)$", &format!("{becomes}\\1")),
                (matched, "") => by_regex(&format!("^{}/?(.*)$", quoted(matched)), "/\\1"),
                (_, becomes) => ("prefix_rewrite", json!(becomes)),
            })
        }
        PathRewrite::Regex(regex) if regex.substitution().contains('?') => Err(QUERY),
        PathRewrite::Regex(regex) => Ok(by_regex(regex.pattern(), regex.substitution())),
    }
}

/// Edits of headers by a route, or by one of its destinations.
pub(super) fn edit(rules: &HeaderRules, made: &mut Value) {
    for (edits, kind) in [(&rules.request, "request"), (&rules.response, "response")] {
        one_way(edits, kind, made);
    }
}

fn one_way(edits: &HeaderEdits, kind: &str, made: &mut Value) {
    use voile_model::mesh::action::HeaderEdit::{Add, Remove, Set};
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    let option = |name: &str, value: &str, action: &str| {
        json!({
            // A sign that Envoy would read as the beginning of one of its words.
            "header": { "key": name, "value": value.replace('%', "%%") },
            "append_action": action,
            "keep_empty_value": true,
        })
    };
    for step in edits.steps() {
        match step {
            Remove(name) => remove.push(json!(name)),
            Set(name, value) => add.push(option(name, value, "OVERWRITE_IF_EXISTS_OR_ADD")),
            Add(name, value) => add.push(option(name, value, "APPEND_IF_EXISTS_OR_ADD")),
        }
    }
    if !add.is_empty() {
        made[format!("{kind}_headers_to_add")] = json!(add);
    }
    if !remove.is_empty() {
        made[format!("{kind}_headers_to_remove")] = json!(remove);
    }
}

/// The authority that requests go on with by one way: what `rewrite` says, or else the route's headers, or the destination's.
pub(super) fn authority<'a>(route: &'a HttpRoute, headers: &'a HeaderRules) -> Option<&'a str> {
    let rewrite = route.rewrite.as_ref();
    let renamed = rewrite.and_then(|rewrite| rewrite.authority.as_deref());
    let by_headers = || route.headers.request.authority();
    renamed
        .or_else(by_headers)
        .or_else(|| headers.request.authority())
}

fn fault(fault: &Fault) -> Option<Value> {
    let mut made = json!({});
    // Envoy takes no delay of nothing.
    if let Some(delay) = fault.delay.filter(|delay| !delay.fixed.is_zero()) {
        made["delay"] = json!({
            "fixed_delay": duration(delay.fixed),
            "percentage": share(delay.share),
        });
    }
    if let Some(abort) = fault.abort {
        let (field, status) = match abort.with {
            AbortStatus::Http(status) => ("http_status", status),
            AbortStatus::Grpc(status) => ("grpc_status", status),
        };
        made["abort"] = json!({ field: status, "percentage": share(abort.share) });
    }
    (made != json!({})).then(|| message("extensions.filters.http.fault.v3.HTTPFault", made))
}

fn cors(cors: &Cors) -> Result<Value, Unsaid> {
    let origins = cors.origins.iter().map(origin);
    let origins: Vec<Value> = origins.collect::<Result<_, _>>()?;
    let mut made = json!({
        "allow_origin_string_match": origins,
        "allow_credentials": cors.credentials,
        "forward_not_matching_preflights": cors.forward_unmatched,
    });
    let lists = [
        ("allow_methods", &cors.methods),
        ("allow_headers", &cors.headers),
        ("expose_headers", &cors.expose),
    ];
    for (field, list) in lists {
        if !list.is_empty() {
            made[field] = json!(list.join(","));
        }
    }
    if let Some(seconds) = cors.max_age {
        made["max_age"] = json!(seconds.to_string());
    }
    Ok(message("extensions.filters.http.cors.v3.CorsPolicy", made))
}

/// Origin match of CORS. Envoy tests a pattern against `*` as well, and takes a pattern that matches it as one for all origins.
fn origin(origin: &Origin) -> Result<Value, Unsaid> {
    let regex = |regex: &str| json!({ "safe_regex": { "regex": regex } });
    match origin {
        Origin::Any => Ok(json!({ "exact": "*" })),
        Origin::Text(OriginMatch::Regex(text)) if text.as_str() == ".*" => Ok(regex(".*")),
        Origin::Text(OriginMatch::Prefix(text)) if text.is_empty() => Ok(json!({ "exact": "*" })),
        Origin::Text(text) if text.matches(b"*") => {
            Err("an origin pattern that Envoy treats as any origin")
        }
        Origin::Text(OriginMatch::Exact(text)) => Ok(json!({ "exact": text })),
        Origin::Text(OriginMatch::Prefix(text)) => Ok(json!({ "prefix": text })),
        Origin::Text(OriginMatch::Suffix(text)) => Ok(json!({ "suffix": text })),
        Origin::Text(OriginMatch::Regex(text)) => Ok(regex(text.as_str())),
        Origin::Within(before, after) => Ok(regex(&format!(
            "{}[A-Za-z0-9.-]+{}",
            quoted(before),
            quoted(after)
        ))),
    }
}
