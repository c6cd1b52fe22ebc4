//! The API server is away for a minute, while callers with a sidecar and in ambient mode open a new connection for each request. No
//! request fails, and proxies get new certificates meanwhile.

use std::time::{Duration, Instant, SystemTime};

use voile_identity::{Authority, TrustDomain};
use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::caller::ClusterCaller;
use crate::kubernetes::capture::on_node;
use crate::kubernetes::kit::{
    PATIENCE, install, server_deployment, server_pod, service, until_ready, write_authority,
};
use crate::kubernetes::rotation::{ONE_REQUEST_PER_CONNECTION, until_roots};

/// Longer than the life of the certificates: each has been renewed once at least when it ends.
const OUTAGE: Duration = Duration::from_secs(75);
/// Serial numbers of the certificates that the sidecars of the shop hold.
const SERIALS: &str = "for pid in $(pgrep -f '[w]orkload=shop/'); do \
    nsenter -n -t $pid curl -s http://127.0.0.1:15000/certs | grep '\"serial\"'; done";

fn serials(cluster: &Cluster) -> Vec<String> {
    let text = on_node(cluster, 1, SERIALS, "");
    let serials: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(serials.len(), 3, "two servers and a caller: {text}");
    serials
}

#[test]
fn a_minute_without_api_server_loses_no_request() {
    // A cluster of its own: nobody else can use it meanwhile.
    let Some(cluster) = &Cluster::start(1) else {
        return;
    };
    install(
        cluster,
        &["--set", "certificateTtl=60s,ambient.enabled=true"],
    );
    let shop = service("shop", "{istio-injection: enabled}") + &server_deployment("shop");
    let grove =
        service("grove", "{istio.io/dataplane-mode: ambient}") + &server_pod("grove", "node-1");
    for manifest in [&*shop, &*grove, ONE_REQUEST_PER_CONNECTION] {
        cluster.apply(manifest).expect("applied");
    }
    until_ready(cluster, "shop", "deployment/web", "Available");
    until_ready(cluster, "grove", "pod/web", "Ready");
    let ambient = ClusterCaller::start(cluster, "grove", "ambient", ", --no-keepalive");
    let sidecar = ClusterCaller::start(cluster, "shop", "sidecar", "");

    let before = serials(cluster);
    cluster.stop_api_server();
    let stopped = Instant::now();
    assert!(cluster.kubectl(&["get", "nodes"]).is_err(), "it is away");
    wait_for("an outage with new certificates", PATIENCE * 2, || {
        let held = serials(cluster);
        let renewed = held.iter().all(|serial| !before.contains(serial));
        let over = renewed && stopped.elapsed() > OUTAGE;
        over.then_some(()).ok_or(format!("{before:?}, {held:?}"))
    });
    cluster.start_api_server();

    // The control plane follows the cluster again.
    let domain = TrustDomain::new("cluster.local").expect("a domain");
    let authority = Authority::generate(&domain, SystemTime::now()).expect("an authority");
    write_authority(cluster, &authority);
    until_roots(cluster, 2);
    let requests = [ambient, sidecar].map(ClusterCaller::no_request_failed);
    println!(
        "requests without a failure, of a caller in ambient mode and one with a sidecar: {requests:?}"
    );
}
