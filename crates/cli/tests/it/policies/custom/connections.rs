//! CUSTOM policies on opaque connections: the attributes that the external service gets, and the effect of
//! its decision.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use voile_testkit::{ShownCertificate, TestAuthority, hostile_client_config};

use super::authorizer::Authorizer;
use super::{custom, free, in_force, policy, provider, set};
use crate::mesh::{Client, HTTP_PORT, Mesh, TCP_PORT, application, wait_until};
use crate::policies::authorization::echo_application;

const KIND: &str = "envoyExtAuthzGrpc";

/// Longest wait of a test for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A CUSTOM policy for all connections to the TCP port.
fn all_connections() -> String {
    custom(&format!(
        "rules: [{{to: [{{operation: {{ports: [\"{TCP_PORT}\"]}}}}]}}]"
    ))
}

fn talk(stream: &mut TcpStream) -> bool {
    let mut word = [0; 2];
    stream.write_all(b"hi").is_ok() && stream.read_exact(&mut word).is_ok() && &word == b"hi"
}

/// Returns true if a new connection is allowed.
fn passes(mesh: &Mesh) -> bool {
    talk(&mut TcpStream::connect(mesh.tcp()).expect("a connection"))
}

#[test]
fn connections_are_asked_about_too_and_judged_again() {
    let mesh = Mesh::start("PERMISSIVE");
    echo_application(&mesh);
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    set(&mesh, &(provider(KIND, at, "") + &all_connections()));
    let connect = || TcpStream::connect(mesh.tcp()).expect("a connection");
    in_force("connections are asked about", || {
        let before = authorizer.asked().len();
        talk(&mut connect()) && authorizer.asked().len() > before
    });
    let asked = authorizer.asked().pop().expect("asked");
    assert!(asked.request.is_none());
    assert_eq!(
        asked.source.expect("a source").principal,
        "spiffe://cluster.local/ns/shop/sa/client"
    );
    let mut kept = connect();
    assert!(talk(&mut kept));
    let nobody = free().local_addr().expect("an address");
    set(&mesh, &(provider(KIND, nobody, "") + &all_connections()));
    let mut rest = Vec::new();
    let cut = kept.read_to_end(&mut rest);
    assert!(cut.is_err() || rest.is_empty(), "the permit is lost");
    in_force("nobody is let in", || !talk(&mut connect()));
}

#[test]
fn a_no_closes_a_connection_and_a_yes_leaves_it_to_the_others() {
    let mesh = Mesh::start("PERMISSIVE");
    echo_application(&mesh);
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    let usual = provider(KIND, at, "") + &all_connections();
    set(&mesh, &usual);
    in_force("connections are asked about", || {
        let before = authorizer.asked().len();
        passes(&mesh) && authorizer.asked().len() > before
    });
    let deny = |port: u16| {
        let rule =
            format!("action: DENY, rules: [{{to: [{{operation: {{ports: [\"{port}\"]}}}}]}}]");
        policy("deny", &rule)
    };
    set(&mesh, &(usual.clone() + &deny(TCP_PORT)));
    let asked = authorizer.asked().len();
    in_force("it said yes, and a DENY rule says no", || !passes(&mesh));
    assert!(authorizer.asked().len() > asked, "asked first all the same");
    set(&mesh, &(usual.clone() + &deny(HTTP_PORT)));
    in_force("the rule is about another port", || passes(&mesh));
    authorizer.close();
    for _ in 0..8 {
        assert!(!passes(&mesh), "it said no");
    }
    let nobody = free().local_addr().expect("an address");
    let open = provider(KIND, nobody, ", failOpen: true") + &all_connections();
    set(&mesh, &open);
    in_force("nobody is there, and that opens", || passes(&mesh));
}

/// Connects by TLS with the certificate `shown`, to a server of this name; returns the first bytes of the
/// answer.
fn speak(mesh: &Mesh, port: u16, shown: Option<&ShownCertificate>, words: &[u8]) -> Vec<u8> {
    let tcp = TcpStream::connect(mesh.inbound(port)).expect("connected");
    tcp.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let name = ServerName::try_from("Door.Example").expect("a name");
    let connection = ClientConnection::new(hostile_client_config(shown), name).expect("a client");
    let mut stream = StreamOwned::new(connection, tcp);
    let mut answer = [0; 64];
    let spoke = stream
        .write_all(words)
        .and_then(|()| stream.read(&mut answer));
    answer[..spoke.unwrap_or(0)].to_vec()
}

#[test]
fn whoever_is_asked_is_told_the_server_name() {
    let authority = TestAuthority::new();
    let how = Client {
        state: Some(authority.state()),
        ..Client::default()
    };
    let mesh = Mesh::start_as("PERMISSIVE", &how);
    echo_application(&mesh);
    application::reflect(mesh.http_app());
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    let both =
        format!("rules: [{{to: [{{operation: {{ports: [\"{HTTP_PORT}\", \"{TCP_PORT}\"]}}}}]}}]");
    set(&mesh, &(provider(KIND, at, "") + &custom(&both)));
    in_force("connections are asked about", || {
        let before = authorizer.asked().len();
        passes(&mesh) && authorizer.asked().len() > before
    });
    let last = || authorizer.asked().pop().expect("asked");
    let name = || last().tls_session.map(|session| session.sni);
    assert_eq!(name(), None, "a sidecar of ours names no server");
    let shown: ShownCertificate = (&authority.certificate("shop", "client")).into();
    // A STRICT port terminates all TLS; whose certificate is good is asked about by name.
    mesh.set_peer_authentication("STRICT");
    wait_until("TLS of the mesh is all there is", || {
        speak(&mesh, TCP_PORT, Some(&shown), b"hi") == b"hi"
    });
    assert_eq!(name().as_deref(), Some("door.example"));
    assert!(last().request.is_none());
    let request = b"GET /named HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
    let answer = speak(&mesh, HTTP_PORT, Some(&shown), request);
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{answer:?}");
    let asked = authorizer.about("/named");
    let named = asked.tls_session.map(|session| session.sni);
    assert_eq!(named.as_deref(), Some("door.example"));
}

#[test]
fn of_tls_that_passes_through_the_server_name_is_told() {
    let mesh = Mesh::start("PERMISSIVE");
    echo_application(&mesh);
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    set(&mesh, &(provider(KIND, at, "") + &all_connections()));
    in_force("connections are asked about", || {
        let before = authorizer.asked().len();
        passes(&mesh) && authorizer.asked().len() > before
    });
    // The application echoes the ClientHello, so the handshake fails; this does not matter here.
    let _ = speak(&mesh, TCP_PORT, None, b"hi");
    let asked = authorizer.asked().pop().expect("asked");
    let named = asked.tls_session.map(|session| session.sni);
    assert_eq!(named.as_deref(), Some("door.example"));
    assert_eq!(asked.source.expect("a source").principal, "");
}
