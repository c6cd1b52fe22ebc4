//! Documents that the control plane reads beside the user's folder: a Pod with its address for every running pod, and
//! a Sidecar for that pod alone. The Sidecar continues the user's Sidecar and adds a listener for every service the
//! pod sees.
//!
//! JSON, which is YAML too, in one file, so that one rename publishes a consistent whole.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};
use voile_model::ResourceName;
use voile_model::mesh::{
    CaptureMode, ContainerPort, DefaultEndpoint, EgressListener, EndpointHost, IngressListener,
    ListenerPort, MeshService, PodTemplate, Protocol, Transport,
};

use crate::addresses::{GATEWAY, PodIsolation, beside};
use crate::expand::{POD_LABEL, PodPlan, RunPlan, SidecarPlan};
use crate::node;

/// Says which of the user's resources a generated one stands for.
const GENERATED_FROM: &str = "voile.dev/generated-from";

/// Renders the documents of `plan`, each on a line of its own. Only the pods in `ready` take traffic; those in `over`
/// are done. Pods in `going` take no traffic and are still present, since policies for their open connections need
/// them.
pub fn render(
    plan: &RunPlan,
    layout: PodIsolation,
    ready: &BTreeSet<ResourceName>,
    over: &BTreeSet<ResourceName>,
    going: &[PodPlan],
) -> String {
    let mut text = String::new();
    if plan.by_node {
        text.push_str(&format!("---\n{}\n", node_proxy()));
    }
    for (service, address) in &plan.given {
        text.push_str("---\n");
        text.push_str(&given(service, address.to_string()).to_string());
        text.push('\n');
    }
    for pod in plan.pods.iter().chain(going) {
        let phase = if over.contains(&pod.name) {
            "Succeeded"
        } else if ready.contains(&pod.name) {
            "Running"
        } else {
            "Pending"
        };
        // A gateway's listeners come from Gateways, not from Sidecars.
        let said = pod.sidecar.as_ref().filter(|_| !pod.template.is_gateway());
        let sidecar = said.and_then(|plan| match layout {
            PodIsolation::Loopback(_) => Some(sidecar(pod, plan, listeners(pod))),
            // Without one of the user's everything is captured, and nothing need be said.
            PodIsolation::Namespaces => {
                plan.from.as_ref().map(|_| sidecar(pod, plan, bounds(plan)))
            }
        });
        for document in [
            Some(pod_document(pod, phase, layout, plan.by_node)),
            sidecar,
        ]
        .into_iter()
        .flatten()
        {
            text.push_str("---\n");
            text.push_str(&document.to_string());
            text.push('\n');
        }
    }
    text
}

/// Says that a Service has this address, as Kubernetes says it.
fn given(service: &ResourceName, address: String) -> Value {
    let parent = json!({
        "group": "", "resource": "services",
        "namespace": service.namespace.as_str(), "name": &*service.name,
    });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {"name": address},
        "spec": {"parentRef": parent},
    })
}

fn pod_document(pod: &PodPlan, phase: &str, layout: PodIsolation, by_node: bool) -> Value {
    let template = &pod.template;
    let mut labels: serde_json::Map<String, Value> = template
        .labels
        .iter()
        .map(|(key, value)| (key.to_string(), json!(&**value)))
        .collect();
    labels.insert(POD_LABEL.to_owned(), json!(&*pod.name.name));
    labels.insert(
        "sidecar.istio.io/inject".to_owned(),
        json!(template.has_sidecar.to_string()),
    );
    if pod.sidecar.is_some() && layout == PodIsolation::Namespaces {
        // Its sidecar takes tunnels, for callers without a sidecar.
        labels.insert("networking.istio.io/tunnel".to_owned(), json!("http"));
    }
    let mut annotations: serde_json::Map<String, Value> = template
        .annotations
        .iter()
        .filter(|(key, _)| &***key != "sidecar.istio.io/inject") // the label above says it
        .map(|(key, value)| (key.to_string(), json!(&**value)))
        .collect();
    if template.ambient {
        // Without a node proxy, a client that trusts the label would call a port without a listener.
        let redirection = if by_node { "enabled" } else { "disabled" };
        let done = "ambient.istio.io/redirection".to_owned();
        annotations.insert(done, json!(redirection));
    }
    annotations.insert(
        GENERATED_FROM.to_owned(),
        json!(format!("{}/{}", pod.name.namespace, pod.workload())),
    );
    let mut metadata = json!({
        "name": &*pod.name.name,
        "namespace": pod.name.namespace.as_str(),
        "labels": labels,
        "annotations": annotations,
    });
    if let Some(owner) = &pod.controller {
        metadata["ownerReferences"] = json!([{
            "apiVersion": owner.kind.api_version(), "kind": owner.kind.to_string(),
            "name": &*owner.name, "uid": &*owner.name, "controller": true,
        }]);
    }
    let containers = containers(template);
    let mut status = json!({"phase": phase, "podIP": pod.address.to_string()});
    if layout == PodIsolation::Namespaces {
        status["podIPs"] = json!([
            {"ip": pod.address.to_string()},
            {"ip": beside(pod.address).to_string()},
        ]);
    }
    let mut spec =
        json!({"serviceAccountName": &*template.service_account, "containers": containers});
    if by_node {
        spec["nodeName"] = json!(node::NODE);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    })
}

