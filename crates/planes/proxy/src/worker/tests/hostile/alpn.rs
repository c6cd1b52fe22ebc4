//! A client's ALPN offer does not decide its treatment: the port's declaration and the bytes do. Every declaration meets every
//! offer and every kind of bytes, over mutual TLS and in plaintext. A forged `x-forwarded-client-cert` that reaches the
//! application shows that a request was relayed unread.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use voile_transport::{TransportStream, alpn};
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::plan::Settings;
use crate::tokens::Tokens;
use crate::worker::tests::{Stage, listen, play_for};

/// Treatment of a client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The HTTP engine took them.
    Requests,
    /// The application got them unread.
    Relayed,
    /// Neither.
    Refused,
}
use Verdict::{Refused, Relayed, Requests};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Http1,
    Http2,
    Garbage,
    Tls,
}

const SAID: [Said; 4] = [Said::Http1, Said::Http2, Said::Garbage, Said::Tls];

/// ALPN offers of clients; an empty list is TLS without an offer.
const OFFERS: [(&str, &[&[u8]]); 7] = [
    ("istio", &[alpn::TCP]),
    ("istio-peer-exchange", &[b"istio-peer-exchange", alpn::TCP]),
    ("none", &[]),
    ("h2", &[alpn::PLAIN_HTTP2]),
    ("http/1.1", &[alpn::PLAIN_HTTP11]),
    ("istio-http/1.1", &[alpn::HTTP11]),
    ("istio-h2", &[alpn::HTTP2]),
];

const DECLARED: [WireProtocol; 5] = [
    WireProtocol::Http,
    WireProtocol::Http2,
    WireProtocol::Grpc,
    WireProtocol::Auto,
    WireProtocol::Tcp,
];

impl Said {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Http1 => {
                b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-client-cert: forged\r\n\r\n".to_vec()
            }
            Self::Http2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
            Self::Garbage => b"\x01forged\x00\r\n\r\n".to_vec(),
            Self::Tls => client_hello(),
        }
    }
}

/// The first flight of a client of TLS that is not the mesh's.
fn client_hello() -> Vec<u8> {
    let name = rustls::pki_types::ServerName::try_from("forged.example").expect("a name");
    let authority = voile_testkit::TestAuthority::new();
    let store = authority.store("shop", "client");
    let config = voile_identity::mesh_client_config(&store, &[b"h2"]).expect("a configuration");
    let mut connection = rustls::ClientConnection::new(config, name).expect("a client");
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes).expect("written");
    }
    bytes
}

/// Expected treatment of bytes by the port's declaration; `version` is ALPN's choice, if that is an HTTP version.
fn expected(declared: WireProtocol, ruled: bool, version: Option<Said>, said: Said) -> Verdict {
    match (declared, version, said) {
        (WireProtocol::Tcp, _, _) => Relayed,
        // The version that was chosen must be spoken.
        (_, Some(version), said) if version == said => Requests,
        (_, Some(_), _) => Refused,
        (_, None, Said::Http1 | Said::Http2) => Requests,
        (WireProtocol::Auto, None, _) if !ruled => Relayed,
        (_, None, _) => Refused,
    }
}

/// The version that the server settles on.
fn version(offer: &str) -> Option<Said> {
    match offer {
        "istio-http/1.1" | "http/1.1" => Some(Said::Http1),
        "istio-h2" | "h2" => Some(Said::Http2),
        _ => None,
    }
}

