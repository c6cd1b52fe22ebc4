//! Plans of captured connections, as a table: original destination → services and endpoints, by earlier answers of the
//! control plane.

mod along;
mod along_played;
mod authorization;
mod away;
mod capture;
mod checks;
mod files;
mod routes;
mod traffic;
mod waypoint;
mod zones;

use std::net::SocketAddr;

use prost::Message;
use voile_proto::{proxy, type_url, workload};
use voile_xds::wire::{WireProtocol, address_bytes, search_name};

use super::{Registry, address_name};
use crate::plan::{CapturedDestination, Origination, OutboundPlan, PassthroughMode, SharedPart};

const SHOP: &str = "shop";

fn put(registry: &mut Registry, kind: &'static str, name: &str, body: &[u8]) {
    let version = "1".into();
    registry
        .add(kind, &name.into(), &version, body)
        .expect("a good resource");
}

fn configure(registry: &mut Registry, policy: proxy::OutboundPolicy) {
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        outbound_policy: policy.into(),
        ..proxy::ProxyConfiguration::default()
    };
    let body = configuration.encode_to_vec();
    put(registry, type_url::PROXY_CONFIGURATION, "shop/own", &body);
}

fn service_body(name: &str, address: &str, port: u32, passthrough: bool) -> Vec<u8> {
    let body = workload::Address {
        r#type: Some(workload::address::Type::Service(workload::Service {
            name: name.to_owned(),
            namespace: SHOP.to_owned(),
            hostname: format!("{name}.test"),
            addresses: vec![workload::NetworkAddress {
                address: address_bytes(address.parse().expect("an address")),
                ..workload::NetworkAddress::default()
            }],
            ports: vec![workload::Port {
                service_port: port,
                target_port: 8080,
                app_protocol: 0,
            }],
            load_balancing: passthrough.then(|| workload::LoadBalancing {
                mode: workload::load_balancing::Mode::Passthrough.into(),
                ..workload::LoadBalancing::default()
            }),
            ..workload::Service::default()
        })),
    };
    body.encode_to_vec()
}

fn service(registry: &mut Registry, name: &str, address: &str, port: u32, passthrough: bool) {
    let body = service_body(name, address, port, passthrough);
    let name = format!("{SHOP}/{name}.test");
    put(registry, type_url::ADDRESS, &name, &body);
    // No VirtualService is for it.
    let none = (type_url::SERVICE_ROUTES, name.into());
    registry.absent.insert(none);
}

fn pod(registry: &mut Registry, uid: &str, address: &str, tunnel: workload::TunnelProtocol) {
    pod_behind(registry, uid, address, tunnel, "web");
}

fn pod_behind(
    registry: &mut Registry,
    uid: &str,
    address: &str,
    tunnel: workload::TunnelProtocol,
    service: &str,
) {
    let ports = workload::PortList {
        ports: vec![workload::Port {
            service_port: 80,
            target_port: 8080,
            app_protocol: 0,
        }],
    };
    let body = workload::Address {
        r#type: Some(workload::address::Type::Workload(workload::Workload {
            uid: uid.to_owned(),
            name: uid.to_owned(),
            namespace: SHOP.to_owned(),
            addresses: vec![address_bytes(address.parse().expect("an address"))],
            service_account: uid.to_owned(),
            tunnel_protocol: tunnel.into(),
            services: [(format!("{SHOP}/{service}.test"), ports)].into(),
            ..workload::Workload::default()
        })),
    };
    put(registry, type_url::ADDRESS, uid, &body.encode_to_vec());
}

fn policy(registry: &mut Registry, name: &str, protocol: proxy::Protocol, plaintext: &[&str]) {
    let body = proxy::ServicePolicy {
        ports: vec![proxy::PortPolicy {
            port: 80,
            protocol: protocol.into(),
            plaintext_workloads: plaintext.iter().map(ToString::to_string).collect(),
            http2_upgrade: false,
            client_protocol: false,
            retry: None,
            traffic: None,
        }],
        ..proxy::ServicePolicy::default()
    };
    let name = format!("{SHOP}/{name}.test");
    put(
        registry,
        type_url::SERVICE_POLICY,
        &name,
        &body.encode_to_vec(),
    );
}

