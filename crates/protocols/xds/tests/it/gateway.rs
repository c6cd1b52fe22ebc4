//! A gateway's configuration is accepted whole or not at all, and secrets are not shown.

use prost::Message;
use voile_proto::proxy;
use voile_xds::wire::{Gateway, WireType};

fn tls() -> proxy::GatewayTls {
    proxy::GatewayTls {
        credential: "shop/edge".to_owned(),
        certificates: b"a certificate".to_vec(),
        private_key: b"very secret".to_vec(),
        tls13: true,
        more: vec![proxy::GatewayCertificate {
            credential: "shop/other".to_owned(),
            certificates: b"another certificate".to_vec(),
            private_key: b"very secret".to_vec(),
        }],
        ..proxy::GatewayTls::default()
    }
}

/// Of files.
fn files(authorities: &str) -> proxy::GatewayTls {
    proxy::GatewayTls {
        credential: "/tls.crt".to_owned(),
        certificate_file: "/tls.crt".to_owned(),
        key_file: "/tls.key".to_owned(),
        authorities_file: authorities.to_owned(),
        revocations_file: authorities.replace("crt", "crl"),
        anonymous: !authorities.is_empty(),
        tls13: true,
        ..proxy::GatewayTls::default()
    }
}

/// A good one, of one server.
fn gateway(tls: Option<proxy::GatewayTls>) -> proxy::Gateway {
    let host = proxy::VirtualHost {
        host: "*.shop.example".to_owned(),
        ..proxy::VirtualHost::default()
    };
    let server = proxy::GatewayServer {
        names: tls.iter().map(|_| "*.shop.example".to_owned()).collect(),
        tls,
        hosts: vec![host],
        ..proxy::GatewayServer::default()
    };
    let bind = proxy::SocketAddress {
        address: vec![127, 0, 0, 1],
        port: 8080,
    };
    proxy::Gateway {
        listeners: vec![proxy::GatewayListener {
            bind: Some(bind),
            name: "gateway/127.0.0.1:8080".to_owned(),
            port: 80,
            servers: vec![server],
            http3: 443,
        }],
        credentials: vec![proxy::Credential {
            name: "out".to_owned(),
            private_key: b"very secret".to_vec(),
            authorities: b"authorities".to_vec(),
            ..proxy::Credential::default()
        }],
    }
}

/// One that carries bytes.
fn carrying(kind: proxy::ServerKind, tls: Option<proxy::GatewayTls>) -> proxy::Gateway {
    let mut message = gateway(tls);
    let server = &mut message.listeners[0].servers[0];
    server.kind = kind.into();
    server.hosts.clear();
    let routes = proxy::Routes {
        routes: Vec::new(),
        connections: vec![proxy::ConnectionRoute {
            matches: Vec::new(),
            destinations: vec![proxy::RouteDestination {
                service: "shop/echo".to_owned(),
                weight: 1,
                ..proxy::RouteDestination::default()
            }],
        }],
    };
    server.connections = routes.encode_to_vec();
    message
}

type Change = fn(&mut proxy::GatewayListener);

/// Checks the error for a good listener with this change.
fn refused(table: &[(&str, Change)]) {
    for (expected, change) in table {
        let mut message = gateway(Some(tls()));
        change(&mut message.listeners[0]);
        let found = Gateway::from_wire(message).expect_err(expected).to_string();
        assert!(found.starts_with(expected), "{found:?}, not {expected:?}");
    }
}

