//! A waypoint on a real cluster, on the cluster of the test of ambient mode: it comes and goes under load, routes and denies
//! requests, and the objects tell it.

use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::caller::ClusterCaller;
use crate::kubernetes::kit::{PATIENCE, define_gateways, until_ready};

/// Times that the waypoint comes and goes under load.
const ROUNDS: usize = 3;

/// The waypoint; a route and a policy that only it applies.
fn gate(namespace: &str) -> String {
    format!(
        r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: gate, namespace: {namespace}}}
spec:
  gatewayClassName: voile-waypoint
  listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web, namespace: {namespace}}}
spec:
  parentRefs: [{{group: "", kind: Service, name: web}}]
  rules:
  - filters: [{{type: ResponseHeaderModifier, responseHeaderModifier: {{add: [{{name: x-gate, value: passed}}]}}}}]
    backendRefs: [{{name: web, port: 80}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: web, namespace: {namespace}}}
spec:
  targetRefs: [{{group: "", kind: Service, name: web}}]
  action: DENY
  rules:
  - from: [{{source: {{principals: [cluster.local/ns/{namespace}/sa/default]}}}}]
    to: [{{operation: {{paths: [/secret]}}}}]
"#
    )
}

/// Status and header `x-gate` of the answer.
fn answer(cluster: &Cluster, pod: (&str, &str), url: &str) -> Result<String, String> {
    let curl = ["curl", "-sS", "-m", "5", "-o", "/dev/null", "-w"];
    let curl = [&curl[..], &["%{http_code} %header{x-gate}", url]].concat();
    cluster.exec(pod.0, pod.1, Some("app"), &curl)
}

fn until_answer(cluster: &Cluster, pod: (&str, &str), url: &str, wanted: &str) {
    wait_for(&format!("{wanted:?} of {url}"), PATIENCE, || {
        match answer(cluster, pod, url) {
            Ok(found) if found.trim() == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// Waits until a condition of an object has this status, reason and message; none of them without the condition.
fn until_condition(cluster: &Cluster, namespace: &str, object: &str, kind: &str, wanted: &str) {
    let path = format!(
        r#"jsonpath={{range .status.conditions[?(@.type=="{kind}")]}}{{.status}} {{.reason}}: {{.message}}{{end}}"#
    );
    wait_for(&format!("{kind} of {object}"), PATIENCE, || {
        let found = cluster.kubectl(&["-n", namespace, "get", object, "-o", &path])?;
        (found == wanted).then_some(()).ok_or(found)
    });
}

/// Brings a waypoint before the service `web` of an ambient namespace, and takes it away again, while another pod calls it.
pub(crate) fn applies_routes_and_policies_and_goes(cluster: &Cluster, client: (&str, &str)) {
    let namespace: &'static str = crate::kubernetes::ambient::NAMESPACE;
    let (gateway, policy) = (
        "gateways.gateway.networking.k8s.io/gate",
        "authorizationpolicy/web",
    );
    let (web, secret) = ("http://web/", "http://web/secret");
    define_gateways(cluster);
    wait_for("the definitions are served", PATIENCE, || {
        cluster.apply(&gate(namespace))
    });
    until_ready(cluster, namespace, gateway, "Programmed");
    // Nobody is sent to it yet.
    let unbound =
        format!("False AncestorNotBound: Service {namespace}/web is not bound to a waypoint");
    until_condition(cluster, namespace, policy, "WaypointAccepted", &unbound);
    until_answer(cluster, client, secret, "200");
    let caller = ClusterCaller::start(cluster, namespace, "walker", ", --no-keepalive");
    let label = |label: &str| {
        let arguments = ["label", "namespace", namespace, label];
        cluster.kubectl(&arguments).expect("labelled");
    };
    let (service, binding) = ("service/web", "istio.io/WaypointBound");
    let bound =
        format!("True WaypointAccepted: Successfully attached to waypoint {namespace}/gate");
    let accepted = format!("True Accepted: bound to {namespace}/gate");
    for _ in 0..ROUNDS {
        label("istio.io/use-waypoint=gate");
        until_answer(cluster, client, secret, "403");
        until_answer(cluster, client, web, "200 passed");
        until_condition(cluster, namespace, service, binding, &bound);
        until_condition(cluster, namespace, policy, "WaypointAccepted", &accepted);
        counted_by_the_waypoint(cluster, namespace);
        label("istio.io/use-waypoint-");
        until_answer(cluster, client, secret, "200");
        until_answer(cluster, client, web, "200");
        until_condition(cluster, namespace, service, binding, "");
        until_condition(cluster, namespace, policy, "WaypointAccepted", &unbound);
    }
    caller.no_request_failed();
    let delete = ["-n", namespace, "delete", gateway];
    cluster.kubectl(&delete).expect("deleted");
    wait_for("the Gateway's objects are gone", PATIENCE, || {
        let kinds = "deployment,service,serviceaccount";
        let left = cluster.kubectl(&["-n", namespace, "get", kinds, "-o", "name"])?;
        (!left.contains("/gate")).then_some(()).ok_or(left)
    });
}

/// The waypoint knows the callers by their own identities, and counts the denied request.
fn counted_by_the_waypoint(cluster: &Cluster, namespace: &str) {
    let label = "gateway.networking.k8s.io/gateway-name=gate";
    let name = "jsonpath={.items[0].metadata.name}";
    let pod = cluster.kubectl(&["-n", namespace, "get", "pod", "-l", label, "-o", name]);
    let pod = pod.expect("a pod");
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:15020/proxy/stats/prometheus");
    let metrics = cluster.kubectl(&["get", "--raw", &path]).expect("metrics");
    let principal =
        format!(r#"source_principal="spiffe://cluster.local/ns/{namespace}/sa/default""#);
    let denied = |line: &&str| {
        let parts = [
            r#"reporter="waypoint""#,
            r#"response_code="403""#,
            &principal,
        ];
        line.starts_with("istio_requests_total") && parts.iter().all(|part| line.contains(part))
    };
    assert!(metrics.lines().any(|line| denied(&line)), "{metrics}");
}
