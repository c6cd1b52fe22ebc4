//! Workloads: is their service account declared, and their address their own?

use std::collections::BTreeMap;
use std::net::IpAddr;

use voile_model::mesh::{Mesh, NamespaceResource, Workload, WorkloadKind};
use voile_model::{Diagnostic, ResourceName};

use crate::codes;
use crate::subject::Subject;
use crate::suggestions;

/// Checks all workloads.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    for subject in subjects {
        service_account(mesh, subject, found);
    }
    for namespace in mesh.namespaces.values() {
        injection(namespace, found);
    }
    let mut owners: BTreeMap<(&str, IpAddr), &Workload> = BTreeMap::new();
    for workload in mesh.workloads.values() {
        for address in &workload.addresses {
            let Some(first) = owners.insert((&workload.network, *address), workload) else {
                continue;
            };
            // Several ServiceEntries, or slices of Services, may name one server.
            let named = |one: &Workload| {
                matches!(
                    one.kind,
                    WorkloadKind::ServiceEntryEndpoint(_) | WorkloadKind::SliceEndpoint(_)
                )
            };
            if named(first) || named(workload) {
                continue;
            }
            let message = format!(
                "{} has the address {address} of {} in {}",
                workload.key, first.key, first.source
            );
            let help =
                "give each workload a different address: proxies identify workloads by address";
            found.push(
                Diagnostic::error(codes::SAME_ADDRESS, workload.source.clone(), message)
                    .field("status.podIP")
                    .help(help),
            );
        }
    }
}

fn service_account(mesh: &Mesh, subject: &Subject<'_>, found: &mut Vec<Diagnostic>) {
    let Some(template) = subject.template else {
        return;
    };
    // Every namespace has `default`.
    if &*template.service_account == "default" {
        return;
    }
    let name = ResourceName::new(subject.namespace.clone(), template.service_account.clone());
    if !mesh.service_accounts.contains_key(&name) {
        let source = template
            .service_account_source
            .as_ref()
            .unwrap_or(subject.source)
            .clone();
        let message = format!(
            "{} runs as the service account {name}, which is not declared",
            subject.name
        );
        let add = format!(
            "add kind: ServiceAccount with name {} in namespace {}",
            name.name, name.namespace
        );
        // A Pod runs as an account of its own namespace.
        let own = mesh.service_accounts.keys();
        let own = own.filter(|one| one.namespace == name.namespace);
        let help = suggestions::for_name(&name, own, &add);
        found.push(
            Diagnostic::warning(codes::UNKNOWN_SERVICE_ACCOUNT, source, message)
                .field("spec.serviceAccountName")
                .help(help)
                .lacks(format!("ServiceAccount {name}")),
        );
    }
}

/// A namespace with several of the labels that give its Pods proxies. `istio-injection` decides where it stands, then
/// `istio.io/rev`.
fn injection(namespace: &NamespaceResource, found: &mut Vec<Diagnostic>) {
    let said = |name: &str| {
        let value = namespace.labels.get(name)?;
        Some(format!("{name}: {value}"))
    };
    let word = namespace.labels.get("istio-injection");
    let sidecars = word.is_none_or(|word| word == "enabled");
    // Ambient Pods are meant to have no sidecars.
    let ambient = said("istio.io/dataplane-mode").filter(|_| sidecars);
    let labels = [said("istio-injection"), said("istio.io/rev"), ambient];
    let labels: Vec<String> = labels.into_iter().flatten().collect();
    if labels.len() < 2 {
        return;
    }
    let said = format!(
        "namespace {} has several injection labels ({}): its Pods get {}",
        namespace.name,
        labels.join(" and "),
        if sidecars { "sidecars" } else { "no sidecars" }
    );
    let source = namespace.source.clone();
    found.push(
        Diagnostic::warning(codes::INJECTION_SAID_TWICE, source, said)
            .field("metadata.labels")
            .help("keep one of these labels"),
    );
}
