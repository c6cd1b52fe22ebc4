//! Tokens that are accepted, and tokens that are refused. Keys are really made and tokens really signed.

mod cost;
mod hostile;
mod key_sets;
mod meaning;
mod memory;
mod speed;

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Map, Value, json};
use voile_model::Source;
use voile_model::mesh::{ClaimOutput, HeaderPlace, KeySource, TokenRule};
use voile_policy::tokens::{Cache, RuleKeys, Rules, TokenOutcome, TokenRequest};
use voile_testkit::tokens::SigningKey;

/// 2026-01-01: when every request comes.
pub(crate) const NOW: u64 = 1_767_225_600;

/// One key for each kind: RSA keys take long to make.
pub(crate) static RSA: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::new("RS256"));
pub(crate) static OTHER_RSA: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::new("RS256"));
pub(crate) static P256: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::new("ES256"));
pub(crate) static P384: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::new("ES384"));
pub(crate) static P521: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::new("ES512"));
pub(crate) static ED: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::new("EdDSA"));

/// A rule for an issuer with these keys, and nothing else said.
pub(crate) fn rule(issuer: &str, keys: &str) -> TokenRule {
    TokenRule {
        source: Source {
            file: "mesh.yaml".into(),
            line: 1,
            column: 1,
        },
        issuer: issuer.into(),
        audiences: Vec::new(),
        keys: KeySource::Inline(keys.into()),
        from_headers: Vec::new(),
        from_params: Vec::new(),
        from_cookies: Vec::new(),
        forward_original: false,
        output_payload_to_header: None,
        output_claims: Vec::new(),
        space_delimited_claims: Vec::new(),
        timeout: Duration::from_secs(5),
        required: false,
    }
}

/// `name` or `name:prefix`.
pub(crate) fn header_place(text: &str) -> HeaderPlace {
    let (name, prefix) = text.split_once(':').unwrap_or((text, ""));
    HeaderPlace {
        name: name.into(),
        prefix: prefix.into(),
    }
}

/// `header=claim`.
pub(crate) fn claim_output(text: &str) -> ClaimOutput {
    let (header, claim) = text.split_once('=').expect("header=claim");
    ClaimOutput {
        header: header.into(),
        claim: claim.into(),
    }
}

/// Rules sorted as the mesh sorts them.
pub(crate) fn compiled(rules: &[TokenRule]) -> Rules {
    let mut sorted: Vec<&TokenRule> = rules.iter().collect();
    sorted.sort_by(|a, b| a.issuer.cmp(&b.issuer));
    Rules::new(
        sorted.into_iter().map(|rule| RuleKeys { rule, keys: None }),
        None,
    )
}

/// A GET with these header lines.
pub(crate) fn asked(
    rules: &Rules,
    cache: &mut Cache,
    path: &str,
    lines: &[(&str, &str)],
) -> TokenOutcome {
    asked_at(rules, cache, path, lines, NOW)
}

pub(crate) fn asked_at(
    rules: &Rules,
    cache: &mut Cache,
    path: &str,
    lines: &[(&str, &str)],
    now: u64,
) -> TokenOutcome {
    let lines = lines.to_vec();
    let request = TokenRequest {
        method: b"GET",
        path: path.as_bytes(),
        headers: &lines,
    };
    rules.examine(&request, now, cache)
}

/// The outcome of a token in `Authorization: Bearer`, examined twice: the cached result must be the same.
pub(crate) fn bearer(rules: &Rules, token: &str) -> String {
    let mut cache = Cache::new(1);
    let line = format!("Bearer {token}");
    let lines = [("Authorization", &*line)];
    let first = said(&asked(rules, &mut cache, "/", &lines));
    let second = said(&asked(rules, &mut cache, "/", &lines));
    assert_eq!(first, second, "{token}");
    first
}

/// `nobody`, the principal, or the status and the reason.
pub(crate) fn said(outcome: &TokenOutcome) -> String {
    match outcome {
        TokenOutcome::NoToken => "nobody".to_owned(),
        TokenOutcome::Verified(verified) => {
            let token = verified.token();
            let principal = token.principal();
            principal.unwrap_or_else(|| format!("{:?}/{:?}", token.issuer(), token.subject()))
        }
        TokenOutcome::Refused(refusal) => format!("{} {:?}", refusal.status(), refusal.reason),
    }
}

/// Claims of `issuer` about `user`, and more.
pub(crate) fn claims(issuer: &str, more: &Value) -> Value {
    let mut claims = Map::new();
    claims.insert("iss".to_owned(), issuer.into());
    claims.insert("sub".to_owned(), "user".into());
    claims.extend(more.as_object().cloned().unwrap_or_default());
    Value::Object(claims)
}

/// A rule of issuer `a` with one key.
pub(crate) fn believing(key: &SigningKey) -> TokenRule {
    rule("a", &key.key_set(&json!({})))
}
