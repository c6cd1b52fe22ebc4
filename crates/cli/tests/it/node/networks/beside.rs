//! Two networks, called by clients without a node proxy of their own: by sidecars and by waypoints. They go through the gateway
//! as node proxies do, to pods and to services behind a waypoint on the other side, by any of several gateways.

use std::sync::atomic::Ordering;

use crate::node::mixed::{asked, sidecar};
use crate::node::networks::{ELSE, East, SERVICE, WEST, West, carries_much};
use crate::node::revoked::{revoke, serial};
use crate::node::waypoint::hostile::{WEB, reflect, start_gate};
use crate::node::*;

/// Another address of a gateway of the east, and an address without a listener.
const OTHER_ENTRANCE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 10);
const ABSENT: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 8);
const SIDED: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 5);
const WAY: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 6);
/// Address of the service `web`.
pub(crate) const PAGES: (Ipv4Addr, u16) = (WEB, 80);

/// A pod with a sidecar.
const SIDECAR: &str = r#"---
apiVersion: v1
kind: ServiceAccount
metadata: {name: sided, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: sided, namespace: shop, labels: {app: sided, sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: sided, nodeName: one, containers: [{name: app}]}
status: {phase: Running, podIP: 10.244.0.5}
"#;

/// The client, or who has the sidecar, may not call the servers.
pub(crate) fn denied(account: &str) -> String {
    DENIED.replace("sa/client", &format!("sa/{account}"))
}

/// A service of requests in both meshes, with these labels, before the workloads of this name.
pub(crate) fn web(labels: &str, app: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop, labels: {{{labels}}}}}\nspec: {{clusterIP: {WEB}, \
         selector: {{app: {app}}}, ports: [{{name: http, port: 80, targetPort: 8081}}]}}\n"
    )
}

pub(crate) const GLOBAL: &str = "istio.io/global: \"true\"";
pub(crate) const BEHIND_WAY: &str = "istio.io/use-waypoint: way";

/// A waypoint before `web`, which allows only the client.
pub(crate) fn way() -> String {
    waypoint_pod("way", WAY)
        + r#"---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: web}]
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
"#
}

pub(crate) fn start_way(mesh: &mut Mesh) {
    let pod = mesh.pod_with("way", WAY, Rules::default());
    start_gate(mesh, &pod, "shop/way");
}

/// The east, whose server takes requests, too, by this service; and the west in these words, with a pod that has a sidecar.
fn both(east: &str, west: &str) -> Option<(East, West, Pod)> {
    west_of(East::start_with(pod, east)?, west)
}

/// The same of this east.
pub(crate) fn west_of(east: East, west: &str) -> Option<(East, West, Pod)> {
    reflect(&east.first);
    let mut west = West::start_as(&east, pod, &[west, SIDECAR].concat())?;
    let sided = west.mesh.pod("sided", SIDED);
    sidecar(&mut west.mesh, &sided);
    Some((east, west, sided))
}

/// Returns true if the node proxy's log has an inbound connection with this account's identity.
fn came_by(log: &str, account: &str) -> bool {
    let caller = format!("src.identity=\"spiffe://cluster.local/ns/shop/sa/{account}\"");
    log.lines().any(|line| {
        line.contains("connection complete")
            && line.contains("direction=\"inbound\"")
            && line.contains(&caller)
    })
}

#[test]
fn a_sidecar_calls_another_network_by_its_own_identity_under_the_policy_of_who_is_called() {
    let east_web = web(GLOBAL, "server");
    let Some((mut east, west, sided)) = both(&east_web, &[WEST, &web("", "server")].concat())
    else {
        return;
    };
    let called = east.node();
    let inside = &sided.inside;
    assert_eq!(name(inside, SERVICE).as_deref(), Some("first"), "bytes");
    for _ in 0..3 {
        let (status, head) = asked(inside, PAGES.into());
        assert_eq!(status, 200, "requests");
        assert!(head.starts_with("GET / "), "{head}");
    }
    wait_until("the east tells of it by the sidecar's identity", || {
        came_by(&called.log(&east.mesh), "sided")
    });
    let (_, mut open) = answers(inside, SERVICE).expect("the far server");
    carries_much(&mut open);
    // A policy of the east takes hold of new connections and of those that are open.
    east.mesh.write("deny.yaml", &denied("sided"));
    let cut = open.read(&mut [0; 16]);
    let reset = cut.expect_err("the open connection is cut, and does not look finished");
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(name(inside, SERVICE), None, "nor a new one");
    east.mesh.remove("deny.yaml");
    wait_until("the policy is gone", || {
        name(inside, SERVICE).as_deref() == Some("first")
    });
    // The west no longer trusts a certificate that the west revokes, whichever mesh issued it.
    let (_, mut open) = answers(inside, SERVICE).expect("the far server");
    revoke(&west.mesh, &serial(&called.log(&east.mesh), "server"));
    let cut = open.read(&mut [0; 16]);
    let reset = cut.expect_err("the open connection is cut, and does not look finished");
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    wait_until("nor a new one", || name(inside, SERVICE).is_none());
}

