//! Checks Sidecars: selected workloads, one Sidecar for each, and existing egress hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_model::mesh::{EgressHost, EgressNamespace, Mesh, MeshService, POD_LABEL, Sidecar};
use voile_model::{Diagnostic, Namespace, did_you_mean, nearest};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions;

/// Checks all Sidecars.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    for sidecar in mesh.sidecars.values() {
        if let Some(selector) = &sidecar.selector
            && !subjects.iter().any(|subject| selects(sidecar, subject))
        {
            let message = format!(
                "the selector ({}) of Sidecar {} selects no workload",
                shown(selector),
                sidecar.name
            );
            let help = "a Sidecar selects workloads of its own namespace";
            found.push(
                Diagnostic::warning(
                    codes::SIDECAR_SELECTS_NOTHING,
                    sidecar.source.clone(),
                    message,
                )
                .field("spec.workloadSelector")
                .help(help)
                .lacks(suggestions::missing_workloads(
                    &sidecar.name.namespace,
                    selector,
                )),
            );
        }
        without_sidecars(mesh, sidecar, subjects, found);
        for host in sidecar.egress.iter().flat_map(|listener| &listener.hosts) {
            egress_host(mesh, sidecar, host, found);
        }
    }
    several(mesh, subjects, found);
}

/// A Sidecar for workloads behind a node proxy, which does not look at it.
fn without_sidecars(
    mesh: &Mesh,
    sidecar: &Sidecar,
    subjects: &[Subject<'_>],
    found: &mut Vec<Diagnostic>,
) {
    let namespace = &sidecar.name.namespace;
    if *namespace == mesh.config.root_namespace {
        return;
    }
    let all = sidecar.selector.is_none();
    let near = subjects.iter().filter(|one| one.namespace == namespace);
    let own: Vec<_> = near.filter(|one| all || selects(sidecar, one)).collect();
    let declared = mesh.namespaces.get(namespace);
    let label = |key| declared.and_then(|one| one.labels.get(key));
    let injected = label("istio-injection").is_some() || label("istio.io/rev").is_some();
    let ambient = all && label("istio.io/dataplane-mode") == Some("ambient") && !injected;
    if own.iter().any(|one| one.has_sidecar) || !(ambient || own.iter().any(|one| one.ambient)) {
        return;
    }
    let message = format!(
        "Sidecar {} selects only ambient workloads without a sidecar: it has no effect",
        sidecar.name
    );
    let help = "remove it, or inject sidecars into the workloads";
    found.push(
        Diagnostic::warning(codes::SIDECAR_OF_NOBODY, sidecar.source.clone(), message)
            .field("spec.workloadSelector")
            .help(help),
    );
}

fn selects(sidecar: &Sidecar, subject: &Subject<'_>) -> bool {
    sidecar.name.namespace == *subject.namespace
        && sidecar
            .selector
            .as_ref()
            .is_some_and(|s| s.selects(subject.labels))
}

fn egress_host(mesh: &Mesh, sidecar: &Sidecar, host: &EgressHost, found: &mut Vec<Diagnostic>) {
    // `*/*` and `./*` mean all known services, and so does `NAMESPACE/*` of a known namespace; `~/*` means none.
    let known = match &host.namespace {
        EgressNamespace::Named(name) => {
            *name == mesh.config.root_namespace || mesh.namespaces.contains_key(name)
        }
        EgressNamespace::Any | EgressNamespace::Own | EgressNamespace::Nothing => true,
    };
    let open = host.hostname.as_str() == "*" && known;
    if open || host.namespace == EgressNamespace::Nothing {
        return;
    }
    let own = &sidecar.name.namespace;
    // A Sidecar in the root namespace applies to all namespaces: the services that it reaches depend on the workload's
    // namespace.
    let anybody = *own == mesh.config.root_namespace;
    let mut matching = mesh
        .services
        .values()
        .filter(|service| match (&host.namespace, anybody) {
            (EgressNamespace::Own, true) => host.hostname.covers(&service.key.hostname),
            _ => host.matches(own, &service.key),
        });
    let message = match (
        matching.clone().next(),
        matching.any(|service| anybody || service.visibility.includes(own)),
    ) {
        (_, true) => return,
        (Some(service), false) => format!(
            "the egress host `{host}` is not visible here: {} does not export it to {own}",
            service.source
        ),
        (None, false) => format!("the egress host `{host}` names no service"),
    };
    let help = egress_help(mesh, own, host);
    found.push(
        Diagnostic::warning(codes::UNKNOWN_EGRESS_HOST, host.source.clone(), message)
            .field("spec.egress.hosts")
            .help(help)
            .lacks(suggestions::missing_host(&host.hostname)),
    );
}

/// The namespace or service that an egress host probably means.
fn egress_help(mesh: &Mesh, own: &Namespace, host: &EgressHost) -> String {
    let declare = "declare a Service or ServiceEntry for it";
    let in_another = |service: &&Arc<MeshService>| host.hostname.covers(&service.key.hostname);
    let namespace = match &host.namespace {
        EgressNamespace::Named(name) => name.as_str(),
        _ => own.as_str(),
    };
    if host.hostname.as_str() == "*" {
        let known = mesh.namespaces.keys().map(Namespace::as_str);
        let meant = nearest(namespace, known).filter(|known| *known != namespace);
        return did_you_mean(meant.map(|name| format!("{name}/*")), declare);
    }
    match mesh.services.values().find(in_another) {
        Some(service) => did_you_mean(Some(&service.key), declare),
        None => suggestions::for_host(mesh, &host.hostname, declare),
    }
}

/// One workload, one Sidecar: the first by name holds, the others are without effect.
fn several(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    let meant_for_one = |s: &Sidecar| {
        s.selector
            .as_ref()
            .is_some_and(|selector| selector.get(POD_LABEL).is_some())
    };
    let all: Vec<&Arc<Sidecar>> = mesh
        .sidecars
        .values()
        .filter(|s| !meant_for_one(s))
        .collect();
    let mut said = BTreeSet::new();
    let mut say = |first: &Sidecar, second: &Sidecar, what: &str| {
        // Once for each that is ignored, not for each workload it is ignored for.
        if said.insert(second.name.clone()) {
            let message = format!(
                "Sidecar {} is ignored for {what}: Sidecar {} in {} applies",
                second.name, first.name, first.source
            );
            let help = "keep one Sidecar for each workload";
            let diagnostic = Diagnostic::error(codes::TWO_SIDECARS, second.source.clone(), message);
            found.push(diagnostic.field("spec.workloadSelector").help(help));
        }
    };
    let mut of_namespace: BTreeMap<&Namespace, &Sidecar> = BTreeMap::new();
    for sidecar in all.iter().filter(|sidecar| sidecar.selector.is_none()) {
        match of_namespace.get(&sidecar.name.namespace) {
            Some(first) => say(
                first,
                sidecar,
                &format!("the whole namespace {}", sidecar.name.namespace),
            ),
            None => drop(of_namespace.insert(&sidecar.name.namespace, sidecar)),
        }
    }
    for subject in subjects {
        let mut selecting = all.iter().filter(|sidecar| selects(sidecar, subject));
        if let Some(first) = selecting.next() {
            selecting.for_each(|second| say(first, second, &subject.name));
        }
    }
}
