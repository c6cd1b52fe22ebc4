//! Rate limits as a configuration states them: shared buckets, counts that survive other edits, and the memory that a
//! hostile sender of keys can take.

use std::borrow::Cow;
use std::net::Ipv4Addr;

use voile_proto::proxy as wire;
use voile_xds::wire::WireType;

use super::*;

/// A request of a path with one header.
struct Asked<'a>(&'a str, Option<&'a str>);

impl RouteInput for Asked<'_> {
    fn method(&self) -> &[u8] {
        b"GET"
    }
    fn scheme(&self) -> &[u8] {
        b"http"
    }
    fn authority(&self) -> &[u8] {
        b"cart"
    }
    fn path(&self) -> &[u8] {
        self.0.as_bytes()
    }
    fn query(&self) -> &[u8] {
        b""
    }
    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let value = self.1.filter(|_| name == "x-user")?;
        Some(value.as_bytes().into())
    }
}

fn limit(requests: u32) -> wire::RequestLimit {
    wire::RequestLimit {
        requests,
        per_ns: 1_000_000_000,
        burst: requests,
        keys: 100,
        ..Default::default()
    }
}

fn configuration(rules: Vec<wire::LimitRule>) -> ProxyConfiguration {
    let message = wire::ProxyConfiguration {
        workload_uid: "w".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        rate_limits: vec![wire::RateLimit {
            name: "shop/calls".to_owned(),
            rules,
            global: None,
            hosts: Vec::new(),
        }],
        ..Default::default()
    };
    ProxyConfiguration::from_wire(message).expect("a good configuration")
}

fn one_rule(limits: Vec<wire::RequestLimit>) -> ProxyConfiguration {
    configuration(vec![wire::LimitRule {
        name: "all".to_owned(),
        limits,
        ..Default::default()
    }])
}

fn limits(configuration: &ProxyConfiguration, before: Option<&Arc<RateLimits>>) -> Arc<RateLimits> {
    let made = RateLimits::follow(configuration, before).expect("good limits");
    made.expect("some limits")
}

const NOW: Duration = Duration::from_secs(7);

/// Number of requests, out of `times` at one moment, that pass the first rule.
fn passing(limits: &RateLimits, sender: Sender<'_>, user: Option<&str>, times: u32) -> u32 {
    let rule = &limits.resources[0].rules[0];
    let asked = Asked("/", user);
    let once = |_: &u32| limits.take(rule, &asked, sender, NOW, |_, _| {});
    (0..times).filter(once).count() as u32
}

fn sender(identity: Option<&str>, last: u8) -> Sender<'_> {
    Sender {
        identity,
        address: Ipv4Addr::new(10, 0, 0, last).into(),
    }
}

#[test]
fn only_those_that_the_key_tells_apart_have_buckets_of_their_own() {
    let by = |change: fn(&mut wire::RequestLimit)| {
        let mut limit = limit(3);
        change(&mut limit);
        one_rule(vec![limit])
    };
    let a = (sender(Some("a"), 1), Some("x"));
    let other_identity = (sender(Some("b"), 1), Some("x"));
    let nobody = (sender(None, 1), Some("x"));
    let other_address = (sender(Some("a"), 2), Some("x"));
    let other_user = (sender(Some("a"), 1), Some("y"));
    let no_user = (sender(Some("a"), 1), None);
    let others = [other_identity, nobody, other_address, other_user, no_user];
    for (what, said, apart) in [
        ("nothing", by(|_| {}), [false, false, false, false, false]),
        (
            "identity",
            by(|limit| limit.by_identity = true),
            [true, true, false, false, false],
        ),
        (
            "address",
            by(|limit| limit.by_address = true),
            [false, false, true, false, false],
        ),
        (
            "header",
            by(|limit| limit.by_headers = vec!["x-user".to_owned()]),
            [false, false, false, true, true],
        ),
        (
            "all",
            by(|limit| {
                (limit.by_identity, limit.by_address) = (true, true);
                limit.by_headers = vec!["x-user".to_owned()];
            }),
            [true; 5],
        ),
    ] {
        for (other, apart) in others.into_iter().zip(apart) {
            let limits = limits(&said, None);
            assert_eq!(passing(&limits, a.0, a.1, 9), 3, "{what}");
            let expected = if apart { 3 } else { 0 };
            assert_eq!(
                passing(&limits, other.0, other.1, 9),
                expected,
                "{what}: {other:?}"
            );
        }
    }
}