/// Sets a workload's own policy: port 8080 speaks HTTP; the flags make that port, or the others, plaintext only.
fn own_policy(registry: &mut Registry, uid: &str, declared: bool, others: bool) {
    let body = proxy::ServicePolicy {
        ports: vec![proxy::PortPolicy {
            port: 8080,
            protocol: proxy::Protocol::Http.into(),
            plaintext_workloads: declared.then(|| uid.to_owned()).into_iter().collect(),
            http2_upgrade: false,
            client_protocol: false,
            retry: None,
            traffic: None,
        }],
        plaintext: others,
        ..proxy::ServicePolicy::default()
    };
    put(
        registry,
        type_url::SERVICE_POLICY,
        uid,
        &body.encode_to_vec(),
    );
}

/// The address itself, without a named host.
fn at(to: SocketAddr) -> CapturedDestination {
    CapturedDestination { to, host: None }
}

fn nobody(registry: &mut Registry, address: &str) {
    let name = address_name(address.parse().expect("an address"));
    registry.absent.insert((type_url::ADDRESS, name.into()));
}

/// A mesh with a service of two pods, a pod without sidecar, an HBONE workload, two services with one address, and a
/// passthrough service.
fn mesh(policy_said: proxy::OutboundPolicy) -> Registry {
    use workload::TunnelProtocol::{Hbone, LegacyIstioMtls as Mtls, None as Plain};
    let mut registry = Registry::default();
    configure(&mut registry, policy_said);
    service(&mut registry, "web", "10.96.0.1", 80, false);
    policy(&mut registry, "web", proxy::Protocol::Http, &["spared"]);
    pod(&mut registry, "one", "10.0.0.1", Mtls);
    pod(&mut registry, "two", "10.0.0.2", Plain);
    pod(&mut registry, "spared", "10.0.0.3", Mtls);
    pod(&mut registry, "waypointed", "10.0.0.4", Hbone);
    for name in ["left", "right"] {
        service(&mut registry, name, "10.96.0.2", 80, false);
        policy(&mut registry, name, proxy::Protocol::Tls, &[]);
    }
    service(&mut registry, "through", "192.0.2.8", 80, true);
    policy(&mut registry, "through", proxy::Protocol::Tcp, &[]);
    service(&mut registry, "sixth", "2001:db8::1", 80, false);
    policy(&mut registry, "sixth", proxy::Protocol::Auto, &[]);
    // On one address, one that needs mutual TLS and one that cannot: plaintext for none.
    pod_behind(&mut registry, "shared-a", "10.0.0.5", Plain, "other");
    pod_behind(&mut registry, "shared-b", "10.0.0.5", Mtls, "other");
    for uid in ["one", "two", "waypointed", "shared-a", "shared-b", "next"] {
        own_policy(&mut registry, uid, false, false);
    }
    own_policy(&mut registry, "spared", true, false);
    pod(&mut registry, "open", "10.0.0.6", Mtls);
    own_policy(&mut registry, "open", false, true);
    nobody(&mut registry, "203.0.113.9");
    registry
}

/// `service=endpoint,endpoint`: each endpoint with `~` in plaintext, `!` when it must not be used, else its account.
fn shown(plan: Option<&OutboundPlan>) -> String {
    let Some(plan) = plan else {
        return "wait".to_owned();
    };
    let mut text = format!("{:?}", plan.protocol);
    for service in &plan.services {
        text += &format!(" {}", service.service.name);
        for endpoint in &service.endpoints {
            let whom = match &endpoint.expected {
                _ if !endpoint.available => "!".to_owned(),
                None => "~".to_owned(),
                Some(all) => all
                    .iter()
                    .map(|identity| identity.service_account.to_string())
                    .collect::<Vec<_>>()
                    .join("+"),
            };
            let how = match &endpoint.origination {
                Some(SharedPart(one)) if matches!(**one, Origination::Tunnel) => " by tunnel",
                _ => "",
            };
            text += &format!(" {}={whom}{how}", endpoint.address);
        }
    }
    if let PassthroughMode::Service(index @ 1..) = plan.otherwise {
        text += &format!(" otherwise {index}");
    }
    text
}

/// The service itself: endpoints in order of their names.
const WEB: &str = "Http web 10.0.0.1:8080=one 10.0.0.6:8080=open 10.0.0.3:8080=~ 10.0.0.2:8080=~ 10.0.0.4:8080=waypointed by tunnel";

