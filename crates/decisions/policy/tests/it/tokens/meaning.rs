//! Semantics of token rules: places, issuers, audiences, times, claims, and the request that the application gets.

use serde_json::{Value, json};
use voile_model::mesh::TokenRule;
use voile_policy::tokens::{Cache, TokenOutcome, TokenRequest};

use super::{
    ED, NOW, OTHER_RSA, P256, P384, P521, RSA, asked, asked_at, bearer, believing, claim_output,
    claims, compiled, header_place, rule, said,
};

#[test]
fn every_algorithm_is_verified_by_its_key() {
    for (algorithm, key) in [
        ("RS256", &RSA),
        ("RS384", &RSA),
        ("RS512", &RSA),
        ("PS256", &RSA),
        ("PS384", &RSA),
        ("PS512", &RSA),
        ("ES256", &P256),
        ("ES384", &P384),
        ("ES512", &P521),
        ("EdDSA", &ED),
    ] {
        for members in [
            json!({}),
            json!({ "alg": algorithm, "use": "sig", "kid": "k", "key_ops": ["verify"] }),
        ] {
            let rules = compiled(&[rule("a", &key.key_set(&members))]);
            let good = key.token(algorithm, &claims("a", &json!({})));
            assert_eq!(bearer(&rules, &good), "a/user", "{algorithm} {members}");
            let named = key.token_with(algorithm, &json!({"kid": "k"}), &claims("a", &json!({})));
            assert_eq!(bearer(&rules, &named), "a/user", "{algorithm} {members}");
            let (signed, _) = good.rsplit_once('.').unwrap();
            let (_, signature) = named.rsplit_once('.').unwrap();
            let swapped = format!("{signed}.{signature}");
            assert_eq!(bearer(&rules, &swapped), "401 Signature", "{algorithm}");
        }
    }
}

/// Header lines set apart by ` ++ `, or a path | with the default places | with others. `<T>` is a good token.
const PLACES: &str = r#"
authorization: Bearer <T>                | a/user     | nobody
AuthoriZation: Bearer <T>                | a/user     | nobody
authorization: bearer <T>                | nobody     | nobody
authorization: Bearer<T>                 | nobody     | nobody
authorization: xx Bearer <T>             | a/user     | nobody
authorization: Bearer   <T>              | a/user     | nobody
authorization: Bearer                    | nobody     | nobody
authorization: Basic dTpw                | nobody     | nobody
authorization: Bearer bad                | 401 Form   | nobody
authorization: Bearer <T> zz             | 401 SignatureEncoding | nobody
authorization: Bearer <T>, Basic x       | 401 SignatureEncoding | nobody
authorization: Bearer "<T>"              | 401 SignatureEncoding | nobody
authorization: Bearer .<T>               | 401 Form   | nobody
authorization: Bearer <T>=               | 401 SignatureEncoding | nobody
authorization: Bearer <T> ++ authorization: Bearer <T> | 401 Form | nobody
authorization: Basic x ++ authorization: Bearer <T>    | a/user   | nobody
authorization: Bearer <T> ++ authorization: Basic x    | 401 SignatureEncoding | nobody
authorization: Bearer bad ++ authorization: Bearer <T> | 401 HeaderEncoding | nobody
/x?access_token=<T>                      | a/user     | nobody
/x?a=1&access_token=<T>&b                | a/user     | nobody
/x?access%5Ftoken=<T>                    | a/user     | nobody
/x?access_token=%65<T>                   | 401 HeaderEncoding | nobody
/x?access_token=                         | 401 Form   | nobody
/x?access_token                          | 401 Form   | nobody
/x?xaccess_token=<T>&Access_Token=<T>    | nobody     | nobody
/access_token=<T>                        | nobody     | nobody
/x?access_token=<T>&access_token=bad     | 401 Form   | nobody
x-jwt: <T>                               | nobody     | a/user
X-JWT: <T>                               | nobody     | a/user
x-jwt: Bearer <T>                        | nobody     | 401 HeaderEncoding
x-jwt:                                   | nobody     | 401 Form
x-jwt: <T> ++ x-jwt: <T>                 | nobody     | a/user
x-jwt: <T> ++ x-jwt: bad                 | nobody     | 401 Form
x-jwt: bad ++ x-jwt: <T>                 | nobody     | 401 Form
x-pre: T:<T>                             | nobody     | a/user
x-pre: aT:<T>                            | nobody     | a/user
x-pre: <T>                               | nobody     | nobody
/x?t=<T>                                 | nobody     | a/user
cookie: a=1; c=<T>; e=2                  | nobody     | a/user
cookie: a=1;c=<T>                        | nobody     | a/user
cookie: c="<T>"                          | nobody     | a/user
cookie: C=<T>                            | nobody     | nobody
cookie: c                                | nobody     | nobody
cookie: c=                               | nobody     | 401 Form
cookie: a=1, c=<T>                       | nobody     | nobody
cookie: c=<T>; d=bad                     | nobody     | 401 Form
cookie: c=<T> ++ cookie: c=bad           | nobody     | 401 Form
x-jwt: <T> ++ cookie: c=bad              | nobody     | 401 Form
"#;

