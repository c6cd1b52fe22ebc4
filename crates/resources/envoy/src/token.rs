//! RequestAuthentication as Envoy's JWT filter, with keys that lie in the configuration.

use serde_json::{Map, Value, json};
use voile_model::mesh::TokenRule;

use crate::matchers::{TOKEN_FILTER, TOKEN_KEY};

/// Claims that are always lists written with blanks.
const ALWAYS_SPLIT: [&str; 2] = ["permission", "scope"];

/// The filter for all rules of a workload, each with its keys as a JSON Web Key Set; none when there are none. A request
/// without tokens passes unless a rule demands one, a request with a bad token is answered 401. The rules are given in
/// the order in which they hold: by issuer.
pub fn token_filter(rules: &[(&TokenRule, &str)]) -> Option<Value> {
    let name = |number| format!("origins-{number}");
    let numbered = rules.iter().enumerate();
    let providers: Map<String, Value> = numbered
        .map(|(number, (rule, keys))| (name(number), provider(rule, keys)))
        .collect();
    let one = |number| json!({ "provider_name": name(number) });
    let or_none = |(number, (rule, _)): (usize, &(&TokenRule, &str))| match rule.required {
        true => one(number),
        false => {
            json!({ "requires_any": { "requirements": [one(number), { "allow_missing": {} }] } })
        }
    };
    let mut each: Vec<Value> = rules.iter().enumerate().map(or_none).collect();
    let requires = match each.len() {
        0 => return None,
        1 => each.remove(0),
        count => {
            let each = json!({ "requires_all": { "requirements": each } });
            match rules.iter().any(|(rule, _)| rule.required) {
                true => each,
                // Any of them, or each of them or nothing: two issuers may look in the same place.
                false => {
                    let any: Vec<Value> = (0..count).map(one).chain([each]).collect();
                    json!({ "requires_any": { "requirements": any } })
                }
            }
        }
    };
    Some(json!({
        "name": TOKEN_FILTER,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": providers,
            "rules": [{ "match": { "prefix": "/" }, "requires": requires }],
            "bypass_cors_preflight": true,
        },
    }))
}

fn provider(rule: &TokenRule, keys: &str) -> Value {
    let split = rule.space_delimited_claims.iter().map(AsRef::as_ref);
    let mut split: Vec<&str> = split.chain(ALWAYS_SPLIT).collect();
    split.sort_unstable();
    split.dedup();
    let mut provider = json!({
        "issuer": &*rule.issuer,
        "forward": rule.forward_original,
        "payload_in_metadata": TOKEN_KEY,
        "normalize_payload_in_metadata": { "space_delimited_claims": split },
        "local_jwks": { "inline_string": keys },
    });
    let mut list = |field: &str, values: Vec<Value>| {
        if !values.is_empty() {
            provider[field] = values.into();
        }
    };
    let texts = |values: &[_]| -> Vec<Value> {
        let texts = values
            .iter()
            .map(|value: &std::sync::Arc<str>| json!(**value));
        texts.collect()
    };
    list("audiences", texts(&rule.audiences));
    let headers = rule.from_headers.iter();
    let headers = headers.map(|place| match place.prefix.is_empty() {
        true => json!({ "name": &*place.name }),
        false => json!({ "name": &*place.name, "value_prefix": &*place.prefix }),
    });
    list("from_headers", headers.collect());
    list("from_params", texts(&rule.from_params));
    list("from_cookies", texts(&rule.from_cookies));
    let claims = rule.output_claims.iter();
    let claims =
        claims.map(|one| json!({ "header_name": &*one.header, "claim_name": &*one.claim }));
    list("claim_to_headers", claims.collect());
    if let Some(header) = &rule.output_payload_to_header {
        provider["forward_payload_header"] = json!(**header);
    }
    provider
}