/// Called address; plan with ALLOW_ANY; plan with REGISTRY_ONLY.
const DESTINATIONS: &[(&str, &str, &str)] = &[
    ("10.96.0.1:80", WEB, WEB),
    // No service has this port.
    (
        "10.96.0.1:81",
        "Auto PassthroughCluster 10.96.0.1:81=~",
        "Auto",
    ),
    (
        "10.96.0.2:80",
        "Tls left right PassthroughCluster 10.96.0.2:80=~ otherwise 2",
        "Tls left right",
    ),
    (
        "192.0.2.8:80",
        "Tcp through 192.0.2.8:80=~",
        "Tcp through 192.0.2.8:80=~",
    ),
    ("[2001:db8::1]:80", "Auto sixth", "Auto sixth"),
    (
        "10.0.0.1:8080",
        "Http web 10.0.0.1:8080=one",
        "Http web 10.0.0.1:8080=one",
    ),
    (
        "10.0.0.2:8080",
        "Http web 10.0.0.2:8080=~",
        "Http web 10.0.0.2:8080=~",
    ),
    (
        "10.0.0.3:8080",
        "Http web 10.0.0.3:8080=~",
        "Http web 10.0.0.3:8080=~",
    ),
    (
        "10.0.0.4:8080",
        "Http web 10.0.0.4:8080=waypointed by tunnel",
        "Http web 10.0.0.4:8080=waypointed by tunnel",
    ),
    (
        "10.0.0.5:8080",
        "Http other 10.0.0.5:8080=shared-b",
        "Http other 10.0.0.5:8080=shared-b",
    ),
    (
        "10.0.0.3:7000",
        "Auto PassthroughCluster 10.0.0.3:7000=spared",
        "Auto PassthroughCluster 10.0.0.3:7000=spared",
    ),
    // The sidecar's own pages, which are never redirected.
    (
        "10.0.0.3:15020",
        "Auto PassthroughCluster 10.0.0.3:15020=~",
        "Auto PassthroughCluster 10.0.0.3:15020=~",
    ),
    (
        "10.0.0.6:7000",
        "Auto PassthroughCluster 10.0.0.6:7000=~",
        "Auto PassthroughCluster 10.0.0.6:7000=~",
    ),
    (
        "10.0.0.6:8080",
        "Http web 10.0.0.6:8080=open",
        "Http web 10.0.0.6:8080=open",
    ),
    // Ports of no service are still their workload's, in mutual TLS.
    (
        "10.0.0.1:3306",
        "Tcp PassthroughCluster 10.0.0.1:3306=one",
        "Tcp PassthroughCluster 10.0.0.1:3306=one",
    ),
    (
        "203.0.113.9:443",
        "Auto PassthroughCluster 203.0.113.9:443=~",
        "Auto",
    ),
    (
        "203.0.113.9:25",
        "Tcp PassthroughCluster 203.0.113.9:25=~",
        "Tcp",
    ),
    ("203.0.113.10:443", "wait", "wait"),
];

#[test]
fn a_destination_leads_to_services_then_workloads_then_nobody() {
    use proxy::OutboundPolicy::{AllowAny, RegistryOnly};
    let (any, registered) = (mesh(AllowAny), mesh(RegistryOnly));
    for (to, with_any, with_registered) in DESTINATIONS {
        let to: SocketAddr = to.parse().expect("an address");
        assert_eq!(shown(any.destination(&at(to)).as_ref()), *with_any, "{to}");
        let plan = registered.destination(&at(to));
        assert_eq!(shown(plan.as_ref()), *with_registered, "{to}");
    }
}

#[test]
fn an_answer_waits_for_the_policy_of_its_service_and_for_a_configuration() {
    let to: SocketAddr = "10.96.0.1:80".parse().expect("an address");
    let mut registry = Registry::default();
    service(&mut registry, "web", "10.96.0.1", 80, false);
    policy(&mut registry, "web", proxy::Protocol::Http, &[]);
    assert_eq!(shown(registry.destination(&at(to)).as_ref()), "wait");
    assert_eq!(
        shown(registry.destination_unasked(&at(to)).as_ref()),
        "wait"
    );
    configure(&mut registry, proxy::OutboundPolicy::AllowAny);
    assert_eq!(shown(registry.destination(&at(to)).as_ref()), "Http web");
    let name: std::sync::Arc<str> = "shop/web.test".into();
    registry.forget_policy(&name);
    assert_eq!(shown(registry.destination(&at(to)).as_ref()), "wait");
    assert_eq!(
        registry.policies_wanted(&at(to)),
        std::slice::from_ref(&name)
    );
    registry.absent.insert((type_url::SERVICE_POLICY, name));
    let protocol = registry.destination(&at(to)).map(|plan| plan.protocol);
    assert_eq!(protocol, Some(WireProtocol::Auto), "what the service says");
}

