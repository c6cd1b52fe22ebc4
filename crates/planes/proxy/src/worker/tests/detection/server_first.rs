//! Servers that speak first, behind explicit listeners without a declared protocol: through both roles in every mode,
//! and the remembered lessons.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use voile_telemetry::PeerLabels;
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::plan::{EndpointPlan, Settings};
use crate::worker::listeners::server_first::DestinationKey;
use crate::worker::tests::{Stage, hear, listen, play, say};

const MODES: [MutualTls; 3] = [MutualTls::Strict, MutualTls::Permissive, MutualTls::Disable];

fn patient(detection_timeout: Duration) -> Settings {
    Settings {
        detection_timeout,
        ..Settings::default()
    }
}

/// Both listeners in front of an application; gives (client's, server's) listener.
async fn listeners(
    stage: &Stage,
    mode: MutualTls,
    application: &TcpListener,
) -> (SocketAddr, SocketAddr) {
    let endpoint = application.local_addr().expect("an address");
    let inbound = stage.inbound(WireProtocol::Auto, mode, endpoint).await;
    let expected = vec![stage.authority.identity("shop", "server")];
    let to = EndpointPlan {
        name: None,
        address: inbound,
        expected: (mode != MutualTls::Disable).then_some(expected),
        weight: 1,
        available: true,
        origination: None,
        rank: Default::default(),
        peer: PeerLabels::default(),
    };
    (stage.outbound(WireProtocol::Auto, to).await, inbound)
}

/// Key of callers from this address.
fn near(inbound: SocketAddr) -> DestinationKey {
    DestinationKey::Inbound(inbound, inbound.ip())
}

/// A greeting, an answer, and the end, through the listener.
async fn greeted(to: SocketAddr, application: &TcpListener) {
    let mut client = TcpStream::connect(to).await.expect("connected");
    let (mut server, _) = application.accept().await.expect("called");
    say(&mut server, b"220 ready\r\n").await;
    hear(&mut client, b"220 ready\r\n").await;
    say(&mut client, b"HELO\r\n").await;
    hear(&mut server, b"HELO\r\n").await;
}

#[test]
fn only_the_first_connection_to_a_server_that_speaks_first_waits() {
    for mode in MODES {
        play(|| async {
            let stage = Stage::new(patient(Duration::from_millis(5)));
            let application = listen().await;
            let (outbound, inbound) = listeners(&stage, mode, &application).await;
            let is_known = |place| stage.worker.servers_first.knows(place);
            greeted(outbound, &application).await;
            assert!(is_known(DestinationKey::Outbound(outbound)), "{mode:?}");
            // In mutual TLS the server's side learns nothing.
            assert_eq!(is_known(near(inbound)), mode == MutualTls::Disable);
            if mode == MutualTls::Permissive {
                greeted(inbound, &application).await;
                assert!(is_known(near(inbound)), "without a sidecar");
                // One caller teaches nothing about others, whose ClientHello may be late.
                let far = DestinationKey::Inbound(inbound, [127, 0, 0, 2].into());
                assert!(!is_known(far));
            }
            // A connection that waited now would wait for longer than the test lasts.
            let hour = Rc::new(patient(Duration::from_hours(1)));
            *stage.worker.settings.borrow_mut() = hour;
            if mode != MutualTls::Strict {
                greeted(inbound, &application).await;
            }
            greeted(outbound, &application).await;
            // A caller that speaks mutual TLS now is waited for again.
            assert_eq!(is_known(near(inbound)), mode == MutualTls::Disable);
        });
    }
}

