//! Responses of the server to one caller, and the reasons for its silence or its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};
use voile_xds::server::{
    DiscoveryStream, RequestEvent, Resolution, Resource, Snapshot, StreamEndReason,
};

pub(crate) const TYPE: &str = "type.googleapis.com/test";

/// Names and what they bring, as `name@version` or `name@version~alias`; a name `secret…` is refused, and of what has the version `-`
/// there is nothing.
#[derive(Default, Clone)]
pub(crate) struct Things(pub(crate) BTreeMap<String, Vec<Arc<Resource>>>);

impl Things {
    /// Each entry is `asked: resource resource …`.
    pub(crate) fn new(entries: &[&str]) -> Self {
        let entry = |text: &&str| {
            let (asked, resources) = text.split_once(": ").unwrap();
            (asked.to_owned(), resources.split(' ').map(thing).collect())
        };
        Self(entries.iter().map(entry).collect())
    }
}

fn thing(text: &str) -> Arc<Resource> {
    let (text, alias) = match text.split_once('~') {
        Some((text, alias)) => (text, vec![alias.into()]),
        None => (text, vec![]),
    };
    let (name, version) = text.split_once('@').unwrap();
    Arc::new(Resource {
        name: name.into(),
        aliases: alias,
        version: version.into(),
        body: version.as_bytes().into(),
    })
}

impl Snapshot<()> for Things {
    fn version(&self) -> Arc<str> {
        "snapshot".into()
    }

    fn resolve(&self, (): &(), _: &str, name: &str) -> Resolution {
        match self.0.get(name) {
            _ if name.starts_with("secret") => Resolution::Refused("not yours".to_owned()),
            Some(found) if found.iter().all(|one| *one.version == *"-") => {
                Resolution::Lacking(found.iter().map(|one| one.name.clone()).collect())
            }
            Some(found) => Resolution::Found(found.clone()),
            None => Resolution::Unknown,
        }
    }

    fn everything(&self, (): &(), _: &str) -> Resolution {
        Resolution::Found(self.0.values().flatten().cloned().collect())
    }
}

fn ask(subscribe: &[&str], unsubscribe: &[&str]) -> DeltaDiscoveryRequest {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    DeltaDiscoveryRequest {
        type_url: TYPE.to_owned(),
        resource_names_subscribe: owned(subscribe),
        resource_names_unsubscribe: owned(unsubscribe),
        ..DeltaDiscoveryRequest::default()
    }
}

fn answer(nonce: &str, refusal: Option<&str>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        response_nonce: nonce.to_owned(),
        error_detail: refusal.map(|message| Status {
            code: 3,
            message: message.to_owned(),
            details: Vec::new(),
        }),
        ..ask(&[], &[])
    }
}

/// A response in one line: `+name@version … -name …`.
pub(crate) fn shown(response: &DeltaDiscoveryResponse) -> String {
    let added = response
        .resources
        .iter()
        .map(|r| format!("+{}@{}", r.name, r.version));
    let removed = response
        .removed_resources
        .iter()
        .map(|name| format!("-{name}"));
    added.chain(removed).collect::<Vec<_>>().join(" ")
}

struct Conversation {
    stream: DiscoveryStream<()>,
    now: Instant,
    last: String,
}

impl Conversation {
    fn new(first: DeltaDiscoveryRequest) -> Self {
        let mut conversation = Self {
            stream: DiscoveryStream::new(()),
            now: Instant::now(),
            last: String::new(),
        };
        conversation.say(first);
        conversation
    }

    fn say(&mut self, request: DeltaDiscoveryRequest) -> RequestEvent {
        self.stream.receive(request, self.now).unwrap()
    }

    /// The server's next response as text; `nothing` if it is silent.
    fn hear(&mut self, things: &Things) -> String {
        match self.stream.next(things, self.now) {
            Some(response) => {
                self.last = response.nonce.clone();
                shown(&response)
            }
            None => "nothing".to_owned(),
        }
    }

    fn acknowledge(&mut self) {
        let event = self.say(answer(&self.last.clone(), None));
        assert!(
            matches!(event, RequestEvent::Acknowledged { .. }),
            "{event:?}"
        );
    }

    fn change(&mut self, things: &Things) -> String {
        self.stream.changed();
        self.hear(things)
    }
}

#[test]
fn a_name_brings_what_is_behind_it_and_only_differences_follow() {
    let mut talk = Conversation::new(ask(&["service"], &[]));
    let one = Things::new(&["service: service@1 w1@1", "other: other@1"]);
    assert_eq!(talk.hear(&one), "+service@1 +w1@1");
    talk.acknowledge();
    for (entry, wanted) in [
        ("service: service@1 w1@1", "nothing"),
        ("service: service@1 w1@1 w2@1", "+w2@1"),
        ("service: service@1 w1@2 w2@1", "+w1@2"),
        ("service: service@2 w2@1", "+service@2 -w1"),
        ("elsewhere: x@1", "-service -w2"),
        ("service: service@2 w2@1", "+service@2 +w2@1"),
    ] {
        let heard = talk.change(&Things::new(&[entry]));
        assert_eq!(heard, wanted, "{entry}");
        if heard != "nothing" {
            talk.acknowledge();
        }
    }
}

