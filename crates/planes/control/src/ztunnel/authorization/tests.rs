//! Compares a node proxy's decision by a translated policy with the meaning of the policy. They are equal if no attribute
//! is reported, and the translation is stricter, never wider, otherwise. `explain` knows either decision
//! (`Policy::limit_to_connections`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use prost::Message as _;
use voile_model::{Identity, Namespace, ResourceName};
use voile_policy::authorization::{
    Attribute, PolicyName, PolicyRule, RequestFacts, Term, Terms, naive,
};
use voile_policy::connections::{
    CallerFacts, ConnectionAction, ConnectionPolicies, ConnectionPolicy, PolicyScope,
    PolicySubject, lower,
};
use voile_xds::wire::{decode_connection_policy, encode_connection_policy};

use super::*;

/// The node proxy's own reading of a policy, as it comes over the wire.
fn matches(policy: &ConnectionPolicy, facts: &RequestFacts<'_>) -> bool {
    let name = ResourceName::new(Namespace::new("shop").expect("a namespace"), "p");
    let message = encode_connection_policy(&name, policy);
    let read = decode_connection_policy(&message.encode_to_vec());
    let read = read.expect("it can be read");
    assert_eq!(read, *policy);
    let mut policies = ConnectionPolicies::default();
    policies.set("shop/p".into(), read);
    let subject = PolicySubject {
        namespace: "shop",
        named: &[],
    };
    let caller = CallerFacts {
        identity: facts.source,
        source: facts.source_ip,
        destination: facts.destination,
    };
    let permitted = policies.authorize(&subject, &caller).is_ok();
    permitted == (policy.action == ConnectionAction::Allow)
}

fn term(attribute: Attribute, any: &[&str], none: &[&str]) -> Term {
    Term::parse(attribute, "shop", any, none).expect("values")
}

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