#[test]
fn tokens_are_found_where_rules_say_and_nowhere_else() {
    let good = P256.token("ES256", &claims("a", &json!({})));
    let mut other = believing(&P256);
    other.from_headers = vec![header_place("x-jwt"), header_place("x-pre:T:")];
    other.from_params = vec!["t".into()];
    other.from_cookies = vec!["c".into(), "d".into()];
    let (usual, other) = (compiled(&[believing(&P256)]), compiled(&[other]));
    for row in PLACES.trim().lines() {
        let cells: Vec<&str> = row.split(" |").map(str::trim).collect();
        let text = cells[0].replace("<T>", &good);
        let is_path = text.starts_with('/');
        let lines: Vec<(&str, &str)> = match is_path {
            true => Vec::new(),
            false => text
                .split(" ++ ")
                .map(|line| line.split_once(':').unwrap())
                .map(|(name, value)| (name, value.trim()))
                .collect(),
        };
        let path = if is_path { &*text } else { "/x" };
        for (rules, wanted) in [(&usual, cells[1]), (&other, cells[2])] {
            let mut cache = Cache::new(7);
            for _ in 0..2 {
                let outcome = asked(rules, &mut cache, path, &lines);
                assert_eq!(said(&outcome), wanted, "{row}");
            }
        }
    }
}

#[test]
fn a_browsers_question_before_the_request_needs_no_token() {
    let rules = compiled(&[believing(&P256)]);
    let bad = ("authorization", "Bearer bad");
    let (origin, asks) = (
        ("Origin", "https://b"),
        ("Access-Control-Request-Method", "PUT"),
    );
    for (method, headers, passes) in [
        ("OPTIONS", vec![origin, asks, bad], true),
        ("GET", vec![origin, asks, bad], false),
        ("OPTIONS", vec![asks, bad], false),
        ("OPTIONS", vec![origin, bad], false),
        ("OPTIONS", vec![("origin", ""), asks, bad], false),
    ] {
        let request = TokenRequest {
            method: method.as_bytes(),
            path: b"/",
            headers: &headers,
        };
        let outcome = rules.examine(&request, NOW, &mut Cache::new(1));
        assert_eq!(
            matches!(outcome, TokenOutcome::NoToken),
            passes,
            "{headers:?}"
        );
    }
}

