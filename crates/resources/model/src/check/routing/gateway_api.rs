//! Check of Gateway API's kinds, each by itself. Violations of the schema and unsupported values are errors with a
//! location. `attach` checks references and attachment for all resources together.

mod backend_tls;
mod connections;
mod fields;
mod filters;
mod gateway;
mod gateway_tls;
mod grpc;
mod matches;
mod route;

use crate::check::CheckedResource;
use crate::check::values::Meta;
use crate::decode::{Fields, Report};

/// Reads a resource of one of these kinds.
pub(in crate::check) fn checked(
    kind: &str,
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<CheckedResource> {
    fields.ignore(&["status"]);
    match kind {
        "GatewayClass" => Some(CheckedResource::GatewayClass(
            gateway::class(meta, fields, report)?.into(),
        )),
        "BackendTLSPolicy" => Some(CheckedResource::BackendTls(
            backend_tls::policy(meta, fields, report)?.into(),
        )),
        "GRPCRoute" => Some(CheckedResource::ApiRoute(
            grpc::route(meta, fields, report)?.into(),
        )),
        "HTTPRoute" => Some(CheckedResource::ApiRoute(
            route::http_route(meta, fields, report)?.into(),
        )),
        "ListenerSet" => Some(CheckedResource::ListenerSet(
            gateway::listener_set(meta, fields, report)?.into(),
        )),
        "TCPRoute" => Some(CheckedResource::ApiRoute(
            connections::tcp_route(meta, fields, report)?.into(),
        )),
        "TLSRoute" => Some(CheckedResource::ApiRoute(
            connections::tls_route(meta, fields, report)?.into(),
        )),
        "ReferenceGrant" => Some(CheckedResource::Grant(
            gateway::grant(meta, fields, report)?.into(),
        )),
        _ => Some(CheckedResource::ApiGateway(
            gateway::gateway(meta, fields, report)?.into(),
        )),
    }
}
