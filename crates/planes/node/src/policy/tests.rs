//! Tables of how policies match, as in Istio's node proxy.

use super::*;

fn text(kind: MatchType) -> wire::StringMatch {
    wire::StringMatch {
        match_type: Some(kind),
    }
}

fn exact(found: &str) -> wire::StringMatch {
    text(MatchType::Exact(found.to_owned()))
}

fn begins(found: &str) -> wire::StringMatch {
    text(MatchType::Prefix(found.to_owned()))
}

fn range(octets: &[u8], length: u32) -> wire::Address {
    wire::Address {
        address: octets.to_vec(),
        length,
    }
}

fn policy(action: wire::Action, rules: Vec<Vec<Vec<wire::Match>>>) -> wire::Authorization {
    let clause = |matches| wire::Clause { matches };
    let rule = |clauses: Vec<Vec<wire::Match>>| wire::Rule {
        clauses: clauses.into_iter().map(clause).collect(),
    };
    wire::Authorization {
        name: "one".to_owned(),
        namespace: "shop".to_owned(),
        scope: wire::Scope::Namespace.into(),
        action: action.into(),
        rules: rules.into_iter().map(rule).collect(),
        dry_run: false,
    }
}

fn known(all: &[(&str, wire::Authorization)]) -> Policies {
    let mut policies = Policies::default();
    for (name, message) in all {
        let policy = match Policy::decode(&message.encode_to_vec()) {
            Ok(policy) | Err((policy, _)) => policy,
        };
        policies.set((*name).into(), policy);
    }
    policies
}

fn client() -> Identity {
    "spiffe://cluster.local/ns/shop/sa/client"
        .parse()
        .expect("an identity")
}

fn judge(policies: &Policies, named: &[&str], identity: Option<&Identity>) -> Result<(), Denial> {
    let named: Vec<Arc<str>> = named.iter().map(|name| (*name).into()).collect();
    let judged = JudgedConnection {
        namespace: "shop",
        named: &named,
    };
    let caller = PeerAttributes {
        identity,
        source: [10, 244, 0, 2].into(),
        destination: ([10, 244, 0, 3], 8080).into(),
    };
    policies.judge(&judged, &caller)
}

/// Result of one match for the client.
fn says(one: wire::Match) -> (bool, bool) {
    let policies = known(&[(
        "shop/one",
        policy(wire::Action::Deny, vec![vec![vec![one]]]),
    )]);
    let client = client();
    let with = judge(&policies, &[], Some(&client)).is_err();
    (with, judge(&policies, &[], None).is_err())
}

type Fill = fn(&mut wire::Match);

/// Checks the result of each match for the client, and for a caller without identity.
fn table(cases: &[(&str, Fill, (bool, bool))]) {
    for (what, fill, wanted) in cases {
        let mut one = wire::Match::default();
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
        ("principal", |m| m.principals = vec![exact(CLIENT)], yes),
        (
            "with scheme",
            |m| m.principals = vec![exact(&format!("spiffe://{CLIENT}"))],
            (false, false),
        ),
        (
            "prefix",
            |m| m.principals = vec![begins("cluster.local/")],
            yes,
        ),
        ("empty prefix", |m| m.principals = vec![begins("")], yes),
        (
            "suffix",
            |m| m.principals = vec![text(MatchType::Suffix("/client".into()))],
            yes,
        ),
        (
            "not principal",
            |m| m.not_principals = vec![exact(CLIENT)],
            (false, true),
        ),
        ("namespace", |m| m.namespaces = vec![exact("shop")], yes),
        (
            "not namespace",
            |m| m.not_namespaces = vec![exact("shop")],
            (false, true),
        ),
        (
            "other namespace",
            |m| m.namespaces = vec![exact("other")],
            (false, false),
        ),
        (
            "account",
            |m| {
                m.service_accounts = vec![wire::ServiceAccountMatch {
                    namespace: "shop".into(),
                    service_account: "client".into(),
                }];
            },
            yes,
        ),
        (
            "STRICT",
            |m| m.not_principals = vec![text(MatchType::Presence(()))],
            (false, true),
        ),
    ]);
}

