//! In what order types are told of one moment: what leads somewhere and what is led to, what is named and what names it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest, Status};
use voile_proto::type_url::{
    ADDRESS, AUTHORIZATION, CLUSTER, ENDPOINTS, KEY_SET, LISTENER, ROUTES, SERVICE_POLICY,
    SERVICE_ROUTES,
};
use voile_xds::server::{DiscoveryStream, Names, RequestEvent, SotwStream};

use crate::server::{Things, shown};

/// A caller that asked for one thing of each of several types.
struct Talk {
    stream: DiscoveryStream<()>,
    now: Instant,
    /// Types and nonces of the responses not answered yet.
    unanswered: Vec<(String, String)>,
}

impl Talk {
    fn new(asks: &[(&str, &str)]) -> Self {
        let (mut stream, now) = (DiscoveryStream::new(()), Instant::now());
        for (type_url, name) in asks {
            let request = DeltaDiscoveryRequest {
                type_url: (*type_url).to_owned(),
                resource_names_subscribe: vec![(*name).to_owned()],
                ..DeltaDiscoveryRequest::default()
            };
            let event = stream.receive(request, now).expect("a plain question");
            assert_eq!(event, RequestEvent::Subscribed);
        }
        Self {
            stream,
            now,
            unanswered: Vec::new(),
        }
    }

    /// Asks for more, or for a type for the first time, holding something of it already.
    fn ask(&mut self, type_url: &str, names: &[&str], held: &[(&str, &str)]) {
        let owned = |name: &&str| (*name).to_owned();
        let request = DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: names.iter().map(owned).collect(),
            initial_resource_versions: held
                .iter()
                .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
                .collect(),
            ..DeltaDiscoveryRequest::default()
        };
        let event = self.stream.receive(request, self.now);
        assert_eq!(event, Ok(RequestEvent::Subscribed));
    }

    /// Everything that it is told before it answers anything.
    fn hear(&mut self, entries: &[&str]) -> Vec<String> {
        let things = Things::new(entries);
        let mut heard = Vec::new();
        while let Some(response) = self.stream.next(&things, self.now) {
            heard.push(shown(&response));
            self.unanswered.push((response.type_url, response.nonce));
        }
        heard
    }

    /// Answers all of that.
    fn acknowledge(&mut self) {
        for (type_url, response_nonce) in std::mem::take(&mut self.unanswered) {
            let request = DeltaDiscoveryRequest {
                type_url,
                response_nonce,
                ..DeltaDiscoveryRequest::default()
            };
            let event = self.stream.receive(request, self.now);
            assert!(
                matches!(event, Ok(RequestEvent::Acknowledged { .. })),
                "{event:?}"
            );
        }
    }

    /// Refuses all of that.
    fn refuse(&mut self) {
        for (type_url, response_nonce) in std::mem::take(&mut self.unanswered) {
            let request = DeltaDiscoveryRequest {
                type_url,
                response_nonce,
                error_detail: Some(Status::default()),
                ..DeltaDiscoveryRequest::default()
            };
            let event = self.stream.receive(request, self.now);
            assert!(
                matches!(event, Ok(RequestEvent::Refused { .. })),
                "{event:?}"
            );
        }
    }
}

#[test]
fn a_policy_is_in_force_before_who_is_named_by_it_and_goes_after() {
    let mut talk = Talk::new(&[(ADDRESS, "a"), (AUTHORIZATION, "p")]);
    let before = ["a: a@1", "p: p@1"];
    assert_eq!(talk.hear(&before), ["+p@1"], "addresses wait");
    talk.acknowledge();
    assert_eq!(talk.hear(&before), ["+a@1"]);
    talk.acknowledge();

    let after = ["a: a@2"];
    talk.stream.changed();
    assert_eq!(talk.hear(&after), ["+a@2"], "the policy stays");
    assert_eq!(talk.hear(&after), [""; 0], "until that is acknowledged");
    talk.acknowledge();
    assert_eq!(talk.hear(&after), ["-p"]);
}

