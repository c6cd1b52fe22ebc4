//! Telemetry: are its providers there and able, is it for somebody, and is it the only one?

use std::collections::BTreeMap;

use voile_model::Diagnostic;
use voile_model::mesh::telemetry::{ProviderName, Telemetry};
use voile_model::mesh::{Mesh, Provider};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;

/// Checks all Telemetries.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    let mut whole: BTreeMap<_, &Telemetry> = BTreeMap::new();
    for telemetry in &mesh.telemetries {
        providers(mesh, telemetry, found);
        let namespace = &telemetry.name.namespace;
        if telemetry.is_whole() {
            if let Some(first) = whole.get(namespace) {
                let message = format!(
                    "Telemetry {} is ignored: {} in {} holds for the whole namespace",
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
        let mut near = subjects.iter().filter(|one| one.namespace == namespace);
        let mut gateways = telemetry.gateways.iter();
        if near.any(|subject| telemetry.selects(subject.labels))
            || gateways.any(|one| mesh.is_gateway(one, namespace))
        {
            continue;
        }
        let (whom, field) = match &telemetry.selector {
            Some(selector) => (
                format!("the selector ({})", shown(selector)),
                "spec.selector",
            ),
            None => ("`targetRefs`".to_owned(), "spec.targetRefs"),
        };
        let message = format!("{whom} of Telemetry {} selects no workload", telemetry.name);
        let code = codes::TELEMETRY_SELECTS_NOTHING;
        found.push(
            Diagnostic::warning(code, telemetry.source.clone(), message)
                .field(field)
                .help("a Telemetry is for workloads of its own namespace"),
        );
    }
}

fn providers(mesh: &Mesh, telemetry: &Telemetry, found: &mut Vec<Diagnostic>) {
    type Able = fn(&Provider) -> bool;
    let mut ask = |names: &[ProviderName], what: &str, kinds: &str, able: Able| {
        for name in names {
            let message = match mesh.config.provider(&name.name) {
                Some(provider) if able(&provider) => continue,
                Some(_) => format!("provider `{}` cannot take {what}", name.name),
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