#[test]
fn a_match_matches_where_it_names_and_nowhere_else() {
    let (both, nobody) = ((true, true), (false, false));
    table(&[
        (
            "source",
            |m| m.source_ips = vec![range(&[10, 244, 0, 0], 16)],
            both,
        ),
        (
            "other source",
            |m| m.source_ips = vec![range(&[10, 245, 0, 0], 16)],
            nobody,
        ),
        (
            "odd bits",
            |m| m.source_ips = vec![range(&[10, 244, 0, 3], 31)],
            both,
        ),
        (
            "odder bits",
            |m| m.source_ips = vec![range(&[10, 244, 0, 4], 31)],
            nobody,
        ),
        (
            "everywhere",
            |m| m.source_ips = vec![range(&[0; 4], 0)],
            both,
        ),
        (
            "other family",
            |m| m.source_ips = vec![range(&[0; 16], 0)],
            nobody,
        ),
        ("port", |m| m.destination_ports = vec![8080], both),
        ("not port", |m| m.not_destination_ports = vec![8080], nobody),
        (
            "all of them",
            |m| {
                m.namespaces = vec![exact("shop")];
                m.destination_ports = vec![9090];
            },
            nobody,
        ),
    ]);
}

#[test]
fn rules_are_alternatives_clauses_conditions_and_matches_alternatives_again() {
    let yes = || wire::Match {
        destination_ports: vec![8080],
        ..wire::Match::default()
    };
    let no = || wire::Match {
        destination_ports: vec![1],
        ..wire::Match::default()
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
        (vec![vec![vec![wire::Match::default()]]], false),
    ] {
        let text = format!("{rules:?}");
        let policies = known(&[("shop/one", policy(wire::Action::Deny, rules))]);
        assert_eq!(judge(&policies, &[], None).is_err(), wanted, "{text}");
    }
}

fn everybody() -> Vec<Vec<Vec<wire::Match>>> {
    vec![vec![]]
}

fn by(name: &str) -> Result<(), Denial> {
    Err(Denial::By(name.into()))
}

#[test]
fn who_is_denied_is_denied_and_who_is_not_allowed_where_somebody_is() {
    let deny = || ("d", policy(wire::Action::Deny, everybody()));
    let allow = || ("a", policy(wire::Action::Allow, everybody()));
    let allow_nobody = ("a", policy(wire::Action::Allow, Vec::new()));
    for (what, all, wanted) in [
        ("none", vec![], Ok(())),
        ("allow all", vec![allow()], Ok(())),
        ("allow nobody", vec![allow_nobody], Err(Denial::NotAllowed)),
        ("deny all", vec![deny()], by("d")),
        ("deny before allow", vec![allow(), deny()], by("d")),
    ] {
        assert_eq!(judge(&known(&all), &[], None), wanted, "{what}");
    }
}

#[test]
fn a_policy_holds_for_whom_it_is_for() {
    type Change = fn(&mut wire::Authorization);
    let cases: [(&str, Change, &[&str], _); 5] = [
        ("dry run", |one| one.dry_run = true, &[], Ok(())),
        (
            "not named",
            |one| one.scope = wire::Scope::WorkloadSelector.into(),
            &[],
            Ok(()),
        ),
        (
            "named",
            |one| one.scope = wire::Scope::WorkloadSelector.into(),
            &["d"],
            by("d"),
        ),
        (
            "elsewhere",
            |one| one.namespace = "elsewhere".into(),
            &[],
            Ok(()),
        ),
        (
            "everywhere",
            |one| one.scope = wire::Scope::Global.into(),
            &[],
            by("d"),
        ),
    ];
    for (what, change, names, wanted) in cases {
        let mut one = policy(wire::Action::Deny, everybody());
        change(&mut one);
        assert_eq!(judge(&known(&[("d", one)]), names, None), wanted, "{what}");
    }
    let unknown = judge(&known(&[]), &["d"], None);
    assert_eq!(unknown, Err(Denial::Unknown("d".into())));
}

