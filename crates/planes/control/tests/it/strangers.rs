//! Those who connect and never show who they are, against a control plane in a process of its own: they go, they cost what they may,
//! and nobody waits behind them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use voile_control::UNPROVEN_BYTES;
use voile_http2::{Config, Connection, Fields, Link, Pool, ResponseFuture, SendStream};
use voile_proto::type_url::ADDRESS;
use voile_xds::client::Credential;

use crate::harness::{Client, Mesh, SECOND_ECHO, SHOP};
use crate::streams::certificate;

/// The test that is the control plane's process.
const SUBJECT: &str = "strangers::subject";
/// Far beyond what a loaded machine needs.
const DEADLINE: Duration = Duration::from_secs(60);
/// Longest time in which an honest client is served beside any crowd: a build without optimization, on a loaded machine.
const PROMPT: Duration = Duration::from_secs(2);

/// Connections that say nothing, from one address.
const SILENT: usize = 1500;
/// Addresses that say half of what they must, and connections of each.
const HALF: (u8, usize) = (5, 100);
/// Addresses that finish their handshakes and make no call, and connections of each.
const IDLE: (u8, usize) = (8, 40);

/// Addresses from which more silent connections come without an end, and how many each holds.
const FLOOD: std::ops::Range<u8> = 10..42;
const HELD: usize = 40;

/// Connections with open bodies on each port, calls of each, and bytes of each body: less than was ever too much for a question.
const CALLERS: usize = 12;
const CALLS: usize = 16;
const BODY: &[u8] = &[0; 1_000_000];

#[test]
fn subject() {
    Mesh::serve();
}

/// Ends the control plane's process with the test.
pub(crate) struct Subject(Child);

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Subject {
    /// A mesh whose control plane is the test of this name, in a process of its own.
    pub(crate) fn start(resources: &str, test: &str) -> (Mesh, Self) {
        let (mesh, child) = Mesh::in_a_process(resources, test);
        (mesh, Self(child))
    }

    /// A line of the kernel's about its memory, in bytes.
    pub(crate) fn memory(&self, line: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let found = status.lines().find_map(|text| text.strip_prefix(line));
        let kib = found.unwrap().trim().split(' ').next().unwrap();
        kib.parse::<usize>().unwrap() * 1024
    }
}

fn mesh() -> (Mesh, Subject) {
    Subject::start(SHOP, SUBJECT)
}

fn connector(mesh: &Mesh) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let pem = mesh.folder.path().join("state/root-cert.pem");
    let root = CertificateDer::from_pem_file(pem).unwrap();
    roots.add(root).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// A connection from one of many addresses.
async fn from(source: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, source));
    socket.bind(SocketAddr::new(address, 0)).unwrap();
    timeout(DEADLINE, socket.connect(to))
        .await
        .unwrap()
        .unwrap()
}

/// The same after a handshake; none where the control plane ends it.
async fn over_tls(
    connector: &TlsConnector,
    source: u8,
    to: SocketAddr,
) -> Option<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    let stream = from(source, to).await;
    let connected = timeout(DEADLINE, connector.connect(name, stream)).await;
    connected.expect("an answer").ok()
}

/// Checks that a client gets all workloads and services in good time.
async fn told_soon(mut client: Client, count: usize) {
    let begun = Instant::now();
    client.ask(ADDRESS, &["*"]);
    client.until(|told| told.held.len() == count).await;
    assert!(begun.elapsed() < PROMPT, "after {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_crowd_that_says_nothing_or_half_or_falls_silent_delays_nobody() {
    let (mesh, subject) = mesh();
    let connector = connector(&mesh);
    let (tls, plaintext) = (mesh.addresses.tls, mesh.addresses.plaintext.unwrap());
    let (chain_pem, key_pem, _) = certificate(&mesh, "client").await;
    let mut present = mesh.client(mesh.token("client", None));
    present.ask(ADDRESS, &["*"]);
    present.until(|told| told.held.len() == 3).await;

    let before = subject.memory("VmRSS:");
    let mut crowd = Vec::new();
    for source in 2..2 + HALF.0 {
        for _ in 0..HALF.1 {
            let mut stream = from(source, tls).await;
            // The head of a record of 512 bytes, and some of them.
            stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).await.unwrap();
            crowd.push(stream);
        }
    }
    let mut idle = Vec::new();
    for source in 1..=IDLE.0 {
        for _ in 0..IDLE.1 {
            idle.push(over_tls(&connector, source, tls).await);
        }
    }
    // These last, so that none of them has had its time when others come.
    for number in 0..SILENT {
        crowd.push(from(1, if number % 4 == 0 { plaintext } else { tls }).await);
    }
    // And more of them all the time.
    let mut flood = JoinSet::new();
    for source in FLOOD {
        flood.spawn(async move {
            let mut held = VecDeque::new();
            loop {
                held.push_back(from(source, tls).await);
                if held.len() > HELD {
                    held.pop_front();
                }
            }
        });
    }
    flood.spawn(async move {
        loop {
            drop(over_tls(&connector, 9, tls).await);
        }
    });

    told_soon(mesh.client(mesh.token("echo", None)), 3).await;
    told_soon(
        mesh.client(Credential::Certificate { chain_pem, key_pem }),
        3,
    )
    .await;
    let begun = Instant::now();
    certificate(&mesh, "echo").await;
    assert!(begun.elapsed() < PROMPT, "after {:?}", begun.elapsed());
    let begun = Instant::now();
    mesh.edit("more.yaml", SECOND_ECHO);
    present.until(|told| told.held.len() == 4).await;
    assert!(begun.elapsed() < PROMPT, "after {:?}", begun.elapsed());
    let grown = subject.memory("VmHWM:").saturating_sub(before);
    assert!(grown < UNPROVEN_BYTES, "{} MiB", grown >> 20);
}

