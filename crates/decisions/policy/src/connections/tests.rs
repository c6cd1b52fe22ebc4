//! Tables of how policies about connections match, as in Istio's node proxy.

use super::*;

fn any<T>(values: impl Into<Vec<T>>) -> Matches<T> {
    Matches {
        any_of: values.into(),
        none_of: Vec::new(),
    }
}

fn none<T>(values: impl Into<Vec<T>>) -> Matches<T> {
    Matches {
        any_of: Vec::new(),
        none_of: values.into(),
    }
}

fn exact(found: &str) -> Text {
    Text::Exact(found.into())
}

fn begins(found: &str) -> Text {
    Text::Prefix(found.into())
}

fn range(text: &str) -> Matches<Cidr> {
    any([text.parse().expect("a range")])
}

fn policy(action: ConnectionAction, rules: Vec<Vec<Vec<CallerMatch>>>) -> ConnectionPolicy {
    let clause = |matches| CallerClause { matches };
    let rule = |clauses: Vec<Vec<CallerMatch>>| CallerRule {
        clauses: clauses.into_iter().map(clause).collect(),
    };
    ConnectionPolicy {
        scope: PolicyScope::Namespace("shop".into()),
        action,
        dry_run: false,
        rules: rules.into_iter().map(rule).collect(),
    }
}

fn known(all: &[(&str, ConnectionPolicy)]) -> ConnectionPolicies {
    let mut policies = ConnectionPolicies::default();
    for (name, policy) in all {
        policies.set((*name).into(), policy.clone());
    }
    policies
}

fn client() -> Identity {
    "spiffe://cluster.local/ns/shop/sa/client"
        .parse()
        .expect("an identity")
}

fn authorize(
    policies: &ConnectionPolicies,
    named: &[&str],
    identity: Option<&Identity>,
) -> Result<(), ConnectionDenial> {
    let named: Vec<Arc<str>> = named.iter().map(|name| (*name).into()).collect();
    let subject = PolicySubject {
        namespace: "shop",
        named: &named,
    };
    let caller = CallerFacts {
        identity,
        source: [10, 244, 0, 2].into(),
        destination: ([10, 244, 0, 3], 8080).into(),
    };
    policies.authorize(&subject, &caller).map(drop)
}

/// Result of one match for the client.
fn says(one: CallerMatch) -> (bool, bool) {
    let policies = known(&[(
        "shop/one",
        policy(ConnectionAction::Deny, vec![vec![vec![one]]]),
    )]);
    let client = client();
    let with = authorize(&policies, &[], Some(&client)).is_err();
    (with, authorize(&policies, &[], None).is_err())
}

type Fill = fn(&mut CallerMatch);

/// Checks the result of each match for the client, and for a caller without identity.
fn table(cases: &[(&str, Fill, (bool, bool))]) {
    for (what, fill, wanted) in cases {
        let mut one = CallerMatch::default();
        fill(&mut one);
        assert_eq!(says(one), *wanted, "{what}");
    }
}

#[test]
fn a_match_matches_whom_it_names_and_nobody_else() {
    const CLIENT: &str = "cluster.local/ns/shop/sa/client";
    let yes = (true, false);
    table(&[
        ("nothing said", |_| {}, (false, false)),
        ("principal", |m| m.principals = any([exact(CLIENT)]), yes),
        (
            "with scheme",
            |m| m.principals = any([exact(&format!("spiffe://{CLIENT}"))]),
            (false, false),
        ),
        (
            "prefix",
            |m| m.principals = any([begins("cluster.local/")]),
            yes,
        ),
        ("empty prefix", |m| m.principals = any([begins("")]), yes),
        (
            "suffix",
            |m| m.principals = any([Text::Suffix("/client".into())]),
            yes,
        ),
        (
            "not principal",
            |m| m.principals = none([exact(CLIENT)]),
            (false, true),
        ),
        ("namespace", |m| m.namespaces = any([exact("shop")]), yes),
        (
            "not namespace",
            |m| m.namespaces = none([exact("shop")]),
            (false, true),
        ),
        (
            "other namespace",
            |m| m.namespaces = any([exact("other")]),
            (false, false),
        ),
        (
            "account",
            |m| {
                m.service_accounts = any([ServiceAccountName {
                    namespace: "shop".into(),
                    name: "client".into(),
                }]);
            },
            yes,
        ),
        (
            "STRICT",
            |m| m.principals = none([Text::Present]),
            (false, true),
        ),
    ]);
}

#[test]
fn a_match_matches_where_it_names_and_nowhere_else() {
    let (both, nobody) = ((true, true), (false, false));
    table(&[
        ("source", |m| m.source_ips = range("10.244.0.0/16"), both),
        (
            "other source",
            |m| m.source_ips = range("10.245.0.0/16"),
            nobody,
        ),
        ("odd bits", |m| m.source_ips = range("10.244.0.3/31"), both),
        (
            "odder bits",
            |m| m.source_ips = range("10.244.0.4/31"),
            nobody,
        ),
        ("everywhere", |m| m.source_ips = range("0.0.0.0/0"), both),
        ("other family", |m| m.source_ips = range("::/0"), nobody),
        ("port", |m| m.destination_ports = any([8080]), both),
        ("not port", |m| m.destination_ports = none([8080]), nobody),
        (
            "all of them",
            |m| {
                m.namespaces = any([exact("shop")]);
                m.destination_ports = any([9090]);
            },
            nobody,
        ),
    ]);
}

