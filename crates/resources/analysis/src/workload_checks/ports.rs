//! Checks ports and names of services: a declared protocol, the same protocol everywhere, and endpoints that serve.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use voile_model::mesh::{
    Mesh, MeshService, Protocol, Resolution, ServiceOrigin, ServicePort, Transport,
};
use voile_model::{Diagnostic, Port};

use crate::codes;
use crate::subject::Subject;
use crate::view::ClientView;

/// Checks all services.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    for service in view.mesh.services.values() {
        undeclared(view, service, found);
        external_name(service, found);
        unanswered(view, service, found);
    }
    for subject in &view.subjects {
        shared_targets(subject, found);
    }
    for (_, services) in view.named() {
        declared_differently(services, found);
    }
    virtual_addresses(view.mesh, found);
}

/// Reports a port without a declared protocol in front of a proxy that must detect it.
fn undeclared(view: &ClientView<'_>, service: &MeshService, found: &mut Vec<Diagnostic>) {
    if service.selector.is_none() && view.behind(service).is_empty() {
        return;
    }
    let silent =
        |port: &&ServicePort| port.protocol == Protocol::Auto && port.transport == Transport::Tcp;
    for port in service.ports.iter().filter(silent) {
        let behind = view.behind(service);
        // Without known workloads, one with a sidecar may still appear.
        if !behind.is_empty() && !behind.iter().any(|subject| subject.has_sidecar) {
            return;
        }
        let said = format!(
            "port {} of {} declares no protocol: proxies detect it from the first bytes, which fails for server-first protocols",
            port.number, service.key
        );
        let diagnostic = Diagnostic::note(codes::PORT_WITHOUT_PROTOCOL, port.source.clone(), said);
        found.push(diagnostic.field("spec.ports.name").help(
            "name the port `http`, `grpc` or `tcp`, or with one of these and a suffix such as `http-NAME`, or set appProtocol",
        ));
    }
}

/// Reports a port of an ExternalName Service that cannot identify the Service: the Service has no address of its own.
fn external_name(service: &MeshService, found: &mut Vec<Diagnostic>) {
    if !matches!(service.resolution, Resolution::Alias(_)) {
        return;
    }
    let nameless = |port: &&ServicePort| matches!(port.protocol, Protocol::Auto | Protocol::Tcp);
    for port in service.ports.iter().filter(nameless) {
        let said = format!(
            "port {} of {} is not declared HTTP or TLS: its connections carry no host name, and an ExternalName Service has no address, so no rule of the mesh applies to it",
            port.number, service.key
        );
        let source = port.source.clone();
        let diagnostic = Diagnostic::warning(codes::EXTERNAL_NAME_PORT, source, said);
        let help = "call the port `http`, `tls` or `NAME-…` with one of these";
        found.push(diagnostic.field("spec.ports.name").help(help));
    }
}

/// A service that leads nowhere.
fn unanswered(view: &ClientView<'_>, service: &MeshService, found: &mut Vec<Diagnostic>) {
    let selects = service.selector.as_ref().is_some_and(|one| !one.is_empty());
    if selects || service.resolution != Resolution::Static || view.written_endpoints(service) > 0 {
        return;
    }
    let help = match service.origin {
        ServiceOrigin::Kubernetes => {
            "add a `selector`, or an EndpointSlice with the label kubernetes.io/service-name"
        }
        ServiceOrigin::ServiceEntry => {
            "add `endpoints` or a `workloadSelector`, or use `resolution: DNS` if DNS resolves the host"
        }
    };
    let said = format!(
        "{} has no endpoints: it has neither a selector nor `endpoints` or an EndpointSlice",
        service.key
    );
    let source = service.source.clone();
    found.push(Diagnostic::warning(codes::NO_ENDPOINTS, source, said).help(help));
}

