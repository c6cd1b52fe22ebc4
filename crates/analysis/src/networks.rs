//! Networks: has each that is named a gateway, is each gateway one whom callers can find and verify, and who cannot go through it?

use voile_model::Diagnostic;
use voile_model::mesh::PodTemplate;
use voile_model::mesh::network::{GLOBAL, NETWORK};

use crate::codes;
use crate::view::View;

/// Checks Gateways between networks, and who is on others.
pub(crate) fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
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
            "{} is on the network {network}, to which no Gateway leads: node proxies do not call it, and whoever has a sidecar calls \
             its address as if it were on ours",
            workload.key
        );
        let help = format!(
            "declare a Gateway of the class istio-remote with the label {NETWORK}: {network}, or name our own network by that label of \
             the root namespace"
        );
        let code = codes::NETWORK_WITHOUT_GATEWAY;
        found.push(Diagnostic::warning(code, workload.source.clone(), message).help(help));
    }
    if mesh.has_networks() {
        services(view, found);
    }
}

fn services(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    let mesh = view.mesh;
    let waypoint = |template: &PodTemplate| template.is_waypoint();
    let mut subjects = view.subjects.iter();
    let sidecar = subjects.find(|one| one.has_sidecar && !one.template.is_some_and(waypoint));
    for service in mesh.services.values() {
        let members = mesh.workloads_of(service).into_iter();
        let mut away = members.filter(|one| mesh.is_behind_gateway(&one.workload.network));
        let before = mesh.waypoint_of(service);
        let caller = match (&before, sidecar) {
            (Some(waypoint), _) => Some(format!("its waypoint {waypoint}")),
            (None, Some(subject)) => Some(subject.name.clone()),
            (None, None) => None,
        };
        if let (Some(first), Some(caller)) = (away.next(), caller) {
            let more = match away.count() {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            let message = format!(
                "{} has {} on the network {}{more}, which {caller} never calls: only node proxies go through gateways of networks",
                service.key, first.workload.key, first.workload.network
            );
            let help = "give callers node proxies (`istio.io/dataplane-mode: ambient`), or keep workloads on our own network for them";
            let code = codes::NETWORK_BEYOND_SIDECARS;
            found.push(Diagnostic::warning(code, service.source.clone(), message).help(help));
        }
        if service.global && !mesh.is_exported(service) {
            let why = match before {
                Some(waypoint) => format!(
                    "it stands behind the waypoint {waypoint}, and whoever came in would go past that"
                ),
                None => "it is not exported to all namespaces".to_owned(),
            };
            let message = format!(
                "{} says {GLOBAL}, but no other network may call it: {why}",
                service.key
            );
            let help =
                "leave it without a waypoint and with `exportTo: [\"*\"]`, or remove the label";
            let code = codes::GLOBAL_NOT_EXPORTED;
            found.push(Diagnostic::warning(code, service.source.clone(), message).help(help));
        }
    }
}
