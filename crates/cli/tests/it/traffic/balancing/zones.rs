//! `zoneAwareLbSetting` through a control plane and a sidecar, or a gateway: shares by the callers and endpoints of each zone,
//! and their change when these come, go, or fail.

use std::net::SocketAddr;

use super::{
    App, HTTP_PORT, Mesh, get, listener, mesh, obey, put_in_zones, say, series, shares, wait_until,
};
use crate::gateway::{self, Edge, NETWORKING, TO_SERVER};

const CLUSTER: &str = "cluster=\"outbound|8080||server.shop.svc.cluster.local\"";

/// Adds further pods of the client, one in each of these zones.
fn callers(mesh: &Mesh, zones: &[&str]) {
    replicas(mesh, "client", ", version: v1", zones);
}

/// Adds further pods of an application, one in each of these zones, and a Service with all its pods. These pods never call
/// anything; they only have to exist.
fn replicas(mesh: &Mesh, app: &str, labels: &str, zones: &[&str]) {
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {app}, namespace: shop}}\n\
         spec: {{selector: {{app: {app}}}, ports: [{{name: http, port: 8099}}]}}\n"
    );
    for (number, zone) in (20..).zip(zones) {
        text += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {app}-{number}\n  namespace: shop\n\
             \x20 labels: {{app: {app}{labels}, sidecar.istio.io/inject: \"false\", topology.kubernetes.io/region: north, topology.kubernetes.io/zone: {zone}}}\n\
             spec:\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n",
            mesh.address(number, 0).ip()
        );
    }
    say(mesh, "callers.yaml", &text);
}

/// Callers from each zone, as the client's sidecar counts them.
fn counted(mesh: &Mesh) -> serde_json::Value {
    let answer = crate::mesh::get(mesh.client_admin(), "/config_dump").expect("an answer");
    let page: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    page["callers_by_zone"].clone()
}

fn wait_counted(mesh: &Mesh, expected: &serde_json::Value) {
    wait_until("callers are counted", || counted(mesh) == *expected);
}

/// Waits until so many requests in a row come to these, and to each of them.
fn all_of(mesh: &Mesh, expected: &[&str]) {
    all_to(mesh.http(), expected);
}

fn all_to(to: SocketAddr, expected: &[&str]) {
    wait_until(&format!("those of {expected:?}"), || {
        shares(to, 30).keys().eq(expected)
    });
}

fn by_zone(more: &str) -> String {
    format!("loadBalancer: {{simple: RANDOM, zoneAwareLbSetting: {{{more}}}}}")
}

#[test]
fn requests_stay_in_their_zone_as_far_as_its_endpoints_suffice_for_its_callers() {
    let (mesh, [a, b, _]) = mesh("");
    put_in_zones(&mesh);
    obey(&mesh, &by_zone("minClusterSize: 2"));
    // Other callers are not known: endpoints of our region get requests, in any zone.
    wait_counted(&mesh, &serde_json::json!({}));
    all_of(&mesh, &["a", "b"]);
    // Half of the callers, and half of the endpoints, are in our zone.
    callers(&mesh, &["north-2"]);
    wait_counted(&mesh, &serde_json::json!({"north-1": 1, "north-2": 1}));
    all_of(&mesh, &["b"]);
    obey(&mesh, &by_zone("minClusterSize: 3"));
    all_of(&mesh, &["a", "b"]);
    obey(&mesh, &by_zone("minClusterSize: 2"));
    all_of(&mesh, &["b"]);
    // Three quarters call from our zone, and half of the endpoints are in it: two thirds stay.
    callers(&mesh, &["north-1", "north-1", "north-2"]);
    wait_counted(&mesh, &serde_json::json!({"north-1": 3, "north-2": 1}));
    all_of(&mesh, &["a", "b"]);
    let shared = shares(mesh.http(), 300);
    // Six deviations on either side.
    assert!((150..=250).contains(&shared["b"]), "{shared:?}");
    assert!(!shared.contains_key("c"), "another region: {shared:?}");
    // An ejected endpoint takes no requests. A region with half of its endpoints healthy takes 70 in 100, and
    // the next region the rest.
    let outliers = "outlierDetection: {consecutive5xxErrors: 1, baseEjectionTime: 1h, maxEjectionPercent: 100}";
    obey(
        &mesh,
        &format!("{}, {outliers}", by_zone("minClusterSize: 1")),
    );
    for (sick, left, out) in [(&b, &["a", "c"][..], 1.0), (&a, &["c"], 2.0)] {
        sick.answers(500);
        wait_until("it is out", || {
            get(mesh.http());
            series(&mesh.client_metrics(), "voile_outliers_out", &[CLUSTER]) == Some(out)
        });
        // Until the shares are computed anew there may be no endpoint.
        wait_until("somebody", || get(mesh.http()).0 == 200);
        all_of(&mesh, left);
    }
    for app in [&a, &b] {
        app.answers(200);
    }
    obey(&mesh, &by_zone("enabled: false"));
    all_of(&mesh, &["a", "b", "c"]);
    assert!(counted(&mesh).is_null(), "nothing depends on callers");
}