/// The protocol family that a proxy handles alike.
fn family(protocol: Protocol) -> Option<&'static str> {
    match protocol {
        Protocol::Http | Protocol::Http2 | Protocol::Grpc => Some("HTTP"),
        Protocol::Tcp => Some("TCP"),
        Protocol::Tls => Some("TLS"),
        Protocol::Auto | Protocol::Udp => None,
    }
}

/// One port of a workload, told to be of different protocols.
fn shared_targets(subject: &Subject<'_>, found: &mut Vec<Diagnostic>) {
    let services = &subject.services;
    if services.len() < 2 && services.iter().all(|service| service.ports.len() < 2) {
        return;
    }
    let mut told: BTreeMap<Port, (&ServicePort, &MeshService)> = BTreeMap::new();
    for service in services {
        for port in &service.ports {
            let Some(target) = subject.target(&port.target) else {
                continue;
            };
            if family(port.protocol).is_none() {
                continue;
            }
            let Some((first, of)) = told.get(&target) else {
                told.insert(target, (port, service));
                continue;
            };
            let (one, other) = (family(first.protocol), family(port.protocol));
            if one != other {
                let said = format!(
                    "port {target} of {} is {} by {} and {} by {}",
                    subject.name,
                    other.unwrap_or_default(),
                    service.key,
                    one.unwrap_or_default(),
                    of.key
                );
                let source = port.source.clone();
                found.push(
                    Diagnostic::warning(codes::PORT_PROTOCOLS_DIFFER, source, said)
                        .field("spec.ports")
                        .help("declare the same protocol in all services of the workload"),
                );
            }
        }
    }
}

/// One host in several namespaces, seen by the same clients, and not the same.
fn declared_differently(services: &[&Arc<MeshService>], found: &mut Vec<Diagnostic>) {
    let Some((first, others)) = services.split_first() else {
        return;
    };
    for other in others {
        let (a, b) = (&first.visibility, &other.visibility);
        let meet = a.includes(&other.key.namespace) || b.includes(&first.key.namespace);
        if !meet {
            continue;
        }
        let differs = first.ports.iter().find_map(|port| {
            let like = other.port(port.number)?;
            (family(like.protocol) != family(port.protocol)).then_some(port.number)
        });
        let what = match differs {
            Some(port) => format!("with another protocol on port {port}"),
            None if first.resolution != other.resolution => "with another resolution".to_owned(),
            None => continue,
        };
        let said = format!("{} is also declared by {}, {what}", other.key, first.source);
        let source = other.source.clone();
        found.push(
            Diagnostic::warning(codes::SAME_HOST_DIFFERENTLY, source, said)
                .field("spec.hosts")
                .help("declare a host once, or export each declaration to its own namespace only (exportTo: [\".\"])"),
        );
    }
}

/// Two services at one virtual address.
fn virtual_addresses(mesh: &Mesh, found: &mut Vec<Diagnostic>) {
    let mut taken: BTreeMap<(IpAddr, Port, bool), &MeshService> = BTreeMap::new();
    for service in mesh.services.values() {
        for address in &service.addresses {
            for port in &service.ports {
                // A port of UDP is another than the port of TCP with its number.
                let place = (*address, port.number, port.protocol == Protocol::Udp);
                let Some(first) = taken.get(&place) else {
                    taken.insert(place, service);
                    continue;
                };
                // The hosts of one ServiceEntry share its addresses; opaque bytes cannot tell them apart.
                let together = first.source == service.source;
                let told_apart = matches!(family(port.protocol), Some("HTTP" | "TLS"));
                let meet = first.visibility.includes(&service.key.namespace)
                    || service.visibility.includes(&first.key.namespace);
                if (together && told_apart) || !meet {
                    continue;
                }
                let said = format!(
                    "{} has the address {address} and port {} of {} in {}",
                    service.key, port.number, first.key, first.source
                );
                let source = service.source.clone();
                found.push(
                    Diagnostic::warning(codes::SAME_VIRTUAL_ADDRESS, source, said)
                        .field("spec.addresses")
                        .help("give each a different address, or none to have one assigned"),
                );
            }
        }
    }
}