#[test]
fn a_name_leads_to_its_service_at_an_address_of_nobodys() {
    use proxy::OutboundPolicy::{AllowAny, RegistryOnly};
    let passed = "PassthroughCluster 203.0.113.9:80=~ otherwise 1";
    let cases = [
        ("web.test", "Http web 10.0.0.1:8080=one", "", true),
        ("through.test", "Tcp through 203.0.113.9:80=~", "Auto", true),
        ("silent.test", "wait", "wait", false),
        (
            "unknown.test",
            "Auto PassthroughCluster 203.0.113.9:80=~",
            "Auto",
            false,
        ),
    ];
    for (host, with_any, with_registered, named) in cases {
        for (policy_said, expected) in [(AllowAny, with_any), (RegistryOnly, with_registered)] {
            let mut registry = mesh(policy_said);
            for known in ["web.test", "through.test"] {
                registry.answers(&format!("{SHOP}/{known}").into(), &[search_name(known)]);
            }
            let unknown = search_name("unknown.test");
            registry.absent.insert((type_url::ADDRESS, unknown));
            let target = CapturedDestination {
                to: "203.0.113.9:80".parse().expect("an address"),
                host: Some(host.into()),
            };
            let got = shown(registry.destination(&target).as_ref());
            // With REGISTRY_ONLY the service is only at its own address.
            if named && !(host == "through.test" && policy_said == RegistryOnly) {
                assert!(got.starts_with(with_any), "{host}: {got}");
                assert_eq!(
                    got.ends_with(passed),
                    policy_said == AllowAny,
                    "{host}: {got}"
                );
            } else {
                assert_eq!(got, expected, "{host}");
            }
        }
    }
}

#[test]
fn without_the_control_plane_nothing_unknown_is_called_among_the_meshs_own_addresses() {
    let mut registry = Registry::default();
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        capture: Some(proxy::Capture {
            mutual_tls: proxy::MutualTls::Strict.into(),
            limited: false,
            reachable: Vec::new(),
            ports: Vec::new(),
            mesh_ranges: [("10.0.0.0", 24), ("2001:db8::", 64)]
                .map(|(address, prefix)| proxy::AddressRange {
                    address: address_bytes(address.parse().expect("an address")),
                    prefix,
                })
                .into(),
        }),
        ..proxy::ProxyConfiguration::default()
    };
    let body = configuration.encode_to_vec();
    put(
        &mut registry,
        type_url::PROXY_CONFIGURATION,
        "shop/own",
        &body,
    );
    for (to, expected) in [
        ("10.0.0.255:80", "Auto"),
        ("10.0.1.0:80", "Auto PassthroughCluster 10.0.1.0:80=~"),
        ("[2001:db8::ffff]:80", "Auto"),
        (
            "[2001:db8:0:1::]:80",
            "Auto PassthroughCluster [2001:db8:0:1::]:80=~",
        ),
    ] {
        let plan = registry.destination_unasked(&at(to.parse().expect("an address")));
        assert_eq!(shown(plan.as_ref()), expected, "{to}");
    }
}

#[test]
fn a_strangers_name_leads_neither_into_the_mesh_nor_to_this_host() {
    let mut registry = Registry::default();
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        capture: Some(proxy::Capture {
            mutual_tls: proxy::MutualTls::Strict.into(),
            mesh_ranges: [("10.0.0.0", 24), ("fd00::", 64)]
                .map(|(address, prefix)| proxy::AddressRange {
                    address: address_bytes(address.parse().expect("an address")),
                    prefix,
                })
                .into(),
            ..proxy::Capture::default()
        }),
        ..proxy::ProxyConfiguration::default()
    };
    let body = configuration.encode_to_vec();
    put(
        &mut registry,
        type_url::PROXY_CONFIGURATION,
        "shop/own",
        &body,
    );
    service(&mut registry, "web", "192.0.2.1", 80, false);
    for (address, may) in [
        ("192.0.2.2", true),
        ("10.0.1.1", true),
        ("2001:db8::1", true),
        ("64:ff9b::c000:202", true),
        ("10.0.0.7", false),
        ("fd00::7", false),
        ("192.0.2.1", false),
        ("240.240.0.1", false),
        ("255.255.255.255", false),
        ("127.0.0.1", false),
        ("127.9.9.9", false),
        ("0.0.0.0", false),
        ("0.1.2.3", false),
        ("169.254.169.254", false),
        ("224.0.0.1", false),
        ("::", false),
        ("::1", false),
        ("fe80::1", false),
        ("ff02::1", false),
        ("::ffff:127.0.0.1", false),
        ("::ffff:10.0.0.7", false),
        ("64:ff9b::7f00:1", false),
        ("64:ff9b::a00:7", false),
        ("64:ff9b::a9fe:a9fe", false),
    ] {
        let parsed = address.parse().expect("an address");
        assert_eq!(registry.may_be_outside(parsed), may, "{address}");
    }
}