#[test]
fn the_mesh_may_keep_requests_in_their_zones_where_no_rule_says_otherwise() {
    let (mesh, _) = mesh("loadBalancer: {simple: RANDOM}");
    put_in_zones(&mesh);
    callers(&mesh, &["north-2"]);
    all_of(&mesh, &["a", "b", "c"]);
    let setting = "zoneAwareLbSetting: {minClusterSize: 1}";
    say(
        &mesh,
        "config.yaml",
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: \"{setting}\"}}\n"
        ),
    );
    all_of(&mesh, &["b"]);
    // A new caller changes the shares; its end restores them.
    callers(&mesh, &["north-1", "north-2"]);
    all_of(&mesh, &["a", "b"]);
    callers(&mesh, &["north-2"]);
    all_of(&mesh, &["b"]);
    obey(
        &mesh,
        "loadBalancer: {simple: RANDOM, localityLbSetting: {enabled: false}}",
    );
    all_of(&mesh, &["a", "b", "c"]);
}

#[test]
fn a_gateways_replicas_keep_requests_in_their_zones() {
    let rule = format!(
        "{NETWORKING}DestinationRule\nmetadata: {{name: server, namespace: shop}}\n\
         spec: {{host: server, trafficPolicy: {{{}}}}}\n",
        by_zone("minClusterSize: 2")
    );
    let open = gateway::servers(&gateway::http_server("\"*\""));
    let edge = Edge::start("", &(open + &gateway::routes("\"*\"", TO_SERVER) + &rule));
    let mesh = &edge.mesh;
    let place = |pod: String, zone: &str| {
        let labels = format!(
            "labels: {{topology.kubernetes.io/region: north, topology.kubernetes.io/zone: {zone}, "
        );
        pod.replacen("labels: {", &labels, 1)
    };
    let _apps = [
        App::serve("a", mesh.http_app()),
        App::serve("b", listener(mesh.address(3, HTTP_PORT))),
    ];
    let second = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: server-b\n  namespace: shop\n\
         \x20 labels: {{app: server, sidecar.istio.io/inject: \"false\"}}\n\
         spec:\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n",
        mesh.address(3, 0).ip()
    );
    // A in another zone of our region, B in ours.
    put_in_zones(mesh);
    say(mesh, "pods.yaml", &place(second, "north-1"));
    say(
        mesh,
        "gateway.yaml",
        &place(gateway::pod(mesh, ""), "north-1"),
    );
    let to = edge.at(HTTP_PORT);
    let counted = || {
        let page: serde_json::Value = serde_json::from_str(&edge.dump()).expect("JSON");
        page["callers_by_zone"].clone()
    };
    let wait_counted = |expected: serde_json::Value| {
        wait_until("gateways are counted", || counted() == expected);
    };
    wait_until("the way into the mesh", || get(to).0 == 200);
    wait_counted(serde_json::json!({}));
    all_to(to, &["a", "b"]);
    replicas(mesh, "gateway", "", &["north-2"]);
    wait_counted(serde_json::json!({"north-1": 1, "north-2": 1}));
    all_to(to, &["b"]);
    // Three quarters come in by our zone, and half of the endpoints are in it: two thirds stay.
    replicas(mesh, "gateway", "", &["north-1", "north-1", "north-2"]);
    wait_counted(serde_json::json!({"north-1": 3, "north-2": 1}));
    all_to(to, &["a", "b"]);
    let shared = shares(to, 300);
    // Six deviations on either side.
    assert!((150..=250).contains(&shared["b"]), "{shared:?}");
}
