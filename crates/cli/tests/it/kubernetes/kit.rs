//! What the tests of real clusters share: the program and its image, manifests of a service and its callers, calls, and waits.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use voile_identity::AuthorityFiles;
use voile_testkit::cluster::{Cluster, gateway_api_definition, wait_for};

pub(crate) const VOILE: &str = env!("CARGO_BIN_EXE_voile");
/// Longest wait for anything; a machine that builds beside it is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// The image that a test imports.
pub(crate) const IMAGE: &str = "localhost/voile:test";
/// Values of the chart for this image.
pub(crate) const IMAGE_VALUES: &str =
    "image.repository=localhost/voile,image.tag=test,image.pullPolicy=Never";
/// What a Pod of the level `restricted` says.
const POD_SECURITY: &str =
    "{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}";
const CONTAINER_SECURITY: &str = "{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}";

/// A container of a Pod, without its arguments, at the indentation of a list below `spec`.
fn container(name: &str, image: &str) -> String {
    format!(
        "  - name: {name}
    image: {image}
    imagePullPolicy: Never
    securityContext: {CONTAINER_SECURITY}
"
    )
}

fn indented(text: &str, by: usize) -> String {
    let indent = " ".repeat(by);
    text.lines()
        .map(|line| format!("{indent}{line}\n"))
        .collect()
}

/// A namespace with these labels (`{…}`), under STRICT mutual TLS, and its service `web`.
pub(crate) fn service(namespace: &str, labels: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {labels}}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: default, namespace: {namespace}}}
spec: {{mtls: {{mode: STRICT}}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: server, namespace: {namespace}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {namespace}}}
spec: {{selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
"
    )
}

fn server_spec() -> String {
    let container = container("app", IMAGE);
    format!(
        "  serviceAccountName: server
  securityContext: {POD_SECURITY}
  containers:
{container}    args: [echo, --listen, \"0.0.0.0:8080\"]
    readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}
    lifecycle: {{preStop: {{sleep: {{seconds: 2}}}}}}
"
    )
}

/// Two Pods of the service.
pub(crate) fn server_deployment(namespace: &str) -> String {
    let spec = indented(&server_spec(), 4);
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: {namespace}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
{spec}"
    )
}

/// One Pod of the service, on a node.
pub(crate) fn server_pod(namespace: &str, node: &str) -> String {
    let spec = server_spec();
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: {namespace}, labels: {{app: web}}}}
spec:
  nodeName: {node}
{spec}"
    )
}

/// A Pod from which a test calls, with further fields of its metadata (`, labels: …`) and its spec.
pub(crate) fn client(namespace: &str, name: &str, metadata: &str, spec: &str) -> String {
    let container = container("app", "localhost/tools:1");
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}{metadata}}}
spec:
  securityContext: {POD_SECURITY}
{spec}  containers:
{container}"
    )
}

/// A container that calls the service and ends.
pub(crate) fn caller(name: &str) -> String {
    let container = container(name, "localhost/tools:1");
    format!(
        "{container}    command: [curl, -sSf, --retry, \"30\", --retry-all-errors, \"http://web/\"]\n"
    )
}

/// A Job that calls the service once.
pub(crate) fn job(namespace: &str) -> String {
    let caller = indented(&caller("app"), 4);
    format!(
        "---
apiVersion: batch/v1
kind: Job
metadata: {{name: once, namespace: {namespace}}}
spec:
  template:
    spec:
      restartPolicy: Never
      securityContext: {POD_SECURITY}
      containers:
{caller}"
    )
}

/// Installs the mesh with the image of this program, and these arguments.
pub(crate) fn install(cluster: &Cluster, arguments: &[&str]) {
    cluster.import_voile(Path::new(VOILE), IMAGE);
    let install = ["install", "--timeout", "90s", "--set", IMAGE_VALUES];
    voile(cluster, &[&install[..], arguments].concat());
}

/// Gives an image another name on every node.
pub(crate) fn tag_image(cluster: &Cluster, nodes: usize, image: &str, name: &str) {
    for node in 1..=nodes {
        let mut tag = cluster.node_command(node, "ctr");
        let tag = tag.args(["-n", "k8s.io", "images", "tag", image, name]);
        let tagged = tag.output().expect("it runs");
        assert!(tagged.status.success(), "{tagged:?}");
    }
}

/// Writes the Secret `cacerts`, the authority of the mesh.
pub(crate) fn write_authority(cluster: &Cluster, files: &AuthorityFiles) {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "cacerts", "namespace": "istio-system"},
        "data": {
            "ca-cert.pem": STANDARD.encode(&files.certificate),
            "ca-key.pem": STANDARD.encode(&files.key),
            "root-cert.pem": STANDARD.encode(&files.roots),
            "cert-chain.pem": "",
        },
    });
    cluster.apply(&secret.to_string()).expect("a secret");
}

/// Gateway API's definitions of Gateways and HTTPRoutes.
pub(crate) fn define_gateways(cluster: &Cluster) {
    for (kind, plural, scope) in [
        ("GatewayClass", "gatewayclasses", "Cluster"),
        ("Gateway", "gateways", "Namespaced"),
        ("HTTPRoute", "httproutes", "Namespaced"),
    ] {
        let definition = gateway_api_definition(kind, plural, scope);
        cluster.apply(&definition).expect("a definition");
    }
}

/// Runs a command of voile in the network of the control plane.
pub(crate) fn run(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = cluster.control_plane_command(Path::new(VOILE));
    command.args(arguments).output().expect("it runs")
}

/// The same for one that succeeds. Returns what it printed.
pub(crate) fn voile(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = run(cluster, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (told, talk) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {told}{talk}");
    told + &talk
}

/// Calls a URL from the container `app` of a Pod (namespace, name). Returns the status, or curl's error.
pub(crate) fn get(cluster: &Cluster, pod: (&str, &str), url: &str) -> Result<String, String> {
    let curl = "curl -sS -m 5 -o /dev/null -w %{http_code}";
    let curl: Vec<&str> = curl.split(' ').chain([url]).collect();
    cluster.exec(pod.0, pod.1, Some("app"), &curl)
}

pub(crate) fn until_answered(cluster: &Cluster, pod: (&str, &str), url: &str) {
    wait_for(&format!("{url} for {pod:?}"), PATIENCE, || {
        match get(cluster, pod, url) {
            Ok(status) if status == "200" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// Waits until the server closes the connection, because the caller has no certificate.
pub(crate) fn until_refused(cluster: &Cluster, pod: (&str, &str), url: &str) {
    wait_for(&format!("a refusal of {pod:?}"), PATIENCE, || {
        match get(cluster, pod, url) {
            Err(error) if error.contains("curl: (5") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// Waits until an object (`KIND/NAME`) has a condition.
pub(crate) fn until_ready(cluster: &Cluster, namespace: &str, what: &str, condition: &str) {
    let wanted = format!("--for=condition={condition}");
    let arguments = ["-n", namespace, "wait", what, &*wanted, "--timeout=1s"];
    wait_for(what, PATIENCE, || cluster.kubectl(&arguments));
}

/// The metrics of the sidecar of a Pod.
pub(crate) fn sidecar_metrics(cluster: &Cluster, pod: (&str, &str)) -> String {
    let page = ["curl", "-s", "http://127.0.0.1:15020/stats/prometheus"];
    let page = cluster.exec(pod.0, pod.1, Some("app"), &page);
    page.expect("metrics")
}
