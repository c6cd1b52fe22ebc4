//! An invalid security resource denies the traffic that it decides about, and nothing else. The tests list the policies
//! in force for each kind and each invalid part.

use voile_model::Mesh;
use voile_model::mesh::UNREADABLE_KEYS;
use voile_model::mesh::authorization::{AuthorizationRule, Matches, PolicyTarget, WhenCondition};
use voile_model::mesh::{KeySource, MutualTlsMode, TokenRule};

use crate::{check_text, render};

/// The correct text, the wrong text in its place, and the policy then in force.
type Case = (&'static str, &'static str, &'static str);

const DENY: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: a, labels: {x: y1}}\nspec:\n  selector: {matchLabels: {app: web}}\n  action: DENY\n  rules: [{from: [{source: {namespaces: [b]}}], to: [{operation: {paths: [/x]}}], when: [{key: source.ip, values: [10.0.0.1]}]}]\n";

const OF_POLICIES: &[Case] = &[
    ("name: p", "name: 'P q'", "app=web DENY own rules"),
    ("name: p", "name: [p]", "app=web DENY own rules"),
    ("name: p, ", "", "app=web DENY own rules"),
    ("namespace: a", "namespace: 'A b'", ""),
    ("namespace: a", "namespace: [a]", ""),
    ("labels: {x: y1}", "labels: [x]", "app=web DENY own rules"),
    (
        "labels: {x: y1}",
        "labels: {x: 5}",
        "app=web DENY own rules",
    ),
    ("app: web", "app: [web]", "everything DENY own rules"),
    ("app: web", "app: 'no label'", "everything DENY own rules"),
    (
        "selector: {matchLabels",
        "selector: {matchLabls",
        "everything DENY own rules",
    ),
    (
        "selector: {matchLabels: {app: web}}",
        "targetRefs: [{kind: Pod, name: a}]",
        "everything DENY own rules",
    ),
    (
        "selector: {matchLabels: {app: web}}",
        "targetRefs: [5]",
        "everything DENY own rules",
    ),
    (
        "selector: {matchLabels: {app: web}}",
        "targetRefs: [{kind: Service, name: a, namspace: b}]",
        "everything DENY own rules",
    ),
    ("action: DENY", "action: DNY", "app=web DENY all"),
    ("action: DENY", "action: [DENY]", "app=web DENY all"),
    (
        "action: DENY",
        "action: DENY\n  provider: {name: a}",
        "app=web DENY own rules",
    ),
    ("action: DENY", "action: AUDIT\n  provider: {name: a}", ""),
    (
        "action: DENY",
        "action: ALLOW\n  provider: {name: a}",
        "app=web ALLOW own rules",
    ),
    ("DENY\n  rules", "DENY\n  ruls", "app=web DENY all"),
    (
        "DENY\n  rules: [",
        "DENY\n  rules: [5, ",
        "app=web DENY all + own rules",
    ),
    ("DENY\n  rules: [", "DENY\n  rules: {a: [", ""), // no YAML at all
    ("action: DENY", "action: CUSTOM", "app=web DENY own rules"),
    (
        "rules: [{from: [{source: {namespaces: [b]}}], to",
        "provider: {nme: a}\n  rules: [{to",
        "app=web DENY to /x when 10.0.0.1",
    ),
    // The workloads of an ALLOW policy are others than those that are meant: it allows nothing.
    (
        "{app: web}}\n  action: DENY",
        "{app: [web]}}\n  action: ALLOW",
        "everything ALLOW nothing",
    ),
    (
        "selector: {matchLabels: {app: web}}\n  action: DENY",
        "targetRefs: [{kind: Pod, name: a}]\n  action: ALLOW",
        "everything ALLOW nothing",
    ),
    (
        "selector: {matchLabels: {app: web}}\n  action: DENY",
        "selectr: {matchLabels: {app: web}}\n  action: ALLOW",
        "everything ALLOW nothing",
    ),
    ("action: DENY", "acton: DENY", "app=web DENY all"),
    ("action: DENY\n  rules", "ruls", "app=web DENY all"),
    (
        "action: DENY\n  rules",
        "action: ALLOW\n  ruls",
        "app=web ALLOW nothing",
    ),
    ("\nspec:", "\nspce:", "everything DENY all"),
    (
        "labels: {x: y1}}",
        "annotations: {istio.io/dry-run: 'true'}}\nstatu: {}",
        "",
    ),
];