#[test]
fn the_issuer_selects_the_rule() {
    let keys = |key: &voile_testkit::tokens::SigningKey| key.key_set(&json!({}));
    let mut for_x = rule("d", &keys(&P256));
    for_x.audiences = vec!["x".into()];
    let mut for_y = rule("d", &keys(&P384));
    for_y.audiences = vec!["https://y/".into()];
    let rules = compiled(&[
        rule("b", &keys(&P256)),
        rule("a", &keys(&ED)),
        for_x,
        for_y,
        rule("c", &keys(&P256)),
        rule("c", &keys(&ED)),
    ]);
    let p256 = |issuer: &str, more: Value| P256.token("ES256", &claims(issuer, &more));
    let ed = |issuer: &str| ED.token("EdDSA", &claims(issuer, &json!({})));
    for (token, wanted) in [
        (ed("a"), "a/user"),
        (p256("b", json!({})), "b/user"),
        (p256("a", json!({})), "401 NoKey"),
        (ed("b"), "401 NoKey"),
        (p256("z", json!({})), "401 Issuer"),
        (p256("", json!({})), "401 Issuer"),
        (P256.token("ES256", &json!({"sub": "user"})), "401 Issuer"),
        // Two rules with other keys.
        (p256("c", json!({})), "c/user"),
        (ed("c"), "c/user"),
        // Two rules with other audiences.
        (p256("d", json!({"aud": "x"})), "d/user"),
        (p256("d", json!({"aud": ["w", "x"]})), "d/user"),
        (p256("d", json!({"aud": "http://x"})), "d/user"),
        (p256("d", json!({"aud": "y"})), "401 NoKey"),
        (p256("d", json!({"aud": "z"})), "403 Audience"),
        (p256("d", json!({"aud": []})), "403 Audience"),
        (p256("d", json!({})), "403 Audience"),
        (
            P384.token("ES384", &claims("d", &json!({"aud": "y"}))),
            "d/user",
        ),
    ] {
        assert_eq!(bearer(&rules, &token), wanted, "{token}");
    }
    let anybody = compiled(&[rule("", &keys(&P256)), rule("a", &keys(&ED))]);
    assert_eq!(bearer(&anybody, &p256("z", json!({}))), "z/user");
    assert_eq!(bearer(&anybody, &p256("a", json!({}))), "a/user");
    assert_eq!(bearer(&anybody, &ed("a")), "a/user");
    assert_eq!(bearer(&anybody, &ed("z")), "401 NoKey");
    let bare = P256.token("ES256", &json!({"sub": "user"}));
    assert_eq!(bearer(&anybody, &bare), "\"\"/Some(\"user\")");
}

#[test]
fn any_rule_may_match_and_all_its_tokens_must_be_good() {
    let mut a = rule("a", &P256.key_set(&json!({})));
    a.from_headers = vec![header_place("x-a"), header_place("x-both")];
    let mut b = rule("b", &ED.key_set(&json!({})));
    b.from_headers = vec![header_place("x-b"), header_place("x-both")];
    let rules = compiled(&[a, b]);
    let good_a = P256.token("ES256", &claims("a", &json!({})));
    let good_b = ED.token("EdDSA", &claims("b", &json!({})));
    let (a, b) = (&*good_a, &*good_b);
    let cases: [(&[(&str, &str)], &str); 11] = [
        (&[], "nobody"),
        (&[("x-a", a)], "a/user"),
        (&[("x-b", b)], "b/user"),
        (&[("x-a", b)], "401 Issuer"),
        (&[("x-a", a), ("x-b", b)], "a/user"),
        (&[("x-a", "bad"), ("x-b", b)], "b/user"),
        (&[("x-a", a), ("x-b", "bad")], "a/user"),
        (&[("x-a", "bad"), ("x-b", "bad")], "401 Form"),
        (&[("x-both", a)], "a/user"),
        (&[("x-both", b)], "b/user"),
        (&[("x-both", a), ("x-a", b)], "401 Issuer"),
    ];
    for (lines, wanted) in cases {
        let mut cache = Cache::new(1);
        for _ in 0..2 {
            let outcome = asked(&rules, &mut cache, "/", lines);
            assert_eq!(said(&outcome), wanted, "{lines:?}");
        }
    }
}

