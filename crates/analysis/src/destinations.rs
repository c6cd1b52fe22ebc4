//! DestinationRules: do they hold for a service, and does what they say mean something on its ports?

use std::sync::Arc;

use voile_model::Diagnostic;
use voile_model::mesh::{DestinationRule, Mesh, Protocol, Service};

use crate::codes;

/// Checks all DestinationRules.
pub(crate) fn check(mesh: &Mesh, found: &mut Vec<Diagnostic>) {
    for rule in &mesh.destination_rules {
        let holds = |service: &&Arc<Service>| {
            let other = mesh.destination_rule(service);
            other.is_some_and(|other| Arc::ptr_eq(other, rule))
        };
        let services: Vec<_> = mesh.services.values().filter(holds).collect();
        if services.is_empty() {
            found.push(idle(mesh, rule));
        }
        for service in services {
            upgrades(rule, service, found);
        }
    }
}

fn idle(mesh: &Mesh, rule: &DestinationRule) -> Diagnostic {
    let (name, host) = (&rule.name, &rule.host);
    let mut covered = mesh.services.values();
    let elsewhere = covered.find(|service| rule.host.covers(&service.key.hostname));
    let (message, help) = match elsewhere {
        None => (
            format!("DestinationRule {name} is for `{host}`, which is no service's host"),
            "a name without dots is a Service of the rule's own namespace".to_owned(),
        ),
        Some(service) => match mesh.destination_rule(service) {
            Some(other) => (
                format!(
                    "DestinationRule {name} is ignored: {} in {} holds for {}",
                    other.name, other.source, service.key
                ),
                "keep one rule for each host".to_owned(),
            ),
            None => (
                format!("DestinationRule {name} is ignored: it is not in the namespace of {}", service.key),
                "rules of clients' own namespaces are not yet supported: move it to the service's namespace, or to the root namespace"
                    .to_owned(),
            ),
        },
    };
    Diagnostic::error(
        codes::DESTINATION_WITHOUT_SERVICE,
        rule.source.clone(),
        message,
    )
    .field("spec.host")
    .help(help)
}

/// What travels as HTTP/2 must be known to be HTTP/1.1, or an application would get what it does not speak.
fn upgrades(rule: &DestinationRule, service: &Service, found: &mut Vec<Diagnostic>) {
    for port in &service.ports {
        let wanted = rule.pool(port.number, None).http2_upgrade == Some(true);
        if wanted
            && matches!(
                port.protocol,
                Protocol::Auto | Protocol::Tcp | Protocol::Tls
            )
        {
            let message = format!(
                "DestinationRule {}: `h2UpgradePolicy` has no effect on port {} of {}, which is not declared `http`",
                rule.name, port.number, service.key
            );
            found.push(
                Diagnostic::warning(codes::UPGRADE_OF_OTHERS, rule.source.clone(), message)
                    .help("name the port `http` or `http-…`, or set `appProtocol: http`"),
            );
        }
    }
}
