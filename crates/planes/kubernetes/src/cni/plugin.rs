//! The plugin's process: the CNI specification 1.1 on standard input, environment and standard output.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::Api;
use serde::Deserialize;
use serde_json::{Value, json};
use voile_zds::{AgentMessage, Channel, PodIdentity};

use super::PluginConfig;
use crate::connect::{ClusterAddress, connect};
use crate::error::ClusterError;
use crate::node_agent::{DATAPLANE_MODE, PodRole};

/// Versions of the specification that the plugin speaks. It hands on results as they are.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Longest wait for the agent's answer. The kubelet starts a refused pod again.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Longest wait for the API server, while the agent is away.
const API_LIMIT: Duration = Duration::from_secs(5);
/// In messages to the agent the account of a pod, which a plugin does not know.
const UNKNOWN: &str = "unknown";

/// Codes of errors of the specification; those from 100 are the plugin's own.
const INVALID_ENVIRONMENT: u32 = 4;
const IO_FAILURE: u32 = 5;
const DECODING_FAILURE: u32 = 6;
const INVALID_CONFIGURATION: u32 = 7;
const TRY_AGAIN_LATER: u32 = 11;

/// What the plugin's process says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginOutcome {
    /// Text of the standard output.
    pub output: String,
    /// True if the process ends with code 0.
    pub success: bool,
}

#[derive(Debug)]
struct PluginError {
    code: u32,
    message: String,
}

fn failed(code: u32, message: impl Into<String>) -> PluginError {
    PluginError {
        code,
        message: message.into(),
    }
}

#[derive(Deserialize)]
struct NetworkConfig {
    #[serde(rename = "cniVersion", default)]
    version: String,
    #[serde(rename = "prevResult")]
    previous: Option<Value>,
    #[serde(flatten)]
    own: PluginConfig,
}

/// The pod that a runtime names in `CNI_ARGS`.
#[derive(Debug, PartialEq, Eq)]
struct NamedPod {
    namespace: String,
    name: String,
    uid: String,
}

/// Runs the plugin with the variables of a runtime and its standard input.
pub fn run(variable: &dyn Fn(&str) -> Option<String>, input: &str) -> PluginOutcome {
    match answer(variable, input) {
        Ok(output) => PluginOutcome {
            output,
            success: true,
        },
        Err(PluginError { code, message }) => {
            let version = serde_json::from_str(input)
                .map(|config: Value| config["cniVersion"].as_str().unwrap_or_default().to_owned());
            let error = json!({
                "cniVersion": version.unwrap_or_default(), "code": code, "msg": format!("voile-cni: {message}"),
            });
            PluginOutcome {
                output: error.to_string(),
                success: false,
            }
        }
    }
}

fn answer(variable: &dyn Fn(&str) -> Option<String>, input: &str) -> Result<String, PluginError> {
    let command = variable("CNI_COMMAND");
    match command.as_deref() {
        Some("VERSION") => {
            Ok(json!({"cniVersion": "1.0.0", "supportedVersions": VERSIONS}).to_string())
        }
        Some("ADD") => {
            let config: NetworkConfig = serde_json::from_str(input)
                .map_err(|error| failed(DECODING_FAILURE, error.to_string()))?;
            if !VERSIONS.contains(&&*config.version) {
                let message = format!("cniVersion `{}` is not supported", config.version);
                return Err(failed(1, message));
            }
            add(variable, &config)?;
            let previous = config.previous.ok_or_else(|| {
                let message = "no prevResult: the plugin stands behind a primary plugin";
                failed(INVALID_CONFIGURATION, message)
            })?;
            Ok(previous.to_string())
        }
        // The agent knows by the API server which pods are gone, and a pod's rules are gone with its network.
        Some("DEL" | "CHECK" | "GC" | "STATUS") => Ok(String::new()),
        other => {
            let message = format!("CNI_COMMAND `{}` is unknown", other.unwrap_or_default());
            Err(failed(INVALID_ENVIRONMENT, message))
        }
    }
}

fn add(
    variable: &dyn Fn(&str) -> Option<String>,
    config: &NetworkConfig,
) -> Result<(), PluginError> {
    let Some(pod) = pod(&variable("CNI_ARGS").unwrap_or_default()) else {
        // No pod of Kubernetes: nobody's labels ask for the mesh.
        return Ok(());
    };
    let own = &config.own;
    if pod.namespace == own.agent_namespace && pod.name.starts_with(&own.agent_pods) {
        return Ok(());
    }
    let network =
        variable("CNI_NETNS").ok_or_else(|| failed(INVALID_ENVIRONMENT, "CNI_NETNS is not set"))?;
    let network = PathBuf::from(network);
    let inside = File::open(&network)
        .map_err(|error| failed(IO_FAILURE, format!("{}: {error}", network.display())))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| failed(IO_FAILURE, error.to_string()))?;
    runtime.block_on(async {
        match tokio::time::timeout(ANSWER_LIMIT, ask_agent(own, &pod, inside)).await {
            Ok(Ok(answer)) => answer.map_err(|reason| failed(TRY_AGAIN_LATER, reason)),
            Ok(Err(error)) => without_agent(own, &pod, &error).await,
            Err(_) => {
                let error = io::Error::from(ErrorKind::TimedOut);
                without_agent(own, &pod, &error).await
            }
        }
    })
}

/// Hands the pod's network to the agent: its yes, or its reason.
async fn ask_agent(
    own: &PluginConfig,
    pod: &NamedPod,
    inside: File,
) -> io::Result<Result<(), String>> {
    let channel = Channel::connect(&own.socket).await?;
    let who = PodIdentity {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        service_account: UNKNOWN.to_owned(),
    };
    let message = AgentMessage::Add {
        uid: pod.uid.clone(),
        who,
        inside: inside.into(),
    };
    channel.tell(&message).await
}

