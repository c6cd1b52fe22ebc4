//! Messages that arrive: what is understood, and what is refused with which words.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use voile_model::Labels;
use voile_model::mesh::action::{
    Abort, AbortStatus, Cors, Delay, DirectResponse, Fault, HeaderEdits, HeaderRules, Origin,
    OriginMatch, PathRewrite, Redirect, RedirectPort, Regex, RegexRewrite, RequestShare, Rewrite,
};
use voile_model::mesh::{AddressRange, RetrySettings, TextMatch};
use voile_proto::{proxy, workload};
use voile_xds::wire::{
    Address, ConnectionMatch, ConnectionRoute, Mirror, MutualTls, ProxyConfiguration, RequestMatch,
    RouteDestination, RouteTarget, Routes, ServicePolicy, Tunnel, WireProtocol, WireRoute,
    WireType, decode_key_set, decode_tokens, encode_labels, encode_network_gateways,
    encode_service, encode_tokens, encode_workload, parse_service_key,
};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec: {clusterIP: 10.0.0.7, selector: {app: echo}, ports: [{name: http, port: 80, targetPort: web}, {name: tcp, port: 81, targetPort: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: echo-1, namespace: shop, labels: {app: echo, version: v2, sidecar.istio.io/inject: "true"}}
spec:
  serviceAccountName: echo
  containers: [{name: app, image: none, ports: [{containerPort: 8080, name: web}]}]
status: {podIPs: [{ip: 127.1.0.3}, {ip: "::1"}]}
"#;

#[test]
fn model_to_wire_and_back_keeps_what_the_proxy_needs() {
    let (mesh, diagnostics) =
        voile_model::check(&[voile_model::SourceFile::new("mesh.yaml", MESH)], None);
    assert!(diagnostics.iter().all(|d| !d.is_error()), "{diagnostics:?}");
    let service = mesh.services.values().next().unwrap();
    let pod = mesh.workloads.values().next().unwrap();
    let members = mesh
        .services_of(pod)
        .into_iter()
        .map(|member| (member.service.key.clone(), member.ports))
        .collect();
    let message = encode_workload(pod, &members, &mesh.config.trust_domain);
    let back = voile_xds::wire::WireWorkload::check(&message).unwrap();
    assert_eq!((&*back.uid, &*back.name), (&*pod.uid, &*pod.key.name));
    assert_eq!(back.addresses, pod.addresses);
    assert_eq!(back.identity, Some(pod.identity(&mesh.config.trust_domain)));
    assert_eq!(back.tunnel, Tunnel::Mtls);
    assert_eq!(back.services, members);
    assert_eq!(back.labels.canonical_name, pod.canonical_name);
    assert_eq!(back.labels.canonical_revision, pod.canonical_revision);
    assert!(back.healthy);

    let back = voile_xds::wire::Service::check(&encode_service(service)).unwrap();
    assert_eq!(
        (&back.key, &back.addresses),
        (&service.key, &service.addresses)
    );
    let ports: Vec<_> = back
        .ports
        .iter()
        .map(|port| {
            (
                port.number.get(),
                port.target.map(voile_model::Port::get),
                port.protocol,
            )
        })
        .collect();
    assert_eq!(
        ports,
        [
            (80, None, WireProtocol::Http),
            (81, Some(9000), WireProtocol::Tcp)
        ]
    );
}

fn good_workload() -> workload::Workload {
    workload::Workload {
        uid: "uid".to_owned(),
        namespace: "shop".to_owned(),
        addresses: vec![vec![127, 0, 0, 1]],
        service_account: "echo".to_owned(),
        tunnel_protocol: workload::TunnelProtocol::LegacyIstioMtls.into(),
        ..workload::Workload::default()
    }
}

#[test]
fn a_workload_on_another_network_is_behind_its_gateway_or_nobody_knows_where() {
    use workload::gateway_address::Destination;
    let at = |address: Vec<u8>| {
        Destination::Address(workload::NetworkAddress {
            network: "east".to_owned(),
            address,
            length: None,
        })
    };
    let gateway = |destination, hbone_mtls_port| {
        Some(workload::GatewayAddress {
            destination,
            hbone_mtls_port,
        })
    };
    let name = Destination::Hostname(workload::NamespacedHostname::default());
    let good = || gateway(Some(at(vec![192, 0, 2, 9])), 15008);
    let read = |network: &str, network_gateway| {
        let message = workload::Workload {
            network: network.to_owned(),
            network_gateway,
            ..good_workload()
        };
        voile_xds::wire::WireWorkload::check(&message).expect("good")
    };
    // Of our own network's gateway whoever is here has no use.
    let near = read("", good());
    assert!(near.away.is_none() && near.near_addresses().len() == 1);
    for (network_gateway, wanted) in [
        (good(), "east/192.0.2.9 at 192.0.2.9:15008"),
        (None, "nothing"),
        (gateway(Some(name), 15008), "network_gateway.hostname"),
        (gateway(Some(at(vec![1])), 15008), "network_gateway.address"),
        (
            gateway(Some(at(vec![192, 0, 2, 9])), 0),
            "network_gateway.hbone_mtls_port",
        ),
        (gateway(None, 15008), "network_gateway.destination"),
    ] {
        let far = read("east", network_gateway);
        let away = far.away.as_ref().expect("elsewhere");
        assert_eq!(&*away.network, "east");
        let found = match &away.gateway {
            None => "nothing".to_owned(),
            Some(Ok(entrance)) => format!("{} at {}", entrance.name(), entrance.at),
            Some(Err(why)) => why.to_string(),
        };
        assert!(found.starts_with(wanted), "{found}");
        // A gateway that cannot be used is one all the same: nobody goes past it.
        assert_eq!(far.is_behind_gateway(), wanted != "nothing", "{wanted}");
        assert_eq!(far.near_addresses().is_empty(), wanted != "nothing");
    }
}

#[test]
fn gateways_of_a_network_are_told_with_who_they_must_be_and_no_more_than_eight() {
    let gateway = |last: u8| workload::Workload {
        addresses: vec![vec![192, 0, 2, last]],
        tunnel_protocol: workload::TunnelProtocol::Hbone.into(),
        ..good_workload()
    };
    let told: Vec<_> = encode_network_gateways((1..=9).map(gateway)).collect();
    assert_eq!(told.len(), 8);
    let keepers = |extensions: Vec<workload::Extension>| {
        let message = workload::Workload {
            network: "east".to_owned(),
            extensions,
            ..good_workload()
        };
        let read = voile_xds::wire::WireWorkload::check(&message).expect("good");
        read.away.expect("elsewhere").keepers
    };
    let read = keepers(told.clone());
    assert_eq!(read.len(), 8);
    assert_eq!(read[7].at, ([192, 0, 2, 8], 15008).into());
    let identity = read[7].identity.to_string();
    assert_eq!(identity, "spiffe://cluster.local/ns/shop/sa/echo");
    assert_eq!(
        keepers([told.clone(), told].concat()),
        read,
        "of whoever tells of more"
    );
}

#[test]
fn workloads_that_make_no_sense_are_refused_by_field() {
    type Spoil = fn(&mut workload::Workload);
    let list = |service_port, target_port| workload::PortList {
        ports: vec![workload::Port {
            service_port,
            target_port,
            app_protocol: 0,
        }],
    };
    let spoil: [(&str, Spoil); 10] = [
        ("uid: missing", |w| w.uid.clear()),
        ("namespace: `` is not a namespace", |w| w.namespace.clear()),
        (
            "addresses[1]: an address has 4 or 16 bytes, this one has 5",
            |w| w.addresses.push(vec![0; 5]),
        ),
        ("service_account: missing", |w| w.service_account.clear()),
        ("service_account: `a/sa/b` is no", |w| {
            w.service_account = "a/sa/b".to_owned();
        }),
        ("trust_domain: `A` is no", |w| {
            w.trust_domain = "A".to_owned();
        }),
        ("tunnel_protocol: 9 is a value", |w| w.tunnel_protocol = 9),
        ("application_tunnel.protocol: 9 is a value", |w| {
            w.application_tunnel = Some(workload::ApplicationTunnel {
                protocol: 9,
                port: 0,
            });
        }),
        ("application_tunnel.port: a port is", |w| {
            w.application_tunnel = Some(workload::ApplicationTunnel {
                protocol: 1,
                port: 65536,
            });
        }),
        ("workload_type: -1 is a value", |w| w.workload_type = -1),
    ];
    assert!(voile_xds::wire::WireWorkload::check(&good_workload()).is_ok());
    for (wanted, change) in spoil {
        let mut message = good_workload();
        change(&mut message);
        let error = voile_xds::wire::WireWorkload::check(&message)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(wanted), "{error}");
    }
    for (name, ports, wanted) in [
        (
            "shop/echo",
            list(70_000, 1),
            "services[shop/echo].ports[0].service_port: a port is 1 to 65535, not 70000",
        ),
        (
            "shop/echo",
            list(80, 0),
            "services[shop/echo].ports[0].target_port: a port is 1 to 65535, not 0",
        ),
        (
            "echo",
            list(80, 80),
            "services[echo]: `echo` is not NAMESPACE/HOSTNAME",
        ),
    ] {
        let mut message = good_workload();
        message.services.insert(name.to_owned(), ports);
        let error = voile_xds::wire::WireWorkload::check(&message).unwrap_err();
        assert_eq!(error.to_string(), wanted);
    }
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    for bytes in [&b"\xff\xff\xff"[..], b"\x0a\x7f", b""] {
        assert!(Address::decode(bytes).is_err(), "{bytes:?}");
    }
    assert!(ProxyConfiguration::decode(b"\x0a\x7f").is_err());
    assert!(ServicePolicy::decode(b"\x0a\x7f").is_err());
}

fn socket(port: u32) -> Option<proxy::SocketAddress> {
    Some(proxy::SocketAddress {
        address: vec![127, 0, 0, 1],
        port,
    })
}

fn good_configuration() -> proxy::ProxyConfiguration {
    proxy::ProxyConfiguration {
        workload_uid: "uid".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        inbound: vec![proxy::InboundListener {
            bind: socket(80),
            endpoint: socket(8080),
            mutual_tls: proxy::MutualTls::Strict.into(),
            name: "in".to_owned(),
            ..proxy::InboundListener::default()
        }],
        outbound: vec![proxy::OutboundListener {
            bind: socket(81),
            services: vec![proxy::ServicePort {
                service: "shop/echo".to_owned(),
                port: 80,
                authorities: vec!["echo".to_owned()],
            }],
            name: "out".to_owned(),
            ..proxy::OutboundListener::default()
        }],
        ..proxy::ProxyConfiguration::default()
    }
}

#[test]
fn configurations_that_make_no_sense_are_refused_by_field() {
    type Spoil = fn(&mut proxy::ProxyConfiguration);
    let good = ProxyConfiguration::decode(&good_configuration().encode_to_vec()).unwrap();
    assert_eq!(good.inbound[0].mutual_tls, MutualTls::Strict);
    let spoil: [(&str, Spoil); 10] = [
        ("workload_uid: missing", |c| c.workload_uid.clear()),
        ("trust_domain: missing", |c| c.trust_domain.clear()),
        ("inbound[0].mutual_tls: UNSPECIFIED is not allowed", |c| {
            c.inbound[0].mutual_tls = 0;
        }),
        ("inbound[0].bind: missing", |c| c.inbound[0].bind = None),
        ("inbound[0].endpoint.port: a port is", |c| {
            c.inbound[0].endpoint = socket(65_536);
        }),
        ("inbound[0].service_port: a port is", |c| {
            c.inbound[0].service = "a/b".to_owned();
        }),
        ("outbound[1].name: `out` appears twice", |c| {
            c.outbound.push(c.outbound[0].clone());
        }),
        ("outbound[0].protocol: 77 is a value", |c| {
            c.outbound[0].protocol = 77;
        }),
        ("outbound[0].services[0].authorities[0]: `ECHO`", |c| {
            c.outbound[0].services[0].authorities[0] = "ECHO".to_owned();
        }),
        ("source_address: an address has", |c| {
            c.source_address = vec![1];
        }),
    ];
    for (wanted, change) in spoil {
        let mut message = good_configuration();
        change(&mut message);
        let error = ProxyConfiguration::from_wire(message)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(wanted), "{error}");
    }
}