#[test]
fn a_client_that_speaks_first_after_all_is_carried_and_detection_begins_anew() {
    for mode in MODES {
        play(|| async {
            let stage = Stage::new(patient(Duration::from_millis(5)));
            let application = listen().await;
            let (outbound, _) = listeners(&stage, mode, &application).await;
            let place = DestinationKey::Outbound(outbound);
            stage.worker.servers_first.learn(place, true);
            // HTTP on that memory goes through as bytes, whole and in order.
            let mut client = TcpStream::connect(outbound).await.expect("connected");
            say(&mut client, b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let (mut server, _) = application.accept().await.expect("called");
            hear(&mut server, b"GET /late HTTP/1.1\r\n").await;
            say(&mut server, b"HTTP/1.1 204 No Content\r\n\r\n").await;
            hear(&mut client, b"HTTP/1.1 204 No Content\r\n").await;
            assert!(!stage.worker.servers_first.knows(place), "{mode:?}");
        });
    }
}

#[test]
fn an_http_server_that_loses_patience_is_not_taken_for_one_that_speaks_first() {
    play(|| async {
        let stage = Stage::new(patient(Duration::from_millis(5)));
        let application = listen().await;
        let (outbound, _) = listeners(&stage, MutualTls::Strict, &application).await;
        let mut client = TcpStream::connect(outbound).await.expect("connected");
        let (mut server, _) = application.accept().await.expect("called");
        say(&mut server, b"HTTP/1.1 408 Request Timeout\r\n\r\n").await;
        hear(&mut client, b"HTTP/1.1 408 Request Timeout\r\n\r\n").await;
        assert!(
            !stage
                .worker
                .servers_first
                .knows(DestinationKey::Outbound(outbound))
        );
    });
}

/// A word, an answer, through the listener.
async fn asked(to: SocketAddr, application: &TcpListener, answer: &[u8]) {
    let mut client = TcpStream::connect(to).await.expect("connected");
    say(&mut client, b"status").await;
    let (mut server, _) = application.accept().await.expect("called");
    hear(&mut server, b"status").await;
    say(&mut server, answer).await;
    hear(&mut client, answer).await;
}

#[test]
fn only_the_first_word_to_a_server_that_answers_words_waits() {
    for mode in MODES {
        play(|| async {
            let stage = Stage::new(patient(Duration::from_millis(5)));
            let application = listen().await;
            let (outbound, _) = listeners(&stage, mode, &application).await;
            let is_known = || {
                stage
                    .worker
                    .servers_first
                    .knows(DestinationKey::Word(outbound))
            };
            // An answer in HTTP says that it was no word for its server.
            asked(outbound, &application, b"HTTP/1.1 400 Bad Request\r\n").await;
            assert!(!is_known(), "{mode:?}");
            asked(outbound, &application, b"fine").await;
            assert!(is_known(), "{mode:?}");
            // A connection that waited now would wait for longer than the test lasts. HTTP is still detected.
            let hour = Rc::new(patient(Duration::from_hours(1)));
            *stage.worker.settings.borrow_mut() = hour;
            let mut client = TcpStream::connect(outbound).await.expect("connected");
            say(&mut client, b"GET /late HTTP/1.1\r\nHost: nobody\r\n\r\n").await;
            let (mut server, _) = application.accept().await.expect("called");
            hear(&mut server, b"GET /late HTTP/1.1\r\n").await;
            say(&mut server, b"HTTP/1.1 204 No Content\r\n\r\n").await;
            hear(&mut client, b"HTTP/1.1 204 No Content\r\n").await;
            assert!(is_known(), "{mode:?}");
        });
    }
}

/// A client that begins with a word and goes on when the deadline has passed cannot have others carried unread.
#[test]
fn what_clients_say_after_a_word_teaches_nothing() {
    play(|| async {
        let stage = Stage::new(patient(Duration::from_millis(5)));
        let application = listen().await;
        let (outbound, _) = listeners(&stage, MutualTls::Strict, &application).await;
        let mut client = TcpStream::connect(outbound).await.expect("connected");
        say(&mut client, b"GE").await;
        let (mut server, _) = application.accept().await.expect("called");
        hear(&mut server, b"GE").await;
        say(&mut client, b"T / HTTP/1.1\r\n\r\n").await;
        hear(&mut server, b"T / HTTP/1.1\r\n\r\n").await;
        say(&mut server, b"anything").await;
        hear(&mut client, b"anything").await;
        assert!(
            !stage
                .worker
                .servers_first
                .knows(DestinationKey::Word(outbound))
        );
    });
}
