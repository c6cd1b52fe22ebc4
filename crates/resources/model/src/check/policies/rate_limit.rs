//! Check of RateLimit. Refuses, by name, limits that would limit no request or whose effect is unforeseeable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use voile_traffic::Rate;

use crate::check::authorization::{GATEWAY_API, targets};
use crate::check::config::provider;
use crate::check::telemetry::header_name;
use crate::check::values::Meta;
use crate::check::virtual_service::limited_match;
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue, Text};
use crate::mesh::rate_limit::{
    DEFAULT_KEYS, DEFAULT_TIMEOUT, Descriptor, DescriptorEntry, DescriptorValue, GlobalLimits,
    Limit, LimitBy, LimitRule, MAX_DESCRIPTORS, MAX_ENTRIES, MAX_KEYS, MAX_LIMITS, RateLimit,
};
use crate::mesh::{HttpMatch, Subject};
use crate::names::ResourceName;
use crate::text::clip;

/// Longest name of a rule, which clients are told with every answer.
const MAX_NAME_BYTES: usize = 64;

/// Longest domain, key or value of a descriptor: it travels with every question.
const MAX_WORD_BYTES: usize = 256;

/// Most headers of one key.
const MAX_HEADERS: usize = 8;

pub(in crate::check) fn rate_limit(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<RateLimit> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let known = [("", "Service"), (GATEWAY_API, "Gateway")];
    let help = "write a Service or a Gateway (gateway.networking.k8s.io); limit it to some routes with `match`";
    let (targets, selector) = targets(&mut spec, (&known, help));
    let global = spec.mapping("global", |fields| (fields.at().clone(), global(fields)));
    let list = spec.get("rules").map(|list| list.items());
    let list = list.unwrap_or_default();
    let alone = list.len() == 1;
    let rules = list.iter().enumerate().filter_map(|(index, one)| {
        let unnamed = match alone {
            true => meta.name.name.clone(),
            false => format!("{}-{}", meta.name.name, index + 1).into(),
        };
        one.mapping(|fields| rule(fields, unnamed, &meta.name))
    });
    let rules: Vec<WrittenRule> = rules.collect();
    if rules.is_empty() {
        report.required(None::<()>, spec.at(), "rules");
    }
    counted(&rules, global.as_ref().map(|(at, _)| at), report);
    apart(&rules, spec.at(), report);
    spec.finish();
    Some(RateLimit {
        selector,
        targets,
        global: global.and_then(|(_, global)| global),
        rules: rules.into_iter().map(|written| written.rule).collect(),
        name: meta.name,
        source: meta.source,
    })
}

fn global(fields: &mut Fields<'_>) -> Option<GlobalLimits> {
    let report = fields.report();
    let service = provider::service(fields);
    let domain = report.required(fields.text("domain"), fields.at(), "domain");
    let domain = domain.and_then(|text| word(&text, "a domain", report));
    let timeout = match fields.text("timeout") {
        None => Some(DEFAULT_TIMEOUT),
        Some(text) => report.duration(&text).filter(|limit| {
            let some = !limit.is_zero();
            if !some {
                let help =
                    "write the longest time to wait for the rate limit service, such as 50ms";
                report.bad(&text, " as a timeout", help);
            }
            some
        }),
    };
    let fail_open = fields.flag("failOpen");
    Some(GlobalLimits {
        service: service?,
        domain: domain?,
        timeout: timeout?,
        fail_open,
    })
}

/// A rule, and the fields that must agree with other rules and with `global`.
struct WrittenRule {
    at: FieldPath,
    has_descriptors: bool,
    hits: Option<SpannedValue<i64>>,
    rule: LimitRule,
}

/// Checks that descriptors have a counting service, and that a counting service has descriptors.
fn counted(rules: &[WrittenRule], global: Option<&FieldPath>, report: &Report) {
    let mut describing = rules.iter().filter(|rule| rule.has_descriptors);
    match (global, describing.next()) {
        (None, Some(rule)) => {
            let message = "`descriptors` need a rate limit service, and `global` is missing";
            let help = "write spec.global: {service, port, domain}";
            report.error(codes::CONTRADICTION, &rule.at, message, help);
        }
        (Some(global), None) => {
            let message =
                "`global` has no effect: no rule has `descriptors` for the rate limit service";
            let help = "add `descriptors` to a rule, or remove `global`";
            report.error(codes::CONTRADICTION, global, message, help);
        }
        _ => {}
    }
    if let Some(rule) = rules.iter().find(|rule| !rule.has_descriptors)
        && let Some(hits) = &rule.hits
    {
        let message =
            "`hits` has no effect without `descriptors`: it is a value for the rate limit service";
        report.error(codes::CONTRADICTION, &hits.at, message, "remove it");
    }
}

