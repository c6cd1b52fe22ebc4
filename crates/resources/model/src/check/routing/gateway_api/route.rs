//! Check of HTTPRoute, and of what GRPCRoute shares with it.

use std::sync::Arc;
use std::time::Duration;

use voile_traffic::DEFAULT_RETRIES;

use super::filters::{FilterReader, Filters, backend_to};
use super::matches;
use crate::check::routing::gateway_api::fields::{GATEWAY, at_most, port, reference, says_nothing};
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report};
use crate::mesh::action::HeaderRules;
use crate::mesh::gateway_api::{Backend, GatewayApiRoute, Parent, RouteKind, RouteRule};
use crate::mesh::{Criterion, HttpMatch, HttpRoute, RetrySettings, Subject, TextMatch};
use crate::names::{Hostname, Namespace};
use crate::source::Source;

/// Bounds of the API's schema.
const MAX_HOSTNAMES: usize = 16;
const MAX_SERVER_NAMES: usize = 1_024;
const MAX_PARENTS: usize = 32;
const MAX_RULES: usize = 16;
const MAX_MATCHES: usize = 64;
const MAX_BACKENDS: usize = 16;

pub(super) fn http_route(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<GatewayApiRoute> {
    let mut route = requests(RouteKind::Http, meta, fields, report, rule)?;
    let spec = fields.inner("spec");
    if let Some(mut spec) = spec.filter(|_| route.rules.is_empty())
        && spec.get("rules").is_none()
    {
        // The schema's own: everything, to nowhere.
        let mut nothing = plain(Vec::new(), Filters::default(), spec.at(), report);
        nothing.matches.push(everything(report.source(spec.at())));
        route.rules.push(RouteRule {
            route: nothing,
            backends: Vec::new(),
            mirrors: Vec::new(),
            backend_timeout: None,
        });
    }
    Some(route)
}

/// Reads a route of requests.
pub(super) fn requests(
    kind: RouteKind,
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
    rule: impl Fn(&Cursor<'_>, &Namespace, &Report) -> Option<RouteRule>,
) -> Option<GatewayApiRoute> {
    let (route, rules) = read(kind, meta, fields, report, rule)?;
    Some(GatewayApiRoute { rules, ..route })
}

/// Reads a route, and its rules by `rule`.
pub(super) fn read<T>(
    kind: RouteKind,
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
    rule: impl Fn(&Cursor<'_>, &Namespace, &Report) -> Option<T>,
) -> Option<(GatewayApiRoute, Vec<T>)> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let own = meta.name.namespace.clone();
    let hostnames = match kind {
        // Its connections carry no name.
        RouteKind::Tcp => Vec::new(),
        RouteKind::Http | RouteKind::Grpc => hostnames(&mut spec, MAX_HOSTNAMES, report),
        RouteKind::Tls => hostnames(&mut spec, MAX_SERVER_NAMES, report),
    };
    let parents = parents(&mut spec, &own, report);
    let at = spec.at().clone();
    let rules = spec.list("rules", |cursor| rule(cursor, &own, report));
    at_most(rules.len(), MAX_RULES, "rules", &at, report);
    let named = "name the Gateways in `parentRefs`";
    spec.without_effect(&[("useDefaultGateways", named)]);
    spec.finish();
    let route = GatewayApiRoute {
        kind,
        hostnames,
        parents,
        rules: Vec::new(),
        connections: Vec::new(),
        name: meta.name,
        source: meta.source,
        created: meta.created,
    };
    Some((route, rules))
}

fn hostnames(spec: &mut Fields<'_>, most: usize, report: &Report) -> Vec<Hostname> {
    let all = spec.texts("hostnames");
    at_most(all.len(), most, "hostnames", spec.at(), report);
    let all = all.iter();
    all.filter_map(|text| values::hostname(text, report))
        .collect()
}

fn parents(spec: &mut Fields<'_>, own: &Namespace, report: &Report) -> Vec<Parent> {
    let at = spec.at().clone();
    let parents = spec.list("parentRefs", |cursor| {
        let mut fields = cursor.fields()?;
        let to = reference(&mut fields, GATEWAY, own, report);
        let section = fields.text("sectionName").map(|text| text.value);
        let port = port(&mut fields, report);
        fields.finish();
        Some(Parent {
            to: to?,
            section,
            port,
        })
    });
    at_most(parents.len(), MAX_PARENTS, "parentRefs", &at, report);
    parents
}

fn rule(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<RouteRule> {
    let mut fields = cursor.fields()?;
    let at = cursor.at();
    let reading = FilterReader {
        own,
        report,
        http: true,
    };
    let name = rule_name(&mut fields, report);
    let mut matches = fields.list("matches", |cursor| matches::http(cursor, report));
    at_most(matches.len(), MAX_MATCHES, "matches", at, report);
    let filters = reading.of_rule(&mut fields);
    let backends = backends(&mut fields, &reading);
    let (timeout, backend_timeout) = timeouts(&mut fields, report);
    let retries = fields
        .inner("retry")
        .map(|retry| self::retry(retry, report));
    fields.without_effect(&[("sessionPersistence", "each request goes to any endpoint")]);
    fields.finish();
    if filters.redirect.is_some() && !backends.is_empty() {
        let message = "a rule either redirects requests or sends them to backends";
        let help = "keep `backendRefs` or the filter RequestRedirect";
        report.error(codes::CONTRADICTION, at, message, help);
    }
    if matches.is_empty() {
        matches.push(everything(report.source(at)));
    }
    if filters.replaces_prefix && !one_prefix(&matches) {
        let message = "ReplacePrefixMatch needs exactly one path prefix match";
        let help = "write one match with a path of type PathPrefix, or use ReplaceFullPath";
        report.error(codes::CONTRADICTION, at, message, help);
    }
    let mirrors = filters.mirrors.clone();
    Some(RouteRule {
        route: HttpRoute {
            name,
            timeout,
            retries,
            ..plain(matches, filters, at, report)
        },
        backends,
        mirrors,
        backend_timeout,
    })
}

/// Conditions of a retry besides the response `codes`: only requests that no backend saw.
const UNSEEN: [&str; 3] = ["connect-failure", "refused-stream", "reset-before-request"];
/// Answers that may be tried again, by the API's schema.
const RETRIABLE: std::ops::RangeInclusive<u16> = 400..=599;

/// `retry` of a rule.
fn retry(mut fields: Fields<'_>, report: &Report) -> RetrySettings {
    let codes = fields.list("codes", |cursor| {
        let code = cursor.integer()?;
        let number = u16::try_from(code.value).ok();
        let number = number.filter(|number| RETRIABLE.contains(number));
        if number.is_none() {
            let message = format!("{} is no status that can be retried", code.value);
            let help = "write a status from 400 to 599";
            report.error(codes::BAD_VALUE, &code.at, message, help);
        }
        number
    });
    let attempts = fields.integer("attempts").and_then(|attempts| {
        let number = u32::try_from(attempts.value).ok();
        let number = number.filter(|number| *number > 0);
        if number.is_none() {
            let message = format!("{} is not a number of attempts", attempts.value);
            let help = "write 1 or more, or remove `retry`";
            report.error(codes::BAD_VALUE, &attempts.at, message, help);
        }
        number
    });
    let backoff = fields.text("backoff");
    let backoff = backoff.and_then(|text| report.duration(&text));
    fields.finish();
    let unseen = UNSEEN.iter().map(|&word| word.into());
    let codes = codes.iter().map(|code| code.to_string().into());
    RetrySettings {
        retries: attempts.unwrap_or(DEFAULT_RETRIES),
        on: unseen.chain(codes).collect(),
        per_try_timeout: None,
        backoff: backoff.filter(|base| !base.is_zero()),
    }
}

pub(super) fn rule_name(fields: &mut Fields<'_>, report: &Report) -> Option<Arc<str>> {
    let name = fields.text("name")?;
    says_nothing(&name, " as a name", report)
}

/// The match of a rule without matches: every request.
pub(super) fn everything(source: Source) -> HttpMatch {
    let path = Criterion::Is(matches::everything());
    HttpMatch {
        source,
        name: None,
        criteria: [(Subject::Uri, path)].into_iter().collect(),
        any_case: false,
    }
}

fn one_prefix(matches: &[HttpMatch]) -> bool {
    let prefix = |one: &HttpMatch| {
        let path = one.criteria.get(&Subject::Uri);
        matches!(path, Some(Criterion::Is(TextMatch::Segments(_))))
    };
    matches!(matches, [one] if prefix(one))
}

/// A rule without its destinations.
pub(super) fn plain(
    matches: Vec<HttpMatch>,
    filters: Filters,
    at: &FieldPath,
    report: &Report,
) -> HttpRoute {
    HttpRoute {
        source: report.source(at),
        name: None,
        matches,
        route: Vec::new(),
        answer: filters.redirect,
        mirrors: Vec::new(),
        delegate: None,
        rewrite: filters.rewrite,
        headers: filters.headers,
        fault: None,
        cors: filters.cors,
        timeout: None,
        retries: None,
        missing_status: HttpRoute::MISSING_IN_GATEWAY_API,
    }
}

/// `backendRefs` that requests go to.
pub(super) fn backends(rule: &mut Fields<'_>, reading: &FilterReader<'_>) -> Vec<Backend> {
    shared(rule, reading.own, reading.report, |fields| {
        reading.of_backend(fields)
    })
}

/// `backendRefs`; `headers` reads what becomes of headers of those that go to one.
pub(super) fn shared(
    rule: &mut Fields<'_>,
    own: &Namespace,
    report: &Report,
    headers: impl Fn(&mut Fields<'_>) -> HeaderRules,
) -> Vec<Backend> {
    let at = rule.at().clone();
    let backends = rule.list("backendRefs", |cursor| {
        let mut fields = cursor.fields()?;
        let to = backend_to(&mut fields, own, report);
        let weight = fields.integer("weight");
        let weight = weight.map_or(Some(1), |weight| values::weight(&weight, report));
        let headers = headers(&mut fields);
        fields.finish();
        Some(Backend {
            to: to?,
            weight: weight?,
            headers,
        })
    });
    at_most(backends.len(), MAX_BACKENDS, "backendRefs", &at, report);
    backends
}

/// Time limits of all attempts together and of one attempt.
fn timeouts(rule: &mut Fields<'_>, report: &Report) -> (Option<Duration>, Option<Duration>) {
    let Some(mut fields) = rule.inner("timeouts") else {
        return (None, None);
    };
    let at = fields.at().clone();
    let [request, backend] = ["request", "backendRequest"].map(|name| {
        let text = fields.text(name)?;
        report.duration(&text).filter(|limit| !limit.is_zero())
    });
    fields.finish();
    if let (Some(all), Some(one)) = (request, backend)
        && one > all
    {
        let message = "`backendRequest` is longer than `request`";
        let help = "write at most the time of `request`";
        report.error(codes::CONTRADICTION, &at, message, help);
    }
    (request, backend)
}
