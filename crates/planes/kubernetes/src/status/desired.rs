//! The status that objects should have by the configuration in force: pure. The control plane has decided all of it; this says
//! it in the fields of the objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use voile_control::{RestedConfiguration, gateway_api_documents};
use voile_model::mesh::MeshService;
use voile_model::mesh::authorization::{PolicyTarget, TargetReference};
use voile_model::mesh::gateway_api::GROUP as GATEWAY_API;
use voile_model::mesh::waypoint::TargetBinding;
use voile_model::{Diagnostic, Mesh, Namespace, ResourceName, Severity};

/// Condition of Istio's resources: in force, or not and why.
pub(super) const RECONCILED: &str = "Reconciled";
/// Condition of services that have a waypoint, as Istio writes it.
pub(super) const WAYPOINT_BOUND: &str = "istio.io/WaypointBound";
/// Condition of AuthorizationPolicies with `targetRefs`, as Istio writes it.
const WAYPOINT_ACCEPTED: &str = "WaypointAccepted";
/// Conditions that a Gateway has only while its `tls` asks for them.
const OF_TLS: [&str; 2] = ["ResolvedRefs", "InsecureFrontendValidationMode"];
/// Problems of one resource that its status has.
const MAX_MESSAGES: usize = 16;
/// Faults in the message of a condition.
const MAX_FAULTS: usize = 4;

/// Fields of `status` by the file of the object. The value null removes a field, and a condition with the status null removes
/// that condition.
pub(super) type DesiredStatuses = BTreeMap<Arc<str>, Map<String, Value>>;