#[test]
fn names_that_are_unknown_or_refused_are_told_as_removed_once() {
    let things = Things::new(&["a: a@1", "secret: secret@1"]);
    let mut talk = Conversation::new(ask(&["a", "b", "secret"], &[]));
    assert_eq!(talk.hear(&things), "+a@1 -b -secret");
    talk.acknowledge();
    assert_eq!(talk.change(&things), "nothing");
    talk.say(ask(&["b"], &[]));
    assert_eq!(talk.hear(&things), "-b", "asked again, answered again");
    talk.acknowledge();
    assert_eq!(talk.change(&Things::new(&["a: a@1", "b: b@1"])), "+b@1");
}

#[test]
fn a_second_name_for_a_thing_that_was_sent_is_answered() {
    let things = Things::new(&["uid: uid@1~/10.0.0.1", "/10.0.0.1: uid@1~/10.0.0.1"]);
    let mut talk = Conversation::new(ask(&["uid"], &[]));
    assert_eq!(talk.hear(&things), "+uid@1");
    talk.acknowledge();
    talk.say(ask(&["/10.0.0.1"], &[]));
    assert_eq!(talk.hear(&things), "+uid@1");
}

#[test]
fn unsubscribing_takes_back_the_thing_and_what_came_along() {
    let things = Things::new(&["s: s@1 w@1 both@1", "t: t@1 both@1"]);
    let mut talk = Conversation::new(ask(&["s", "t"], &[]));
    assert_eq!(talk.hear(&things), "+both@1 +s@1 +t@1 +w@1");
    talk.acknowledge();
    talk.say(ask(&[], &["s"]));
    assert_eq!(talk.hear(&things), "-s -w");
}

#[test]
fn a_caller_that_comes_back_hears_only_what_it_does_not_hold() {
    let things = Things::new(&["s: s@2 w@1"]);
    for (held, wanted) in [
        (vec![("s", "2"), ("w", "1")], ""),
        (vec![("s", "1"), ("w", "1")], "+s@2"),
        (vec![("w", "1"), ("gone", "9")], "+s@2 -gone"),
        (vec![], "+s@2 +w@1"),
    ] {
        let versions = held.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        let mut talk = Conversation::new(DeltaDiscoveryRequest {
            initial_resource_versions: versions.collect(),
            ..ask(&["s"], &[])
        });
        assert_eq!(talk.hear(&things), wanted, "{held:?}");
    }
}

#[test]
fn one_response_is_in_flight_and_stale_answers_change_nothing() {
    let mut talk = Conversation::new(ask(&["a"], &[]));
    talk.hear(&Things::new(&["a: a@1"]));
    let newer = Things::new(&["a: a@2"]);
    assert_eq!(talk.change(&newer), "nothing", "the first was not answered");
    for nonce in ["0", "2", "nonsense"] {
        assert_eq!(talk.say(answer(nonce, None)), RequestEvent::Stale);
        assert_eq!(talk.hear(&newer), "nothing", "{nonce}");
    }
    talk.acknowledge();
    assert_eq!(talk.hear(&newer), "+a@2");
    let first = talk.say(answer("1", None));
    assert_eq!(first, RequestEvent::Stale, "the same answer twice");
}

#[test]
fn a_refused_version_is_not_sent_again_but_the_next_is() {
    let mut talk = Conversation::new(ask(&["a"], &[]));
    let things = Things::new(&["a: a@1"]);
    talk.hear(&things);
    let event = talk.say(answer("1", Some("a: bad")));
    assert_eq!(
        event,
        RequestEvent::Refused {
            reason: "a: bad".to_owned(),
            rejected: Some(BTreeMap::from([("a".into(), "bad".to_owned())]).into()),
        }
    );
    assert_eq!(talk.change(&things), "nothing");
    assert_eq!(talk.change(&Things::new(&["a: a@2"])), "+a@2");
}

