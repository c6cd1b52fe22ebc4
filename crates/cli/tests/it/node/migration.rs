//! Workloads move from sidecars to the node proxy and back, and follow their template there, while clients call them: no call
//! fails.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::mesh::load::lost;
use crate::mesh::wait_until;
use crate::up::Up;
use crate::up::netns::{ask_inside, enters_namespaces, sidecars, start_with};
use crate::up::rollout::{caller, make_outbox};

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

/// Calls the server three hundred times a second from `go` until `enough`, under an account of its own name.
fn client(name: &str, label: &str, more: &str) -> String {
    let account = format!(
        "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: move}}\n"
    );
    let load = format!("--rate 300 --connections 8 {more}");
    let pod = caller("move", name, label, &load);
    account + &pod.replace("spec:\n", &format!("spec:\n  serviceAccountName: {name}\n"))
}

fn begin(up: &Up, clients: &[&str]) {
    fs::write(up.file("go"), "").expect("written");
    for client in clients {
        wait_until("the load runs", || {
            up.file(&format!("out/result-{client}")).exists()
        });
    }
}

/// Ends the load and looks at what became of its requests.
fn no_request_failed(up: &Up, clients: &[&str]) {
    fs::write(up.file("enough"), "").expect("written");
    for client in clients {
        let done = up.file(&format!("out/done-{client}"));
        wait_until("the generator has ended", || done.exists());
        let printed = fs::read(done).expect("its result");
        let result: serde_json::Value = serde_json::from_slice(&printed).expect("JSON");
        assert_eq!(lost(&result), [], "{client}: {result:#}");
        let statuses = result["status"].as_object().expect("statuses");
        assert_eq!(statuses.len(), 1, "{client}: {result:#}");
        assert!(statuses["200"].as_u64() > Some(50), "{client}: {result:#}");
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

/// Both clients: one with a sidecar, and one that the node proxy serves.
const CLIENTS: [&str; 2] = ["beside", "ambient"];

/// Moves the server with the one label, called by both clients, to the other label. `more` holds further options of the ambient
/// client's load.
fn moves(from: &str, to: &str, more: &str) -> Option<Up> {
    let fill = |folder: &Path| {
        make_outbox(folder);
        let web = WEB.replace(SIDECAR, from);
        let clients = [
            client("beside", SIDECAR, ""),
            client("ambient", AMBIENT, more),
        ];
        fs::write(folder.join("move.yaml"), [web, clients.concat()].concat()).expect("written");
    };
    let (up, _) = start_with(fill, None, &["--dataplane", "mixed"])?;
    for (pod, has_sidecar) in [
        ("web", from == SIDECAR),
        ("beside", true),
        ("ambient", false),
    ] {
        assert_eq!(has_sidecar_process(&up, pod), has_sidecar, "{pod}");
    }
    begin(&up, &CLIENTS);
    let label = |label: &str| format!("app: web, {label}");
    up.edit("move.yaml", &label(from), &label(to));
    wait_until("the pod that was there is gone", || is_gone(&up, "web-0"));
    no_request_failed(&up, &CLIENTS);
    assert_eq!(has_sidecar_process(&up, "web"), to == SIDECAR);
    Some(up)
}

fn has_sidecar_process(up: &Up, pod: &str) -> bool {
    let its = format!("--workload move/{pod}");
    up.family().concat().contains(&its)
}

fn identity(client: &str) -> String {
    format!("spiffe://cluster.local/ns/move/sa/{client}")
}

/// The metrics of a proxy.
fn page(proxy: u32) -> String {
    let page = ask_inside(proxy, ([127, 0, 0, 1], 15020).into(), "/metrics");
    page.expect("its metrics").1
}

/// Both clients called by their identities, as the side that was called counts it.
fn told_of_both(page: &str, series: &str, more: &str) {
    for client in CLIENTS {
        let caller = format!("source_principal=\"{}\"", identity(client));
        let words = [
            &*caller,
            "reporter=\"destination\"",
            "connection_security_policy=\"mutual_tls\"",
            more,
        ];
        let is_told =
            |line: &str| line.starts_with(series) && words.iter().all(|word| line.contains(word));
        assert!(page.lines().any(is_told), "{client}: {page}");
    }
}

#[test]
fn a_workload_moves_from_its_sidecar_to_the_node_proxy_under_load_and_loses_no_request() {
    let Some(up) = moves(SIDECAR, AMBIENT, "") else {
        return;
    };
    let caller = format!("src.identity=\"{}\"", identity("ambient"));
    wait_until("the node proxy carried it by identity", || {
        up.log("node-proxy").lines().any(|line| {
            line.contains("connection complete")
                && line.contains("direction=\"inbound\"")
                && line.contains("dst.workload=\"web\"")
                && line.contains(&caller)
        })
    });
    if enters_namespaces() {
        // Connections of the sidecar's go on.
        let family = up.family();
        let node = family.iter().find(|line| line.contains("--role node"));
        let node = node.and_then(|line| line.split(' ').next()?.parse().ok());
        let page = page(node.expect("the node proxy"));
        let opened = "istio_tcp_connections_opened_total{";
        told_of_both(&page, opened, "destination_workload=\"web\"");
    }
    ends(up);
}

#[test]
fn a_workload_moves_back_from_the_node_proxy_to_a_sidecar_under_load_and_loses_no_request() {
    if !enters_namespaces() {
        return;
    }
    // A connection that a node proxy carries stays with its pod to its end, so this client makes one for each request.
    let Some(up) = moves(AMBIENT, SIDECAR, "--no-keepalive") else {
        return;
    };
    let mut all = sidecars(&up).into_iter();
    let found = all.find(|(pod, _)| pod.starts_with("move/web-"));
    let (_, sidecar) = found.expect("the new pod's sidecar");
    told_of_both(
        &page(sidecar),
        "istio_requests_total{",
        "response_code=\"200\"",
    );
    ends(up);
}

#[test]
fn a_pod_of_the_node_proxy_and_the_node_proxy_are_replaced_under_load_and_lose_no_request() {
    let fill = |folder: &Path| {
        make_outbox(folder);
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
        make_outbox(folder);
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
        lines.any(|line| line.contains("no longer served") && line.contains("pod=web-0"))
    });
    assert!(!runs(&up, "web-0"), "it is there yet");
    let ended = || {
        let log = log();
        let ended = log.lines().filter(|line| {
            line.contains("connection complete") && line.contains("direction=\"inbound\"")
        });
        ended.map(str::to_owned).collect::<Vec<_>>()
    };
    wait_until("it was called", || !ended().is_empty());
    let ended = ended();
    let cut = ended.iter().find(|line| line.contains("error=\"Stopped\""));
    assert_eq!(cut, None, "by its application, and not by a policy");
    ends(up);
}
