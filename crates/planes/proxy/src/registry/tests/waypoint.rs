//! Only a waypoint itself calls the destinations behind it directly.

use std::sync::Arc;

use voile_model::mesh::workload::TUNNEL;
use voile_xds::wire::{RemoteWorkload, WaypointAddress, WireType, parse_service_key};

use super::*;

#[test]
fn who_is_no_waypoint_does_not_go_past_one() {
    let gate = || Some(WaypointAddress::Address([10, 0, 0, 99].into()));
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    let available = |registry: &Registry, to: &str| {
        let to: SocketAddr = to.parse().expect("an address");
        let plan = registry.destination(&at(to)).expect("known");
        let all = plan.services.iter().flat_map(|one| &one.endpoints);
        all.filter(|one| one.available).count()
    };
    let (vip, direct) = ("10.96.0.1:80", "10.0.0.4:8080");
    assert_eq!(available(&registry, vip), 5);
    assert_eq!(available(&registry, direct), 1);
    let web = registry.services.get_mut(&*format!("{SHOP}/web.test"));
    web.expect("there").value.waypoint = gate();
    assert_eq!(available(&registry, vip), 0, "its service");
    assert_eq!(available(&registry, direct), 1, "only what is called by it");
    let own = registry.workloads.get_mut("waypointed");
    own.expect("there").value.waypoint = gate();
    assert_eq!(available(&registry, direct), 0, "its own address");
}

/// Endpoints of a destination, each with the tunnel's target if it is a waypoint.
fn led(registry: &Registry, to: &str) -> Option<Vec<String>> {
    let to: SocketAddr = to.parse().expect("an address");
    let plan = registry.destination(&at(to))?;
    let all = plan.services.iter().flat_map(|one| &one.endpoints);
    let all = all.filter(|one| one.available).map(|one| {
        let expected = one.expected.iter().flatten();
        let whom: Vec<String> = expected.map(ToString::to_string).collect();
        let told = one.origination.as_ref().map(|SharedPart(one)| &**one);
        match told {
            Some(Origination::Through(called)) => {
                format!("{} as {} for {called}", one.address, whom.join("+"))
            }
            other => format!("{} {other:?}", one.address),
        }
    });
    Some(all.collect())
}

#[test]
fn what_stands_behind_a_waypoint_is_called_through_its_pods_once_they_are_known_and_never_past_them()
 {
    let gate = parse_service_key(&format!("{SHOP}/gate.test")).expect("a name");
    let behind = || Some(WaypointAddress::Service(gate.clone()));
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    for name in ["web", "through"] {
        let held = registry.services.get_mut(&*format!("{SHOP}/{name}.test"));
        held.expect("there").value.waypoint = behind();
    }
    let own = registry.workloads.get_mut("waypointed");
    own.expect("there").value.waypoint = behind();
    let called = ["10.96.0.1:80", "192.0.2.8:80", "10.0.0.4:8080"];
    assert!(registry.services_wanted().contains(&*gate.to_string()));
    for to in called {
        assert_eq!(led(&registry, to), None, "{to}: who stands there is asked");
    }
    service(&mut registry, "gate", "10.96.0.9", 15008, false);
    policy(&mut registry, "gate", proxy::Protocol::Tcp, &[]);
    for to in called {
        assert_eq!(led(&registry, to), Some(Vec::new()), "{to}: nobody yet");
    }
    let hbone = workload::TunnelProtocol::Hbone;
    pod_behind(&mut registry, "gate-1", "10.0.0.99", hbone, "gate");
    // A workload that takes no tunnels is no waypoint, whatever its resource states.
    let plain = workload::TunnelProtocol::None;
    pod_behind(&mut registry, "gate-2", "10.0.0.98", plain, "gate");
    let identity = format!("spiffe://cluster.local/ns/{SHOP}/sa/gate-1");
    for to in called {
        let expected = format!("10.0.0.99:15008 as {identity} for {to}");
        assert_eq!(led(&registry, to), Some(vec![expected]), "{to}");
    }
    // A waypoint goes through no other.
    registry.is_waypoint = true;
    for to in called {
        assert_eq!(led(&registry, to), Some(Vec::new()), "{to}");
    }
}

/// A gateway between networks with one service, spoilt by the closure.
fn between_networks(spoil: impl FnOnce(&mut proxy::WaypointDestination)) -> Vec<u8> {
    let mut web = proxy::WaypointDestination {
        name: "web".to_owned(),
        protocol: proxy::Protocol::Tcp.into(),
        service: Some(proxy::ServicePort {
            service: format!("{SHOP}/web.test"),
            port: 80,
            authorities: Vec::new(),
        }),
        forward: true,
        ..proxy::WaypointDestination::default()
    };
    spoil(&mut web);
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        waypoint: Some(proxy::Waypoint {
            bind: Some(SocketAddr::from(([10, 0, 0, 7], 15008)).to_wire()),
            destinations: vec![web],
            ..proxy::Waypoint::default()
        }),
        ..proxy::ProxyConfiguration::default()
    };
    configuration.encode_to_vec()
}