#[test]
fn routes_are_in_force_before_what_they_lead_to_changes_and_the_rest_does_not_wait() {
    let asks = [
        (ADDRESS, "a"),
        (KEY_SET, "k"),
        (SERVICE_POLICY, "s"),
        (SERVICE_ROUTES, "r"),
    ];
    let mut talk = Talk::new(&asks);
    for (moment, told, then) in [
        (
            ["a: a@1", "k: k@1", "s: s@1", "r: r@1"].as_slice(),
            ["+r@1", "+k@1"].as_slice(),
            ["+a@1", "+s@1"].as_slice(),
        ),
        (&["k: k@1", "r: r@2"], &["+r@2"], &["-a", "-s"]),
        (
            &["a: a@3", "k: k@3", "s: s@3", "r: r@2"],
            &["+a@3", "+k@3", "+s@3"],
            &[],
        ),
    ] {
        talk.stream.changed();
        assert_eq!(talk.hear(moment), told, "{moment:?} at once");
        talk.acknowledge();
        assert_eq!(talk.hear(moment), then, "{moment:?} when routes are taken");
        talk.acknowledge();
    }
}

#[test]
fn who_comes_to_know_a_service_hears_its_routes_and_its_policy_in_one_turn() {
    let mut talk = Talk::new(&[(SERVICE_POLICY, "s"), (SERVICE_ROUTES, "s")]);
    let before = ["s: s@1"];
    while !talk.hear(&before).is_empty() {
        talk.acknowledge();
    }
    let things = ["s: s@1", "t: t@1"];
    talk.ask(SERVICE_ROUTES, &["t"], &[]);
    talk.ask(SERVICE_POLICY, &["t"], &[]);
    assert_eq!(
        talk.hear(&things),
        ["+t@1", "+t@1"],
        "without a word in between"
    );
    talk.acknowledge();
    assert_eq!(talk.hear(&things), [""; 0], "and once");
    // Known and changing resources wait for routes all the same.
    let after = ["s: s@2", "v: v@1"];
    talk.ask(SERVICE_ROUTES, &["v"], &[]);
    talk.ask(SERVICE_POLICY, &["s", "v"], &[]);
    assert_eq!(talk.hear(&after), ["+s@2 +v@1 -t", "+v@1"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&after), ["+s@2 -t"]);
}

/// As a caller asks that knows an address only.
const BY_ADDRESS: [&str; 3] = [ADDRESS, SERVICE_ROUTES, SERVICE_POLICY];

/// Answers to each request, without an ACK in between and without versions.
fn heard_by_address(talk: &mut Talk, things: &[&str]) -> Vec<String> {
    let mut heard = Vec::new();
    for of in BY_ADDRESS {
        talk.ask(of, &["/a"], &[]);
        heard.extend(talk.hear(things));
    }
    let bare = |word: &str| word.split('@').next().unwrap_or_default().to_owned();
    let bare = |told: &String| told.split(' ').map(bare).collect::<Vec<_>>().join(" ");
    heard.iter().map(bare).collect()
}

#[test]
fn who_asks_by_address_hears_all_it_takes_in_one_turn() {
    for (there, told) in [
        ("/a: s@1", "+s"),
        ("/a: s@1 t@1", "+s +t"),
        ("/a: s@-", "-/a -s"),
        ("/b: s@1", "-/a"),
    ] {
        let things = ["o: o@1", there];
        for asked_before in [0, 1, 3] {
            let before: Vec<_> = BY_ADDRESS.map(|of| (of, "o"))[..asked_before].to_vec();
            let mut talk = Talk::new(&before);
            while !talk.hear(&things).is_empty() {
                talk.acknowledge();
            }
            let heard = heard_by_address(&mut talk, &things);
            assert_eq!(heard, [told; 3], "{there}, {asked_before} known");
            talk.acknowledge();
            assert_eq!(talk.hear(&things), [""; 0], "{there}: and once");
        }
    }
}