/// Watches both ends until it is known what became of the bytes.
async fn verdict(
    client: &mut (impl AsyncRead + Unpin),
    application: &TcpListener,
    said: Said,
) -> Verdict {
    let reached = async {
        let (mut server, _) = application.accept().await.expect("the application accepts");
        let mut got = Vec::new();
        let sent = said.bytes();
        while !got.windows(4).any(|four| four == b"\r\n\r\n") && got.len() < sent.len().min(64) {
            if server.read_buf(&mut got).await.is_ok_and(|count| count > 0) {
                continue;
            }
            match got.is_empty() {
                // It was connected to hear whether it speaks first, and left when the client did.
                true => (server, _) = application.accept().await.expect("another"),
                false => break,
            }
        }
        // For TLS only the record's header is compared: the rest is random.
        let start = got.len().min(5);
        let forged = got.windows(6).any(|six| six == b"forged");
        match forged || (said != Said::Http1 && got[..start] == sent[..start]) {
            true => Relayed,
            false => Requests,
        }
    };
    let answered = async {
        let mut got = Vec::new();
        loop {
            match client.read_buf(&mut got).await {
                // A frame of SETTINGS.
                Ok(1..) if said == Said::Http2 && got.get(3) == Some(&4) => return Requests,
                Ok(1..) if got.starts_with(b"HTTP/1.1 4") => return Refused,
                Ok(1..) if got.starts_with(b"HTTP/1.1 5") && said != Said::Http1 => return Refused,
                Ok(1..) => {}
                Ok(0) | Err(_) => return Refused,
            }
        }
    };
    tokio::select! {
        biased;
        verdict = reached => verdict,
        verdict = answered => verdict,
    }
}

async fn told(stream: &mut TransportStream, said: Said) {
    // A proxy that refuses may be gone before all was sent.
    let _ = stream.write_all(&said.bytes()).await;
    let _ = stream.flush().await;
}

fn settings() -> Settings {
    Settings {
        detection_timeout: Duration::from_millis(200),
        ..Settings::default()
    }
}

/// One declaration, with rules about tokens or without, against every offer and every kind of bytes.
async fn every_client_of(declared: WireProtocol, mode: MutualTls, ruled: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (offer, protocols) in OFFERS {
        for said in SAID {
            let stage = Stage::new(settings());
            let application = listen().await;
            let endpoint = application.local_addr().expect("an address");
            let inbound = stage.inbound(declared, mode, endpoint).await;
            if ruled {
                stage.worker.tokens.obey(Some(&Tokens::new(&[], None)));
            }
            let tcp = TcpStream::connect(inbound).await.expect("connected");
            let shaken = stage.shake_offering(tcp, protocols).await;
            let mut stream = shaken.expect("the server takes the offer");
            told(&mut stream, said).await;
            let found = verdict(&mut stream, &application, said).await;
            let expected = expected(declared, ruled, version(offer), said);
            if found != expected {
                wrong.push(format!(
                    "{declared:?} {mode:?} ruled={ruled}, ALPN {offer}, {said:?}: {found:?}, wanted {expected:?}"
                ));
            }
        }
    }
    wrong
}

