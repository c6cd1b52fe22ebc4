//! Checks Services: endpoints, and the ports that they serve.

use voile_model::mesh::{MeshService, Protocol, Resolution, ServicePort, TargetPort};
use voile_model::{Diagnostic, Labels};

use crate::codes;
use crate::subject::Subject;
use crate::suggestions::missing_workloads;
use crate::view::ClientView;

/// Checks all services.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    for service in view.mesh.services.values() {
        unnamed(service, found);
        let Some(selector) = &service.selector else {
            continue;
        };
        let behind = view.behind(service);
        if behind.is_empty() {
            let message = format!(
                "the selector ({}) of {} selects no workload",
                shown(selector),
                service.key
            );
            let help = "give a Pod, Deployment, WorkloadEntry or WorkloadGroup of the same namespace these labels";
            found.push(
                Diagnostic::warning(
                    codes::SERVICE_SELECTS_NOTHING,
                    service.source.clone(),
                    message,
                )
                .field("spec.selector")
                .help(help)
                .lacks(missing_workloads(&service.key.namespace, selector)),
            );
        }
        target_ports(service, &behind, found);
    }
}

/// Ports on which clients name no host, where DNS is asked for the one that they name.
fn unnamed(service: &MeshService, found: &mut Vec<Diagnostic>) {
    if service.resolution != Resolution::DynamicDns {
        return;
    }
    let opaque = |port: &&ServicePort| port.protocol == Protocol::Tcp;
    for port in service.ports.iter().filter(opaque) {
        let message = format!(
            "port {} of {} is not HTTP or TLS: its connections carry no host name, so with resolution DYNAMIC_DNS they have no destination",
            port.number, service.key
        );
        let help = "declare the port HTTP or TLS, or name the hosts and use `resolution: DNS`";
        let source = port.source.clone();
        found.push(
            Diagnostic::warning(codes::HOST_NOT_NAMED, source, message)
                .field("spec.ports.protocol")
                .help(help),
        );
    }
}

pub(crate) fn shown(labels: &Labels) -> String {
    labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}

fn target_ports(service: &MeshService, behind: &[&Subject<'_>], found: &mut Vec<Diagnostic>) {
    for port in &service.ports {
        let TargetPort::Named(name) = &port.target else {
            continue;
        };
        let lacking: Vec<&str> = behind
            .iter()
            .filter(|s| s.template.is_some() && s.target(&port.target).is_none())
            .map(|s| &*s.name)
            .collect();
        let message = || {
            format!(
                "port {} goes to the container port `{name}`, which is not in {}",
                port.number,
                lacking.join(", ")
            )
        };
        let help = "name a container port so, or write the number";
        let diagnostic = match lacking.len() {
            0 => continue,
            n if n == behind.len() => {
                Diagnostic::error(codes::UNKNOWN_TARGET_PORT, port.source.clone(), message())
            }
            _ => Diagnostic::warning(codes::UNKNOWN_TARGET_PORT, port.source.clone(), message()),
        };
        found.push(diagnostic.field("spec.ports.targetPort").help(help));
    }
}
