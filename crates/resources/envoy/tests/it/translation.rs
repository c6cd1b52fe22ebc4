//! Each attribute and each kind of value, against the matcher that Istio's documents and generators give for it.

mod custom;
pub(crate) mod tokens;

use serde_json::{Value, json};
use voile_envoy::{Layer, PeerIdentity, Translation};
use voile_policy::authorization::{Action, Attribute, Policy, PolicyName, PolicyRule, Term};

const HTTP: Translation = Translation {
    layer: Layer::Http,
    peer: PeerIdentity::Certificate,
};

fn policy(action: Action, rules: Vec<PolicyRule>) -> Policy {
    Policy {
        name: PolicyName {
            namespace: "shop".into(),
            name: "p".into(),
        },
        origin: None,
        action,
        dry_run: false,
        rules,
    }
}

fn condition(key: &str, any: &[&str], none: &[&str]) -> PolicyRule {
    let attribute = Attribute::of_name(key).expect("a key");
    PolicyRule {
        when: vec![Term::parse(attribute, "shop", any, none).expect("good values")],
        ..PolicyRule::default()
    }
}

fn translated(translation: Translation, action: Action, rules: Vec<PolicyRule>) -> Value {
    let set = [policy(action.clone(), rules)];
    let mut rules = translation.rules(&set, &action, false).expect("rules");
    rules["policies"].take()
}

/// The one matcher of a condition with one value.
fn matcher(key: &str, value: &str) -> Value {
    let all = translated(HTTP, Action::Allow, vec![condition(key, &[value], &[])]);
    let rule = &all["ns[shop]-policy[p]-rule[0]"];
    let half = |half: &str, and: &str, list: &str| rule[half][0][and][list][0].clone();
    let permission = half("permissions", "and_rules", "rules");
    let one = match permission == json!({ "any": true }) {
        true => half("principals", "and_ids", "ids"),
        false => permission,
    };
    // A claim's values are one matcher, every other attribute's a list.
    let list = one
        .get("or_ids")
        .map(|or| &or["ids"])
        .or(one.get("or_rules").map(|or| &or["rules"]));
    list.map_or(one.clone(), |list| list[0].clone())
}

fn authenticated(matcher: &Value) -> Value {
    json!({ "authenticated": { "principal_name": matcher } })
}

fn expression(regex: &str) -> Value {
    json!({ "safe_regex": { "regex": regex } })
}

#[test]
fn what_is_asked_of_the_peer() {
    let rows = [
        (
            "source.principal",
            "td/ns/a/sa/b",
            json!({ "exact": "spiffe://td/ns/a/sa/b" }),
        ),
        (
            "source.principal",
            "td/*",
            json!({ "prefix": "spiffe://td/" }),
        ),
        ("source.principal", "*/sa/b", expression("spiffe://.*/sa/b")),
        ("source.principal", "*", expression(".+")),
        ("source.namespace", "a.b", expression(r".*/ns/a\.b/.*")),
        ("source.namespace", "a*", expression(".*/ns/a.*/.*")),
        (
            "source.serviceAccount",
            "web",
            expression("spiffe://.+/ns/shop/(.+/|)sa/web(/.+)?"),
        ),
        (
            "source.serviceAccount",
            "a/web",
            expression("spiffe://.+/ns/a/(.+/|)sa/web(/.+)?"),
        ),
        (
            "source.trustDomain",
            "td",
            json!({ "prefix": "spiffe://td/" }),
        ),
        ("source.trustDomain", "*", json!({ "prefix": "spiffe://" })),
        (
            "source.trustDomain",
            "*.td",
            expression(r"spiffe://[^/]*\.td/.*"),
        ),
    ];
    for (key, value, wanted) in rows {
        assert_eq!(matcher(key, value), authenticated(&wanted), "{key} {value}");
    }
}

#[test]
fn what_is_asked_of_addresses_and_ports() {
    let block = |field: &str, length| json!({ field: { "address_prefix": "10.1.0.0", "prefix_len": length } });
    let rows = [
        ("source.ip", "10.1.2.3/16", block("direct_remote_ip", 16)),
        ("remote.ip", "10.1.0.0", block("remote_ip", 32)),
        ("destination.ip", "10.1.0.0/24", block("destination_ip", 24)),
        ("destination.port", "80", json!({ "destination_port": 80 })),
        (
            "connection.sni",
            "*.a",
            json!({ "requested_server_name": { "suffix": ".a" } }),
        ),
    ];
    for (key, value, wanted) in rows {
        assert_eq!(matcher(key, value), wanted, "{key} {value}");
    }
}

