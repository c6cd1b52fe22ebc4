//! Nobody but a waypoint itself calls what stands behind it.

use voile_xds::wire::WaypointAddress;

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