#[test]
fn what_cannot_be_read_closes_whomever_it_is_for() {
    let one = |one: wire::Match| policy(wire::Action::Allow, vec![vec![vec![one]]]);
    let unknown_text = wire::Match {
        principals: vec![wire::StringMatch { match_type: None }],
        ..wire::Match::default()
    };
    let bad_range = wire::Match {
        not_source_ips: vec![range(&[10, 0, 0], 8)],
        ..wire::Match::default()
    };
    let long_range = wire::Match {
        source_ips: vec![range(&[10, 0, 0, 0], 33)],
        ..wire::Match::default()
    };
    let mut bad_action = one(wire::Match::default());
    bad_action.action = 7;
    let mut bad_scope = one(wire::Match::default());
    bad_scope.scope = 7;
    bad_scope.namespace = "elsewhere".to_owned();
    for message in [
        one(unknown_text),
        one(bad_range),
        one(long_range),
        bad_action,
        bad_scope,
    ] {
        let error = Policy::decode(&message.encode_to_vec());
        assert!(error.is_err(), "{message:?}");
        let policies = known(&[("x", message.clone())]);
        assert_eq!(
            judge(&policies, &[], None),
            Err(Denial::By("x".into())),
            "{message:?}"
        );
    }
}

#[test]
fn a_connection_meets_the_policies_of_its_place_alone_however_many_there_are() {
    let of = |scope: wire::Scope, namespace: &str| wire::Authorization {
        scope: scope.into(),
        namespace: namespace.to_owned(),
        ..policy(wire::Action::Deny, Vec::new())
    };
    let mut policies = known(&[
        ("istio-system/all", of(wire::Scope::Global, "istio-system")),
        ("shop/all", of(wire::Scope::Namespace, "shop")),
        ("shop/named", of(wire::Scope::WorkloadSelector, "shop")),
        ("shop/other", of(wire::Scope::WorkloadSelector, "shop")),
    ]);
    for number in 0..10_000 {
        let namespace = format!("n{number}");
        let elsewhere = of(wire::Scope::Namespace, &namespace);
        let policy = Policy::decode(&elsewhere.encode_to_vec()).expect("a policy");
        policies.set(format!("{namespace}/one").into(), policy);
    }
    let met = |policies: &Policies, named: &[Arc<str>]| {
        let judged = JudgedConnection {
            namespace: "shop",
            named,
        };
        let met = policies.held(&judged).map(|(name, _)| name.to_string());
        met.collect::<Vec<_>>()
    };
    let named = ["shop/named".into()];
    let all = ["shop/named", "istio-system/all", "shop/all"];
    assert_eq!(met(&policies, &named), all);
    // A policy that changes its place is no longer met where it was.
    let moved = of(wire::Scope::Global, "istio-system");
    let moved = Policy::decode(&moved.encode_to_vec()).expect("a policy");
    policies.set("shop/all".into(), moved);
    assert_eq!(met(&policies, &named), all);
    policies.remove("shop/all");
    policies.remove("istio-system/all");
    assert_eq!(met(&policies, &named), ["shop/named"]);
    assert_eq!(policies.len(), 10_002);
}

#[test]
fn views_share_policies_that_did_not_change() {
    let global = wire::Authorization {
        scope: wire::Scope::Global.into(),
        ..policy(wire::Action::Deny, Vec::new())
    };
    let mut now = known(&[
        ("shop/all", policy(wire::Action::Deny, Vec::new())),
        ("all", global),
    ]);
    let view = now.clone();
    now.remove("nothing");
    assert!(Arc::ptr_eq(&now.all, &view.all));
    now.remove("all");
    assert!(Arc::ptr_eq(&now.namespaces, &view.namespaces));
    assert!(!Arc::ptr_eq(&now.everywhere, &view.everywhere));
    assert!(view.contains("all") && !now.contains("all"));
}
