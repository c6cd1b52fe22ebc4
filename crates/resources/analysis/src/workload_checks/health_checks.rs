//! Checks HealthChecks: proxies that run the check, and endpoints to check.

use std::sync::Arc;

use voile_model::Diagnostic;
use voile_model::mesh::routing_intent::{DeclaredServer, Gateway, ServerTlsMode};
use voile_model::mesh::{HealthCheck, MeshService, PodTemplate};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions;
use crate::view::ClientView;

/// Checks all HealthChecks.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    for one in view.mesh.health_checks.values() {
        asking(view, one, found);
        asked(view, one, found);
        unread(view, one, found);
    }
}

/// Returns true if the workload's proxy runs this health check.
fn asks(view: &ClientView<'_>, one: &HealthCheck, subject: &Subject<'_>) -> bool {
    let root = &view.mesh.config.root_namespace;
    let waypoint = subject.template.is_some_and(PodTemplate::is_waypoint);
    let edge = subject.is_gateway() && !waypoint;
    let proxy = subject.has_sidecar || subject.is_gateway();
    proxy && one.is_asked_by((subject.namespace, subject.labels), edge, root)
}

/// Reports gateways that run the check and also serve the service by AUTO_PASSTHROUGH. AUTO_PASSTHROUGH ignores the
/// results.
fn unread(view: &ClientView<'_>, one: &HealthCheck, found: &mut Vec<Diagnostic>) {
    let services = view.covered(&one.host);
    let has = |server: &DeclaredServer, service: &MeshService| {
        server.hosts.iter().any(|host| {
            let only = host.namespace.as_ref();
            only.is_none_or(|only| *only == service.key.namespace)
                && host.host.covers(&service.key.hostname)
        })
    };
    let leads = |server: &DeclaredServer| {
        let mode = server.tls.as_ref().map(|tls| tls.mode);
        mode == Some(ServerTlsMode::AutoPassthrough)
            && services.iter().any(|service| has(server, service))
    };
    let asked_by = |gateway: &Arc<Gateway>| {
        let selector = gateway.selector.as_ref();
        let selected = selector.map(|selector| view.selected_anywhere(selector));
        let mut gateways = selected.into_iter().flatten();
        gateways.any(|subject| subject.is_gateway() && asks(view, one, subject))
    };
    let all = view.mesh.intents.gateways.iter();
    for gateway in all.filter(|gateway| gateway.servers.iter().any(leads)) {
        if !asked_by(gateway) {
            continue;
        }
        let message = format!(
            "HealthCheck {} has no effect where Gateway {} passes TLS through (AUTO_PASSTHROUGH): unhealthy endpoints still receive that traffic",
            one.name, gateway.name
        );
        let help = "use outlierDetection of a DestinationRule there";
        let source = one.source.clone();
        found.push(Diagnostic::warning(codes::UNREAD_CHECK, source, message).help(help));
    }
}

/// Checks the proxies that run a health check.
fn asking(view: &ClientView<'_>, one: &HealthCheck, found: &mut Vec<Diagnostic>) {
    if view.subjects.iter().any(|subject| asks(view, one, subject)) {
        return;
    }
    let name = &one.name;
    let (message, help) = match &one.selector {
        Some(labels) => (
            format!(
                "no proxy runs HealthCheck {name}: its selector ({}) selects none",
                shown(labels)
            ),
            "select gateways or workloads with a sidecar of its own namespace; from the root namespace, of the whole mesh",
        ),
        None => (
            format!(
                "no proxy runs HealthCheck {name}: without a selector only gateways do, and there is none"
            ),
            "select the workloads whose sidecars run it with `selector`",
        ),
    };
    let source = one.source.clone();
    found.push(Diagnostic::warning(codes::NOBODY_CHECKS, source, message).help(help));
}

/// Checks the target of a health check.
fn asked(view: &ClientView<'_>, one: &HealthCheck, found: &mut Vec<Diagnostic>) {
    let (name, host) = (&one.name, &one.host);
    let services = view.covered(host);
    let mut named = services
        .iter()
        .filter(|service| service.key.hostname == *host);
    let has_port = |port| {
        let mut ports = services.iter().flat_map(|service| &service.ports);
        ports.any(|one| one.number == port)
    };
    let (message, field) = match one.port {
        _ if named.next().is_none() => (
            format!(
                "HealthCheck {name} has the host {host}, which no service has: nothing is checked"
            ),
            "spec.host",
        ),
        Some(port) if !has_port(port) => (
            format!(
                "HealthCheck {name} has port {port} of {host}, which has no such port: nothing is checked"
            ),
            "spec.port",
        ),
        _ => return,
    };
    let write =
        "write a host and port of a Service or ServiceEntry; without `port` each port is checked";
    let help = match field {
        "spec.host" => suggestions::for_host(view.mesh, host, write),
        _ => write.to_owned(),
    };
    let source = one.source.clone();
    let diagnostic = Diagnostic::warning(codes::UNKNOWN_CHECKED_HOST, source, message);
    let mut diagnostic = diagnostic.field(field).help(help);
    if field == "spec.host" {
        diagnostic = diagnostic.lacks(suggestions::missing_host(host));
    }
    found.push(diagnostic);
}