#[test]
fn a_sidecar_hears_nothing_from_another_network_but_who_was_expected_there() {
    let Some((mut east, west, sided)) = both("", WEST) else {
        return;
    };
    let _called = east.node();
    let (inside, west) = (&sided.inside, &west.mesh);
    let words = |from: &str, to: &str| {
        let text = [&*resources(&[]), ZTUNNEL, WEST, SIDECAR].concat();
        assert!(text.contains(from), "{from}");
        west.write("mesh.yaml", &text.replace(from, to));
    };
    let log = || west.log(&sided);
    let goes = || name(inside, SERVICE).as_deref() == Some("first");
    wait_until("it is called", goes);
    for (from, to, why) in [
        (
            "serviceAccount: server",
            "serviceAccount: other",
            "behind 10.244.0.9:15008",
        ),
        (
            "service-account: gate",
            "service-account: keeper",
            "sa/keeper",
        ),
    ] {
        words(from, to);
        wait_until(to, || {
            name(inside, SERVICE).is_none() && log().contains(why)
        });
        words("kind", "kind");
        wait_until("all is well again", goes);
    }
}

#[test]
fn a_sidecar_calls_who_is_near_as_long_as_anybody_there_is_well() {
    let Some((mut east, mut west, sided)) = both("", WEST) else {
        return;
    };
    let _called = east.node();
    west.mesh.write("second.yaml", ELSE);
    let second = pod(&west.mesh, "second", SECOND);
    serve(&second, SECOND);
    let pods = [(&second, "server")];
    let _node = Node::start(&mut west.mesh, "ztunnel-one", 0, &pods, &[]);
    let is_called = |who: &str| name(&sided.inside, SERVICE).as_deref() == Some(who);
    wait_until("who is near is known", || is_called("second"));
    assert!((0..16).all(|_| is_called("second")));
    let pending = ELSE.replace("phase: Running", "phase: Pending");
    west.mesh.write("second.yaml", &pending);
    wait_until("the other network is called", || is_called("first"));
    west.mesh.write("second.yaml", ELSE);
    wait_until("and no more once somebody is near", || {
        (0..8).all(|_| is_called("second"))
    });
}

#[test]
fn a_waypoint_calls_another_network_for_whom_it_lets_through() {
    let behind = [WEST, &web(BEHIND_WAY, "server"), &way()].concat();
    let Some((mut east, mut west, sided)) = both(&web(GLOBAL, "server"), &behind) else {
        return;
    };
    let called = east.node();
    start_way(&mut west.mesh);
    let _calling = west.node();
    wait_until("the client is let through", || {
        asked(&west.client.inside, PAGES.into()).0 == 200
    });
    assert_eq!(asked(&sided.inside, PAGES.into()).0, 403, "and nobody else");
    wait_until("the east tells of it by the waypoint's identity", || {
        came_by(&called.log(&east.mesh), "way")
    });
    assert!(!came_by(&called.log(&east.mesh), "client"));
}

#[test]
fn what_stands_behind_a_waypoint_of_another_network_is_called_through_that() {
    const FAR: &str = r#"---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-east, namespace: shop}
spec: {address: 10.244.0.6, network: east, serviceAccount: way, labels: {app: web-east}}
"#;
    let labels = [GLOBAL, BEHIND_WAY].join(", ");
    let east_words = web(&labels, "server") + &way();
    let west_words = [WEST, FAR, &web("", "web-east")].concat();
    let Some((mut east, mut west, sided)) = both(&east_words, &west_words) else {
        return;
    };
    let called = east.node();
    start_way(&mut east.mesh);
    let _calling = west.node();
    wait_until("the client is let through there", || {
        asked(&west.client.inside, PAGES.into()).0 == 200
    });
    assert_eq!(
        asked(&sided.inside, PAGES.into()).0,
        403,
        "it knows who calls from afar"
    );
    wait_until("the pod is called by its waypoint", || {
        came_by(&called.log(&east.mesh), "way")
    });
    assert!(!came_by(&called.log(&east.mesh), "client"));
    // A service without a waypoint is called as before.
    assert_eq!(name(&west.client.inside, SERVICE).as_deref(), Some("first"));
}

#[test]
fn another_network_is_entered_by_each_of_its_gateways_and_by_those_that_are_there() {
    let several = |addresses: &str| {
        let one = "addresses: [{type: IPAddress, value: 10.244.0.9}]";
        assert!(WEST.contains(one));
        WEST.replace(one, &format!("addresses: [{addresses}]"))
    };
    // The first address has no listener.
    let west_words = several("{value: 10.244.0.8}, {value: 10.244.0.9}");
    let Some((mut east, mut west, sided)) = both("", &west_words) else {
        return;
    };
    let _called = east.node();
    let _absent = west.mesh.pod_with("absent", ABSENT, Rules::default());
    let _calling = west.node();
    let callers = [&west.client.inside, &sided.inside];
    for inside in callers {
        for _ in 0..12 {
            assert_eq!(name(inside, SERVICE).as_deref(), Some("first"));
        }
    }
    wait_until("the sidecar has tried the one that is not there", || {
        assert_eq!(name(&sided.inside, SERVICE).as_deref(), Some("first"));
        west.mesh
            .log(&sided)
            .contains("cannot reach another network through this gateway")
    });
    // Of two that are there each is entered.
    let other = west.enter(&east, "other-entrance", OTHER_ENTRANCE);
    let text = several("{value: 10.244.0.9}, {value: 10.244.0.10}");
    let text = [&*resources(&[]), ZTUNNEL, &text, SIDECAR].concat();
    west.mesh.write("mesh.yaml", &text);
    for inside in callers {
        let before = other.load(Ordering::Relaxed);
        wait_until("the other one is entered", || {
            assert_eq!(name(inside, SERVICE).as_deref(), Some("first"));
            other.load(Ordering::Relaxed) > before
        });
    }
}
