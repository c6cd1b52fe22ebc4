//! Gateway API: reports refused Gateways, listeners and routes, with reasons. `voile-model` decides attachment when it
//! assembles the mesh, so the reports describe the configuration in force.

use voile_model::Diagnostic;
use voile_model::mesh::gateway_api::{Reason, Refusal, Said};

use crate::codes;
use crate::view::View;

/// Reports each refusal.
pub(crate) fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    let all = view.mesh.gateway_api.said.iter();
    for said in all {
        for refusal in &said.refusals {
            let (code, help) = advice(said, refusal);
            let diagnostic = Diagnostic::error(code, refusal.source.clone(), refusal.said.clone());
            found.push(diagnostic.field(&*refusal.field).help(help));
        }
    }
}

/// The code of a refusal, and what would be right.
fn advice(said: &Said, refusal: &Refusal) -> (&'static str, &'static str) {
    let to_gateway = refusal.field.contains("parentRef") && !refusal.said.contains("Service");
    match refusal.reason {
        Reason::RefNotPermitted => (
            codes::NOT_GRANTED,
            "add a ReferenceGrant in the namespace that is pointed into, from this kind and namespace",
        ),
        Reason::NoMatchingParent if to_gateway => (
            codes::UNKNOWN_GATEWAY,
            "declare it, or correct name, namespace, sectionName and port",
        ),
        Reason::NoMatchingParent => (
            codes::UNKNOWN_ROUTE_HOST,
            "declare it, or correct name, namespace and port",
        ),
        Reason::NotAllowedByListeners | Reason::NotAllowed => (
            codes::ROUTE_NOT_ADMITTED,
            "set allowedRoutes (allowedListeners) of the Gateway so that this namespace and kind are let in",
        ),
        Reason::NoMatchingListenerHostname => (
            codes::HOST_NOT_IN_GATEWAY,
            "name a host that a listener serves",
        ),
        Reason::BackendNotFound => (
            codes::UNKNOWN_ROUTE_HOST,
            "declare the Service, or correct name, namespace and port",
        ),
        Reason::InvalidCertificateRef => (
            codes::UNKNOWN_CREDENTIAL,
            "name one Secret of type kubernetes.io/tls with `tls.crt` and `tls.key`",
        ),
        Reason::NoValidCertificate | Reason::InvalidAuthority => (
            codes::UNKNOWN_CREDENTIAL,
            "name a ConfigMap of the policy's namespace with certificates in PEM as `ca.crt`; until then nobody calls the Service",
        ),
        Reason::TargetNotFound => (
            codes::UNKNOWN_ROUTE_HOST,
            "declare the Service, or correct its name and the port's in sectionName",
        ),
        Reason::Conflicted => (
            codes::GATEWAY_API_REFUSED,
            "keep one policy for a Service, or for a port of it by sectionName",
        ),
        Reason::ProtocolConflict | Reason::HostnameConflict => (
            codes::GATEWAY_API_REFUSED,
            "give each listener a port of its own, or on one port a host of its own",
        ),
        Reason::Invalid if said.kind == "Gateway" => (
            codes::GATEWAY_API_REFUSED,
            "write gatewayClassName: voile (or istio), or declare the class",
        ),
        Reason::UnsupportedProtocol
        | Reason::InvalidRouteKinds
        | Reason::InvalidKind
        | Reason::InvalidParameters
        | Reason::UnsupportedAddress
        | Reason::ListenersNotValid
        | Reason::UnsupportedValue
        | Reason::Pending
        | Reason::Invalid => (
            codes::GATEWAY_API_REFUSED,
            "docs/reference/gateway-api.md says what is in force; remove the rest",
        ),
    }
}
