//! Clients with a certificate of the mesh, by hand, with any ALPN in any spelling. A port declared HTTP takes only requests. An
//! undeclared port takes only requests if some rule applies to requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream as AsyncTcp;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use voile_identity::{CertificateClient, CertificateStore, ClientSettings, mesh_client_config};
use voile_transport::{TcpIo, TransportStream, connect_tls};

use crate::mesh::issuer::Issuer;
use crate::mesh::{HTTP_PORT, Mesh, TCP_PORT, application, put, wait_until};
use crate::policies::authorization::echo_application;
use crate::policies::tokens::{ISSUER, believes, rule, set};
use crate::traffic::access_log::{file, lines, log_to};
use crate::traffic::rate_limits::{limits, write as write_limits};

/// Far beyond what a loaded machine needs for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// ALPN offers of clients that name no version of HTTP, or HTTP/1.1.
const OFFERS: [(&str, &[&[u8]]); 6] = [
    ("istio", &[b"istio"]),
    ("istio-peer-exchange", &[b"istio-peer-exchange", b"istio"]),
    ("none", &[]),
    ("istio-http/1.1", &[b"istio-http/1.1"]),
    ("http/1.1", &[b"http/1.1"]),
    ("istio-http/1.0", &[b"istio-http/1.0"]),
];

/// A caller that holds the certificate of `shop/client`.
struct Certified {
    store: Arc<CertificateStore>,
    runtime: Runtime,
}

impl Certified {
    fn new(mesh: &Mesh) -> Self {
        let settings = ClientSettings {
            control: vec![mesh.control_url()],
            root_cert: mesh.state().join("root-cert.pem"),
            token_file: Some(mesh.state().with_file_name("client.token")),
            join_token_file: None,
            ttl: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let store = Arc::new(CertificateStore::new());
        let certificates = CertificateClient::new(settings, Arc::clone(&store));
        let obtained = runtime.block_on(certificates.obtain());
        obtained.expect("a certificate");
        Self { store, runtime }
    }

    async fn connect(&self, to: SocketAddr, offer: &[&[u8]]) -> TransportStream {
        let config = mesh_client_config(&self.store, offer).expect("TLS");
        let tcp = AsyncTcp::connect(to).await.expect("connected");
        let name = ServerName::from(to.ip());
        let shaken = connect_tls(config, name, TcpIo::from(tcp), PATIENCE).await;
        shaken.expect("a handshake")
    }

    /// Sends these bytes. Returns the answer up to the end of the connection.
    fn says(&self, to: SocketAddr, offer: &[&[u8]], bytes: &[u8]) -> String {
        let says = async {
            let mut stream = self.connect(to, offer).await;
            // A server that refuses may be gone before all was sent.
            let _ = stream.write_all(bytes).await;
            let _ = stream.flush().await;
            let mut heard = Vec::new();
            // A reset is an end, too.
            let _ = stream.read_to_end(&mut heard).await;
            String::from_utf8_lossy(&heard).into_owned()
        };
        let said = self
            .runtime
            .block_on(async { timeout(PATIENCE, says).await });
        said.unwrap_or_else(|_| panic!("no end for {:?}", String::from_utf8_lossy(bytes)))
    }

    /// The same for a request with these lines.
    fn asks(&self, to: SocketAddr, offer: &[&[u8]], path: &str, fields: &str) -> String {
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n{fields}\r\n");
        self.says(to, offer, head.as_bytes())
    }

    /// The first flight of a handshake that is not the mesh's.
    fn client_hello(&self) -> Vec<u8> {
        let config = mesh_client_config(&self.store, &[b"h2"]).expect("TLS");
        let name = ServerName::try_from("other.example").expect("a name");
        let mut client = rustls::ClientConnection::new(config, name).expect("a client");
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("written");
        }
        bytes
    }
}

/// Spellings of a field by which an application could believe a client about its certificate.
const FORGED: &str = "X-Forwarded-Client-Cert: forged-1\r\nx_forwarded_client_cert: forged-2\r\nX-Forwarded_Client-Cert: forged-3\r\n\
                      x-forwarded-client-cert: forged-4\r\n";