const TOKENS: &str = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: p, namespace: a}\nspec:\n  selector: {matchLabels: {app: web}}\n  jwtRules: [{issuer: \"https://a.example\", jwksUri: \"https://a.example/keys\", fromHeaders: [{name: x-token}]}]\n";

const OF_TOKENS: &[Case] = &[
    ("name: p", "name: 'P q'", "app=web refuses x-token"),
    ("namespace: a", "namespace: 5", ""),
    ("app: web", "app: 5", "everything refuses x-token"),
    (
        "jwksUri: \"https://a.example/keys\"",
        "jwksUri: nowhere",
        "app=web refuses x-token",
    ),
    (
        "jwksUri: \"https://a.example/keys\"",
        "jwks: 5",
        "app=web refuses x-token",
    ),
    (
        "\"https://a.example\", jwksUri: \"https://a.example/keys\"",
        "a@b.example",
        "app=web refuses x-token",
    ),
    (
        "\"https://a.example\", jwks",
        "5, jwks",
        "app=web refuses x-token",
    ),
    (
        "{name: x-token}",
        "{nme: x-token}",
        "app=web refuses default places",
    ),
    (
        "jwtRules: [",
        "jwtRuls: [",
        "app=web refuses default places",
    ),
    ("jwtRules: [{", "jwtRules: {a: [{", ""), // no YAML at all
    ("\nspec:", "\nspce:", "everything refuses default places"),
    (
        "fromHeaders",
        "presence: OPTIONL, fromHeaders",
        "app=web requires and refuses x-token",
    ),
    (
        "jwksUri: \"https://a.example/keys\"",
        "presence: REQUIRED, jwksUri: 5",
        "app=web requires and refuses x-token",
    ),
];

const PEER: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: a}\nspec:\n  selector: {matchLabels: {app: web}}\n  mtls: {mode: PERMISSIVE}\n  portLevelMtls: {8080: {mode: PERMISSIVE}}\n";

const OF_PEERS: &[Case] = &[
    ("name: p", "name: 'P q'", "app=web STRICT"),
    ("namespace: a", "namespace: [a]", ""),
    ("namespace: a", "namespace: istio-system, lbls: {}", ""), // selectors of the root namespace are ignored
    ("app: web", "app: [web]", "everything STRICT"),
    (
        "{mode: PERMISSIVE}\n",
        "{mode: PERMISIVE}\n",
        "app=web STRICT",
    ),
    ("{mode: PERMISSIVE}\n", "5\n", "app=web STRICT"),
    ("8080: {", "http: {", "app=web STRICT"),
    (
        "mtls: {mode: PERMISSIVE}\n  portLevelMtls: {8080: {mode: PERMISSIVE}}",
        "portLevelMtls: {8080: {mode: P}}",
        "app=web [8080] STRICT",
    ),
    (
        "mtls: {mode: PERMISSIVE}\n  portLevelMtls: {8080",
        "portLevelMtls: {http",
        "app=web STRICT",
    ),
    // Ports without a selector: Istio refuses them, and they decide about nothing.
    (
        "  selector: {matchLabels: {app: web}}\n",
        "",
        "everything STRICT",
    ),
    (
        "  selector: {matchLabels: {app: web}}\n  mtls: {mode: PERMISSIVE}\n",
        "",
        "",
    ),
    (
        "selector: {matchLabels: {app: web}}\n  mtls: {mode: PERMISSIVE}",
        "selector: {}",
        "",
    ),
    // The target is unreadable.
    (
        "selector: {matchLabels: {app: web}}\n  mtls: {mode: PERMISSIVE}",
        "selector: {matchLabls: {app: web}}",
        "everything STRICT",
    ),
];

#[test]
fn each_broken_part_of_each_security_kind_denies_what_the_resource_decides_about() {
    for (text, cases) in [(DENY, OF_POLICIES), (TOKENS, OF_TOKENS), (PEER, OF_PEERS)] {
        let (mesh, diagnostics) = check_text(text);
        assert!(diagnostics.is_empty(), "{}", render(&diagnostics));
        assert_eq!(in_force(&mesh).len(), 1);
        for (right, wrong, expected) in cases {
            let broken = text.replacen(right, wrong, 1);
            assert_ne!(broken, text, "{right}");
            let other = text.replacen("name: p", "name: other", 1);
            let other = other.replacen("namespace: a", "namespace: other", 1);
            let (mesh, diagnostics) = check_text(&format!("{broken}---\n{other}"));
            let said = render(&diagnostics);
            assert!(said.contains(": error["), "{wrong}: {said}");
            let mut held = in_force(&mesh);
            held.retain(|one| !one.starts_with("other/"));
            let expected: Vec<String> = match *expected {
                "" => Vec::new(),
                one => vec![format!("a/{one}")],
            };
            assert_eq!(held, expected, "{wrong}: {said}");
            assert_eq!(said.contains("V0114"), !held.is_empty(), "{wrong}: {said}");
            assert_eq!(
                in_force(&mesh).len(),
                1 + held.len(),
                "{wrong}: the good one is in force"
            );
        }
    }
}

/// A rule that is right and one that is not, the second one's parts that DENY and CUSTOM deny.
const OF_RULES: &[(&str, &str)] = &[
    // A field that is not known, of the rule and of its parts.
    (
        "{form: [{source: {namespaces: [b]}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    (
        "{from: [{sauce: {}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    (
        "{from: [{source: {namespases: [b]}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    (
        "{from: [{source: {namespases: [b], trustDomains: [d]}}]}",
        "from trust domain d",
    ),
    ("{to: [{operation: {paths: [/y], method: [GET]}}]}", "to /y"),
    // Another type.
    ("{from: 5, to: [{operation: {paths: [/y]}}]}", "to /y"),
    (
        "{from: [5, {source: {namespaces: [b]}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    ("{from: [], to: [{operation: {paths: [/y]}}]}", "to /y"),
    (
        "{from: [{source: {namespaces: [5, b]}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    (
        "{from: [{source: {namespaces: b}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    (
        "{from: [{source: {namespaces: [b]}}], to: [{operation: {paths: 5}}]}",
        "from b",
    ),
    ("{from: [{source: {namespaces: [b]}}], when: 5}", "from b"),
    ("5", "all"),
    // One value of several.
    (
        "{from: [{source: {namespaces: [b, c/d]}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    (
        "{from: [{source: {principals: ['spiffe://a/ns/b/sa/c']}}], to: [{operation: {paths: [/y]}}]}",
        "to /y",
    ),
    (
        "{to: [{operation: {paths: ['/{*}x', /y], ports: ['80']}}]}",
        "to port 80",
    ),
    // A source that says nothing that can be read is everybody, whatever the other says.
    (
        "{from: [{source: {namespaces: [b]}}, {source: {namespaces: [c/d]}}]}",
        "all",
    ),
    // What is excluded and cannot be read is not excluded.
    (
        "{from: [{source: {notNamespaces: [b, c/d]}}]}",
        "from not b",
    ),
    (
        "{from: [{source: {namespaces: [a], notNamespaces: 5}}]}",
        "from a",
    ),
    ("{to: [{operation: {notPaths: ['/{*}x']}}]}", "all"),
    ("{to: [{operation: {notPaths: [/y, 5]}}]}", "to not /y"),
    // A condition that cannot be read holds; the others and `from` stay.
    (
        "{from: [{source: {namespaces: [b]}}], when: [{key: source.pi, values: [10.0.0.1]}]}",
        "from b",
    ),
    (
        "{from: [{source: {namespaces: [b]}}], when: [{key: source.ip, values: [10.0.0.1]}, {key: remote.ip, values: [10.0.0.0/33]}]}",
        "from b when 10.0.0.1",
    ),
    (
        "{when: [{key: source.ip, values: [10.0.0.1, 5]}, {key: source.ip, notValues: [10.0.0.2], value: [a]}]}",
        "when not 10.0.0.2",
    ),
    (
        "{from: [{source: {namespaces: [b]}}], when: [{key: source.ip}]}",
        "from b",
    ),
    (
        "{from: [{source: {namespaces: [b]}}], when: [{values: [a]}]}",
        "from b",
    ),
    ("{from: [{source: {namespaces: [b]}}], when: [5]}", "from b"),
];

#[test]
fn a_broken_rule_allows_nothing_or_denies_what_its_readable_parts_match_and_leaves_the_others() {
    let good = "{from: [{source: {ipBlocks: [10.0.0.9]}}]}";
    for (broken, parts) in OF_RULES {
        for (action, expected) in [
            ("ALLOW", Some("app=web ALLOW from 10.0.0.9".to_owned())),
            (
                "DENY",
                Some(format!("app=web DENY from 10.0.0.9 + {parts}")),
            ),
            (
                "CUSTOM\n  provider: {name: x}",
                Some(format!("app=web DENY from 10.0.0.9 + {parts}")),
            ),
            ("AUDIT", None),
        ] {
            let text = format!(
                "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: a}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  action: {action}\n  rules: [{good}, {broken}]\n"
            );
            let (mesh, diagnostics) = check_text(&text);
            let said = render(&diagnostics);
            assert!(said.contains(": error["), "{broken}: {said}");
            let expected: Vec<String> = expected.iter().map(|one| format!("a/{one}")).collect();
            assert_eq!(in_force(&mesh), expected, "{action} {broken}: {said}");
        }
    }
}

/// The rule of `DENY` in words.
const OWN: &str = "from b to /x when 10.0.0.1";

/// A rule in words.
fn rule(rule: &AuthorizationRule) -> String {
    fn values<T: std::fmt::Display>(what: &str, matches: &Matches<T>) -> String {
        let one = |value: &T| format!(" {what}{value}");
        let not = |value: &T| format!(" {what}not {value}");
        let any = matches.any_of.iter().map(one);
        let all: String = any.chain(matches.none_of.iter().map(not)).collect();
        all.replace("/32", "")
    }
    let mut text = String::new();
    for from in &rule.from {
        text += " from";
        text += &values("", &from.namespaces);
        text += &values("", &from.principals);
        text += &values("trust domain ", &from.trust_domains);
        text += &values("", &from.ip_blocks);
    }
    for to in &rule.to {
        text += " to";
        text += &values("", &to.paths);
        text += &values("port ", &to.ports);
    }
    for when in &rule.when {
        match when {
            WhenCondition::SourceIp(matches) => text += &format!(" when{}", values("", matches)),
            other => panic!("{other:?}"),
        }
    }
    match text.is_empty() {
        true => "all".to_owned(),
        false => text.trim_start().to_owned(),
    }
}

/// The policies in force, in a word for each.
fn in_force(mesh: &Mesh) -> Vec<String> {
    let target = |target: &PolicyTarget| match target {
        PolicyTarget::Everything => "everything".to_owned(),
        PolicyTarget::Workloads(labels) => {
            let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
            labels.collect()
        }
        PolicyTarget::References(all) => format!("{} references", all.len()),
    };
    let mut found = Vec::new();
    for one in mesh.authorization_policies.values() {
        let rules: Vec<String> = one.rules.iter().map(rule).collect();
        let rules = match rules.is_empty() {
            true => "nothing".to_owned(),
            false => rules.join(" + ").replace(OWN, "own rules"),
        };
        let (namespace, action) = (&one.name.namespace, one.action.word());
        found.push(format!(
            "{namespace}/{} {action} {rules}",
            target(&one.target)
        ));
    }
    for one in &mesh.request_authentications {
        let rule = one.rules.first().expect("a rule");
        let refuses = matches!(&rule.keys, KeySource::Inline(keys) if &**keys == UNREADABLE_KEYS);
        let place = rule.from_headers.first();
        let place = place.map_or("default places", |place| &*place.name);
        let what = ["believes", "refuses"][usize::from(refuses)];
        let what =
            [String::new(), "requires and ".to_owned()][usize::from(rule.required)].clone() + what;
        found.push(format!(
            "{}/{} {what} {place}",
            one.name.namespace,
            target(&one.target)
        ));
    }
    for one in &mesh.peer_authentications {
        let labels = one.selector.clone().map(PolicyTarget::Workloads);
        let to = target(&labels.unwrap_or(PolicyTarget::Everything));
        let ports: Vec<u16> = one.port_modes.keys().map(|port| port.get()).collect();
        let strict = match (one.mode, &*ports) {
            (Some(MutualTlsMode::Strict), _) => "STRICT".to_owned(),
            (None, ports) => format!("{ports:?} STRICT"),
            (mode, _) => format!("{mode:?}"),
        };
        found.push(format!("{}/{to} {strict}", one.name.namespace));
    }
    found
}

/// Rules of a RequestAuthentication, and those whose tokens are refused: the issuer (`*` is any), and where tokens are looked for.
const OF_TOKEN_RULES: &[(&str, &[&str])] = &[
    (
        "{issuer: \"https://b.example\", jwksUri: nowhere}",
        &["https://b.example"],
    ),
    (
        "{issuer: b, jwksUri: \"https://b.example/keys\", audience: [x]}",
        &["b"],
    ),
    ("{issuer: b@c.example}", &["b@c.example"]),
    ("{issuer: b, jwks: 5}", &["b"]),
    (
        "{issuer: b, jwksUri: \"https://b.example/k\", timeout: 1us}",
        &["b"],
    ),
    (
        "{issuer: b, jwksUri: \"https://b.example/k\", fromHeaders: [{nme: x}]}",
        &["b"],
    ),
    ("{issuer: 5, jwksUri: \"https://b.example/keys\"}", &["*"]),
    ("5", &["*"]),
    ("{issuer: b, jwksUri: 5}, 5", &["*", "b"]),
];

#[test]
fn a_broken_rule_about_tokens_refuses_the_tokens_of_its_issuer_and_leaves_the_others() {
    let good = "{issuer: \"https://a.example\", jwksUri: \"https://a.example/keys\", fromHeaders: [{name: x-token}]}";
    for (broken, refused) in OF_TOKEN_RULES {
        for rules in [format!("{good}, {broken}"), format!("{broken}, {good}")] {
            let text = format!(
                "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: p, namespace: a}}\nspec: {{jwtRules: [{rules}]}}\n"
            );
            let (mesh, diagnostics) = check_text(&text);
            let said = render(&diagnostics);
            assert!(
                said.contains(": error[") && said.contains("V0114"),
                "{said}"
            );
            assert!(said.contains("its other rules are in force"), "{said}");
            let rules = &mesh.request_authentications[0].rules;
            let (good, bad): (Vec<_>, Vec<_>) = rules
                .iter()
                .partition(|rule| matches!(rule.keys, KeySource::Uri(_)));
            assert_eq!(good.len(), 1, "{broken}");
            assert_eq!(&*good[0].issuer, "https://a.example");
            let issuer = |rule: &&TokenRule| match &*rule.issuer {
                "" => "*".to_owned(),
                issuer => issuer.to_owned(),
            };
            let mut found: Vec<String> = bad.iter().map(issuer).collect();
            found.sort();
            assert_eq!(found, *refused, "{broken}");
            let unreadable = KeySource::Inline(UNREADABLE_KEYS.into());
            assert!(bad.iter().all(|rule| rule.keys == unreadable), "{broken}");
        }
    }
}

#[test]
fn a_name_may_have_a_label_of_more_than_63_characters() {
    let long = "x".repeat(200);
    for text in [DENY, TOKENS, PEER] {
        let (mesh, diagnostics) = check_text(&text.replace("name: p", &format!("name: {long}.b")));
        assert!(diagnostics.is_empty(), "{}", render(&diagnostics));
        assert_eq!(in_force(&mesh).len(), 1);
    }
}