#[test]
fn an_acknowledgement_lifts_the_refusal_of_what_it_is_about_and_no_other() {
    let mut talk = Conversation::new(ask(&["a", "b"], &[]));
    let rejected = |event: RequestEvent| match event {
        RequestEvent::Acknowledged { rejected, .. } | RequestEvent::Refused { rejected, .. } => {
            let all = rejected.iter().flat_map(|all| all.keys());
            all.map(ToString::to_string).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    talk.hear(&Things::new(&["a: a@1", "b: b@1"]));
    assert_eq!(rejected(talk.say(answer("1", Some("a: bad")))), ["a"]);
    assert_eq!(talk.change(&Things::new(&["a: a@1", "b: b@2"])), "+b@2");
    assert_eq!(
        rejected(talk.say(answer("2", None))),
        ["a"],
        "b alone was taken"
    );
    assert_eq!(talk.change(&Things::new(&["a: a@2", "b: b@2"])), "+a@2");
    assert_eq!(rejected(talk.say(answer("3", None))), [""; 0]);
    assert_eq!(talk.change(&Things::new(&["a: a@3", "b: b@2"])), "+a@3");
    assert_eq!(rejected(talk.say(answer("4", Some("a: bad")))), ["a"]);
    assert_eq!(talk.change(&Things::new(&["b: b@2"])), "-a");
    assert_eq!(rejected(talk.say(answer("5", None))), [""; 0], "it is gone");
}

#[test]
fn a_star_and_a_first_request_without_names_mean_everything() {
    let things = Things::new(&["a: a@1", "b: b@1"]);
    for first in [ask(&["*"], &[]), ask(&[], &[])] {
        let mut talk = Conversation::new(first);
        assert_eq!(talk.hear(&things), "+a@1 +b@1");
        talk.acknowledge();
        talk.say(ask(&["a"], &["*"]));
        assert_eq!(talk.hear(&things), "+a@1 -b", "asked for by name now");
    }
    let mut talk = Conversation::new(ask(&["*"], &["*"]));
    assert_eq!(talk.hear(&things), "", "on demand: nothing, but an answer");
}

#[test]
fn a_large_answer_is_cut_into_pieces() {
    let big = |name: &str| {
        Arc::new(Resource {
            name: name.into(),
            aliases: vec![],
            version: "1".into(),
            body: vec![0; 1_500_000].into(),
        })
    };
    let all = ["a", "b", "c"].map(big).to_vec();
    let things = Things([("a".to_owned(), all)].into());
    let mut talk = Conversation::new(ask(&["a"], &[]));
    for wanted in ["+a@1", "+b@1", "+c@1"] {
        assert_eq!(talk.hear(&things), wanted);
        assert_eq!(talk.hear(&things), "nothing");
        talk.acknowledge();
    }
    assert_eq!(talk.hear(&things), "nothing");
}

#[test]
fn what_a_search_finds_is_told_with_the_question_as_alias() {
    let aliases = |talk: &mut Conversation, things: &Things| -> String {
        let response = talk.stream.next(things, talk.now).expect("a response");
        let told: Vec<String> = response
            .resources
            .iter()
            .map(|told| format!("{}~{}", told.name, told.aliases.join(",")))
            .collect();
        talk.last = response.nonce;
        talk.acknowledge();
        told.join(" ")
    };
    let things = Things::new(&["*/x: w@1 pod@1", "*/y: w@1 pod@1", "w: w@1 pod@1"]);
    let mut talk = Conversation::new(ask(&["*/x"], &[]));
    assert_eq!(aliases(&mut talk, &things), "pod~ w~*/x");
    talk.say(ask(&["*/y"], &[]));
    assert_eq!(
        aliases(&mut talk, &things),
        "w~*/x,*/y",
        "what came along is not sent again"
    );
    talk.say(ask(&[], &["*/x"]));
    assert_eq!(aliases(&mut talk, &things), "w~*/y");
    // Another thing now answers the question; it was sent before, and must be told with the question all the same.
    let moved = Things::new(&["*/y: other@1", "other: other@1"]);
    talk.say(ask(&["other"], &[]));
    talk.stream.changed();
    assert_eq!(aliases(&mut talk, &moved), "other~*/y");
    assert_eq!(talk.change(&moved), "nothing");
}

#[test]
fn silence_has_a_deadline_and_only_after_a_response() {
    let mut talk = Conversation::new(ask(&["a"], &[]));
    assert_eq!(talk.stream.deadline(), None);
    talk.hear(&Things::default());
    let deadline = talk.stream.deadline().unwrap();
    assert_eq!(deadline - talk.now, Duration::from_secs(30));
    talk.acknowledge();
    assert_eq!(talk.stream.deadline(), None);
}

#[test]
fn callers_that_ask_for_too_much_are_ended() {
    let now = Instant::now();
    let end = |requests: Vec<DeltaDiscoveryRequest>| {
        let mut stream = DiscoveryStream::new(());
        requests
            .into_iter()
            .find_map(|request| stream.receive(request, now).err())
    };
    let typed = |number: usize| DeltaDiscoveryRequest {
        type_url: format!("type {number}"),
        ..ask(&["a"], &[])
    };
    assert_eq!(end((0..16).map(typed).collect()), None);
    assert!(matches!(
        end((0..17).map(typed).collect()),
        Some(StreamEndReason::TooMuch(_))
    ));
    let long = "x".repeat(5000);
    assert!(matches!(
        end(vec![ask(&[&long], &[])]),
        Some(StreamEndReason::TooMuch(_))
    ));
    let many = DeltaDiscoveryRequest {
        resource_names_subscribe: (0..100_001).map(|n| n.to_string()).collect(),
        ..ask(&[], &[])
    };
    assert!(matches!(end(vec![many]), Some(StreamEndReason::TooMuch(_))));
    assert!(matches!(
        end(vec![DeltaDiscoveryRequest::default()]),
        Some(StreamEndReason::Violation(_))
    ));
}