#[test]
fn what_a_sidecar_resource_does_not_list_is_nobody() {
    let all = |namespace: &str, host: &str| (namespace.to_owned(), host.to_owned());
    let cases = [
        (true, vec![all("", "*")], true),
        (true, vec![all(SHOP, "*")], true),
        (true, vec![all(SHOP, "web.test")], true),
        (true, vec![all("", "*.test")], true),
        (true, vec![all("other", "*")], false),
        (true, vec![all(SHOP, "left.test")], false),
        (true, vec![], false),
        (false, vec![], true),
    ];
    for (limited, hosts, reached) in cases {
        let mut registry = mesh(proxy::OutboundPolicy::RegistryOnly);
        let reachable = hosts.iter().map(|(namespace, host)| proxy::ReachableHosts {
            namespace: namespace.clone(),
            host: host.clone(),
        });
        let configuration = proxy::ProxyConfiguration {
            workload_uid: "own".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            outbound_policy: proxy::OutboundPolicy::RegistryOnly.into(),
            capture: Some(proxy::Capture {
                mutual_tls: proxy::MutualTls::Strict.into(),
                limited,
                reachable: reachable.collect(),
                ..proxy::Capture::default()
            }),
            ..proxy::ProxyConfiguration::default()
        };
        let body = configuration.encode_to_vec();
        put(
            &mut registry,
            type_url::PROXY_CONFIGURATION,
            "shop/own",
            &body,
        );
        registry.answers(
            &format!("{SHOP}/web.test").into(),
            &[search_name("web.test")],
        );
        nobody(&mut registry, "10.96.0.1");
        let by_name = CapturedDestination {
            to: "203.0.113.9:80".parse().expect("an address"),
            host: Some("web.test".into()),
        };
        for target in [at("10.96.0.1:80".parse().expect("an address")), by_name] {
            let got = shown(registry.destination(&target).as_ref());
            assert_eq!(got.contains("web"), reached, "{hosts:?} {target}: {got}");
            assert_ne!(got, "wait", "{hosts:?} {target}");
        }
    }
}

#[test]
fn an_address_that_moved_leads_to_its_new_workload_only() {
    use workload::TunnelProtocol::LegacyIstioMtls as Mtls;
    let to: SocketAddr = "10.0.0.1:8080".parse().expect("an address");
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    pod(&mut registry, "one", "10.0.0.77", Mtls);
    nobody(&mut registry, "10.0.0.1");
    let expected = "Auto PassthroughCluster 10.0.0.1:8080=~";
    assert_eq!(shown(registry.destination(&at(to)).as_ref()), expected);
    pod(&mut registry, "next", "10.0.0.1", Mtls);
    let expected = "Http web 10.0.0.1:8080=next";
    assert_eq!(shown(registry.destination(&at(to)).as_ref()), expected);
    registry.remove(type_url::ADDRESS, &"next".into());
    assert!(shown(registry.destination(&at(to)).as_ref()).contains("PassthroughCluster"));
}

#[test]
fn retries_are_what_the_control_plane_says_and_else_the_proxys_own() {
    use voile_traffic::{Conditions, RetryPolicy, RetrySettings};
    use voile_xds::wire::PortPolicy;

    use crate::registry::retry;
    let port = |retry| PortPolicy {
        port: voile_model::Port::new(80).expect("a port"),
        protocol: WireProtocol::Http,
        plaintext_workloads: std::collections::BTreeSet::new(),
        http2_upgrade: false,
        client_protocol: false,
        retry,
        traffic: Default::default(),
    };
    let own = RetryPolicy::default();
    assert_eq!(retry(None), own);
    assert_eq!(retry(Some(&port(None))), own);
    let said = RetrySettings {
        retries: 0,
        on: vec!["5xx".into(), "429".into()],
        per_try_timeout: Some(std::time::Duration::from_secs(1)),
        backoff: None,
    };
    let expected = RetryPolicy {
        retries: 0,
        on: Conditions::FIVE_XX,
        statuses: vec![429],
        per_try_timeout: Some(std::time::Duration::from_secs(1)),
        ..own
    };
    assert_eq!(retry(Some(&port(Some(said)))), expected);
}
