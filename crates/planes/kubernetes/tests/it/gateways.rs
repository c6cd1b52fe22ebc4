//! Gateways become Deployments. Objects as data: each file `NAME.yaml` in `tests/it/gateways` has resources, and `NAME.out.yaml` has
//! the objects of each Gateway or why it has none. `VOILE_BLESS=1 cargo test -p voile-kubernetes gateways` writes the results anew.
//! Then the same on a real API server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use voile_kubernetes::gateways::gateway_objects;
use voile_kubernetes::inject::InjectorOptions;
use voile_kubernetes::{DEFAULT_REVISION, RevisionNames};
use voile_model::SourceFile;
use voile_model::mesh::MeshConfig;
use voile_testkit::cluster::{ApiServer, gateway_api_definition, wait_for};

use crate::harness::{PATIENCE, Replica, cluster};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gateways")
}

/// The file of a resource, as the cluster's source names it, with what an API server adds.
fn file(mut resource: Value) -> Arc<SourceFile> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&resource["kind"]).to_lowercase();
    let plural = kind
        .strip_suffix("ss")
        .map_or(format!("{kind}s"), |kind| format!("{kind}sses"));
    let version = text(&resource["apiVersion"]);
    let group = version
        .split_once('/')
        .map(|(group, _)| format!(".{group}"));
    let metadata = &mut resource["metadata"];
    metadata["uid"] = "00000000-0000-0000-0000-000000000001".into();
    let namespace = metadata["namespace"].as_str().map(|one| format!("{one}/"));
    let name = format!(
        "{plural}{}/{}{}",
        group.unwrap_or_default(),
        namespace.unwrap_or_default(),
        text(&metadata["name"])
    );
    Arc::new(SourceFile::new(name, resource.to_string()))
}

fn outcome(resources: Vec<Value>) -> Value {
    let files: Vec<_> = resources.into_iter().map(file).collect();
    let made = gateway_objects(
        &files,
        &RevisionNames::new(DEFAULT_REVISION, [], None),
        &InjectorOptions::default(),
        &MeshConfig::default(),
    );
    let gateways = made.into_iter().map(|(name, made)| {
        let made = match made {
            Ok(objects) => json!(objects),
            Err(error) => json!({"refused": error.to_string()}),
        };
        (name.to_string(), made)
    });
    json!(gateways.collect::<BTreeMap<_, _>>())
}

#[test]
fn gateways_get_the_objects_that_the_files_say() {
    let all = std::fs::read_dir(folder()).expect("the cases");
    let paths = all.map(|entry| entry.expect("a case").path());
    let is_case = |path: &PathBuf| !path.to_string_lossy().ends_with(".out.yaml");
    let mut differences = Vec::new();
    for case in paths.filter(is_case) {
        let text = std::fs::read_to_string(&case).expect("the case");
        let found = outcome(serde_saphyr::from_multiple(&text).expect("YAML"));
        let result = case.with_extension("out.yaml");
        if std::env::var_os("VOILE_BLESS").is_some() {
            let text = serde_saphyr::to_string(&found).expect("YAML");
            std::fs::write(&result, text).expect("written");
            continue;
        }
        let expected = std::fs::read_to_string(&result).unwrap_or_default();
        let expected: Value = serde_saphyr::from_str(&expected).unwrap_or_default();
        if found != expected {
            let found = serde_saphyr::to_string(&found).expect("YAML");
            differences.push(format!("{}:\n{found}", case.display()));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn definitions() -> String {
    gateway_api_definition("GatewayClass", "gatewayclasses", "Cluster")
        + &gateway_api_definition("Gateway", "gateways", "Namespaced")
}

fn gateway(listeners: &Value, infrastructure: &Value) -> String {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "door", "namespace": "edge"},
        "spec": {
            "gatewayClassName": "voile",
            "listeners": listeners,
            "infrastructure": infrastructure,
        },
    })
    .to_string()
}

/// Waits until a field of an object in the namespace `edge` has a value; empty is an object that is not there.
fn until(server: &ApiServer, object: &str, path: &str, wanted: &str) {
    let path = format!("jsonpath={path}");
    let arguments = [
        "-n",
        "edge",
        "get",
        object,
        "--ignore-not-found",
        "-o",
        &*path,
    ];
    wait_for(object, PATIENCE, || {
        let found = server.kubectl(&arguments)?;
        (found == wanted).then_some(()).ok_or(found)
    });
}

/// A cluster with the namespace `edge`, and a replica that deploys.
fn deploying() -> Option<(ApiServer, Replica)> {
    let server = cluster()?;
    kubectl(&server, "create namespace edge");
    let replica = Replica::deploying(&server, "one");
    Some((server, replica))
}

fn kubectl(server: &ApiServer, arguments: &str) {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    server.kubectl(&arguments).expect("done");
}

const PORTS: &str = "{.spec.ports[*].targetPort}";

