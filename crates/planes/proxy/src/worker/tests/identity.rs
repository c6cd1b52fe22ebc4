//! A server must prove the expected identity: endpoints with a wrong certificate get not a byte.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use voile_telemetry::PeerLabels;
use voile_testkit::{ShownCertificate, TestAuthority, hostile_server_config};
use voile_transport::{HandshakeError, TransportStream, accept_tls};
use voile_xds::wire::WireProtocol;

use super::{PATIENCE, Stage, hear, listen, play, say};
use crate::plan::{EndpointPlan, Settings};

/// Returns true if a server with `certificate` receives the client's bytes.
async fn is_spoken_to(stage: &Stage, certificate: &ShownCertificate) -> bool {
    let server = listen().await;
    let to = EndpointPlan {
        name: None,
        address: server.local_addr().expect("an address"),
        expected: Some(vec![stage.authority.identity("shop", "server")]),
        weight: 1,
        available: true,
        origination: None,
        rank: Default::default(),
        peer: PeerLabels::default(),
    };
    let outbound = stage.outbound(WireProtocol::Tcp, to).await;
    let mut client = TcpStream::connect(outbound).await.expect("connected");
    say(&mut client, b"secret").await;
    let (tcp, _) = server.accept().await.expect("called");
    let config = hostile_server_config(certificate);
    let Ok(mut stream) = accept_tls(config, tcp.into(), PATIENCE).await else {
        return false;
    };
    let mut got = Vec::new();
    // A client that refuses us may reset; what counts is what it said before.
    let _ = (&mut stream).take(6).read_to_end(&mut got).await;
    got == b"secret"
}

#[test]
fn a_server_with_any_identity_but_the_expected_one_learns_nothing() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let authority = &stage.authority;
        let named = |uri: &str| authority.with_names(&[uri], &[]);
        let elsewhere = TestAuthority::new();
        let cases = [
            (
                "the expected one",
                (&authority.certificate("shop", "server")).into(),
                true,
            ),
            (
                "another account",
                (&authority.certificate("shop", "thief")).into(),
                false,
            ),
            (
                "another namespace",
                (&authority.certificate("pohs", "server")).into(),
                false,
            ),
            (
                "another trust domain",
                named("spiffe://elsewhere.example/ns/shop/sa/server"),
                false,
            ),
            (
                "no identity",
                authority.with_names(&[], &["server.shop.svc"]),
                false,
            ),
            (
                "two identities",
                authority.with_names(
                    &[
                        "spiffe://cluster.local/ns/shop/sa/server",
                        "spiffe://cluster.local/ns/shop/sa/thief",
                    ],
                    &[],
                ),
                false,
            ),
            (
                "another root",
                (&elsewhere.certificate("shop", "server")).into(),
                false,
            ),
            (
                "an expired one",
                (&authority.expired("shop", "server")).into(),
                false,
            ),
            (
                "one from the future",
                (&authority.not_yet_valid("shop", "server")).into(),
                false,
            ),
        ];
        for (name, certificate, expected) in cases {
            assert_eq!(is_spoken_to(&stage, &certificate).await, expected, "{name}");
        }
    });
}

/// Alert that a peer reads instead of a first byte; it may come as early as the end of the handshake.
async fn read_alert(shaken: Result<TransportStream, HandshakeError>) -> Option<rustls::Error> {
    let mut stream = match shaken {
        Ok(stream) => stream,
        Err(HandshakeError::Refused(error)) => return Some(error),
        Err(other) => panic!("{other}"),
    };
    let error = stream.read(&mut [0]).await.err()?;
    let error = error.downcast::<rustls::Error>();
    Some(error.expect("an alert, not a broken connection"))
}

#[test]
fn whoever_is_refused_after_the_handshake_reads_access_denied() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let denied = rustls::Error::AlertReceived(rustls::AlertDescription::AccessDenied);

        let server = listen().await;
        let to = EndpointPlan {
            name: None,
            address: server.local_addr().expect("an address"),
            expected: Some(vec![stage.authority.identity("shop", "server")]),
            weight: 1,
            available: true,
            origination: None,
            rank: Default::default(),
            peer: PeerLabels::default(),
        };
        let outbound = stage.outbound(WireProtocol::Tcp, to).await;
        let mut client = TcpStream::connect(outbound).await.expect("connected");
        say(&mut client, b"secret").await;
        let (tcp, _) = server.accept().await.expect("called");
        let config = hostile_server_config(&(&stage.authority.certificate("shop", "thief")).into());
        let stranger = accept_tls(config, tcp.into(), PATIENCE).await;
        assert_eq!(read_alert(stranger).await, Some(denied.clone()));

        let mode = voile_xds::wire::MutualTls::Strict;
        let application = listen().await.local_addr().expect("an address");
        let inbound = stage.inbound(WireProtocol::Tcp, mode, application).await;
        // The certificate is in order, and the policy does not know its trust domain any more.
        let elsewhere = voile_identity::TrustDomain::new("elsewhere.example").expect("a name");
        let belief = crate::worker::policy::admission::TrustState {
            trust: voile_policy::Trust::new(elsewhere, Vec::new()),
            revocations: None,
        };
        *stage.worker.belief.borrow_mut() = Some(std::rc::Rc::new(belief));
        let tcp = TcpStream::connect(inbound).await.expect("connected");
        let client = stage.shake(tcp, voile_transport::alpn::TCP).await;
        assert_eq!(read_alert(client).await, Some(denied));
    });
}

#[test]
fn a_renewed_certificate_is_shown_in_the_next_handshake_and_open_connections_go_on() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let application = listen().await;
        let endpoint = application.local_addr().expect("an address");
        let mode = voile_xds::wire::MutualTls::Strict;
        let inbound = stage.inbound(WireProtocol::Tcp, mode, endpoint).await;
        let mut shown = Vec::new();
        let mut open = Vec::new();
        for round in 0..3 {
            let tcp = TcpStream::connect(inbound).await.expect("connected");
            let client = stage.shake(tcp, voile_transport::alpn::TCP).await;
            let client = client.expect("the handshake");
            shown.push(client.peer_certificates()[0].to_vec());
            let (server, _) = application.accept().await.expect("relayed");
            open.push((client, server));
            for (client, server) in &mut open {
                say(client, &[round]).await;
                hear(server, &[round]).await;
            }
            let renewed = stage.authority.certificate("shop", "server");
            stage.store.publish(renewed).expect("published");
        }
        shown.dedup();
        assert_eq!(
            shown.len(),
            3,
            "each handshake shows the newest certificate"
        );
    });
}
