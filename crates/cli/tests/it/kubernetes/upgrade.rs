//! An upgrade by revision on a real cluster: two control planes, a tag that moves, pods that restart, replicas that are killed and an
//! old revision that goes, and no request fails.

use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::caller::ClusterCaller;
use crate::kubernetes::kit::{
    IMAGE, PATIENCE, install, run, server_deployment, service, tag_image, until_ready, voile,
};

/// Kills the replicas of a control plane, one after the other.
fn replicas_are_killed(cluster: &Cluster, revision: &str) {
    let label = format!("app=istiod,istio.io/rev={revision}");
    let pods = [
        "-n",
        "istio-system",
        "get",
        "pods",
        "-l",
        &*label,
        "-o",
        "name",
    ];
    let pods = cluster.kubectl(&pods).expect("pods");
    assert_eq!(pods.lines().count(), 2, "{pods}");
    for pod in pods.lines() {
        let kill = [
            "-n",
            "istio-system",
            "delete",
            pod,
            "--force",
            "--grace-period=0",
        ];
        cluster.kubectl(&kill).expect("killed");
        let deployment = format!("deployment/istiod-{revision}");
        // A moment passes until the Deployment knows.
        let path = "jsonpath={.status.unavailableReplicas}{.status.readyReplicas}";
        let status = ["-n", "istio-system", "get", &*deployment, "-o", path];
        wait_for(&deployment, PATIENCE, || {
            let found = cluster.kubectl(&status)?;
            let gone = cluster
                .kubectl(&["-n", "istio-system", "get", pod])
                .is_err();
            (gone && found == "2").then_some(()).ok_or(found)
        });
    }
}

/// The revision and the proxy's image of each pod of the service.
fn proxies(cluster: &Cluster) -> String {
    let path = r#"jsonpath={range .items[*]}{.metadata.labels.istio\.io/rev} {.spec.initContainers[?(@.name=="istio-proxy")].image},{end}"#;
    let get = ["-n", "shop", "get", "pods", "-l", "app=web", "-o", path];
    cluster.kubectl(&get).expect("pods")
}

/// Resources of the namespace belong to the revision that the tag stands for, though they name none.
fn resources_follow_the_tag(cluster: &Cluster) {
    let change = "{apiVersion: security.istio.io/v1, kind: PeerAuthentication, \
        metadata: {name: default, namespace: shop}, spec: {mtls: {mode: STRICT}, selector: {matchLabels: {app: web}}}}";
    cluster.apply(change).expect("changed");
    let path = "jsonpath={.metadata.generation} {.status.conditions[0].observedGeneration} {.status.conditions[0].status}";
    let status = [
        "-n",
        "shop",
        "get",
        "peerauthentication",
        "default",
        "-o",
        path,
    ];
    wait_for("a status", PATIENCE, || {
        let found = cluster.kubectl(&status)?;
        (found == "2 2 True").then_some(()).ok_or(found)
    });
    let broken = "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: broken, namespace: shop}, \
        spec: {hosts: [web], http: [{route: [{destination: {hots: web}}]}]}}";
    let refused = cluster.apply(broken).expect_err("refused");
    assert!(refused.contains("did you mean `host`"), "{refused}");
}

#[test]
fn an_upgrade_by_revision_loses_no_request() {
    // A cluster of its own: another test installs the mesh in the shared one.
    let Some(cluster) = &Cluster::start(2) else {
        return;
    };
    install(cluster, &["--revision", "1-0"]);
    tag_image(cluster, 2, IMAGE, "localhost/voile:next");
    voile(cluster, &["tag", "set", "prod", "--revision", "1-0"]);
    // A namespace that names the tag `prod`.
    let shop = service("shop", "{istio.io/rev: prod}") + &server_deployment("shop");
    cluster.apply(&shop).expect("the shop");
    until_ready(cluster, "shop", "deployment/web", "Available");
    let old = ClusterCaller::start(cluster, "shop", "old", "");

    let upgrade = ["upgrade", "--revision", "1-1", "--timeout", "90s"];
    let next = ["--set", "image.tag=next"];
    let beside = voile(cluster, &[&upgrade[..], &next].concat());
    let steps = "pods with proxies of 1-0: 3\nnext:\n  voile tag set prod --revision 1-1 --overwrite\n  \
        kubectl rollout restart deployment/web -n shop\n  kubectl delete pod/old -n shop\n  voile uninstall --revision 1-0\n";
    assert!(beside.contains(steps), "{beside}");
    replicas_are_killed(cluster, "1-0");
    voile(cluster, &[&upgrade[..], &["--move-tags"]].concat());
    let new = ClusterCaller::start(cluster, "shop", "new", "");
    voile(cluster, &[&upgrade[..], &["--restart"]].concat());
    wait_for("the new proxies", PATIENCE, || {
        let found = proxies(cluster);
        let wanted = "1-1 localhost/voile:next,".repeat(2);
        (found == wanted).then_some(()).ok_or(found)
    });
    replicas_are_killed(cluster, "1-1");
    // The caller `old` keeps its proxy, and its proxy keeps what it has without its control plane.
    let refused = run(cluster, &[&upgrade[..], &["--remove"]].concat());
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    let cure = "the revision 1-0 stays: pods, namespaces or tags need it\ncure: these commands, in this order\n  kubectl delete pod/old -n shop\n";
    assert!(refused.contains(cure), "{refused}");
    voile(cluster, &["uninstall", "--revision", "1-0"]);
    resources_follow_the_tag(cluster);
    let requests = [old, new].map(ClusterCaller::no_request_failed);
    println!(
        "requests without a failure, of a caller with the old proxy and one with the new one: {requests:?}"
    );
    let list = voile(cluster, &["tag", "list"]);
    assert!(list.contains("prod  1-1       shop"), "{list}");
}