/// Visible text, as the service compares it.
fn word(text: &Text, what: &str, report: &Report) -> Option<Arc<str>> {
    let fine = |text: &str| {
        let plain = !text.is_empty() && !text.contains(char::is_control);
        (plain && text.len() <= MAX_WORD_BYTES).then(|| text.into())
    };
    report.parsed(text, what, fine, "at most 256 bytes of visible text")
}

fn descriptor(fields: &mut Fields<'_>) -> Option<Descriptor> {
    let report = fields.report();
    let entries = fields.mappings("entries", |fields| {
        Some((fields.at().clone(), entry(fields)))
    });
    if entries.is_empty() {
        report.required(None::<()>, fields.at(), "entries");
    }
    if let Some((at, _)) = entries.get(MAX_ENTRIES) {
        let message = format!("a descriptor has at most {MAX_ENTRIES} entries");
        report.error(codes::LIMIT, at, message, "");
    }
    let entries = entries.into_iter().map(|(_, entry)| entry);
    Some(Descriptor {
        entries: entries.collect::<Option<_>>()?,
    })
}

fn entry(fields: &mut Fields<'_>) -> Option<DescriptorEntry> {
    use DescriptorValue as Value;
    let report = fields.report();
    let key = report.required(fields.text("key"), fields.at(), "key");
    let key = key.and_then(|text| word(&text, "a key", report));
    let text = fields.text("value");
    let header = fields.text("header");
    let flags = [
        ("identity", Value::Identity),
        ("clientAddress", Value::Address),
        ("method", Value::Method),
        ("path", Value::Path),
    ];
    let flags = flags.into_iter().filter(|(name, _)| fields.flag(name));
    let mut said: Vec<Option<Value>> = flags.map(|(_, value)| Some(value)).collect();
    said.extend(text.map(|text| word(&text, "a value", report).map(Value::Text)));
    said.extend(header.map(|text| header_name(&text, report).map(Value::Header)));
    if said.len() != 1 {
        let message = "an entry has exactly one source";
        let help = "write one of value, header, identity: true, clientAddress: true, method: true, path: true";
        report.error(codes::CONTRADICTION, fields.at(), message, help);
        return None;
    }
    Some(DescriptorEntry {
        key: key?,
        value: said.pop()??,
    })
}

/// Clients and metrics tell rules apart by their names.
fn apart(rules: &[WrittenRule], at: &FieldPath, report: &Report) {
    let mut names = BTreeSet::new();
    for WrittenRule { rule, .. } in rules {
        if !names.insert(&rule.name) {
            let message = format!("two rules are called `{}`", clip(&rule.name));
            let help = "give each a name of its own";
            report.error(codes::CONTRADICTION, at, message, help);
        }
    }
}

fn rule(fields: &mut Fields<'_>, unnamed: Arc<str>, of: &ResourceName) -> WrittenRule {
    let report = fields.report();
    let at = fields.at().clone();
    let limits = fields.get("limits");
    let name = fields.text("name");
    if let Some(text) = &name {
        self::name(text, report);
    }
    let matches = fields.list("match", |one| limited_match(of, one, report));
    for one in &matches {
        answerable(one, &at, report);
    }
    let limits = limits.map(|list| list.mappings(|fields| Some(limit(fields))));
    let descriptors = fields.mappings("descriptors", |fields| Some(descriptor(fields)));
    if descriptors.is_empty() {
        report.required(limits.as_ref(), &at, "limits");
    }
    let limits = limits.unwrap_or_default();
    let lists = [
        (descriptors.len(), MAX_DESCRIPTORS, "descriptors"),
        (limits.len(), MAX_LIMITS, "limits"),
    ];
    for (length, most, what) in lists {
        if length > most {
            let message = format!("a rule has at most {most} {what}");
            let help = "write the others in a RateLimit of its own";
            report.error(codes::LIMIT, &at, message, help);
        }
    }
    let hits = fields.integer("hits");
    let counted = hits.as_ref().and_then(|hits| count(hits, u32::MAX, report));
    WrittenRule {
        has_descriptors: !descriptors.is_empty(),
        rule: LimitRule {
            source: report.source(&at),
            name: name.map_or(unnamed, |text| text.value),
            matches,
            limits: limits.into_iter().flatten().collect(),
            descriptors: descriptors.into_iter().flatten().collect(),
            hits: counted.unwrap_or(1),
        },
        hits,
        at,
    }
}

