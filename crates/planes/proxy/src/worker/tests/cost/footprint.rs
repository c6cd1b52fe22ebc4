//! Memory of a request and of an idle connection, counted by an allocator on the worker's thread. Clients and
//! applications run on threads of their own, so that only both roles of a sidecar are counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use voile_identity::{mesh_client_config, mesh_server_config};
use voile_telemetry::PeerLabels;
use voile_transport::{TransportStream, accept_tls, alpn, connect_tls};
use voile_xds::wire::{MutualTls, WireProtocol};

use super::instructions::{ANSWER, Asking, Traffic, application};
use crate::plan::{EndpointPlan, Settings};
use crate::worker::tests::http2::frames::{END_STREAM, until};
use crate::worker::tests::{PATIENCE, Stage, play, say};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

/// Bytes that this thread holds now.
pub(crate) fn held() -> i64 {
    BYTES.get()
}

/// The most bytes that this thread held since the last question.
pub(crate) fn take_most() -> i64 {
    MOST.replace(BYTES.get())
}

fn count(allocations: u64, bytes: i64) {
    // A thread that is ending counts nothing.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let held = BYTES.try_with(|count| {
        count.set(count.get() + bytes);
        count.get()
    });
    let _ = MOST.try_with(|most| most.set(most.get().max(held.unwrap_or(0))));
}

fn size(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[expect(unsafe_code, reason = "an allocator can only be counted by being one")]
// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, size(layout.size()));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -size(layout.size()));
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        count(1, size(new) - size(layout.size()));
        unsafe { System.realloc(pointer, layout, new) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Requests before counting begins, and requests counted.
const WARM_UP: u64 = 50;
const COUNTED: u64 = 1000;

/// Connections that wait.
const IDLE: usize = 100;

/// Connections before those, so that allocations made once are not counted.
const FIRST: usize = 10;

/// Allocations of rustls per request through two sidecars, whose two records are each encrypted once and decrypted once:
/// a buffer per record written, a buffer per record read, and a list of slices for the one that is written from head
/// and body. None is tokio-rustls' and none is ours.
const TLS_ALLOCATIONS: u64 = 5;

/// Allocations of a unary call in one role: the pump of its answer, a buffer for the data of each direction, and
/// the request's state that its route and a retry share.
const STREAM_ALLOCATIONS: u64 = 4;

/// Allocations of a request in both roles where the client's changes its version: its head and each piece of its bodies
/// are written as text once more. From HTTP/1.1 to HTTP/2 the server's role has a stream of its own.
const CROSSING_ALLOCATIONS: [(Traffic, u64); 2] =
    [(Traffic::Http2ToHttp1, 10), (Traffic::Http1ToHttp2, 20)];

/// As [`TLS_ALLOCATIONS`], where the output is one piece.
const TLS_ALLOCATIONS_OF_A_CALL: u64 = 4;

/// Allocations on the worker's thread for [`COUNTED`] requests that pass an outbound and an inbound listener.
fn allocations(traffic: Traffic, mode: MutualTls) -> u64 {
    allocations_under(traffic, mode, None)
}

/// The same where policies are asked.
fn allocations_under(
    traffic: Traffic,
    mode: MutualTls,
    policies: Option<crate::authorization::Authorization>,
) -> u64 {
    let counted = Cell::new(0);
    let protocol = traffic.protocol();
    play(|| async {
        let stage = Stage::new(Settings::default());
        stage.authorization.replace(policies);
        let application = application(traffic);
        let inbound = stage.inbound(protocol, mode, application).await;
        let expected = vec![stage.authority.identity("shop", "server")];
        let to = EndpointPlan {
            name: None,
            address: inbound,
            expected: (mode == MutualTls::Strict).then_some(expected),
            weight: 1,
            available: true,
            origination: None,
            rank: Default::default(),
            peer: PeerLabels::default(),
        };
        let outbound = stage.outbound(protocol, to).await;
        let (warm, is_warm) = oneshot::channel();
        let (start, may_start) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let client = thread::spawn(move || {
            let mut asking = Asking::new(traffic, outbound);
            asking.ask(WARM_UP);
            warm.send(()).expect("the test waits");
            may_start.recv().expect("the test says when");
            asking.ask(COUNTED);
            end.send(()).expect("the test waits");
        });
        is_warm.await.expect("the client lives");
        let before = ALLOCATIONS.get();
        start.send(()).expect("the client waits");
        ended.await.expect("the client lives");
        counted.set(ALLOCATIONS.get() - before);
        client.join().expect("the client is well");
    });
    counted.get()
}

/// Waking the test itself may cost one or two, whatever the number of requests.
const OWN: u64 = 5;

#[test]
fn a_steady_request_through_both_roles_allocates_nothing_in_plaintext() {
    let got = allocations(Traffic::Http, MutualTls::Disable);
    assert!(got <= OWN, "{got} allocations in {COUNTED} requests");
}

/// A thousand rules of paths and principals, the last of which matches what is asked.
fn thousand_rules(last: &str) -> crate::authorization::Authorization {
    let mut text = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: many, namespace: shop}\nspec:\n  rules:\n".to_owned();
    for number in 0..500 {
        text += &format!(
            "  - to: [{{operation: {{paths: [\"/no/{number}\", \"/no/{number}/*\"]}}}}]\n"
        );
        text += &format!(
            "  - from: [{{source: {{principals: [\"cluster.local/ns/no/sa/{number}\"]}}}}]\n"
        );
    }
    crate::authorization::Authorization::of_yaml(&(text + last))
}

#[test]
fn a_steady_request_under_a_thousand_rules_allocates_nothing() {
    let last = "  - to: [{operation: {methods: [GET], paths: [\"/p\"]}}]\n    when: [{key: \"request.headers[user-agent]\", values: [\"t\"]}]\n";
    let got = allocations_under(
        Traffic::Http,
        MutualTls::Disable,
        Some(thousand_rules(last)),
    );
    assert!(got <= OWN, "{got} allocations in {COUNTED} requests");
}

#[test]
fn a_steady_request_through_both_roles_allocates_only_what_tls_does() {
    let got = allocations(Traffic::Http, MutualTls::Strict);
    assert!(
        got <= TLS_ALLOCATIONS * COUNTED + OWN,
        "{got} allocations in {COUNTED} requests"
    );
}

#[test]
fn a_steady_grpc_call_through_both_roles_allocates_what_its_streams_are() {
    for (mode, tls) in [
        (MutualTls::Disable, 0),
        (MutualTls::Strict, TLS_ALLOCATIONS_OF_A_CALL),
    ] {
        let most = 2 * STREAM_ALLOCATIONS + tls;
        let got = allocations(Traffic::Grpc, mode);
        assert!(
            got <= most * COUNTED + OWN,
            "{mode:?}: {got} allocations in {COUNTED} calls"
        );
    }
}

#[test]
fn a_steady_request_that_crosses_versions_allocates_so_much() {
    for (traffic, most) in CROSSING_ALLOCATIONS {
        let got = allocations(traffic, MutualTls::Disable);
        assert!(
            got <= most * COUNTED + OWN,
            "{traffic:?}: {got} allocations in {COUNTED} requests"
        );
    }
}

/// The application behind mutual TLS: a peer's sidecar as far as ours can tell.
async fn encrypted_application(stage: &Stage) -> SocketAddr {
    let store = stage.authority.store("shop", "server");
    let config = mesh_server_config(&store, &[alpn::HTTP11, alpn::TCP]).expect("a configuration");
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        play(|| async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let listener = listener.expect("a port");
            let address = listener.local_addr().expect("an address");
            tell.send(address).expect("the test waits");
            let mut open = Vec::new();
            while open.len() < FIRST + IDLE {
                let (tcp, _) = listener.accept().await.expect("a caller");
                let stream = accept_tls(config.clone(), tcp.into(), PATIENCE).await;
                let mut stream = stream.expect("the handshake");
                hear_all(&mut stream, b"\r\n\r\n").await;
                say(&mut stream, ANSWER).await;
                open.push(stream);
            }
            // Until the proxy is gone.
            for mut stream in open {
                let _ = stream.read(&mut [0]).await;
            }
        });
    });
    told.await.expect("the thread lives")
}

