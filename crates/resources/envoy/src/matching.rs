//! Conditions of routes as Envoy's: of paths, headers and parameters, each with the meaning that Istio gives it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use voile_model::mesh::{Criterion, Subject, TextMatch, claim};

/// Conditions on a request: all must hold.
pub(crate) type Criteria = BTreeMap<Subject, Criterion>;

/// Matches every request.
pub(crate) fn any() -> Value {
    json!({ "prefix": "/" })
}

/// Match of a request. Conditions on anything else (its port, its caller) were decided before.
pub(crate) fn matching(criteria: &Criteria, any_case: bool) -> Value {
    let mut made = match criteria.get(&Subject::Uri) {
        Some(Criterion::Is(TextMatch::Exact(path))) => json!({ "path": &**path }),
        Some(Criterion::Is(TextMatch::Prefix(prefix))) => json!({ "prefix": &**prefix }),
        Some(Criterion::Is(TextMatch::Segments(path))) if &**path != "/" => {
            json!({ "path_separated_prefix": &**path })
        }
        Some(Criterion::Is(TextMatch::Regex(regex))) => {
            json!({ "safe_regex": { "regex": &**regex } })
        }
        _ => any(),
    };
    if any_case && made != any() {
        made["case_sensitive"] = json!(false);
    }
    let headers = criteria.iter().filter_map(|(subject, criterion)| {
        let name = match subject {
            // Such a name Envoy would not take; requests that this asks about are refused.
            Subject::Header(name) | Subject::WithoutHeader(name) if claim(name).is_some() => {
                return None;
            }
            Subject::Header(name) | Subject::WithoutHeader(name) => name,
            Subject::Method => ":method",
            Subject::Authority => ":authority",
            Subject::Scheme => ":scheme",
            _ => return None,
        };
        header(name, criterion)
    });
    let headers: Vec<Value> = headers.collect();
    if !headers.is_empty() {
        made["headers"] = json!(headers);
    }
    let parameters = criteria.iter().filter_map(|(subject, criterion)| {
        let (Subject::QueryParam(name), Criterion::Is(text)) = (subject, criterion) else {
            return None;
        };
        Some(value(name, text))
    });
    let parameters: Vec<Value> = parameters.collect();
    if !parameters.is_empty() {
        made["query_parameters"] = json!(parameters);
    }
    made
}

pub(crate) fn header(name: &str, criterion: &Criterion) -> Option<Value> {
    match criterion {
        Criterion::Is(text) => Some(value(name, text)),
        Criterion::IsNot(text) => {
            let mut made = value(name, text);
            made["invert_match"] = json!(true);
            if *text != TextMatch::Present {
                made["treat_missing_header_as_empty"] = json!(true);
            }
            Some(made)
        }
        Criterion::OneOf(_) => None,
    }
}

/// Match of the value of a header or a parameter.
fn value(name: &str, text: &TextMatch) -> Value {
    let wanted = match text {
        TextMatch::Present => return json!({ "name": name, "present_match": true }),
        TextMatch::Exact(text) => json!({ "exact": &**text }),
        // Of paths alone, which are asked above.
        TextMatch::Prefix(text) | TextMatch::Segments(text) => json!({ "prefix": &**text }),
        TextMatch::Regex(text) => json!({ "safe_regex": { "regex": &**text } }),
    };
    json!({ "name": name, "string_match": wanted })
}
