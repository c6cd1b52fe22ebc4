//! The mesh's own TLS that a gateway passes through by its SNI (AUTO_PASSTHROUGH). Client and server prove their identities to
//! each other; the gateway closes connections with other names.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use voile_identity::identity_of;
use voile_testkit::{TestAuthority, hostile_client_config};

use super::streams::{entry, greet, tls_client};
use super::{Edge, NETWORKING, say, servers};
use crate::mesh::{Client, Mesh, TCP_PORT, wait_until};

/// Port of the gateway's listener in these tests; Istio's own port for it.
const PORT: u16 = 15_443;
/// No read or write of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// ALPN offer of sidecars for opaque bytes.
const MESH_ALPN: [&[u8]; 2] = [b"istio-peer-exchange", b"istio"];
const SERVER: &str = "server.shop.svc.cluster.local";

/// A Gateway that lets the mesh's TLS through for these hosts.
fn doors(hosts: &str) -> String {
    servers(&format!(
        "{{port: {{number: {PORT}, name: tls, protocol: TLS}}, hosts: [{hosts}], tls: {{mode: AUTO_PASSTHROUGH}}}}"
    ))
}

/// A name as Istio's proxies ask for it.
fn name(port: impl std::fmt::Display, part: &str, host: &str) -> String {
    format!("outbound_.{port}_.{part}_.{host}")
}

/// Answer of the server behind a name, to a client of TLS.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    /// Identity of the server, by its certificate.
    who: String,
    said: String,
}

/// Asks as the proxy of an account; None if no handshake succeeds.
fn ask(
    authority: &TestAuthority,
    (at, account): (SocketAddr, &str),
    name: Option<&str>,
    alpn: &[&[u8]],
) -> Option<Heard> {
    let shown = authority.certificate("shop", account);
    let config = hostile_client_config(Some(&(&shown).into()));
    let mut config = ClientConfig::clone(&config);
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.enable_sni = name.is_some();
    let name = name.unwrap_or("nobody.test").to_owned();
    let name = ServerName::try_from(name).expect("a name");
    let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    let tcp = TcpStream::connect(at).ok()?;
    tcp.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut stream = StreamOwned::new(tls, tcp);
    let mut said = String::new();
    // However it ends: what was said until then counts.
    let _ = stream.read_to_string(&mut said);
    let leaf = stream.conn.peer_certificates()?.first()?;
    let who = identity_of(leaf).map_or_else(|error| error.to_string(), |one| one.to_string());
    Some(Heard { who, said })
}

/// A mesh of which the test holds the root, with a gateway.
fn start(authority: &TestAuthority, resources: &str) -> Edge {
    let how = Client {
        state: Some(authority.state()),
        ..Client::default()
    };
    Edge::start_on(
        Mesh::start_as("STRICT", &how),
        Client::default(),
        "",
        resources,
    )
}

/// The server allows only this account.
fn only(account: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: door, namespace: shop}}\nspec:\n  selector: {{matchLabels: {{app: server}}}}\n  rules: [{{from: [{{source: {{principals: [cluster.local/ns/shop/sa/{account}]}}}}]}}]\n"
    )
}

/// Parts of the server's service: its Pod, and one beside it that has no sidecar.
fn parts(mesh: &Mesh) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: server-v2\n  namespace: shop\n  labels: {{app: server, version: v2, sidecar.istio.io/inject: \"false\"}}\n\
         spec:\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n---\n\
         {NETWORKING}DestinationRule\nmetadata: {{name: server, namespace: shop}}\nspec:\n  host: server\n  subsets: [{{name: old, labels: {{version: v1}}}}, {{name: bare, labels: {{version: v2}}}}]\n",
        mesh.address(3, 0).ip()
    )
}

