//! HealthChecks: is there somebody who asks, and somebody to be asked?

use voile_model::Diagnostic;
use voile_model::mesh::{HealthCheck, PodTemplate};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::view::View;

/// Checks all HealthChecks.
pub(crate) fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for one in view.mesh.health_checks.values() {
        asking(view, one, found);
        asked(view, one, found);
    }
}

/// Who asks.
fn asking(view: &View<'_>, one: &HealthCheck, found: &mut Vec<Diagnostic>) {
    let root = &view.mesh.config.root_namespace;
    let asks = |subject: &Subject<'_>| {
        let waypoint = subject.template.is_some_and(PodTemplate::is_waypoint);
        let edge = subject.is_gateway() && !waypoint;
        let proxy = subject.has_sidecar || subject.is_gateway();
        proxy && one.is_asked_by((subject.namespace, subject.labels), edge, root)
    };
    if view.subjects.iter().any(asks) {
        return;
    }
    let name = &one.name;
    let (message, help) = match &one.selector {
        Some(labels) => (
            format!(
                "nobody asks by HealthCheck {name}: its selector ({}) selects no proxy",
                shown(labels)
            ),
            "it selects gateways and workloads with a sidecar of its own namespace, and those of the mesh from the root namespace",
        ),
        None => (
            format!(
                "nobody asks by HealthCheck {name}: without a selector gateways do, and there is none"
            ),
            "say by `selector` which workloads' sidecars ask",
        ),
    };
    let source = one.source.clone();
    found.push(Diagnostic::warning(codes::NOBODY_CHECKS, source, message).help(help));
}

/// Who is asked.
fn asked(view: &View<'_>, one: &HealthCheck, found: &mut Vec<Diagnostic>) {
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
            format!("HealthCheck {name} is for {host}, which no service is: nobody is asked"),
            "spec.host",
        ),
        Some(port) if !has_port(port) => (
            format!(
                "HealthCheck {name} is for port {port} of {host}, which has none: nobody is asked"
            ),
            "spec.port",
        ),
        _ => return,
    };
    let help = match view.like(host) {
        Some(like) if field == "spec.host" => format!("perhaps {}", like.key.hostname),
        _ => {
            "a host and port of a Service or ServiceEntry; without `port` each is asked".to_owned()
        }
    };
    let source = one.source.clone();
    let diagnostic = Diagnostic::warning(codes::UNKNOWN_CHECKED_HOST, source, message);
    found.push(diagnostic.field(field).help(help));
}