#[test]
fn what_a_gateway_is_told_comes_back_as_it_was_and_what_is_not_understood_is_refused_whole() {
    let mesh = proxy::GatewayTls {
        mesh: true,
        ..proxy::GatewayTls::default()
    };
    for good in [
        gateway(None),
        gateway(Some(tls())),
        gateway(Some(files(""))),
        gateway(Some(files("/ca.crt"))),
        gateway(Some(proxy::GatewayTls {
            unverified: true,
            ..files("/ca.crt")
        })),
        carrying(proxy::ServerKind::Bytes, None),
        carrying(proxy::ServerKind::Bytes, Some(tls())),
        carrying(proxy::ServerKind::Passthrough, None),
        carrying(proxy::ServerKind::AutoPassthrough, None),
        carrying(proxy::ServerKind::Bytes, Some(mesh)),
    ] {
        let read = Gateway::from_wire(good).expect("good");
        assert_eq!(Gateway::from_wire(read.to_wire()), Ok(read));
    }
    let table: [(&str, Change); 12] = [
        ("listeners[0].servers[0].kind", |one| {
            one.servers[0].kind = 77;
        }),
        (
            "listeners[0].servers[0].tls: not allowed: the gateway does not terminate",
            |one| {
                one.servers[0].kind = proxy::ServerKind::Passthrough.into();
            },
        ),
        (
            "listeners[0].servers[0].tls: not allowed: the gateway does not terminate",
            |one| {
                one.servers[0].kind = proxy::ServerKind::AutoPassthrough.into();
            },
        ),
        ("listeners[0].servers: missing", |one| one.servers.clear()),
        ("listeners[0].port", |one| one.port = 70_000),
        ("listeners[0].bind", |one| one.bind = None),
        ("listeners[0].name: missing", |one| one.name.clear()),
        ("listeners[0].servers[0].hosts[0].host", |one| {
            one.servers[0].hosts[0].host = "SHOP".to_owned();
        }),
        ("listeners[0].servers: a plaintext server", |one| {
            let mut plain = one.servers[0].clone();
            plain.tls = None;
            one.servers.push(plain);
        }),
        // Never read as "nobody need show a certificate".
        ("listeners[0].servers[0].tls.authorities: missing", |one| {
            one.servers[0].tls.as_mut().expect("TLS").anonymous = true;
        }),
        ("listeners[0].servers[0].tls.anonymous: missing", |one| {
            one.servers[0].tls.as_mut().expect("TLS").unverified = true;
        }),
        ("listeners[0].servers[0].tls.tls13: no TLS version", |one| {
            one.servers[0].tls.as_mut().expect("TLS").tls13 = false;
        }),
    ];
    refused(&table);
}

#[test]
fn files_that_are_named_by_halves_are_refused() {
    let table: [(&str, Change); 6] = [
        (
            "listeners[0].servers[0].tls.authorities_file: missing",
            |one| {
                one.servers[0].tls = Some(proxy::GatewayTls {
                    revocations_file: "/ca.crl".to_owned(),
                    ..files("")
                });
            },
        ),
        // Never read as "nothing is revoked".
        ("listeners[0].servers[0].tls.authorities: missing", |one| {
            one.servers[0].tls.as_mut().expect("TLS").revocations = b"a list".to_vec();
        }),
        ("listeners[0].servers[0].tls.authorities: missing", |one| {
            one.servers[0].tls = Some(proxy::GatewayTls {
                anonymous: true,
                ..files("")
            });
        }),
        ("listeners[0].servers[0].tls.key_file: missing", |one| {
            one.servers[0].tls = Some(proxy::GatewayTls {
                key_file: String::new(),
                ..files("")
            });
        }),
        (
            "listeners[0].servers[0].tls.certificate_file: missing",
            |one| {
                let tls = one.servers[0].tls.as_mut().expect("TLS");
                tls.authorities_file = "/ca.crt".to_owned();
            },
        ),
        (
            "listeners[0].servers[0].tls.certificate_file: files and PEM are both set",
            |one| {
                one.servers[0].tls = Some(proxy::GatewayTls {
                    certificates: b"a certificate".to_vec(),
                    ..files("")
                });
            },
        ),
    ];
    refused(&table);
}

#[test]
fn a_key_is_not_shown() {
    let read = Gateway::from_wire(gateway(Some(tls()))).expect("good");
    let shown = format!("{read:?}");
    let bytes = format!("{:?}", b"very secret".to_vec());
    assert!(shown.contains("shop/edge"), "{shown}");
    assert!(
        !shown.contains("secret") && !shown.contains(&bytes[1..bytes.len() - 1]),
        "{shown}"
    );
}
