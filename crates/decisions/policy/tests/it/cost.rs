//! Cost of a decision in instructions, counted by valgrind, so that it cannot start to grow with the number of rules.
//! Also the memory of the rules. This binary runs itself once more under valgrind; compiling the policies is not
//! counted.
//!
//! The counts are those of the profile under test and repeat exactly. The lab measures time.

use std::collections::BTreeMap;
use std::env;

use voile_policy::authorization::experiment::RuleShape;
use voile_policy::authorization::{Action, Engine, Verdict};
use voile_policy::connections::{
    CallerFacts, CallerRule, ConnectionAction, ConnectionPolicies, ConnectionPolicy, PolicyScope,
    PolicySubject,
};
pub(crate) use voile_testkit::instructions::{
    COUNTED, ORDERS, begin_counting, count, end_counting,
};

/// Rules that are many. The whole of it takes two minutes in the release profile, and far longer in this one:
/// `VOILE_RULES=10000 cargo test --release -p voile-policy --test it cost -- --nocapture`.
const MANY: usize = 300;
const FEW: usize = 10;
/// Allowed cost of a decision among many rules, in percent of the cost among few. The promise is a fifth more; for
/// kinds of a few hundred instructions that is not noticeable.
pub(crate) const GROWTH_PERCENT: u64 = 120;

const SUBJECT: &str = "cost::subject";

fn many() -> usize {
    let rules = env::var("VOILE_RULES").ok();
    rules.and_then(|rules| rules.parse().ok()).unwrap_or(MANY)
}

/// A set of policies and which of its rules a request hits.
type Case = (RuleShape, usize, usize, Option<usize>);

/// Every case: kind, rules, policies, the rule that is hit.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in RuleShape::ALL {
        for rules in [FEW, many()] {
            for hit in [Some(0), Some(rules - 1), None] {
                cases.push((*kind, rules, 1, hit));
            }
        }
    }
    for policies in [1, many() / 5] {
        for hit in [Some(0), None] {
            cases.push((RuleShape::Path, many(), policies, hit));
        }
    }
    cases
}

fn place(hit: Option<usize>) -> &'static str {
    match hit {
        Some(0) => "first",
        Some(_) => "last",
        None => "miss",
    }
}

