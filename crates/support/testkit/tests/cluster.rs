//! The cluster of tests runs pods on its nodes, and leaves nothing when it ends.

use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use voile_testkit::cluster::{Cluster, wait_for};

/// The second pod runs this test's program in the place of voile, as the image's user.
const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: { name: tools, namespace: shop }
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - { name: tools, image: 'localhost/tools:1', imagePullPolicy: Never }
---
apiVersion: v1
kind: Pod
metadata: { name: image, namespace: shop }
spec:
  restartPolicy: Never
  securityContext: { runAsNonRoot: true }
  containers:
  - { name: voile, image: 'localhost/voile:test', imagePullPolicy: Never, args: [--list] }
";

#[test]
fn pods_run_on_nodes_and_a_cluster_leaves_nothing() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let program = env::current_exe().expect("this program");
    cluster.import_voile(&program, "localhost/voile:test");
    let created = cluster.kubectl(&["create", "namespace", "shop"]);
    created.expect("a namespace");
    let account = ["-n", "shop", "get", "serviceaccount", "default"];
    wait_for("a service account", Duration::from_secs(30), || {
        cluster.kubectl(&account)
    });
    cluster.apply(PODS).expect("pods");
    for (pod, condition) in [
        ("pod/tools", "--for=condition=Ready"),
        ("pod/image", "--for=jsonpath={.status.phase}=Succeeded"),
    ] {
        let wait = ["-n", "shop", "wait", condition, pod, "--timeout=60s"];
        cluster.kubectl(&wait).expect("in time");
    }
    let log = cluster.kubectl(&["-n", "shop", "logs", "image"]);
    assert!(
        log.as_ref()
            .is_ok_and(|log| log.contains("leaves_nothing: test")),
        "{log:?}"
    );

    let resolve = ["nslookup", "kubernetes.default.svc.cluster.local"];
    let resolved = cluster.exec("shop", "tools", None, &resolve);
    let resolved = resolved.expect("DNS answers");
    assert!(resolved.contains("10.96.0.1"), "{resolved}");
    let mut list = cluster.node_command(2, "ctr");
    let list = list.args(["-n", "k8s.io", "containers", "ls"]).output();
    let containers = list.expect("nsenter starts").stdout;
    let containers = String::from_utf8_lossy(&containers);
    assert!(containers.contains("localhost/tools:1"), "{containers}");

    let pid = fs::read_to_string(cluster.folder().join("pid")).expect("the PID");
    let groups = format!("/sys/fs/cgroup/memory/voile-cluster-{}-1", pid.trim());
    let traces = [
        cluster.folder().to_owned(),
        Path::new("/proc").join(pid.trim()),
        Path::new(&groups).to_owned(),
    ];
    assert!(traces.iter().all(|path| path.exists()), "{traces:?}");
    drop(cluster);
    assert!(!traces.iter().any(|path| path.exists()), "{traces:?}");
}
