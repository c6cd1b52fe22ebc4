//! Problems that keep a pod from running here, each with its remedy.

use std::collections::BTreeMap;
use std::net::IpAddr;

use voile_model::mesh::{EgressListener, PodTemplate};
use voile_model::{Diagnostic, Port, ResourceName, Source};

use super::PodPlan;
use crate::addresses::PodIsolation;

/// An injected pod stands behind a Service whose target port no Sidecar listens on.
pub const NO_INGRESS: &str = "V0601";
/// A container has no command; images cannot be run here.
pub const NO_COMMAND: &str = "V0602";
/// A pod's name would not be a DNS label, or is already another's.
pub const POD_NAME: &str = "V0603";
/// An egress listener is bound to one address by several pods.
pub const SHARED_BIND: &str = "V0604";
/// A service that cannot be reached through a listener of its own in loopback isolation.
pub const UNREACHABLE: &str = "V0605";
/// A pod counts on its callers' addresses, which nothing can keep in loopback isolation.
pub const NO_CALLERS: &str = "V0606";

/// A container asks for privileges that no application gets here.
pub const NO_PRIVILEGES: &str = "V0607";

/// A pod is ambient and there is no node proxy.
pub const NOT_SERVED: &str = "V0608";

/// The application of an ambient pod listens on a port to which only a sidecar would lead.
pub const SIDECAR_PORT: &str = "V0609";

pub(super) fn sidecar_port(source: &Source, service: &str, port: Port, own: u16) -> Diagnostic {
    let message = format!(
        "the Service `{service}` has targetPort {port}, but by the Sidecar's defaultEndpoint the application listens on port {own}: the pod is ambient, and a node proxy does not change the port"
    );
    Diagnostic::error(SIDECAR_PORT, source.clone(), message).help(format!(
        "let the application listen on port {port}, or give the pod a sidecar (istio-injection: enabled)"
    ))
}

pub(super) fn no_ingress(
    source: &Source,
    template: &PodTemplate,
    port: Port,
    service: &str,
) -> Diagnostic {
    let labels: Vec<_> = template
        .labels
        .iter()
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    let message = format!(
        "the Service `{service}` has targetPort {port}, but no Sidecar ingress listener of this pod has this port: loopback isolation does not redirect traffic to the sidecar"
    );
    Diagnostic::error(NO_INGRESS, source.clone(), message).help(format!(
        "add a Sidecar with workloadSelector.labels {{{}}} and ingress [{{port: {{number: {port}, protocol: HTTP, name: http}}, \
         captureMode: NONE, defaultEndpoint: \"0.0.0.0:PORT\"}}], and let the application listen on $(POD_IP):PORT",
        labels.join(", ")
    ))
}

/// Addresses with ports that the user chose for egress listeners, with each listener.
pub(super) fn own_binds(pod: &PodPlan) -> impl Iterator<Item = ((IpAddr, Port), &EgressListener)> {
    let listeners = pod.sidecar.iter().flat_map(|sidecar| &sidecar.egress);
    listeners.filter_map(|one| Some(((one.bind?, one.port.as_ref()?.number), one)))
}

/// Adds what keeps the pod from running here, or from running as it is written. `binds` are those of other pods.
pub(super) fn check(
    pod: &PodPlan,
    (layout, by_node): (PodIsolation, bool),
    binds: &BTreeMap<(IpAddr, Port), ResourceName>,
    problems: &mut Vec<Diagnostic>,
) {
    for container in pod.template.applications() {
        if !container.security.privileges.is_empty() {
            let message = format!(
                "the container `{}` requests privileges that `voile up` gives to no application: {}",
                container.name,
                container.security.privileges.join(", ")
            );
            problems.push(
                Diagnostic::warning(NO_PRIVILEGES, container.source.clone(), message)
                    .field("securityContext")
                    .help("the application runs without them; low ports and ping need none"),
            );
        }
        if container.command.is_empty() {
            let message = format!(
                "the container `{}` has no command, and `voile up` cannot run its image",
                container.name
            );
            problems.push(
                Diagnostic::error(NO_COMMAND, container.source.clone(), message)
                    .field("command")
                    .help("set `command` to a program of this machine, such as command: [\"python3\", \"server.py\"]"),
            );
        }
    }
    if pod.is_ambient() && !by_node {
        // Nothing would enforce a policy before it.
        let message = format!(
            "`{}` is ambient (istio.io/dataplane-mode), but no node proxy runs: no policy would be enforced for it",
            pod.workload()
        );
        problems.push(Diagnostic::error(NOT_SERVED, pod.source.clone(), message).help(
            "run it with --isolation netns --dataplane mixed, give it a sidecar (istio-injection: enabled), or remove the label",
        ));
    }
    if layout == PodIsolation::Namespaces {
        return; // each has its own loopback device
    }
    if pod.sidecar.is_some() && pod.template.capture.keeps_source == Some(true) {
        let message = "this pod needs its callers' addresses (interceptionMode: TPROXY), but in loopback isolation the sidecar calls the application from its own address";
        problems.push(
            Diagnostic::error(NO_CALLERS, pod.source.clone(), message)
                .field("metadata.annotations[sidecar.istio.io/interceptionMode]")
                .help("run it with --isolation netns, or remove the annotation, and interceptionMode from MeshConfig"),
        );
    }
    for (bind, listener) in own_binds(pod) {
        if let Some(other) = binds.get(&bind) {
            let message = format!(
                "both {other} and {} would listen on {}:{}",
                pod.name, bind.0, bind.1
            );
            let problem = Diagnostic::error(SHARED_BIND, listener.source.clone(), message);
            problems.push(
                problem
                    .field("bind")
                    .help("leave `bind` out: each pod then gets an address of its own"),
            );
        }
    }
}
