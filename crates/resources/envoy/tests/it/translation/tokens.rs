//! Each field of a token rule, against the field of Envoy's JWT filter that Istio's generator gives for it.

use std::time::Duration;

use serde_json::{Value, json};
use voile_envoy::token_filter;
use voile_model::Source;
use voile_model::mesh::{ClaimOutput, HeaderPlace, KeySource, TokenRule};

/// A rule that says nothing but its issuer.
pub(crate) fn bare(issuer: &str) -> TokenRule {
    TokenRule {
        source: Source {
            file: "".into(),
            line: 0,
            column: 0,
        },
        issuer: issuer.into(),
        audiences: Vec::new(),
        keys: KeySource::Discovery,
        from_headers: Vec::new(),
        from_params: Vec::new(),
        from_cookies: Vec::new(),
        forward_original: false,
        output_payload_to_header: None,
        output_claims: Vec::new(),
        space_delimited_claims: Vec::new(),
        timeout: Duration::ZERO,
        required: false,
    }
}

fn config(rules: &[TokenRule]) -> Value {
    let rules: Vec<_> = rules.iter().map(|rule| (rule, "{\"keys\":[]}")).collect();
    let mut filter = token_filter(&rules).expect("rules");
    assert_eq!(filter["name"], "envoy.filters.http.jwt_authn");
    filter["typed_config"].take()
}

#[test]
fn a_bare_rule_believes_its_issuer_in_the_default_places() {
    let config = config(&[bare("i")]);
    let wanted = json!({
        "issuer": "i",
        "forward": false,
        "payload_in_metadata": "payload",
        "normalize_payload_in_metadata": { "space_delimited_claims": ["permission", "scope"] },
        "local_jwks": { "inline_string": "{\"keys\":[]}" },
    });
    assert_eq!(config["providers"], json!({ "origins-0": wanted }));
    assert_eq!(config["bypass_cors_preflight"], true);
}

/// A change of a bare rule, and what it makes of the provider.
type Row = (fn(&mut TokenRule), &'static str, Value);

#[test]
fn each_field_of_a_rule_is_one_of_the_provider() {
    let rows: [Row; 9] = [
        (|rule| rule.forward_original = true, "forward", json!(true)),
        (
            |rule| rule.audiences = vec!["a".into(), "b".into()],
            "audiences",
            json!(["a", "b"]),
        ),
        (
            |rule| {
                rule.from_headers = [("x-a", "Bearer "), ("x-b", "")]
                    .map(|(name, prefix)| HeaderPlace {
                        name: name.into(),
                        prefix: prefix.into(),
                    })
                    .into();
            },
            "from_headers",
            json!([{ "name": "x-a", "value_prefix": "Bearer " }, { "name": "x-b" }]),
        ),
        (
            |rule| rule.from_params = vec!["jwt".into()],
            "from_params",
            json!(["jwt"]),
        ),
        (
            |rule| rule.from_cookies = vec!["session".into()],
            "from_cookies",
            json!(["session"]),
        ),
        (
            |rule| rule.output_payload_to_header = Some("x-payload".into()),
            "forward_payload_header",
            json!("x-payload"),
        ),
        (
            |rule| {
                rule.output_claims = vec![ClaimOutput {
                    header: "x-sub".into(),
                    claim: "a.b".into(),
                }];
            },
            "claim_to_headers",
            json!([{ "header_name": "x-sub", "claim_name": "a.b" }]),
        ),
        (
            |rule| rule.space_delimited_claims = vec!["roles".into(), "scope".into()],
            "normalize_payload_in_metadata",
            json!({ "space_delimited_claims": ["permission", "roles", "scope"] }),
        ),
        (
            |rule| rule.issuer = "other".into(),
            "issuer",
            json!("other"),
        ),
    ];
    for (change, field, wanted) in rows {
        let mut rule = bare("i");
        change(&mut rule);
        let provider = config(&[rule])["providers"]["origins-0"].take();
        assert_eq!(provider[field], wanted, "{field}");
        let bare = config(&[bare("i")])["providers"]["origins-0"].take();
        let differing = provider.as_object().expect("an object").iter();
        let differing: Vec<_> = differing
            .filter(|(name, value)| bare[name] != **value)
            .collect();
        assert_eq!(differing.len(), 1, "only {field}: {differing:?}");
    }
}

#[test]
fn one_rule_or_nothing_and_of_several_any_or_each_or_nothing() {
    assert_eq!(token_filter(&[]), None);
    let one = |number| json!({ "provider_name": format!("origins-{number}") });
    let any = |all: &[Value]| json!({ "requires_any": { "requirements": all } });
    let or_none = |number| any(&[one(number), json!({ "allow_missing": {} })]);
    let requires = |rules: &[TokenRule]| config(rules)["rules"][0]["requires"].take();
    assert_eq!(requires(&[bare("i")]), or_none(0));
    let each = json!({ "requires_all": { "requirements": [or_none(0), or_none(1)] } });
    let wanted = any(&[one(0), one(1), each]);
    assert_eq!(requires(&[bare("i"), bare("j")]), wanted);
    let required = |issuer| TokenRule {
        required: true,
        ..bare(issuer)
    };
    let all = |all: &[Value]| json!({ "requires_all": { "requirements": all } });
    assert_eq!(requires(&[required("i")]), one(0));
    let mixed = requires(&[required("i"), bare("j")]);
    assert_eq!(mixed, all(&[one(0), or_none(1)]));
    let both = requires(&[required("i"), required("j")]);
    assert_eq!(both, all(&[one(0), one(1)]));
}