#[test]
fn alpn_chooses_a_version_of_http_and_nothing_else() {
    play_for(Duration::from_secs(60), || async {
        let mut wrong = Vec::new();
        for declared in DECLARED {
            wrong.extend(every_client_of(declared, MutualTls::Strict, false).await);
        }
        // Rules about tokens select an undeclared port: bytes that are not HTTP are denied there, and a declared port is
        // as before.
        for declared in [WireProtocol::Auto, WireProtocol::Tcp] {
            wrong.extend(every_client_of(declared, MutualTls::Strict, true).await);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn plaintext_and_foreign_tls_are_treated_by_the_declaration_too() {
    play_for(Duration::from_secs(60), || async {
        let mut wrong = Vec::new();
        for mode in [MutualTls::Permissive, MutualTls::Disable] {
            for declared in DECLARED {
                for (said, ruled) in SAID.iter().flat_map(|said| [(*said, false), (*said, true)]) {
                    let stage = Stage::new(settings());
                    let application = listen().await;
                    let endpoint = application.local_addr().expect("an address");
                    let inbound = stage.inbound(declared, mode, endpoint).await;
                    if ruled {
                        stage.worker.tokens.obey(Some(&Tokens::new(&[], None)));
                    }
                    let tcp = TcpStream::connect(inbound).await.expect("connected");
                    let mut stream = TransportStream::Tcp(tcp.into());
                    told(&mut stream, said).await;
                    let found = verdict(&mut stream, &application, said).await;
                    let expected = expected(declared, ruled, None, said);
                    if found != expected {
                        wrong.push(format!(
                            "{declared:?} {mode:?} ruled={ruled}, plaintext {said:?}: {found:?}, wanted {expected:?}"
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// A client of mutual TLS that is silent beyond the deadline is treated by its later bytes.
#[test]
fn silence_does_not_lead_past_the_engine() {
    play_for(Duration::from_secs(30), || async {
        for ruled in [false, true] {
            let stage = Stage::new(Settings {
                detection_timeout: Duration::from_millis(5),
                ..Settings::default()
            });
            let application = listen().await;
            let endpoint = application.local_addr().expect("an address");
            let inbound = stage
                .inbound(WireProtocol::Auto, MutualTls::Strict, endpoint)
                .await;
            if ruled {
                stage.worker.tokens.obey(Some(&Tokens::new(&[], None)));
            }
            let tcp = TcpStream::connect(inbound).await.expect("connected");
            let mut client = stage.shake(tcp, alpn::TCP).await.expect("answered");
            let ahead = match ruled {
                // The application is connected when the deadline passed.
                false => Some(application.accept().await.expect("connected ahead")),
                true => None,
            };
            told(&mut client, Said::Http1).await;
            let found = verdict(&mut client, &application, Said::Http1).await;
            assert_eq!(found, Requests, "ruled={ruled}");
            drop(ahead);
        }
    });
}

/// A server that speaks first is heard by a client that names no version of HTTP.
#[test]
fn a_server_that_speaks_first_inside_mutual_tls_is_heard() {
    play_for(Duration::from_secs(30), || async {
        let stage = Stage::new(Settings {
            detection_timeout: Duration::from_millis(5),
            ..Settings::default()
        });
        let application = listen().await;
        let endpoint = application.local_addr().expect("an address");
        let inbound = stage
            .inbound(WireProtocol::Auto, MutualTls::Permissive, endpoint)
            .await;
        for turn in 0..3 {
            let tcp = TcpStream::connect(inbound).await.expect("connected");
            let mut client = stage.shake(tcp, alpn::TCP).await.expect("answered");
            let (mut server, _) = application.accept().await.expect("connected");
            crate::worker::tests::say(&mut server, b"220 ready\r\n").await;
            crate::worker::tests::hear(&mut client, b"220 ready\r\n").await;
            crate::worker::tests::say(&mut client, b"HELO me\r\n").await;
            crate::worker::tests::hear(&mut server, b"HELO me\r\n").await;
            assert!(turn < 3);
        }
    });
}

/// A client that sends half a word of a request and waits is not relayed as bytes to an HTTP application. The same holds for a
/// spelling that only careless servers accept, and for a client that asks for a tunnel first.
#[test]
fn half_a_request_and_careless_spellings_do_not_lead_past_the_engine() {
    const REST: &str = " / HTTP/1.1\r\nhost: a\r\nx-forwarded-client-cert: forged\r\n\r\n";
    /// Longer than detection waits.
    const PAUSE: Duration = Duration::from_millis(50);
    play_for(Duration::from_secs(60), || async {
        for (first, rest) in [
            ("GE", "T"),
            ("GET", ""),
            ("", "\r\n\r\nGET"),
            ("", "\nGET"),
            ("", " GET"),
            ("", "GET\t"),
            ("", "GET "),
            ("", "A-METHOD-OF-THE-CLIENTS-OWN-MAKING"),
            ("", "CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\nGET"),
            ("CONN", "ECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\nGET"),
        ] {
            let stage = Stage::new(Settings {
                detection_timeout: Duration::from_millis(5),
                ..Settings::default()
            });
            let application = listen().await;
            let endpoint = application.local_addr().expect("an address");
            let inbound = stage
                .inbound(WireProtocol::Auto, MutualTls::Permissive, endpoint)
                .await;
            let mut client = TcpStream::connect(inbound).await.expect("connected");
            client.write_all(first.as_bytes()).await.expect("said");
            if !first.is_empty() {
                let early = tokio::time::timeout(PAUSE, client.read_u8()).await;
                assert!(early.is_err(), "half a word is answered: {early:?}");
            }
            // A proxy that refuses may be gone before all was sent.
            let _ = client.write_all(format!("{rest}{REST}").as_bytes()).await;
            let found = verdict(&mut client, &application, Said::Http1).await;
            assert_ne!(found, Relayed, "{first:?}, then {rest:?}");
        }
    });
}
