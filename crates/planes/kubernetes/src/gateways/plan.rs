//! Which Gateways are deployed, and what the model decides about them.

use std::sync::Arc;

use serde_json::Value;
use voile_model::SourceFile;
use voile_model::mesh::gateway_api::{CONTROLLERS, GATEWAY_CLASS, GATEWAY_NAME, label_value};
use voile_model::mesh::waypoint::{HBONE, WAYPOINT_CONTROLLER};
use voile_model::mesh::{Deployment, Mesh, MeshService, TEMPLATES, TargetPort};
use voile_model::names::ResourceName;

use super::FILES;
use crate::revision::{REVISION, RevisionNames};

/// Longest name of a Service's port.
const MAX_PORT_NAME: usize = 63;

/// A Gateway that gets objects.
#[derive(Debug)]
pub(super) struct PlannedGateway {
    /// Its name.
    pub(super) name: ResourceName,
    /// The Gateway as JSON.
    pub(super) gateway: Value,
    /// Its class.
    pub(super) class: Arc<str>,
    /// The name of its objects.
    pub(super) object_name: Arc<str>,
    /// The injector's template for its Pods: `gateway` or `waypoint`.
    pub(super) template: Arc<str>,
    /// The ports of its Service.
    pub(super) ports: Vec<GatewayPort>,
}

/// A port of a Gateway's Service.
#[derive(Debug)]
pub(super) struct GatewayPort {
    pub(super) name: String,
    pub(super) number: u16,
    /// The port of the Pods.
    pub(super) target: u16,
    pub(super) app_protocol: &'static str,
}

impl PlannedGateway {
    /// The file of an object of this kind in the Gateway's namespace.
    pub(super) fn file(&self, kind: &str, name: &str) -> String {
        format!("{kind}/{}/{name}", self.name.namespace)
    }
}

/// All Gateways that this revision deploys.
pub(super) fn plan(files: &[Arc<SourceFile>], names: &RevisionNames) -> Vec<PlannedGateway> {
    let decisive: Vec<SourceFile> = files
        .iter()
        .filter(|file| {
            let kind = file.name.split('/').next();
            kind.is_some_and(|kind| FILES.contains(&kind) || kind == "configmaps")
        })
        .map(|file| (**file).clone())
        .collect();
    let (mesh, _) = voile_model::check(&decisive, None);
    let all = mesh.gateway_api.gateways.iter();
    let ours = all.filter(|one| is_deployed(&mesh, &one.class.0));
    ours.filter_map(|one| {
        let file = decisive.iter().find(|file| file.name == one.source.file)?;
        let gateway: Value = serde_json::from_str(file.text.as_ref().ok()?).ok()?;
        let namespace = mesh.namespaces.get(&one.name.namespace);
        let of_namespace = namespace.and_then(|one| one.labels.get(REVISION));
        if !names.own(one.own_labels.get(REVISION), of_namespace) {
            return None;
        }
        let label = label_value(&one.name.name);
        let mut deployments = mesh.deployments.values();
        // Refused Gateways have none. Generated Deployments have the label of the class.
        let deployment = deployments.find(|made| {
            let labels = &made.template.labels;
            made.name.namespace == one.name.namespace
                && labels.get(GATEWAY_NAME) == Some(&*label)
                && labels.get(GATEWAY_CLASS).is_some()
        })?;
        Some(PlannedGateway {
            name: one.name.clone(),
            class: one.class.0.clone(),
            object_name: deployment.name.name.clone(),
            template: deployment.template.annotations.get(TEMPLATES)?.into(),
            ports: service(&mesh, deployment).map_or_else(Vec::new, |made| ports(made, &gateway)),
            gateway,
        })
    })
    .collect()
}

/// Returns true if the class is ours on a cluster. A class that Istio has declared is left to Istio.
fn is_deployed(mesh: &Mesh, class: &Arc<str>) -> bool {
    let declared = mesh.gateway_api.classes.get(class);
    declared.is_none_or(|one| [CONTROLLERS[0], WAYPOINT_CONTROLLER].contains(&&*one.controller))
}

fn service<'m>(mesh: &'m Mesh, deployment: &Deployment) -> Option<&'m MeshService> {
    let mut all = mesh.services.values();
    let found = all.find(|one| {
        one.key.namespace == deployment.name.namespace && one.name == deployment.name.name
    });
    found.map(|one| &**one)
}

fn ports(service: &MeshService, gateway: &Value) -> Vec<GatewayPort> {
    let listeners = gateway["spec"]["listeners"].as_array();
    let listener_at = |number: u16| {
        let mut all = listeners.into_iter().flatten();
        all.find(|one| one["port"] == number)
    };
    let ports = service.ports.iter().map(|port| {
        let number = port.number.get();
        let listener = listener_at(number);
        let name = listener.and_then(|one| one["name"].as_str());
        let is_usable = |name: &&str| {
            !name.contains('.') && name.len() <= MAX_PORT_NAME && *name != super::manifests::STATUS
        };
        let target = match &port.target {
            TargetPort::Number(target) => target.get(),
            TargetPort::Named(_) => number,
        };
        GatewayPort {
            name: name
                .filter(is_usable)
                .map_or_else(|| format!("port-{number}"), str::to_owned),
            number,
            target,
            app_protocol: match listener.and_then(|one| one["protocol"].as_str()) {
                Some("HTTP") => "http",
                Some("HTTPS") => "https",
                Some("TLS") => "tls",
                Some("TCP" | HBONE) => "tcp",
                // A listener of a ListenerSet.
                _ => match port.protocol {
                    voile_model::mesh::Protocol::Http => "http",
                    voile_model::mesh::Protocol::Tls => "tls",
                    _ => "tcp",
                },
            },
        }
    });
    ports.collect()
}
