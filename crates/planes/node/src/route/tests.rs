//! Tables of routing decisions.

use super::*;
use crate::registry::tests::{Said, service, workload};
use voile_proto::workload as proto;
use voile_proto::workload::address::Type;
use voile_xds::wire::encode_network_gateways;

const KEY: &str = "shop/web.shop.svc.cluster.local";

fn view(service: proto::Service, workloads: Vec<proto::Workload>) -> RegistryView {
    let mut said = Said::asked(&[]);
    let named: Vec<_> = workloads.iter().map(|one| one.uid.clone()).collect();
    let all = named.iter().zip(workloads);
    let all = all.map(|(name, one)| (name.as_str(), &[][..], Type::Workload(one)));
    let all = all.chain([(KEY, &[][..], Type::Service(service))]);
    let rejections = said.addresses(all.collect(), &[]);
    assert!(rejections.is_empty(), "{rejections:?}");
    said.registry.view()
}

fn client() -> proto::Workload {
    proto::Workload {
        node: "one".to_owned(),
        locality: Some(proto::Locality {
            region: "r".to_owned(),
            zone: "z".to_owned(),
            subzone: "s".to_owned(),
        }),
        services: std::collections::BTreeMap::new(),
        ..workload("client", 2)
    }
}

fn aimed(
    view: &RegistryView,
    last: u8,
    to: impl Into<SocketAddr>,
    draw: Draw<'_>,
) -> Result<ConnectionPurpose, RouteError> {
    let source = view.workload([10, 244, 0, last].into());
    decide(view, source.expect("the client"), to.into(), draw)
}

fn called(
    view: &RegistryView,
    to: impl Into<SocketAddr>,
    random: f64,
) -> Result<RouteTarget, RouteError> {
    let nowhere = &[];
    match aimed(view, 2, to, Draw { random, nowhere })? {
        ConnectionPurpose::At(target) => Ok(target),
        ConnectionPurpose::Named(named) => panic!("known by a name: {named:?}"),
    }
}

