//! Workloads: is their service account declared, and their address their own?

use std::collections::BTreeMap;
use std::net::IpAddr;

use voile_model::mesh::{Mesh, Workload, WorkloadKind};
use voile_model::{Diagnostic, ResourceName};

use crate::codes;
use crate::subject::Subject;

/// Checks all workloads.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    for subject in subjects {
        service_account(mesh, subject, found);
    }
    let mut owners: BTreeMap<(&str, IpAddr), &Workload> = BTreeMap::new();
    for workload in mesh.workloads.values() {
        for address in &workload.addresses {
            let Some(first) = owners.insert((&workload.network, *address), workload) else {
                continue;
            };
            // Several ServiceEntries may name one server.
            if matches!(first.kind, WorkloadKind::ServiceEntryEndpoint(_))
                || matches!(workload.kind, WorkloadKind::ServiceEntryEndpoint(_))
            {
                continue;
            }
            let message = format!(
                "{} has the address {address} of {} in {}",
                workload.key, first.key, first.source
            );
            let help = "give each workload an address of its own: identities are told apart by it";
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
        let help = format!(
            "add kind: ServiceAccount with name {} in namespace {}",
            name.name, name.namespace
        );
        found.push(
            Diagnostic::warning(codes::UNKNOWN_SERVICE_ACCOUNT, source, message)
                .field("spec.serviceAccountName")
                .help(help),
        );
    }
}