#[test]
fn who_asked_by_address_hears_when_that_is_another_or_what_was_not_there_comes() {
    let mut talk = Talk::new(&[]);
    heard_by_address(&mut talk, &["/a: s@-"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&["/a: s@-"]), [""; 0]);
    let names = |name: &str| [Arc::from(name)].into_iter().collect::<Names>();
    talk.stream.touched(SERVICE_ROUTES, Some(names("s")));
    let heard = talk.hear(&["/a: s@1"]);
    assert!(
        matches!(heard.as_slice(), [only] if only.starts_with("+s@1")),
        "{heard:?}"
    );
    talk.acknowledge();
    assert_eq!(talk.hear(&["/a: s@1"]), [""; 0], "nothing else was touched");
    talk.stream.touched(ADDRESS, Some(names("/a")));
    let mut told = Vec::new();
    loop {
        let heard = talk.hear(&["/a: t@1"]);
        if heard.is_empty() {
            break;
        }
        talk.acknowledge();
        told.extend(heard);
    }
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().all(|one| one.starts_with("+t@1")), "{told:?}");
    assert!(told[0].ends_with(" -s"), "its routes: {told:?}");
}

#[test]
fn of_whom_there_is_nothing_is_said_to_each_question_anew() {
    let things = ["/a: s@-", "/b: s@-", "s: s@-"];
    let mut talk = Talk::new(&[]);
    heard_by_address(&mut talk, &things);
    talk.acknowledge();
    for (asked, told) in [("/b", "-/b -s"), ("/a", "-/a -s"), ("s", "-s")] {
        for of in [SERVICE_ROUTES, SERVICE_POLICY] {
            talk.ask(of, &[asked], &[]);
            assert_eq!(talk.hear(&things), [told], "{of} by {asked}");
            talk.acknowledge();
            assert_eq!(talk.hear(&things), [""; 0]);
        }
    }
}

#[test]
fn what_is_told_and_changes_is_not_told_again_before_routes_are_taken() {
    let mut talk = Talk::new(&[(SERVICE_POLICY, "s"), (SERVICE_ROUTES, "s")]);
    while !talk.hear(&["s: s@1"]).is_empty() {
        talk.acknowledge();
    }
    // The service at the address is known, and is about to change or to go.
    for (there, told) in [("/a: s@2", "+s@2"), ("/a: s@-", "-/a")] {
        let by_name = there.replace("/a: ", "s: ");
        let things = [&*by_name, there];
        talk.ask(SERVICE_ROUTES, &["/a"], &[]);
        talk.ask(SERVICE_POLICY, &["/a"], &[]);
        let heard = talk.hear(&things);
        assert!(
            matches!(heard.as_slice(), [only] if only.starts_with(told)),
            "{heard:?}"
        );
        talk.acknowledge();
        let heard = talk.hear(&things);
        assert!(
            matches!(heard.as_slice(), [only] if only.starts_with(told)),
            "{heard:?}"
        );
        talk.acknowledge();
    }
}

#[test]
fn who_comes_back_loses_nothing_before_what_named_it_is_taken() {
    for (named, naming) in [(AUTHORIZATION, ADDRESS), (CLUSTER, ROUTES)] {
        let mut talk = Talk::new(&[]);
        let after = ["a: a@2", "q: q@1"];
        talk.ask(named, &["p", "q"], &[("p", "1")]);
        // The question for what names it is still under way.
        assert_eq!(talk.hear(&after), ["+q@1"], "{named}");
        talk.ask(naming, &["a"], &[("a", "1")]);
        assert_eq!(talk.hear(&after), [""; 0], "{named}");
        talk.acknowledge();
        assert_eq!(talk.hear(&after), ["+a@2"], "{named}");
        talk.acknowledge();
        assert_eq!(talk.hear(&after), ["-p"], "{named}");
        talk.acknowledge();
        assert_eq!(talk.hear(&after), [""; 0], "{named}");
    }
}