/// Reads until `end`.
async fn hear_all(stream: &mut TransportStream, end: &[u8]) {
    let mut got = Vec::new();
    while !got.ends_with(end) {
        let read = stream.read_buf(&mut got).await.expect("bytes");
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&got));
    }
}

/// The answer to a request on a new connection.
async fn hear_answer(stream: &mut TransportStream, traffic: Traffic) {
    if !traffic.hello().is_empty() {
        let ended = until(stream, |frame| {
            frame.stream == 1 && frame.flags & END_STREAM != 0
        });
        ended.await.expect("an answer");
    } else {
        hear_all(stream, b"done").await;
    }
}

/// Which side of a sidecar a connection passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// Opens as many connections as is asked for, each for one exchange, and keeps them.
async fn open_on_demand(
    asked: &mpsc::Receiver<(usize, oneshot::Sender<()>)>,
    entry: SocketAddr,
    config: Option<&Arc<ClientConfig>>,
    traffic: Traffic,
) {
    let mut open = Vec::new();
    while let Ok((count, done)) = asked.recv() {
        // The first all at once: tasks that serve streams stay with the worker and wait for more, and how many there are
        // depends on how many streams there were at once.
        let at_once = match open.len() {
            0 => count,
            _ => 1,
        };
        for at in open.len()..open.len() + count {
            let tcp = tokio::net::TcpStream::connect(entry).await;
            let tcp = tcp.expect("connected");
            let name = ServerName::try_from("peer.invalid").expect("a name");
            let mut stream = match config {
                None => TransportStream::Tcp(tcp.into()),
                Some(config) => connect_tls(Arc::clone(config), name, tcp.into(), PATIENCE)
                    .await
                    .expect("the handshake"),
            };
            say(&mut stream, &[traffic.hello(), traffic.request(1)].concat()).await;
            open.push(stream);
            if (at + 1) % at_once == 0 {
                for stream in open.iter_mut().skip(at + 1 - at_once) {
                    hear_answer(stream, traffic).await;
                }
            }
        }
        done.send(()).expect("the test waits");
    }
}

