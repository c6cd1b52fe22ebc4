//! RequestAuthentication as Envoy's JWT filter, with keys that lie in the configuration.

use serde_json::{Map, Value, json};

use crate::matchers::{TOKEN_FILTER, TOKEN_KEY};

/// One JWT rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRule {
    /// `iss` must be this; any issuer when it is empty.
    pub issuer: String,
    /// `aud` must hold one of these; any when there are none.
    pub audiences: Vec<String>,
    /// The keys, as a JSON Web Key Set.
    pub keys: String,
    /// Whether the token is forwarded.
    pub forward: bool,
    /// Claims that are lists written with blanks, besides `scope` and `permission`.
    pub space_delimited: Vec<String>,
}

/// The filter for all rules of a workload; none when there are none. No token passes, a bad one is answered 401.
pub fn token_filter(rules: &[TokenRule]) -> Option<Value> {
    let name = |number| format!("origins-{number}");
    let mut providers = Map::new();
    for (number, rule) in rules.iter().enumerate() {
        let mut split: Vec<&str> = rule.space_delimited.iter().map(String::as_str).collect();
        split.extend(["permission", "scope"]);
        split.sort_unstable();
        split.dedup();
        let provider = json!({
            "issuer": rule.issuer,
            "audiences": rule.audiences,
            "forward": rule.forward,
            "payload_in_metadata": TOKEN_KEY,
            "normalize_payload_in_metadata": { "space_delimited_claims": split },
            "local_jwks": { "inline_string": rule.keys },
        });
        providers.insert(name(number), provider);
    }
    let one = |number| json!({ "provider_name": name(number) });
    let or_none = |number| json!({ "requires_any": { "requirements": [one(number), { "allow_missing": {} }] } });
    let requires = match rules.len() {
        0 => return None,
        1 => or_none(0),
        count => {
            // Any of them, or each of them or nothing: two issuers may look in the same place.
            let mut any: Vec<Value> = (0..count).map(one).collect();
            let each: Vec<Value> = (0..count).map(or_none).collect();
            any.push(json!({ "requires_all": { "requirements": each } }));
            json!({ "requires_any": { "requirements": any } })
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
