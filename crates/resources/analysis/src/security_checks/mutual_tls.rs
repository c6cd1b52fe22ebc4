//! Compares PeerAuthentication with DestinationRule: clients must speak the protocol that workloads accept. In Istio a
//! contradiction shows as 503 responses, perhaps hours after the change.

use std::collections::BTreeSet;
use std::time::SystemTime;

use voile_model::mesh::routing_intent::{ClientTls, ClientTlsMode, Destination};
use voile_model::mesh::{
    Location, Mesh, MeshService, MutualTlsMode, Transport, believed, certificate,
};
use voile_model::{Diagnostic, Namespace, Port, ResourceName};
use voile_policy::{Mode, inherited};

use crate::certificates;
use crate::codes;
use crate::gateways::credential;
use crate::subject::Subject;
use crate::view::ClientView;

/// Checks what all DestinationRules say of TLS.
pub(crate) fn check(view: &ClientView<'_>, now: SystemTime, found: &mut Vec<Diagnostic>) {
    for rule in &view.mesh.intents.destinations {
        for tls in &rule.tls {
            if tls.unverified {
                unverified(rule, tls, found);
            }
            if let Some(name) = &tls.credential {
                of_client(view.mesh, rule, (tls, name), now, found);
            }
        }
        if rule.tls.is_empty() {
            continue;
        }
        let services = view.covered(&rule.host);
        for service in services {
            for tls in &rule.tls {
                contradictions(view, rule, tls, service, found);
            }
        }
    }
}

/// Checks the Secret of a client's TLS settings. Gateways read it from their own namespaces. One of them must have a
/// suitable Secret; for SIMPLE, authorities are enough.
fn of_client(
    mesh: &Mesh,
    rule: &Destination,
    (tls, name): (&ClientTls, &str),
    now: SystemTime,
    found: &mut Vec<Diagnostic>,
) {
    let plain = name.strip_prefix("kubernetes://").unwrap_or(name);
    let own = &rule.name.namespace;
    let running = mesh.workloads.values().filter(|one| one.gateway);
    let running = running.map(|one| &one.key.namespace);
    let wanted = mesh.deployments.values();
    let wanted = wanted.filter(|one| one.template.is_gateway());
    let wanted = wanted.map(|one| &one.name.namespace);
    let gateways: BTreeSet<&Namespace> = running.chain(wanted).collect();
    let suits = |namespace: &Namespace| {
        let id = ResourceName::new(namespace.clone(), plain);
        let shown = certificate(mesh, &id).is_ok();
        shown || (tls.mode == ClientTlsMode::Simple && believed(mesh, &id).is_some())
    };
    let ids = gateways
        .iter()
        .map(|one| ResourceName::new((*one).clone(), plain));
    for secret in ids.filter_map(|id| mesh.secrets.get(&id)) {
        certificates::check(secret, &[], now, found);
    }
    if plain.contains('/') || !gateways.iter().any(|namespace| suits(namespace)) {
        let namespace = match gateways.first() {
            Some(first) if !gateways.contains(own) => first,
            _ => own,
        };
        if plain.contains('/') || !suits(namespace) {
            credential(mesh, namespace, name, &tls.source, found);
        }
    }
}

fn unverified(rule: &Destination, tls: &ClientTls, found: &mut Vec<Diagnostic>) {
    let said = format!(
        "DestinationRule {}: clients do not verify the certificate of {}: an attacker on the path can impersonate it",
        rule.name, rule.host
    );
    let source = tls.source.clone();
    found.push(
        Diagnostic::warning(codes::UNVERIFIED_SERVER, source, said)
            .field("spec.trafficPolicy.tls.insecureSkipVerify")
            .help(
                "set caCertificates or credentialName, and the expected names in subjectAltNames",
            ),
    );
}

