//! Nobody but a waypoint itself calls what stands behind it.

use voile_xds::wire::{WaypointAddress, parse_service_key};

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

/// Where this leads, each endpoint with what it is told, if it is a waypoint.
fn led(registry: &Registry, to: &str) -> Option<Vec<String>> {
    let to: SocketAddr = to.parse().expect("an address");
    let plan = registry.destination(&at(to))?;
    let all = plan.services.iter().flat_map(|one| &one.endpoints);
    let all = all.filter(|one| one.available).map(|one| {
        let expected = one.expected.iter().flatten();
        let whom: Vec<String> = expected.map(ToString::to_string).collect();
        let told = one.origination.as_ref().map(|Same(one)| &**one);
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
    // Who takes no tunnels is no waypoint, whatever it says.
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
