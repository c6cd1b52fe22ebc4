//! The root of a mesh is replaced on a real cluster, while a caller opens a new connection for each request. No request fails.

use std::time::SystemTime;
use voile_identity::{Authority, TrustDomain};
use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::caller::ClusterCaller;
use crate::kubernetes::kit::{
    PATIENCE, install, server_deployment, service, until_ready, write_authority,
};

/// Each request proves itself anew.
pub(crate) const ONE_REQUEST_PER_CONNECTION: &str = "{apiVersion: networking.istio.io/v1, kind: DestinationRule, \
    metadata: {name: web, namespace: shop}, \
    spec: {host: web, trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}}}";

/// Waits until the ConfigMap of the shop holds so many roots.
pub(crate) fn until_roots(cluster: &Cluster, count: usize) -> String {
    let path = r"jsonpath={.data.root-cert\.pem}";
    let get = [
        "-n",
        "shop",
        "get",
        "configmap",
        "istio-ca-root-cert",
        "-o",
        path,
    ];
    wait_for("the roots", PATIENCE * 3, || {
        let found = cluster.kubectl(&get)?;
        let right = found.matches("BEGIN").count() == count;
        right.then_some(found.clone()).ok_or(found)
    })
}

#[test]
fn another_root_loses_no_request() {
    // A cluster of its own: the load takes a machine.
    let Some(cluster) = &Cluster::start(1) else {
        return;
    };
    // Within the overlap each kubelet must have brought the new root to its pods, on a busy machine.
    let times = "certificateTtl=60s,extraArgs={--root-overlap,90s},revisionTags={prod}";
    install(cluster, &["--set", times]);
    let shop = service("shop", "{istio.io/rev: prod}") + &server_deployment("shop");
    cluster.apply(&shop).expect("the shop");
    cluster.apply(ONE_REQUEST_PER_CONNECTION).expect("a rule");
    until_ready(cluster, "shop", "deployment/web", "Available");
    let before = ClusterCaller::start(cluster, "shop", "before", "");
    let old = until_roots(cluster, 1);

    let domain = TrustDomain::new("cluster.local").expect("a domain");
    let new = Authority::generate(&domain, SystemTime::now()).expect("an authority");
    write_authority(cluster, &new);
    let both = until_roots(cluster, 2);
    assert!(
        both.contains(old.trim()) && both.contains(new.roots.trim()),
        "{both}"
    );
    // A kubelet looks at a pod's ConfigMaps when the pod changes; else within a minute or so.
    for namespace in ["shop", "istio-system"] {
        let touch = ["-n", namespace, "annotate", "pods", "--all", "seen=both"];
        cluster.kubectl(&touch).expect("annotated");
    }
    let between = ClusterCaller::start(cluster, "shop", "between", "");
    // The old root goes only after the last certificate below it.
    assert_eq!(until_roots(cluster, 1), new.roots);
    let after = ClusterCaller::start(cluster, "shop", "after", "");
    let requests = [before, between, after].map(ClusterCaller::no_request_failed);
    println!(
        "requests without a failure, of callers that began before, between and after: {requests:?}"
    );
}