#[test]
fn what_nobody_names_any_more_goes_at_once_where_what_named_it_has_nothing_to_say() {
    for (named, naming) in [(AUTHORIZATION, ADDRESS), (CLUSTER, ROUTES)] {
        let mut talk = Talk::new(&[(naming, "a"), (named, "p")]);
        let before = ["a: a@1", "p: p@1"];
        assert_eq!(talk.hear(&before), ["+p@1"]);
        talk.acknowledge();
        assert_eq!(talk.hear(&before), ["+a@1"]);
        talk.acknowledge();
        talk.stream.changed();
        assert_eq!(talk.hear(&["a: a@1"]), ["-p"], "{named}");
    }
}

/// Requests of an Envoy.
const OF_ENVOY: [(&str, &str); 4] = [
    (CLUSTER, "c"),
    (ENDPOINTS, "e"),
    (LISTENER, "l"),
    (ROUTES, "r"),
];
/// Longest time for which types that name clusters wait for them.
const WARMING: Duration = Duration::from_secs(2);

#[test]
fn clusters_are_warm_before_what_leads_to_them_and_go_after() {
    let mut talk = Talk::new(&OF_ENVOY);
    let before = ["c: c@1", "e: e@1", "l: l@1", "r: r@1"];
    assert_eq!(talk.hear(&before), ["+c@1", "+e@1"], "who is there, too");
    talk.acknowledge();
    assert_eq!(talk.hear(&before), ["+l@1", "+r@1"]);
    talk.acknowledge();

    let after = ["e: e@1", "l: l@1", "r: r@2"];
    talk.stream.changed();
    assert_eq!(talk.hear(&after), ["+r@2"], "the cluster stays");
    talk.stream.changed();
    assert_eq!(talk.hear(&after), [""; 0], "until that is acknowledged");
    talk.acknowledge();
    assert_eq!(talk.hear(&after), ["-c"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&after), [""; 0]);
}

#[test]
fn a_cluster_that_does_not_get_warm_holds_nothing_back_for_long() {
    let mut talk = Talk::new(&OF_ENVOY);
    let before = ["c: c@1", "e: e@1", "l: l@1", "r: r@1"];
    assert_eq!(talk.hear(&before), ["+c@1", "+e@1"]);
    talk.now += WARMING - Duration::from_millis(1);
    assert_eq!(talk.hear(&before), [""; 0]);
    talk.now += Duration::from_millis(1);
    assert_eq!(talk.hear(&before), ["+l@1", "+r@1"]);
    talk.stream.changed();
    let more = ["c: c@2", "e: e@2", "l: l@2", "r: r@2"];
    assert_eq!(talk.hear(&more), [""; 0], "each is answered first");
    talk.acknowledge();
    assert_eq!(talk.hear(&more), ["+c@2", "+e@2"]);
}

#[test]
fn clusters_stay_until_something_newer_is_taken_of_all_routes_that_were_refused() {
    let mut talk = Talk::new(&[(CLUSTER, "c"), (ROUTES, "r")]);
    talk.ask(ROUTES, &["s"], &[]);
    let before = ["c: c@1", "r: r@1", "s: s@1"];
    assert_eq!(talk.hear(&before), ["+c@1"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&before), ["+r@1 +s@1"]);
    talk.acknowledge();

    let after = ["r: r@2", "s: s@2"];
    talk.stream.changed();
    assert_eq!(talk.hear(&after), ["+r@2 +s@2"]);
    talk.refuse();
    assert_eq!(
        talk.hear(&after),
        [""; 0],
        "what was taken before leads there"
    );
    // A cluster that came later is sent as ever.
    talk.ask(CLUSTER, &["d"], &[]);
    assert_eq!(talk.hear(&["d: d@1", "r: r@2", "s: s@2"]), ["+d@1"]);
    talk.acknowledge();
    let later = ["r: r@2", "s: s@3"];
    talk.stream.changed();
    assert_eq!(talk.hear(&later), ["+s@3"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&later), ["-d"], "the other is still refused");
    talk.acknowledge();
    let last = ["r: r@4", "s: s@3"];
    talk.stream.changed();
    assert_eq!(talk.hear(&last), ["+r@4"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&last), ["-c"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&last), [""; 0]);
}

