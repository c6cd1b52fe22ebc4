//! HTTP/2 through both roles of a sidecar: an h2 client, an outbound listener, mutual TLS, an inbound listener, an h2 server.

pub(crate) mod conversions;
mod cut_answers;
pub(crate) mod frames;
mod grpc_errors;

use std::future::Future;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;
use voile_telemetry::PeerLabels;
use voile_xds::wire::{MutualTls, WireProtocol};

use super::{Stage, listen, play};
use crate::plan::{EndpointPlan, Settings};

/// An application that answers every stream with `handler`.
pub(super) async fn application<F: Future<Output = ()> + 'static>(
    handler: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + 'static,
) -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handler = handler.clone();
            tokio::task::spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.expect("a preface");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(handler(request, respond));
                }
            });
        }
    });
    address
}

pub(super) async fn client(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.expect("connected");
    let (send, connection) = h2::client::handshake(stream).await.expect("a preface");
    tokio::task::spawn_local(async move {
        // The connection's streams see its end.
        let _ = connection.await;
    });
    send.ready().await.expect("room for a stream")
}

/// Two sidecars in front of an application; gives where its callers connect.
async fn two_sidecars(stage: &Stage, mode: MutualTls, application: SocketAddr) -> SocketAddr {
    let inbound = stage.inbound(WireProtocol::Grpc, mode, application).await;
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
    stage.outbound(WireProtocol::Grpc, to).await
}

fn call(path: &str) -> Request<()> {
    Request::post(format!("http://server{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request")
}

pub(super) async fn read(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        all.extend_from_slice(&chunk);
        body.flow_control().release_capacity(chunk.len())?;
    }
    Ok(all)
}

/// Echoes the body, and says in trailers that all is well.
async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.uri().authority().expect("an authority"), "server");
    let response = Response::builder().header("content-type", "application/grpc");
    let mut send = respond
        .send_response(response.body(()).expect("a head"), false)
        .expect("sent");
    let mut body = request.into_body();
    while let Some(chunk) = body.data().await {
        let mut chunk = chunk.expect("a body");
        body.flow_control()
            .release_capacity(chunk.len())
            .expect("released");
        while !chunk.is_empty() {
            send.reserve_capacity(chunk.len());
            let room = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
            let room = room.expect("a stream").expect("room").min(chunk.len());
            send.send_data(chunk.split_to(room), false).expect("sent");
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    send.send_trailers(trailers).expect("sent");
}

#[test]
fn bodies_of_any_size_and_trailers_pass_two_sidecars() {
    for mode in [MutualTls::Disable, MutualTls::Strict] {
        play(|| async move {
            let stage = Stage::new(Settings::default());
            let address = two_sidecars(&stage, mode, application(echo).await).await;
            let mut client = client(address).await;
            for size in [0, 1, 1000, 3_000_000] {
                let (response, mut send) = client.send_request(call("/echo"), false).expect("sent");
                let body: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
                let sent = body.clone();
                tokio::task::spawn_local(async move {
                    let mut rest = Bytes::from(sent);
                    while !rest.is_empty() {
                        send.reserve_capacity(rest.len());
                        let room = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
                        let room = room.expect("a stream").expect("room").min(rest.len());
                        send.send_data(rest.split_to(room), false).expect("sent");
                    }
                    send.send_data(Bytes::new(), true).expect("sent");
                });
                let response = response.await.expect("an answer");
                assert_eq!(response.status(), 200);
                let mut answer = response.into_body();
                let got = read(&mut answer).await.expect("a body");
                assert!(got == body, "{} of {size} bytes came back", got.len());
                let trailers = answer.trailers().await.expect("an end").expect("trailers");
                assert_eq!(trailers["grpc-status"], "0");
            }
        });
    }
}

#[test]
fn a_callers_cancellation_reaches_the_application_with_its_code() {
    play(|| async {
        let (told, was_told) = tokio::sync::mpsc::unbounded_channel();
        let application = application(move |_, mut respond| {
            let told = told.clone();
            async move {
                told.send(None).expect("the test listens");
                let reason = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                told.send(reason.ok()).expect("the test listens");
            }
        })
        .await;
        let mut was_told = was_told;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, MutualTls::Strict, application).await;
        let mut client = client(address).await;
        let (_response, mut send) = client.send_request(call("/wait"), false).expect("sent");
        assert_eq!(was_told.recv().await, Some(None));
        send.send_reset(Reason::CANCEL);
        assert_eq!(was_told.recv().await, Some(Some(Reason::CANCEL)));
    });
}

#[test]
fn streams_end_with_a_connection_that_is_closed_for_want_of_memory() {
    play(|| async {
        let (told, mut was_told) = tokio::sync::mpsc::unbounded_channel();
        let application = application(move |_, mut respond| {
            let told = told.clone();
            async move {
                told.send(false).expect("the test listens");
                // The proxy may close the connection instead.
                let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                told.send(true).expect("the test listens");
            }
        })
        .await;
        let stage = Stage::new(Settings::default());
        stage.listed.set(true);
        let inbound = stage.inbound(WireProtocol::Grpc, MutualTls::Disable, application);
        let mut client = client(inbound.await).await;
        let (response, _send) = client.send_request(call("/wait"), false).expect("sent");
        assert_eq!(was_told.recv().await, Some(false));
        stage.worker.shed(voile_memory::ShedOrder {
            bytes: usize::MAX,
            ordinary: true,
        });
        assert!(response.await.is_err());
        assert_eq!(was_told.recv().await, Some(true));
    });
}

#[test]
fn an_applications_reset_reaches_the_caller_with_its_code() {
    play(|| async {
        let application = application(|_, mut respond| async move {
            respond.send_reset(Reason::INADEQUATE_SECURITY);
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, MutualTls::Strict, application).await;
        let mut client = client(address).await;
        let (response, _send) = client.send_request(call("/no"), true).expect("sent");
        let error = response.await.expect_err("a reset");
        assert_eq!(error.reason(), Some(Reason::INADEQUATE_SECURITY));
    });
}

#[test]
fn a_grpc_caller_learns_in_grpc_that_nobody_listens() {
    play(|| async {
        let nobody = listen().await.local_addr().expect("an address");
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, MutualTls::Strict, nobody).await;
        let mut client = client(address).await;
        let (response, _send) = client.send_request(call("/x"), true).expect("sent");
        let response = response.await.expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "14");
        assert!(response.body().is_end_stream());
        let plain = Request::get("http://server/x").body(()).expect("a request");
        let (response, _send) = client.send_request(plain, true).expect("sent");
        assert_eq!(response.await.expect("an answer").status(), 503);
    });
}
