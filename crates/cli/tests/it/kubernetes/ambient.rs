//! Ambient mode on a real cluster: a running pod joins by a label and leaves by its removal, new pods start enrolled, a waypoint
//! comes and goes, and the traffic survives the end of a node agent.

use std::time::{Duration, Instant};

use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::caller::ClusterCaller;
use crate::kubernetes::capture;
use crate::kubernetes::kit::{
    PATIENCE, client, get, install, server_pod, service, until_answered, until_ready,
    until_refused, voile,
};
use crate::kubernetes::waypoint;

pub(crate) const NAMESPACE: &str = "orchard";
const REDIRECTION: &str = r"jsonpath={.metadata.annotations.ambient\.istio\.io/redirection}";

const WEB: &str = "http://web/";
const CLIENT: (&str, &str) = (NAMESPACE, "client");
const STRANGER: (&str, &str) = (NAMESPACE, "stranger");
const NEWCOMER: (&str, &str) = (NAMESPACE, "newcomer");

/// A caller on the other node than the server.
fn caller((namespace, name): (&str, &str), metadata: &str) -> String {
    client(namespace, name, metadata, "  nodeName: node-2\n")
}

/// A server on one node, a client on the other, a client outside the mesh, and STRICT.
fn orchard() -> String {
    [
        service(NAMESPACE, "{}"),
        server_pod(NAMESPACE, "node-1"),
        caller(CLIENT, ""),
        caller(STRANGER, ", labels: {istio.io/dataplane-mode: none}"),
    ]
    .concat()
}

fn until_record(cluster: &Cluster, pod: &str, value: &str) {
    wait_for(&format!("the record of {pod}"), PATIENCE, || {
        let found = cluster.kubectl(&["-n", NAMESPACE, "get", "pod", pod, "-o", REDIRECTION])?;
        match found == value {
            true => Ok(()),
            false => Err(format!("{found:?}")),
        }
    });
}

/// The name of the pod of the node agent on a node.
fn node_pod(cluster: &Cluster, node: &str) -> String {
    let on_node = format!("spec.nodeName={node}");
    let arguments = [
        "-n",
        "istio-system",
        "get",
        "pod",
        "-l",
        "app=voile-node",
        "--field-selector",
        &on_node,
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ];
    cluster.kubectl(&arguments).expect("a pod")
}

/// Metrics of the node proxy of a node.
fn metrics(cluster: &Cluster, node: &str) -> String {
    let pod = node_pod(cluster, node);
    let path = format!("/api/v1/namespaces/istio-system/pods/{pod}:15020/proxy/stats/prometheus");
    cluster.kubectl(&["get", "--raw", &path]).expect("metrics")
}

/// Times from a pod's label to its record, as kubectl shows it.
fn enrolment_times(cluster: &Cluster) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..10 {
        let label = |value| {
            let arguments = [
                "-n",
                NAMESPACE,
                "label",
                "pod",
                "client",
                "--overwrite",
                value,
            ];
            cluster.kubectl(&arguments).expect("labelled");
        };
        label("istio.io/dataplane-mode=none");
        until_record(cluster, "client", "");
        let started = Instant::now();
        label("istio.io/dataplane-mode=ambient");
        until_record(cluster, "client", "enabled");
        times.push(started.elapsed());
    }
    times
}

/// The plugin's configuration on a node.
fn is_chained(cluster: &Cluster, node: usize) -> bool {
    let mut command = cluster.node_command(node, "cat");
    let output = command.arg("/etc/cni/net.d/10-pods.conflist").output();
    String::from_utf8_lossy(&output.expect("it runs").stdout).contains("voile-cni")
}

#[test]
fn a_label_brings_running_pods_into_the_mesh_and_its_removal_takes_them_out() {
    // A cluster of its own: another test installs the mesh in the shared one.
    let Some(cluster) = &Cluster::start(2) else {
        return;
    };
    install(
        cluster,
        &["--set", "ambient.enabled=true,pilot.cni.enabled=true"],
    );
    cluster.apply(&orchard()).expect("the orchard");
    for pod in ["pod/web", "pod/client", "pod/stranger"] {
        until_ready(cluster, NAMESPACE, pod, "Ready");
    }
    // Nobody is in the mesh: STRICT holds for nobody.
    until_answered(cluster, CLIENT, WEB);
    until_answered(cluster, STRANGER, WEB);
    let label = |value: &str| {
        let arguments = ["label", "namespace", NAMESPACE, value];
        cluster.kubectl(&arguments).expect("labelled");
    };
    label("istio.io/dataplane-mode=ambient");
    until_record(cluster, "web", "enabled");
    until_record(cluster, "client", "enabled");
    until_refused(cluster, STRANGER, WEB);
    until_answered(cluster, CLIENT, WEB);
    let tunnels = metrics(cluster, "node-1");
    for part in [
        r#"source_principal="spiffe://cluster.local/ns/orchard/sa/default""#,
        r#"destination_principal="spiffe://cluster.local/ns/orchard/sa/server""#,
        r#"connection_security_policy="mutual_tls""#,
    ] {
        assert!(tunnels.contains(part), "{part}: {tunnels}");
    }
    // The kubelet's probes go past the node proxy.
    until_ready(cluster, NAMESPACE, "pod/web", "Ready");
    cluster.apply(&caller(NEWCOMER, "")).expect("a pod");
    until_ready(cluster, NAMESPACE, "pod/newcomer", "Ready");
    until_record(cluster, "newcomer", "enabled");
    until_answered(cluster, NEWCOMER, WEB);
    let times = enrolment_times(cluster);
    println!(
        "enrolment of a running pod, from before kubectl label to the record as kubectl shows it: {times:?}"
    );
    waypoint::applies_routes_and_policies_and_goes(cluster, NEWCOMER);
    traffic_survives_an_agent(cluster);
    an_update_cuts_no_connection(cluster);
    capture::is_by_the_plugin(cluster, (NAMESPACE, "stranger"));
    label("istio.io/dataplane-mode-");
    for pod in ["web", "newcomer"] {
        until_record(cluster, pod, "");
    }
    until_answered(cluster, STRANGER, WEB);
    uninstall(cluster);
}