#[test]
fn what_is_asked_of_a_request() {
    let header =
        |name: &str, matcher: Value| json!({ "header": { "name": name, "string_match": matcher } });
    let present = |name: &str| json!({ "header": { "name": name, "present_match": true } });
    let rows = [
        (
            "request.host",
            "A.b",
            header(":authority", json!({ "exact": "A.b", "ignore_case": true })),
        ),
        (
            "request.host",
            "*.b",
            header(":authority", json!({ "suffix": ".b", "ignore_case": true })),
        ),
        ("request.host", "*", present(":authority")),
        (
            "request.method",
            "GET",
            header(":method", json!({ "exact": "GET" })),
        ),
        ("request.method", "*", present(":method")),
        (
            "request.headers[X-A]",
            "a*",
            header("x-a", json!({ "prefix": "a" })),
        ),
        ("request.headers[X-A]", "*", present("x-a")),
        (
            "request.path",
            "/a*",
            json!({ "url_path": { "path": { "prefix": "/a" } } }),
        ),
        (
            "request.path",
            "*",
            json!({ "url_path": { "path": expression(".+") } }),
        ),
    ];
    for (key, value, wanted) in rows {
        assert_eq!(matcher(key, value), wanted, "{key} {value}");
    }
    let template = matcher("request.path", "/a/{*}/{**}");
    assert_eq!(
        template["uri_template"]["typed_config"]["path_template"],
        "/a/*/**"
    );
}

#[test]
fn what_is_asked_of_a_token() {
    let claim = |path: &[&str], value: Value| {
        let path: Vec<Value> = path.iter().map(|key| json!({ "key": key })).collect();
        json!({ "metadata": { "filter": "envoy.filters.http.jwt_authn", "path": path, "value": value } })
    };
    let list_or_text = |matcher: Value| {
        let text = json!({ "string_match": matcher });
        json!({ "or_match": { "value_matchers": [{ "list_match": { "one_of": text } }, text] } })
    };
    let exact = |text: &str| json!({ "exact": text });
    let rows = [
        (
            "request.auth.audiences",
            claim(&["payload", "aud"], list_or_text(exact("x"))),
        ),
        (
            "request.auth.presenter",
            claim(&["payload", "azp"], list_or_text(exact("x"))),
        ),
        (
            "request.auth.claims[a][b]",
            claim(&["payload", "a", "b"], list_or_text(exact("x"))),
        ),
    ];
    for (key, wanted) in rows {
        assert_eq!(matcher(key, "x"), wanted, "{key}");
    }
    let text = |name, matcher: Value| claim(&["payload", name], json!({ "string_match": matcher }));
    let rows = [
        ("https://i/s", exact("https://i"), exact("s")),
        ("https://i/*", exact("https://i"), expression(".+")),
        ("*/s", expression(".+"), exact("s")),
        ("*/*", expression(".+"), exact("*")),
        ("*", expression(".+"), expression(".+")),
        ("i*", json!({ "prefix": "i" }), expression(".+")),
        ("*s", expression(".+"), json!({ "suffix": "s" })),
        ("i", exact("i"), exact("")),
    ];
    for (value, issuer, subject) in rows {
        let both = json!({ "and_ids": { "ids": [text("iss", issuer), text("sub", subject)] } });
        assert_eq!(matcher("request.auth.principal", value), both, "{value}");
    }
}

#[test]
fn rules_without_terms_match_all_and_policies_without_rules_none() {
    let all = translated(HTTP, Action::Deny, vec![PolicyRule::default()]);
    let any = json!({ "any": true });
    let wanted = json!({
        "permissions": [{ "and_rules": { "rules": [any] } }],
        "principals": [{ "and_ids": { "ids": [any] } }],
    });
    assert_eq!(all["ns[shop]-policy[p]-rule[0]"], wanted);
    let none = translated(HTTP, Action::Allow, Vec::new());
    let never = &none["ns[shop]-policy[p]-rule[0]"]["permissions"][0];
    assert_eq!(*never, json!({ "not_rule": { "any": true } }));
}

#[test]
fn http_terms_on_connections_make_allow_narrower_and_deny_wider() {
    let tcp = Translation {
        layer: Layer::Tcp,
        peer: PeerIdentity::Certificate,
    };
    let mut mixed = condition("destination.port", &["80"], &[]);
    mixed
        .when
        .extend(condition("request.method", &["GET"], &[]).when);
    assert_eq!(
        translated(tcp, Action::Allow, vec![mixed.clone()]),
        json!({})
    );
    let denied = translated(tcp, Action::Deny, vec![mixed]);
    let permissions = &denied["ns[shop]-policy[p]-rule[0]"]["permissions"][0]["and_rules"]["rules"];
    assert_eq!(
        *permissions,
        json!([{ "or_rules": { "rules": [{ "destination_port": 80 }] } }])
    );
}

#[test]
fn excluded_values_are_negated_as_a_whole() {
    let all = translated(
        HTTP,
        Action::Allow,
        vec![condition("request.method", &[], &["GET", "PUT"])],
    );
    let rules = &all["ns[shop]-policy[p]-rule[0]"]["permissions"][0]["and_rules"]["rules"];
    let not = &rules[0]["not_rule"]["or_rules"]["rules"];
    assert_eq!(not.as_array().map(Vec::len), Some(2), "{rules}");
}