/// The first workload, and its port, that does not accept the clients' protocol.
fn contradictions(
    view: &ClientView<'_>,
    rule: &Destination,
    tls: &ClientTls,
    service: &MeshService,
    found: &mut Vec<Diagnostic>,
) {
    let subset = tls.subset.as_ref().and_then(|name| {
        let mut subsets = rule.subsets.iter();
        subsets.find(|subset| subset.name == *name)
    });
    for port in &service.ports {
        // A level for the port alone replaces the wider one's.
        let narrower = |other: &ClientTls| {
            other.port == Some(port.number) && other.subset == tls.subset && tls.port.is_none()
        };
        let meant = tls.port.is_none_or(|number| number == port.number);
        if !meant || port.transport != Transport::Tcp || rule.tls.iter().any(narrower) {
            continue;
        }
        let refused = view.behind(service).into_iter().find_map(|subject| {
            // Workloads on another network are skipped: their own network decides, and the mesh reaches them by its
            // mutual TLS.
            let chosen = subset.is_none_or(|subset| subset.labels.selects(subject.labels));
            if !chosen || subject.behind_gateway {
                return None;
            }
            let target = subject.target(&port.target)?;
            Some((subject, refusal(view, subject, target, tls.mode, service)?))
        });
        if let Some((subject, why)) = refused {
            let said = format!(
                "DestinationRule {} makes clients use {} for port {} of {}, but {} {why}: the calls fail",
                rule.name,
                spoken(tls.mode),
                port.number,
                service.key,
                subject.name
            );
            let source = tls.source.clone();
            found.push(
                Diagnostic::error(codes::MUTUAL_TLS_CONTRADICTION, source, said)
                    .field("spec.trafficPolicy.tls.mode")
                    .help("remove `tls`: clients detect automatically whether a workload of the mesh accepts mutual TLS"),
            );
            return;
        }
    }
}

fn spoken(mode: ClientTlsMode) -> &'static str {
    match mode {
        ClientTlsMode::Disable => "plaintext (DISABLE)",
        ClientTlsMode::Simple => "TLS that is not the mesh's (SIMPLE)",
        ClientTlsMode::Mutual => "TLS that is not the mesh's (MUTUAL)",
        ClientTlsMode::IstioMutual => "the mesh's mutual TLS (ISTIO_MUTUAL)",
    }
}

/// The reason for which a workload refuses the clients' protocol.
fn refusal(
    view: &ClientView<'_>,
    subject: &Subject<'_>,
    port: Port,
    mode: ClientTlsMode,
    service: &MeshService,
) -> Option<String> {
    let taken = mode_at(view.mesh, subject, port);
    match (mode, subject.has_sidecar) {
        // A node proxy accepts its callers' tunnels under every PeerAuthentication.
        (ClientTlsMode::IstioMutual, false) if subject.ambient => None,
        (ClientTlsMode::IstioMutual, false) => Some("has no sidecar to accept it".to_owned()),
        (ClientTlsMode::IstioMutual, true) if taken == Mode::Disable => {
            Some("accepts only plaintext there (DISABLE)".to_owned())
        }
        (ClientTlsMode::IstioMutual, true) => None,
        (_, sidecar) => {
            let strict = taken == Mode::Strict && service.location == Location::MeshInternal;
            let refused = strict && (sidecar || (subject.ambient && is_obeyed(view, service)));
            refused.then(|| "accepts only the mesh's mutual TLS there (STRICT)".to_owned())
        }
    }
}

/// Returns true if some proxy applies DestinationRules to the service. Node proxies do not, so no call fails in a mesh
/// that has no other proxies.
fn is_obeyed(view: &ClientView<'_>, service: &MeshService) -> bool {
    let waypoint = view.mesh.waypoint_of(service).is_some();
    waypoint || view.subjects.iter().any(|one| one.has_sidecar)
}

/// The mode of one port of a workload.
pub(crate) fn mode_at(mesh: &Mesh, subject: &Subject<'_>, port: Port) -> Mode {
    let of_port = mesh.peer_authentications.iter().find_map(|policy| {
        let own = policy.name.namespace == *subject.namespace;
        let root = policy.name.namespace == mesh.config.root_namespace;
        let selector = policy.selector.as_ref().filter(|_| own && !root)?;
        selector.selects(subject.labels).then_some(policy)
    });
    let mode = of_port.and_then(|policy| policy.port_modes.get(&port)?.mode);
    match mode {
        Some(MutualTlsMode::Disable) => Mode::Disable,
        Some(MutualTlsMode::Permissive) => Mode::Permissive,
        Some(MutualTlsMode::Strict) => Mode::Strict,
        None => inherited(mesh, subject.namespace, subject.labels).mode,
    }
}
