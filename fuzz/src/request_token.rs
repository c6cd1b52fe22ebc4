//! Tokens of requests: no caller is trusted without a signature by the issuer's key, a cached result is the same as
//! the first one, and the changed request holds no field that was to be removed.

use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use voile_model::Source;
use voile_model::mesh::{ClaimOutput, HeaderPlace, KeySource, TokenRule};
use voile_policy::tokens::{
    Cache, KeySet, RuleKeys, Rules, TokenOutcome, TokenRequest, without_cookies, without_params,
};

/// 2026-01-01: when every request comes.
const NOW: u64 = 1_767_225_600;
/// Stands in an input for a token that is signed with the claims after it.
const SIGNED: &str = "<SIGNED>";

struct World {
    rules: Rules,
    key: Ed25519KeyPair,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    // Always the same key, so that inputs mean the same in every run.
    let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let point = URL_SAFE_NO_PAD.encode(key.public_key().as_ref());
    let set = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": point, "kid": "1" }] });
    let rules = [rule("a", &set.to_string()), elsewhere(&set.to_string())];
    let given = rules.iter().map(|rule| RuleKeys { rule, keys: None });
    World {
        rules: Rules::new(given, None),
        key,
    }
});

fn rule(issuer: &str, keys: &str) -> TokenRule {
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
        required: false,
        forward_original: false,
        output_payload_to_header: Some("x-payload".into()),
        output_claims: vec![ClaimOutput {
            header: "x-sub".into(),
            claim: "sub".into(),
        }],
        space_delimited_claims: vec!["groups".into()],
        timeout: Duration::from_secs(5),
    }
}

fn elsewhere(keys: &str) -> TokenRule {
    TokenRule {
        audiences: vec!["shop".into()],
        from_headers: vec![HeaderPlace {
            name: "x-token".into(),
            prefix: "T ".into(),
        }],
        from_params: vec!["t".into()],
        from_cookies: vec!["t".into()],
        ..rule("b", keys)
    }
}

/// A path, then header lines. `<SIGNED>` and the text after it in a line are replaced by a token signed over that
/// text: header and payload set apart by a tab.
pub(crate) fn request(data: &[u8]) {
    let world = &*WORLD;
    let text = String::from_utf8_lossy(data);
    let mut signed: Vec<String> = Vec::new();
    let lines: Vec<String> = text
        .lines()
        .take(40)
        .map(|line| match line.split_once(SIGNED) {
            Some((before, inside)) => {
                let (header, payload) = inside.split_once('\t').unwrap_or((inside, ""));
                let [header, payload] = [header, payload].map(|part| URL_SAFE_NO_PAD.encode(part));
                let whole = format!("{header}.{payload}");
                let signature = URL_SAFE_NO_PAD.encode(world.key.sign(whole.as_bytes()));
                signed.push(format!("{whole}.{signature}"));
                format!("{before}{whole}.{signature}")
            }
            None => line.to_owned(),
        })
        .collect();
    let path = lines.first().map_or("/", |line| line);
    let headers: Vec<(&str, &str)> = lines
        .iter()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim()))
        .collect();
    let asked = TokenRequest {
        method: b"GET",
        path: path.as_bytes(),
        headers: &headers,
    };
    let mut cache = Cache::with_limit(3, 64 * 1024);
    let first = world.rules.examine(&asked, NOW, &mut cache);
    let again = world.rules.examine(&asked, NOW, &mut cache);
    assert_eq!(
        said(&first),
        said(&again),
        "what is remembered is said again"
    );
    let fresh = world.rules.examine(&asked, NOW, &mut Cache::new(9));
    assert_eq!(said(&first), said(&fresh), "whatever the seed");
    let TokenOutcome::Verified(verified) = &first else {
        return;
    };
    assert!(!signed.is_empty(), "nobody is believed without a signature");
    let issuer = verified.token().issuer();
    assert!(issuer == "a" || issuer == "b", "{issuer}");
    let edits = verified.edits(&world.rules);
    for (name, value) in &edits.add {
        let breaks = |text: &str| text.contains(['\r', '\n', '\0']);
        assert!(!breaks(name) && !breaks(value), "{name}: {value}");
    }
    let stripped = without_params(path.as_bytes(), &edits.params);
    assert_eq!(without_params(&stripped, &edits.params), stripped);
    for (name, value) in headers {
        if name.eq_ignore_ascii_case("cookie") {
            let stripped = without_cookies(value.as_bytes(), &edits.cookies);
            assert_eq!(without_cookies(&stripped, &edits.cookies), stripped);
        }
    }
}

fn said(outcome: &TokenOutcome) -> String {
    match outcome {
        TokenOutcome::NoToken => "none".to_owned(),
        TokenOutcome::Refused(refusal) => refusal.text(),
        TokenOutcome::Verified(verified) => format!("{} {:?}", verified.rule(), verified.claims()),
    }
}

/// A key set as an issuer may give it: keys that are used verify nothing that was not signed.
pub(crate) fn keys(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let read = KeySet::read(&text);
    if let Ok(set) = &read {
        assert!(set.usable() > 0 && set.usable() <= voile_policy::tokens::MAX_KEYS);
    }
    let rule = rule("a", &text);
    let given = RuleKeys {
        rule: &rule,
        keys: Some(&text),
    };
    let rules = Rules::new([given], None);
    assert_eq!(rules.without_keys().count(), usize::from(read.is_err()));
    let payload = URL_SAFE_NO_PAD.encode(r#"{"iss":"a"}"#);
    for (algorithm, length) in [
        ("RS256", 256),
        ("PS512", 256),
        ("ES256", 64),
        ("ES512", 132),
        ("EdDSA", 64),
    ] {
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{algorithm}"}}"#));
        let signature = URL_SAFE_NO_PAD.encode(vec![0; length]);
        let line = format!("Bearer {header}.{payload}.{signature}");
        let headers = vec![("authorization", line.as_str())];
        let asked = TokenRequest {
            method: b"GET",
            path: b"/",
            headers: &headers,
        };
        let outcome = rules.examine(&asked, NOW, &mut Cache::new(1));
        // An Ed25519 key of small order verifies a signature of zeros over anything; it is the issuer's own to give.
        if algorithm != "EdDSA" {
            assert!(matches!(outcome, TokenOutcome::Refused(_)), "{algorithm}");
        }
    }
}
