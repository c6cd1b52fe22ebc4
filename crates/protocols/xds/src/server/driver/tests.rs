//! When a stream ends by itself: a caller that does not answer, on a clock of the test's own.

use std::future::poll_fn;

use tokio::time::advance;
use tonic::codegen::http::HeaderMap;
use voile_proto::discovery::DeltaDiscoveryRequest;

use super::*;
use crate::server::{Resolution, Resource, Streams, SubscriptionIndex};

const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// One resource under any name.
struct Everywhere;

impl Snapshot<()> for Everywhere {
    fn version(&self) -> Arc<str> {
        "1".into()
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

struct Nobody;

impl Observer<()> for Nobody {
    fn opened(&self, _: StreamId, (): &()) {}
    fn named(&self, _: StreamId, _: &str) {}
    fn event(&self, _: StreamId, _: &str, _: &RequestEvent) {}
    fn sent(&self, _: StreamId, _: &str, _: usize, _: usize) {}
    fn closed(&self, _: StreamId, _: &str) {}
}

/// A caller's end of a stream.
struct Talk {
    stream: Box<dyn ServedStream>,
    _snapshots: watch::Sender<Arc<dyn Snapshot<()>>>,
}

impl Talk {
    fn new() -> Self {
        let all: Arc<dyn Snapshot<()>> = Arc::new(Everywhere);
        let (sender, snapshots) = watch::channel(all);
        let streams = Streams::new(
            snapshots,
            Arc::<SubscriptionIndex>::default(),
            Arc::new(Nobody),
        );
        let stream = streams.open(DELTA, &HeaderMap::new(), ((), None), None);
        Self {
            stream: stream.expect("a stream"),
            _snapshots: sender,
        }
    }

    /// Says a request; how many bytes it is answered with.
    fn say(&mut self, name: &str, nonce: &str) -> usize {
        self.ask("one", name, nonce)
    }

    /// The same of a type.
    fn ask(&mut self, type_url: &str, name: &str, nonce: &str) -> usize {
        let names = match name {
            "" => Vec::new(),
            name => vec![name.to_owned()],
        };
        let request = DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: names,
            response_nonce: nonce.to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        let request = request.encode_to_vec();
        let length = u32::try_from(request.len()).expect("few bytes");
        let bytes = [&[0][..], &length.to_be_bytes(), &request].concat();
        let mut out = Vec::new();
        self.stream.hear(&bytes, &mut out).expect("it may be asked");
        out.len()
    }

    /// Its end, if that has come by now.
    async fn end(&mut self) -> Option<Status> {
        poll_fn(|context| match self.stream.poll(context, &mut Vec::new()) {
            Poll::Ready(status) => Poll::Ready(Some(status)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    /// Bytes of the next response. The clock wakes the stream, as it wakes its connection.
    async fn says(&mut self) -> usize {
        poll_fn(|context| {
            let mut out = Vec::new();
            match self.stream.poll(context, &mut out) {
                Poll::Ready(status) => panic!("it ended: {status}"),
                Poll::Pending if out.is_empty() => Poll::Pending,
                Poll::Pending => Poll::Ready(out.len()),
            }
        })
        .await
    }

    /// As whoever serves it is woken: by the clock, and not before.
    async fn ends(&mut self) -> Status {
        poll_fn(|context| self.stream.poll(context, &mut Vec::new())).await
    }
}

#[tokio::test(start_paused = true)]
async fn who_answers_nothing_for_half_a_minute_is_told_so() {
    let mut talk = Talk::new();
    assert!(talk.say("a", "") > 0, "it is told something");
    assert_eq!(talk.end().await.map(|status| status.code()), None);
    advance(Duration::from_secs(29)).await;
    assert_eq!(talk.end().await.map(|status| status.code()), None);
    let begun = tokio::time::Instant::now();
    let end = tokio::time::timeout(Duration::from_secs(3600), talk.ends()).await;
    let end = end.expect("it ends");
    assert_eq!(end.code(), Code::DeadlineExceeded);
    assert_eq!(end.message(), "no ACK or NACK of a response within 30s");
    assert!(begun.elapsed() < Duration::from_secs(2), "at once");
}

#[tokio::test(start_paused = true)]
async fn who_has_answered_is_waited_for() {
    let mut talk = Talk::new();
    assert!(talk.say("a", "") > 0, "it is told something");
    assert_eq!(talk.end().await.map(|status| status.code()), None);
    assert_eq!(talk.say("", "1"), 0, "an answer, and nothing is new");
    advance(Duration::from_secs(3600)).await;
    let waited = tokio::time::timeout(Duration::from_secs(3600), talk.ends()).await;
    assert!(waited.is_err(), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_clusters_that_do_not_get_warm_is_said_by_the_clock_alone() {
    let mut talk = Talk::new();
    assert!(talk.ask(type_url::CLUSTER, "c", "") > 0);
    assert_eq!(talk.ask(type_url::LISTENER, "l", ""), 0, "it waits");
    let begun = tokio::time::Instant::now();
    let said = tokio::time::timeout(Duration::from_secs(3600), talk.says()).await;
    assert!(said.is_ok_and(|bytes| bytes > 0));
    let waited = begun.elapsed();
    let around = Duration::from_millis(1_900)..Duration::from_millis(2_100);
    assert!(around.contains(&waited), "{waited:?}");
    // Both wait for their answers as all do.
    let end = tokio::time::timeout(Duration::from_secs(3600), talk.ends()).await;
    assert_eq!(end.expect("it ends").code(), Code::DeadlineExceeded);
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(31), "{waited:?}");
}

/// The work of one caller's messages is bounded, whatever they name.
#[tokio::test(start_paused = true)]
async fn asking_again_and_again_for_what_is_held_ends_for_all_streams_of_an_identity() {
    const NAMES: usize = 5_000;
    let mut talk = Talk::new();
    let say = |talk: &mut Talk, names: Vec<String>, nonce: String| {
        let request = DeltaDiscoveryRequest {
            type_url: "one".to_owned(),
            resource_names_subscribe: names,
            response_nonce: nonce,
            ..DeltaDiscoveryRequest::default()
        };
        let request = request.encode_to_vec();
        let length = u32::try_from(request.len()).expect("few bytes");
        let bytes = [&[0][..], &length.to_be_bytes(), &request].concat();
        talk.stream.hear(&bytes, &mut Vec::new())
    };
    let all = (0..NAMES).map(|number| format!("n{number}")).collect();
    say(&mut talk, all, String::new()).expect("it may be asked");
    // Each has all of them looked at, and is answered; the answer is acknowledged, or had better be.
    let mut rounds = 0;
    let end = loop {
        let nonce = if rounds % 2 == 0 { rounds / 2 + 1 } else { 0 };
        let names = if nonce == 0 {
            vec!["n7".to_owned()]
        } else {
            Vec::new()
        };
        let nonce = if nonce == 0 {
            String::new()
        } else {
            nonce.to_string()
        };
        match say(&mut talk, names, nonce) {
            Ok(()) => rounds += 1,
            Err(end) => break end,
        }
        assert!(rounds < 1_000, "as often as it likes");
    };
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    assert!((200..=600).contains(&rounds), "{rounds}");
    // Its acknowledgements alone are asked for by us, and are many.
    let mut quiet = Talk::new();
    assert!(quiet.say("a", "") > 0);
    for _ in 0..10_000 {
        quiet.say("", "1");
    }
}
