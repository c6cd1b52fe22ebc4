//! Checks RateLimits: selected workloads, a proxy that counts, and requests for every rule.

use voile_model::mesh::HttpMatch;
use voile_model::mesh::rate_limit::{LimitRule, MAX_RATE_LIMITS, RateLimit};
use voile_model::{Diagnostic, ServiceKey, Source};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions;
use crate::view::ClientView;

/// Checks all RateLimits.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    for one in view.mesh.rate_limits.values() {
        reach(view, one, found);
        counting(view, one, found);
        shadowed(one, found);
    }
    crowded(view, found);
}

fn holds(view: &ClientView<'_>, one: &RateLimit, subject: &Subject<'_>) -> bool {
    view.mesh.is_limited(one, subject.namespace, subject.labels)
}

/// For whom it is, and whether somebody counts there.
fn reach(view: &ClientView<'_>, one: &RateLimit, found: &mut Vec<Diagnostic>) {
    let selected = || {
        view.subjects
            .iter()
            .filter(|subject| holds(view, one, subject))
    };
    let nobody = |field: &str, message: String, help: &str, source: &Source| {
        let code = codes::RATE_LIMIT_SELECTS_NOTHING;
        let diagnostic = Diagnostic::warning(code, source.clone(), message);
        diagnostic.field(field).help(help)
    };
    if let Some(labels) = one.selector.as_ref()
        && selected().next().is_none()
    {
        let message = format!(
            "the selector ({}) of RateLimit {} selects no workload",
            shown(labels),
            one.name
        );
        let help = "it selects workloads of its own namespace, and those of the mesh from the root namespace";
        let diagnostic = nobody("spec.selector", message, help, &one.source);
        let lacks = suggestions::missing_workloads(&one.name.namespace, labels);
        found.push(diagnostic.lacks(lacks));
    }
    for target in &one.targets {
        let mut all = view.subjects.iter();
        let aims = |subject: &Subject<'_>| {
            *subject.namespace == one.name.namespace
                && view
                    .mesh
                    .is_target(target, subject.namespace, subject.labels)
        };
        let namespace = &one.name.namespace;
        if !all.any(aims) && !view.mesh.is_counted_before(target, namespace) {
            let (kind, name) = (&target.kind, &target.name);
            let message = format!(
                "RateLimit {} targets {kind} {name}, which has no workload in its namespace",
                one.name
            );
            let help = "target a Service with workloads or a Gateway of the RateLimit's namespace";
            found.push(nobody("spec.targetRefs", message, help, &target.source));
        }
    }
    let mut bare = selected().filter(|subject| !subject.has_sidecar && !subject.is_gateway());
    if let Some(first) = bare.next() {
        let others = match bare.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let message = format!(
            "RateLimit {} is not enforced for {}{others}: the workload has no sidecar",
            one.name, first.name
        );
        let help = "label its namespace istio-injection: enabled, or select other workloads";
        let source = one.source.clone();
        let code = codes::RATE_LIMIT_WITHOUT_SIDECAR;
        found.push(Diagnostic::error(code, source, message).help(help));
    }
}

/// Checks that the rate limit service exists.
fn counting(view: &ClientView<'_>, one: &RateLimit, found: &mut Vec<Diagnostic>) {
    let Some(global) = &one.global else { return };
    let wanted = &global.service;
    let of_that_name = |key: &ServiceKey| {
        let namespace = wanted.namespace.as_ref();
        key.hostname == wanted.host && namespace.is_none_or(|it| *it == key.namespace)
    };
    let all = view.mesh.services.values();
    let mut all = all.filter(|service| of_that_name(&service.key));
    let there = all.any(|service| service.ports.iter().any(|port| port.number == wanted.port));
    if !there {
        let (name, host, port) = (&one.name, &wanted.host, wanted.port);
        let passes = match global.fail_open {
            true => "passes",
            false => "is refused",
        };
        let message = format!(
            "RateLimit {name} has the rate limit service {host}:{port}, which does not exist: every request that it would count {passes}"
        );
        let name = "name an existing service and port of the mesh; declare external services with a ServiceEntry";
        let help = suggestions::for_host(view.mesh, host, name);
        let diagnostic = Diagnostic::error(codes::UNKNOWN_LIMITER, one.source.clone(), message);
        let lacks = suggestions::missing_host(host);
        found.push(diagnostic.field("spec.global").help(help).lacks(lacks));
    }
}

/// Rules that an earlier one takes everything from.
fn shadowed(one: &RateLimit, found: &mut Vec<Diagnostic>) {
    for (place, rule) in one.rules.iter().enumerate() {
        let earlier = one.rules[..place]
            .iter()
            .find(|earlier| takes_all(earlier, rule));
        if let Some(earlier) = earlier {
            let message = format!(
                "rule `{}` of RateLimit {} counts nothing: rule `{}` comes first and matches all its requests",
                rule.name, one.name, earlier.name
            );
            let help = "only the first matching rule counts: put the narrower one first, or both limits into one rule";
            let source: Source = rule.source.clone();
            found.push(Diagnostic::warning(codes::SHADOWED_LIMIT, source, message).help(help));
        }
    }
}

fn takes_all(earlier: &LimitRule, later: &LimitRule) -> bool {
    let everything = |one: &HttpMatch| one.criteria.is_empty();
    if earlier.matches.is_empty() || earlier.matches.iter().any(everything) {
        return true;
    }
    let covered = |one: &HttpMatch| earlier.matches.iter().any(|wide| wide.covers(one));
    !later.matches.is_empty() && later.matches.iter().all(covered)
}

/// More of them for one workload than its proxy asks.
fn crowded(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let mut left_out = std::collections::BTreeMap::new();
    for subject in &view.subjects {
        let all = view.mesh.rate_limits.values();
        let beyond = all
            .filter(|one| holds(view, one, subject))
            .skip(MAX_RATE_LIMITS);
        for one in beyond {
            left_out
                .entry(&one.name)
                .or_insert_with(|| (one, subject.name.clone()));
        }
    }
    let waypoints = view.mesh.gateway_api.gateways.iter();
    for waypoint in waypoints.filter(|one| one.is_waypoint()) {
        let mut own = view.mesh.workloads.values().filter(|one| {
            let runs = view.mesh.waypoint_run_by(one);
            runs.is_some_and(|by| by.name == waypoint.name)
        });
        let own = own.next().map(|own| &**own);
        let all = view.mesh.rate_limits_at(waypoint, own);
        for (one, _) in all.skip(MAX_RATE_LIMITS) {
            let whom = || (one, format!("waypoint {}", waypoint.name));
            left_out.entry(&one.name).or_insert_with(whom);
        }
    }
    for (name, (one, whom)) in left_out {
        let message = format!(
            "RateLimit {name} is not enforced for {whom}: a workload has at most {MAX_RATE_LIMITS}, the first by name"
        );
        let help = "merge their rules into fewer RateLimits";
        let source = one.source.clone();
        found.push(Diagnostic::error(codes::TOO_MANY_LIMITS, source, message).help(help));
    }
}