#[test]
fn a_decision_costs_no_more_among_many_rules_than_among_ten() {
    let Some(counts) = count(SUBJECT, cases().len()) else {
        return;
    };
    let mut few = BTreeMap::new();
    let mut grown = Vec::new();
    for ((kind, rules, policies, hit), count) in cases().into_iter().zip(counts) {
        let case = format!("{kind:?} {}", place(hit));
        println!("{case}: {rules} rules in {policies} policies, {count} instructions");
        // Mixed rules have more tables when there are more of them: they have a bound of their own.
        let bound = match kind {
            RuleShape::Mixed => 45_000,
            _ => *few.entry(case.clone()).or_insert(count) * GROWTH_PERCENT / 100,
        };
        if count > bound {
            grown.push(format!(
                "{case}: {count} instructions for {rules} rules in {policies}, {bound} were enough"
            ));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}

/// The process that is counted.
#[test]
#[ignore = "the test above runs it under valgrind"]
fn subject() {
    if env::var(ORDERS).is_err() {
        return;
    }
    let mut built: Option<((RuleShape, usize, usize), Engine)> = None;
    for (kind, rules, policies, hit) in cases() {
        let key = (kind, rules, policies);
        if built.as_ref().is_none_or(|(known, _)| *known != key) {
            built = Some((
                key,
                Engine::new(&kind.policies(rules, policies, &Action::Allow)),
            ));
        }
        let engine = &built.as_ref().expect("built").1;
        let request = kind.request(hit);
        let facts = request.facts();
        begin_counting();
        for _ in 0..COUNTED {
            let verdict = engine.decide(std::hint::black_box(&facts)).verdict;
            assert_eq!(matches!(verdict, Verdict::Allowed(_)), hit.is_some());
        }
        end_counting();
    }
}

/// Sets that are compiled: policies, and rules of all of them.
fn compiled() -> [(usize, usize); 4] {
    [
        (1, many()),
        (1, 4 * many()),
        (many(), many()),
        (4 * many(), 4 * many()),
    ]
}

const COMPILES: &str = "cost::compiles";

/// A change of one policy compiles all of its workload's anew, which is bearable as long as it costs no more for each when there
/// are more of them.
#[test]
fn compiling_costs_as_much_for_each_rule_however_many_there_are() {
    let Some(counts) = count(COMPILES, compiled().len()) else {
        return;
    };
    let counts: Vec<u64> = counts.iter().map(|count| count * COUNTED).collect();
    for ((policies, rules), count) in compiled().into_iter().zip(&counts) {
        println!("{rules} rules in {policies} policies are compiled in {count} instructions");
    }
    for pair in counts.chunks(2) {
        let bound = 4 * pair[0] * GROWTH_PERCENT / 100;
        assert!(pair[1] <= bound, "{pair:?}");
    }
    let bound = 2 * counts[1];
    assert!(counts[3] <= bound, "policies of one rule: {counts:?}");
}

/// The process that is counted.
#[test]
#[ignore = "the test above runs it under valgrind"]
fn compiles() {
    if env::var(ORDERS).is_err() {
        return;
    }
    for (policies, rules) in compiled() {
        let set = RuleShape::Path.policies(rules, policies, &Action::Allow);
        begin_counting();
        let engine = Engine::new(std::hint::black_box(&set));
        end_counting();
        assert!(!engine.is_empty());
    }
}

const CONNECTIONS: &str = "cost::connections";

/// Policies of other namespaces, and of other workloads of the same one.
const ELSEWHERE: [usize; 2] = [10, 10_000];

#[test]
fn a_connection_costs_the_same_however_many_policies_hold_elsewhere() {
    let Some(counts) = count(CONNECTIONS, ELSEWHERE.len()) else {
        return;
    };
    for (policies, count) in ELSEWHERE.iter().zip(&counts) {
        println!("a connection among {policies} policies elsewhere: {count} instructions");
    }
    assert!(counts[1] <= counts[0] * GROWTH_PERCENT / 100, "{counts:?}");
}

/// The process that is counted.
#[test]
#[ignore = "the test above runs it under valgrind"]
fn connections() {
    if env::var(ORDERS).is_err() {
        return;
    }
    let identity = "spiffe://cluster.local/ns/shop/sa/client".parse();
    let identity = identity.expect("an identity");
    let subject = PolicySubject {
        namespace: "shop",
        named: &["shop/named".into()],
    };
    let caller = CallerFacts {
        identity: Some(&identity),
        source: [10, 244, 0, 2].into(),
        destination: ([10, 244, 0, 3], 8080).into(),
    };
    for case in 0..ELSEWHERE.len() {
        // Valgrind counts a little of what is built before, so that is the same each time.
        let policies = &ELSEWHERE.map(policies_elsewhere)[case];
        begin_counting();
        for _ in 0..COUNTED {
            let permit = policies.authorize(std::hint::black_box(&subject), &caller);
            assert!(permit.is_ok());
        }
        end_counting();
    }
}

/// Three policies that a connection meets, and so many that it does not.
fn policies_elsewhere(elsewhere: usize) -> ConnectionPolicies {
    let mut policies = ConnectionPolicies::default();
    let mut set = |name: String, scope| {
        let clauses = Vec::new();
        let allow = ConnectionPolicy {
            action: ConnectionAction::Allow,
            rules: vec![CallerRule { clauses }],
            ..ConnectionPolicy::closing(scope)
        };
        policies.set(name.into(), allow);
    };
    for number in 0..elsewhere / 2 {
        let namespace = format!("n{number:05}");
        set(
            format!("{namespace}/all"),
            PolicyScope::Namespace(namespace.into()),
        );
        set(format!("shop/p{number:05}"), PolicyScope::Named);
    }
    set("shop/all".to_owned(), PolicyScope::Namespace("shop".into()));
    set("shop/named".to_owned(), PolicyScope::Named);
    set("istio-system/all".to_owned(), PolicyScope::Mesh);
    policies
}

#[test]
fn ten_thousand_path_rules_take_less_than_two_megabytes() {
    for kind in [
        RuleShape::Path,
        RuleShape::PathPrefix,
        RuleShape::PathSuffix,
        RuleShape::PathTemplate,
        RuleShape::NotPath,
    ] {
        for action in [Action::Allow, Action::Deny] {
            let engine = Engine::new(&kind.policies(10_000, 1, &action));
            let memory = engine.memory();
            println!("{kind:?} {action:?}: {memory} bytes");
            assert!(memory <= 2_000_000, "{kind:?} {action:?}: {memory} bytes");
        }
    }
}

#[test]
fn rules_shared_by_policies_are_kept_once() {
    let one = RuleShape::Path.policies(1_000, 1, &Action::Allow);
    let twice = [one.clone(), one.clone()].concat();
    let (one, twice) = (Engine::new(&one).memory(), Engine::new(&twice).memory());
    assert!(twice < one + one / 20, "{one} {twice}");
}