#[test]
fn rules_are_alternatives_clauses_conditions_and_matches_alternatives_again() {
    let yes = || CallerMatch {
        destination_ports: any([8080]),
        ..CallerMatch::default()
    };
    let no = || CallerMatch {
        destination_ports: any([1]),
        ..CallerMatch::default()
    };
    for (rules, wanted) in [
        (vec![], false),
        (vec![vec![]], true),
        (vec![vec![vec![]]], true),
        (vec![vec![vec![yes()]]], true),
        (vec![vec![vec![no()]]], false),
        (vec![vec![vec![no(), yes()]]], true),
        (vec![vec![vec![yes()], vec![no()]]], false),
        (vec![vec![vec![no()]], vec![vec![yes()]]], true),
        (vec![vec![vec![CallerMatch::default()]]], false),
    ] {
        let text = format!("{rules:?}");
        let policies = known(&[("shop/one", policy(ConnectionAction::Deny, rules))]);
        assert_eq!(authorize(&policies, &[], None).is_err(), wanted, "{text}");
    }
}

fn everybody() -> Vec<Vec<Vec<CallerMatch>>> {
    vec![vec![]]
}

fn by(name: &str) -> Result<(), ConnectionDenial> {
    Err(ConnectionDenial::By(name.into()))
}

#[test]
fn who_is_denied_is_denied_and_who_is_not_allowed_where_somebody_is() {
    let deny = || ("d", policy(ConnectionAction::Deny, everybody()));
    let allow = || ("a", policy(ConnectionAction::Allow, everybody()));
    let allow_nobody = ("a", policy(ConnectionAction::Allow, Vec::new()));
    for (what, all, wanted) in [
        ("none", vec![], Ok(())),
        ("allow all", vec![allow()], Ok(())),
        (
            "allow nobody",
            vec![allow_nobody],
            Err(ConnectionDenial::NotAllowed),
        ),
        ("deny all", vec![deny()], by("d")),
        ("deny before allow", vec![allow(), deny()], by("d")),
    ] {
        assert_eq!(authorize(&known(&all), &[], None), wanted, "{what}");
    }
}

#[test]
fn a_policy_holds_for_whom_it_is_for() {
    type Change = fn(&mut ConnectionPolicy);
    let cases: [(&str, Change, &[&str], _); 5] = [
        ("dry run", |one| one.dry_run = true, &[], Ok(())),
        (
            "not named",
            |one| one.scope = PolicyScope::Named,
            &[],
            Ok(()),
        ),
        (
            "named",
            |one| one.scope = PolicyScope::Named,
            &["d"],
            by("d"),
        ),
        (
            "elsewhere",
            |one| one.scope = PolicyScope::Namespace("elsewhere".into()),
            &[],
            Ok(()),
        ),
        (
            "everywhere",
            |one| one.scope = PolicyScope::Mesh,
            &[],
            by("d"),
        ),
    ];
    for (what, change, names, wanted) in cases {
        let mut one = policy(ConnectionAction::Deny, everybody());
        change(&mut one);
        assert_eq!(
            authorize(&known(&[("d", one)]), names, None),
            wanted,
            "{what}"
        );
    }
    let unknown = authorize(&known(&[]), &["d"], None);
    assert_eq!(unknown, Err(ConnectionDenial::Unknown("d".into())));
}

#[test]
fn a_connection_meets_the_policies_of_its_place_alone_however_many_there_are() {
    let of = |scope| ConnectionPolicy {
        scope,
        ..policy(ConnectionAction::Deny, Vec::new())
    };
    let of_namespace = |namespace: &str| of(PolicyScope::Namespace(namespace.into()));
    let mut policies = known(&[
        ("istio-system/all", of(PolicyScope::Mesh)),
        ("shop/all", of_namespace("shop")),
        ("shop/named", of(PolicyScope::Named)),
        ("shop/other", of(PolicyScope::Named)),
    ]);
    for number in 0..10_000 {
        let namespace = format!("n{number}");
        policies.set(format!("{namespace}/one").into(), of_namespace(&namespace));
    }
    let met = |policies: &ConnectionPolicies, named: &[Arc<str>]| {
        let subject = PolicySubject {
            namespace: "shop",
            named,
        };
        let met = policies.held(&subject).expect("all are known");
        let names = met.iter().map(|(name, _)| name.to_string());
        names.collect::<Vec<_>>()
    };
    let named = ["shop/named".into()];
    let all = ["shop/named", "istio-system/all", "shop/all"];
    assert_eq!(met(&policies, &named), all);
    // A policy that changes its place is no longer met where it was.
    policies.set("shop/all".into(), of(PolicyScope::Mesh));
    assert_eq!(met(&policies, &named), all);
    policies.remove("shop/all");
    policies.remove("istio-system/all");
    assert_eq!(met(&policies, &named), ["shop/named"]);
    assert_eq!(policies.len(), 10_002);
}

#[test]
fn clones_share_policies_that_did_not_change() {
    let global = ConnectionPolicy {
        scope: PolicyScope::Mesh,
        ..policy(ConnectionAction::Deny, Vec::new())
    };
    let mut now = known(&[
        ("shop/all", policy(ConnectionAction::Deny, Vec::new())),
        ("all", global),
    ]);
    let clone = now.clone();
    now.remove("nothing");
    assert!(Arc::ptr_eq(&now.all, &clone.all));
    now.remove("all");
    assert!(Arc::ptr_eq(&now.namespaces, &clone.namespaces));
    assert!(!Arc::ptr_eq(&now.everywhere, &clone.everywhere));
    assert!(clone.contains("all") && !now.contains("all"));
}