/// Memory on the worker's thread of each connection that carried one exchange and is idle: our own memory, without the
/// allocator's overhead. It is the same whatever is built along, unless a crate enables tokio's `rt-multi-thread`. With
/// it a handle on the runtime is 16 bytes and not 8, and each socket and timer has one or two.
async fn idle_bytes(role: Role, protocol: WireProtocol, traffic: Traffic, mode: MutualTls) -> i64 {
    let stage = Stage::new(Settings::default());
    let encrypted = mode == MutualTls::Strict;
    let entry = match role {
        Role::Server => stage.inbound(protocol, mode, application(traffic)).await,
        Role::Client => {
            let expected = vec![stage.authority.identity("shop", "server")];
            let to = EndpointPlan {
                name: None,
                address: match encrypted {
                    true => encrypted_application(&stage).await,
                    false => application(traffic),
                },
                expected: encrypted.then_some(expected),
                weight: 1,
                available: true,
                origination: None,
                rank: Default::default(),
                peer: PeerLabels::default(),
            };
            stage.outbound(protocol, to).await
        }
    };
    let inner = match protocol {
        WireProtocol::Tcp => alpn::TCP,
        WireProtocol::Grpc => alpn::HTTP2,
        _ => alpn::HTTP11,
    };
    let store = stage.authority.store("shop", "client");
    let config = mesh_client_config(&store, &[inner]).expect("a configuration");
    let config = (encrypted && role == Role::Server).then_some(config);
    let (ask, asked) = mpsc::channel::<(usize, oneshot::Sender<()>)>();
    let client = thread::spawn(move || {
        play(|| open_on_demand(&asked, entry, config.as_ref(), traffic));
    });
    let open = async |count| {
        let (done, is_done) = oneshot::channel();
        ask.send((count, done)).expect("the client waits");
        is_done.await.expect("the client lives");
    };
    open(FIRST).await;
    let before = BYTES.get();

    open(IDLE).await;
    let each = (BYTES.get() - before) / size(IDLE);
    drop(ask);
    client.join().expect("the client is well");
    each
}

#[test]
fn an_idle_connection_is_small() {
    use MutualTls::{Disable, Permissive, Strict};
    use Traffic::{Grpc, Http, Http1ToHttp2, Http2ToHttp1};
    use WireProtocol as Port;
    let table = [
        (Role::Client, Port::Tcp, Http, Disable, 2_370),
        (Role::Client, Port::Auto, Http, Disable, 2_690),
        (Role::Client, Port::Http, Http, Disable, 2_690),
        (Role::Client, Port::Tcp, Http, Strict, 9_590),
        (Role::Server, Port::Tcp, Http, Disable, 2_400),
        (Role::Server, Port::Auto, Http, Permissive, 2_860),
        (Role::Server, Port::Http, Http, Disable, 2_860),
        (Role::Server, Port::Tcp, Http, Strict, 9_820),
        (Role::Server, Port::Http, Http, Strict, 10_290),
        // Callers of HTTP/2 servers share the connections to them, so this is one side only.
        (Role::Client, Port::Grpc, Grpc, Disable, 2_890),
        (Role::Server, Port::Grpc, Grpc, Disable, 3_090),
        (Role::Server, Port::Grpc, Grpc, Strict, 10_500),
        (Role::Client, Port::Http2, Http1ToHttp2, Disable, 2_690),
        (Role::Server, Port::Http2, Http1ToHttp2, Disable, 2_850),
        (Role::Client, Port::Http, Http2ToHttp1, Disable, 2_900),
        (Role::Server, Port::Http, Http2ToHttp1, Disable, 3_110),
    ];
    let mut wrong = Vec::new();
    for (role, protocol, traffic, mode, most) in table {
        let each = Cell::new(0);
        play(|| async {
            each.set(idle_bytes(role, protocol, traffic, mode).await);
        });
        let each = each.get();
        let case = format!("{role:?} {protocol:?} {traffic:?} {mode:?}: {each} bytes");
        println!("{case} of {most}");
        if !(most / 2..=most).contains(&each) {
            wrong.push(format!("{case}, more than {most} (or far less)"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
