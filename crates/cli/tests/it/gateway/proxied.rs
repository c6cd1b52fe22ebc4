//! The PROXY protocol at a gateway. The gateway reads the balancer's header, in any form and at any speed. It writes headers
//! to servers outside, so that each upstream connection is for one client alone.

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustls::{ServerConnection, StreamOwned};
use voile_testkit::{TestAuthority, hostile_server_config};

use super::streams::entry;
use super::tls::{PORT, curl, https, path};
use super::{Edge, NETWORKING, TO_SERVER, body, http_server, routes, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{HTTP_PORT, Mesh, application, read_answer, wait_until};

/// No read or write of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Reads the PROXY header at the start of a connection, as text; None if there is no header.
pub(crate) fn introduced(stream: &mut impl Read) -> Option<String> {
    let mut begun = vec![0; 12];
    stream.read_exact(&mut begun).ok()?;
    if begun == SIGNATURE {
        let mut fixed = [0; 4];
        stream.read_exact(&mut fixed).ok()?;
        let mut rest = vec![0; usize::from(u16::from_be_bytes([fixed[2], fixed[3]]))];
        stream.read_exact(&mut rest).ok()?;
        let at = |address: usize, port: usize| {
            let octets: [u8; 4] = rest.get(address..address + 4)?.try_into().ok()?;
            let port = u16::from_be_bytes(rest.get(port..port + 2)?.try_into().ok()?);
            Some(SocketAddr::from((octets, port)))
        };
        return match (fixed[0], fixed[1]) {
            (0x21, 0x11) => Some(format!("V2 {} {}", at(0, 8)?, at(4, 10)?)),
            other => Some(format!("V2 {other:?}")),
        };
    }
    let mut byte = [0];
    while !begun.ends_with(b"\r\n") && begun.len() < 200 {
        stream.read_exact(&mut byte).ok()?;
        begun.push(byte[0]);
    }
    let line = String::from_utf8(begun).ok()?;
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    match words[..] {
        ["PROXY", "TCP4", from, to, port, to_port] => {
            Some(format!("V1 {from}:{port} {to}:{to_port}"))
        }
        _ => None,
    }
}

/// Answers requests with the number of their connection and its header.
fn serve_introduced(listener: TcpListener) {
    let count = AtomicUsize::new(0);
    application::serve(listener, move |stream| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let mut reader = BufReader::new(stream);
        let Some(said) = introduced(&mut reader) else {
            return;
        };
        while application::read_request(&mut reader).is_some() {
            let said = format!("{number} {said}");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}",
                said.len()
            );
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// A client that keeps its connection.
struct Caller(BufReader<TcpStream>);

impl Caller {
    fn new(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Self(BufReader::new(stream))
    }

    fn own(&self) -> SocketAddr {
        self.0.get_ref().local_addr().expect("an address")
    }

    /// Sends one request. Returns the number of the upstream connection, and the header at its start.
    fn ask(&mut self) -> (usize, String) {
        self.ask_for("out.example")
    }

    fn ask_for(&mut self, host: &str) -> (usize, String) {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        self.0
            .get_mut()
            .write_all(request.as_bytes())
            .expect("sent");
        told(&body(&read_answer(&mut self.0).expect("an answer")))
    }
}

/// The number of a connection, and its header.
fn told(answer: &str) -> (usize, String) {
    let (number, said) = answer.split_once(' ').unwrap_or(("0", answer));
    (number.parse().unwrap_or_default(), said.to_owned())
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// The same as [`serve_introduced`] over HTTP/2.
fn serve_introduced_http2(listener: TcpListener) {
    let count = AtomicUsize::new(0);
    application::serve(listener, move |mut stream| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let Some(said) = introduced(&mut stream) else {
            return;
        };
        let said = Bytes::from(format!("{number} {said}"));
        stream.set_nonblocking(true).expect("set");
        let answering = async {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((_, mut answer))) = connection.accept().await {
                // A client that is gone reads nothing.
                if let Ok(mut send) = answer.send_response(http::Response::new(()), false) {
                    let _ = send.send_data(said.clone(), true);
                }
            }
        };
        runtime().block_on(answering);
    });
}

/// A client of HTTP/2: what its requests, which are under way together, are answered, and its own address.
async fn asked_together(at: SocketAddr, requests: usize) -> (SocketAddr, Vec<(usize, String)>) {
    let stream = tokio::net::TcpStream::connect(at).await;
    let stream = stream.expect("a connection");
    let own = stream.local_addr().expect("an address");
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let answered = async {
        let mut under_way = Vec::new();
        for _ in 0..requests {
            let request = http::Request::get("http://out.example/").body(());
            let mut ready = client.clone().ready().await.expect("room");
            let (answer, _) = ready
                .send_request(request.expect("a request"), true)
                .expect("sent");
            under_way.push(answer);
        }
        let mut all = Vec::new();
        for answer in under_way {
            let answer = answer.await.expect("an answer");
            assert_eq!(answer.status(), 200);
            let mut body = answer.into_body();
            let mut text = Vec::new();
            while let Some(part) = body.data().await {
                text.extend_from_slice(&part.expect("data"));
            }
            all.push(told(&String::from_utf8(text).expect("text")));
        }
        all
    };
    tokio::select! {
        all = answered => (own, all),
        ended = connection => panic!("the gateway ended it: {ended:?}"),
    }
}

/// DestinationRule of a server outside.
fn rule(policy: &str) -> String {
    format!(
        "{NETWORKING}DestinationRule\nmetadata: {{name: out, namespace: shop}}\nspec: {{host: out.test, trafficPolicy: {{{policy}}}}}\n---\n"
    )
}

#[test]
fn a_server_hears_first_for_whom_and_no_connection_is_of_two_clients() {
    let to_out = "{route: [{destination: {host: out.test}}]}";
    let edge = Edge::start(
        "",
        &(servers(&http_server("out.example")) + &routes("out.example", to_out)),
    );
    let listener = TcpListener::bind(edge.mesh.address(11, 14_080)).expect("an address");
    let server = entry("out", listener.local_addr().expect("an address"), "HTTP");
    serve_introduced(listener);
    for version in ["V1", "V2"] {
        let policy = format!("proxyProtocol: {{version: {version}}}");
        say(&edge.mesh, "out.yaml", &(server.clone() + &rule(&policy)));
        let at = edge.at(HTTP_PORT);
        let said = |caller: &Caller| format!("{version} {} {at}", caller.own());
        wait_until("the header", || {
            let mut caller = Caller::new(at);
            let expected = said(&caller);
            caller.ask().1 == expected
        });
        let (mut one, mut other) = (Caller::new(at), Caller::new(at));
        let (first, heard) = one.ask();
        assert_eq!(heard, said(&one));
        let (second, heard) = other.ask();
        assert_eq!(heard, said(&other));
        assert_ne!(first, second);
        // Each goes on with its own.
        for _ in 0..3 {
            assert_eq!(one.ask(), (first, said(&one)));
            assert_eq!(other.ask(), (second, said(&other)));
        }
    }
    // Without a version it is the first, as in Istio.
    say(
        &edge.mesh,
        "out.yaml",
        &(server.clone() + &rule("proxyProtocol: {}")),
    );
    wait_until("the first version", || {
        let mut caller = Caller::new(edge.at(HTTP_PORT));
        caller.ask().1.starts_with("V1 ")
    });
}

#[test]
fn over_http2_the_requests_of_one_client_share_what_nobody_else_does() {
    const TOGETHER: usize = 5;
    let to_out = "{route: [{destination: {host: out.test}}]}";
    let door = http_server("out.example").replace("protocol: HTTP", "protocol: HTTP2");
    let edge = Edge::start("", &(servers(&door) + &routes("out.example", to_out)));
    let listener = TcpListener::bind(edge.mesh.address(11, 14_080)).expect("an address");
    let server = entry("out", listener.local_addr().expect("an address"), "HTTP2");
    serve_introduced_http2(listener);
    let at = edge.at(HTTP_PORT);
    let runtime = runtime();
    for version in ["V1", "V2"] {
        let policy = format!("proxyProtocol: {{version: {version}}}");
        say(&edge.mesh, "out.yaml", &(server.clone() + &rule(&policy)));
        wait_until("the header", || {
            let mut caller = Caller::new(at);
            caller.ask().1 == format!("{version} {} {at}", caller.own())
        });
        let mut taken = BTreeSet::new();
        for _ in 0..3 {
            let (own, all) = runtime.block_on(asked_together(at, TOGETHER));
            assert_eq!(all.len(), TOGETHER);
            let said = format!("{version} {own} {at}");
            assert!(
                all.iter().all(|(_, heard)| *heard == said),
                "{said}: {all:?}"
            );
            let ways: BTreeSet<usize> = all.iter().map(|(number, _)| *number).collect();
            // Streams that begin while the first connection is being made may open another.
            assert!(ways.len() < TOGETHER, "nothing is shared: {all:?}");
            assert!(
                ways.iter().all(|way| taken.insert(*way)),
                "{ways:?} of {taken:?}"
            );
        }
    }
}

#[test]
fn a_sidecar_says_for_which_connection_of_its_application_it_calls() {
    let mesh = Mesh::start("STRICT");
    let listener = TcpListener::bind(mesh.address(11, 14_080)).expect("an address");
    let server = entry("out", listener.local_addr().expect("an address"), "HTTP");
    serve_introduced(listener);
    let way = format!(
        "{NETWORKING}VirtualService\nmetadata: {{name: way, namespace: shop}}\nspec:\n  hosts: [server]\n  http: [{{route: [{{destination: {{host: out.test, port: {{number: 443}}}}}}]}}]\n---\n"
    );
    let host = "server.shop.svc.cluster.local";
    let at = mesh.http();
    for version in ["V1", "V2"] {
        let policy = format!("proxyProtocol: {{version: {version}}}");
        say(
            &mesh,
            "out.yaml",
            &[&server, &way, &rule(&policy)].map(String::as_str).concat(),
        );
        let said = |caller: &Caller| format!("{version} {} {at}", caller.own());
        wait_until("the header", || {
            let mut caller = Caller::new(at);
            caller.ask_for(host).1 == said(&caller)
        });
        let (mut one, mut other) = (Caller::new(at), Caller::new(at));
        let [first, second] = [one.ask_for(host), other.ask_for(host)];
        assert_eq!((&first.1, &second.1), (&said(&one), &said(&other)));
        assert_ne!(first.0, second.0);
        for _ in 0..3 {
            assert_eq!(one.ask_for(host), first);
            assert_eq!(other.ask_for(host), second);
        }
    }
}

#[test]
fn the_header_comes_before_the_bytes_of_a_connection_and_before_tls() {
    let tcp = format!("{{port: {{number: {PORT}, name: tcp, protocol: TCP}}, hosts: [\"*\"]}}");
    let all = format!(
        "{NETWORKING}VirtualService\nmetadata: {{name: streams, namespace: shop}}\nspec:\n  hosts: [\"*\"]\n  gateways: [edge]\n  tcp: [{{route: [{{destination: {{host: out.test}}}}]}}]\n---\n"
    );
    let edge = Edge::start("", &(servers(&tcp) + &all));
    let listener = TcpListener::bind(edge.mesh.address(11, 14_080)).expect("an address");
    let server = entry("out", listener.local_addr().expect("an address"), "TCP");
    let authority = TestAuthority::new();
    let certificate = (&authority.certificate("shop", "out")).into();
    let config = hostile_server_config(&certificate);
    // Answers with the header it read; by TLS if TLS follows the header.
    application::serve(listener, move |mut stream| {
        let Some(said) = introduced(&mut stream) else {
            return;
        };
        let mut first = [0];
        if stream.peek(&mut first).is_ok_and(|count| count == 1) && first == [22] {
            let tls = ServerConnection::new(Arc::clone(&config)).expect("a server");
            let mut stream = StreamOwned::new(tls, stream);
            // Reads first, because unread bytes would end the connection too soon. A client that is
            // gone reads nothing.
            let _ = stream.read(&mut first);
            let _ = stream.write_all(format!("in TLS: {said}").as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        } else {
            let _ = stream.read(&mut first);
            let _ = stream.write_all(said.as_bytes());
        }
    });
    let heard = || {
        let mut stream = TcpStream::connect(edge.at(PORT)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        // The server waits for a byte, in plaintext.
        let _ = stream.write_all(b"x");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        (text, stream.local_addr().expect("an address"))
    };
    for (policy, prefix) in [
        ("proxyProtocol: {version: V2}", "V2"),
        (
            "proxyProtocol: {version: V1}, tls: {mode: SIMPLE, insecureSkipVerify: true}",
            "in TLS: V1",
        ),
    ] {
        say(&edge.mesh, "out.yaml", &(server.clone() + &rule(policy)));
        wait_until(policy, || {
            let (text, own) = heard();
            text == format!("{prefix} {own} {}", edge.at(PORT))
        });
    }
}

/// The second version's header, with this behind its fixed part.
fn block(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
    [SIGNATURE, &[command, family], &length, rest].concat()
}

const V4: [u8; 12] = [203, 0, 113, 9, 198, 51, 100, 2, 0x30, 0x39, 0, 80];

/// First bytes from a balancer or another client, and the client's address after them; None if the proxy closes the
/// connection.
fn beginnings() -> Vec<(&'static str, Vec<u8>, Option<&'static str>)> {
    const OWN: &str = "127.0.0.1";
    const FAR: &str = "203.0.113.9";
    let line = |text: &str| text.as_bytes().to_vec();
    let additions = [4, 0, 1, 0, 0xea, 0, 3, 1, 2, 3];
    let with = |rest: &[u8]| [&V4[..], rest].concat();
    vec![
        (
            "v1",
            line("PROXY TCP4 203.0.113.9 198.51.100.2 1 80\r\n"),
            Some(FAR),
        ),
        ("v2", block(0x21, 0x11, &V4), Some(FAR)),
        (
            "v2 with additions",
            block(0x21, 0x11, &with(&additions)),
            Some(FAR),
        ),
        (
            "v2 with many",
            block(0x21, 0x11, &with(&[0; 4_000])),
            Some(FAR),
        ),
        ("v1, unknown", line("PROXY UNKNOWN\r\n"), Some(OWN)),
        ("v2, its own", block(0x20, 0x11, &V4), Some(OWN)),
        ("v2, unspecified", block(0x21, 0, &[]), Some(OWN)),
        (
            "v2, of a Unix socket",
            block(0x21, 0x31, &[b'/'; 216]),
            None,
        ),
        ("v2, datagrams", block(0x21, 0x12, &V4), None),
        (
            "v2, too short for its addresses",
            block(0x21, 0x11, &V4[..8]),
            None,
        ),
        ("v2, too much", block(0x21, 0x11, &with(&[0; 5_000])), None),
        ("v2, another version", block(0x31, 0x11, &V4), None),
        ("v2, another command", block(0x22, 0x11, &V4), None),
        (
            "v1, over-long",
            line(&format!("PROXY UNKNOWN {}\r\n", "x".repeat(120))),
            None,
        ),
        (
            "v1, truncated",
            line("PROXY TCP4 203.0.113.9 198.51.100.2 1"),
            None,
        ),
        (
            "nearly a signature",
            line("PROXI TCP4 203.0.113.9 198.51.100.2 1 80\r\n"),
            None,
        ),
        ("none", Vec::new(), None),
    ]
}

/// Sends these bytes and a request, byte by byte or all at once. Returns the answer.
fn asked(at: SocketAddr, begins: &[u8], dripped: bool) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_nodelay(true).expect("set");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let request = b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
    let all = [begins, request].concat();
    let pieces = all.chunks(if dripped { 1 } else { all.len() });
    for piece in pieces {
        // A refused client may be closed before it has sent all.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut text = String::new();
    // A reset tells nothing more.
    let _ = stream.read_to_string(&mut text);
    text.starts_with("HTTP/1.1 200").then_some(text)
}

/// Client address that the application sees.
fn client(answer: &str) -> Option<&str> {
    let line = |line: &&str| {
        line.to_ascii_lowercase()
            .starts_with("x-envoy-external-address:")
    };
    Some(answer.lines().find(line)?.split_once(": ")?.1.trim())
}

/// The Service in front of the gateway, with a port for HTTP/3.
fn service() -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: gateway, namespace: shop}}\nspec:\n  selector: {{istio: ingress}}\n  ports: [{{name: https, port: 443, targetPort: {PORT}}}, {{name: http3, port: 443, targetPort: {PORT}, protocol: UDP}}]\n---\n"
    )
}

