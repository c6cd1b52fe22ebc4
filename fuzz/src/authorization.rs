//! Authorization: a path has one spelling, values of policies read as they are written, and for any values and any
//! request the index agrees with the naive evaluator.

use std::net::{Ipv4Addr, SocketAddr};

use voile_policy::authorization::{
    Action, Attribute, Engine, HttpFacts, PathNormalization, Policy, PolicyName, PolicyRule,
    RequestFacts, Term, naive,
};

/// A request's path in each mode.
pub(crate) fn path(data: &[u8]) {
    let modes = [
        PathNormalization::None,
        PathNormalization::Base,
        PathNormalization::MergeSlashes,
        PathNormalization::DecodeAndMergeSlashes,
    ];
    for mode in modes {
        let Ok(once) = mode.normalize(data) else {
            continue;
        };
        assert_eq!(mode.normalize(&once), Ok(once.clone()), "twice is not once");
        if mode == PathNormalization::None || !data.starts_with(b"/") {
            assert_eq!(*once, *data);
            continue;
        }
        let path = once.split(|byte| *byte == b'?').next().unwrap_or_default();
        assert!(path.starts_with(b"/"), "a path stays one");
        assert!(!path.contains(&b'\\'), "a backslash is a slash");
        let mut segments = path.split(|byte| *byte == b'/');
        assert!(
            !segments.any(|segment| segment == b"." || segment == b".."),
            "dots are resolved"
        );
    }
}

/// The rules that lines describe; each value must read as it is written.
fn rules_of(rules: &str) -> Vec<PolicyRule> {
    let mut all = vec![PolicyRule::default()];
    for line in rules.lines().take(40) {
        if line == "-" {
            all.push(PolicyRule::default());
        }
        let (excluded, line) = match line.strip_prefix('!') {
            Some(line) => (true, line),
            None => (false, line),
        };
        let Some((key, value)) = line.split_once(' ') else {
            continue;
        };
        let Ok(attribute) = Attribute::of_name(key) else {
            continue;
        };
        let (any, none): (&[&str], &[&str]) = match excluded {
            true => (&[], &[value]),
            false => (&[value], &[]),
        };
        let Ok(term) = Term::parse(attribute.clone(), "ns", any, none) else {
            continue;
        };
        let written = |list: &[_]| {
            list.iter()
                .map(ToString::to_string)
                .collect::<Vec<String>>()
        };
        let again = Term::parse(attribute, "ns", &written(&term.any), &written(&term.none));
        assert_eq!(again.as_ref(), Ok(&term), "a value reads as it is written");
        if let Some(rule) = all.last_mut() {
            rule.when.push(term);
        }
    }
    all
}

/// Lines: `KEY VALUE` with `!` before an excluded one, `-` between rules; the text after an empty line is a request's
/// method, path and headers.
pub(crate) fn decision(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (rules, asked) = text.split_once("\n\n").unwrap_or((&text, ""));
    let all = rules_of(rules);
    let actions = [Action::Allow, Action::Deny];
    let set = actions.map(|action| Policy {
        name: PolicyName {
            namespace: "ns".into(),
            name: "p".into(),
        },
        origin: None,
        action,
        dry_run: false,
        rules: all.clone(),
    });
    let mut lines = asked.lines();
    let (method, path) = (lines.next().unwrap_or("GET"), lines.next().unwrap_or("/"));
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let host = headers
        .iter()
        .find(|(name, _)| *name == "host")
        .map(|(_, value)| value.as_bytes());
    let facts = RequestFacts {
        source: None,
        source_ip: Ipv4Addr::LOCALHOST.into(),
        remote_ip: Ipv4Addr::LOCALHOST.into(),
        destination: SocketAddr::from((Ipv4Addr::LOCALHOST, 80)),
        sni: headers.first().map(|(name, _)| *name),
        http: Some(HttpFacts {
            authority: host,
            method: method.as_bytes(),
            path: path.as_bytes(),
            headers: &headers,
            claims: None,
        }),
    };
    let tcp = RequestFacts {
        http: None,
        ..facts
    };
    for policies in [&set[..], &set[..1], &set[1..]] {
        let engine = Engine::new(policies);
        for facts in [&facts, &tcp] {
            assert_eq!(engine.decide(facts), naive::decide(policies, facts));
        }
    }
}
