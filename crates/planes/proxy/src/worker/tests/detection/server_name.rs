//! TLS passthrough: the server name selects one of several services. The ClientHello may come in any pieces and carry
//! all extensions that clients use today. It is never terminated: the service gets it byte by byte.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use voile_telemetry::{PeerLabels, ServiceLabels};
use voile_xds::wire::WireProtocol;

use crate::plan::{EndpointPlan, ListenerId, OutboundPlan, PassthroughMode, ServicePlan, Settings};
use crate::worker::tests::{Stage, hear, listen, play, say};

/// `bytes` after their length, in so many bytes.
fn vector(bytes: &[u8], width: usize) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short").to_be_bytes();
    [&length[4 - width..], bytes].concat()
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector(value, 2)].concat()
}

/// A ClientHello with this server name, GREASE values and an encrypted inner hello, in records of at most `size` bytes.
fn hello(name: Option<&str>, size: usize) -> Vec<u8> {
    let mut extensions = extension(0x0a0a, &[]);
    if let Some(name) = name {
        let entry = [&[0][..], &vector(name.as_bytes(), 2)].concat();
        extensions.extend(extension(0, &vector(&entry, 2)));
    }
    extensions.extend(extension(0xfe0d, &[0x77; 200]));
    extensions.extend(extension(16, &vector(&vector(b"h2", 1), 2)));
    extensions.extend(extension(0x1a1a, &[0]));
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend(vector(&[], 1));
    body.extend(vector(&[0x0a, 0x0a, 0x13, 0x01], 2));
    body.extend(vector(&[0], 1));
    body.extend(vector(&extensions, 2));
    let message = [&[1][..], &vector(&body, 3)].concat();
    let record = |fragment: &[u8]| [&[22, 3, 1][..], &vector(fragment, 2)].concat();
    message.chunks(size).flat_map(record).collect()
}

async fn listener(
    stage: &Stage,
    names: &[&str],
    otherwise: PassthroughMode,
) -> (SocketAddr, Vec<TcpListener>) {
    let mut applications = Vec::new();
    let mut services = Vec::new();
    for name in names {
        let application = listen().await;
        services.push(ServicePlan {
            subset: None,
            routes: None,
            retry: Default::default(),
            retry_budget: Default::default(),
            traffic: Default::default(),
            service: ServiceLabels {
                host: (*name).to_owned(),
                ..ServiceLabels::default()
            },
            port: 443,
            protocol: WireProtocol::Tls,
            http2_upgrade: false,
            client_protocol: false,
            authorities: vec![(*name).into()],
            endpoints: vec![EndpointPlan {
                name: None,
                address: application.local_addr().expect("an address"),
                expected: None,
                weight: 1,
                available: true,
                origination: None,
                rank: Default::default(),
                peer: PeerLabels::default(),
            }],
        });
        applications.push(application);
    }
    let listener = listen().await;
    let bind = listener.local_addr().expect("an address");
    let mut plan = stage.plan();
    plan.outbound.push(OutboundPlan {
        name: "out".into(),
        bind,
        protocol: WireProtocol::Tls,
        services,
        otherwise,
        by_name: false,
    });
    stage.serve(listener, &plan, &[], &[ListenerId(1)]);
    (bind, applications)
}

/// Bytes of a record's fragment, and bytes of a segment.
const CUTS: [(usize, usize); 5] = [
    (16_384, 16_384),
    (64, 16_384),
    (1, 16_384),
    (16_384, 7),
    (5, 3),
];

#[test]
fn the_server_name_picks_the_service_however_the_hello_is_cut() {
    let names = ["one.test", "*.wild.test", "three.test"];
    let cases = [
        (Some("one.test"), 0),
        (Some("ONE.test"), 0),
        (Some("a.b.wild.test"), 1),
        (Some("three.test"), 2),
        // A name of no service: the last service stands for the rest here. Without a name: the first.
        (Some("wild.test"), 2),
        (Some("elsewhere.test"), 2),
        (None, 0),
    ];
    for (name, service) in cases {
        for (record, segment) in CUTS {
            play(|| async {
                let stage = Stage::new(Settings::default());
                let (bind, applications) =
                    listener(&stage, &names, PassthroughMode::Service(2)).await;
                let mut client = TcpStream::connect(bind).await.expect("connected");
                client.set_nodelay(true).expect("open");
                let bytes = hello(name, record);
                for piece in bytes.chunks(segment) {
                    say(&mut client, piece).await;
                    tokio::task::yield_now().await;
                }
                let (mut server, _) = applications[service].accept().await.expect("called");
                hear(&mut server, &bytes).await;
                say(&mut server, b"\x16\x03\x03").await;
                hear(&mut client, b"\x16\x03\x03").await;
            });
        }
    }
}

#[test]
fn a_name_that_nobody_has_is_refused_where_there_is_nowhere_else() {
    for otherwise in [PassthroughMode::NoRoute, PassthroughMode::BlackHole] {
        play(|| async {
            let stage = Stage::new(Settings::default());
            let names = ["one.test", "two.test"];
            let (bind, _applications) = listener(&stage, &names, otherwise).await;
            let mut client = TcpStream::connect(bind).await.expect("connected");
            say(&mut client, &hello(Some("three.test"), 16_384)).await;
            assert!(client.read(&mut [0]).await.is_err(), "a reset");
        });
    }
}