/// A connection whose calls have bodies that do not end.
struct Caller<S> {
    stream: S,
    link: Link,
    calls: Vec<(ResponseFuture, SendStream)>,
    written: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Caller<S> {
    /// Makes its calls when the control plane says that it may.
    fn new(stream: S, path: &str) -> Self {
        const PATIENT: Config = Config {
            stream_window: 65_535,
            connection_window: 65_535,
            max_header_list: 16 * 1024,
            max_continuations: 4,
            max_peer_streams: 0,
            initial_streams: 0,
            max_remembered_resets: 64,
            max_unseen_resets: 64,
            max_provoked_resets: 64,
            forgiving_streams: 1,
            max_unsent: 256 * 1024,
            max_empty_frames: 64,
            max_interim: 1,
            max_heads: 256 * 1024,
            max_window_changes: 64,
        };
        let link = Link::new(Connection::client(&PATIENT, Pool::new()));
        let call = |_| {
            let mut head = Fields::new();
            head.push(":method", b"POST");
            head.push(":scheme", b"https");
            head.push(":authority", b"control");
            head.push(":path", path.as_bytes());
            head.push("content-type", b"application/grpc");
            let (response, mut say) = link.send_request(head, false).unwrap();
            say.send_data(BODY.into(), false).unwrap();
            (response, say)
        };
        let calls = (0..CALLS).map(call).collect();
        Self {
            stream,
            link,
            calls,
            written: 0,
        }
    }

    /// Says all of it, or until it is cut off.
    async fn say(mut self) -> Self {
        let mut room = vec![0; 16 * 1024];
        while self.written < CALLS * BODY.len() {
            self.link.borrow().replenish();
            let said = self.link.borrow().output().to_vec();
            if !said.is_empty() {
                if self.stream.write_all(&said).await.is_err() || self.stream.flush().await.is_err()
                {
                    break;
                }
                self.link.borrow().wrote(said.len());
                self.written += said.len();
                continue;
            }
            match self.stream.read(&mut room).await {
                Ok(count @ 1..) => self.link.borrow().receive(&room[..count]),
                _ => break,
            }
        }
        self
    }

    /// gRPC status of its first call.
    fn status(&mut self) -> String {
        let mut nobody = Context::from_waker(Waker::noop());
        match self.calls[0].0.poll_head(&mut nobody) {
            Poll::Ready(Ok(head)) => {
                String::from_utf8_lossy(head.get("grpc-status").unwrap_or_default()).into_owned()
            }
            other => format!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn bodies_of_strangers_are_not_kept_whatever_they_call() {
    let (mesh, subject) = mesh();
    let connector = connector(&mesh);
    let (tls, plaintext) = (mesh.addresses.tls, mesh.addresses.plaintext.unwrap());
    let mut present = mesh.client(mesh.token("client", None));
    present.ask(ADDRESS, &["*"]);
    present.until(|told| told.held.len() == 3).await;
    let before = subject.memory("VmRSS:");
    let test = async {
        let paths = [
            (
                "/istio.v1.auth.IstioCertificateService/CreateCertificate",
                "16",
            ),
            ("/istio.v1.auth.IstioCertificateService/Other", "12"),
            ("/grpc.health.v1.Health/Check", "12"),
            ("/", "12"),
        ];
        let (mut sealed, mut open) = (Vec::new(), Vec::new());
        for (number, (path, status)) in paths.into_iter().cycle().take(CALLERS).enumerate() {
            let source = 2 + number as u8;
            let stream = over_tls(&connector, source, tls).await.unwrap();
            let caller = timeout(DEADLINE, Caller::new(stream, path).say()).await;
            sealed.push((caller.unwrap(), status));
            let stream = from(source, plaintext).await;
            let caller = timeout(DEADLINE, Caller::new(stream, path).say()).await;
            open.push(caller.unwrap());
        }
        let grown = subject.memory("VmHWM:").saturating_sub(before);
        assert!(grown < UNPROVEN_BYTES, "{} MiB", grown >> 20);
        for (caller, status) in &mut sealed {
            assert_eq!(caller.status(), *status);
        }
        for caller in &mut open {
            assert_eq!(caller.status(), "12", "no questions in plaintext");
        }
        told_soon(mesh.client(mesh.token("echo", None)), 3).await;
        certificate(&mesh, "echo").await;
        mesh.edit("more.yaml", SECOND_ECHO);
        present.until(|told| told.held.len() == 4).await;
    };
    LocalSet::new().run_until(test).await;
}