/// Kills the agent and the node proxy of the server's node.
fn traffic_survives_an_agent(cluster: &Cluster) {
    let arguments = [
        "-n",
        NAMESPACE,
        "label",
        "pod",
        "client",
        "istio.io/dataplane-mode-",
    ];
    cluster.kubectl(&arguments).expect("labelled");
    until_answered(cluster, CLIENT, WEB);
    let kill = |what: &str| {
        let mut command = cluster.node_command(1, "pkill");
        let status = command.args(["-KILL", "-f", what]).status();
        assert!(status.expect("it runs").success(), "{what}");
    };
    kill("voile node-agent");
    for _ in 0..5 {
        assert_eq!(get(cluster, CLIENT, WEB).as_deref(), Ok("200"));
    }
    kill("voile proxy --role=node");
    until_answered(cluster, CLIENT, WEB);
    until_refused(cluster, STRANGER, WEB);
}

/// Restarts the DaemonSet under load. A request that is sent before it is answered after it.
fn an_update_cuts_no_connection(cluster: &Cluster) {
    let caller = ClusterCaller::start(cluster, NAMESPACE, "caller", ", --no-keepalive");
    let slow = "curl -sS -o /dev/null -w %{http_code} http://web/?delay=30s";
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let answer = cluster.exec(NAMESPACE, "client", None, &["sh", "-c", slow]);
            (answer, Instant::now())
        });
        wait_for("the slow request", PATIENCE, || {
            let processes = cluster.exec(NAMESPACE, "client", None, &["ps"])?;
            let found = processes.contains("delay=30s");
            found.then_some(()).ok_or(processes)
        });
        let before = [node_pod(cluster, "node-1"), node_pod(cluster, "node-2")];
        let restart = [
            "-n",
            "istio-system",
            "rollout",
            "restart",
            "daemonset/voile-node",
        ];
        cluster.kubectl(&restart).expect("restarted");
        wait_for("the pods that follow", PATIENCE, || {
            successors(cluster, &before)
        });
        let updated = Instant::now();
        let (answer, answered) = asking.join().expect("no panic");
        assert_eq!(answer.as_deref(), Ok("200"));
        assert!(
            answered > updated,
            "the update took longer than the request"
        );
    });
    until_refused(cluster, STRANGER, WEB);
    caller.no_request_failed();
}

/// Each node has a pod of the DaemonSet that is ready, and the one before it ends.
fn successors(cluster: &Cluster, before: &[String]) -> Result<(), String> {
    let path = r#"jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status} {.metadata.deletionTimestamp}{"\n"}"#;
    let get = [
        "-n",
        "istio-system",
        "get",
        "pods",
        "-l",
        "app=voile-node",
        "-o",
        path,
    ];
    let found = cluster.kubectl(&get)?;
    let pods = found
        .lines()
        .map(|line| line.trim().split(' ').collect::<Vec<_>>());
    let (old, new): (Vec<_>, Vec<_>) =
        pods.partition(|pod| before.iter().any(|name| name == pod[0]));
    let ends = old.iter().all(|pod| pod.len() == 3);
    let ready = new.iter().filter(|pod| pod[1..] == ["True"]).count();
    (ends && ready == before.len()).then_some(()).ok_or(found)
}

/// Nothing of the mesh is left on the nodes.
fn uninstall(cluster: &Cluster) {
    assert!(is_chained(cluster, 1) && is_chained(cluster, 2));
    voile(cluster, &["uninstall", "--purge-crds", "--yes"]);
    for node in [1, 2] {
        wait_for(
            "the node without the plugin",
            PATIENCE,
            || match is_chained(cluster, node) {
                true => Err("it is chained".to_owned()),
                false => Ok(()),
            },
        );
    }
    let arguments = ["delete", "namespace", NAMESPACE, "--wait=false"];
    cluster.kubectl(&arguments).expect("deleted");
}