/// The same in state of the world, whose responses have no names: resources are told by their versions.
struct Whole {
    stream: SotwStream<()>,
    now: Instant,
    unanswered: Vec<DiscoveryRequest>,
}

impl Whole {
    fn new(asks: &[(&str, &[&str])]) -> Self {
        let (mut stream, now) = (SotwStream::new(()), Instant::now());
        for (type_url, names) in asks {
            let event = stream.receive(request(type_url, names), now);
            assert_eq!(event, Ok(RequestEvent::Subscribed));
        }
        Self {
            stream,
            now,
            unanswered: Vec::new(),
        }
    }

    fn hear(&mut self, entries: &[&str]) -> Vec<String> {
        let things = Things::new(entries);
        let mut heard = Vec::new();
        while let Some(response) = self.stream.next(&things, self.now) {
            let versions = response.resources.iter().map(|one| one.value.clone());
            let versions = versions.map(|one| String::from_utf8(one).expect("text"));
            heard.push(versions.collect::<Vec<_>>().join(" "));
            let (_, names) = WHOLE
                .iter()
                .find(|(of, _)| *of == response.type_url)
                .expect("it was asked for");
            self.unanswered.push(DiscoveryRequest {
                response_nonce: response.nonce,
                ..request(&response.type_url, names)
            });
        }
        heard
    }

    fn acknowledge(&mut self) {
        for request in std::mem::take(&mut self.unanswered) {
            let event = self.stream.receive(request, self.now);
            assert!(
                matches!(event, Ok(RequestEvent::Acknowledged { .. })),
                "{event:?}"
            );
        }
    }
}

fn request(type_url: &str, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names: names.iter().map(ToString::to_string).collect(),
        ..DiscoveryRequest::default()
    }
}

const WHOLE: [(&str, &[&str]); 4] = [
    (CLUSTER, &["c", "d"]),
    (ENDPOINTS, &["e"]),
    (LISTENER, &["l"]),
    (ROUTES, &["r"]),
];

#[test]
fn in_state_of_the_world_too_clusters_come_before_what_leads_to_them_and_go_after() {
    let mut talk = Whole::new(&WHOLE);
    let before = ["c: c@c1", "e: e@e1", "l: l@l1", "r: r@r1"];
    assert_eq!(talk.hear(&before), ["c1", "e1"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&before), ["l1", "r1"]);
    talk.acknowledge();

    // One in the place of another: both are there until nothing leads to the first.
    let after = ["d: d@d1", "e: e@e1", "l: l@l1", "r: r@r2"];
    talk.stream.changed();
    assert_eq!(talk.hear(&after), ["c1 d1"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&after), ["r2"]);
    talk.stream.changed();
    assert_eq!(talk.hear(&after), [""; 0]);
    talk.acknowledge();
    assert_eq!(talk.hear(&after), ["d1"]);
    talk.acknowledge();
    assert_eq!(talk.hear(&after), [""; 0]);

    // It comes back as something else, and goes while nothing else has anything to say.
    talk.stream.changed();
    let again = ["c: c@c2", "d: d@d1", "e: e@e1", "l: l@l1", "r: r@r2"];
    assert_eq!(talk.hear(&again), ["c2 d1"]);
    talk.acknowledge();
    talk.stream.changed();
    assert_eq!(talk.hear(&after), ["d1"]);
    talk.acknowledge();

    // A cluster that does not get warm holds other resources back only for a while.
    talk.stream.changed();
    let more = ["c: c@c3", "d: d@d1", "e: e@e1", "l: l@l1", "r: r@r3"];
    assert_eq!(talk.hear(&more), ["c3 d1"]);
    talk.now += WARMING;
    assert_eq!(talk.hear(&more), ["r3"]);
}