/// Rules of the issuers `a`, which demands a token in `x-a`, and `b`, which looks in `x-b`; and a token of each.
fn demanding() -> ([TokenRule; 2], [String; 2]) {
    let mut a = rule("a", &P256.key_set(&json!({})));
    (a.from_headers, a.required) = (vec![header_place("x-a")], true);
    let mut b = rule("b", &ED.key_set(&json!({})));
    b.from_headers = vec![header_place("x-b")];
    let of_a = P256.token("ES256", &claims("a", &json!({})));
    let of_b = ED.token("EdDSA", &claims("b", &json!({})));
    ([a, b], [of_a, of_b])
}

#[test]
fn a_rule_that_demands_a_token_refuses_requests_without_a_good_one_for_it() {
    let (mixed, [a, b]) = demanding();
    let mut both = mixed.clone();
    both[1].required = true;
    // Where both rules look in one place, the first one takes its token out of the request unless it forwards it.
    let mut shared = mixed.clone();
    shared[1].from_headers = vec![header_place("x-a")];
    let mut forwarded = shared.clone();
    forwarded[0].forward_original = true;
    // `A` and `B` stand for the tokens.
    let cases: [(&[TokenRule], &str); 5] = [
        (
            &mixed[..1],
            ": Missing | x-b=B: Missing | x-a=bad: Form | x-a=B: Issuer | x-a=A: a",
        ),
        (
            &mixed,
            ": Missing | x-a=A: a | x-b=B: Missing | x-a=A x-b=bad: Form | x-a=bad x-b=B: Form | x-a=A x-b=B: b",
        ),
        (
            &both,
            ": Missing | x-a=A: Missing | x-b=B: Missing | x-a=A x-b=A: Issuer | x-a=A x-b=B: b",
        ),
        (&shared, "x-a=A: a | x-a=B: Issuer"),
        (&forwarded, "x-a=A: Issuer"),
    ];
    for (rules, rows) in cases {
        let rules = compiled(rules);
        for row in rows.split(" | ") {
            let (lines, wanted) = row.split_once(':').expect("an outcome");
            let lines = lines.split_whitespace().map(|line| {
                let (name, token) = line.split_once('=').expect("a token");
                match token {
                    "A" => (name, &*a),
                    "B" => (name, &*b),
                    bad => (name, bad),
                }
            });
            let lines: Vec<(&str, &str)> = lines.collect();
            let wanted = match wanted.trim() {
                issuer @ ("a" | "b") => format!("{issuer}/user"),
                reason => format!("401 {reason}"),
            };
            let mut cache = Cache::new(1);
            for _ in 0..2 {
                let outcome = asked(&rules, &mut cache, "/", &lines);
                assert_eq!(said(&outcome), wanted, "{row}");
            }
        }
    }
}

#[test]
fn a_missing_token_is_told_as_envoy_does_and_all_good_ones_are_taken_out() {
    let (rules, [a, b]) = demanding();
    let rules = compiled(&rules);
    let mut cache = Cache::new(1);
    let outcome = asked(&rules, &mut cache, "/", &[("x-a", &a), ("x-b", &b)]);
    let TokenOutcome::Verified(verified) = outcome else {
        panic!("{outcome:?}")
    };
    let edits = verified.edits(&rules);
    assert_eq!(edits.remove.as_slice(), ["x-a", "x-b"]);
    let TokenOutcome::Refused(refusal) = asked(&rules, &mut cache, "/", &[]) else {
        panic!("a token is missing")
    };
    let challenge = refusal.challenge("http", b"a", b"/x?y");
    assert_eq!(challenge, "Bearer realm=\"http://a/x\"");
    let details = "jwt_authn_access_denied{Jwt_is_missing}";
    assert_eq!(refusal.details(), details);
    let headers = vec![
        ("origin", "https://b"),
        ("access-control-request-method", "PUT"),
    ];
    let preflight = TokenRequest {
        method: b"OPTIONS",
        path: b"/",
        headers: &headers,
    };
    assert_eq!(said(&rules.examine(&preflight, NOW, &mut cache)), "nobody");
}

