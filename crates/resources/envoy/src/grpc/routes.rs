//! Routes for a stock gRPC's calls (gRFCs A28, A31, A42, A44): what of a VirtualService a client can decide by itself, in its words.
//! A condition that it cannot ask is an error, since a route less would send its calls by the next one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use voile_model::mesh::traffic::HashKey;
use voile_model::mesh::{Criterion, RetrySettings, Subject, TextMatch, claim};

use crate::json::{TYPES, duration};
use crate::matching::{Criteria, header, matching};

/// Conditions that gRPC retries (A44); it knows no other of Envoy's names.
const RETRIED: [&str; 5] = [
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];
/// The method of every call.
const METHOD: &str = "POST";
/// Headers that gRPC adds when routes were asked already, or never shows them (A28).
const UNSEEN: [&str; 5] = [
    "host",
    "te",
    "user-agent",
    "connection",
    "transfer-encoding",
];
/// Beginnings and ends of names that routes are not shown.
const UNSEEN_PREFIX: &str = "grpc-";
const UNSEEN_SUFFIX: &str = "-bin";
/// So many fields that must not have a value may be asked of one alternative: each doubles what gRPC is told, since it has no
/// word for "missing, or another".
const MAX_WITHOUT: usize = 4;

/// One route.
#[derive(Debug, Clone, PartialEq)]
pub struct GrpcRoute<'a> {
    /// Its name; may be empty.
    pub name: &'a str,
    /// One of these; none matches everything.
    pub matches: Vec<Alternative>,
    /// Clusters with their shares; never empty.
    pub clusters: Vec<(String, u32)>,
    /// Timeout of a call.
    pub timeout: Option<Duration>,
    /// Retries. Conditions that gRPC does not know are about connections, which it sees to by itself.
    pub retry: Option<&'a RetrySettings>,
    /// By what calls are kept together.
    pub keys: Vec<HashKey>,
}

impl<'a> GrpcRoute<'a> {
    /// One that all calls take.
    #[must_use]
    pub fn to(cluster: &str) -> Self {
        Self {
            name: "",
            matches: Vec::new(),
            clusters: vec![(cluster.to_owned(), 1)],
            timeout: None,
            retry: None,
            keys: Vec::new(),
        }
    }
}

/// Conditions on a call: all must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Alternative {
    /// By what is looked at.
    pub criteria: BTreeMap<Subject, Criterion>,
    /// True if `uri` ignores case.
    pub any_case: bool,
}

