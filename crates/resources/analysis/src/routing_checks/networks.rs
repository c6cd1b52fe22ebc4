//! Checks networks: a gateway for each named network, gateways that callers can find and verify, and obstacles for
//! callers.

use voile_model::Diagnostic;
use voile_model::mesh::network::{GLOBAL, NETWORK};
use voile_model::mesh::traffic::ClientTls;
use voile_model::mesh::workload::TUNNEL;
use voile_model::mesh::{Mesh, MeshService};

use crate::codes;
use crate::view::ClientView;

/// Checks Gateways between networks, and workloads on other networks.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let mesh = view.mesh;
    for gateway in &mesh.gateway_api.gateways {
        for flaw in mesh.flaws(gateway) {
            let code = codes::NETWORK_GATEWAY_UNUSABLE;
            found.push(Diagnostic::error(code, flaw.source, flaw.what).help(flaw.help));
        }
    }
    for workload in mesh.workloads.values() {
        let network = &workload.network;
        if network.is_empty() || mesh.is_behind_gateway(network) {
            continue;
        }
        let message = format!(
            "{} is on the network {network}, which has no Gateway: node proxies do not call the workload, and sidecars call its address as if it were on this network",
            workload.key
        );
        let help = format!(
            "add a Gateway with gatewayClassName istio-remote and the label {NETWORK}: {network}, or set that label on the root namespace if it is this network"
        );
        let code = codes::NETWORK_WITHOUT_GATEWAY;
        found.push(Diagnostic::warning(code, workload.source.clone(), message).help(help));
    }
    if mesh.has_networks() {
        services(view, found);
    }
}

fn services(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let mesh = view.mesh;
    let mut gateways = mesh.gateway_api.gateways.iter();
    let is_entered = gateways.any(|one| one.is_east_west() && mesh.flaws(one).is_empty());
    for service in mesh.services.values() {
        kept_from_gateways(mesh, service, found);
        if service.global && !mesh.is_exported(service) {
            let message = format!(
                "{} has {GLOBAL}, but other networks cannot call it: it is not exported to all namespaces",
                service.key
            );
            let help = "write `exportTo: [\"*\"]`, or remove the label";
            let code = codes::GLOBAL_NOT_EXPORTED;
            found.push(Diagnostic::warning(code, service.source.clone(), message).help(help));
        } else if service.global && is_entered && mesh.waypoint_of(service).is_none() {
            not_led_to(view, service, found);
        }
    }
}

/// Reports workloads of a service for other networks that accept no tunnels. Our gateway forwards only tunnels and
/// cannot reach them.
fn not_led_to(view: &ClientView<'_>, service: &MeshService, found: &mut Vec<Diagnostic>) {
    let members = view.behind(service).into_iter();
    let members: Vec<_> = members.filter(|one| !one.behind_gateway).collect();
    let deaf: Vec<_> = members.iter().filter(|one| !one.takes_tunnels()).collect();
    let Some(first) = deaf.first() else {
        return;
    };
    let more = match deaf.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let (who, help) = match first.has_sidecar && !first.is_gateway() {
        true => (
            "its sidecar does not accept HBONE",
            format!(
                "label the Pods `{}: {}`, if their sidecars accept HBONE (`voile proxy --capture redirect`), or make them ambient",
                TUNNEL.0, TUNNEL.1
            ),
        ),
        false => (
            "it has no proxy that accepts HBONE",
            "make the Pods ambient (`istio.io/dataplane-mode: ambient`)".to_owned(),
        ),
    };
    let whole = match deaf.len() == members.len() {
        true => ": the service has no reachable endpoint",
        false => "",
    };
    let message = format!(
        "{} has {GLOBAL}, but callers from other networks never reach {}{more}: {who}{whole}",
        service.key, first.name
    );
    let code = codes::NETWORK_WITHOUT_TUNNEL;
    found.push(Diagnostic::warning(code, service.source.clone(), message).help(help));
}

/// Rules by which callers speak what no gateway of a network leads on.
fn kept_from_gateways(mesh: &Mesh, service: &MeshService, found: &mut Vec<Diagnostic>) {
    let members = mesh.workloads_of(service).into_iter();
    let mut away = members.filter(|one| mesh.is_behind_gateway(&one.workload.network));
    let Some(first) = away.next() else {
        return;
    };
    let more = match away.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    for rule in mesh.destination_rules_of(service) {
        let spoken = service.ports.iter().find_map(|port| {
            let said = rule.traffic(port.number, None).tls?;
            match said {
                ClientTls::Disable => Some((port.number, "plaintext")),
                ClientTls::Originate(_) => Some((port.number, "TLS other than the mesh's")),
                ClientTls::Mutual(_) => None,
            }
        });
        let Some((port, what)) = spoken else {
            continue;
        };
        let message = format!(
            "DestinationRule {} makes clients call port {port} of {} in {what}, so they never call {} on the network {}{more}: gateways between networks forward only the mesh's mutual TLS",
            rule.name, service.key, first.workload.key, first.workload.network
        );
        let help =
            "write `tls: {mode: ISTIO_MUTUAL}`, or run endpoints for these clients on this network";
        let code = codes::NETWORK_KEPT_FROM;
        found.push(Diagnostic::warning(code, rule.source.clone(), message).help(help));
    }
}