/// Endpoints that are selected at the service's port, for many draws.
fn drawn(view: &RegistryView) -> Vec<u8> {
    let mut found: Vec<u8> = (0..100)
        .filter_map(|n| called(view, ([10, 96, 0, 10], 80), f64::from(n) / 100.0).ok())
        .map(|target| match target.to.ip() {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        })
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn a_services_endpoint_is_called_through_a_tunnel_to_its_own_port() {
    let mut also = service();
    also.subject_alt_names = vec!["spiffe://cluster.local/ns/shop/sa/other".to_owned()];
    let view = view(also, vec![client(), workload("one", 3)]);
    let target = called(&view, ([10, 96, 0, 10], 80), 0.0).expect("somebody");
    assert_eq!(target.to, ([10, 244, 0, 3], 8080).into());
    let expected = target.expected.expect("a tunnel");
    let expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
    assert_eq!(
        expected,
        [
            "spiffe://cluster.local/ns/shop/sa/server",
            "spiffe://cluster.local/ns/shop/sa/other"
        ]
    );
    // By its own address, at any port.
    let target = called(&view, ([10, 244, 0, 3], 9999), 0.0).expect("somebody");
    assert_eq!(target.to, ([10, 244, 0, 3], 9999).into());
    assert!(target.expected.is_some() && target.service.is_none());
    // An address outside the mesh.
    let target = called(&view, ([192, 0, 2, 1], 15008), 0.0).expect("passed on");
    assert!(target.expected.is_none() && target.resident.is_none());
}

#[test]
fn who_cannot_be_called_rightly_is_not_called() {
    let vip = SocketAddr::from(([10, 96, 0, 10], 80));
    let direct = SocketAddr::from(([10, 244, 0, 3], 8080));
    type Change = fn(&mut proto::Service, &mut proto::Workload);
    let cases: [(&str, Change, SocketAddr, &str); 8] = [
        (
            "port",
            |_, _| {},
            ([10, 96, 0, 10], 81).into(),
            "no port 81",
        ),
        (
            "ill",
            |_, w| w.status = proto::WorkloadStatus::Unhealthy.into(),
            vip,
            "no endpoint",
        ),
        (
            "sidecar",
            |_, w| w.tunnel_protocol = proto::TunnelProtocol::LegacyIstioMtls.into(),
            vip,
            "sidecars",
        ),
        (
            "sidecar",
            |_, w| w.tunnel_protocol = proto::TunnelProtocol::LegacyIstioMtls.into(),
            direct,
            "sidecars",
        ),
        (
            "waypoint",
            |s, _| s.waypoint = Some(proto::GatewayAddress::default()),
            vip,
            "waypoint",
        ),
        (
            "waypoint",
            |_, w| w.waypoint = Some(proto::GatewayAddress::default()),
            direct,
            "waypoint",
        ),
        (
            "hbone",
            |_, _| {},
            ([10, 244, 0, 3], 15008).into(),
            "the node proxy",
        ),
        (
            "weightless",
            |_, w| w.capacity = Some(0),
            vip,
            "no endpoint",
        ),
    ];
    for (what, change, to, word) in cases {
        let (mut service, mut one) = (service(), workload("one", 3));
        change(&mut service, &mut one);
        let view = view(service, vec![client(), one]);
        let refusal = called(&view, to, 0.5).expect_err(what);
        assert!(refusal.to_string().contains(word), "{what}: {refusal}");
    }
}

/// A waypoint's service, and where it is named.
const GATE: &str = "shop/gate.shop.svc.cluster.local";

fn gate(by_address: Option<u8>) -> Option<proto::GatewayAddress> {
    use proto::gateway_address::Destination;
    let destination = match by_address {
        Some(last) => Destination::Address(proto::NetworkAddress {
            address: vec![10, 244, 0, last],
            ..proto::NetworkAddress::default()
        }),
        None => Destination::Hostname(proto::NamespacedHostname {
            namespace: "shop".to_owned(),
            hostname: "gate.shop.svc.cluster.local".to_owned(),
        }),
    };
    Some(proto::GatewayAddress {
        destination: Some(destination),
        hbone_mtls_port: 15008,
    })
}

/// Behind waypoints by these addresses; the waypoint's own service with these workloads.
fn behind(
    of_service: Option<proto::GatewayAddress>,
    of_workload: Option<proto::GatewayAddress>,
    gates: Vec<proto::Workload>,
) -> RegistryView {
    let mut one = workload("one", 3);
    one.waypoint = of_workload;
    let behind = proto::Service {
        waypoint: of_service,
        ..service()
    };
    let own = proto::Service {
        name: "gate".to_owned(),
        hostname: "gate.shop.svc.cluster.local".to_owned(),
        addresses: Vec::new(),
        ports: vec![proto::Port {
            service_port: 15008,
            target_port: 15008,
            app_protocol: 0,
        }],
        ..service()
    };
    let mut said = Said::asked(&[]);
    let workloads = [client(), one].into_iter().chain(gates);
    let workloads: Vec<_> = workloads.map(|one| (one.uid.clone(), one)).collect();
    let all = workloads.iter();
    let all = all.map(|(name, one)| (name.as_str(), &[][..], Type::Workload(one.clone())));
    let services = [
        (KEY, &[][..], Type::Service(behind)),
        (GATE, &[][..], Type::Service(own)),
    ];
    let rejections = said.addresses(all.chain(services).collect(), &[]);
    assert!(rejections.is_empty(), "{rejections:?}");
    said.registry.view()
}

/// A pod of the waypoint's.
fn gate_pod(name: &str, last: u8) -> proto::Workload {
    let ports = proto::PortList {
        ports: vec![proto::Port {
            service_port: 15008,
            target_port: 15008,
            app_protocol: 0,
        }],
    };
    proto::Workload {
        service_account: "gate".to_owned(),
        services: [(GATE.to_owned(), ports)].into(),
        ..workload(name, last)
    }
}

#[test]
fn what_stands_behind_a_waypoint_is_called_through_it_or_not_at_all() {
    let vip = SocketAddr::from(([10, 96, 0, 10], 80));
    let direct = SocketAddr::from(([10, 244, 0, 3], 8080));
    let ill = proto::Workload {
        status: proto::WorkloadStatus::Unhealthy.into(),
        ..gate_pod("gate", 7)
    };
    let plain = proto::Workload {
        tunnel_protocol: proto::TunnelProtocol::None.into(),
        ..gate_pod("gate", 7)
    };
    let pods = || vec![gate_pod("gate", 7)];
    for (what, view, to, wanted) in [
        ("by name", behind(gate(None), None, pods()), vip, Ok(7)),
        (
            "by address",
            behind(gate(Some(7)), None, pods()),
            vip,
            Ok(7),
        ),
        (
            "a pod, by its address",
            behind(None, gate(None), pods()),
            direct,
            Ok(7),
        ),
        (
            "a pod, by its service",
            behind(None, gate(None), pods()),
            vip,
            Ok(3),
        ),
        (
            "its service's, by its address",
            behind(gate(None), None, pods()),
            direct,
            Ok(3),
        ),
        (
            "no pod",
            behind(gate(None), None, vec![]),
            vip,
            Err("gate.shop"),
        ),
        (
            "an ill pod",
            behind(gate(None), None, vec![ill]),
            vip,
            Err("gate.shop"),
        ),
        (
            "no tunnel",
            behind(gate(None), None, vec![plain]),
            vip,
            Err("gate.shop"),
        ),
        (
            "nobody there",
            behind(gate(Some(9)), None, pods()),
            vip,
            Err("10.244.0.9"),
        ),
    ] {
        match (called(&view, to, 0.5), wanted) {
            (Ok(target), Ok(last)) => is_called(what, &target, last, to),
            (Err(refusal), Err(word)) => {
                assert!(refusal.to_string().contains(word), "{what}: {refusal}");
            }
            (found, wanted) => panic!("{what}: {found:?}, not {wanted:?}"),
        }
    }
}

/// The pod at 7 is the waypoint, the one at 3 the service's.
fn is_called(what: &str, target: &RouteTarget, last: u8, to: SocketAddr) {
    assert_eq!(target.proxy(), ([10, 244, 0, last], 15008).into(), "{what}");
    let through = target.waypoint.is_some();
    assert_eq!(through, last == 7, "{what}");
    assert!(
        !through || target.to == to,
        "{what}: it is told what was called"
    );
    let expected = target.expected.as_ref().expect("a tunnel");
    let account = if through { "gate" } else { "server" };
    assert_eq!(&*expected[0].service_account, account, "{what}");
}

#[test]
fn a_waypoint_that_calls_who_stands_behind_it_does_not_call_itself() {
    let vip = SocketAddr::from(([10, 96, 0, 10], 80));
    let direct = SocketAddr::from(([10, 244, 0, 3], 8080));
    for (what, of_service, of_workload) in [
        ("by name", gate(None), gate(None)),
        ("by address", gate(Some(7)), gate(Some(7))),
    ] {
        let pods = vec![gate_pod("gate", 7), gate_pod("other", 8)];
        let view = behind(of_service, of_workload, pods);
        for to in [vip, direct] {
            let draw = Draw {
                random: 0.0,
                nowhere: &[],
            };
            let Ok(ConnectionPurpose::At(target)) = aimed(&view, 7, to, draw) else {
                panic!("{what}: {to}");
            };
            is_called(what, &target, 3, to);
            // By the service's name, another pod is the waypoint; by an address, none is.
            let Ok(ConnectionPurpose::At(target)) = aimed(&view, 8, to, draw) else {
                panic!("{what}: {to}");
            };
            let last = if what == "by name" { 3 } else { 7 };
            is_called(what, &target, last, to);
        }
    }
}

/// An endpoint of the service that has no address.
fn named(host: &str) -> proto::Workload {
    proto::Workload {
        uid: format!("Kubernetes/networking.istio.io/Hostname/{KEY}/{host}"),
        name: host.to_owned(),
        addresses: Vec::new(),
        hostname: host.to_owned(),
        tunnel_protocol: proto::TunnelProtocol::None.into(),
        ..workload(host, 0)
    }
}

#[test]
fn an_endpoint_that_is_a_name_is_called_where_that_leads_and_as_it_is_said_to_be() {
    let vip = SocketAddr::from(([10, 96, 0, 10], 80));
    let draw = Draw {
        random: 0.0,
        nowhere: &[],
    };
    let in_tunnels = proto::Workload {
        tunnel_protocol: proto::TunnelProtocol::Hbone.into(),
        ..named("a.test")
    };
    let addresses: Vec<IpAddr> = ["fd00::3", "192.0.2.3", "192.0.2.4"]
        .iter()
        .map(|text| text.parse().expect("an address"))
        .collect();
    for (one, security) in [(named("a.test"), None), (in_tunnels, Some("server"))] {
        let view = view(service(), vec![client(), one]);
        let Ok(ConnectionPurpose::Named(named)) = aimed(&view, 2, vip, draw) else {
            panic!("it has no address");
        };
        assert_eq!(named.host(), "a.test");
        let mut reached = Vec::new();
        for turn in 0..4 {
            let target = named.at(&addresses, turn).expect("an address");
            let expected = target.expected.as_ref().map(|all| &all[0]);
            let account = expected.map(|identity| &*identity.service_account);
            assert_eq!(account, security, "it is who the workload is");
            reached.push(target.to.to_string());
        }
        let (third, fourth) = ("192.0.2.3:8080", "192.0.2.4:8080");
        assert_eq!(reached, [third, fourth, third, fourth]);
        // Of another family where there is none of the one that was called.
        let other = named.at(&addresses[..1], 7).expect("an address");
        assert_eq!(other.to, SocketAddr::new(addresses[0], 8080));
        assert!(named.at(&[], 0).is_err());
    }
    // A sidecar's own mutual TLS is not spoken, wherever it is.
    let sided = proto::Workload {
        tunnel_protocol: proto::TunnelProtocol::LegacyIstioMtls.into(),
        ..named("a.test")
    };
    let view = view(service(), vec![client(), sided]);
    let Ok(ConnectionPurpose::Named(named)) = aimed(&view, 2, vip, draw) else {
        panic!("it has no address");
    };
    assert!(named.at(&addresses, 0).is_err());
}

#[test]
fn a_name_that_leads_nowhere_is_not_drawn_and_a_waypoint_is_never_one() {
    let vip = SocketAddr::from(([10, 96, 0, 10], 80));
    let view = view(
        service(),
        vec![client(), named("a.test"), workload("one", 3)],
    );
    let nowhere = [named("a.test").uid.into()];
    let (mut names, mut others) = (0, 0);
    for part in 0..100 {
        let random = f64::from(part) / 100.0;
        match aimed(
            &view,
            2,
            vip,
            Draw {
                random,
                nowhere: &[],
            },
        ) {
            Ok(ConnectionPurpose::Named(_)) => names += 1,
            _ => others += 1,
        }
        let nowhere = &nowhere;
        let aim = aimed(&view, 2, vip, Draw { random, nowhere });
        assert!(matches!(aim, Ok(ConnectionPurpose::At(_))), "{aim:?}");
    }
    assert_eq!((names, others), (50, 50));
    let gate_by_name = proto::Workload {
        addresses: Vec::new(),
        hostname: "gate.test".to_owned(),
        ..gate_pod("gate", 7)
    };
    let view = behind(gate(None), None, vec![gate_by_name]);
    assert!(called(&view, vip, 0.5).is_err());
}

#[test]
fn plaintext_is_only_for_who_has_no_tunnel() {
    let mut plain = workload("plain", 3);
    plain.tunnel_protocol = proto::TunnelProtocol::None.into();
    let view = view(service(), vec![client(), plain]);
    for to in [([10, 96, 0, 10], 80), ([10, 244, 0, 3], 8080)] {
        assert!(called(&view, to, 0.0).expect("somebody").expected.is_none());
    }
}

#[test]
fn endpoints_are_drawn_by_weight() {
    let mut heavy = workload("heavy", 4);
    heavy.capacity = Some(3);
    let view = view(service(), vec![client(), workload("one", 3), heavy]);
    let found = drawn(&view);
    assert_eq!(found.iter().filter(|last| **last == 3).count(), 25);
    assert_eq!(found.len(), 100);
}

#[test]
fn the_nearest_are_called_and_others_only_where_that_is_allowed() {
    use proto::load_balancing::{Mode, Scope};
    let at = |name: &str, last: u8, region: &str, zone: &str, node: &str| {
        let mut one = workload(name, last);
        one.node = node.to_owned();
        one.locality = Some(proto::Locality {
            region: region.to_owned(),
            zone: zone.to_owned(),
            subzone: String::new(),
        });
        one
    };
    let far = || at("far", 3, "other", "z", "two");
    let near = || at("near", 4, "r", "z", "two");
    let here = || at("here", 5, "r", "z", "one");
    let by_place = vec![Scope::Region, Scope::Zone];
    let cases = [
        (
            vec![],
            Mode::UnspecifiedMode,
            vec![far(), near()],
            vec![3, 4],
        ),
        (
            by_place.clone(),
            Mode::Failover,
            vec![far(), near(), here()],
            vec![4, 5],
        ),
        (by_place.clone(), Mode::Failover, vec![far()], vec![3]),
        (by_place.clone(), Mode::Strict, vec![far()], vec![]),
        (by_place, Mode::Strict, vec![far(), near()], vec![4]),
        (
            vec![Scope::Node],
            Mode::Strict,
            vec![near(), here()],
            vec![5],
        ),
        (vec![Scope::Node], Mode::Failover, vec![near()], vec![4]),
        // Equal zones of unequal regions are not the same place.
        (
            vec![Scope::Region, Scope::Zone],
            Mode::Failover,
            vec![far(), at("r", 6, "r", "q", "x")],
            vec![6],
        ),
    ];
    for (preference, mode, mut workloads, wanted) in cases {
        let mut service = service();
        service.load_balancing = Some(proto::LoadBalancing {
            routing_preference: preference.iter().map(|scope| *scope as i32).collect(),
            mode: mode.into(),
            ..proto::LoadBalancing::default()
        });
        workloads.push(client());
        let view = view(service, workloads);
        let mut found = drawn(&view);
        found.dedup();
        assert_eq!(found, wanted, "{preference:?} {mode:?}");
    }
}

/// Entrance of the network `east`: at 192.0.2.9, and its gateway.
fn entered() -> Option<proto::GatewayAddress> {
    use proto::gateway_address::Destination;
    Some(proto::GatewayAddress {
        destination: Some(Destination::Address(proto::NetworkAddress {
            network: "east".to_owned(),
            address: vec![192, 0, 2, 9],
            length: None,
        })),
        hbone_mtls_port: 15008,
    })
}

fn keeper() -> proto::Workload {
    proto::Workload {
        network: "east".to_owned(),
        addresses: vec![vec![192, 0, 2, 9]],
        service_account: "gate".to_owned(),
        services: Default::default(),
        ..workload("keeper", 9)
    }
}

/// Gateways of a network, by address and account.
fn gates(far: &NetworkGateway) -> Vec<String> {
    let all = far.gates.iter();
    all.map(|gate| format!("{} as {}", gate.at, gate.identity.service_account))
        .collect()
}

/// A workload there, with an address that exists here, too.
fn eastern() -> proto::Workload {
    proto::Workload {
        network: "east".to_owned(),
        network_gateway: entered(),
        service_account: "far".to_owned(),
        ..workload("eastern", 3)
    }
}

#[test]
fn a_workload_of_another_network_is_called_through_its_gateway_by_the_services_name() {
    let mut also = service();
    also.subject_alt_names = vec!["spiffe://cluster.local/ns/shop/sa/other".to_owned()];
    // One that has no address of its own is called all the same.
    let hidden = proto::Workload {
        addresses: Vec::new(),
        ..eastern()
    };
    for far in [eastern(), hidden] {
        let view = view(also.clone(), vec![client(), far, keeper()]);
        let vip = SocketAddr::from(([10, 96, 0, 10], 80));
        let target = called(&view, vip, 0.5).expect("somebody");
        let text = |all: &[Identity]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            text(&target.expected.clone().expect("a tunnel")),
            [
                "spiffe://cluster.local/ns/shop/sa/far",
                "spiffe://cluster.local/ns/shop/sa/other"
            ]
        );
        assert_eq!(
            (target.to, target.proxy(), target.waypoint),
            (vip, ([192, 0, 2, 9], 15008).into(), None)
        );
        let far = target.far.expect("another network");
        assert_eq!(gates(&far), ["192.0.2.9:15008 as gate"]);
        assert_eq!(far.called, "web.shop.svc.cluster.local:80");
        // Its address is unused on this network.
        let target = called(&view, ([10, 244, 0, 3], 8080), 0.5).expect("passed on");
        assert!(target.resident.is_none() && target.far.is_none());
    }
}

