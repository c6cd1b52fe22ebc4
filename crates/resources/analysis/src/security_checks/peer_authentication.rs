//! Checks PeerAuthentications. Parts that Istio silently ignores are errors here, because their author believes in
//! their protection.

use std::collections::{BTreeMap, BTreeSet};

use voile_model::mesh::{Location, Mesh, PeerAuthentication};
use voile_model::{Diagnostic, Namespace, Port};
use voile_policy::{Mode, inherited};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions::missing_workloads;

/// Checks all PeerAuthentications.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    for policy in &mesh.peer_authentications {
        if policy.name.namespace == mesh.config.root_namespace && policy.selector.is_some() {
            let message = format!(
                "PeerAuthentication {} is not enforced: a selector in the root namespace is ignored",
                policy.name
            );
            let help = "remove the selector, or move the policy to the workloads' namespace";
            found.push(
                Diagnostic::error(codes::SELECTOR_IN_ROOT, policy.source.clone(), message)
                    .field("spec.selector")
                    .help(help),
            );
            continue;
        }
        ports(policy, subjects, found);
    }
    several(mesh, subjects, found);
    for subject in subjects.iter().filter(|subject| !subject.has_proxy()) {
        strict_without_sidecar(mesh, subject, found);
    }
}

fn selects(policy: &PeerAuthentication, subject: &Subject<'_>) -> bool {
    policy.name.namespace == *subject.namespace
        && policy
            .selector
            .as_ref()
            .is_some_and(|s| s.selects(subject.labels))
}

fn ports(policy: &PeerAuthentication, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    let Some(selector) = &policy.selector else {
        return;
    };
    let selected: Vec<&Subject<'_>> = subjects
        .iter()
        .filter(|subject| selects(policy, subject))
        .collect();
    if selected.is_empty() {
        let message = format!(
            "the selector ({}) of PeerAuthentication {} selects no workload",
            shown(selector),
            policy.name
        );
        let help = "a policy selects workloads of its own namespace";
        let diagnostic = Diagnostic::warning(
            codes::POLICY_SELECTS_NOTHING,
            policy.source.clone(),
            message,
        );
        let lacks = missing_workloads(&policy.name.namespace, selector);
        found.push(diagnostic.field("spec.selector").help(help).lacks(lacks));
        return;
    }
    for (port, entry) in &policy.port_modes {
        if !selected.iter().any(|subject| serves(subject, *port)) {
            let message = format!("no selected workload serves port {port}");
            let help =
                "write the workload's port (the Service's targetPort), not the Service's port";
            let diagnostic =
                Diagnostic::warning(codes::PORT_LEVEL_UNSERVED, entry.source.clone(), message);
            found.push(diagnostic.field("spec.portLevelMtls").help(help));
        }
    }
}

fn serves(subject: &Subject<'_>, port: Port) -> bool {
    let containers = subject
        .template
        .iter()
        .flat_map(|template| &template.containers);
    containers
        .flat_map(|container| &container.ports)
        .any(|declared| declared.number == port)
        || subject.named_ports.values().any(|number| *number == port)
        || subject.services.iter().any(|service| {
            service
                .ports
                .iter()
                .any(|p| subject.target(&p.target) == Some(port))
        })
}

/// In one scope the oldest policy holds, and the others say nothing.
fn several(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    let mut said = BTreeSet::new();
    let mut say = |older: &PeerAuthentication, younger: &PeerAuthentication, what: &str| {
        // Once for each that is ignored, not for each workload it is ignored for.
        if said.insert(younger.name.clone()) {
            let message = format!(
                "PeerAuthentication {} is ignored for {what}: {} in {} is older",
                younger.name, older.name, older.source
            );
            let diagnostic =
                Diagnostic::error(codes::TWO_POLICIES, younger.source.clone(), message);
            found.push(
                diagnostic
                    .field("spec.selector")
                    .help("keep one policy for each workload and one for each namespace"),
            );
        }
    };
    let mut of_namespace: BTreeMap<&Namespace, &PeerAuthentication> = BTreeMap::new();
    for policy in mesh
        .peer_authentications
        .iter()
        .filter(|policy| policy.selector.is_none())
    {
        match of_namespace.get(&policy.name.namespace) {
            Some(older) => say(
                older,
                policy,
                &format!("the whole namespace {}", policy.name.namespace),
            ),
            None => drop(of_namespace.insert(&policy.name.namespace, policy)),
        }
    }
    // Selectors of the root namespace are ignored altogether, which is said elsewhere.
    for subject in subjects
        .iter()
        .filter(|subject| *subject.namespace != mesh.config.root_namespace)
    {
        let mut selecting = mesh
            .peer_authentications
            .iter()
            .filter(|policy| selects(policy, subject));
        if let Some(older) = selecting.next() {
            selecting.for_each(|younger| say(older, younger, &subject.name));
        }
    }
}

fn strict_without_sidecar(mesh: &Mesh, subject: &Subject<'_>, found: &mut Vec<Diagnostic>) {
    let named = mesh
        .peer_authentications
        .iter()
        .any(|policy| selects(policy, subject));
    // A workload that only calls others has no port to protect. A workload that serves outside the mesh does not belong
    // to it.
    let mut services = subject.services.iter();
    let serving = services.any(|service| service.location == Location::MeshInternal);
    if !named && !serving {
        return;
    }
    let effective = inherited(mesh, subject.namespace, subject.labels);
    if let (Mode::Strict, Some(policy)) = (effective.mode, &effective.policy) {
        let message = format!(
            "PeerAuthentication STRICT is not enforced for {} ({}): the workload has no sidecar",
            subject.name, subject.source
        );
        let help = match subject.template {
            Some(_) => {
                "give it the label sidecar.istio.io/inject: \"true\", or its namespace istio-injection: enabled"
            }
            None => "if it has a proxy, set the label security.istio.io/tlsMode: istio",
        };
        let diagnostic = Diagnostic::error(
            codes::STRICT_WITHOUT_SIDECAR,
            policy.source.clone(),
            message,
        );
        found.push(diagnostic.field("spec.mtls.mode").help(help));
    }
}
