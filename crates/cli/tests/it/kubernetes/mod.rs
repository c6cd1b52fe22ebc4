//! A real cluster with kubelets and containers: `voile install`, pods with sidecars, what they may and may not, and nothing left.

mod ambient;
mod beside_istio;
mod caller;
mod capture;
mod examples;
mod guides;
pub(crate) mod kit;
mod objects;
mod outage;
mod pages;
mod rotation;
mod upgrade;
mod waypoint;

use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::kit::{
    PATIENCE, client, define_gateways, get, install, job, server_deployment, service,
    sidecar_metrics, until_answered, until_ready, until_refused, voile,
};

const CLIENT: (&str, &str) = ("shop", "client");
const STRANGER: (&str, &str) = ("outside", "client");
const WEB: &str = "http://web.shop/";

/// A service under STRICT mutual TLS, a caller and a Job inside the mesh, and a caller outside it.
fn shop() -> String {
    [
        service("shop", "{istio-injection: enabled}"),
        server_deployment("shop"),
        client("shop", "client", ", labels: {app: client}", ""),
        job("shop"),
        "---\n{apiVersion: v1, kind: Namespace, metadata: {name: outside}}\n".to_owned(),
        client("outside", "client", "", ""),
    ]
    .concat()
}

/// A gateway of Gateway API, and one of Istio's with a Deployment of its own, which a second of Gateway API uses, too.
const GATEWAYS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: shop, annotations: {networking.istio.io/service-type: ClusterIP}}
spec:
  gatewayClassName: voile
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: door, namespace: shop}
spec:
  parentRefs: [{name: door}]
  hostnames: [door-voile.shop]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: ingress, namespace: shop}
spec:
  selector: {matchLabels: {istio: ingress}}
  template:
    metadata:
      labels: {istio: ingress}
      annotations: {inject.istio.io/templates: gateway}
    spec: {containers: [{name: istio-proxy, image: auto}]}
---
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: shop}
spec:
  selector: {istio: ingress}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: http-second, port: 81, targetPort: 8081}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: second, namespace: shop}
spec:
  gatewayClassName: voile
  addresses: [{type: Hostname, value: ingress}]
  listeners: [{name: http, port: 81, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: second, namespace: shop}
spec:
  parentRefs: [{name: second}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: ingress, namespace: shop}
spec:
  selector: {istio: ingress}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [ingress.shop]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: ingress, namespace: shop}
spec:
  hosts: [ingress.shop]
  gateways: [ingress]
  http: [{route: [{destination: {host: web}}]}]
"#;

