//! One credential against the control plane: what it may ask for, over one stream and over many, and that others are told of changes in
//! time meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status, Streaming};
use voile_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use voile_proto::type_url::{
    ADDRESS, AUTHORIZATION_POLICY, CLUSTER, ENDPOINTS, LISTENER, PROXY_CONFIGURATION, ROUTES,
    SERVICE_POLICY, SERVICE_ROUTES,
};
use voile_xds::client::Credential;
use voile_xds::generated::ads::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use voile_xds::server::{MAX_MESSAGE_BYTES, STREAMS_PER_IDENTITY, STREAMS_PER_WORKLOAD};

use crate::harness::{Mesh, SECOND_ECHO, SHOP};
use crate::strangers::Subject;

/// Far beyond what a loaded machine needs.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest delay of a change's push on a loaded machine, in a debug build.
const PUSHED: Duration = Duration::from_secs(5);
const SERVICE: &str = "shop/echo.shop.svc.cluster.local";
const TYPES: [&str; 9] = [
    ADDRESS,
    SERVICE_POLICY,
    SERVICE_ROUTES,
    PROXY_CONFIGURATION,
    AUTHORIZATION_POLICY,
    LISTENER,
    CLUSTER,
    ROUTES,
    ENDPOINTS,
];

/// A stream, delta or state of the world.
struct Attack<Q, R> {
    says: mpsc::UnboundedSender<Q>,
    hears: Streaming<R>,
}

type Delta = Attack<DeltaDiscoveryRequest, DeltaDiscoveryResponse>;
type Whole = Attack<DiscoveryRequest, DiscoveryResponse>;

/// On the plaintext port, where a token is believed as well.
async fn connect(mesh: &Mesh) -> AggregatedDiscoveryServiceClient<tonic::transport::Channel> {
    let address = format!("http://{}", mesh.addresses.plaintext.unwrap());
    AggregatedDiscoveryServiceClient::connect(address)
        .await
        .unwrap()
}

fn with_token<Q>(
    mesh: &Mesh,
    requests: mpsc::UnboundedReceiver<Q>,
) -> Request<UnboundedReceiverStream<Q>> {
    let mut request = Request::new(UnboundedReceiverStream::new(requests));
    let Credential::Token(token) = mesh.token("client", None) else {
        panic!("tokens are minted");
    };
    let token = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", token);
    request
}

async fn delta(mesh: &Mesh) -> Result<Delta, Status> {
    let (says, requests) = mpsc::unbounded_channel();
    let request = with_token(mesh, requests);
    let mut client = connect(mesh).await;
    let hears = client.delta_aggregated_resources(request).await?;
    let hears = hears.into_inner();
    Ok(Attack { says, hears })
}

async fn whole(mesh: &Mesh) -> Whole {
    let (says, requests) = mpsc::unbounded_channel();
    let request = with_token(mesh, requests);
    let mut client = connect(mesh).await;
    let hears = client.stream_aggregated_resources(request).await;
    let hears = hears.unwrap().into_inner();
    Attack { says, hears }
}

impl<Q, R> Attack<Q, R> {
    fn say(&self, request: Q) {
        // A stream that has ended says so to who listens.
        let _ = self.says.send(request);
    }

    /// Its end.
    async fn end(&mut self) -> Status {
        let ends = async {
            loop {
                match self.hears.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it ends without a reason"),
                    Err(status) => return status,
                }
            }
        };
        tokio::time::timeout(DEADLINE, ends).await.expect("it ends")
    }

    async fn next(&mut self) -> R {
        let told = tokio::time::timeout(DEADLINE, self.hears.message()).await;
        told.expect("in time").unwrap().expect("not over")
    }
}

/// So many names that nobody has, each of so many bytes.
fn names(of: usize, number: usize, bytes: usize) -> Vec<String> {
    let name = |index| format!("{of}-{index}-{:x<bytes$}", "");
    (0..number).map(name).collect()
}

fn ask(type_url: &str, names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}

/// Another proxy hears of a change in time.
async fn others_are_told(mesh: &mut Mesh) {
    let mut other = mesh.client(mesh.token("echo", None));
    other.ask(ADDRESS, &[SERVICE]);
    let has = |count: usize| move |told: &crate::harness::Told| told.names(ADDRESS).len() == count;
    other.until(has(2)).await;
    let edited = Instant::now();
    mesh.edit("more.yaml", SECOND_ECHO);
    other.until(has(3)).await;
    assert!(edited.elapsed() < PUSHED, "{:?}", edited.elapsed());
    std::fs::remove_file(mesh.config().join("more.yaml")).unwrap();
    other.until(has(2)).await;
}

#[tokio::test]
async fn names_that_nobody_has_are_bounded_for_a_stream_and_for_all_streams_of_an_identity() {
    let mut mesh = Mesh::start(SHOP).await;
    // Two stay below what a stream may ask for; together they have what their identity may.
    let mut quiet = Vec::new();
    for of in 0..2 {
        let mut stream = delta(&mesh).await.unwrap();
        stream.say(ask(ADDRESS, names(of, 7_000, 20)));
        stream.next().await;
        quiet.push(stream);
    }
    for of in 2..5 {
        let mut stream = delta(&mesh).await.unwrap();
        for (index, type_url) in TYPES.into_iter().enumerate() {
            stream.say(ask(type_url, names(10 * of + index, 7_000, 20)));
        }
        let end = stream.end().await;
        assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    }
    let mut stream = whole(&mesh).await;
    for (index, type_url) in TYPES.into_iter().enumerate() {
        stream.say(DiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names: names(100 + index, 7_000, 20),
            ..DiscoveryRequest::default()
        });
    }
    let end = stream.end().await;
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    others_are_told(&mut mesh).await;
    drop(quiet);
}

