//! Policies as the control plane sends them: none of a set is obeyed before all are held, they are compiled once for all
//! workers, and a change compiles them again.

use voile_policy::authorization::{HttpFacts, NoHeaders, RequestFacts, Verdict};

use super::*;
use crate::plan::ProxyPlan;
use crate::registry::CompiledPolicies;

/// A policy that allows paths of one stem.
fn allow(name: &str, stem: &str, rules: usize) -> (String, Vec<u8>) {
    let rule = |number| proxy::AuthorizationRule {
        to: vec![proxy::AuthorizationOperation {
            paths: Some(proxy::Matches {
                values: vec![format!("/{stem}/{number}")],
                not_values: Vec::new(),
            }),
            ..proxy::AuthorizationOperation::default()
        }],
        ..proxy::AuthorizationRule::default()
    };
    let body = proxy::AuthorizationPolicy {
        action: proxy::AuthorizationAction::Allow.into(),
        rules: (0..rules).map(rule).collect(),
        ..proxy::AuthorizationPolicy::default()
    };
    (format!("{SHOP}/{name}"), body.encode_to_vec())
}

/// Puts a policy in, in a version that its bytes decide.
fn hold(registry: &mut Registry, policy: &(String, Vec<u8>)) {
    let (name, body) = policy;
    let version = version(body);
    registry
        .add(
            type_url::AUTHORIZATION_POLICY,
            &(&**name).into(),
            &version.into(),
            body,
        )
        .expect("a good policy");
}

fn version(body: &[u8]) -> String {
    let sum = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
    body.iter().fold(0, sum).to_string()
}

/// A configuration that names these policies.
fn obey(registry: &mut Registry, policies: &[&(String, Vec<u8>)]) {
    let reference = |(name, body): &(String, Vec<u8>)| proxy::PolicyReference {
        name: name.clone(),
        version: version(body),
    };
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        authorization_policies: policies.iter().map(|policy| reference(policy)).collect(),
        ..proxy::ProxyConfiguration::default()
    };
    let body = configuration.encode_to_vec();
    put(registry, type_url::PROXY_CONFIGURATION, "shop/own", &body);
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    let own = (type_url::ADDRESS, "own".into());
    registry.absent.insert(own);
    registry
}

fn plan(registry: &Registry) -> ProxyPlan {
    registry.plan().expect("a closed state")
}

#[test]
fn policies_are_compiled_once_whoever_asks() {
    let mut registry = registry();
    let (one, two) = (allow("one", "a", 3), allow("two", "b", 3));
    hold(&mut registry, &one);
    hold(&mut registry, &two);
    obey(&mut registry, &[&one, &two]);
    let first = plan(&registry);
    // Plans are equal only where they share what was compiled: each worker gets a pointer to it.
    assert_eq!(first.authorization, plan(&registry).authorization);
    assert_eq!(first, first.clone());

    let other = allow("two", "c", 3);
    hold(&mut registry, &other);
    assert!(
        registry.plan().is_none(),
        "the configuration wants the version before"
    );
    obey(&mut registry, &[&one, &other]);
    assert_ne!(first.authorization, plan(&registry).authorization);
    obey(&mut registry, &[]);
    assert_eq!(plan(&registry).authorization, None);
}

#[test]
fn many_policies_are_work_for_another_thread_and_few_are_not() {
    let mut registry = registry();
    let (few, many) = (allow("few", "a", 10), allow("many", "b", 2_000));
    hold(&mut registry, &few);
    obey(&mut registry, &[&few]);
    assert!(registry.work().is_none());

    obey(&mut registry, &[&few, &many]);
    assert!(registry.work().is_none(), "not all is held");
    hold(&mut registry, &many);
    let work = registry.work().expect("work");
    let done = std::thread::spawn(move || work.done())
        .join()
        .expect("done");
    registry.authorization.keep(done);
    assert!(registry.work().is_none());
    let first = plan(&registry);
    assert!(first.authorization.is_some());
    assert_eq!(first.authorization, plan(&registry).authorization);

    // Outdated work does not replace the wanted policies.
    let stale = {
        obey(&mut registry, &[&many]);
        registry.work().expect("work")
    };
    obey(&mut registry, &[&many, &few]);
    let done: CompiledPolicies = stale.done();
    registry.authorization.keep(done);
    assert!(registry.work().is_some());
    // A caller that cannot wait any longer compiles them itself.
    assert_ne!(plan(&registry).authorization, first.authorization);
    assert!(registry.work().is_none());
}

#[test]
fn a_policy_that_cannot_be_read_leaves_the_last_good_one_and_denies_all_where_there_is_none() {
    let mut registry = registry();
    let (good, other) = (allow("one", "a", 1), allow("one", "b", 1));
    let spoilt = |(name, body): &(String, Vec<u8>)| (name.clone(), [&body[..], &[0xff]].concat());
    let spoil = |registry: &mut Registry, policy: &(String, Vec<u8>)| {
        let (name, body) = policy;
        let version = version(body).into();
        let kind = type_url::AUTHORIZATION_POLICY;
        let refused = registry.add(kind, &(&**name).into(), &version, body);
        assert!(refused.is_err(), "it cannot be read");
    };
    hold(&mut registry, &good);
    let broken = spoilt(&other);
    spoil(&mut registry, &broken);
    obey(&mut registry, &[&broken]);
    let passes = |registry: &Registry, path: &str| {
        let policies = plan(registry).authorization.expect("policies");
        let local = "127.0.0.1".parse().expect("an address");
        let facts = RequestFacts {
            source: None,
            source_ip: local,
            remote_ip: local,
            destination: (local, 80).into(),
            sni: None,
            http: Some(HttpFacts {
                authority: Some(b"shop"),
                method: b"GET",
                path: path.as_bytes(),
                headers: &NoHeaders,
                claims: None,
            }),
        };
        let verdict = policies.decide(&facts, None).verdict;
        matches!(verdict, Verdict::Allowed(_))
    };
    let all = |registry: &Registry| ["/a/0", "/b/0"].map(|path| passes(registry, path));
    assert_eq!(all(&registry), [true, false], "the last good one");

    let never_good = spoilt(&allow("two", "b", 1));
    spoil(&mut registry, &never_good);
    obey(&mut registry, &[&broken, &never_good]);
    assert_eq!(all(&registry), [false, false], "nothing was good before");
}
