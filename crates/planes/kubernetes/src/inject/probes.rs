//! Probes and lifecycle hooks of applications that a kubelet asks by network. A kubelet speaks no mutual TLS, so they are asked of
//! the proxy at `/app-health/CONTAINER/…` and `/app-lifecycle/CONTAINER/…`, and the proxy asks the application.

use serde_json::{Map, Value, json};

use super::containers::METRICS_PORT;
use crate::inject::request::{INIT_CONTAINER, PROXY_CONTAINER, items};

/// Variable of the proxy with the original questions by path.
pub(super) const PROBERS: &str = "ISTIO_KUBE_APP_PROBERS";
const PROBES: [(&str, &str); 3] = [
    ("startupProbe", "startupz"),
    ("readinessProbe", "readyz"),
    ("livenessProbe", "livez"),
];
const HOOKS: [(&str, &str); 2] = [("preStop", "prestopz"), ("postStart", "poststartz")];

/// Rewrites the questions of all containers but the proxy's, and returns the original ones as text for the proxy; `None` if there
/// are none.
pub(super) fn rewrite(pod: &mut Value, warnings: &mut Vec<String>) -> Option<String> {
    let mut probers = Map::new();
    let named = named_ports(pod);
    for list in ["initContainers", "containers"] {
        let containers = pod.get_mut("spec").and_then(|spec| spec.get_mut(list));
        let containers = containers.and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            if [PROXY_CONTAINER, INIT_CONTAINER].contains(&&*name) {
                continue;
            }
            let mut take = |question: &mut Value, path: String, field: &str| {
                let ports = |port: &str| named_port(&named, &name, port);
                match original(question, ports) {
                    Some(Ok(prober)) => {
                        redirect(question, &path);
                        probers.insert(path, prober);
                    }
                    Some(Err(why)) => warnings.push(format!(
                        "container `{name}`: {field} is not rewritten, and fails if mutual TLS is strict: {why}"
                    )),
                    None => {}
                }
            };
            for (field, word) in PROBES {
                let path = format!("/app-health/{name}/{word}");
                if let Some(probe) = container.get_mut(field) {
                    take(probe, path, field);
                }
            }
            let Some(lifecycle) = container.get_mut("lifecycle") else {
                continue;
            };
            for (field, word) in HOOKS {
                let path = format!("/app-lifecycle/{name}/{word}");
                if let Some(hook) = lifecycle.get_mut(field) {
                    take(hook, path, field);
                }
            }
        }
    }
    (!probers.is_empty()).then(|| Value::Object(probers).to_string())
}

/// Named ports: container, name, number.
fn named_ports(pod: &Value) -> Vec<(String, String, u64)> {
    let spec = &pod["spec"];
    let containers = items(spec, "containers").chain(items(spec, "initContainers"));
    let port = |container: &Value, port: &Value| {
        let container = container["name"].as_str()?.to_owned();
        let name = port["name"].as_str()?.to_owned();
        Some((container, name, port["containerPort"].as_u64()?))
    };
    let ports = |container| items(container, "ports").filter_map(move |one| port(container, one));
    containers.flat_map(ports).collect()
}

fn named_port(ports: &[(String, String, u64)], container: &str, name: &str) -> Option<u64> {
    let mut own = ports
        .iter()
        .filter(|(of, port, _)| of == container && port == name);
    own.next().map(|(_, _, number)| *number)
}

/// The question as the proxy reads it; `None` if the kubelet asks it inside the container. An error says why the proxy cannot
/// ask it.
fn original(
    question: &Value,
    named_port: impl Fn(&str) -> Option<u64>,
) -> Option<Result<Value, String>> {
    let kinds = ["httpGet", "tcpSocket", "grpc"];
    let kind = kinds.into_iter().find(|kind| question[kind].is_object())?;
    let mut action = question[kind].clone();
    if let Some(host) = action["host"].as_str().filter(|host| !host.is_empty()) {
        return Some(Err(format!("it asks another host, {host}")));
    }
    let port = match &action["port"] {
        Value::String(text) => match text.parse().ok().or_else(|| named_port(text)) {
            Some(port) => port,
            None => return Some(Err(format!("the container has no port `{text}`"))),
        },
        number => number.as_u64().unwrap_or_default(),
    };
    if port == u64::from(METRICS_PORT) {
        return None;
    }
    action["port"] = port.into();
    let mut prober = json!({kind: action});
    if let Some(seconds) = question["timeoutSeconds"].as_u64() {
        prober["timeoutSeconds"] = seconds.into();
    }
    Some(Ok(prober))
}

/// Makes a question one by HTTP to the proxy.
fn redirect(question: &mut Value, path: &str) {
    let Some(question) = question.as_object_mut() else {
        return;
    };
    question.remove("tcpSocket");
    question.remove("grpc");
    let action = question.entry("httpGet").or_insert_with(|| json!({}));
    action["path"] = path.into();
    action["port"] = METRICS_PORT.into();
    if action["scheme"] == "HTTPS" {
        action["scheme"] = "HTTP".into();
    }
}
