//! Clients that speak after the detection deadline. The application being connected is the proof that it passed, so
//! nothing here waits for a while.

use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use voile_identity::mesh_client_config;
use voile_transport::alpn;
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::plan::Settings;
use crate::worker::tests::{Stage, hear, listen, play, say};

const PROTOCOLS: [WireProtocol; 2] = [WireProtocol::Tcp, WireProtocol::Auto];

fn hasty() -> Settings {
    Settings {
        detection_timeout: Duration::from_millis(5),
        ..Settings::default()
    }
}

/// A client that has sent nothing until the deadline, and the application's end of the connection that was
/// opened for it.
async fn silent_client(
    stage: &Stage,
    protocol: WireProtocol,
) -> (TcpStream, TcpStream, TcpListener) {
    let application = listen().await;
    let endpoint = application.local_addr().expect("an address");
    let inbound = stage
        .inbound(protocol, MutualTls::Permissive, endpoint)
        .await;
    let client = TcpStream::connect(inbound).await.expect("connected");
    let (server, _) = application
        .accept()
        .await
        .expect("the application is connected");
    (client, server, application)
}

#[test]
fn a_late_handshake_is_answered_and_not_given_to_the_application() {
    for protocol in PROTOCOLS {
        play(|| async {
            let stage = Stage::new(hasty());
            let (client, mut server, _) = silent_client(&stage, protocol).await;
            let mut client = stage.shake(client, alpn::TCP).await.expect("answered");
            say(&mut client, b"ping").await;
            hear(&mut server, b"ping").await;
            say(&mut server, b"pong").await;
            hear(&mut client, b"pong").await;
        });
    }
}

#[test]
fn a_late_handshake_for_http_is_served_as_http_on_an_auto_port() {
    play(|| async {
        let stage = Stage::new(hasty());
        let (client, mut unused, application) = silent_client(&stage, WireProtocol::Auto).await;
        let mut client = stage.shake(client, alpn::HTTP11).await.expect("answered");
        say(&mut client, b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let (mut server, _) = application
            .accept()
            .await
            .expect("the request's connection");
        hear(&mut server, b"GET /late HTTP/1.1\r\n").await;
        assert_eq!(
            unused.read(&mut [0]).await.expect("closed in good order"),
            0
        );
    });
}

#[test]
fn a_late_plaintext_request_is_served_as_http_on_an_auto_port() {
    play(|| async {
        let stage = Stage::new(hasty());
        let (mut client, _unused, application) = silent_client(&stage, WireProtocol::Auto).await;
        say(&mut client, b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let (mut server, _) = application
            .accept()
            .await
            .expect("the request's connection");
        hear(&mut server, b"GET /late HTTP/1.1\r\n").await;
        say(&mut server, b"HTTP/1.1 204 No Content\r\n\r\n").await;
        hear(&mut client, b"HTTP/1.1 204 No Content\r\n").await;
    });
}

#[test]
fn late_bytes_that_only_begin_like_a_handshake_go_to_the_application() {
    play(|| async {
        let stage = Stage::new(hasty());
        let (mut client, mut server, _) = silent_client(&stage, WireProtocol::Tcp).await;
        // A handshake record, but no ClientHello in it.
        say(&mut client, &[22, 3, 1]).await;
        say(&mut client, &[0, 2, 99, 99]).await;
        hear(&mut server, &[22, 3, 1, 0, 2, 99, 99]).await;
    });
}

#[test]
fn a_late_hello_in_pieces_is_waited_for_and_no_piece_reaches_the_application() {
    play(|| async {
        let stage = Stage::new(hasty());
        let (mut client, mut server, _) = silent_client(&stage, WireProtocol::Tcp).await;
        let store = stage.authority.store("shop", "client");
        let config = mesh_client_config(&store, &[alpn::TCP]).expect("a configuration");
        let name = ServerName::try_from("peer.invalid").expect("a name");
        let mut session = ClientConnection::new(config, name).expect("a session");
        let mut hello = Vec::new();
        session.write_tls(&mut hello).expect("a hello");
        let (begin, rest) = hello.split_at(hello.len() / 2);
        let (first, begin) = begin.split_at(1);
        for piece in [first, begin] {
            say(&mut client, piece).await;
            // Bytes that an impatient application sends meanwhile are held back.
            say(&mut server, b"hurry").await;
        }
        say(&mut client, rest).await;
        // A record of handshake messages answers.
        hear(&mut client, &[22, 3, 3]).await;
        drop(client);
        assert_eq!(server.read(&mut [0]).await.unwrap_or(0), 0);
    });
}

#[test]
fn a_server_that_speaks_first_is_heard_and_then_answered_in_plaintext() {
    for protocol in PROTOCOLS {
        play(|| async {
            let stage = Stage::new(hasty());
            let (mut client, mut server, _) = silent_client(&stage, protocol).await;
            say(&mut server, b"220 ready\r\n").await;
            hear(&mut client, b"220 ready\r\n").await;
            // After bytes went out in plaintext nothing that comes is a handshake with us.
            say(&mut client, &[22, 3, 1, 0, 0]).await;
            hear(&mut server, &[22, 3, 1, 0, 0]).await;
        });
    }
}

#[test]
fn late_plaintext_goes_to_the_connection_that_is_open() {
    for protocol in PROTOCOLS {
        play(|| async {
            let stage = Stage::new(hasty());
            let (mut client, mut server, _) = silent_client(&stage, protocol).await;
            say(&mut client, &[0, 1, 2]).await;
            hear(&mut server, &[0, 1, 2]).await;
            drop(server);
            assert_eq!(
                client.read(&mut [0]).await.expect("closed in good order"),
                0
            );
        });
    }
}

#[test]
fn an_application_that_hangs_up_ends_a_client_that_never_spoke() {
    play(|| async {
        let stage = Stage::new(hasty());
        let (mut client, server, _) = silent_client(&stage, WireProtocol::Tcp).await;
        drop(server);
        assert_eq!(
            client.read(&mut [0]).await.expect("closed in good order"),
            0
        );
    });
}

#[test]
fn a_client_that_never_speaks_on_an_http_port_is_closed_after_the_header_timeout() {
    for mode in [MutualTls::Permissive, MutualTls::Disable] {
        play(|| async {
            let stage = Stage::new(Settings {
                header_timeout: Duration::from_millis(5),
                ..Settings::default()
            });
            let nobody = listen().await.local_addr().expect("an address");
            let inbound = stage.inbound(WireProtocol::Http, mode, nobody).await;
            let mut client = TcpStream::connect(inbound).await.expect("connected");
            let read = client.read(&mut [0]).await;
            assert_eq!(read.expect("closed in good order"), 0);
        });
    }
}
