//! The objects of a Gateway, as Istio's automated deployment makes them.

use serde_json::{Map, Value, json};
use voile_model::mesh::gateway_api::{CONTROLLERS, GATEWAY_CLASS, GATEWAY_NAME, label_value};
use voile_model::mesh::waypoint::{WAYPOINT_CLASSES, WAYPOINT_CONTROLLER};
use voile_model::mesh::{MeshConfig, TEMPLATES};

use super::GatewayError;
use super::parameters::{Parameters, merge};
use super::plan::PlannedGateway;
use crate::inject::request::{InjectionRequest, PROXY_CONTAINER, PathSettings};
use crate::inject::{INJECT, InjectionOutcome, InjectorOptions, inject};

/// Label with the controller that made an object.
pub(super) const MANAGED: &str = "gateway.istio.io/managed";
/// Annotation of a Gateway with the type of its Service.
const SERVICE_TYPE: &str = "networking.istio.io/service-type";
const SERVICE_TYPES: [&str; 3] = ["ClusterIP", "NodePort", "LoadBalancer"];
/// Name of the Service's port of readiness, which load balancers probe.
pub(super) const STATUS: &str = "status-port";
const STATUS_PORT: u16 = 15021;
/// Label of Pods that node proxies leave alone.
const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Annotations that are about the Gateway itself.
const NOT_COPIED: [&str; 2] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    SERVICE_TYPE,
];

/// Values of [`MANAGED`] on our objects. A label has no slash.
pub(super) fn managers() -> [String; 2] {
    [CONTROLLERS[0], WAYPOINT_CONTROLLER].map(|controller| controller.replace('/', "-"))
}

/// The objects of a Gateway in the order of their creation.
///
/// # Errors
/// The Gateway asks for what cannot be made.
pub(super) fn manifests(
    planned: &PlannedGateway,
    parameters: &Parameters,
    options: &InjectorOptions,
    mesh: &MeshConfig,
) -> Result<Vec<Value>, GatewayError> {
    let objects = GatewayObjects::new(planned);
    let pod = objects.pod(options, mesh)?;
    let selector = objects.selector();
    let name = &*planned.object_name;
    let bases = [
        ("serviceAccount", "v1", "ServiceAccount", None),
        (
            "deployment",
            "apps/v1",
            "Deployment",
            Some(json!({"selector": {"matchLabels": selector}, "template": pod})),
        ),
        ("service", "v1", "Service", Some(objects.service()?)),
        (
            "horizontalPodAutoscaler",
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            Some(json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "maxReplicas": 1,
            })),
        ),
        (
            "podDisruptionBudget",
            "policy/v1",
            "PodDisruptionBudget",
            Some(json!({"selector": {"matchLabels": selector}})),
        ),
    ];
    let mut made = Vec::new();
    for (key, api_version, kind, spec) in bases {
        let patch = parameters.patch(key);
        let is_optional = ["HorizontalPodAutoscaler", "PodDisruptionBudget"].contains(&kind);
        if is_optional && patch.is_none() {
            continue;
        }
        let mut object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": objects.metadata()});
        if let Some(spec) = spec {
            object["spec"] = spec;
        }
        if let Some(patch) = patch {
            let base = object.clone();
            merge(&mut object, patch);
            objects.restore(&mut object, &base);
        }
        made.push(object);
    }
    Ok(made)
}

/// The parts of a Gateway's objects.
struct GatewayObjects<'a> {
    planned: &'a PlannedGateway,
    /// Labels and annotations that users want on every object.
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
}

impl<'a> GatewayObjects<'a> {
    fn new(planned: &'a PlannedGateway) -> Self {
        let infrastructure = &planned.gateway["spec"]["infrastructure"];
        let metadata = &planned.gateway["metadata"];
        // As in Istio: what `infrastructure` does not say, the Gateway's own metadata says.
        let group = |name: &str| {
            let written = infrastructure[name].as_object();
            let written = written.or_else(|| metadata[name].as_object());
            written.cloned().unwrap_or_default()
        };
        let mut annotations = group("annotations");
        annotations.retain(|key, _| {
            !NOT_COPIED.contains(&&**key) && !key.starts_with("gateway.istio.io/")
        });
        Self {
            planned,
            labels: group("labels"),
            annotations,
        }
    }

    fn is_waypoint(&self) -> bool {
        WAYPOINT_CLASSES.contains(&&*self.planned.class)
    }

    fn selector(&self) -> Value {
        json!({GATEWAY_NAME: label_value(&self.planned.name.name)})
    }