/// Clients read it as a string of structured fields.
fn name(text: &Text, report: &Report) -> Option<()> {
    let fine = |text: &str| {
        let shown = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let short = !text.is_empty() && text.len() <= MAX_NAME_BYTES;
        (shown && short).then_some(())
    };
    let help = "at most 64 printable letters of ASCII";
    report.parsed(text, "the name of a rule", fine, help)
}

/// Refuses criteria that the called workload cannot evaluate. It knows its callers' identities, but not their labels.
fn answerable(one: &HttpMatch, at: &FieldPath, report: &Report) {
    for subject in one.criteria.keys() {
        let help = match subject {
            Subject::SourceLabel(_) | Subject::SourceNamespace => {
                "count by `by: {identity: true}`, or remove it"
            }
            Subject::Gateways => "use `selector`, or remove it",
            Subject::Port => "use `selector` and `uri`, or remove it",
            _ => continue,
        };
        let message = format!("`{subject}` is not supported in rate limits");
        report.error(codes::NOT_YET, at, message, help);
    }
}

fn limit(fields: &mut Fields<'_>) -> Option<Limit> {
    let report = fields.report();
    let requests = report.required(fields.integer("requests"), fields.at(), "requests");
    let requests = requests.and_then(|number| count(&number, u32::MAX, report));
    let per = report.required(fields.text("per"), fields.at(), "per");
    let per = per.and_then(|text| Some((report.duration(&text)?, text)));
    let burst = match fields.integer("burst") {
        Some(number) => count(&number, u32::MAX, report),
        None => requests,
    };
    let by = fields.mapping("by", by);
    let written = fields.integer("keys");
    let keys = match &written {
        Some(number) => count(number, MAX_KEYS, report),
        None => Some(DEFAULT_KEYS),
    };
    let by = by.unwrap_or_else(|| Some(LimitBy::default()))?;
    if let Some(keys) = written.filter(|_| by.is_nothing()) {
        let message = "`keys` has no effect: without `by` all requests share one bucket";
        let help = "add `by`, or remove it";
        report.error(codes::CONTRADICTION, &keys.at, message, help);
    }
    let (requests, (per, text), burst, keys) = (requests?, per?, burst?, keys?);
    rate(requests, per, burst, &text, report)?;
    Some(Limit {
        requests,
        per,
        burst,
        by,
        keys,
    })
}

fn rate(requests: u32, per: Duration, burst: u32, text: &Text, report: &Report) -> Option<()> {
    let made = Rate::new(requests, per, burst);
    if let Err(error) = &made {
        let help = "write a number of requests and a time, such as requests: 100 and per: 1s";
        report.error(codes::BAD_VALUE, &text.at, error.to_string(), help);
    }
    made.ok().map(drop)
}

/// At least one.
fn count(number: &SpannedValue<i64>, most: u32, report: &Report) -> Option<u32> {
    let fits = (1..=i64::from(most)).contains(&number.value);
    if !fits {
        let message = format!("{} is not allowed", number.value);
        let help = format!("write a number from 1 to {most}");
        report.error(codes::BAD_VALUE, &number.at, message, help);
    }
    u32::try_from(number.value).ok().filter(|_| fits)
}

fn by(fields: &mut Fields<'_>) -> Option<LimitBy> {
    let report = fields.report();
    let (identity, address) = (fields.flag("identity"), fields.flag("clientAddress"));
    let headers = fields.texts("headers");
    if let Some(one) = headers.get(MAX_HEADERS) {
        let message = format!("a key has at most {MAX_HEADERS} headers");
        report.error(codes::LIMIT, &one.at, message, "");
    }
    let headers = headers.iter().map(|text| header_name(text, report));
    Some(LimitBy {
        identity,
        address,
        headers: headers.collect::<Option<_>>()?,
    })
}