fn containers(template: &PodTemplate) -> Vec<Value> {
    let port = |port: &ContainerPort| {
        let mut value = json!({"containerPort": port.number.get()});
        if let Some(name) = &port.name {
            value["name"] = json!(&**name);
        }
        value
    };
    let containers = template.containers.iter().map(|container| {
        let ports: Vec<_> = container.ports.iter().map(port).collect();
        json!({"name": &*container.name, "ports": ports})
    });
    containers.collect()
}

/// The node proxy's own pod, by which the control plane knows its node.
fn node_proxy() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": node::NAME, "namespace": node::NAMESPACE,
            "labels": {"sidecar.istio.io/inject": "false"},
            "annotations": {"ambient.istio.io/redirection": "disabled"},
        },
        "spec": {
            "serviceAccountName": node::NAME, "nodeName": node::NODE,
            "containers": [{"name": node::NAME}],
        },
        "status": {"phase": "Running", "podIP": GATEWAY.to_string()},
    })
}

/// On loopback: a listener for each port of each service that the pod sees.
fn listeners(pod: &PodPlan) -> Vec<Value> {
    let services = pod.reach.iter().zip(&pod.services);
    services
        .flat_map(|(service, view)| service_egress(service, view.address.into()))
        .collect()
}

/// In namespaces: the limits of the user's Sidecar.
fn bounds(plan: &SidecarPlan) -> Vec<Value> {
    plan.bounds.iter().map(kept_egress).collect()
}

fn sidecar(pod: &PodPlan, plan: &SidecarPlan, generated: Vec<Value>) -> Value {
    let ingress: Vec<_> = plan.ingress.iter().map(ingress).collect();
    let own = plan.egress.iter().map(kept_egress);
    let mut egress: Vec<_> = own.chain(generated).collect();
    if egress.is_empty() && !plan.unbounded {
        // An empty list would mean everything.
        egress.push(json!({"hosts": ["~/*"]}));
    }
    let mut spec = json!({"workloadSelector": {"labels": {POD_LABEL: &*pod.name.name}}});
    if !egress.is_empty() {
        spec["egress"] = json!(egress);
    }
    if !ingress.is_empty() {
        spec["ingress"] = json!(ingress);
    }
    if let Some(registry_only) = plan.registry_only {
        let mode = if registry_only {
            "REGISTRY_ONLY"
        } else {
            "ALLOW_ANY"
        };
        spec["outboundTrafficPolicy"] = json!({"mode": mode});
    }
    let mut metadata =
        json!({"name": format!("pod-{}", pod.name.name), "namespace": pod.name.namespace.as_str()});
    if let Some(from) = &plan.from {
        metadata["annotations"] = json!({GENERATED_FROM: from.to_string()});
    }
    json!({"apiVersion": "networking.istio.io/v1", "kind": "Sidecar", "metadata": metadata, "spec": spec})
}

fn ingress(listener: &IngressListener) -> Value {
    let mut value = json!({
        "port": port(&listener.port),
        "captureMode": capture(listener.capture_mode),
    });
    if let Some(bind) = listener.bind {
        value["bind"] = json!(bind.to_string());
    }
    if let Some(DefaultEndpoint { host, port }) = listener.default_endpoint {
        value["defaultEndpoint"] = json!(match host {
            EndpointHost::Workload => format!("0.0.0.0:{port}"),
            EndpointHost::Loopback(IpAddr::V4(_)) => format!("127.0.0.1:{port}"),
            EndpointHost::Loopback(IpAddr::V6(_)) => format!("[::1]:{port}"),
        });
    }
    value
}

fn kept_egress(listener: &EgressListener) -> Value {
    let hosts: Vec<_> = listener.hosts.iter().map(ToString::to_string).collect();
    let mut value = json!({"hosts": hosts, "captureMode": capture(listener.capture_mode)});
    if let Some(listener_port) = &listener.port {
        value["port"] = port(listener_port);
    }
    if let Some(bind) = listener.bind {
        value["bind"] = json!(bind.to_string());
    }
    value
}

fn service_egress(service: &MeshService, bind: IpAddr) -> Vec<Value> {
    let tcp = service
        .ports
        .iter()
        .filter(|port| port.transport == Transport::Tcp);
    tcp.map(|service_port| {
        let name = match &*service_port.name {
            "" => format!("{}-{}", service.name, service_port.number),
            name => format!("{}-{name}", service.name),
        };
        json!({
            "port": {
                "number": service_port.number.get(),
                "protocol": protocol(service_port.protocol),
                "name": name,
            },
            "bind": bind.to_string(),
            "captureMode": "NONE",
            "hosts": [service.key.to_string()],
        })
    })
    .collect()
}

fn port(port: &ListenerPort) -> Value {
    let mut value = json!({"number": port.number.get(), "protocol": protocol(port.protocol)});
    if !port.name.is_empty() {
        value["name"] = json!(&*port.name);
    }
    value
}

fn capture(mode: CaptureMode) -> &'static str {
    match mode {
        CaptureMode::Default => "DEFAULT",
        CaptureMode::Iptables => "IPTABLES",
        CaptureMode::None => "NONE",
    }
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Auto => "AUTO",
        Protocol::Http => "HTTP",
        Protocol::Http2 => "HTTP2",
        Protocol::Grpc => "GRPC",
        Protocol::Tcp | Protocol::Udp => "TCP",
        Protocol::Tls => "TLS",
    }
}
