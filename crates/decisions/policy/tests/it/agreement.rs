//! The index says what the naive evaluator says, for any policies and any request: verdict, rule, audit and dry run.

use voile_policy::authorization::{
    Action, AuthorizationOutcome, DenialReason, Engine, Policy, PolicyName, PolicyRule, Verdict,
    naive,
};
use voile_testkit::authorization::{Random, Reached, Scope, policies, request, rule};

/// Sets of policies, and requests tried on each; `VOILE_CASES` multiplies the sets.
const SETS: u64 = 1_500;
const REQUESTS: usize = 20;

fn sets() -> u64 {
    let times = std::env::var("VOILE_CASES").ok();
    SETS * times.and_then(|times| times.parse().ok()).unwrap_or(1)
}

fn agrees(seed: u64, set: &[Policy], random: &mut Random) -> [usize; 3] {
    let engine = Engine::new(set);
    let mut seen = [0; 3];
    for _ in 0..REQUESTS {
        let sent = request(random, Scope::ALL);
        let facts = sent.facts();
        let wanted = naive::decide(set, &facts);
        assert_eq!(
            engine.decide(&facts),
            wanted,
            "seed {seed}: {sent:#?}\n{set:#?}"
        );
        // A CUSTOM rule may match either reading of the request; a second reading counts for CUSTOM rules only.
        let other = request(random, Scope::ALL);
        let came = match (facts.http, other.facts().http) {
            (Some(_), Some(http)) => voile_policy::authorization::RequestFacts {
                http: Some(http),
                ..facts
            },
            _ => facts,
        };
        let twice = naive::decide_with(set, &facts, Some(&came));
        assert_eq!(
            engine.decide_with(&facts, Some(&came)),
            twice,
            "seed {seed}: {sent:#?}\n{other:#?}\n{set:#?}"
        );
        let asks = |outcome: &AuthorizationOutcome| match &outcome.verdict {
            Verdict::Ask(ask) => Some(ask.rule()),
            Verdict::Denied(denial) if denial.reason == DenialReason::SeveralProviders => {
                denial.rule
            }
            Verdict::Allowed(_) | Verdict::Denied(_) => None,
        };
        let either = asks(&wanted).or_else(|| asks(&naive::decide(set, &came)));
        assert_eq!(asks(&twice), either, "seed {seed}: asked if either matches");
        seen[match wanted.verdict {
            Verdict::Allowed(_) => 0,
            Verdict::Denied(_) => 1,
            Verdict::Ask(_) => 2,
        }] += 1;
    }
    seen
}

#[test]
fn the_index_decides_as_the_naive_evaluator_does() {
    let mut seen = [0; 3];
    for seed in 0..sets() {
        let mut random = Random::new(seed);
        let set = policies(&mut random, Scope::ALL, 12);
        let these = agrees(seed, &set, &mut random);
        seen.iter_mut()
            .zip(these)
            .for_each(|(all, these)| *all += these);
    }
    // A generator that no longer reaches one of the verdicts proves nothing about it.
    let total = seen.iter().sum::<usize>();
    assert!(
        seen.iter().all(|count| count * 20 > total),
        "{seen:?} of {total}"
    );
}

#[test]
fn the_generator_reaches_every_field_and_matcher() {
    // So often each, at least.
    const LEAST: usize = 10;
    let mut reached = Reached::default();
    for seed in 0..sets() * 3 {
        let set = policies(&mut Random::new(seed), Scope::ALL, 12);
        set.iter().for_each(|policy| reached.policy(policy));
    }
    assert_eq!(reached.missing(LEAST), Vec::<String>::new());
    assert_eq!(reached.unheard_of(), Vec::<&String>::new());
}

/// The verdict (allowed, denied, ask), the policy and rule that decided, and the reason of a denial.
fn by_name(
    set: &[Policy],
    verdict: &Verdict,
) -> (u8, Option<(PolicyName, u32)>, Option<DenialReason>) {
    let (kind, rule, reason) = match verdict {
        Verdict::Allowed(permit) => (0, permit.rule(), None),
        Verdict::Denied(denial) => (1, denial.rule, Some(denial.reason)),
        Verdict::Ask(ask) => (2, Some(ask.rule()), None),
    };
    let named = rule.map(|rule| (set[rule.policy as usize].name.clone(), rule.rule));
    (kind, named, reason)
}

#[test]
fn what_is_only_tried_out_changes_no_verdict() {
    let mut tried = 0;
    for seed in 0..sets() {
        let mut random = Random::new(seed + 4_000_000);
        let set = policies(&mut random, Scope::ALL, 12);
        let enforced: Vec<Policy> = set.iter().filter(|one| !one.dry_run).cloned().collect();
        tried += usize::from(enforced.len() < set.len());
        let (all, only) = (Engine::new(&set), Engine::new(&enforced));
        for _ in 0..REQUESTS {
            let sent = request(&mut random, Scope::ALL);
            let facts = sent.facts();
            assert_eq!(
                by_name(&set, &all.decide(&facts).verdict),
                by_name(&enforced, &only.decide(&facts).verdict),
                "seed {seed}: {sent:#?}\n{set:#?}"
            );
        }
    }
    assert!(tried > 100, "{tried} sets had any");
}

