//! Check of TLSRoute and TCPRoute: one rule, which says where connections go.

use super::route::{read, rule_name, shared};
use crate::check::values::Meta;
use crate::codes;
use crate::decode::{Cursor, Fields, Report};
use crate::mesh::action::HeaderRules;
use crate::mesh::gateway_api::{ConnectionRule, GatewayApiRoute, RouteKind};
use crate::names::Namespace;

pub(super) fn tls_route(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<GatewayApiRoute> {
    connections(RouteKind::Tls, meta, fields, report)
}

pub(super) fn tcp_route(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<GatewayApiRoute> {
    connections(RouteKind::Tcp, meta, fields, report)
}

fn connections(
    kind: RouteKind,
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<GatewayApiRoute> {
    let at = meta.at.clone();
    let (route, rules) = read(kind, meta, fields, report, rule)?;
    if rules.len() != 1 {
        let message = format!(
            "a {} has at most one rule, and this one has {}",
            kind.word(),
            rules.len()
        );
        let help = "keep one rule: a rule cannot match connections";
        report.error(codes::CONTRADICTION, &at, message, help);
    }
    Some(GatewayApiRoute {
        connections: rules,
        ..route
    })
}

fn rule(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<ConnectionRule> {
    let mut fields = cursor.fields()?;
    rule_name(&mut fields, report);
    let backends = shared(&mut fields, own, report, |_| HeaderRules::default());
    if backends.is_empty() {
        report.required(None::<()>, cursor.at(), "backendRefs");
    }
    fields.finish();
    Some(ConnectionRule {
        source: report.source(cursor.at()),
        backends,
    })
}
