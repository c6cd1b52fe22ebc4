//! Policies whose selector selects Pods of a Gateway of Gateway API. Istio obeys `targetRefs` there: waypoints never look at a selector,
//! and its gateways only while a switch of the control plane says so.

use voile_model::mesh::authorization::PolicyTarget;
use voile_model::mesh::gateway_api::GATEWAY_NAME;
use voile_model::mesh::{Mesh, PodTemplate};
use voile_model::{Diagnostic, Labels, Namespace, ResourceName, Source};

use crate::codes;
use crate::subject::Subject;

/// Predicate: a policy selects a Pod of this namespace with these labels.
type Selects<'a> = Box<dyn Fn(&Namespace, &Labels) -> bool + 'a>;

/// A policy with a selector and the Pods that it selects.
struct SelectingPolicy<'a> {
    kind: &'static str,
    name: &'a ResourceName,
    source: &'a Source,
    selects: Selects<'a>,
}

/// Checks AuthorizationPolicies, RequestAuthentications and Telemetries.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    let named = |subject: &&Subject<'_>| subject.labels.get(GATEWAY_NAME).is_some();
    let pods: Vec<&Subject<'_>> = subjects.iter().filter(named).collect();
    if pods.is_empty() {
        return;
    }
    for policy in policies(mesh) {
        let mut selected = pods.iter();
        let selected = selected.find(|pod| (policy.selects)(pod.namespace, pod.labels));
        if let Some(pod) = selected {
            found.push(diagnose(mesh, &policy, pod));
        }
    }
}

fn policies(mesh: &Mesh) -> Vec<SelectingPolicy<'_>> {
    let root = &mesh.config.root_namespace;
    let selects = |target: &PolicyTarget| matches!(target, PolicyTarget::Workloads(_));
    let of_callers = mesh.authorization_policies.values();
    let of_callers = of_callers.filter(|one| selects(&one.target));
    let of_callers = of_callers.map(|one| SelectingPolicy {
        kind: "AuthorizationPolicy",
        name: &one.name,
        source: &one.source,
        selects: Box::new(|namespace, labels| one.selects(root, namespace, labels)),
    });
    let of_tokens = mesh.request_authentications.iter();
    let of_tokens = of_tokens.filter(|one| selects(&one.target));
    let of_tokens = of_tokens.map(|one| SelectingPolicy {
        kind: "RequestAuthentication",
        name: &one.name,
        source: &one.source,
        selects: Box::new(|namespace, labels| one.selects(root, namespace, labels)),
    });
    let of_telemetry = mesh.telemetries.iter();
    let of_telemetry = of_telemetry.filter(|one| one.targets.is_empty());
    let of_telemetry = of_telemetry.filter_map(|one| {
        let selector = one.selector.as_ref()?;
        Some(SelectingPolicy {
            kind: "Telemetry",
            name: &one.name,
            source: &one.source,
            selects: Box::new(|namespace, labels| {
                one.name.namespace == *namespace && selector.selects(labels)
            }),
        })
    });
    of_callers.chain(of_tokens).chain(of_telemetry).collect()
}

fn diagnose(mesh: &Mesh, policy: &SelectingPolicy<'_>, pod: &Subject<'_>) -> Diagnostic {
    let gateway = pod.labels.get(GATEWAY_NAME).unwrap_or_default();
    let declared = mesh.gateway_api.gateways.iter();
    let mut declared =
        declared.filter(|one| &*one.name.name == gateway && one.name.namespace == *pod.namespace);
    let injected = pod.template.is_some_and(PodTemplate::is_waypoint);
    let waypoint = injected || declared.any(|one| one.is_waypoint());
    let SelectingPolicy { kind, name, .. } = policy;
    let help = format!(
        "write targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {gateway}}}]"
    );
    let (code, source) = (codes::SELECTOR_OF_GATEWAY, policy.source.clone());
    let diagnostic = match waypoint {
        true => Diagnostic::warning(
            code,
            source,
            format!(
                "{kind} {name} selects Pods of the waypoint {gateway}: in Istio waypoints ignore selectors"
            ),
        ),
        false => Diagnostic::note(
            code,
            source,
            format!(
                "{kind} {name} selects Pods of the Gateway {gateway}: Voile enforces it, Istio only with ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY"
            ),
        ),
    };
    diagnostic.field("spec.selector").help(help)
}
