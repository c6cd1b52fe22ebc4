//! The client on a real stream whose server says less than it must. The clock stands still but for the client's own waits,
//! so that nobody waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};
use voile_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node,
};

use super::{ClientConfig, ClientState, Credential, CredentialSource, XdsClient};
use crate::generated::ads::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};

const TYPE: &str = "type.googleapis.com/test";

struct Nobody;

impl CredentialSource for Nobody {
    fn credential(&self) -> std::io::Result<Credential> {
        Ok(Credential::Anonymous)
    }
}

type Answers = mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>;

/// A server that reads and says nothing of its own accord.
struct Listener {
    /// Requests, each with the channel of its answers.
    heard: mpsc::UnboundedSender<(DeltaDiscoveryRequest, Answers)>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Listener {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        _: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("delta only"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (answers, sent) = mpsc::channel(8);
        let (heard, mut requests) = (self.heard.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                // A test that is over hears no more.
                let _ = heard.send((request, answers.clone()));
            }
        });
        Ok(Response::new(ReceiverStream::new(sent)))
    }
}

struct Stage {
    client: XdsClient,
    heard: mpsc::UnboundedReceiver<(DeltaDiscoveryRequest, Answers)>,
}

impl Stage {
    /// A client that wants `a`.
    async fn new() -> Self {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let socket = socket.expect("a port");
        let address = socket.local_addr().expect("an address");
        let (heard, asked) = mpsc::unbounded_channel();
        let service = AggregatedDiscoveryServiceServer::new(Listener { heard });
        tokio::spawn(
            tonic::transport::Server::builder()
                .serve_with_incoming(service, TcpListenerStream::new(socket)),
        );
        let config = ClientConfig {
            addresses: vec![format!("http://{address}")],
            root_certificate: None,
            node: Node::default(),
        };
        let applied = Arc::new(Mutex::new(0));
        let handler = move |_: &_| {
            *applied.lock().expect("not poisoned") += 1;
            Vec::new()
        };
        let client = XdsClient::start(
            config,
            Arc::new(Nobody),
            Box::new(handler),
            &tokio::runtime::Handle::current(),
        );
        client.subscribe(TYPE, ["a"]).expect("room");
        Self {
            client,
            heard: asked,
        }
    }

    async fn asked(&mut self) -> (Vec<String>, Answers) {
        let (request, answers) = self.heard.recv().await.expect("the server lives");
        (request.resource_names_subscribe, answers)
    }

    async fn until(&self, met: impl Fn(&ClientState) -> bool) -> ClientState {
        let mut state = self.client.state();
        let met = state.wait_for(|state| met(state)).await;
        met.expect("the client lives").clone()
    }
}

/// Nothing but the client's own deadlines moves the clock from here on: each is reached as soon as nobody has anything to do.
fn only_deadlines_pass() -> Instant {
    tokio::time::pause();
    Instant::now()
}

fn word(nonce: &str, removed: &[&str]) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        type_url: TYPE.to_owned(),
        nonce: nonce.to_owned(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..DeltaDiscoveryResponse::default()
    }
}

#[tokio::test]
async fn a_control_plane_that_says_nothing_is_left_after_forty_seconds_and_asked_anew() {
    let mut stage = Stage::new().await;
    let (names, _answers) = stage.asked().await;
    assert_eq!(names, ["a"]);
    stage.until(|state| state.connections == 1).await;
    let begun = only_deadlines_pass();
    let state = stage.until(|state| state.last_error.is_some()).await;
    let waited = begun.elapsed();
    tokio::time::resume();
    let error = state.last_error.unwrap_or_default();
    assert!(error.contains("it does not answer"), "{error}");
    assert!(error.contains("`a`"), "{error}");
    let expected = Duration::from_secs(39)..Duration::from_secs(41);
    assert!(expected.contains(&waited), "{waited:?}");
    assert_eq!(stage.asked().await.0, ["a"], "on a new stream");
}

#[tokio::test]
async fn a_control_plane_that_answers_and_turns_away_is_asked_ever_more_seldom() {
    let mut stage = Stage::new().await;
    let begun = Instant::now();
    let mut streams = 0;
    while streams < 8 {
        let (names, answers) = stage.asked().await;
        if names.is_empty() {
            continue; // an ACK
        }
        streams += 1;
        answers.send(Ok(word("1", &["a"]))).await.expect("sent");
        let refused = Status::unauthenticated("that is not for you");
        answers.send(Err(refused)).await.expect("sent");
    }
    // Between them seven waits of at least half of 10 ms, 20 ms and so on.
    let least = Duration::from_millis(5 * 127);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_control_plane_that_has_answered_is_not_waited_for() {
    let mut stage = Stage::new().await;
    let (_, answers) = stage.asked().await;
    // That there is none is an answer.
    answers.send(Ok(word("1", &["a"]))).await.expect("sent");
    stage.until(|state| state.connected).await;
    assert_eq!(stage.asked().await.0, Vec::<String>::new(), "the ACK");
    let begun = only_deadlines_pass();
    let error = stage.until(|state| state.last_error.is_some());
    let hour = Duration::from_secs(3600);
    assert!(tokio::time::timeout(hour, error).await.is_err());
    assert!(begun.elapsed() >= hour);
}

#[tokio::test]
async fn a_name_that_is_left_out_is_asked_for_on_a_new_stream() {
    let mut stage = Stage::new().await;
    let (_, answers) = stage.asked().await;
    answers.send(Ok(word("1", &["z"]))).await.expect("sent");
    stage.until(|state| state.connected).await;
    stage.asked().await;
    only_deadlines_pass();
    let state = stage.until(|state| state.last_error.is_some()).await;
    tokio::time::resume();
    assert!(state.last_error.unwrap_or_default().contains("`a`"));
    assert_eq!(stage.asked().await.0, ["a"]);
}
