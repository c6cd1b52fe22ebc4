//! An upgrade by revision on a real cluster: two control planes, a tag that moves, pods that restart, replicas that are killed and an
//! old revision that goes, and no request fails.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use voile_testkit::cluster::{Cluster, kubectl, wait_for};

use crate::kubernetes::{PATIENCE, VOILE, voile};

/// A service of two pods under STRICT mutual TLS, in a namespace that names the tag `prod`.
pub(crate) const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/rev: prod}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: app
        image: localhost/voile:test
        imagePullPolicy: Never
        args: [echo, --listen, "0.0.0.0:8080"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 2}}}
        securityContext: {runAsUser: 1000}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
"#;

/// A caller that prints its result when it is deleted.
fn load(name: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  restartPolicy: Never
  containers:
  - name: app
    image: localhost/voile:test
    imagePullPolicy: Never
    args: [load, "http://web/", --rate, "40", --duration, "0", --json]
    securityContext: {{runAsUser: 1000}}
"#
    )
}

pub(crate) fn until_ready(cluster: &Cluster, namespace: &str, what: &str, condition: &str) {
    let wanted = format!("--for=condition={condition}");
    let arguments = ["-n", namespace, "wait", what, &*wanted, "--timeout=1s"];
    wait_for(what, PATIENCE, || cluster.kubectl(&arguments));
}

pub(crate) fn start_load(cluster: &Cluster, name: &str) {
    cluster.apply(&load(name)).expect("a caller");
    until_ready(cluster, "shop", &format!("pod/{name}"), "Ready");
}

/// Follows the output of a caller.
fn follow(cluster: &Cluster, name: &str) -> Child {
    let mut command: Command = cluster.control_plane_command(kubectl());
    let command = command.args(["-n", "shop", "logs", "-f", name, "-c", "app"]);
    let following = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    following.expect("kubectl runs")
}

/// Ends a caller, and checks that no request of it has failed. Returns the number of its requests.
pub(crate) fn no_request_failed(cluster: &Cluster, name: &str) -> u64 {
    let following = follow(cluster, name);
    let delete = ["-n", "shop", "delete", "pod", name];
    cluster.kubectl(&delete).expect("deleted");
    let output = following.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    // Among the lines of the result it may say that it was late: the machine is busy.
    let talk = |line: &&str| line.starts_with("voile load: ");
    let result: String = text.lines().filter(|line| !talk(line)).collect();
    let result = serde_json::from_str::<Value>(&result);
    let result = result.unwrap_or_else(|error| panic!("no result of {name}: {error}: {text}"));
    assert_eq!(result["errors_total"], 0, "{name}: {result:#}");
    let requests = result["ok"].as_u64().unwrap_or_default();
    assert!(requests > 100, "{name}: {requests} requests");
    requests
}

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
    proxies_are_connected(cluster, revision);
}

/// Until then proxies call pods that they know, which may be gone: a call to an address of nobody fails after three seconds.
fn proxies_are_connected(cluster: &Cluster, revision: &str) {
    wait_for("connected proxies", PATIENCE, || {
        let mut check = cluster.control_plane_command(Path::new(VOILE));
        let output = check.args(["check", "--revision", revision]).output();
        let output = output.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(()).ok_or(said)
    });
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
    cluster.import_voile(Path::new(VOILE), "localhost/voile:test");
    for node in [1, 2] {
        let mut tag = cluster.node_command(node, "ctr");
        let tag = tag.args(["-n", "k8s.io", "images", "tag", "localhost/voile:test"]);
        let tagged = tag.arg("localhost/voile:next").output().expect("it runs");
        assert!(tagged.status.success(), "{tagged:?}");
    }
    let image = "image.repository=localhost/voile,image.tag=test,image.pullPolicy=Never";
    voile(
        cluster,
        &[
            "install",
            "--revision",
            "1-0",
            "--set",
            image,
            "--timeout",
            "90s",
        ],
    );
    voile(cluster, &["tag", "set", "prod", "--revision", "1-0"]);
    cluster.apply(SHOP).expect("the shop");
    until_ready(cluster, "shop", "deployment/web", "Available");
    start_load(cluster, "old");

    let upgrade = ["upgrade", "--revision", "1-1", "--timeout", "90s"];
    let next = ["--set", "image.tag=next"];
    let beside = voile(cluster, &[&upgrade[..], &next].concat());
    let steps = "pods with proxies of 1-0: 3\nnext:\n  voile tag set prod --revision 1-1 --overwrite\n  \
        kubectl rollout restart deployment/web -n shop\n  kubectl delete pod/old -n shop\n  voile uninstall --revision 1-0\n";
    assert!(beside.contains(steps), "{beside}");
    replicas_are_killed(cluster, "1-0");
    voile(cluster, &[&upgrade[..], &["--move-tags"]].concat());
    start_load(cluster, "new");
    voile(cluster, &[&upgrade[..], &["--restart"]].concat());
    wait_for("the new proxies", PATIENCE, || {
        let found = proxies(cluster);
        let wanted = "1-1 localhost/voile:next,".repeat(2);
        (found == wanted).then_some(()).ok_or(found)
    });
    replicas_are_killed(cluster, "1-1");
    // The caller `old` keeps its proxy, and its proxy keeps what it has without its control plane.
    let mut remove = cluster.control_plane_command(Path::new(VOILE));
    let refused = remove
        .args(upgrade)
        .arg("--remove")
        .output()
        .expect("it runs");
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    let cure = "the revision 1-0 stays: pods, namespaces or tags need it\ncure: these commands, in this order\n  kubectl delete pod/old -n shop\n";
    assert!(refused.contains(cure), "{refused}");
    voile(cluster, &["uninstall", "--revision", "1-0"]);
    resources_follow_the_tag(cluster);
    let requests = ["old", "new"].map(|name| no_request_failed(cluster, name));
    println!(
        "requests without a failure, of a caller with the old proxy and one with the new one: {requests:?}"
    );
    let list = voile(cluster, &["tag", "list"]);
    assert!(list.contains("prod  1-1       shop"), "{list}");
}
