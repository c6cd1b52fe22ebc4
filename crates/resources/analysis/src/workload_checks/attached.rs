//! Gateway API: reports refused Gateways, listeners and routes, with reasons. `voile-model` decides attachment when it
//! assembles the mesh, so the reports describe the configuration in force.

use voile_model::Diagnostic;
use voile_model::mesh::gateway_api::{ConditionReason, RefusedCondition, ResourceConditions};

use crate::codes;
use crate::view::ClientView;

/// Reports each refusal.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let all = view.mesh.gateway_api.said.iter();
    for said in all {
        for refusal in &said.refusals {
            let (code, help) = advice(said, refusal);
            let diagnostic = Diagnostic::error(code, refusal.source.clone(), refusal.said.clone());
            let mut diagnostic = diagnostic.field(&*refusal.field).help(help);
            diagnostic.lacks.clone_from(&refusal.missing);
            found.push(diagnostic);
        }
    }
}

const NO_AUTHORITY_OF_BACKENDS: &str = "name a ConfigMap of the policy's namespace with PEM certificates in `ca.crt`; until then no client can call the Service";
const NO_AUTHORITY_OF_CLIENTS: &str = "name a ConfigMap or Secret with PEM certificates in `ca.crt`; a listener without any serves no client";

/// The code of a refusal, and what would be right.
fn advice(said: &ResourceConditions, refusal: &RefusedCondition) -> (&'static str, &'static str) {
    let to_gateway = refusal.field.contains("parentRef") && !refusal.said.contains("Service");
    match refusal.reason {
        ConditionReason::RefNotPermitted => (
            codes::NOT_GRANTED,
            "add a ReferenceGrant in the namespace of the referenced resource, from this kind and namespace",
        ),
        ConditionReason::NoMatchingParent if to_gateway => (
            codes::UNKNOWN_GATEWAY,
            "declare it, or correct name, namespace, sectionName and port",
        ),
        ConditionReason::NoMatchingParent => (
            codes::UNKNOWN_ROUTE_HOST,
            "declare it, or correct name, namespace and port",
        ),
        ConditionReason::NotAllowedByListeners | ConditionReason::NotAllowed => (
            codes::ROUTE_NOT_ADMITTED,
            "allow this namespace and kind in the Gateway's allowedRoutes (allowedListeners)",
        ),
        ConditionReason::NoMatchingListenerHostname => (
            codes::HOST_NOT_IN_GATEWAY,
            "write a hostname that a listener serves",
        ),
        ConditionReason::BackendNotFound => (
            codes::UNKNOWN_ROUTE_HOST,
            "declare the Service, or correct name, namespace and port",
        ),
        ConditionReason::InvalidCertificateRef | ConditionReason::InvalidClientCertificateRef => (
            codes::UNKNOWN_CREDENTIAL,
            "name one Secret of type kubernetes.io/tls with `tls.crt` and `tls.key`",
        ),
        ConditionReason::NoValidCertificate | ConditionReason::InvalidAuthority => (
            codes::UNKNOWN_CREDENTIAL,
            match said.kind {
                "BackendTLSPolicy" => NO_AUTHORITY_OF_BACKENDS,
                _ => NO_AUTHORITY_OF_CLIENTS,
            },
        ),
        ConditionReason::TargetNotFound => (
            codes::UNKNOWN_ROUTE_HOST,
            "declare the Service, or correct its name and the port's in sectionName",
        ),
        ConditionReason::Conflicted => (
            codes::GATEWAY_API_REFUSED,
            "keep one policy for a Service, or for a port of it by sectionName",
        ),
        ConditionReason::ProtocolConflict | ConditionReason::HostnameConflict => (
            codes::GATEWAY_API_REFUSED,
            "give each listener a port of its own, or on one port a host of its own",
        ),
        ConditionReason::Invalid if said.kind == "Gateway" => (
            codes::GATEWAY_API_REFUSED,
            "write gatewayClassName: voile (or istio), or declare the class",
        ),
        ConditionReason::UnsupportedProtocol
        | ConditionReason::InvalidRouteKinds
        | ConditionReason::InvalidKind
        | ConditionReason::InvalidAuthorityKind
        | ConditionReason::InvalidParameters
        | ConditionReason::UnsupportedAddress
        | ConditionReason::ListenersNotValid
        | ConditionReason::UnsupportedValue
        | ConditionReason::Pending
        | ConditionReason::Invalid => (
            codes::GATEWAY_API_REFUSED,
            "remove it; docs/reference/gateway-api.md lists the supported fields",
        ),
    }
}