#[test]
fn classes_are_made_when_gateway_api_comes_and_have_a_status() {
    let Some((server, replica)) = deploying() else {
        return;
    };
    server.apply(&definitions()).expect("definitions");
    let class = "gatewayclass/voile";
    let is = "{.spec.controllerName} {.status.conditions[*].reason} {.status.conditions[0].observedGeneration}";
    let wanted = "voile.dev/gateway-controller Accepted SupportedVersion 1";
    until(&server, class, is, wanted);
    let reason = "{.status.conditions[0].reason}";
    until(&server, "gatewayclass/voile-waypoint", reason, "Accepted");
    let patch = r#"patch gatewayclass/voile --type=merge -p {"spec":{"description":"another"}}"#;
    kubectl(&server, patch);
    let generation = "{.status.conditions[0].observedGeneration}";
    until(&server, class, generation, "2");
    kubectl(&server, "delete gatewayclass voile");
    until(&server, class, is, wanted);
    replica.stop();
}

#[test]
fn a_gateway_has_its_objects_whatever_others_do() {
    let Some((server, replica)) = deploying() else {
        return;
    };
    server.apply(&definitions()).expect("definitions");
    let http = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let two = json!([http[0], {"name": "web", "port": 8000, "protocol": "HTTP"}]);
    wait_for("the definitions are served", PATIENCE, || {
        server.apply(&gateway(&http, &json!({})))
    });
    let (deployment, service) = ("deployment/door-voile", "service/door-voile");
    until(&server, service, PORTS, "15021 8080");
    let owner = "{.metadata.ownerReferences[0].name}";
    until(&server, deployment, owner, "door");
    let name = "{.metadata.name}";
    until(&server, "serviceaccount/door-voile", name, "door-voile");
    // Another listener is another port.
    server.apply(&gateway(&two, &json!({}))).expect("changed");
    until(&server, service, PORTS, "15021 8080 8000");
    // What others change or remove comes back.
    let patch = r#"{"spec":{"template":{"spec":{"serviceAccountName":"other"}}}}"#;
    kubectl(&server, &format!("-n edge patch {deployment} -p {patch}"));
    let account = "{.spec.template.spec.serviceAccountName}";
    until(&server, deployment, account, "door-voile");
    // It does so every two seconds at most, however often they change it.
    let generation = || {
        let path = "jsonpath={.metadata.generation}";
        let text = server.kubectl(&["-n", "edge", "get", deployment, "-o", path]);
        text.expect("a generation")
            .parse::<u64>()
            .expect("a number")
    };
    let (before, begun) = (generation(), Instant::now());
    for _ in 0..15 {
        kubectl(&server, &format!("-n edge patch {deployment} -p {patch}"));
    }
    // Each write of ours may be followed by one of theirs.
    let writes = generation() - before;
    let bound = 2 * (begun.elapsed().as_secs() / 2 + 1) + 1;
    assert!(writes <= bound, "{writes} writes, {bound} expected");
    until(&server, deployment, account, "door-voile");
    kubectl(&server, &format!("-n edge delete {service}"));
    until(&server, service, PORTS, "15021 8080 8000");
    // An object of others stays as it is.
    let foreign = "apiVersion: v1\nkind: Service\nmetadata: {name: gate-voile, namespace: edge}\nspec: {ports: [{port: 1}]}\n";
    server.apply(foreign).expect("a Service");
    let second = gateway(&http, &json!({})).replace("\"door\"", "\"gate\"");
    server.apply(&second).expect("a Gateway");
    until(&server, "deployment/gate-voile", name, "gate-voile");
    until(&server, "service/gate-voile", "{.spec.ports[*].port}", "1");
    replica.stop();
}

#[test]
fn parameters_of_a_gateway_come_and_go() {
    let Some((server, replica)) = deploying() else {
        return;
    };
    server.apply(&definitions()).expect("definitions");
    let parameters = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tuned, namespace: edge}\n\
                      data: {podDisruptionBudget: \"spec: {minAvailable: 1}\", service: \"spec: {type: ClusterIP}\"}\n";
    server.apply(parameters).expect("parameters");
    let http = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let reference = json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "tuned"}});
    wait_for("the definitions are served", PATIENCE, || {
        server.apply(&gateway(&http, &reference))
    });
    let (service, budget) = ("service/door-voile", "pdb/door-voile");
    until(&server, budget, "{.spec.minAvailable}", "1");
    until(&server, service, "{.spec.type}", "ClusterIP");
    server
        .apply(&parameters.replace("minAvailable: 1", "minAvailable: 2"))
        .expect("changed");
    until(&server, budget, "{.spec.minAvailable}", "2");
    server.apply(&gateway(&http, &json!({}))).expect("changed");
    until(&server, budget, "{.metadata.name}", "");
    until(&server, service, "{.spec.type}", "LoadBalancer");
    replica.stop();
}