/// A label says that the sidecar takes tunnels; it means nothing without a sidecar.
fn take_tunnels_by_label(registry: &mut Registry, uids: &[&str]) {
    for uid in uids {
        let (name, value) = TUNNEL;
        let held = registry.workloads.get_mut(*uid).expect("there");
        let label: (Arc<str>, Arc<str>) = (name.into(), value.into());
        held.value.own_labels = [label].into_iter().collect();
    }
}

#[test]
fn what_comes_from_other_networks_goes_on_to_near_pods_that_take_tunnels_or_to_their_waypoint() {
    let mut registry = Registry {
        is_waypoint: true,
        ..Registry::default()
    };
    let body = between_networks(|_| {});
    put(
        &mut registry,
        type_url::PROXY_CONFIGURATION,
        "shop/own",
        &body,
    );
    service(&mut registry, "web", "10.96.0.1", 80, false);
    use workload::TunnelProtocol::{Hbone, LegacyIstioMtls, None as Plain};
    for (uid, address, tunnel) in [
        ("near", "10.0.0.1", Hbone),
        ("sided", "10.0.0.2", LegacyIstioMtls),
        ("bare", "10.0.0.3", Plain),
        ("far", "10.0.0.4", Hbone),
        ("taking", "10.0.0.5", LegacyIstioMtls),
    ] {
        pod(&mut registry, uid, address, tunnel);
    }
    take_tunnels_by_label(&mut registry, &["taking", "bare"]);
    let far = registry.workloads.get_mut("far").expect("there");
    far.value.away = Some(Box::new(RemoteWorkload {
        network: "west".into(),
        gateway: None,
        keepers: Vec::new(),
    }));
    let led = |registry: &Registry| {
        let held = registry.configuration.as_ref().expect("told");
        let plan = registry.waypoint(&held.value).expect("a gateway");
        let server = &plan.servers[0];
        let door = server.door.as_ref().expect("by name");
        assert_eq!(door.host, Some(("web.test".into(), 80)));
        assert!(door.called.is_empty() && server.way.protocol == WireProtocol::Tcp);
        let all = server.way.services.iter().flat_map(|one| &one.endpoints);
        let shown = all.map(|one| {
            let bare = one.expected.is_none() && one.origination.is_none();
            format!("{} {bare}", one.address)
        });
        shown.collect::<Vec<_>>()
    };
    let both = ["10.0.0.1:15008 true", "10.0.0.5:15008 true"];
    assert_eq!(led(&registry), both, "as it came");
    // Behind a waypoint only the waypoint's pods are endpoints; no call bypasses it.
    let stand_behind = |registry: &mut Registry, waypoint| {
        let web = registry.services.get_mut(&*format!("{SHOP}/web.test"));
        web.expect("there").value.waypoint = Some(waypoint);
    };
    let gate = parse_service_key(&format!("{SHOP}/gate.test")).expect("a name");
    stand_behind(&mut registry, WaypointAddress::Service(gate.clone()));
    assert!(registry.services_wanted().contains(&*gate.to_string()));
    assert!(led(&registry).is_empty(), "it is not there yet");
    service(&mut registry, "gate", "10.96.0.9", 15008, false);
    for (uid, address, tunnel) in [
        ("gate-1", "10.0.0.99", Hbone),
        ("gate-2", "10.0.0.98", Plain),
    ] {
        pod_behind(&mut registry, uid, address, tunnel, "gate");
    }
    assert_eq!(led(&registry), ["10.0.0.99:15008 true"]);
    for nowhere in [
        WaypointAddress::Address([10, 0, 0, 99].into()),
        WaypointAddress::Nobody("by a name that is none".into()),
    ] {
        stand_behind(&mut registry, nowhere);
        assert!(led(&registry).is_empty(), "nobody goes past a waypoint");
    }
}

#[test]
fn what_goes_on_unread_has_neither_an_address_nor_a_policy() {
    type Spoil = fn(&mut proxy::WaypointDestination);
    let cases: [Spoil; 4] = [
        |one| {
            let called = SocketAddr::from(([10, 96, 0, 1], 80)).to_wire();
            one.called.push(called);
        },
        |one| one.authorization_policies.push(Default::default()),
        |one| one.request_authentications.push(Default::default()),
        |one| (one.service, one.workload) = (None, "near".to_owned()),
    ];
    for spoil in cases {
        assert!(is_refused(spoil));
    }
}

/// Returns true if the spoilt configuration of a gateway between networks is refused.
fn is_refused(spoil: impl FnOnce(&mut proxy::WaypointDestination)) -> bool {
    let mut registry = Registry {
        is_waypoint: true,
        ..Registry::default()
    };
    let (kind, name) = (type_url::PROXY_CONFIGURATION, "shop/own".into());
    let body = between_networks(spoil);
    registry.add(kind, &name, &"1".into(), &body).is_err()
}

#[test]
fn a_destination_is_told_of_by_a_telemetry_that_is_there() {
    assert!(!is_refused(|_| {}));
    assert!(is_refused(|one| one.telemetry = 1));
}