/// Without the agent a pod of the mesh is refused, and any other passes.
async fn without_agent(
    own: &PluginConfig,
    pod: &NamedPod,
    error: &io::Error,
) -> Result<(), PluginError> {
    let asked = tokio::time::timeout(API_LIMIT, ask_api_server(own, pod)).await;
    let agent = format!("the node agent at {}: {error}", own.socket.display());
    match asked {
        Ok(Ok(PodRole::Outside)) => Ok(()),
        Ok(Ok(_)) => {
            let message = format!(
                "{agent}; a pod of the mesh waits for it; cure: kubectl -n {} get pods -o wide, of the names {}…",
                own.agent_namespace, own.agent_pods
            );
            Err(failed(TRY_AGAIN_LATER, message))
        }
        Ok(Err(error)) => {
            let message =
                format!("{agent}; whether the pod is of the mesh is unknown, since {error}");
            Err(failed(TRY_AGAIN_LATER, message))
        }
        Err(_) => {
            let message = format!("{agent}; the API server does not answer in {API_LIMIT:?}");
            Err(failed(TRY_AGAIN_LATER, message))
        }
    }
}

async fn ask_api_server(own: &PluginConfig, pod: &NamedPod) -> Result<PodRole, ClusterError> {
    let address = ClusterAddress {
        kubeconfig: Some(own.kubeconfig.clone()),
        context: None,
    };
    let client = connect(&address).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let object = pods.get(&pod.name).await.map_err(|error| {
        ClusterError::api(format!("get pods/{}/{}", pod.namespace, pod.name), &error)
    })?;
    let namespaces: Api<Namespace> = Api::all(client);
    let namespace = namespaces.get(&pod.namespace).await;
    let namespace = namespace
        .map_err(|error| ClusterError::api(format!("get namespaces/{}", pod.namespace), &error))?;
    let labels = namespace.metadata.labels.unwrap_or_default();
    let mode = labels.get(DATAPLANE_MODE).map(String::as_str);
    Ok(PodRole::of(&object, mode, own.has_node_proxy))
}

/// Reads `CNI_ARGS`: `KEY=VALUE` joined by semicolons.
fn pod(arguments: &str) -> Option<NamedPod> {
    let pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
    let values: BTreeMap<&str, &str> = pairs.collect();
    let value = |name: &str| values.get(name).filter(|text| !text.is_empty());
    let text = |name: &str| value(name).map(|text| (*text).to_owned());
    Some(NamedPod {
        namespace: text("K8S_POD_NAMESPACE")?,
        name: text("K8S_POD_NAME")?,
        uid: text("K8S_POD_UID").unwrap_or_else(|| UNKNOWN.to_owned()),
    })
}

/// Returns true if a message's uid is the pod's, as far as the runtime has told it.
pub(crate) fn is_uid_of(told: &str, uid: &str) -> bool {
    told == UNKNOWN || told == uid
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"cniVersion": "0.4.0", "name": "pods", "type": "voile-cni", "socket": "/nowhere/cni.sock",
        "kubeconfig": "/nowhere/kubeconfig", "agent_namespace": "istio-system", "agent_pods": "voile-node-", "has_node_proxy": true,
        "prevResult": {"cniVersion": "0.4.0", "ips": [{"address": "10.0.0.1/24"}]}}"#;

    fn outcome(variables: &[(&str, &str)], input: &str) -> PluginOutcome {
        let variable = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        run(&variable, input)
    }

    #[test]
    fn calls_without_work_are_answered_as_the_specification_says() {
        let version = outcome(&[("CNI_COMMAND", "VERSION")], "{\"cniVersion\": \"1.0.0\"}");
        assert!(version.success && version.output.contains(r#""supportedVersions":["0.3.0""#));
        for command in ["DEL", "CHECK", "GC", "STATUS"] {
            let done = outcome(&[("CNI_COMMAND", command)], CONFIG);
            assert!(done.success && done.output.is_empty(), "{command}");
        }
        let unknown = outcome(&[("CNI_COMMAND", "PAINT")], CONFIG);
        let error: Value = serde_json::from_str(&unknown.output).expect("JSON");
        assert!(!unknown.success);
        assert_eq!(
            (&error["code"], &error["cniVersion"]),
            (&json!(4), &json!("0.4.0"))
        );
    }

    #[test]
    fn without_an_agent_its_own_pod_and_foreign_containers_start_and_an_unknown_pod_waits() {
        let add = |arguments: &str| {
            let variables = [
                ("CNI_COMMAND", "ADD"),
                ("CNI_NETNS", "/proc/self/ns/net"),
                ("CNI_ARGS", arguments),
            ];
            outcome(&variables, CONFIG)
        };
        for arguments in [
            "",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=istio-system;K8S_POD_NAME=voile-node-x",
        ] {
            let passed = add(arguments);
            assert!(passed.success, "{arguments}: {passed:?}");
            assert!(
                passed.output.contains("10.0.0.1/24"),
                "the result is handed on"
            );
        }
        let refused = add("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=1");
        let error: Value = serde_json::from_str(&refused.output).expect("JSON");
        assert!(!refused.success);
        assert_eq!(error["code"], 11, "the runtime tries again later: {error}");
        assert!(
            error["msg"]
                .as_str()
                .expect("words")
                .contains("/nowhere/cni.sock")
        );
    }
}
