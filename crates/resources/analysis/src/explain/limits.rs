//! Describes the RateLimits of a workload, rule by rule, in words. They limit the requests that policies allow.

use std::fmt::Write as _;
use std::sync::Arc;

use voile_model::mesh::gateway_api::Gateway;
use voile_model::mesh::rate_limit::{
    DescriptorValue, Limit, LimitBy, LimitRule, MAX_RATE_LIMITS, RateLimit,
};
use voile_model::mesh::{Mesh, MeshService, Workload};

use crate::subject::Subject;

/// One sentence for each rule, in the order in which they are asked.
pub(super) fn told(mesh: &Mesh, subject: &Subject<'_>) -> Vec<String> {
    let all = mesh.rate_limits.values();
    let held = all.filter(|one| mesh.is_limited(one, subject.namespace, subject.labels));
    sentences(held)
}

/// The same of a waypoint, of requests to a service.
pub(super) fn told_at(
    mesh: &Mesh,
    (waypoint, own): (&Gateway, Option<&Workload>),
    service: &MeshService,
) -> Vec<String> {
    let all = mesh.rate_limits_at(waypoint, own).take(MAX_RATE_LIMITS);
    let is_for = |aimed: &[&MeshService]| {
        let mut aimed = aimed.iter();
        aimed.len() == 0 || aimed.any(|one| one.key == service.key)
    };
    sentences(all.filter_map(|(one, aimed)| is_for(&aimed).then_some(one)))
}

fn sentences<'m>(held: impl Iterator<Item = &'m Arc<RateLimit>>) -> Vec<String> {
    let held = held.take(MAX_RATE_LIMITS);
    held.flat_map(|one| one.rules.iter().map(move |rule| sentence(one, rule)))
        .collect()
}

fn sentence(one: &RateLimit, rule: &LimitRule) -> String {
    let mut asks: Vec<String> = rule
        .matches
        .iter()
        .flat_map(|one| one.criteria.keys().map(ToString::to_string))
        .collect();
    asks.sort_unstable();
    asks.dedup();
    let whom = match asks.is_empty() {
        true => "every request".to_owned(),
        false => format!("requests that match by {}", asks.join(", ")),
    };
    let mut parts: Vec<String> = rule.limits.iter().map(limit).collect();
    if let Some(global) = one.global.as_ref().filter(|_| !rule.descriptors.is_empty()) {
        let service = &global.service;
        let open = match global.fail_open {
            true => "allowed while it is unreachable",
            false => "rejected while it is unreachable",
        };
        let all: Vec<String> = rule
            .descriptors
            .iter()
            .map(|one| {
                let entries = one.entries.iter();
                let entries: Vec<String> = entries
                    .map(|entry| format!("{}={}", entry.key, value(&entry.value)))
                    .collect();
                entries.join(",")
            })
            .collect();
        parts.push(format!(
            "counted by {}:{} in domain `{}` with {} hits for {}, {open}",
            service.host,
            service.port,
            global.domain,
            rule.hits,
            all.join(" and ")
        ));
    }
    if parts.is_empty() {
        parts.push("no limit".to_owned());
    }
    let (name, source) = (&one.name, &rule.source);
    format!(
        "{whom}: {} (rule `{}` of RateLimit {name}, in {source})",
        parts.join("; "),
        rule.name
    )
}

fn limit(limit: &Limit) -> String {
    let Limit {
        requests,
        per,
        burst,
        ..
    } = limit;
    let mut text = format!("{requests} in {per:?}, {burst} at once");
    let LimitBy {
        identity,
        address,
        headers,
    } = &limit.by;
    let mut by = Vec::new();
    if *identity {
        by.push("identity".to_owned());
    }
    if *address {
        by.push("client address".to_owned());
    }
    by.extend(headers.iter().map(|name| format!("header {name}")));
    if !by.is_empty() {
        // Writing into a String cannot fail.
        let _ = write!(text, ", by {}", by.join(" and "));
    }
    text
}

fn value(value: &DescriptorValue) -> String {
    match value {
        DescriptorValue::Text(text) => text.to_string(),
        DescriptorValue::Header(name) => format!("header {name}"),
        DescriptorValue::Identity => "the identity".to_owned(),
        DescriptorValue::Address => "the client's address".to_owned(),
        DescriptorValue::Method => "the method".to_owned(),
        DescriptorValue::Path => "the path".to_owned(),
    }
}
