//! Check of GRPCRoute: methods are paths, all else is HTTPRoute's.

use super::filters::FilterReader;
use super::matches::{self, Criteria, MatchMethod};
use super::route::{backends, everything, plain, requests, rule_name};
use crate::check::routing::gateway_api::fields::{at_most, says_nothing};
use crate::check::values::Meta;
use crate::codes;
use crate::decode::{Cursor, Fields, Report};
use crate::mesh::gateway_api::{GatewayApiRoute, RouteKind, RouteRule};
use crate::mesh::{Criterion, HttpMatch, HttpRoute, Subject, TextMatch};
use crate::names::Namespace;

/// Bound of the API's schema.
const MAX_MATCHES: usize = 64;
/// Pattern for any service, or any method, if only the other is given.
const ANY: &str = "[^/]+";

pub(super) fn route(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<GatewayApiRoute> {
    requests(RouteKind::Grpc, meta, fields, report, rule)
}

fn rule(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<RouteRule> {
    let mut fields = cursor.fields()?;
    let reading = FilterReader {
        own,
        report,
        http: false,
    };
    let name = rule_name(&mut fields, report);
    let mut matches = fields.list("matches", |cursor| matched(cursor, report));
    at_most(matches.len(), MAX_MATCHES, "matches", cursor.at(), report);
    if matches.is_empty() {
        matches.push(everything(report.source(cursor.at())));
    }
    let filters = reading.of_rule(&mut fields);
    let backends = backends(&mut fields, &reading);
    fields.not_yet(&["timeouts", "retry"]);
    fields.without_effect(&[("sessionPersistence", "each request goes to any endpoint")]);
    fields.finish();
    let mirrors = filters.mirrors.clone();
    Some(RouteRule {
        route: HttpRoute {
            name,
            ..plain(matches, filters, cursor.at(), report)
        },
        backends,
        mirrors,
        backend_timeout: None,
    })
}

fn matched(cursor: &Cursor<'_>, report: &Report) -> Option<HttpMatch> {
    let mut fields = cursor.fields()?;
    let mut criteria = Criteria::new();
    let path = match fields.inner("method") {
        Some(method) => self::method(method, report),
        None => Some(matches::everything()),
    };
    matches::named(&mut fields, "headers", &mut criteria, report);
    fields.finish();
    criteria.insert(Subject::Uri, Criterion::Is(path?));
    Some(HttpMatch {
        source: report.source(cursor.at()),
        name: None,
        criteria,
        any_case: false,
    })
}

/// `method`: the service, the method or both, as the path that gRPC makes of them.
fn method(mut fields: Fields<'_>, report: &Report) -> Option<TextMatch> {
    let at = fields.at().clone();
    let how = matches::how(&mut fields, report);
    let service = fields.text("service");
    let method = fields.text("method");
    fields.finish();
    for text in [&service, &method].into_iter().flatten() {
        says_nothing(text, ": it is empty", report)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match how {
            MatchMethod::Exact if !text.value.bytes().all(plain) => {
                let help = "letters, digits, `_`, and in a service dots";
                report.bad(text, " as a service or a method", help);
                return None;
            }
            MatchMethod::Regex => drop(matches::expression(text, report)?),
            MatchMethod::Exact => {}
        }
    }
    let word = |text: &Option<crate::decode::Text>| match text {
        Some(text) if how == MatchMethod::Exact => text.value.replace('.', r"\."),
        Some(text) => format!("(?:{})", text.value),
        None => ANY.to_owned(),
    };
    match (how, &service, &method) {
        (_, None, None) => {
            let message = "`service` and `method` are both missing";
            let help = "write `service`, `method` or both";
            report.error(codes::MISSING, &at, message, help);
            None
        }
        (MatchMethod::Exact, Some(service), Some(method)) => {
            let path = format!("/{}/{}", service.value, method.value);
            Some(TextMatch::Exact(path.into()))
        }
        (MatchMethod::Exact, Some(service), None) => {
            Some(TextMatch::Prefix(format!("/{}/", service.value).into()))
        }
        _ => {
            let path = format!("/{}/{}", word(&service), word(&method));
            Some(TextMatch::Regex(path.into()))
        }
    }
}
