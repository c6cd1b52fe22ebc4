//! Compares a stream's cached sets of types with a full search.

use voile_proto::discovery::Node;

use super::*;

/// One resource under any name, in a version that is set from outside.
struct Everywhere(u32);

impl Snapshot<()> for Everywhere {
    fn version(&self) -> Arc<str> {
        self.0.to_string().into()
    }

    fn resolve(&self, (): &(), _: &str, name: &str) -> Resolution {
        Resolution::Found(vec![Arc::new(Resource {
            name: name.into(),
            aliases: Vec::new(),
            version: self.version(),
            body: Arc::from(name.as_bytes()),
        })])
    }

    fn everything(&self, (): &(), _: &str) -> Resolution {
        Resolution::Unknown
    }

    fn introduce(&self, (): &mut (), _: &Node) {}
}

fn ask(stream: &mut DiscoveryStream<()>, of: &str, nonce: &str, now: Instant) {
    let names = match nonce {
        "" => vec!["a".to_owned()],
        _ => Vec::new(),
    };
    let request = DeltaDiscoveryRequest {
        type_url: of.to_owned(),
        resource_names_subscribe: names,
        response_nonce: nonce.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    stream.receive(request, now).expect("it may be asked");
}

#[test]
fn the_soonest_end_is_never_after_the_end_and_is_it_once_looked_up() {
    let begun = Instant::now();
    let at = |seconds: u64| begun + Duration::from_secs(seconds);
    let mut stream = DiscoveryStream::new(());
    for of in ["one", "two"] {
        ask(&mut stream, of, "", begun);
    }
    let told = |stream: &mut DiscoveryStream<()>, seconds| {
        let due = stream.next(&Everywhere(1), at(seconds));
        due.map(|due| (due.type_url, due.nonce))
    };
    assert_eq!(stream.soonest(), None);
    let (_, mut first) = told(&mut stream, 0).expect("a response");
    let (_, mut second) = told(&mut stream, 1).expect("another");
    assert_eq!(stream.soonest(), Some(begun + ACK_DEADLINE));
    assert_eq!(told(&mut stream, 1), None);
    // Answers to what was never said answer nothing.
    for _ in 0..2 {
        ask(&mut stream, "one", "999", at(1));
    }
    assert_eq!(stream.soonest(), Some(begun + ACK_DEADLINE));
    // Never is nothing under way, for longer than anybody may be silent.
    for seconds in (10..100).step_by(10) {
        ask(&mut stream, "one", &first, at(seconds));
        stream.changed();
        let all = Everywhere(u32::try_from(seconds).expect("few"));
        first = stream.next(&all, at(seconds)).expect("news").nonce;
        assert!(stream.soonest() <= stream.deadline());
        ask(&mut stream, "two", &second, at(seconds + 1));
        second = stream.next(&all, at(seconds + 1)).expect("news").nonce;
        assert!(stream.soonest() <= stream.deadline());
    }
    let exact = stream.deadline();
    assert!(stream.soonest() < exact, "it was not looked up");
    assert_eq!(stream.look_up_deadline(), exact);
    assert_eq!(stream.soonest(), exact);
    for (of, nonce) in [("one", first), ("two", second)] {
        ask(&mut stream, of, &nonce, at(100));
    }
    assert_eq!((stream.soonest(), stream.deadline()), (None, None));
    assert_eq!(told(&mut stream, 101), None, "nothing is new");
}

/// More than one response takes, for whoever asks for everything.
struct Much {
    at_once: bool,
}

impl Snapshot<()> for Much {
    fn version(&self) -> Arc<str> {
        "1".into()
    }

    fn resolve(&self, (): &(), _: &str, _: &str) -> Resolution {
        Resolution::Unknown
    }

    fn everything(&self, (): &(), _: &str) -> Resolution {
        let large = |name: &str| {
            Arc::new(Resource {
                name: name.into(),
                aliases: Vec::new(),
                version: "1".into(),
                body: vec![0; MAX_RESPONSE_BYTES / 2 + 1].into(),
            })
        };
        Resolution::Found(["a", "b", "c"].map(large).into())
    }

    fn is_told_at_once(&self, (): &(), _: &str) -> bool {
        self.at_once
    }
}

#[test]
fn who_takes_an_answer_for_all_there_is_gets_all_of_it_and_others_piece_by_piece() {
    let now = Instant::now();
    for (at_once, names, expected) in [
        (true, &["*"][..], &[3][..]),
        (false, &["*"], &[1, 1, 1]),
        (true, &[], &[3]),
        (true, &["d"], &[0]),
    ] {
        let mut stream = DiscoveryStream::new(());
        let request = DeltaDiscoveryRequest {
            type_url: "one".to_owned(),
            resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
            ..DeltaDiscoveryRequest::default()
        };
        stream.receive(request, now).expect("it may be asked");
        let mut told = Vec::new();
        while let Some(due) = stream.next(&Much { at_once }, now) {
            told.push(due.resources.len());
            let acknowledged = DeltaDiscoveryRequest {
                type_url: due.type_url,
                response_nonce: due.nonce,
                ..DeltaDiscoveryRequest::default()
            };
            stream.receive(acknowledged, now).expect("an answer");
        }
        assert_eq!(told, expected, "{names:?}");
    }
}