#[test]
fn a_network_is_entered_at_all_the_gateways_that_are_told_of() {
    let other = proto::Workload {
        addresses: vec![vec![192, 0, 2, 8]],
        service_account: "other".to_owned(),
        ..keeper()
    };
    let nobody = proto::Workload {
        service_account: String::new(),
        ..other.clone()
    };
    let plain = proto::Workload {
        tunnel_protocol: proto::TunnelProtocol::None.into(),
        ..other.clone()
    };
    let told = [keeper(), nobody, plain, other];
    let far = proto::Workload {
        extensions: encode_network_gateways(told.into_iter()).collect(),
        ..eastern()
    };
    let vip = SocketAddr::from(([10, 96, 0, 10], 80));
    let through = |known: Vec<proto::Workload>| {
        let view = view(service(), known);
        let target = called(&view, vip, 0.5).expect("somebody");
        gates(&target.far.expect("another network"))
    };
    let both = ["192.0.2.9:15008 as gate", "192.0.2.8:15008 as other"];
    assert_eq!(through(vec![client(), far.clone(), keeper()]), both);
    // A gateway that was asked for and is absent does not hinder the others.
    assert_eq!(through(vec![client(), far]), both[1..]);
}

#[test]
fn nobody_of_another_network_is_called_by_a_guess() {
    use proto::gateway_address::Destination;
    type Change = fn(&mut proto::Workload, &mut proto::Workload);
    let cases: [(&str, Change, &str); 7] = [
        (
            "no gateway",
            |far, _| far.network_gateway = None,
            "no endpoint",
        ),
        (
            "a gateway by name",
            |far, _| {
                let name = proto::NamespacedHostname::default();
                let gateway = far.network_gateway.as_mut().expect("there");
                gateway.destination = Some(Destination::Hostname(name));
            },
            "no endpoint",
        ),
        (
            "no port",
            |far, _| far.network_gateway.as_mut().expect("there").hbone_mtls_port = 0,
            "no endpoint",
        ),
        (
            "ill",
            |far, _| far.status = proto::WorkloadStatus::Unhealthy.into(),
            "no endpoint",
        ),
        (
            "a stranger at the gateway",
            |_, keeper| keeper.addresses = vec![vec![192, 0, 2, 8]],
            "the identity of its gateway 192.0.2.9:15008 is unknown",
        ),
        (
            "the same address of a third network",
            |_, keeper| keeper.network = "north".to_owned(),
            "the identity of its gateway 192.0.2.9:15008 is unknown",
        ),
        (
            "a gateway without tunnels",
            |_, keeper| keeper.tunnel_protocol = proto::TunnelProtocol::None.into(),
            "the identity of its gateway 192.0.2.9:15008 is unknown",
        ),
    ];
    for (what, change, word) in cases {
        let (mut far, mut gate) = (eastern(), keeper());
        change(&mut far, &mut gate);
        let view = view(service(), vec![client(), far, gate]);
        let refusal = called(&view, ([10, 96, 0, 10], 80), 0.5).expect_err(what);
        assert!(refusal.to_string().contains(word), "{what}: {refusal}");
    }
    // Nor is a waypoint that is elsewhere, nor does one of those keep others from the near ones.
    let far = proto::Workload {
        network: "east".to_owned(),
        network_gateway: entered(),
        ..gate_pod("gate-1", 7)
    };
    let view = behind(gate(None), None, vec![far.clone(), keeper()]);
    let refusal = called(&view, ([10, 96, 0, 10], 80), 0.5).expect_err("a far waypoint");
    assert!(refusal.to_string().contains("waypoint"), "{refusal}");
    let both = vec![far, gate_pod("gate-2", 8), keeper()];
    let view = behind(gate(None), None, both);
    assert_eq!(drawn(&view).len(), 100);
}