#[tokio::test]
async fn what_a_caller_says_it_holds_is_bounded_in_number_and_length() {
    let mut mesh = Mesh::start(SHOP).await;
    let holds = |all: BTreeMap<String, String>| DeltaDiscoveryRequest {
        type_url: ADDRESS.to_owned(),
        initial_resource_versions: all,
        ..DeltaDiscoveryRequest::default()
    };
    let one =
        |name: usize, version: usize| BTreeMap::from([("n".repeat(name), "v".repeat(version))]);
    let many = names(0, 40_000, 60).into_iter();
    for all in [
        one(3_000, 10),
        one(10, 3_000),
        one(1_000_000, 10),
        many.map(|name| (name, "v".to_owned())).collect(),
        one(MAX_MESSAGE_BYTES + 1, 0),
    ] {
        let mut stream = delta(&mesh).await.unwrap();
        stream.say(holds(all));
        let end = stream.end().await;
        assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    }
    others_are_told(&mut mesh).await;
}

#[tokio::test]
async fn streams_of_one_identity_are_bounded() {
    let mut mesh = Mesh::start(SHOP).await;
    let most = STREAMS_PER_IDENTITY + STREAMS_PER_WORKLOAD;
    let mut all = Vec::new();
    let refused = loop {
        match delta(&mesh).await {
            Ok(stream) => all.push(stream),
            Err(refused) => break refused,
        }
        assert!(all.len() <= most, "as many as it likes");
    };
    assert_eq!((refused.code(), all.len()), (Code::ResourceExhausted, most));
    others_are_told(&mut mesh).await;
    drop(all.pop());
    let begun = Instant::now();
    while delta(&mesh).await.is_err() {
        assert!(begun.elapsed() < DEADLINE, "there is room again");
    }
}

#[tokio::test]
async fn asking_again_and_again_delays_nobody() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut stream = delta(&mesh).await.unwrap();
    stream.say(ask(ADDRESS, names(0, 3_000, 20)));
    let response = stream.next().await;
    stream.say(DeltaDiscoveryRequest {
        type_url: ADDRESS.to_owned(),
        response_nonce: response.nonce,
        ..DeltaDiscoveryRequest::default()
    });
    // Each has all 3,000 names looked at for sixty bytes: what it asks for is told to be absent, which it says it has heard. That this
    // ends is shown on a clock of its own, where the server's streams are tested.
    for nonce in 2..60 {
        stream.say(ask(ADDRESS, vec![format!("0-7-{:x<20}", "")]));
        stream.say(DeltaDiscoveryRequest {
            type_url: ADDRESS.to_owned(),
            response_nonce: nonce.to_string(),
            ..DeltaDiscoveryRequest::default()
        });
    }
    others_are_told(&mut mesh).await;
}

#[tokio::test]
async fn types_that_nobody_serves_are_answered_with_nothing_and_not_remembered() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut stream = delta(&mesh).await.unwrap();
    let of = |number: usize| format!("type.googleapis.com/unheard.of.T{number}");
    for number in 0..100 {
        stream.say(ask(&of(number), vec!["a".to_owned(), "*".to_owned()]));
        let told = stream.next().await;
        assert_eq!(told.type_url, of(number));
        assert!(told.resources.is_empty());
        assert_eq!(told.removed_resources, ["a"]);
        // An answer to that is not answered: the next response is the next question's.
        stream.say(DeltaDiscoveryRequest {
            type_url: of(number),
            response_nonce: told.nonce,
            ..DeltaDiscoveryRequest::default()
        });
    }
    stream.say(ask(ADDRESS, vec![SERVICE.to_owned()]));
    assert_eq!(stream.next().await.type_url, ADDRESS);
    let mut other = whole(&mesh).await;
    other.say(DiscoveryRequest {
        type_url: of(0),
        ..DiscoveryRequest::default()
    });
    assert!(other.next().await.resources.is_empty());
    let page = mesh.get("/debug/status").await;
    assert!(!page.contains("unheard"), "{page}");
    others_are_told(&mut mesh).await;
}

/// The test that is the control plane's process.
const SUBJECT: &str = "budget::subject";

#[test]
fn subject() {
    Mesh::serve();
}

/// Memory that one credential may cost the control plane, in bytes: its identity's allowance, and messages and answers on their way.
const ONE_CREDENTIAL: usize = 64 << 20;

#[tokio::test]
async fn one_credential_costs_the_control_plane_a_bounded_amount_of_memory() {
    let (mut mesh, subject) = Subject::start(SHOP, SUBJECT);
    let before = subject.memory("VmRSS:");
    let most = STREAMS_PER_IDENTITY + STREAMS_PER_WORKLOAD;
    let mut streams = Vec::new();
    for of in 0..most {
        let Ok(stream) = delta(&mesh).await else {
            break;
        };
        // None of the answers is read, and each message is almost as large as one may be.
        stream.say(ask(ADDRESS, names(of, 30_000, 100)));
        stream.say(ask(SERVICE_POLICY, names(of, 7_000, 20)));
        streams.push(stream);
    }
    others_are_told(&mut mesh).await;
    let grown = subject.memory("VmHWM:").saturating_sub(before);
    println!("{} streams, {} MiB", streams.len(), grown >> 20);
    assert!(grown < ONE_CREDENTIAL, "{} MiB", grown >> 20);
}
