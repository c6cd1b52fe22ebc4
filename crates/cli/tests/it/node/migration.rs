//! Workloads move from sidecars to the node proxy, and follow their template there, while they are called: nobody notices.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::mesh::wait_until;
use crate::up::Up;
use crate::up_netns::start_with;

/// A server that takes mutual TLS alone, with a sidecar.
const WEB: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: move}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: move}
spec: {mtls: {mode: STRICT}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: move}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, sidecar.istio.io/inject: "true"}}
    spec: {containers: [{name: app, env: [{name: VERSION, value: "1"}], command: ["$(VOILE)", echo, --listen, "0.0.0.0:8080", --name, "$(POD_NAME)"]}]}
"#;

const SIDECAR: &str = "sidecar.istio.io/inject: \"true\"";
const AMBIENT: &str = "istio.io/dataplane-mode: ambient";

/// Calls the server three hundred times a second from `go` until `enough`.
fn client(name: &str, label: &str, more: &str) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: move, labels: {{app: {name}, {label}}}}}
spec:
  containers:
  - name: app
    command:
    - sh
    - -c
    - |
      until [ -e go ]; do sleep 0.05; done
      $VOILE load http://$WEB_SERVICE_HOST:$WEB_SERVICE_PORT/ --rate 300 --duration 120s --connections 8 \
        --method POST --payload-size 100 --timeout 20s --json {more} > result-{name} 2> said-{name} &
      load=$!
      until [ -e enough ]; do sleep 0.05; done
      kill -TERM $load
      wait $load
      mv result-{name} done-{name}
      exec sleep 1000
"#
    )
}

fn begin(up: &Up, clients: &[&str]) {
    fs::write(up.file("go"), "").expect("written");
    for client in clients {
        wait_until("the load runs", || {
            up.file(&format!("result-{client}")).exists()
        });
    }
}

/// Ends the load and looks at what became of its requests.
fn no_request_failed(up: &Up, clients: &[&str]) {
    fs::write(up.file("enough"), "").expect("written");
    for client in clients {
        let done = up.file(&format!("done-{client}"));
        wait_until("the generator has ended", || done.exists());
        let printed = fs::read(done).expect("its result");
        let result: serde_json::Value = serde_json::from_slice(&printed).expect("JSON");
        assert_eq!(result["errors_total"], 0, "{client}: {result:#}");
        let statuses = result["status"].as_object().expect("statuses");
        assert_eq!(statuses.len(), 1, "{client}: {result:#}");
        assert!(statuses["200"].as_u64() > Some(300), "{client}: {result:#}");
    }
}

fn runs(up: &Up, pod: &str) -> bool {
    let its = format!("--name {pod}");
    up.family().iter().any(|line| line.contains(&its))
}

fn is_gone(up: &Up, pod: &str) -> bool {
    up.text("err").contains(&format!("move/{pod} goes")) && !runs(up, pod)
}

fn ends(mut up: Up) {
    up.signal(Signal::TERM);
    assert!(up.wait().success());
    assert!(up.left_behind().is_empty());
}

#[test]
fn a_workload_moves_from_its_sidecar_to_the_node_proxy_under_load_and_loses_no_request() {
    let fill = |folder: &Path| {
        let clients = [
            client("beside", SIDECAR, ""),
            client("ambient", AMBIENT, ""),
        ];
        let text = [WEB, &clients.concat()].concat();
        fs::write(folder.join("move.yaml"), text).expect("written");
    };
    let Some((up, _)) = start_with(fill, None, &["--dataplane", "mixed"]) else {
        return;
    };
    let clients = ["beside", "ambient"];
    for (pod, has_sidecar) in [("web", true), ("beside", true), ("ambient", false)] {
        let runs = up
            .family()
            .concat()
            .contains(&format!("--workload move/{pod}"));
        assert_eq!(runs, has_sidecar, "{pod}");
    }
    begin(&up, &clients);
    up.edit(
        "move.yaml",
        &format!("app: web, {SIDECAR}"),
        &format!("app: web, {AMBIENT}"),
    );
    wait_until("the pod with the sidecar is gone", || is_gone(&up, "web-0"));
    let log = || up.log("node-proxy");
    no_request_failed(&up, &clients);
    wait_until("the node proxy carried it by identity", || {
        log().lines().any(|line| {
            line.contains("connection complete")
                && line.contains("direction=\"inbound\"")
                && line.contains("dst.workload=\"web\"")
                && line.contains("src.identity=\"spiffe://cluster.local/ns/move/sa/default\"")
        })
    });
    let sidecars = up.family().concat();
    assert!(!sidecars.contains("--workload move/web"), "{sidecars}");
    ends(up);
}

#[test]
fn a_pod_of_the_node_proxy_and_the_node_proxy_are_replaced_under_load_and_lose_no_request() {
    let fill = |folder: &Path| {
        let text = [WEB, &client("ambient", AMBIENT, "--no-keepalive")].concat();
        fs::write(folder.join("move.yaml"), text).expect("written");
    };
    let Some((up, _)) = start_with(fill, None, &["--dataplane", "node"]) else {
        return;
    };
    begin(&up, &["ambient"]);
    up.edit("move.yaml", r#"value: "1""#, r#"value: "2""#);
    wait_until("the old pod is gone", || is_gone(&up, "web-0"));
    up.signal(Signal::USR2);
    wait_until("another node proxy serves", || {
        up.text("err").contains("node-proxy is replaced")
    });
    no_request_failed(&up, &["ambient"]);
    ends(up);
}

#[test]
fn a_pod_that_goes_is_served_until_its_application_has_ended() {
    let fill = |folder: &Path| {
        // Its connections stay with the pod that they have.
        let text = [WEB, &client("ambient", AMBIENT, "")].concat();
        fs::write(folder.join("move.yaml"), text).expect("written");
    };
    let Some((up, _)) = start_with(fill, None, &["--dataplane", "node"]) else {
        return;
    };
    begin(&up, &["ambient"]);
    up.edit("move.yaml", r#"value: "1""#, r#"value: "2""#);
    let log = || up.log("node-proxy");
    wait_until("the node proxy lets it go", || {
        let log = log();
        let mut lines = log.lines();
        lines.any(|line| line.contains("served no more") && line.contains("pod=web-0"))
    });
    assert!(!runs(&up, "web-0"), "it is there yet");
    let log = log();
    let ended = log.lines().filter(|line| {
        line.contains("connection complete") && line.contains("direction=\"inbound\"")
    });
    let ended: Vec<_> = ended.collect();
    assert!(!ended.is_empty(), "it was called");
    let cut = ended.iter().find(|line| line.contains("error=\"Stopped\""));
    assert_eq!(cut, None, "by its application, and not by a policy");
    ends(up);
}