#[test]
fn an_address_is_one_client_however_it_is_written() {
    let mut said = limit(3);
    said.by_address = true;
    let limits = limits(&one_rule(vec![said]), None);
    let four = sender(None, 9);
    let six = Sender {
        address: Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().into(),
        ..four
    };
    assert_eq!(passing(&limits, four, None, 2), 2);
    assert_eq!(passing(&limits, six, None, 9), 1);
}

#[test]
fn what_was_used_up_stays_so_when_something_else_is_changed() {
    let who = sender(None, 1);
    let first = limits(&one_rule(vec![limit(3)]), None);
    assert_eq!(passing(&first, who, None, 5), 3);
    let same = limits(&one_rule(vec![limit(3)]), Some(&first));
    assert!(Arc::ptr_eq(&first, &same), "nothing is made again");
    // With another limit beside it, and rules around it.
    let mut slow = limit(100);
    slow.by_identity = true;
    let rule = |name: &str, limits| wire::LimitRule {
        name: name.to_owned(),
        limits,
        ..Default::default()
    };
    let more = configuration(vec![
        rule("all", vec![limit(3), slow]),
        rule("new", vec![limit(3)]),
    ]);
    let more = limits(&more, Some(&first));
    assert_eq!(passing(&more, who, None, 5), 0, "used up before");
    let refused: Vec<u64> = more.counted().map(|(.., [count, _])| count).collect();
    assert_eq!(refused, [2 + 5, 0], "what was refused stays counted");
    let other = limits(&one_rule(vec![limit(4)]), Some(&more));
    assert_eq!(
        passing(&other, who, None, 9),
        4,
        "another limit begins anew"
    );
}

#[test]
fn all_limits_of_a_rule_hold_and_the_first_that_has_none_is_named() {
    let two = limits(&one_rule(vec![limit(5), limit(2)]), None);
    let rule = &two.resources[0].rules[0];
    assert_eq!(rule.policy, "\"all\";q=5;w=1, \"all-2\";q=2;w=1");
    let mut told = Vec::new();
    let mut take = || {
        told.clear();
        let asked = Asked("/", None);
        two.take(rule, &asked, sender(None, 1), NOW, |name, verdict| {
            told.push((name.to_owned(), verdict.remaining));
        })
    };
    assert!(take() && take() && !take());
    assert_eq!(told, [("all".to_owned(), 2), ("all-2".to_owned(), 0)]);
}

#[test]
fn a_million_keys_take_the_room_of_those_that_are_told_apart() {
    let mut said = limit(1);
    (said.by_headers, said.keys) = (vec!["x-user".to_owned()], 1_000);
    let limits = limits(&one_rule(vec![said]), None);
    let Buckets::Keyed(buckets) = &limits.resources[0].rules[0].limits[0].counted.buckets else {
        panic!("a bucket for each key");
    };
    let room = buckets.room();
    assert!((1_000..1_200).contains(&room), "{room}");
    let mut passed = 0;
    for number in 0..1_000_000_u32 {
        let user = number.to_string();
        passed += passing(&limits, sender(None, 1), Some(&user), 1);
    }
    assert_eq!(buckets.room(), room, "no more than before");
    assert_eq!(
        passed, room as u32,
        "who finds no room shares, and less passes, never more"
    );
    let known = passing(&limits, sender(None, 1), Some("0"), 1);
    assert_eq!(known, 0, "nobody is forgotten for another's keys");
}

#[test]
fn a_rule_that_cannot_be_read_refuses_all_of_it() {
    let expression = wire::TextMatch {
        text: Some(wire::text_match::Text::Regex("(".to_owned())),
    };
    let said = configuration(vec![wire::LimitRule {
        name: "all".to_owned(),
        matches: vec![wire::RequestMatch {
            uri: Some(expression),
            ..Default::default()
        }],
        limits: vec![limit(1)],
        ..Default::default()
    }]);
    let refused = RateLimits::follow(&said, None).expect_err("no such expression");
    assert!(
        refused.contains("RateLimit shop/calls: rule `all`"),
        "{refused}"
    );
}
