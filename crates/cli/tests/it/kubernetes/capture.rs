//! Sidecars whose connections the CNI plugin redirects, on the cluster of the test of ambient mode: in a namespace of the level
//! `restricted`, with a plugin's call that fails, and with a pod that starts without the plugin.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::kit::{
    PATIENCE, caller, client, job, server_pod, service, sidecar_metrics, until_answered,
    until_ready, until_refused, voile,
};

const CONFIGURATION: &str = "/etc/cni/net.d/10-pods.conflist";

const CLIENT: (&str, &str) = ("vault", "client");
const WEB: &str = "http://web.vault/";
/// The namespace of the pods that do not start at once.
const CELLAR: &str = "---\n{apiVersion: v1, kind: Namespace, metadata: {name: cellar, labels: {istio-injection: enabled}}}\n";

/// A server, a client that calls it before its application starts, and a Job. STRICT holds.
fn vault() -> String {
    let labels = "{istio-injection: enabled, pod-security.kubernetes.io/enforce: restricted}";
    let first = format!("  nodeName: node-2\n  initContainers:\n{}", caller("first"));
    [
        service("vault", labels),
        server_pod("vault", "node-1"),
        client("vault", "client", "", &first),
        job("vault"),
        CELLAR.to_owned(),
    ]
    .concat()
}

/// A pod whose rules cannot be written: its sidecar is root.
const REFUSED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: refused, namespace: cellar}
spec:
  nodeName: node-1
  containers:
  - {name: app, image: "localhost/tools:1", imagePullPolicy: Never}
  - {name: istio-proxy, image: auto, securityContext: {runAsUser: 0, runAsNonRoot: false}}
"#;

const EARLY: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: early, namespace: cellar}
spec: {nodeName: node-2, containers: [{name: app, image: "localhost/tools:1", imagePullPolicy: Never, securityContext: {runAsUser: 1000}}]}
"#;

/// Runs a line of a shell on a node, with this input.
pub(crate) fn on_node(cluster: &Cluster, node: usize, line: &str, input: &str) -> String {
    let mut command = cluster.node_command(node, "sh");
    let command = command.args(["-c", line]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sidecars get their rules by the plugin. `stranger` is a pod outside the mesh.
pub(crate) fn is_by_the_plugin(cluster: &Cluster, stranger: (&str, &str)) {
    cluster.apply(&vault()).expect("the vault");
    for (what, condition) in [
        ("pod/web", "Ready"),
        // Its first container calls a service: the sidecar and its rules were there before.
        ("pod/client", "Ready"),
        ("job/once", "Complete"),
    ] {
        until_ready(cluster, "vault", what, condition);
    }
    until_answered(cluster, CLIENT, WEB);
    until_refused(cluster, stranger, WEB);
    // The sidecar was ready at once: nobody has started it again.
    let path = "jsonpath={.items[*].status.initContainerStatuses[?(@.name==\"istio-proxy\")].restartCount}";
    let restarts = cluster
        .kubectl(&["-n", "vault", "get", "pods", "-o", path])
        .expect("pods");
    assert_eq!(restarts, "0 0 0");
    let pods = cluster
        .kubectl(&["-n", "vault", "get", "pods", "-o", "json"])
        .expect("pods");
    assert!(pods.contains("istio-proxy"));
    assert!(!pods.contains("istio-init") && !pods.contains("NET_ADMIN"));
    let metrics = sidecar_metrics(cluster, CLIENT);
    let principal = r#"destination_principal="spiffe://cluster.local/ns/vault/sa/server""#;
    assert!(metrics.contains(principal), "{metrics}");
    let checks = voile(cluster, &["check"]);
    assert!(checks.contains("node agent: 2 of 2 pods"), "{checks}");
    a_failed_call_keeps_the_pod_from_starting(cluster);
    a_pod_that_started_without_the_plugin_is_repaired(cluster);
    let delete = ["delete", "namespace", "vault", "cellar", "--wait=false"];
    cluster.kubectl(&delete).expect("deleted");
}

fn a_failed_call_keeps_the_pod_from_starting(cluster: &Cluster) {
    cluster.apply(REFUSED).expect("a pod");
    wait_for("the event of the failed call", PATIENCE, || {
        let of_pod = "involvedObject.name=refused";
        let path = "jsonpath={.items[*].message}";
        let get = ["-n", "cellar", "get", "events", "--field-selector", of_pod];
        let events = cluster.kubectl(&[&get[..], &["-o", path]].concat())?;
        let is_told = events.contains("the container istio-proxy runs as root");
        let has_cure = events.contains("cure: give it another `securityContext.runAsUser`");
        (is_told && has_cure).then_some(()).ok_or(events)
    });
    let path = "jsonpath={.status.phase} {.status.initContainerStatuses[*].state}";
    let get = ["-n", "cellar", "get", "pod", "refused", "-o", path];
    let state = cluster.kubectl(&get).expect("a pod");
    assert!(
        state.starts_with("Pending") && !state.contains("running"),
        "{state}"
    );
}

/// The agent is stopped and its plugin taken away, so that nobody writes the rules of a new pod.
fn a_pod_that_started_without_the_plugin_is_repaired(cluster: &Cluster) {
    on_node(cluster, 2, "pkill -STOP -f '[v]oile node-agent'", "");
    let list = on_node(cluster, 2, &format!("cat {CONFIGURATION}"), "");
    let mut list: Value = serde_json::from_str(&list).expect("JSON");
    let plugins = list["plugins"].as_array_mut().expect("plugins");
    plugins.retain(|plugin| plugin["type"] != json!("voile-cni"));
    let write = format!("cat > {CONFIGURATION}.new && mv {CONFIGURATION}.new {CONFIGURATION}");
    on_node(cluster, 2, &write, &list.to_string());
    cluster.apply(EARLY).expect("a pod");
    let ask = "pid=$(pgrep -o -f '[w]orkload=cellar/early') && nsenter -n -t $pid curl -s http://127.0.0.1:15021/healthz/ready";
    wait_for("the sidecar misses its rules", PATIENCE, || {
        let reason = on_node(cluster, 2, ask, "");
        let is_missing = reason.contains("are not redirected (its redirect rules are missing)");
        is_missing.then_some(()).ok_or(reason)
    });
    let path = "jsonpath={.status.containerStatuses[*].state.running}";
    let get = ["-n", "cellar", "get", "pod", "early", "-o", path];
    assert_eq!(cluster.kubectl(&get).as_deref(), Ok(""), "it does not run");
    on_node(cluster, 2, "pkill -CONT -f '[v]oile node-agent'", "");
    until_ready(cluster, "cellar", "pod/early", "Ready");
    until_answered(cluster, ("cellar", "early"), WEB);
}