/// MeshConfig with a balancer before all gateways.
const MESH_CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    defaultConfig: {gatewayTopology: {proxyProtocol: {}}}\n---\n";

#[test]
fn a_balancer_says_to_a_gateway_for_whom_it_connects_and_whoever_else_comes_is_closed() {
    let keys = Keys::new();
    keys.own("shop", "shop.example");
    let list = http_server("shop.example")
        + ", "
        + &https("shop.example", "mode: SIMPLE, credentialName: shop");
    let edge = Edge::start(
        "",
        &(keys.pair("shop") + &servers(&list) + &routes("shop.example", TO_SERVER) + &service()),
    );
    application::reflect(edge.mesh.http_app());
    let at = edge.at(HTTP_PORT);
    let over_tls = |more: &[&str]| {
        let authority = keys.path("shop.crt");
        let own = ["--cacert", path(&authority), "-i"];
        let told = curl(&edge, "shop.example", &[&own[..], more].concat());
        told.map(|(_, text)| text.to_ascii_lowercase())
    };
    wait_until("a gateway without a balancer", || {
        over_tls(&[]).is_ok_and(|told| told.contains("alt-svc: h3"))
    });
    say(&edge.mesh, "config.yaml", MESH_CONFIG);
    wait_until("the header is expected", || asked(at, &[], false).is_none());
    for (what, begins, expected) in beginnings() {
        for dripped in [false, true] {
            let answer = asked(at, &begins, dripped);
            let seen = answer.as_deref().and_then(client);
            assert_eq!(seen, expected, "{what}, in pieces: {dripped}");
        }
    }
    // The balancer's header comes before TLS. The gateway offers nothing over UDP, since UDP could not
    // carry the header.
    let told = over_tls(&["--haproxy-protocol"]).expect("an answer");
    assert!(told.contains("x-envoy-external-address"), "{told}");
    assert!(!told.contains("alt-svc"), "{told}");
    // The mesh's sidecars are no gateways: what comes to them begins as ever.
    let answer = crate::mesh::get(edge.mesh.http(), "/").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
}