#[test]
fn many_rules_that_are_alike_are_decided_as_the_naive_evaluator_does() {
    for seed in 0..sets() / 50 {
        let mut random = Random::new(seed + 1_000_000);
        let policy = |random: &mut Random, action, number| Policy {
            name: PolicyName {
                namespace: "shop".into(),
                name: format!("p{number}").into(),
            },
            origin: None,
            action,
            dry_run: false,
            rules: (0..60 + random.below(200))
                .map(|_| rule(random, Scope::ALL))
                .collect(),
        };
        let set = [
            policy(&mut random, Action::Allow, 0),
            policy(&mut random, Action::Deny, 1),
        ];
        agrees(seed, &set, &mut random);
    }
}

/// Only requests that are allowed without asking a provider.
fn allowed(set: &[Policy], sent: &voile_testkit::authorization::Sent) -> bool {
    matches!(
        Engine::new(set).decide(&sent.facts()).verdict,
        Verdict::Allowed(_)
    )
}

#[test]
fn another_allow_rule_never_takes_and_another_deny_never_gives() {
    let mut changed = [0; 2];
    for seed in 0..sets() / 2 {
        let mut random = Random::new(seed + 2_000_000);
        let mut set = policies(&mut random, Scope::ALL, 6);
        let sent = request(&mut random, Scope::ALL);
        let more = rule(&mut random, Scope::ALL);
        let before = allowed(&set, &sent);
        for policy in &mut set {
            if !policy.dry_run && matches!(policy.action, Action::Allow | Action::Deny) {
                policy.rules.push(more.clone());
                let (after, allow) = (
                    allowed(std::slice::from_ref(policy), &sent),
                    policy.action == Action::Allow,
                );
                policy.rules.pop();
                let alone = allowed(std::slice::from_ref(policy), &sent);
                match allow {
                    true => assert!(!alone || after, "seed {seed}"),
                    false => assert!(alone || !after, "seed {seed}"),
                }
                changed[usize::from(allow)] += usize::from(alone != after);
            }
        }
        for action in [Action::Allow, Action::Deny] {
            let allow = action == Action::Allow;
            let Some(at) = set
                .iter()
                .position(|policy| policy.action == action && !policy.dry_run)
            else {
                continue;
            };
            set[at].rules.push(more.clone());
            let after = allowed(&set, &sent);
            set[at].rules.pop();
            assert!(
                if allow {
                    !before || after
                } else {
                    before || !after
                },
                "seed {seed}"
            );
        }
    }
    assert!(changed.iter().all(|count| *count > 20), "{changed:?}");
}

#[test]
fn another_deny_policy_never_gives_and_the_first_allow_policy_never_does_either() {
    let mut changed = [0; 3];
    for seed in 0..sets() / 2 {
        let mut random = Random::new(seed + 4_000_000);
        let set = policies(&mut random, Scope::ALL, 6);
        let sent = request(&mut random, Scope::ALL);
        let before = allowed(&set, &sent);
        for action in [Action::Deny, Action::Allow] {
            let alike = |policy: &Policy| policy.action == action && !policy.dry_run;
            let first = !set.iter().any(alike);
            let gives = action == Action::Allow && !first;
            let more = Policy {
                name: PolicyName {
                    namespace: "shop".into(),
                    name: "more".into(),
                },
                origin: None,
                action: action.clone(),
                dry_run: false,
                rules: vec![rule(&mut random, Scope::ALL)],
            };
            // The new policy may stand at any position among the others.
            let mut with = set.clone();
            with.insert(random.below(set.len() + 1), more);
            let after = allowed(&with, &sent);
            match gives {
                true => assert!(!before || after, "seed {seed}"),
                false => assert!(before || !after, "seed {seed}"),
            }
            let case = match (gives, first && action == Action::Allow) {
                (true, _) => 0,
                (_, true) => 1,
                _ => 2,
            };
            changed[case] += usize::from(before != after);
        }
    }
    assert!(changed.iter().all(|count| *count > 10), "{changed:?}");
}

/// A rule that only excludes: every value of some random rules, as an excluded one.
fn excluding(random: &mut Random) -> PolicyRule {
    let mut when = Vec::new();
    for _ in 0..=random.below(2) {
        let drawn = rule(random, Scope::ALL);
        for term in drawn.terms() {
            let mut term = term.clone();
            term.none.append(&mut term.any);
            when.push(term);
        }
    }
    PolicyRule {
        when,
        ..PolicyRule::default()
    }
}

#[test]
fn rules_that_only_exclude_are_decided_as_the_naive_evaluator_does() {
    for seed in 0..sets() / 25 {
        let mut random = Random::new(seed + 3_000_000);
        let rules = (0..20 + random.below(300)).map(|_| excluding(&mut random));
        // One that excludes nothing would let everything pass.
        let rules = rules.filter(|rule| !rule.when.is_empty()).collect();
        let policy = Policy {
            name: PolicyName {
                namespace: "shop".into(),
                name: "p".into(),
            },
            origin: None,
            action: Action::Allow,
            dry_run: false,
            rules,
        };
        agrees(seed, &[policy], &mut random);
    }
}
