//! Cost of a push in instructions, counted by valgrind so that it cannot creep up. It runs from the publication of a change to
//! its acknowledgement on the status page. TLS, HTTP/2 and the kernel are not in it: the rest is ours.

use std::env;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::SystemTime;

use http::HeaderMap;
use prost::Message;
use tokio::sync::watch;
use voile_identity::CallerProof;
use voile_model::{Identity, SourceFile};
use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use voile_proto::type_url::{ADDRESS, PROXY_CONFIGURATION, SERVICE_POLICY, SERVICE_ROUTES};
use voile_testkit::instructions::{COUNTED, ORDERS, begin_counting, count, end_counting};
use voile_xds::server::{ServedStream, Snapshot, Streams, SubscriptionIndex};

use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use crate::status::Status;
use crate::translate::translate;

const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SUBJECT: &str = "tests::push_cost::subject";
/// gRPC's head of a message, in bytes.
const HEAD_BYTES: usize = 5;
/// Services that each proxy uses, of two workloads each.
const SERVICES: usize = 10;
/// Instructions of a push and its acknowledgement in the profile under test (dev in CI: several times the release profile's).
const BOUND: u64 = 100_000;

fn service(number: usize) -> String {
    format!("shop/service-{number}.shop.svc.cluster.local")
}

/// The mesh with its first workload in this version.
fn snapshot(version: &str, before: Option<&MeshSnapshot>) -> MeshSnapshot {
    let mut text = String::new();
    // Writing into a String cannot fail.
    for number in 0..SERVICES {
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: service-{number}, namespace: shop}}\nspec:\n  selector: {{app: s{number}}}\n  ports: [{{name: http, port: 80}}]\n"
        );
    }
    for number in 0..2 * SERVICES {
        let version = if number == 0 { version } else { "v0" };
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: w{number}\n  namespace: shop\n  labels: {{app: s{}, version: {version}, sidecar.istio.io/inject: \"true\"}}\n\
             spec: {{serviceAccountName: client, containers: [{{name: app, image: none}}]}}\nstatus: {{podIP: 127.1.0.{}, phase: Running}}\n",
            number % SERVICES,
            number + 1
        );
    }
    let files = [SourceFile::new("mesh.yaml", text)];
    let mesh = voile_model::check(&files, None).0;
    translate(&mesh, before).0
}

/// One proxy's stream, without a connection.
struct Proxy {
    stream: Box<dyn ServedStream>,
    said: Vec<u8>,
}

impl Proxy {
    fn ask(&mut self, request: &DeltaDiscoveryRequest) {
        let message = request.encode_to_vec();
        let mut bytes = vec![0; HEAD_BYTES];
        let length = u32::try_from(message.len()).expect("it is short");
        bytes[1..].copy_from_slice(&length.to_be_bytes());
        bytes.extend(message);
        self.stream
            .hear(&bytes, &mut self.said)
            .expect("it may be asked");
    }

    /// Lets the stream look for news; what it said.
    fn turn(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let over = self.stream.poll(&mut context, &mut self.said);
        assert!(over.is_pending(), "the stream goes on");
    }

    /// Responses so far, as the proxy reads them.
    fn heard(&mut self) -> Vec<DeltaDiscoveryResponse> {
        let mut all = Vec::new();
        let mut rest = &self.said[..];
        while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let (message, after) = after.split_at(length as usize);
            all.push(DeltaDiscoveryResponse::decode(message).expect("a response"));
            rest = after;
        }
        self.said.clear();
        all
    }

    /// Acknowledges all that was said, until nothing more is; how many responses there were.
    fn settle(&mut self) -> usize {
        let mut number = 0;
        loop {
            let all = self.heard();
            if all.is_empty() {
                return number;
            }
            number += all.len();
            for response in all {
                self.ask(&DeltaDiscoveryRequest {
                    type_url: response.type_url,
                    response_nonce: response.nonce,
                    ..DeltaDiscoveryRequest::default()
                });
            }
        }
    }
}

fn proxies(streams: &Streams<SnapshotCaller>, number: u64) -> Vec<Proxy> {
    let identity = "spiffe://cluster.local/ns/shop/sa/client".parse::<Identity>();
    let caller = SnapshotCaller::Known(voile_identity::AuthenticatedCaller {
        identity: identity.expect("an identity"),
        pod: Some("w1".to_owned()),
        proof: CallerProof::Token,
        until: SystemTime::UNIX_EPOCH,
        certificates: Box::default(),
    });
    let services: Vec<String> = (0..SERVICES).map(service).collect();
    let begin = |_| {
        let opened = streams.open(DELTA, &HeaderMap::new(), (caller.clone(), None), None);
        let Ok(stream) = opened else {
            panic!("the stream begins");
        };
        let mut proxy = Proxy {
            stream,
            said: Vec::new(),
        };
        for (type_url, names) in [
            (PROXY_CONFIGURATION, vec!["shop/w1".to_owned()]),
            (ADDRESS, services.clone()),
            (SERVICE_POLICY, services.clone()),
            (SERVICE_ROUTES, services.clone()),
        ] {
            proxy.ask(&DeltaDiscoveryRequest {
                type_url: type_url.to_owned(),
                resource_names_subscribe: names,
                ..DeltaDiscoveryRequest::default()
            });
        }
        proxy.settle();
        proxy.turn();
        assert_eq!(proxy.settle(), 0, "everything was said");
        proxy
    };
    (0..number).map(begin).collect()
}

#[test]
#[ignore = "the test below runs it under valgrind"]
fn subject() {
    if env::var(ORDERS).is_err() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let mut last = Arc::new(snapshot("v0", None));
    let first: Arc<dyn Snapshot<SnapshotCaller>> = last.clone();
    let (publish, snapshots) = watch::channel(first);
    let (interest, status) = (
        Arc::new(SubscriptionIndex::default()),
        Arc::new(Status::default()),
    );
    let streams = Streams::new(snapshots, interest.clone(), status);
    let mut proxies = proxies(&streams, COUNTED);
    for (round, counted) in [("v1", false), ("v2", true)] {
        let new = Arc::new(snapshot(round, Some(&last)));
        let touched = new.touched_since(&last);
        // As proxies write it: the nonces of all are alike by now.
        let mut answers = Vec::new();
        publish.send_replace(new.clone());
        if counted {
            begin_counting();
        }
        interest.publish(black_box(&touched));
        proxies.iter_mut().for_each(Proxy::turn);
        if counted {
            end_counting();
        }
        for proxy in &mut proxies {
            let said = proxy.heard();
            assert_eq!(said.len(), 1, "one response: {said:?}");
            assert_eq!(said[0].resources.len(), 1, "of what changed");
            answers.extend(said.into_iter().map(|response| DeltaDiscoveryRequest {
                type_url: response.type_url,
                response_nonce: response.nonce,
                ..DeltaDiscoveryRequest::default()
            }));
        }
        if counted {
            begin_counting();
        }
        for (proxy, answer) in proxies.iter_mut().zip(&answers) {
            proxy.ask(black_box(answer));
        }
        if counted {
            end_counting();
        }
        last = new;
    }
}

#[test]
fn a_push_and_its_acknowledgement_are_few_instructions() {
    let Some(counts) = count(SUBJECT, 2) else {
        return;
    };
    println!(
        "{} for a push, {} for its acknowledgement",
        counts[0], counts[1]
    );
    let both: u64 = counts.iter().sum();
    assert!(both <= BOUND, "{both} instructions for a push");
}
