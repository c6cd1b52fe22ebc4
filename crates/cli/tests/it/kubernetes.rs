//! A real cluster with kubelets and containers: `voile install`, pods with sidecars, what they may and may not, and nothing left.

use std::path::Path;
use std::time::Duration;

use voile_testkit::cluster::{Cluster, gateway_api_definition, wait_for};

use crate::kubernetes_pages;

pub(crate) const VOILE: &str = env!("CARGO_BIN_EXE_voile");
/// Longest wait for anything; a machine that builds beside it is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: [&str; 6] = [
    "--set",
    "image.repository=localhost/voile",
    "--set",
    "image.tag=test",
    "--set",
    "image.pullPolicy=Never",
];

/// A service under STRICT mutual TLS, a caller and a Job inside the mesh, and a caller outside it.
const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
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
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}}
        securityContext: {runAsUser: 1000}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec:
  containers: [{name: app, image: "localhost/tools:1", imagePullPolicy: Never, securityContext: {runAsUser: 1000}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: shop}
spec:
  template:
    metadata: {labels: {app: once}}
    spec:
      restartPolicy: Never
      containers:
      - {name: app, image: "localhost/tools:1", imagePullPolicy: Never, command: [curl, -sSf, --retry, "20", --retry-all-errors, "http://web/"]}
---
apiVersion: v1
kind: Namespace
metadata: {name: outside}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: outside}
spec: {containers: [{name: app, image: "localhost/tools:1", imagePullPolicy: Never}]}
"#;

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

/// Runs a command of voile in the network of the control plane.
pub(crate) fn voile(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = cluster.control_plane_command(Path::new(VOILE));
    let output = command.args(arguments).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (told, talk) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {told}{talk}");
    told + &talk
}

/// Asks the service `web` from a client, and gives the status, or curl's error.
fn call(cluster: &Cluster, namespace: &str) -> Result<String, String> {
    get(cluster, namespace, "http://web.shop/")
}

/// Asks from a client, and gives the status, or curl's error.
fn get(cluster: &Cluster, namespace: &str, url: &str) -> Result<String, String> {
    let curl = [
        "curl",
        "-sS",
        "-m",
        "5",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        url,
    ];
    cluster.exec(namespace, "client", Some("app"), &curl)
}

fn until_ready(cluster: &Cluster, namespace: &str, what: &str, condition: &str) {
    let wanted = format!("--for=condition={condition}");
    let arguments = ["-n", namespace, "wait", what, &*wanted, "--timeout=1s"];
    wait_for(what, PATIENCE, || cluster.kubectl(&arguments));
}

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
    let definitions = [
        ("GatewayClass", "gatewayclasses", "Cluster"),
        ("Gateway", "gateways", "Namespaced"),
        ("HTTPRoute", "httproutes", "Namespaced"),
    ];
    for (kind, plural, scope) in definitions {
        let definition = gateway_api_definition(kind, plural, scope);
        cluster.apply(&definition).expect("a definition");
    }
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
        wait_for(url, PATIENCE, || match get(cluster, "outside", url) {
            Ok(status) if status == "200" => Ok(()),
            other => Err(format!("{other:?}")),
        });
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
    wait_for("a status", PATIENCE, || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Reconciled")].status}"#;
        let get = ["-n", "shop", "get", "peerauthentication", "default", "-o"];
        let found = cluster.kubectl(&[&get[..], &[path]].concat())?;
        (found == "True").then_some(()).ok_or(found)
    });
}

fn nothing_is_left(cluster: &Cluster) {
    for kind in [
        "crds",
        "gatewayclasses",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "clusterroles",
        "configmaps -A",
    ] {
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
    cluster.import_voile(Path::new(VOILE), "localhost/voile:test");
    voile(
        cluster,
        &[&["install", "--timeout", "90s"], &IMAGE[..]].concat(),
    );
    cluster.apply(SHOP).expect("the shop");
    for (namespace, what, condition) in [
        ("shop", "deployment/web", "Available"),
        ("shop", "pod/client", "Ready"),
        ("outside", "pod/client", "Ready"),
        // A Job ends beside its sidecar, which was there before the application.
        ("shop", "job/once", "Complete"),
    ] {
        until_ready(cluster, namespace, what, condition);
    }
    wait_for("a call inside the mesh", PATIENCE, || {
        match call(cluster, "shop") {
            Ok(status) if status == "200" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let refused = call(cluster, "outside").expect_err("no certificate");
    assert!(
        refused.contains("curl: (5"),
        "a closed connection: {refused}"
    );
    let metrics = ["curl", "-s", "http://127.0.0.1:15020/stats/prometheus"];
    let metrics = cluster
        .exec("shop", "client", Some("app"), &metrics)
        .expect("metrics");
    let principal = r#"destination_principal="spiffe://cluster.local/ns/shop/sa/default""#;
    assert!(metrics.contains(principal), "{metrics}");
    sidecars_have_no_privileges(cluster);
    resources_are_checked_and_have_statuses(cluster);
    kubernetes_pages::are_read(cluster);
    gateways_let_clients_in(cluster);
    // Without a control plane what is known goes on, and its pods come back.
    let delete = [
        "-n",
        "istio-system",
        "delete",
        "pod",
        "-l",
        "app=istiod",
        "--wait=false",
    ];
    cluster.kubectl(&delete).expect("deleted");
    for _ in 0..20 {
        assert_eq!(call(cluster, "shop").as_deref(), Ok("200"));
    }
    until_ready(cluster, "istio-system", "deployment/istiod", "Available");
    cluster
        .kubectl(&["delete", "namespace", "shop", "outside", "--wait=false"])
        .expect("deleted");
    voile(cluster, &["uninstall", "--purge-crds", "--yes"]);
    nothing_is_left(cluster);
}
