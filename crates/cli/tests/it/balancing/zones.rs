//! `zoneAwareLbSetting` through a control plane and a sidecar: who else calls, how many of whom are where, and what becomes of it when
//! they come, go, or answer badly.

use super::{Mesh, get, mesh, obey, put_in_zones, say, series, shares, wait_until};

const CLUSTER: &str = "cluster=\"outbound|8080||server.shop.svc.cluster.local\"";

/// Who calls besides the client, by zone, all of them behind one service with it. They never do; it is enough that they are there.
fn callers(mesh: &Mesh, zones: &[&str]) {
    let mut text = "apiVersion: v1\nkind: Service\nmetadata: {name: client, namespace: shop}\n\
                    spec: {selector: {app: client}, ports: [{name: http, port: 8099}]}\n"
        .to_owned();
    for (number, zone) in (20..).zip(zones) {
        text += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: client-{number}\n  namespace: shop\n\
             \x20 labels: {{app: client, version: v1, sidecar.istio.io/inject: \"false\", topology.kubernetes.io/region: north, topology.kubernetes.io/zone: {zone}}}\n\
             spec:\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n",
            mesh.address(number, 0).ip()
        );
    }
    say(mesh, "callers.yaml", &text);
}

/// How many call from each zone, as the client's sidecar counts.
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
    wait_until(&format!("those of {expected:?}"), || {
        let seen = shares(mesh.http(), 30);
        seen.keys().eq(expected)
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
    // Nobody knows who else calls: our region is asked, zone or not.
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
    // Who is put out takes nothing; a region of which half is well takes 70 in 100, and the next one the rest.
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
        // Until shares are reckoned anew there may be nobody.
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
    // Who comes changes the shares, who goes gives them back.
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