/// A sidecar has no capability and cannot become another user.
fn sidecars_have_no_privileges(cluster: &Cluster) {
    let path = r#"jsonpath={.spec.initContainers[?(@.name=="istio-proxy")].securityContext}"#;
    let context = cluster
        .kubectl(&["-n", "shop", "get", "pod", "client", "-o", path])
        .expect("a context");
    for part in [
        r#""drop":["ALL"]"#,
        r#""runAsUser":1337"#,
        r#""allowPrivilegeEscalation":false"#,
    ] {
        assert!(
            context.contains(part) && !context.contains(r#""add""#),
            "{context}"
        );
    }
}

/// Clients outside the mesh reach a service under STRICT mutual TLS through gateways. Voile makes the first one's Pods, and takes
/// them away with the Gateway.
fn gateways_let_clients_in(cluster: &Cluster) {
    define_gateways(cluster);
    wait_for("the definitions are served", PATIENCE, || {
        cluster.apply(GATEWAYS)
    });
    until_ready(cluster, "shop", "deployment/door-voile", "Available");
    until_ready(cluster, "shop", "deployment/ingress", "Available");
    for url in [
        "http://door-voile.shop/",
        "http://ingress.shop/",
        "http://ingress.shop:81/",
    ] {
        until_answered(cluster, STRANGER, url);
    }
    let gateway = "gateways.gateway.networking.k8s.io/door";
    let delete = ["-n", "shop", "delete", gateway];
    cluster.kubectl(&delete).expect("deleted");
    wait_for("the Gateway's objects are gone", PATIENCE, || {
        let kinds = "deployment,service,serviceaccount";
        let left = cluster.kubectl(&["-n", "shop", "get", kinds, "-o", "name"])?;
        (!left.contains("door-voile")).then_some(()).ok_or(left)
    });
}

/// A resource that could never work is refused with its cure; the status of one that works says so.
fn resources_are_checked_and_have_statuses(cluster: &Cluster) {
    let mut count = 0;
    wait_for("a refusal", PATIENCE, || {
        count += 1;
        // What was admitted once is not sent again.
        let broken = format!(
            "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: broken-{count}, namespace: shop}}, \
             spec: {{hosts: [web], http: [{{route: [{{destination: {{hots: web}}}}]}}]}}}}"
        );
        match cluster.apply(&broken) {
            Err(refused) if refused.contains("did you mean `host`") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    until_status(cluster, "peerauthentication/default", "True");
}

/// Without its webhooks no pod starts without a sidecar, and resources are admitted unchecked: their status says it later.
fn what_is_known_goes_on_without_a_control_plane(cluster: &Cluster) {
    let scale = |replicas: &str| {
        let deployment = ["-n", "istio-system", "scale", "deployment/istiod", replicas];
        cluster.kubectl(&deployment).expect("scaled");
    };
    scale("--replicas=0");
    wait_for("the control planes are gone", PATIENCE, || {
        let pods = ["-n", "istio-system", "get", "pods", "-l", "app=istiod"];
        let left = cluster.kubectl(&[&pods[..], &["-o", "name"]].concat())?;
        left.is_empty().then_some(()).ok_or(left)
    });
    for _ in 0..20 {
        assert_eq!(get(cluster, CLIENT, WEB).as_deref(), Ok("200"));
    }
    let late = cluster.apply(&client("shop", "late", "", ""));
    let refused = late.expect_err("it would have no sidecar");
    assert!(refused.contains("failed calling webhook"), "{refused}");
    let unchecked = "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: unchecked, namespace: shop}, \
                     spec: {hosts: [web], http: [{route: [{destination: {hots: web}}]}]}}";
    cluster.apply(unchecked).expect("admitted");
    scale("--replicas=2");
    until_ready(cluster, "istio-system", "deployment/istiod", "Available");
    wait_for("the pod is admitted", PATIENCE, || {
        cluster.apply(&client("shop", "late", "", ""))
    });
    until_ready(cluster, "shop", "pod/late", "Ready");
    until_answered(cluster, ("shop", "late"), WEB);
    until_status(cluster, "virtualservice/unchecked", "False");
}

/// Waits until the condition `Reconciled` of an object of the shop has this status.
fn until_status(cluster: &Cluster, what: &str, status: &str) {
    wait_for(&format!("the status of {what}"), PATIENCE, || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Reconciled")].status}"#;
        let found = cluster.kubectl(&["-n", "shop", "get", what, "-o", path])?;
        (found == status).then_some(()).ok_or(found)
    });
}

/// Nothing of the mesh is left, among objects of these kinds either.
pub(crate) fn nothing_is_left(cluster: &Cluster, more: &[&str]) {
    let kinds = [
        "crds",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "clusterroles",
        "configmaps -A",
    ];
    for kind in kinds.iter().chain(more) {
        let left = cluster.kubectl(
            &[
                &["get", "-o", "name"],
                &kind.split(' ').collect::<Vec<_>>()[..],
            ]
            .concat(),
        );
        let left = left.expect("a list");
        let ours = |line: &&str| ["istio", "voile"].iter().any(|word| line.contains(word));
        assert_eq!(left.lines().find(ours), None, "{kind}");
    }
}

#[test]
fn one_command_brings_the_mesh_to_a_cluster_and_one_takes_it_away() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    install(cluster, &[]);
    cluster.apply(&shop()).expect("the shop");
    for (namespace, what, condition) in [
        ("shop", "deployment/web", "Available"),
        ("shop", "pod/client", "Ready"),
        ("outside", "pod/client", "Ready"),
        // A Job ends beside its sidecar, which was there before the application.
        ("shop", "job/once", "Complete"),
    ] {
        until_ready(cluster, namespace, what, condition);
    }
    until_answered(cluster, CLIENT, WEB);
    until_refused(cluster, STRANGER, WEB);
    let metrics = sidecar_metrics(cluster, CLIENT);
    let principal = r#"destination_principal="spiffe://cluster.local/ns/shop/sa/server""#;
    assert!(metrics.contains(principal), "{metrics}");
    sidecars_have_no_privileges(cluster);
    resources_are_checked_and_have_statuses(cluster);
    pages::are_read(cluster);
    pages::a_bug_report_is_written(cluster);
    gateways_let_clients_in(cluster);
    what_is_known_goes_on_without_a_control_plane(cluster);
    cluster
        .kubectl(&["delete", "namespace", "shop", "outside", "--wait=false"])
        .expect("deleted");
    voile(cluster, &["uninstall", "--purge-crds", "--yes"]);
    nothing_is_left(cluster, &["gatewayclasses"]);
}
