//! One value of a rule as an Envoy matcher.

use serde_json::{Value, json};
use voile_model::mesh::authorization::StringMatch;
use voile_policy::authorization::{Pattern, Text};

/// Metadata in which the JWT filter leaves a token's claims.
pub(crate) const TOKEN_FILTER: &str = "envoy.filters.http.jwt_authn";
pub(crate) const TOKEN_KEY: &str = "payload";

fn regex(regex: &str) -> Value {
    json!({ "safe_regex": { "regex": regex } })
}

/// A text as a part of an RE2 expression.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

/// A text with this much before it; `*` stays "anything that is not empty".
pub(crate) fn text(text: &Text, before: &str, any_case: bool) -> Value {
    let mut matcher = match text {
        Text::Present => return regex(".+"),
        Text::Exact(text) | Text::Glob(text) => json!({ "exact": format!("{before}{text}") }),
        Text::Prefix(text) => json!({ "prefix": format!("{before}{text}") }),
        Text::Suffix(text) if before.is_empty() => json!({ "suffix": **text }),
        Text::Suffix(text) => return regex(&format!("{before}.*{}", quoted(text))),
    };
    if any_case {
        matcher["ignore_case"] = json!(true);
    }
    matcher
}

/// A header, where `*` is any value, even an empty one.
pub(crate) fn header(name: &str, value: &Text, any_case: bool) -> Value {
    match value {
        Text::Present => json!({ "header": { "name": name, "present_match": true } }),
        value => json!({ "header": { "name": name, "string_match": text(value, "", any_case) } }),
    }
}

pub(crate) fn path(pattern: &Pattern) -> Option<Value> {
    match pattern {
        Pattern::Text(value) => Some(json!({ "url_path": { "path": text(value, "", false) } })),
        Pattern::Template(template) => {
            let template = template
                .to_string()
                .replace("{**}", "**")
                .replace("{*}", "*");
            let config = json!({
                "@type": "type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig",
                "path_template": template,
            });
            Some(json!({ "uri_template": { "name": "uri-template", "typed_config": config } }))
        }
        _ => None,
    }
}

pub(crate) fn block(field: &str, pattern: &Pattern) -> Option<Value> {
    let Pattern::Cidr(cidr) = pattern else {
        return None;
    };
    Some(
        json!({ field: { "address_prefix": cidr.address().to_string(), "prefix_len": cidr.length() } }),
    )
}

/// Names of headers, whatever their case; none for none.
pub(crate) fn names(all: &[StringMatch]) -> Option<Value> {
    let one = |name: &StringMatch| match name {
        StringMatch::Exact(text) => json!({ "exact": &**text, "ignore_case": true }),
        StringMatch::Prefix(text) => json!({ "prefix": &**text, "ignore_case": true }),
        StringMatch::Suffix(text) => json!({ "suffix": &**text, "ignore_case": true }),
        StringMatch::Present => regex(".+"),
    };
    let patterns: Vec<Value> = all.iter().map(one).collect();
    (!patterns.is_empty()).then(|| json!({ "patterns": patterns }))
}

/// The principal's text for what Istio asks of its pieces.
pub(crate) fn namespace(value: &Text) -> Value {
    let pieces = value.to_string();
    let pieces: Vec<String> = pieces.split('*').map(quoted).collect();
    regex(&format!(".*/ns/{}/.*", pieces.join(".*")))
}

pub(crate) fn service_account(namespace: &str, name: &str) -> Value {
    let (namespace, name) = (quoted(namespace), quoted(name));
    regex(&format!("spiffe://.+/ns/{namespace}/(.+/|)sa/{name}(/.+)?"))
}

pub(crate) fn trust_domain(value: &Text) -> Value {
    match value {
        Text::Present => json!({ "prefix": "spiffe://" }),
        Text::Exact(domain) => json!({ "prefix": format!("spiffe://{domain}/") }),
        Text::Prefix(text) => regex(&format!("spiffe://{}[^/]*/.*", quoted(text))),
        Text::Suffix(text) => regex(&format!("spiffe://[^/]*{}/.*", quoted(text))),
        Text::Glob(text) => regex(&format!("spiffe://{}/.*", quoted(text))),
    }
}

fn metadata(path: &[&str], value: Value) -> Value {
    let keys = [TOKEN_KEY].into_iter().chain(path.iter().copied());
    let path: Vec<Value> = keys.map(|key| json!({ "key": key })).collect();
    json!({ "metadata": { "filter": TOKEN_FILTER, "path": path, "value": value } })
}

/// A claim that is one of these texts, or a list with one of them in it.
pub(crate) fn claim(path: &[&str], patterns: &[Pattern]) -> Option<Value> {
    let texts = patterns.iter().filter_map(|pattern| match pattern {
        Pattern::Text(value) => Some(json!({ "string_match": text(value, "", false) })),
        _ => None,
    });
    let mut texts: Vec<Value> = texts.collect();
    let value = match texts.len() {
        0 => return None,
        1 => texts.remove(0),
        _ => json!({ "or_match": { "value_matchers": texts } }),
    };
    let list = json!({ "list_match": { "one_of": value } });
    Some(metadata(
        path,
        json!({ "or_match": { "value_matchers": [list, value] } }),
    ))
}

pub(crate) fn request_principal(pattern: &Pattern) -> Option<Value> {
    let Pattern::RequestPrincipal(principal) = pattern else {
        return None;
    };
    let of = |claim, value| metadata(&[claim], json!({ "string_match": text(value, "", false) }));
    let both = [of("iss", &principal.issuer), of("sub", &principal.subject)];
    Some(json!({ "and_ids": { "ids": both } }))
}