const TOKENS: &str = r#"
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec:
  jwtRules:
  - {issuer: https://a.example, jwksUri: https://a.example/keys}
  - issuer: https://b.example
    audiences: [shop, bank]
    fromHeaders: [{name: X-Token, prefix: "Token "}, {name: x-other}]
    fromParams: [token, access]
    fromCookies: [session]
    forwardOriginalToken: true
    outputPayloadToHeader: X-Payload
    outputClaimToHeaders: [{header: X-User, claim: sub}, {header: x-group, claim: a.b}]
    spaceDelimitedClaims: [roles]
    presence: REQUIRED
"#;

#[test]
fn rules_about_tokens_travel_whole_but_for_where_keys_are_fetched() {
    let (mesh, diagnostics) =
        voile_model::check(&[voile_model::SourceFile::new("tokens.yaml", TOKENS)], None);
    assert!(diagnostics.iter().all(|d| !d.is_error()), "{diagnostics:?}");
    let policy = &mesh.request_authentications[0];
    let key_sets = [Some("0123abcd".into()), None];
    let message = encode_tokens(policy, &key_sets).encode_to_vec();
    let came = decode_tokens("shop/tokens", &message).unwrap();
    assert_eq!(came.key_sets, key_sets);
    assert_eq!(came.policy.name, policy.name);
    assert_eq!(came.policy.rules.len(), 2);
    for (came, sent) in came.policy.rules.iter().zip(&policy.rules) {
        let mut sent = sent.clone();
        // The rules' positions and the sources of keys stay at the control plane.
        (sent.source, sent.keys) = (came.source.clone(), came.keys.clone());
        sent.timeout = came.timeout;
        assert_eq!(came, &sent);
    }
    assert!(decode_tokens("tokens", &message).is_err(), "no namespace");
    let keys = proxy::KeySet {
        jwks: r#"{"keys":[]}"#.to_owned(),
    };
    let came = decode_key_set(&keys.encode_to_vec()).unwrap();
    assert_eq!(*came, *keys.jwks);
    assert!(decode_key_set(&[]).is_err(), "no keys at all");
    assert!(decode_key_set(b"\xff").is_err(), "no message");
}

#[test]
fn rules_about_tokens_that_make_no_sense_are_refused_by_field() {
    type Spoil = fn(&mut proxy::TokenRule);
    let place = |name: &str| proxy::TokenHeader {
        name: name.to_owned(),
        prefix: String::new(),
    };
    let good = proxy::TokenRule {
        issuer: "https://a.example".to_owned(),
        from_headers: vec![place("x-token")],
        output_claims: vec![proxy::ClaimHeader {
            header: "x-user".to_owned(),
            claim: "sub".to_owned(),
        }],
        ..proxy::TokenRule::default()
    };
    let decode = |rule: &proxy::TokenRule| {
        let rules = vec![proxy::TokenRule::default(), rule.clone()];
        let message = proxy::RequestAuthentication { rules }.encode_to_vec();
        decode_tokens("shop/tokens", &message)
    };
    assert!(decode(&good).is_ok());
    let spoilt: [(&str, Spoil); 9] = [
        ("rules[1].from_headers[0].name", |rule| {
            rule.from_headers[0].name = String::new();
        }),
        ("rules[1].from_headers[0].name", |rule| {
            rule.from_headers[0].name = "X-Token".to_owned();
        }),
        ("rules[1].from_headers[0].name", |rule| {
            rule.from_headers[0].name = "host".to_owned();
        }),
        ("rules[1].from_headers[0].name", |rule| {
            rule.from_headers[0].name = "a b".to_owned();
        }),
        ("rules[1].from_params[0]", |rule| {
            rule.from_params = vec![String::new()];
        }),
        ("rules[1].from_cookies[0]", |rule| {
            rule.from_cookies = vec![String::new()];
        }),
        ("rules[1].output_payload_to_header", |rule| {
            rule.output_payload_to_header = "transfer-encoding".to_owned();
        }),
        ("rules[1].output_claims[0].header", |rule| {
            rule.output_claims[0].header = "x\r\ny".to_owned();
        }),
        ("rules[1].output_claims[0].claim", |rule| {
            rule.output_claims[0].claim = String::new();
        }),
    ];
    for (field, spoil) in spoilt {
        let mut rule = good.clone();
        spoil(&mut rule);
        let error = decode(&rule).expect_err(field).to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}

/// A route that does all that a route may do to requests.
fn acting() -> WireRoute {
    let regex = RegexRewrite::new("a(b)", r"\1").expect("an expression");
    let text = |text: &str| OriginMatch::Exact(text.to_owned());
    let origins = [
        text("https://a"),
        OriginMatch::Prefix("https://b".to_owned()),
        OriginMatch::Suffix(".c".to_owned()),
        OriginMatch::Regex(Regex::new("https://d.*").expect("an expression")),
    ];
    let within = [
        Origin::Any,
        Origin::Within("https://".to_owned(), ".e".to_owned()),
    ];
    WireRoute {
        rewrite: Some(Rewrite {
            path: Some(PathRewrite::Regex(regex)),
            authority: Some("there".into()),
        }),
        fault: Some(Fault {
            delay: Some(Delay {
                fixed: Duration::from_secs(1),
                share: RequestShare::ALL,
            }),
            abort: Some(Abort {
                with: AbortStatus::Grpc(0),
                share: RequestShare::of_millionths(1),
            }),
        }),
        cors: Some(Arc::new(Cors {
            origins: origins
                .map(Origin::Text)
                .into_iter()
                .chain(within)
                .collect(),
            methods: vec!["GET".to_owned()],
            headers: vec!["*".to_owned()],
            expose: vec!["x".to_owned()],
            max_age: Some(0),
            credentials: true,
            forward_unmatched: true,
        })),
        mirrors: vec![Mirror {
            to: Err("nobody".into()),
            share: RequestShare::of_millionths(500_000),
        }],
        ..WireRoute::to(Vec::new())
    }
}

fn redirecting(port: RedirectPort, path: PathRewrite) -> WireRoute {
    let to = Redirect {
        scheme: Some("https".to_owned()),
        host: Some("there".to_owned()),
        port,
        path: Some(path),
    };
    WireRoute {
        answer: Some(DirectResponse::Redirect { to, status: 307 }),
        ..WireRoute::to(Vec::new())
    }
}

/// A match that asks for everything that can be asked for.
fn everything() -> RequestMatch {
    let text = |text: &str| Some(TextMatch::Exact(text.into()));
    RequestMatch {
        uri: Some(TextMatch::Prefix("/a".into())),
        any_case: true,
        scheme: text("http"),
        method: text("GET"),
        authority: Some(TextMatch::Regex("a|b".into())),
        headers: vec![("x".into(), TextMatch::Present)],
        without_headers: vec![("y".into(), TextMatch::Prefix("z".into()))],
        query: vec![("q".into(), TextMatch::Exact("".into()))],
        port: voile_model::Port::new(80),
        source_labels: [("app", "web")].into_iter().collect(),
    }
}

fn target(subset: Option<&str>, port: Option<u16>) -> RouteTarget {
    RouteTarget {
        service: parse_service_key("shop/echo.shop.svc.cluster.local").expect("a key"),
        subset: subset.map(Into::into),
        port: port.and_then(voile_model::Port::new),
    }
}

fn connections() -> Vec<ConnectionRoute> {
    let plain = |to, weight| RouteDestination {
        to,
        weight,
        headers: HeaderRules::default(),
    };
    vec![
        ConnectionRoute {
            matches: vec![
                ConnectionMatch {
                    server_names: vec!["a.test".into(), "*.b.test".into()],
                    subnets: ["10.0.0.0/8", "fd00::/16"]
                        .iter()
                        .filter_map(|text| AddressRange::parse(text))
                        .collect(),
                    port: voile_model::Port::new(443),
                    source_labels: Labels::from_iter([("app", "a")]),
                },
                ConnectionMatch::default(),
            ],
            destinations: vec![plain(Ok(target(Some("v1"), None)), 3)],
        },
        ConnectionRoute {
            matches: Vec::new(),
            destinations: vec![plain(Err("gone".into()), 1)],
        },
    ]
}

#[test]
fn routes_come_back_as_they_went() {
    let headers = HeaderRules {
        request: HeaderEdits {
            remove: vec!["a".to_owned()],
            set: vec![("b".to_owned(), "1".to_owned())],
            add: vec![("c".to_owned(), "2".to_owned())],
        },
        response: HeaderEdits::default(),
    };
    let to = |to, weight| RouteDestination {
        to,
        weight,
        headers: headers.clone(),
    };
    let routes = Routes {
        routes: vec![
            WireRoute {
                name: "first".into(),
                matches: vec![everything(), RequestMatch::default()],
                destinations: vec![
                    to(Ok(target(Some("v1"), Some(80))), 90),
                    to(Ok(target(None, None)), 10),
                    to(Err("no service nobody can be seen".into()), 1),
                ],
                timeout: Some(Duration::from_micros(1)),
                retry: Some(RetrySettings {
                    retries: 3,
                    on: vec!["reset".into(), "503".into()],
                    per_try_timeout: Some(Duration::from_secs(2)),
                    backoff: Some(Duration::from_millis(10)),
                }),
                headers: headers.clone(),
                ..acting()
            },
            WireRoute::to(vec![to(Ok(target(Some("v2"), None)), 1)]),
            WireRoute {
                answer: Some(DirectResponse::Direct {
                    status: 418,
                    body: b"\xfftea".as_slice().into(),
                }),
                ..WireRoute::to(Vec::new())
            },
            redirecting(
                RedirectPort::Exact(8080),
                PathRewrite::Full("/a".to_owned()),
            ),
            redirecting(
                RedirectPort::Listener,
                PathRewrite::Segments("/b".to_owned()),
            ),
            redirecting(RedirectPort::Scheme, PathRewrite::Prefix("/c".to_owned())),
        ],
        connections: connections(),
    };
    let back = Routes::decode(&routes.to_wire().encode_to_vec()).expect("routes");
    let mut wanted = routes.clone();
    // The wire's grain; what is not nothing stays something.
    wanted.routes[0].timeout = Some(Duration::from_millis(1));
    assert_eq!(back, wanted);
    assert_eq!(routes.targets().count(), 4);
}

/// Routes with which nothing is wrong.
fn sensible() -> proxy::Routes {
    proxy::Routes {
        routes: vec![proxy::Route {
            matches: vec![proxy::RequestMatch {
                uri: Some(proxy::TextMatch {
                    text: Some(proxy::text_match::Text::Present(true)),
                }),
                ..proxy::RequestMatch::default()
            }],
            destinations: vec![proxy::RouteDestination {
                service: "shop/echo".to_owned(),
                weight: 1,
                ..proxy::RouteDestination::default()
            }],
            ..proxy::Route::default()
        }],
        connections: vec![proxy::ConnectionRoute {
            matches: vec![proxy::ConnectionMatch {
                destinations: vec![proxy::AddressRange {
                    address: vec![10, 0, 0, 0],
                    prefix: 8,
                }],
                ..proxy::ConnectionMatch::default()
            }],
            destinations: vec![proxy::RouteDestination {
                service: "shop/echo".to_owned(),
                weight: 1,
                ..proxy::RouteDestination::default()
            }],
        }],
    }
}

#[test]
fn routes_that_make_no_sense_are_refused_by_field() {
    let spoil: [(&str, Spoil); 11] = [
        ("routes[0].answer.status: 99 is not a status", |r| {
            r.routes[0].answer = Some(proxy::RouteAnswer {
                status: 99,
                ..proxy::RouteAnswer::default()
            });
        }),
        ("routes[0].rewrite.path: is empty", |r| {
            r.routes[0].rewrite = Some(proxy::Rewrite {
                path: Some(proxy::PathRewrite::default()),
                authority: String::new(),
            });
        }),
        ("routes[0].headers.response: `connection` is", |r| {
            r.routes[0].headers = Some(proxy::HeaderRules {
                request: None,
                response: Some(proxy::HeaderEdits {
                    remove: vec!["connection".to_owned()],
                    ..proxy::HeaderEdits::default()
                }),
            });
        }),
        ("routes[0].fault.abort.with: has no status", |r| {
            r.routes[0].fault = Some(proxy::Fault {
                delay: None,
                abort: Some(proxy::FaultAbort::default()),
            });
        }),
        ("routes[0].cors.origins[0]: is empty", |r| {
            r.routes[0].cors = Some(proxy::Cors {
                origins: vec![proxy::Origin::default()],
                ..proxy::Cors::default()
            });
        }),
        ("routes[0].mirrors[0].to: missing", |r| {
            r.routes[0].mirrors.push(proxy::Mirror::default());
        }),
        ("routes[0].destinations: all weights are 0", |r| {
            r.routes[0].destinations.clear();
        }),
        ("routes[0].destinations[0].service: `echo` is not", |r| {
            r.routes[0].destinations[0].service = "echo".to_owned();
        }),
        ("routes[0].destinations[0].port: a port is", |r| {
            r.routes[0].destinations[0].port = 70_000;
        }),
        // Without an error, an unknown condition of a later version would match everything.
        ("routes[0].matches[0].uri: empty or unknown", |r| {
            r.routes[0].matches[0].uri = Some(proxy::TextMatch::default());
        }),
        ("routes[0].matches[0].headers[0].text: missing", |r| {
            r.routes[0].matches[0].headers = vec![proxy::NamedMatch {
                name: "x".to_owned(),
                text: None,
            }];
        }),
    ];
    refused(&spoil);
}

type Spoil = fn(&mut proxy::Routes);

/// Sensible routes are read; with each of these changes they are refused with these words.
fn refused(spoil: &[(&str, Spoil)]) {
    let good = sensible();
    assert!(Routes::decode(&good.encode_to_vec()).is_ok());
    for (wanted, change) in spoil {
        let mut message = good.clone();
        change(&mut message);
        let error = Routes::decode(&message.encode_to_vec()).expect_err(wanted);
        assert!(error.to_string().starts_with(wanted), "{error}");
    }
}

#[test]
fn routes_of_connections_that_make_no_sense_are_refused_by_field() {
    refused(&[
        ("connections[0].destinations: all weights are 0", |r| {
            r.connections[0].destinations[0].weight = 0;
        }),
        (
            "connections[0].matches[0].destinations[0].prefix: 33 is more",
            |r| {
                r.connections[0].matches[0].destinations[0].prefix = 33;
            },
        ),
        ("connections[0].matches[0].port: a port is", |r| {
            r.connections[0].matches[0].port = 70_000;
        }),
    ]);
}

#[test]
fn a_workload_brings_its_labels_and_says_no_more_than_it_must() {
    let labels = |pairs: &[(&'static str, &'static str)]| pairs.iter().copied().collect::<Labels>();
    let table: [(Labels, bool); 4] = [
        (labels(&[("app", "web"), ("version", "v1")]), false),
        (labels(&[("app", "web"), ("version", "v2")]), true),
        (
            labels(&[("app", "web"), ("version", "v1"), ("tier", "x")]),
            true,
        ),
        (labels(&[("tier", "x")]), true),
    ];
    for (labels, said) in table {
        let extension = encode_labels(&labels, "web", "v1");
        assert_eq!(extension.is_some(), said, "{labels:?}");
        let message = workload::Workload {
            canonical_name: "web".to_owned(),
            canonical_revision: "v1".to_owned(),
            extensions: extension.into_iter().collect(),
            ..good_workload()
        };
        let back = voile_xds::wire::WireWorkload::check(&message).expect("a workload");
        assert_eq!(back.own_labels, labels);
    }
}