/// Routes in order.
///
/// # Errors
/// One of them asks what gRPC cannot answer.
pub fn routes(name: &str, routes: &[GrpcRoute<'_>]) -> Result<Value, String> {
    let mut made = Vec::new();
    for (index, route) in routes.iter().enumerate() {
        let all = matches(route).map_err(|why| match route.name {
            "" => format!("route {index}: {why}"),
            name => format!("route {name}: {why}"),
        })?;
        let action = action(route);
        for one in all {
            made.push(json!({ "name": route.name, "match": one, "route": action }));
        }
    }
    Ok(json!({
        "@type": format!("{TYPES}config.route.v3.RouteConfiguration"),
        "name": name,
        "virtual_hosts": [{
            "name": name,
            // The listener's name has chosen already.
            "domains": ["*"],
            "routes": made,
        }],
    }))
}

fn action(route: &GrpcRoute<'_>) -> Value {
    let mut action = match route.clusters.as_slice() {
        [(only, _)] => json!({ "cluster": only }),
        several => {
            let clusters = several.iter();
            let clusters = clusters.map(|(name, weight)| json!({ "name": name, "weight": weight }));
            let clusters: Vec<Value> = clusters.collect();
            json!({ "weighted_clusters": { "clusters": clusters } })
        }
    };
    if let Some(limit) = route.timeout {
        action["max_stream_duration"] = json!({ "max_stream_duration": duration(limit) });
    }
    if let Some(policy) = route.retry.and_then(retry_policy) {
        action["retry_policy"] = policy;
    }
    if let Some(policy) = super::traffic::hash_policy(&route.keys) {
        action["hash_policy"] = policy;
    }
    action
}

fn retry_policy(retry: &RetrySettings) -> Option<Value> {
    let on = retry.on.iter().map(|word| &**word);
    let on: Vec<&str> = on.filter(|word| RETRIED.contains(word)).collect();
    if retry.retries == 0 || on.is_empty() {
        return None;
    }
    let mut policy = json!({ "retry_on": on.join(","), "num_retries": retry.retries });
    if let Some(backoff) = retry.backoff {
        policy["retry_back_off"] = json!({ "base_interval": duration(backoff) });
    }
    Some(policy)
}

/// All that takes a route, in gRPC's words; empty where no call can.
fn matches(route: &GrpcRoute<'_>) -> Result<Vec<Value>, String> {
    if route.matches.is_empty() {
        return Ok(vec![json!({ "prefix": "" })]);
    }
    let mut made = Vec::new();
    for one in &route.matches {
        made.extend(alternative(one)?);
    }
    Ok(made)
}

fn alternative(one: &Alternative) -> Result<Vec<Value>, String> {
    let mut asked = Criteria::new();
    let mut without = Vec::new();
    for (subject, criterion) in &one.criteria {
        let cannot = |why: &str| Err(format!("`{subject}`: {why}"));
        match (subject, criterion) {
            (Subject::Method, Criterion::Is(text)) => match is_post(text) {
                Some(true) => {}
                Some(false) => return Ok(Vec::new()),
                None => {
                    return cannot(
                        "gRPC routes cannot match methods, and a regular expression is not evaluated here",
                    );
                }
            },
            // A call has a path and nothing else.
            (Subject::QueryParam(_), _) => return Ok(Vec::new()),
            (Subject::Scheme | Subject::Authority, _) => {
                return cannot("gRPC routes cannot match this");
            }
            (Subject::Header(name) | Subject::WithoutHeader(name), _) if is_unseen(name) => {
                return cannot("gRPC routes cannot match this header");
            }
            (Subject::WithoutHeader(name), Criterion::IsNot(TextMatch::Regex(_))) => {
                return cannot(&format!(
                    "Istio also evaluates the expression for a missing `{name}`; gRPC does not"
                ));
            }
            (Subject::WithoutHeader(name), Criterion::IsNot(text))
                if *text != TextMatch::Present =>
            {
                without.push((name, text));
            }
            (Subject::Uri, Criterion::Is(TextMatch::Segments(path))) => {
                asked.insert(Subject::Uri, Criterion::Is(segments(path)));
            }
            _ => {
                asked.insert(subject.clone(), criterion.clone());
            }
        }
    }
    if without.len() > MAX_WITHOUT {
        return Err(format!(
            "`withoutHeaders`: gRPC cannot match a header that is missing or different; at most {MAX_WITHOUT} headers can be expressed, not {}",
            without.len()
        ));
    }
    Ok(each(&matching(&asked, one.any_case), &without))
}

/// gRPC has no word for segments: an expression says the same.
fn segments(path: &str) -> TextMatch {
    let path = path.trim_end_matches('/');
    let mut pattern = String::with_capacity(path.len() + 8);
    for letter in path.chars() {
        let plain = letter.is_ascii_alphanumeric() || matches!(letter, '/' | '_' | '-');
        if !plain && letter.is_ascii() {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push_str("(?:/.*)?");
    TextMatch::Regex(pattern.into())
}

/// A header that must not have a value is missing, or is there and is another: two matches for each.
fn each(base: &Value, without: &[(&std::sync::Arc<str>, &TextMatch)]) -> Vec<Value> {
    let mut made = vec![base.clone()];
    for (name, text) in without {
        let missing = header(name, &Criterion::IsNot(TextMatch::Present));
        let mut another = header(name, &Criterion::IsNot((*text).clone()));
        if let Some(another) = another.as_mut().and_then(Value::as_object_mut) {
            another.remove("treat_missing_header_as_empty");
        }
        let both: Vec<Value> = missing.into_iter().chain(another).collect();
        let with = |one: &Value| {
            let with = |more: &Value| {
                let mut one = one.clone();
                let mut headers = one["headers"].take();
                match headers.as_array_mut() {
                    Some(headers) => headers.push(more.clone()),
                    None => headers = json!([more]),
                }
                one["headers"] = headers;
                one
            };
            both.iter().map(with).collect::<Vec<Value>>()
        };
        made = made.iter().flat_map(with).collect();
    }
    made
}

/// Returns true if the method of every call matches; `None` if the condition needs a regular expression.
fn is_post(wanted: &TextMatch) -> Option<bool> {
    match wanted {
        TextMatch::Present => Some(true),
        TextMatch::Exact(text) => Some(&**text == METHOD),
        TextMatch::Prefix(text) => Some(METHOD.starts_with(&**text)),
        TextMatch::Regex(_) | TextMatch::Segments(_) => None,
    }
}

pub(super) fn is_unseen(name: &str) -> bool {
    let known = UNSEEN.contains(&name);
    known
        || claim(name).is_some()
        || name.starts_with(UNSEEN_PREFIX)
        || name.ends_with(UNSEEN_SUFFIX)
}
