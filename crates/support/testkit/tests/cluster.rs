//! The cluster of tests runs pods on its nodes, and ends without a trace.

use std::fs;
use std::path::Path;

use voile_testkit::cluster::Cluster;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: { name: tools, namespace: shop }
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - { name: tools, image: 'localhost/tools:1', imagePullPolicy: Never }
";

#[test]
fn a_pod_runs_on_its_node_and_the_cluster_leaves_nothing() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let created = cluster.kubectl(&["create", "namespace", "shop"]);
    created.expect("a namespace");
    voile_testkit::cluster::wait_for(
        "its service account",
        std::time::Duration::from_secs(30),
        || cluster.kubectl(&["-n", "shop", "get", "serviceaccount", "default"]),
    );
    cluster.apply(POD).expect("a pod");
    let ready = ["--for=condition=Ready", "pod/tools", "--timeout=60s"];
    let ready = [["-n", "shop", "wait"].as_slice(), &ready].concat();
    cluster.kubectl(&ready).expect("ready in time");

    let resolve = ["nslookup", "kubernetes.default.svc.cluster.local"];
    let resolved = cluster.exec("shop", "tools", None, &resolve);
    let resolved = resolved.expect("DNS answers");
    assert!(resolved.contains("10.96.0.1"), "{resolved}");
    let output = cluster
        .node_command(2, "ctr")
        .args(["-n", "k8s.io", "containers", "ls"])
        .output();
    let containers = output.expect("nsenter starts").stdout;
    let containers = String::from_utf8_lossy(&containers);
    assert!(containers.contains("localhost/tools:1"), "{containers}");

    let pid = fs::read_to_string(cluster.folder().join("pid")).expect("the PID");
    let folder = cluster.folder().to_owned();
    drop(cluster);
    assert!(!folder.exists(), "{}", folder.display());
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "PID {pid}");
    let groups = format!("/sys/fs/cgroup/memory/voile-cluster-{}-1", pid.trim());
    assert!(!Path::new(&groups).exists(), "{groups}");
}