#[test]
fn times_are_compared_at_every_request_with_a_minutes_grace() {
    let rules = compiled(&[believing(&P256)]);
    // Claims | seconds from NOW | outcome.
    for (more, at, wanted) in [
        (json!({"exp": NOW}), 0, "a/user"),
        (json!({"exp": NOW}), 60, "a/user"),
        (json!({"exp": NOW}), 61, "401 Expired"),
        (json!({"exp": NOW as f64 + 0.9}), 61, "401 Expired"),
        (json!({"nbf": NOW}), -60, "a/user"),
        (json!({"nbf": NOW}), -61, "401 NotYetValid"),
        (json!({"exp": 0}), 0, "401 Expired"),
        (json!({"exp": u64::MAX}), 0, "a/user"),
        (json!({"iat": NOW + 3600}), 0, "a/user"),
    ] {
        let token = P256.token("ES256", &claims("a", &more));
        let line = format!("Bearer {token}");
        let lines = [("authorization", &*line)];
        let now = NOW.saturating_add_signed(at);
        let mut cache = Cache::new(3);
        let first = asked_at(&rules, &mut cache, "/", &lines, now);
        assert_eq!(said(&first), wanted, "{more}");
        // A token that is remembered is no better than a new one.
        let expiry = more["exp"].as_u64().unwrap_or(NOW);
        let good = asked_at(&rules, &mut cache, "/", &lines, expiry.min(NOW));
        let again = asked_at(&rules, &mut cache, "/", &lines, now);
        assert_eq!(said(&again), wanted, "{more} after {good:?}");
    }
}

#[test]
fn claims_are_what_authorization_asks() {
    let mut own = believing(&P256);
    own.space_delimited_claims = vec!["groups".into(), "aud".into()];
    let rules = compiled(&[own]);
    let given = json!({
        "scope": " read  write ", "permission": "", "groups": "g1 g2", "aud": "x y",
        "other": "a b", "nested": {"scope": "a b", "list": ["l", 1]}, "azp": "me",
    });
    let token = P256.token("ES256", &claims("a", &given));
    let line = format!("Bearer {token}");
    let mut cache = Cache::new(1);
    let outcome = asked(&rules, &mut cache, "/", &[("authorization", &line)]);
    let TokenOutcome::Verified(verified) = outcome else {
        panic!("{outcome:?}")
    };
    let wanted = json!({
        "iss": "a", "sub": "user", "scope": ["read", "write"], "permission": "", "groups": ["g1", "g2"],
        "aud": ["x", "y"], "other": "a b", "nested": {"scope": "a b", "list": ["l", 1]}, "azp": "me",
    });
    assert_eq!(Value::Object(verified.claims().to_map()), wanted);
}