/// Small enough to be looked at whole, random enough to meet what nobody thought of.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        // Knuth's multiplier; the high bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn some<'a>(&mut self, of: &[&'a str]) -> Vec<&'a str> {
        let count = self.below(3);
        (0..count).map(|_| of[self.below(of.len())]).collect()
    }

    fn term(&mut self, kinds: &[(Attribute, &[&'static str])]) -> Term {
        let (attribute, values) = &kinds[self.below(kinds.len())];
        let (any, none) = (self.some(values), self.some(values));
        term(attribute.clone(), &any, &none)
    }

    fn terms(&mut self, kinds: &[(Attribute, &[&'static str])]) -> Terms {
        let count = self.below(3);
        let mut terms = Terms::new();
        for _ in 0..count {
            let one = self.term(kinds);
            // As in a resource: each field once, and none that says nothing.
            if !one.is_empty() && terms.iter().all(|other| other.attribute != one.attribute) {
                terms.push(one);
            }
        }
        terms
    }

    fn rule(&mut self) -> PolicyRule {
        let (from, to) = (self.below(3), self.below(3));
        PolicyRule {
            from: (0..from).map(|_| self.terms(&sources())).collect(),
            to: (0..to).map(|_| self.terms(&operations())).collect(),
            when: self.terms(&sources()),
        }
    }
}

fn sources() -> Vec<(Attribute, &'static [&'static str])> {
    vec![
        (
            Attribute::SourcePrincipal,
            &[
                "mesh/ns/shop/sa/a",
                "mesh/ns/shop/*",
                "*/sa/b",
                "*",
                "old/*",
            ],
        ),
        (
            Attribute::SourceNamespace,
            &[
                "shop", "sh*", "*op", "*", "o*er", "other", "*a", "*x", "s*", "sa",
            ],
        ),
        (Attribute::SourceServiceAccount, &["a", "other/b"]),
        (
            Attribute::SourceTrustDomain,
            &["mesh", "me*", "*", "*sh", "*x"],
        ),
        (Attribute::SourceIp, &["10.0.0.0/8", "10.1.0.7", "fd00::/8"]),
        (Attribute::DestinationIp, &["10.9.0.1", "0.0.0.0/0"]),
        (Attribute::RemoteIp, &["10.0.0.0/8"]),
        (Attribute::RequestPrincipal, &["iss/sub"]),
        (Attribute::Sni, &["a.example"]),
    ]
}

fn operations() -> Vec<(Attribute, &'static [&'static str])> {
    vec![
        (Attribute::DestinationPort, &["80", "8080"]),
        (Attribute::Method, &["GET", "P*"]),
        (Attribute::Path, &["/a", "/b*"]),
        (Attribute::Host, &["shop.example"]),
    ]
}

fn callers() -> Vec<Option<Identity>> {
    let named = [
        "spiffe://mesh/ns/shop/sa/a",
        "spiffe://mesh/ns/shop/sa/b",
        "spiffe://mesh/ns/other/sa/b",
        "spiffe://old/ns/shop/sa/a",
        // Their sidecars find `sa` and `ns` where a namespace may stand.
        "spiffe://mesh/ns/ns/sa/a",
        "spiffe://ns/ns/area/sa/x",
    ];
    let named = named.map(|id| Some(id.parse().expect("an identity")));
    named.into_iter().chain([None]).collect()
}

/// Each connection with its HTTP request left out: that is what a node proxy sees.
fn connections(mut see: impl FnMut(&RequestFacts<'_>)) {
    for source in callers() {
        for from in ["10.1.0.7", "192.0.2.1", "fd00::1"] {
            for port in [80, 8080, 9000] {
                let from: IpAddr = from.parse().expect("an address");
                see(&RequestFacts {
                    source: source.as_ref(),
                    source_ip: from,
                    remote_ip: from,
                    destination: SocketAddr::new(Ipv4Addr::new(10, 9, 0, 1).into(), port),
                    sni: None,
                    http: None,
                });
            }
        }
    }
}

/// Envoy's reading of a namespace is wider than the word: `*a` ends `shop/sa`, too.
fn compare_namespaces_alone(policy: &mut Policy) {
    for rule in &mut policy.rules {
        let sources = rule.from.iter_mut().flatten();
        for term in sources.chain(&mut rule.when) {
            if term.attribute == Attribute::SourceNamespace {
                term.attribute = Attribute::PeerNamespace;
            }
        }
    }
}

#[test]
fn a_translated_policy_means_the_same_or_is_stricter_and_says_so() {
    let mut dice = Dice(7);
    let (mut exact, mut stricter) = (0, 0);
    for number in 0..4_000 {
        let action = [Action::Allow, Action::Deny, Action::Audit][dice.below(3)].clone();
        let rules = dice.below(3);
        let policy = policy(action.clone(), (0..rules).map(|_| dice.rule()).collect());
        let (lowered, unseen) = lower(&policy, PolicyScope::Namespace("shop".into()));
        let problems = problems(&policy, &unseen);
        let (mut limited, mut literal) = (policy.clone(), policy.clone());
        limited.limit_to_connections();
        let unknown = limited.rules.iter().flat_map(PolicyRule::terms);
        let mut unknown = unknown.filter(|term| !term.attribute.is_answerable());
        let reported = action == Action::Audit || unknown.next().is_some();
        assert_eq!(reported, !problems.is_empty(), "{policy:#?}");
        compare_namespaces_alone(&mut literal);
        connections(|facts| {
            let meant = naive::matching(&literal, facts).is_some();
            let kept = matches(&lowered, facts);
            let explained = naive::matching(&limited, facts).is_some();
            assert_eq!(explained, kept, "{number}: {policy:#?}\n{facts:?}");
            if problems.is_empty() {
                exact += 1;
                assert_eq!(
                    kept, meant,
                    "{number}: {policy:#?}\n{facts:?}\n{lowered:#?}"
                );
                return;
            }
            stricter += 1;
            let wider = match action {
                Action::Deny => meant && !kept,
                _ => kept && !meant,
            };
            assert!(!wider, "{number}: {policy:#?}\n{facts:?}\n{lowered:#?}");
        });
    }
    assert!(exact > 10_000 && stricter > 10_000, "{exact} {stricter}");
}

/// `policy` as one line of what is said: problems, then whether a caller of `shop/b` on port 80 is matched.
fn shown(action: Action, rule: PolicyRule) -> (Vec<String>, bool) {
    let policy = policy(action, vec![rule]);
    let (lowered, unseen) = lower(&policy, PolicyScope::Mesh);
    let caller = callers().swap_remove(1);
    let facts = RequestFacts {
        source: caller.as_ref(),
        source_ip: Ipv4Addr::new(10, 1, 0, 7).into(),
        remote_ip: Ipv4Addr::new(10, 1, 0, 7).into(),
        destination: SocketAddr::from(([10, 9, 0, 1], 80)),
        sni: None,
        http: None,
    };
    (problems(&policy, &unseen), matches(&lowered, &facts))
}

#[test]
fn what_only_requests_can_tell_fails_closed_and_is_named() {
    let method = || vec![term(Attribute::Method, &["GET"], &[])];
    let port = || vec![term(Attribute::DestinationPort, &["80"], &[])];
    let with = |from: Vec<Terms>, to: Vec<Terms>| PolicyRule {
        from,
        to,
        when: Vec::new(),
    };
    let someone = || {
        vec![vec![term(
            Attribute::SourcePrincipal,
            &["mesh/ns/shop/sa/b"],
            &[],
        )]]
    };
    // Istio's translation would let the first three match nothing.
    for (action, rule, hit) in [
        (Action::Deny, with(Vec::new(), vec![method()]), true),
        (Action::Deny, with(someone(), vec![method()]), true),
        (Action::Deny, with(someone(), vec![method(), port()]), true),
        (Action::Allow, with(someone(), vec![method()]), false),
        (
            Action::Allow,
            with(someone(), vec![method(), port()]),
            false,
        ),
    ] {
        let (problems, matched) = shown(action.clone(), rule.clone());
        assert_eq!(matched, hit, "{action:?} {rule:?}");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains("rules[0] matches on request.method"),
            "{problems:?}"
        );
    }
    let (problems, denied) = shown(Action::Custom("opa".into()), with(someone(), vec![port()]));
    assert!(
        denied && problems[0].contains("provider `opa`"),
        "{problems:?}"
    );
    let (problems, denied) = shown(Action::Audit, with(someone(), vec![port()]));
    assert!(
        !denied && problems[0].contains("does not support AUDIT"),
        "{problems:?}"
    );
    let (problems, allowed) = shown(Action::Allow, PolicyRule::default());
    assert!(
        allowed && problems.is_empty(),
        "a rule that asks nothing matches everything"
    );
}
