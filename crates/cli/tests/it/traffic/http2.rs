//! HTTP/2 and gRPC through two sidecars and mutual TLS, by a client and a server that are no proxies of ours; and by
//! strangers' tools where they are installed.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::mesh::{Mesh, Process, series, wait_until};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a client's play on one thread, with a deadline.
pub(crate) fn play<F: Future<Output = ()>>(act: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime.expect("a runtime"), async {
        tokio::time::timeout(PATIENCE, act())
            .await
            .expect("the play ends in time");
    });
}

/// A gRPC server: `/echo` sends every message back as it comes, `/late` waits for the client to give up, `/cut` breaks its answer off,
/// anything else is unknown.
pub(crate) async fn serve(
    address: SocketAddr,
    given_up: tokio::sync::mpsc::UnboundedSender<Reason>,
) {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .expect("the application's address");
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let given_up = given_up.clone();
            tokio::task::spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.expect("a preface");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(answer(request, respond, given_up.clone()));
                }
            });
        }
    });
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    given_up: tokio::sync::mpsc::UnboundedSender<Reason>,
) {
    let head = || Response::builder().header("content-type", "application/grpc");
    let path = request.uri().path().to_owned();
    if path == "/late" {
        let reason = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        given_up
            .send(reason.expect("a reset"))
            .expect("the test listens");
        return;
    }
    if path == "/cut" {
        let head = head().body(()).expect("a head");
        let mut send = respond.send_response(head, false).expect("sent");
        send.send_reset(Reason::CANCEL);
        return;
    }
    if path != "/echo" {
        let unknown = head().header("grpc-status", "12").body(());
        respond
            .send_response(unknown.expect("a head"), true)
            .expect("sent");
        return;
    }
    let ok = head().body(()).expect("a head");
    let mut send = respond.send_response(ok, false).expect("sent");
    let mut body = request.into_body();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.expect("a body");
        body.flow_control()
            .release_capacity(chunk.len())
            .expect("released");
        send.send_data(chunk, false).expect("sent");
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    send.send_trailers(trailers).expect("sent");
}

pub(crate) async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("connected");
    let (send, connection) = h2::client::handshake(stream).await.expect("a preface");
    tokio::task::spawn_local(async move {
        // The streams report the end of the connection.
        let _ = connection.await;
    });
    send.ready().await.expect("room for a stream")
}