#[test]
fn the_application_gets_what_the_rule_says_and_nobody_else_can_write_it() {
    let mut own = believing(&P256);
    own.output_payload_to_header = Some("x-payload".into());
    let outputs = "x-sub=sub x-role=n.role x-n=n x-f=f x-big=big x-neg=neg x-t=t x-scope=scope x-none=none x-empty=empty x-null=null x-list=list";
    own.output_claims = outputs.split(' ').map(claim_output).collect();
    let rules = compiled(&[own.clone()]);
    let given = json!({
        "n": {"role": "admin"}, "f": -1.5, "big": 9_007_199_254_740_993_u64, "neg": -3, "t": true,
        "scope": "a b", "empty": "", "null": null, "list": ["x"],
    });
    let claims = claims("a", &given);
    let token = P256.token("ES256", &claims);
    let line = format!("Bearer {token}");
    let lines = [("authorization", &*line), ("x-sub", "root")];
    let mut cache = Cache::new(1);
    for _ in 0..2 {
        let outcome = asked(&rules, &mut cache, "/", &lines);
        let TokenOutcome::Verified(verified) = outcome else {
            panic!("{outcome:?}")
        };
        let edits = verified.edits(&rules);
        assert_eq!(edits.remove.as_slice(), ["authorization"]);
        let payload = token.split('.').nth(1).unwrap();
        let wanted = [
            ("x-payload", payload),
            ("x-sub", "user"),
            ("x-role", "admin"),
            ("x-n", "eyJyb2xlIjoiYWRtaW4ifQ=="),
            ("x-f", "-1.500000"),
            ("x-big", "9007199254740993"),
            ("x-neg", "-3.000000"),
            ("x-t", "true"),
            ("x-scope", "a b"),
            ("x-list", "WyJ4Il0="),
        ];
        assert_eq!(edits.add.as_slice(), wanted);
    }
    let owned: Vec<&str> = rules.owned_headers().iter().map(AsRef::as_ref).collect();
    assert_eq!(owned.len(), 13, "{owned:?}");
    let line_break = super::claims("a", &json!({"n": {"role": "a\r\nx-admin: yes"}}));
    let token = P256.token("ES256", &line_break);
    assert_eq!(bearer(&rules, &token), "401 Output");
    own.forward_original = true;
    let rules = compiled(&[own]);
    let outcome = asked(&rules, &mut Cache::new(1), "/", &lines);
    let TokenOutcome::Verified(verified) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(verified.edits(&rules).remove.is_empty());
}

#[test]
fn a_header_that_tokens_write_is_no_place_for_tokens() {
    let mut own = believing(&P256);
    own.from_headers = vec![header_place("x-jwt")];
    own.output_payload_to_header = Some("x-jwt".into());
    let good = P256.token("ES256", &claims("a", &json!({})));
    let rules = compiled(&[own]);
    let outcome = asked(&rules, &mut Cache::new(1), "/", &[("x-jwt", &good)]);
    assert_eq!(said(&outcome), "nobody");
}

#[test]
fn a_good_token_is_good_again_only_by_the_same_keys() {
    let before = compiled(&[rule("a", &RSA.key_set(&json!({"kid": "1"})))]);
    let token = RSA.token_with("RS256", &json!({"kid": "1"}), &claims("a", &json!({})));
    let line = format!("Bearer {token}");
    let lines = [("authorization", &*line)];
    let mut cache = Cache::new(9);
    assert_eq!(said(&asked(&before, &mut cache, "/", &lines)), "a/user");
    // The issuer's keys are others now, one with the same name.
    let after = compiled(&[rule("a", &OTHER_RSA.key_set(&json!({"kid": "1"})))]);
    for _ in 0..2 {
        assert_eq!(
            said(&asked(&after, &mut cache, "/", &lines)),
            "401 Signature"
        );
    }
    assert_eq!(said(&asked(&before, &mut cache, "/", &lines)), "a/user");
    // And not for an issuer that has the same keys, nor where the rule is gone.
    let other = compiled(&[rule("b", &RSA.key_set(&json!({"kid": "1"})))]);
    assert_eq!(said(&asked(&other, &mut cache, "/", &lines)), "401 Issuer");
    assert_eq!(
        said(&asked(&compiled(&[]), &mut cache, "/", &lines)),
        "nobody"
    );
}

#[test]
fn a_good_token_is_good_again_only_for_its_audience() {
    let keys = RSA.key_set(&json!({"kid": "1"}));
    let of = |audience: &str| {
        let mut rule = rule("a", &keys);
        rule.audiences = vec![audience.into()];
        compiled(&[rule])
    };
    let more = json!({"aud": "x"});
    let token = RSA.token_with("RS256", &json!({"kid": "1"}), &claims("a", &more));
    let line = format!("Bearer {token}");
    let lines = [("authorization", &*line)];
    let mut cache = Cache::new(9);
    // The rule was edited: the same keys, and a token that is remembered.
    for (audience, expected) in [("x", "a/user"), ("y", "403 Audience"), ("x", "a/user")] {
        assert_eq!(
            said(&asked(&of(audience), &mut cache, "/", &lines)),
            expected,
            "{audience}"
        );
    }
}
