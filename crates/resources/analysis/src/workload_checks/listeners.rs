//! Listeners: do two want one address and port, and can the application run on loopback addresses at all?

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use voile_model::mesh::{
    CaptureMode, EndpointHost, IngressListener, Mesh, POD_LABEL, Sidecar, Transport,
};
use voile_model::{Diagnostic, Port, Source};

use crate::codes;
use crate::subject::Subject;

/// Checks all listeners.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    for sidecar in mesh.sidecars.values() {
        clashes(sidecar, found);
    }
    for subject in subjects
        .iter()
        .filter(|subject| subject.has_sidecar && !subject.placed && !subject.is_gateway())
    {
        loopback(mesh, subject, found);
    }
}

/// Bind address of a listener, as far as it is known before its workload exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Bind {
    Address(IpAddr),
    Workload,
}

fn clashes(sidecar: &Sidecar, found: &mut Vec<Diagnostic>) {
    let mut taken: BTreeMap<(Bind, Port), (&Source, String)> = BTreeMap::new();
    let mut claim = |bind, port, source, what: String, field: &str| {
        if let Some((first, by)) = taken.get(&(bind, port)) {
            let message = format!("{what} has the same address and port as {by} in {first}");
            let diagnostic =
                Diagnostic::error(codes::LISTENER_CLASH, Clone::clone(source), message);
            found.push(
                diagnostic
                    .field(field)
                    .help("give one of them another `bind` or port"),
            );
        } else {
            taken.insert((bind, port), (source, what));
        }
    };
    for listener in &sidecar.ingress {
        let bind = listener.bind.map_or(Bind::Workload, Bind::Address);
        claim(
            bind,
            listener.port.number,
            &listener.source,
            "an ingress listener".to_owned(),
            "spec.ingress",
        );
        // Redirected traffic never binds the application's port.
        if listener.capture_mode == CaptureMode::None
            && let Some(endpoint) = listener.default_endpoint
        {
            let host = match endpoint.host {
                EndpointHost::Loopback(address) => Bind::Address(address),
                EndpointHost::Workload => Bind::Workload,
            };
            // Several listeners may share an application: only the listener itself is a clash.
            if (host, endpoint.port) == (bind, listener.port.number) {
                claim(
                    host,
                    endpoint.port,
                    &listener.source,
                    "the application behind it".to_owned(),
                    "spec.ingress.defaultEndpoint",
                );
            }
        }
    }
    for listener in &sidecar.egress {
        let Some(port) = &listener.port else { continue };
        let bind = match (listener.bind, listener.capture_mode) {
            (Some(address), _) => address,
            (None, CaptureMode::None) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            // It binds what its services have; those are told apart elsewhere.
            (None, CaptureMode::Default | CaptureMode::Iptables) => continue,
        };
        claim(
            Bind::Address(bind),
            port.number,
            &listener.source,
            "an egress listener".to_owned(),
            "spec.egress",
        );
    }
}

/// On loopback addresses the kernel redirects nothing. Each called port needs an ingress listener that accepts
/// connections.
fn loopback(mesh: &Mesh, subject: &Subject<'_>, found: &mut Vec<Diagnostic>) {
    if subject.labels.get(POD_LABEL).is_some() {
        return; // it runs already, where it can
    }
    let sidecar = mesh.sidecar_for_labels(subject.namespace, subject.labels);
    let ingress: &[IngressListener] = sidecar.map_or(&[], |sidecar| &sidecar.ingress);
    for service in &subject.services {
        for port in service
            .ports
            .iter()
            .filter(|port| port.transport == Transport::Tcp)
        {
            let Some(target) = subject.target(&port.target) else {
                continue;
            };
            let serves = |l: &&IngressListener| {
                l.capture_mode == CaptureMode::None
                    && (l.port.number == target || l.port.number == port.number)
            };
            if !ingress.iter().any(|listener| serves(&listener)) {
                let message = format!(
                    "{} can run only with network namespaces: it has a sidecar, but no Sidecar ingress listener for port {target} of {}",
                    subject.name, service.key
                );
                let help = format!(
                    "to run it on loopback addresses, add a Sidecar with ingress port {target}, captureMode: NONE and a defaultEndpoint"
                );
                found.push(
                    Diagnostic::warning(codes::NAMESPACES_ONLY, subject.source.clone(), message)
                        .help(help),
                );
            }
        }
    }
}
