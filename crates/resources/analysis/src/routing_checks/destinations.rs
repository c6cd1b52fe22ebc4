//! Checks DestinationRules: a service for the host, workloads for the subsets, and settings that suit the ports.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use voile_model::mesh::routing_intent::Destination;
use voile_model::mesh::{DestinationRule, Mesh, MeshService, Protocol, RuleClient, Visibility};
use voile_model::{Diagnostic, Hostname, ResourceName, Source};

use crate::codes;
use crate::services::shown;
use crate::suggestions;
use crate::view::ClientView;

/// Checks all DestinationRules.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let mesh = view.mesh;
    let mut held: HashMap<&ResourceName, Vec<&Arc<MeshService>>> = HashMap::new();
    for service in mesh.services.values() {
        for rule in mesh.destination_rules_of(service) {
            held.entry(&rule.name).or_default().push(service);
        }
    }
    for rule in &mesh.destination_rules {
        match held.get(&rule.name) {
            None => found.extend(idle(mesh, rule)),
            Some(services) => services
                .iter()
                .for_each(|service| upgrades(rule, service, found)),
        }
    }
    let checked = mesh.destination_rules.iter().flat_map(|one| {
        let merged = one.merged.iter().map(|(name, _)| name);
        std::iter::once(&one.name).chain(merged)
    });
    let checked: BTreeSet<_> = checked.collect();
    for rule in &mesh.intents.destinations {
        let services = view.covered(&rule.host);
        if services.is_empty() && !checked.contains(&rule.name) {
            let source = rule.source.clone();
            let said = no_host(&rule.name, &rule.host);
            let diagnostic = Diagnostic::error(codes::DESTINATION_WITHOUT_SERVICE, source, said);
            let help = suggestions::for_host(mesh, &rule.host, OWN_NAMESPACE);
            let lacks = suggestions::missing_host(&rule.host);
            found.push(diagnostic.field("spec.host").help(help).lacks(lacks));
        }
        for service in services {
            subsets(view, rule, service, found);
        }
        failover(rule, found);
    }
}

/// Help text for a host without dots.
const OWN_NAMESPACE: &str = "declare a Service or ServiceEntry for it; a name without dots is a Service of the rule's own namespace";

fn no_host(name: &ResourceName, host: &Hostname) -> String {
    format!("DestinationRule {name} has the host `{host}`, which no service has")
}

/// Reports subsets without workloads.
fn subsets(
    view: &ClientView<'_>,
    rule: &Destination,
    service: &MeshService,
    found: &mut Vec<Diagnostic>,
) {
    let behind = view.behind(service);
    for subset in &rule.subsets {
        let workloads = behind.iter().map(|subject| subject.labels);
        let written = service.endpoints.iter().map(|endpoint| &endpoint.labels);
        let mut all = workloads.chain(written).peekable();
        // Another check reports a service without workloads.
        if all.peek().is_none() || all.any(|labels| subset.labels.selects(labels)) {
            continue;
        }
        let said = format!(
            "subset `{}` ({}) selects none of the workloads of {}",
            subset.name,
            shown(&subset.labels),
            service.key
        );
        let source = subset.source.clone();
        found.push(
            Diagnostic::warning(codes::EMPTY_SUBSET, source, said)
                .field("spec.subsets.labels")
                .help("give some of its Pods these labels; a route to the subset would be answered 503"),
        );
    }
}

fn failover(rule: &Destination, found: &mut Vec<Diagnostic>) {
    let Some(at) = &rule.failover_without_ejection else {
        return;
    };
    let said = format!(
        "DestinationRule {}: failover never happens: without outlierDetection no endpoint counts as unhealthy",
        rule.name
    );
    found.push(
        Diagnostic::warning(codes::FAILOVER_WITHOUT_EJECTION, at.clone(), said)
            .field("spec.trafficPolicy.loadBalancer.localityLbSetting")
            .help("add `outlierDetection` beside `loadBalancer`"),
    );
}

/// A rule that holds for nothing, and those that are one with it.
fn idle(mesh: &Mesh, rule: &DestinationRule) -> Vec<Diagnostic> {
    let all = std::iter::once((&rule.name, &rule.source));
    let all = all.chain(rule.merged.iter().map(|(name, source)| (name, source)));
    all.map(|(name, source)| idle_as(mesh, rule, name, source))
        .collect()
}

/// One of the clients that a rule is meant for.
fn wanted<'a>(mesh: &'a Mesh, rule: &'a DestinationRule) -> RuleClient<'a> {
    let home = &rule.name.namespace;
    let namespace = match &rule.visibility {
        Visibility::Namespaces(list) => list.first(),
        // A public rule of the root namespace is for clients that no other rule names.
        Visibility::Public => Some(home).filter(|home| **home != mesh.config.root_namespace),
    };
    let labels = rule.selector.as_ref();
    RuleClient { namespace, labels }
}

/// The same of one of them.
fn idle_as(
    mesh: &Mesh,
    rule: &DestinationRule,
    name: &ResourceName,
    source: &Source,
) -> Diagnostic {
    let host = &rule.host;
    let mut covered = mesh.services.values();
    let elsewhere = covered.find(|service| rule.host.covers(&service.key.hostname));
    let (message, help) = match elsewhere {
        None => (
            no_host(name, host),
            suggestions::for_host(mesh, host, OWN_NAMESPACE),
        ),
        Some(service) => match mesh.destination_rule(service, wanted(mesh, rule)) {
            Some(other) => (
                format!(
                    "DestinationRule {name} is ignored: {} in {} holds for {}",
                    other.name, other.source, service.key
                ),
                "keep one of them, or give both the same host: rules of one namespace for one host are one".to_owned(),
            ),
            None => (
                format!("DestinationRule {name} is ignored: none of the namespaces that it is exported to looks up rules for {} in its namespace", service.key),
                "clients use the rules of their own namespace, the service's namespace and the root namespace: export the rule to its own namespace, or move it to the service's namespace"
                    .to_owned(),
            ),
        },
    };
    let code = codes::DESTINATION_WITHOUT_SERVICE;
    let diagnostic = Diagnostic::error(code, source.clone(), message);
    let diagnostic = diagnostic.field("spec.host").help(help);
    match elsewhere {
        None => diagnostic.lacks(suggestions::missing_host(host)),
        Some(_) => diagnostic,
    }
}

/// An HTTP/2 upgrade needs a port known to carry HTTP/1.1. Otherwise an application would receive a protocol that it
/// does not speak.
fn upgrades(rule: &DestinationRule, service: &MeshService, found: &mut Vec<Diagnostic>) {
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