#[test]
fn what_holds_for_requests_holds_whatever_a_client_offers_in_alpn() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let log = file(&mesh);
    log_to(&mesh, "TEXT", log.to_str().expect("a path of ours"));
    let caller = Certified::new(&mesh);
    let issuer = Issuer::new(ISSUER, "one");
    set(
        &mesh,
        &believes(&rule(&issuer, ", outputPayloadToHeader: x-claims")),
    );
    let limited = "{name: few, match: [{uri: {prefix: /few}}], limits: [{requests: 1, per: 1h, by: {headers: [x-offer]}}]}";
    write_limits(&mesh, &limits(limited));
    let to = mesh.inbound(HTTP_PORT);
    let status = |answer: &str| answer.get(9..12).unwrap_or_default().to_owned();
    wait_until("tokens and limits are in force", || {
        let refused = caller.asks(
            to,
            &[b"http/1.1"],
            "/",
            "Authorization: Bearer no.token.x\r\n",
        );
        let first = caller.asks(to, &[b"http/1.1"], "/few", "x-offer: first\r\n");
        (status(&refused), status(&first)) == ("401".to_owned(), "429".to_owned())
    });
    let good = format!(
        "Authorization: Bearer {}\r\n",
        issuer.token("me", json!({}))
    );
    for (name, offer) in OFFERS {
        let answer = caller.asks(
            to,
            offer,
            &format!("/seen-{}", name.replace('/', "-")),
            FORGED,
        );
        assert_eq!(status(&answer), "200", "{name}: {answer}");
        assert!(!answer.contains("forged"), "{name}: {answer}");
        let bad = caller.asks(to, offer, "/", "Authorization: Bearer no.token.x\r\n");
        assert_eq!(status(&bad), "401", "{name}: {bad}");
        let claims = caller.asks(
            to,
            offer,
            "/",
            &format!("{good}x-claims: forged\r\nX_Claims: forged\r\n"),
        );
        assert!(claims.contains("x-claims: ey"), "{name}: {claims}");
        let own = format!("x-offer: {name}\r\n");
        let counted = [0, 1].map(|_| status(&caller.asks(to, offer, "/few", &own)));
        assert_eq!(counted, ["200", "429"], "{name}");
        let garbage = caller.says(to, offer, b"\x01\x02 forged\r\n\r\n");
        assert!(
            garbage.is_empty() || garbage.starts_with("HTTP/1.1 400 "),
            "{name}: {garbage}"
        );
        let inside = caller.says(to, offer, &caller.client_hello());
        assert!(
            inside.is_empty() || inside.starts_with("HTTP/1.1 400 "),
            "{name}: {inside}"
        );
    }
    let logged = lines(&mesh, OFFERS.len(), |line| {
        line.contains("/seen-") && line.contains("inbound|")
    });
    assert_eq!(logged.len(), OFFERS.len(), "{logged:?}");
    let refused = lines(&mesh, 3, |line| line.contains("filter_chain_not_found"));
    assert!(
        refused.iter().all(|line| line.contains(" NR ")),
        "{refused:?}"
    );
}

/// Takes the declaration off the opaque port.
fn undeclare(mesh: &Mesh) {
    let resources = mesh.config().join("mesh.yaml");
    let text = std::fs::read_to_string(&resources).expect("the mesh's resources");
    let declared = format!("number: {TCP_PORT}\n      protocol: TCP\n      name: tcp-in\n");
    let undeclared = format!("number: {TCP_PORT}\n      name: any-in\n");
    assert!(text.contains(&declared), "{text}");
    put(&resources, &text.replace(&declared, &undeclared));
}

/// Sends a word. Returns the connection if the word comes back.
fn echoed(caller: &Certified, to: SocketAddr, word: &[u8]) -> Option<TransportStream> {
    caller.runtime.block_on(async {
        let mut stream = caller.connect(to, &[b"istio"]).await;
        stream.write_all(word).await.ok()?;
        stream.flush().await.ok()?;
        let mut back = vec![0; word.len()];
        let read = timeout(PATIENCE, stream.read_exact(&mut back)).await;
        read.expect("an end or an answer").ok()?;
        (back == word).then_some(stream)
    })
}

fn echoed_in_plaintext(to: SocketAddr, word: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(word).ok()?;
    let mut back = vec![0; word.len()];
    stream.read_exact(&mut back).ok()?;
    (back == word).then_some(stream)
}

#[test]
fn bytes_to_an_undeclared_port_are_denied_where_something_holds_for_requests() {
    const WORD: &[u8] = b"\x01\x02 no request\r\n";
    let mesh = Mesh::start("PERMISSIVE");
    echo_application(&mesh);
    undeclare(&mesh);
    let caller = Certified::new(&mesh);
    let to = mesh.inbound(TCP_PORT);
    let issuer = Issuer::new(ISSUER, "one");
    let tokens = believes(&rule(&issuer, ""));
    let counted = limits("{name: all, limits: [{requests: 1000, per: 1h}]}");
    let without =
        |name: &str| std::fs::remove_file(mesh.config().join(name)).expect("it was there");
    for (what, file) in [("tokens", "tokens.yaml"), ("limits", "limits.yaml")] {
        let mut open = None;
        wait_until("bytes are relayed", || {
            open = echoed(&caller, to, WORD);
            open.is_some()
        });
        let mut open = open.expect("relayed");
        let mut plain = echoed_in_plaintext(to, WORD).expect("relayed in plaintext, too");
        match what {
            "tokens" => set(&mesh, &tokens),
            _ => write_limits(&mesh, &counted),
        }
        // The proxy closes connections that were open before.
        let ended = caller.runtime.block_on(async {
            let mut byte = [0];
            timeout(PATIENCE, open.read(&mut byte))
                .await
                .expect("it ends")
        });
        assert!(matches!(ended, Ok(0) | Err(_)), "{what}: {ended:?}");
        let ended = plain.read(&mut [0]);
        let is_over = match &ended {
            Ok(count) => *count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(is_over, "{what}: {ended:?}");
        assert!(echoed(&caller, to, WORD).is_none(), "{what}");
        assert!(echoed_in_plaintext(to, WORD).is_none(), "{what}");
        let hello = caller.client_hello();
        assert!(echoed(&caller, to, &hello).is_none(), "{what}: foreign TLS");
        without(file);
    }
}
