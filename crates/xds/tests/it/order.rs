//! In what order types are told of one moment: what leads somewhere and what is led to, what is named and what names it.

use std::time::Instant;

use voile_proto::discovery::DeltaDiscoveryRequest;
use voile_proto::type_url::{ADDRESS, AUTHORIZATION, KEY_SET, SERVICE_POLICY, SERVICE_ROUTES};
use voile_xds::server::{Event, Stream};

use crate::server::{Things, shown};

/// A caller that asked for one thing of each of several types.
struct Talk {
    stream: Stream<()>,
    now: Instant,
    /// What it has not answered yet: types and nonces.
    unanswered: Vec<(String, String)>,
}

impl Talk {
    fn new(asks: &[(&str, &str)]) -> Self {
        let (mut stream, now) = (Stream::new(()), Instant::now());
        for (type_url, name) in asks {
            let request = DeltaDiscoveryRequest {
                type_url: (*type_url).to_owned(),
                resource_names_subscribe: vec![(*name).to_owned()],
                ..DeltaDiscoveryRequest::default()
            };
            let event = stream.receive(request, now).expect("a plain question");
            assert_eq!(event, Event::Subscribed);
        }
        Self {
            stream,
            now,
            unanswered: Vec::new(),
        }
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
            assert!(matches!(event, Ok(Event::Acknowledged { .. })), "{event:?}");
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
