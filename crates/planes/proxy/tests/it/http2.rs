//! Timeouts of the HTTP/2 engine, and its tunnels.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use voile_proxy::http::{
    Buffers, ConnectFailure, Drain, Exchange, HttpHead, HttpRole, HttpTimeouts, HttpWorker,
    RequestRoute, RoleRefusal, UpstreamHttp,
};

use crate::http::stage::{eventually, play};

struct Role {
    upstream: SocketAddr,
    records: RefCell<Vec<(u16, &'static str)>>,
}

impl HttpRole for Role {
    type Upstream = TcpStream;
    type Key = ();
    type Ticket = ();
    type Question = ();

    fn route(&self, _: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let mut route = RequestRoute::new((), ());
        route.upstream = UpstreamHttp::Http2;
        Ok(route)
    }

    async fn connect(&self, _: &RequestRoute<Self>) -> Result<TcpStream, ConnectFailure> {
        let stream = TcpStream::connect(self.upstream).await;
        stream.map_err(|_| ConnectFailure::new("connect"))
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let record = (exchange.status, exchange.details);
        self.records.borrow_mut().push(record);
    }
}

/// A server that accepts and never says a word.
async fn silent_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    address
}

/// A server that grants every tunnel and says nothing in it.
async fn granting_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let mut open = Vec::new();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let send = respond.send_response(Response::new(()), false).unwrap();
            open.push((request, send));
        }
    });
    address
}

/// A proxy in front of `upstream`, and its client.
async fn stage(upstream: SocketAddr, timeouts: HttpTimeouts) -> (Rc<Role>, SendRequest<Bytes>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let role = Rc::new(Role {
        upstream,
        records: RefCell::default(),
    });
    let worker = HttpWorker::<Role>::new(Buffers::new(), Drain::new(), timeouts);
    let serving = Rc::clone(&role);
    tokio::task::spawn_local(async move {
        let (stream, _) = listener.accept().await.unwrap();
        voile_proxy::http2::serve_connection(&worker, serving, stream).await;
    });
    let stream = TcpStream::connect(address).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::task::spawn_local(async move {
        // The connection's streams see its end.
        let _ = connection.await;
    });
    (role, send.ready().await.unwrap())
}

/// Status of a request that sends `body` (and perhaps never its end), and the recorded details.
async fn ask(timeouts: HttpTimeouts, grpc: bool, end: bool) -> (u16, &'static str) {
    let (role, mut send) = stage(silent_server().await, timeouts).await;
    let kind = if grpc {
        "application/grpc"
    } else {
        "text/plain"
    };
    let request = Request::post("http://server/").header("content-type", kind);
    let (response, mut body) = send.send_request(request.body(()).unwrap(), false).unwrap();
    body.send_data("abc".into(), end).unwrap();
    let response = response.await.unwrap();
    eventually("recorded", || !role.records.borrow().is_empty()).await;
    let (status, details) = role.records.borrow()[0];
    assert_eq!(response.status(), status);
    (status, details)
}

/// Short, and far from the others.
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_server_that_does_not_answer_in_time_is_answered_for() {
    play(|| async {
        let timeouts = HttpTimeouts {
            request: Some(SHORT),
            ..HttpTimeouts::default()
        };
        assert_eq!(ask(timeouts, false, true).await, (504, "response_timeout"));
        assert_eq!(ask(timeouts, true, true).await, (200, "response_timeout"));
    });
}

#[test]
fn a_client_that_dawdles_over_its_body_gets_408() {
    play(|| async {
        let idle = HttpTimeouts {
            stream_idle: SHORT,
            ..HttpTimeouts::default()
        };
        assert_eq!(ask(idle, false, false).await, (408, "stream_idle_timeout"));
        let slow = HttpTimeouts {
            body_grace: SHORT,
            min_body_rate: 1_000_000,
            ..HttpTimeouts::default()
        };
        assert_eq!(ask(slow, false, false).await, (408, "stream_idle_timeout"));
    });
}

#[test]
fn a_tunnel_without_bytes_ends() {
    play(|| async {
        let timeouts = HttpTimeouts {
            tunnel_idle: SHORT,
            ..HttpTimeouts::default()
        };
        let (role, mut send) = stage(granting_server().await, timeouts).await;
        let request = Request::connect("a.test:443").body(()).unwrap();
        let (response, _open) = send.send_request(request, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let end = response.into_body().data().await.unwrap().unwrap_err();
        assert_eq!(end.reason(), Some(h2::Reason::CANCEL));
        eventually("recorded", || !role.records.borrow().is_empty()).await;
        assert_eq!(*role.records.borrow(), [(200, "stream_idle_timeout")]);
    });
}

/// The status of a gRPC reply is 200, which would tell the client of a tunnel that there is one.
#[test]
fn a_tunnel_for_grpc_that_cannot_be_opened_is_refused_by_its_status() {
    play(|| async {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = nobody.local_addr().unwrap();
        drop(nobody);
        let (_, mut send) = stage(address, HttpTimeouts::default()).await;
        let request = Request::connect("a.test:443").header("content-type", "application/grpc");
        let (response, _open) = send.send_request(request.body(()).unwrap(), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 503);
    });
}
