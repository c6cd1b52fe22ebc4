//! Two engines in a row with TLS between them, as between sidecars: bytes that a session holds back must never be
//! forgotten.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use voile_proxy::http::{
    Buffers, ConnectFailure, Drain, Exchange, HttpHead, HttpRole, HttpTimeouts, HttpWorker,
    RequestRoute, RoleRefusal, serve_connection,
};
use voile_testkit::{TestAuthority, hostile_client_config, hostile_server_config};
use voile_transport::{TransportStream, accept_tls, connect_tls};

use super::stage::{PATIENCE, play, read_until};

const LIMIT: Duration = PATIENCE;

struct HopRole {
    upstream: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
}

impl HttpRole for HopRole {
    type Upstream = TransportStream;
    type Key = ();
    type Ticket = ();
    type Question = ();

    fn route(&self, _: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        Ok(RequestRoute::new((), ()))
    }

    async fn connect(&self, _: &RequestRoute<Self>) -> Result<TransportStream, ConnectFailure> {
        let tcp = TcpStream::connect(self.upstream)
            .await
            .map_err(|_| ConnectFailure::new("tcp"))?;
        tcp.set_nodelay(true).unwrap();
        let Some(config) = self.tls.clone() else {
            return Ok(TransportStream::Tcp(tcp.into()));
        };
        let name = ServerName::try_from("peer.invalid").unwrap();
        let tls = connect_tls(config, name, tcp.into(), LIMIT).await;
        tls.map_err(|_| ConnectFailure::new("tls"))
    }

    fn record(&self, _: Exchange<'_, Self>) {}
}

/// A hop that accepts with or without TLS.
async fn hop(
    role: HopRole,
    accept: Option<Arc<rustls::ServerConfig>>,
) -> (SocketAddr, Rc<HttpWorker<HopRole>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let worker = HttpWorker::new(Buffers::new(), Drain::new(), HttpTimeouts::default());
    let (role, shared) = (Rc::new(role), worker.clone());
    tokio::task::spawn_local(worker.keeper());
    tokio::task::spawn_local(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            tcp.set_nodelay(true).unwrap();
            let (worker, role, accept) = (shared.clone(), role.clone(), accept.clone());
            tokio::task::spawn_local(async move {
                let stream = match accept {
                    Some(config) => accept_tls(config, tcp.into(), LIMIT).await.unwrap(),
                    None => TransportStream::Tcp(tcp.into()),
                };
                serve_connection(&worker, &*role, stream, b"").await;
            });
        }
    });
    (address, worker)
}

/// Answers each request with its own body, so that both ways carry the same.
async fn echo(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::task::spawn_local(async move {
            loop {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let length = head
                    .split("Content-Length: ")
                    .nth(1)
                    .and_then(|rest| rest.split("\r\n").next());
                let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
                stream.read_exact(&mut body).await.unwrap();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&body).await.unwrap();
            }
        });
    }
}

#[test]
fn bodies_of_every_size_cross_two_hops_under_tls_unchanged_on_one_connection() {
    play(|| async {
        let authority = TestAuthority::new();
        let shown = authority.with_names(&["spiffe://cluster.local/ns/a/sa/b"], &[]);
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let application = server.local_addr().unwrap();
        tokio::task::spawn_local(echo(server));
        let inbound = HopRole {
            upstream: application,
            tls: None,
        };
        let (inner, _inner_worker) = hop(inbound, Some(hostile_server_config(&shown))).await;
        let outbound = HopRole {
            upstream: inner,
            tls: Some(hostile_client_config(Some(&shown))),
        };
        let (outer, worker) = hop(outbound, None).await;
        let mut client = TcpStream::connect(outer).await.unwrap();
        // Around a record, around a buffer, and far beyond both.
        for size in [
            0, 1, 1024, 4096, 16_000, 16_384, 16_385, 32_768, 65_537, 3_000_000,
        ] {
            let body: Vec<u8> = (0..size).map(|at: usize| ((at * 31) >> 3) as u8).collect();
            let head = format!("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n");
            let (mut from, mut to) = client.split();
            let send = async {
                to.write_all(head.as_bytes()).await.unwrap();
                to.write_all(&body).await.unwrap();
            };
            let receive = async {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(from.read_u8().await.unwrap());
                }
                let mut got = vec![0; size];
                from.read_exact(&mut got).await.unwrap();
                assert!(String::from_utf8_lossy(&head).starts_with("HTTP/1.1 200 OK\r\n"));
                got
            };
            let ((), got) = tokio::join!(send, receive);
            assert!(got == body, "{size} bytes");
            assert!(worker.idle_upstreams() <= 1);
        }
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        read_until(&mut client, "Content-Length: 0\r\n\r\n").await;
    });
}