/// The status of every object that was read.
pub(super) fn desired(configuration: &RestedConfiguration) -> DesiredStatuses {
    let mut all = DesiredStatuses::new();
    let files = configuration.files.iter().flat_map(|files| files.iter());
    for file in files {
        let name = &file.name;
        let kind = name.split('/').next().unwrap_or_default();
        let fields = match kind.split_once('.') {
            Some(("workloadentries", _)) => continue,
            Some((_, group)) if group.ends_with(".istio.io") => {
                reconciled(name, &configuration.diagnostics)
            }
            // Conditions that no longer hold go.
            Some(("backendtlspolicies", GATEWAY_API)) => fields(json!({"ancestors": []})),
            Some((plural, GATEWAY_API)) if plural.ends_with("routes") => {
                fields(json!({"parents": []}))
            }
            None if kind == "services" => fields(json!({"conditions": [unbound()]})),
            _ => continue,
        };
        all.insert(name.clone(), fields);
    }
    of_services(configuration, &mut all);
    of_policies(&configuration.mesh, &mut all);
    of_gateway_api(&configuration.mesh, &mut all);
    all
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    let status = if holds { "True" } else { "False" };
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

fn unbound() -> Value {
    json!({"type": WAYPOINT_BOUND, "status": null})
}

/// The status of a resource of Istio by the problems found in it.
fn reconciled(file: &Arc<str>, diagnostics: &[Diagnostic]) -> Map<String, Value> {
    // They are sorted by place.
    let from = diagnostics.partition_point(|one| one.source.file < *file);
    let own = diagnostics[from..].iter();
    let own = own.take_while(|one| one.source.file == *file);
    let own: Vec<&Diagnostic> = own.filter(|one| one.severity != Severity::Note).collect();
    let faults = own.iter().filter(|one| one.is_error());
    let faults: Vec<String> = faults.take(MAX_FAULTS).map(|one| one.words()).collect();
    let in_force = match faults.is_empty() {
        true => condition(RECONCILED, true, "InForce", ""),
        false => condition(RECONCILED, false, "Invalid", &faults.join("\n")),
    };
    let message = |one: &&Diagnostic| {
        let level = if one.is_error() { "ERROR" } else { "WARNING" };
        json!({"type": {"code": one.code, "name": one.code}, "level": level})
    };
    let messages: Vec<Value> = own.iter().take(MAX_MESSAGES).map(message).collect();
    let messages = match messages.is_empty() {
        true => Value::Null,
        false => messages.into(),
    };
    fields(json!({"conditions": [in_force], "validationMessages": messages}))
}

/// Waypoints of services, and addresses that ServiceEntries were given.
fn of_services(configuration: &RestedConfiguration, all: &mut DesiredStatuses) {
    let mesh = &configuration.mesh;
    for service in mesh.services.values() {
        let Some(fields) = all.get_mut(&service.source.file) else {
            continue;
        };
        let bound = bound(mesh, service).unwrap_or_else(unbound);
        if let Some(Value::Array(conditions)) = fields.get_mut("conditions") {
            conditions.retain(|one| one["type"] != WAYPOINT_BOUND);
            conditions.push(bound);
        }
    }
    for service in &configuration.addressed {
        let Some(fields) = all.get_mut(&service.source.file) else {
            continue;
        };
        let given = service.addresses.iter();
        let given = given.map(
            |address| json!({"host": service.key.hostname.as_str(), "value": address.to_string()}),
        );
        let addresses = fields.entry("addresses").or_insert_with(|| json!([]));
        if let Some(addresses) = addresses.as_array_mut() {
            addresses.extend(given);
        }
    }
}

/// Waypoints that apply the targets of AuthorizationPolicies.
fn of_policies(mesh: &Mesh, all: &mut DesiredStatuses) {
    for policy in mesh.authorization_policies.values() {
        let fields = all.get_mut(&policy.source.file);
        let Some(Value::Array(conditions)) = fields.and_then(|one| one.get_mut("conditions"))
        else {
            continue;
        };
        let namespace = &policy.name.namespace;
        conditions.push(match &policy.target {
            PolicyTarget::References(targets)
                if !targets
                    .iter()
                    .any(|one| mesh.other_gateway(namespace, one).is_some()) =>
            {
                accepted(mesh, namespace, targets)
            }
            _ => json!({"type": WAYPOINT_ACCEPTED, "status": null}),
        });
    }
}

/// The one condition of all targets of a policy, in Istio's words.
fn accepted(mesh: &Mesh, namespace: &Namespace, targets: &[TargetReference]) -> Value {
    let all = targets.iter();
    let all = all.map(|target| (target, mesh.target_binding(namespace, target)));
    let all: Vec<(&TargetReference, TargetBinding)> = all.collect();
    if let [(target, binding)] = &all[..] {
        let name = format!("{} {namespace}/{}", target.kind, target.name);
        let (reason, message) = match binding {
            TargetBinding::Bound(to) => ("Accepted", format!("bound to {to}")),
            TargetBinding::Unbound => (
                "AncestorNotBound",
                format!("{name} is not bound to a waypoint"),
            ),
            TargetBinding::Missing => ("TargetNotFound", format!("{name} was not found")),
        };
        return condition(WAYPOINT_ACCEPTED, reason == "Accepted", reason, &message);
    }
    let is_bound = |binding: &TargetBinding| matches!(binding, TargetBinding::Bound(_));
    let unbound = all.iter().filter(|(_, binding)| !is_bound(binding));
    let unbound = unbound.map(|(target, _)| {
        let group = Some(&*target.group).filter(|group| !group.is_empty());
        let (kind, group) = (&target.kind, group.unwrap_or("core"));
        format!("{kind}.{group}:{namespace}/{}", target.name)
    });
    let unbound: Vec<String> = unbound.collect();
    let reason = match unbound.len() {
        0 => "Accepted",
        some if some < all.len() => "PartiallyInvalid",
        _ => "Invalid",
    };
    let message = match unbound.is_empty() {
        true => String::new(),
        false => format!("Invalid targetRefs: {}", unbound.join(", ")),
    };
    condition(WAYPOINT_ACCEPTED, reason != "Invalid", reason, &message)
}

/// Whether the waypoint that a service has takes its calls; `None` without a waypoint.
fn bound(mesh: &Mesh, service: &MeshService) -> Option<Value> {
    let name = mesh.waypoint_of(service)?;
    let (holds, reason, message) = match mesh.waypoint(&name) {
        None => (
            false,
            "WaypointIsNotReady",
            format!("waypoint {name} does not exist: calls of the service go nowhere"),
        ),
        Some(waypoint) if !mesh.takes(waypoint, &service.key.namespace) => (
            false,
            "AttachmentDenied",
            format!(
                "waypoint {name} does not admit the namespace {} (allowedRoutes)",
                service.key.namespace
            ),
        ),
        Some(_) => (
            true,
            "WaypointAccepted",
            format!("Successfully attached to waypoint {name}"),
        ),
    };
    Some(condition(WAYPOINT_BOUND, holds, reason, &message))
}

/// Conditions of Gateway API's resources. GatewayClasses are their controller's business.
fn of_gateway_api(mesh: &Mesh, all: &mut DesiredStatuses) {
    for mut document in gateway_api_documents(mesh) {
        let kind = document["kind"].as_str().unwrap_or_default();
        let metadata = &document["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let name = metadata["name"].as_str().unwrap_or_default();
        let is_gateway = kind == "Gateway";
        if kind == "GatewayClass" || is_gateway && !is_ours(mesh, namespace, name) {
            continue;
        }
        let plural = plural_of(kind);
        let file = format!("{plural}.{GATEWAY_API}/{namespace}/{name}");
        let Some(status) = document["status"].as_object_mut() else {
            continue;
        };
        for (entries, reference) in [("parents", "parentRef"), ("ancestors", "ancestorRef")] {
            if let Some(Value::Array(entries)) = status.get_mut(entries) {
                entries.retain(|one| {
                    let to = &one[reference];
                    let namespace = to["namespace"].as_str().unwrap_or_default();
                    let name = to["name"].as_str().unwrap_or_default();
                    to["kind"] != "Gateway" || is_ours(mesh, namespace, name)
                });
            }
        }
        if let (true, Some(Value::Array(conditions))) = (is_gateway, status.get_mut("conditions")) {
            for kind in OF_TLS {
                if conditions.iter().all(|one| one["type"] != kind) {
                    conditions.push(json!({"type": kind, "status": null}));
                }
            }
        }
        all.insert(file.into(), std::mem::take(status));
    }
}

/// Returns true if the Gateway is of a class whose controller is this program, and not of one that Istio serves in the same
/// cluster.
fn is_ours(mesh: &Mesh, namespace: &str, name: &str) -> bool {
    let mut gateways = mesh.gateway_api.gateways.iter();
    let is_it = |one: &ResourceName| one.namespace.as_str() == namespace && &*one.name == name;
    let Some(gateway) = gateways.find(|one| is_it(&one.name)) else {
        // It does not exist; the route says so.
        return true;
    };
    let declared = mesh.gateway_api.classes.get(&gateway.class.0);
    declared.is_none_or(|class| class.controller.starts_with("voile.dev/"))
}

fn plural_of(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix("cy") {
        Some(stem) => format!("{stem}cies"),
        None => kind + "s",
    }
}
