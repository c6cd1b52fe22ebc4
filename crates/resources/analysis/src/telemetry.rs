//! Checks Telemetry: existing and suitable providers, selected workloads, and no second resource for the same
//! workloads.

use std::collections::BTreeMap;

use voile_model::Diagnostic;
use voile_model::mesh::telemetry::{ProviderName, Telemetry};
use voile_model::mesh::{Mesh, Provider};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions::missing_workloads;

/// Checks all Telemetries.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    let mut whole: BTreeMap<_, &Telemetry> = BTreeMap::new();
    for telemetry in &mesh.telemetries {
        providers(mesh, telemetry, found);
        let namespace = &telemetry.name.namespace;
        if telemetry.is_whole() {
            if let Some(first) = whole.get(namespace) {
                let message = format!(
                    "Telemetry {} is ignored: {} in {} applies to the whole namespace",
                    telemetry.name, first.name, first.source
                );
                found.push(
                    Diagnostic::error(codes::TWO_TELEMETRIES, telemetry.source.clone(), message)
                        .help("keep one Telemetry without a selector in each namespace"),
                );
            } else {
                whole.insert(namespace, telemetry);
            }
            continue;
        }
        nobody(mesh, telemetry, subjects, found);
    }
}

/// Reports targets that do not exist or give no telemetry.
fn nobody(
    mesh: &Mesh,
    telemetry: &Telemetry,
    subjects: &[Subject<'_>],
    found: &mut Vec<Diagnostic>,
) {
    let namespace = &telemetry.name.namespace;
    let code = codes::TELEMETRY_SELECTS_NOTHING;
    let mut near = subjects.iter().filter(|one| one.namespace == namespace);
    if let Some(selector) = &telemetry.selector {
        if near.any(|subject| telemetry.selects(subject.labels)) {
            return;
        }
        let message = format!(
            "the selector ({}) of Telemetry {} selects no workload",
            shown(selector),
            telemetry.name
        );
        found.push(
            Diagnostic::warning(code, telemetry.source.clone(), message)
                .field("spec.selector")
                .help("select workloads of the Telemetry's own namespace")
                .lacks(missing_workloads(namespace, selector)),
        );
        return;
    }
    let labelled = near.any(|subject| telemetry.selects(subject.labels));
    for target in &telemetry.targets {
        let gateway = &*target.kind == "Gateway";
        let there = gateway && (labelled || mesh.is_gateway(target, namespace));
        if there || mesh.is_obeyed(namespace, target) {
            continue;
        }
        let (why, help) = match gateway {
            true => (
                "there is no such Gateway",
                "target a gateway or waypoint of the Telemetry's own namespace",
            ),
            false => (
                "it has no waypoint, and sidecars and node proxies ignore `targetRefs` to it, as in Istio",
                "label the service `istio.io/use-waypoint: NAME` and add a Gateway NAME with gatewayClassName istio-waypoint, or use `selector`",
            ),
        };
        let message = format!(
            "Telemetry {} has no effect on {} {}: {why}",
            telemetry.name, target.kind, target.name
        );
        found.push(
            Diagnostic::warning(code, target.source.clone(), message)
                .field("spec.targetRefs")
                .help(help),
        );
    }
}

fn providers(mesh: &Mesh, telemetry: &Telemetry, found: &mut Vec<Diagnostic>) {
    type Able = fn(&Provider) -> bool;
    let mut ask = |names: &[ProviderName], what: &str, kinds: &str, able: Able| {
        for name in names {
            let message = match mesh.config.provider(&name.name) {
                Some(provider) if able(&provider) => continue,
                Some(_) => format!("provider `{}` does not support {what}", name.name),
                None => format!("there is no provider `{}`", name.name),
            };
            let help = format!("name one of MeshConfig's extensionProviders that is {kinds}");
            found.push(
                Diagnostic::error(codes::UNKNOWN_PROVIDER, name.source.clone(), message).help(help),
            );
        }
    };
    for rule in &telemetry.access_logging {
        let kinds = "envoyFileAccessLog, envoyHttpAls or envoyTcpAls";
        ask(&rule.providers, "access logs", kinds, |provider| {
            matches!(
                provider,
                Provider::File(_) | Provider::HttpAls(_) | Provider::TcpAls(_)
            )
        });
    }
    for rule in &telemetry.tracing {
        ask(&rule.providers, "spans", "opentelemetry", |provider| {
            matches!(provider, Provider::OpenTelemetry(_))
        });
    }
    for rule in &telemetry.metrics {
        ask(&rule.providers, "metrics", "prometheus", |provider| {
            *provider == Provider::Prometheus
        });
    }
}
