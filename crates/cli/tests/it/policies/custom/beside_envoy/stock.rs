//! A stock Envoy that stands where a sidecar would for each of some sets of resources, with the filters that our translation
//! gives, in their order.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::Court;
use super::drawn::Set;
use crate::envoy::process::Envoy;
use crate::mesh::{HTTP_PORT, Mesh, Process, free_port, local};

/// The last byte of the address of the first of them; smaller ones are the mesh's.
const FIRST_ADDRESS: usize = 120;

/// The filters that our translation gives for a set.
fn filters(set: &Set) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("all.yaml"), &set.resources).expect("written");
    let output = Process::output(|voile| {
        voile.args([
            "export",
            "envoy-filters",
            "--namespace",
            "shop",
            "--label",
            "app=server",
        ]);
        voile.arg(folder.path());
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", set.resources);
    serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
}

fn typed(kind: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("type.googleapis.com/envoy.{kind}"));
    config
}

fn cluster(name: &str, at: SocketAddr, http2: bool) -> Value {
    let at =
        json!({ "socket_address": { "address": at.ip().to_string(), "port_value": at.port() } });
    let mut cluster = json!({
        "name": name,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": at } }] }],
        },
    });
    if http2 {
        let explicit = json!({ "explicit_http_config": { "http2_protocol_options": {} } });
        let kind = "extensions.upstreams.http.v3.HttpProtocolOptions";
        cluster["typed_extension_protocol_options"] = json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(kind, explicit) });
    }
    cluster
}

/// An Envoy for these sets.
pub(crate) fn start(program: &Path, court: &Court, sets: &[Set]) -> Envoy {
    let listener = |(number, set): (usize, &Set)| listener(place(&court.mesh, number), set);
    let listeners: Vec<Value> = sets.iter().enumerate().map(listener).collect();
    let admin = local(free_port());
    let mut clusters = vec![cluster("app", court.mesh.http_app_address(), false)];
    for (at, http2) in court.services.into_iter().zip([true, false]) {
        clusters.push(cluster(
            &format!("outbound|{}||ext.test", at.port()),
            at,
            http2,
        ));
    }
    let bootstrap = json!({
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": admin.port() } } },
        "node": { "id": "test", "cluster": "test" },
        "static_resources": { "listeners": listeners, "clusters": clusters },
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("envoy.json");
    std::fs::write(&file, bootstrap.to_string()).expect("written");
    Envoy::start(program, &file, admin)
}

fn listener(at: SocketAddr, set: &Set) -> Value {
    let mut filters = filters(set);
    filters.push(json!({
        "name": "router",
        "typed_config": typed("extensions.filters.http.router.v3.Router", json!({})),
    }));
    let manager = json!({
        "stat_prefix": "test",
        "normalize_path": true,
        "http_filters": filters,
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"],
            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "app" } }] }] },
    });
    let kind = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    json!({
        "name": at.to_string(),
        "address": { "socket_address": { "address": at.ip().to_string(), "port_value": at.port() } },
        "filter_chains": [{ "filters": [{ "name": "http", "typed_config": typed(kind, manager) }] }],
    })
}

/// Address of Envoy's listener for a set. The port is the same as ours, since policies may match
/// it.
pub(crate) fn place(mesh: &Mesh, number: usize) -> SocketAddr {
    let last = u8::try_from(FIRST_ADDRESS + number).expect("few sets");
    mesh.address(last, HTTP_PORT)
}