#[test]
fn tls_of_the_mesh_goes_by_its_name_to_who_takes_it_and_both_prove_who_they_are() {
    let authority = TestAuthority::new();
    let edge = start(&authority, &doors("\"*.local\""));
    say(&edge.mesh, "policy-door.yaml", &only("client"));
    say(&edge.mesh, "parts.yaml", &parts(&edge.mesh));
    greet(edge.mesh.tcp_app(), "from within");
    // Counts plaintext connections to the Pod without a sidecar.
    let bare = TcpListener::bind(edge.mesh.address(3, TCP_PORT)).expect("an address");
    let called = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&called);
    crate::mesh::application::serve(bare, move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
    });
    let at = edge.at(PORT);
    let asked = |account, name: &str| ask(&authority, (at, account), Some(name), &MESH_ALPN);
    let within = || {
        Some(Heard {
            who: "spiffe://cluster.local/ns/shop/sa/server".to_owned(),
            said: "from within".to_owned(),
        })
    };
    let whole = name(TCP_PORT, "", SERVER);
    let old = name(TCP_PORT, "old", SERVER);
    wait_until("the parts", || asked("client", &old) == within());
    // Of the service as a whole it is only ever who takes the mesh's TLS.
    for _ in 0..30 {
        assert_eq!(asked("client", &whole), within());
    }
    // The server sees the client's identity, and not the gateway's.
    let stranger = asked("stranger", &whole).expect("hands are shaken with the server");
    assert_eq!(stranger.said, "");
    assert_eq!(stranger.who, within().expect("one").who);
    // A client that shares no code with us.
    let shown = authority.certificate("shop", "client");
    let files = ["client.pem", "client.key"].map(|file| authority.folder().join(file));
    for (file, text) in files
        .iter()
        .zip([shown.chain_pem(), shown.private_key_pem()])
    {
        std::fs::write(file, text).expect("written");
    }
    let [chain, key] = files.each_ref().map(|file| file.to_str().expect("a path"));
    let by_openssl = |name: &str| {
        let proof = ["-cert", chain, "-key", key, "-alpn", "istio"];
        let arguments = ["-quiet", "-servername", name];
        tls_client(at, &[&arguments[..], &proof].concat())
    };
    assert_eq!(by_openssl(&whole), "from within");
    assert_eq!(by_openssl(&whole.to_uppercase()), "from within");
    assert_eq!(by_openssl(SERVER), "");
    // A subset whose endpoints take no mutual TLS is never called, and by no means in plaintext.
    assert_eq!(asked("client", &name(TCP_PORT, "bare", SERVER)), None);
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

#[test]
fn what_no_name_of_the_mesh_leads_to_is_closed() {
    let authority = TestAuthority::new();
    let edge = start(&authority, &doors("\"*.local\""));
    let outside = TcpListener::bind(edge.mesh.address(11, 14_443)).expect("an address");
    let entries = entry("one", outside.local_addr().expect("an address"), "TLS");
    say(
        &edge.mesh,
        "entries.yaml",
        &entries.replace("one.test", "one.local"),
    );
    greet(outside, "from outside");
    greet(edge.mesh.tcp_app(), "from within");
    let at = edge.at(PORT);
    let asked = |name: &str, alpn: &[&[u8]]| ask(&authority, (at, "client"), Some(name), alpn);
    let whole = name(TCP_PORT, "", SERVER);
    let is_there = || asked(&whole, &MESH_ALPN).is_some_and(|heard| heard.said == "from within");
    wait_until("the server", is_there);
    for closed in [
        SERVER.to_owned(),
        format!("outbound_.{TCP_PORT}_.{SERVER}"),
        format!("outbound.{TCP_PORT}._.{SERVER}"),
        format!("inbound_.{TCP_PORT}_._.{SERVER}"),
        format!("a.{whole}"),
        // A port, a part and a host that are not there, and a port in other digits.
        name(1, "", SERVER),
        name("", "", SERVER),
        name(format!("0{TCP_PORT}"), "", SERVER),
        name(70_000, "", SERVER),
        name(TCP_PORT, "old", SERVER),
        name(TCP_PORT, "", "nobody.shop.svc.cluster.local"),
        // A host outside the mesh takes none of the mesh's TLS.
        name(443, "", "one.local"),
    ] {
        assert_eq!(asked(&closed, &MESH_ALPN), None, "{closed}");
    }
    // TLS that is not the mesh's own is an application's, perhaps.
    let others: [&[&[u8]]; 3] = [&[], &[b"h2"], &[b"http/1.1", b"istioh2"]];
    for alpn in others {
        assert_eq!(asked(&whole, alpn), None, "{alpn:?}");
    }
    let nameless = ask(&authority, (at, "client"), None, &MESH_ALPN);
    assert_eq!(nameless, None);
    let mut plain = TcpStream::connect(at).expect("a connection");
    plain.set_read_timeout(Some(PATIENCE)).expect("set");
    plain
        .write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")
        .expect("sent");
    let mut text = Vec::new();
    // A reset says as much.
    let _ = plain.read_to_end(&mut text);
    assert!(text.is_empty(), "{}", String::from_utf8_lossy(&text));
    assert!(is_there());
    // Hosts that the Gateway does not have are behind no name, and come back with it.
    say(&edge.mesh, "edge.yaml", &doors("\"*.example\""));
    wait_until("another Gateway", || asked(&whole, &MESH_ALPN).is_none());
    say(&edge.mesh, "edge.yaml", &doors(&format!("shop/{SERVER}")));
    wait_until("the Gateway of before", is_there);
    say(&edge.mesh, "edge.yaml", &doors(&format!("far/{SERVER}")));
    wait_until("a Gateway for another namespace", || {
        asked(&whole, &MESH_ALPN).is_none()
    });
}