pub(crate) fn call(path: &str) -> Request<()> {
    Request::post(format!("http://server.shop.svc.cluster.local:7070{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request")
}

/// A message of gRPC.
pub(crate) fn message(text: &str) -> Bytes {
    let length = u32::try_from(text.len()).expect("short");
    [&[0][..], &length.to_be_bytes(), text.as_bytes()]
        .concat()
        .into()
}

#[test]
fn grpc_streams_cross_both_sidecars_message_by_message_and_are_counted_as_grpc() {
    let mesh = Mesh::start("STRICT");
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    play(|| async move {
        let (given_up, mut was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(app, given_up).await;
        let mut client = connect(address).await;
        // A conversation: each message is answered before the next is sent.
        let (response, mut send) = client.send_request(call("/echo"), false).expect("sent");
        send.send_data(message("one"), false).expect("sent");
        let mut body = response.await.expect("an answer").into_body();
        for text in ["one", "two", "three"] {
            if text != "one" {
                send.send_data(message(text), false).expect("sent");
            }
            let got = body.data().await.expect("open").expect("a message");
            assert_eq!(got, message(text));
        }
        send.send_data(Bytes::new(), true).expect("sent");
        while let Some(rest) = body.data().await {
            assert!(rest.expect("the end").is_empty());
        }
        let trailers = body.trailers().await.expect("an end").expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        // A call that is given up is given up at the server too, once it is under way: as it is when one behind it is answered.
        let (_response, mut send) = client.send_request(call("/late"), false).expect("sent");
        // A status without a body.
        let (response, _) = client.send_request(call("/what"), true).expect("sent");
        assert_eq!(
            response.await.expect("an answer").headers()["grpc-status"],
            "12"
        );
        send.send_reset(Reason::CANCEL);
        assert_eq!(was_given_up.recv().await, Some(Reason::CANCEL));
    });
    let counted = |metrics: String, name: &str, more: &str| {
        series(&metrics, name, &["request_protocol=\"grpc\"", more])
    };
    wait_until("both calls are counted", || {
        let calls = counted(
            mesh.server_metrics(),
            "istio_requests_total",
            "grpc_response_status=\"12\"",
        );
        calls == Some(1.0)
    });
    for (name, value) in [
        ("istio_requests_total", 1.0),
        ("istio_request_messages_total", 3.0),
        ("istio_response_messages_total", 3.0),
    ] {
        for metrics in [mesh.server_metrics(), mesh.client_metrics()] {
            let got = counted(metrics.clone(), name, "grpc_response_status=\"0\"");
            assert_eq!(got, Some(value), "{name}: {metrics}");
        }
    }
    let secured = counted(mesh.server_metrics(), "istio_requests_total", "mutual_tls");
    assert!(secured.is_some(), "by mutual TLS");
}

#[test]
fn a_draining_sidecar_says_goaway_and_finishes_its_streams() {
    let mut mesh = Mesh::start("STRICT");
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    play(|| async {
        let (given_up, _) = tokio::sync::mpsc::unbounded_channel();
        serve(app, given_up).await;
        let mut client = connect(address).await;
        let (response, mut send) = client.send_request(call("/echo"), false).expect("sent");
        send.send_data(message("before"), false).expect("sent");
        let mut body = response.await.expect("an answer").into_body();
        assert_eq!(
            body.data().await.expect("open").expect("bytes"),
            message("before")
        );
        mesh.client.terminate();
        // From GOAWAY on the connection takes no new stream.
        while let Ok((response, _)) = client.send_request(call("/what"), true) {
            if response.await.is_err() {
                break;
            }
            match client.ready().await {
                Ok(ready) => client = ready,
                Err(_) => break,
            }
        }
        send.send_data(message("after"), true).expect("sent");
        assert_eq!(
            body.data().await.expect("open").expect("bytes"),
            message("after")
        );
        while let Some(rest) = body.data().await {
            assert!(rest.expect("the end").is_empty());
        }
        let trailers = body.trailers().await.expect("an end").expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
    });
    assert!(mesh.client.wait().success());
}

fn echo(address: SocketAddr) -> Process {
    let process = Process::start("echo", |voile| {
        voile.args(["echo", "--listen", &address.to_string()]);
    });
    wait_until("the application listens", || {
        std::net::TcpStream::connect(address).is_ok()
    });
    process
}

#[test]
fn h2spec_finds_only_what_rfc_9113_allows() {
    let Some(h2spec) = program(Prerequisite::H2spec, "h2spec") else {
        return;
    };
    let mesh = Mesh::start("PERMISSIVE");
    let _apps = [echo(mesh.grpc_app()), echo(mesh.http_app_address())];
    for (address, shared) in [
        (mesh.grpc(), false),
        (mesh.http(), true),
        (mesh.inbound(crate::mesh::GRPC_PORT), false),
        (mesh.inbound(crate::mesh::HTTP_PORT), true),
    ] {
        assert_h2spec(&h2spec, address, shared);
    }
}

/// Asks all of h2spec's cases. On a port that also speaks HTTP/1.1 what is no preface is a bad request of HTTP/1.1 (section 3.4
/// leaves out GOAWAY since "an invalid preface indicates that the peer is not using HTTP/2").
pub(crate) fn assert_h2spec(h2spec: &std::path::Path, address: SocketAddr, shared: bool) {
    let output = Command::new(h2spec)
        .args([
            "-o",
            "5",
            "-P",
            "/?size=10",
            "-h",
            &address.ip().to_string(),
        ])
        .args(["-p", &address.port().to_string()])
        .output()
        .expect("h2spec starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let verdict = text.lines().rev().find(|line| line.contains(" failed"));
    let wanted = format!(" {} failed", u8::from(shared));
    assert!(
        verdict.is_some_and(|line| line.ends_with(&wanted)),
        "{address}: {text}"
    );
    if shared {
        assert!(
            text.contains("\u{d7} 2: Sends invalid connection preface"),
            "{text}"
        );
    }
}