    /// The labels that say whose an object is.
    fn own_labels(&self) -> [(&'static str, String); 3] {
        let [gateway, waypoint] = managers();
        let manager = match &*self.planned.template {
            "gateway" => gateway,
            _ => waypoint,
        };
        [
            (
                GATEWAY_NAME,
                label_value(&self.planned.name.name).into_owned(),
            ),
            (GATEWAY_CLASS, self.planned.class.to_string()),
            (MANAGED, manager),
        ]
    }

    fn metadata(&self) -> Value {
        let mut labels = self.labels.clone();
        for (key, value) in self.own_labels() {
            labels.insert(key.to_owned(), value.into());
        }
        let gateway = &self.planned.gateway;
        json!({
            "name": &*self.planned.object_name,
            "namespace": self.planned.name.namespace.as_str(),
            "labels": labels,
            "annotations": self.annotations,
            "ownerReferences": [{
                "apiVersion": gateway["apiVersion"],
                "kind": "Gateway",
                "name": &*self.planned.name.name,
                "uid": gateway["metadata"]["uid"],
            }],
        })
    }

    /// A Pod with the proxy, as the injector makes it. It listens at the targets of the Service's ports, which need no privilege.
    fn pod(&self, options: &InjectorOptions, mesh: &MeshConfig) -> Result<Value, GatewayError> {
        let mut labels = self.labels.clone();
        for (key, value) in self.own_labels() {
            labels.insert(key.to_owned(), value.into());
        }
        labels.insert(INJECT.to_owned(), "true".into());
        labels
            .entry(DATAPLANE_MODE)
            .or_insert_with(|| "none".into());
        let mut annotations = self.annotations.clone();
        annotations.insert(TEMPLATES.to_owned(), (*self.planned.template).into());
        let pod = json!({
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {
                "serviceAccountName": &*self.planned.object_name,
                "containers": [{"name": PROXY_CONTAINER, "image": "auto"}],
            },
        });
        let request = InjectionRequest {
            pod: &pod,
            namespace: self.planned.name.namespace.as_str(),
            namespace_labels: None,
            workload: Some(&self.planned.object_name),
            path_settings: &PathSettings::default(),
        };
        match inject(&request, options, mesh) {
            Ok(InjectionOutcome::Injected(injected)) => {
                let mut pod = injected.pod;
                // The webhook need not look at it again.
                pod["metadata"]["labels"][INJECT] = "false".into();
                Ok(pod)
            }
            Ok(InjectionOutcome::Skipped(reason)) => Err(GatewayError(reason.to_string())),
            Err(error) => Err(GatewayError(error.to_string())),
        }
    }

    fn service(&self) -> Result<Value, GatewayError> {
        let metadata = &self.planned.gateway["metadata"]["annotations"];
        let infrastructure = &self.planned.gateway["spec"]["infrastructure"]["annotations"];
        let written = metadata[SERVICE_TYPE].as_str();
        let written = written.or_else(|| infrastructure[SERVICE_TYPE].as_str());
        let default = match self.is_waypoint() {
            true => "ClusterIP",
            false => "LoadBalancer",
        };
        let service_type = written.unwrap_or(default);
        if !SERVICE_TYPES.contains(&service_type) {
            let types = SERVICE_TYPES.join(", ");
            return Err(GatewayError(format!(
                "annotation {SERVICE_TYPE}: `{service_type}` is no type of a Service; write one of {types}"
            )));
        }
        let port = |name: &str, port: u16, target: u16, app_protocol: &str| json!({"name": name, "port": port, "targetPort": target, "protocol": "TCP", "appProtocol": app_protocol});
        let own = self.planned.ports.iter();
        let own = own.map(|one| port(&one.name, one.number, one.target, one.app_protocol));
        let mut ports: Vec<Value> = own.collect();
        if !self
            .planned
            .ports
            .iter()
            .any(|one| one.number == STATUS_PORT)
        {
            ports.insert(0, port(STATUS, STATUS_PORT, STATUS_PORT, "tcp"));
        }
        let mut service = json!({
            "type": service_type,
            "ipFamilyPolicy": "PreferDualStack",
            "selector": self.selector(),
            "ports": ports,
        });
        // As in Istio. The status of the Gateway tells if the load balancer does not obey.
        let wanted = requested_addresses(&self.planned.gateway).next();
        if let (Some(address), "LoadBalancer") = (wanted, service_type) {
            service["loadBalancerIP"] = address.into();
        }
        Ok(service)
    }

    /// Restores what a patch must not change: whose the object is, and which Pods are the Gateway's.
    fn restore(&self, object: &mut Value, base: &Value) {
        let labels: Map<String, Value> = self
            .own_labels()
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into_iter()
            .collect();
        let metadata = &base["metadata"];
        let mut fixed = json!({
            "apiVersion": base["apiVersion"],
            "kind": base["kind"],
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "ownerReferences": metadata["ownerReferences"],
                "labels": labels,
            },
        });
        if base["kind"] == "Deployment" {
            let mut selector = base["spec"]["selector"].clone();
            selector["$patch"] = "replace".into();
            fixed["spec"] =
                json!({"selector": selector, "template": {"metadata": {"labels": labels}}});
        }
        merge(object, &fixed);
    }
}

/// The IP addresses that a Gateway asks for.
pub(crate) fn requested_addresses(gateway: &Value) -> impl Iterator<Item = &str> {
    let all = gateway["spec"]["addresses"].as_array();
    let ip = |one: &&Value| one["type"].as_str().unwrap_or("IPAddress") == "IPAddress";
    let values = all.into_iter().flatten().filter(ip);
    values.filter_map(|one| one["value"].as_str().filter(|value| !value.is_empty()))
}
