//! What a stream remembers so as not to look at all of its types, beside what it would find.

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

fn ask(stream: &mut Stream<()>, of: &str, nonce: &str, now: Instant) {
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
    let mut stream = Stream::new(());
    for of in ["one", "two"] {
        ask(&mut stream, of, "", begun);
    }
    let told = |stream: &mut Stream<()>, seconds| {
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