#[test]
fn who_is_near_is_called_before_who_is_on_another_network_where_that_is_preferred() {
    use proto::load_balancing::{Mode, Scope};
    let mut preferring = service();
    preferring.load_balancing = Some(proto::LoadBalancing {
        routing_preference: vec![Scope::Network.into()],
        mode: Mode::Failover.into(),
        ..proto::LoadBalancing::default()
    });
    let far_ones = |view: &RegistryView| {
        let all = (0..100).map(|n| called(view, ([10, 96, 0, 10], 80), f64::from(n) / 100.0));
        all.filter(|one| one.as_ref().is_ok_and(|one| one.far.is_some()))
            .count()
    };
    let near = workload("near", 4);
    let ill = proto::Workload {
        status: proto::WorkloadStatus::Unhealthy.into(),
        ..near.clone()
    };
    let all = |near: &proto::Workload| vec![client(), near.clone(), eastern(), keeper()];
    assert_eq!(far_ones(&view(preferring.clone(), all(&near))), 0);
    assert_eq!(far_ones(&view(preferring, all(&ill))), 100);
    assert_eq!(far_ones(&view(service(), all(&near))), 50, "no preference");
}

#[test]
fn who_stands_where_another_network_is_entered_is_asked_once_it_is_called() {
    let vip = SocketAddr::from(([10, 96, 0, 10], 80));
    let asked = |view: &RegistryView, to: SocketAddr| {
        let source = view.workload([10, 244, 0, 2].into()).expect("the client");
        let all = entrances(view, source, to).into_iter();
        all.map(|one| one.name()).collect::<Vec<_>>()
    };
    let unknown = view(service(), vec![client(), eastern()]);
    assert_eq!(asked(&unknown, vip), ["east/192.0.2.9"]);
    assert!(asked(&unknown, ([10, 244, 0, 3], 80).into()).is_empty());
    let known = view(service(), vec![client(), eastern(), keeper()]);
    assert!(asked(&known, vip).is_empty());
    let near = view(service(), vec![client(), workload("near", 3)]);
    assert!(asked(&near, vip).is_empty());
}
