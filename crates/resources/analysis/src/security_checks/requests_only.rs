//! Checks rules about requests (RequestAuthentication, RateLimit) on ports that may carry other protocols. Under such a
//! rule a port that declares no protocol carries requests only. A port declared `tcp` or `tls` has no requests.

use voile_model::mesh::authorization::PolicyTarget;
use voile_model::mesh::{MeshService, Protocol};
use voile_model::{Diagnostic, Port, ResourceName, Source};

use crate::codes;
use crate::subject::Subject;
use crate::view::ClientView;

/// Checks all resources with rules about requests.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let mesh = view.mesh;
    let root = &mesh.config.root_namespace;
    for one in &mesh.request_authentications {
        if one.rules.is_empty() {
            continue;
        }
        let of = ("RequestAuthentication", &one.name, &one.source);
        if let PolicyTarget::References(targets) = &one.target {
            let obeyed = targets
                .iter()
                .filter(|target| mesh.is_obeyed(&one.name.namespace, target));
            let services = obeyed.filter_map(|target| {
                let mut all = mesh.services.values();
                all.find(|service| {
                    *target.kind == *"Service"
                        && service.key.namespace == one.name.namespace
                        && service.name == target.name
                })
            });
            let mut undeclared = services.filter_map(|service| undeclared_port(service));
            found.extend(undeclared.next().map(|port| denies(of, port)));
            continue;
        }
        let selected: Vec<_> = view
            .subjects
            .iter()
            .filter(|subject| obeys(subject))
            .filter(|subject| one.selects(root, subject.namespace, subject.labels))
            .collect();
        let of_kind = |kinds: &[Protocol]| selected.iter().find_map(|one| port_of(one, kinds));
        found.extend(of_kind(&[Protocol::Auto]).map(|port| denies(of, port)));
        // A policy for all workloads of a namespace is expected to cover some other ports.
        if matches!(one.target, PolicyTarget::Workloads(_))
            && let Some(port) = of_kind(&[Protocol::Tcp, Protocol::Tls])
        {
            found.push(knows_no_requests(&one.name, &one.source, &port));
        }
    }
    for one in mesh.rate_limits.values() {
        let limited = view
            .subjects
            .iter()
            .filter(|subject| obeys(subject))
            .filter(|subject| mesh.is_limited(one, subject.namespace, subject.labels));
        let mut ports = limited.filter_map(|subject| port_of(subject, &[Protocol::Auto]));
        let of = ("RateLimit", &one.name, &one.source);
        found.extend(ports.next().map(|port| denies(of, port)));
    }
}

/// Returns true if a sidecar accepts connections here by the port's declared protocol.
fn obeys(subject: &Subject<'_>) -> bool {
    subject.has_sidecar && !subject.is_gateway()
}

/// The first port of a service that declares nothing, for people.
fn undeclared_port(service: &MeshService) -> Option<String> {
    let mut ports = service.ports.iter();
    let port = ports.find(|port| port.protocol == Protocol::Auto)?;
    Some(format!("port {} of Service {}", port.number, service.key))
}

/// The first port of a workload that one of its services declares so, for people.
fn port_of(subject: &Subject<'_>, kinds: &[Protocol]) -> Option<String> {
    let services = subject.services.iter();
    let mut ports = services.flat_map(|service| &service.ports);
    let port: Port = ports.find_map(|port| {
        let target = subject.target(&port.target)?;
        kinds.contains(&port.protocol).then_some(target)
    })?;
    Some(format!("port {port} of {}", subject.name))
}

fn denies(
    (kind, name, source): (&str, &ResourceName, &Source),
    port: impl std::fmt::Display,
) -> Diagnostic {
    let message = format!(
        "{port} declares no protocol, and {kind} {name} applies to it: traffic that is not HTTP is denied"
    );
    let help = "name the Service's port after its protocol (`http-…`, `grpc-…`, `tcp-…`), or write `appProtocol`; use `tcp` for other protocols";
    Diagnostic::warning(codes::REQUESTS_ONLY, source.clone(), message).help(help)
}

fn knows_no_requests(name: &ResourceName, source: &Source, port: &str) -> Diagnostic {
    let message =
        format!("{port} is not HTTP: RequestAuthentication {name} verifies no tokens there");
    let help = "declare the port `http`, `http2` or `grpc` if it serves HTTP";
    Diagnostic::warning(codes::TOKENS_ON_TCP, source.clone(), message).help(help)
}
