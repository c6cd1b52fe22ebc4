//! Check of RateLimit. Refuses, by name, limits that would limit no request or whose effect is unforeseeable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use voile_traffic::Rate;

use crate::check::authorization::{GATEWAY_API, targets};
use crate::check::config::provider;
use crate::check::telemetry::header_name;
use crate::check::values::{self, Meta};
use crate::check::virtual_service::limited_match;
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue};
use crate::mesh::rate_limit::{
    DEFAULT_KEYS, DEFAULT_TIMEOUT, Descriptor, DescriptorEntry, DescriptorValue, GlobalLimits,
    Limit, LimitBy, LimitRule, MAX_DESCRIPTORS, MAX_ENTRIES, MAX_KEYS, MAX_LIMITS, RateLimit,
};
use crate::mesh::{HttpMatch, Subject};
use crate::text::clip;
use crate::written::{Text, rate_limit as written};

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
    let name = &meta.name;
    let read = written::RateLimit::read(fields, |at| limited_match(name, at, report));
    let written = report.required(read, &meta.at, "spec")?;
    if written.rules.is_empty() {
        report.required(None::<()>, &written.at, "rules");
    }
    let alone = written.rules.len() == 1;
    let numbered = written.rules.iter().enumerate();
    let rules = numbered.filter_map(|(number, one)| {
        let unnamed = || match alone {
            true => meta.name.name.clone(),
            false => format!("{}-{}", meta.name.name, number + 1).into(),
        };
        rule(one, unnamed, report)
    });
    let rules: Vec<LimitRule> = rules.collect();
    apart(&rules, &written, report);
    let global = match &written.global {
        Some(global) => Some(self::global(global, report)?),
        None => None,
    };
    counted(&written, report);
    let known = [("", "Service"), (GATEWAY_API, "Gateway")];
    let help = "write a Service or a Gateway (gateway.networking.k8s.io); limit it to some routes with `match`";
    Some(RateLimit {
        selector: values::selector(written.target.selector.as_ref(), report),
        targets: targets(&written.target, &written.at, (&known, help), report),
        global,
        rules,
        name: meta.name,
        source: meta.source,
    })
}

fn global(written: &written::Global, report: &Report) -> Option<GlobalLimits> {
    let service = provider::service(&written.service, report);
    let domain = report.required(written.domain.as_ref(), &written.at, "domain");
    let domain = domain.and_then(|text| word(text, "a domain", report));
    let timeout = match &written.timeout {
        None => Some(DEFAULT_TIMEOUT),
        Some(text) => report.duration(text).filter(|limit| {
            let some = !limit.is_zero();
            if !some {
                let help =
                    "write the longest time to wait for the rate limit service, such as 50ms";
                report.bad(text, " as a timeout", help);
            }
            some
        }),
    };
    Some(GlobalLimits {
        service: service?,
        domain: domain?,
        timeout: timeout?,
        fail_open: written.fail_open.as_ref().is_some_and(|flag| flag.value),
    })
}

/// Checks that descriptors have a counting service, and that a counting service has descriptors.
fn counted(written: &written::RateLimit<HttpMatch>, report: &Report) {
    let mut rules = written.rules.iter();
    match &written.global {
        None => {
            if let Some(rule) = rules.find(|rule| !rule.descriptors.is_empty()) {
                let message = "`descriptors` need a rate limit service, and `global` is missing";
                let help = "write spec.global: {service, port, domain}";
                report.error(codes::CONTRADICTION, &rule.at, message, help);
            }
        }
        Some(global) => {
            if rules.all(|rule| rule.descriptors.is_empty()) {
                let message =
                    "`global` has no effect: no rule has `descriptors` for the rate limit service";
                let help = "add `descriptors` to a rule, or remove `global`";
                report.error(codes::CONTRADICTION, &global.at, message, help);
            }
        }
    }
    if let Some(rule) = written
        .rules
        .iter()
        .find(|rule| rule.descriptors.is_empty())
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

fn descriptor(written: &written::Descriptor, report: &Report) -> Option<Descriptor> {
    if written.entries.is_empty() {
        report.required(None::<()>, &written.at, "entries");
    }
    if let Some(one) = written.entries.get(MAX_ENTRIES) {
        let message = format!("a descriptor has at most {MAX_ENTRIES} entries");
        report.error(codes::LIMIT, &one.at, message, "");
    }
    let entries = written.entries.iter();
    Some(Descriptor {
        entries: entries
            .map(|one| entry(one, report))
            .collect::<Option<_>>()?,
    })
}

fn entry(written: &written::WrittenLimitEntry, report: &Report) -> Option<DescriptorEntry> {
    use DescriptorValue as Value;
    let key = report.required(written.key.as_ref(), &written.at, "key");
    let key = key.and_then(|text| word(text, "a key", report));
    let text = |text: &Text| word(text, "a value", report).map(Value::Text);
    let header = |text: &Text| header_name(text, report).map(Value::Header);
    let words = [Value::Identity, Value::Address, Value::Method, Value::Path];
    let flags = written.flags.iter().zip(words);
    let flags = flags.filter(|(flag, _)| flag.as_ref().is_some_and(|flag| flag.value));
    let mut said: Vec<Option<Value>> = flags.map(|(_, value)| Some(value)).collect();
    said.extend(written.value.as_ref().map(text));
    said.extend(written.header.as_ref().map(header));
    if said.len() != 1 {
        let message = "an entry has exactly one source";
        let help = "write one of value, header, identity: true, clientAddress: true, method: true, path: true";
        report.error(codes::CONTRADICTION, &written.at, message, help);
        return None;
    }
    Some(DescriptorEntry {
        key: key?,
        value: said.pop()??,
    })
}

/// Clients and metrics tell rules apart by their names.
fn apart(rules: &[LimitRule], written: &written::RateLimit<HttpMatch>, report: &Report) {
    let mut names = BTreeSet::new();
    for one in rules {
        if !names.insert(&one.name) {
            let message = format!("two rules are called `{}`", clip(&one.name));
            let help = "give each a name of its own";
            report.error(codes::CONTRADICTION, &written.at, message, help);
        }
    }
}

fn rule(
    written: &written::WrittenLimitRule<HttpMatch>,
    unnamed: impl Fn() -> Arc<str>,
    report: &Report,
) -> Option<LimitRule> {
    let name = match &written.name {
        Some(text) => text.value.clone(),
        None => unnamed(),
    };
    if let Some(text) = &written.name {
        self::name(text, report)?;
    }
    for one in &written.matches {
        answerable(one, &written.at, report);
    }
    let none = Vec::new();
    let limits = match (&written.limits, written.descriptors.is_empty()) {
        (None, false) => &none,
        (limits, _) => report.required(limits.as_ref(), &written.at, "limits")?,
    };
    if written.descriptors.len() > MAX_DESCRIPTORS {
        let message = format!("a rule has at most {MAX_DESCRIPTORS} descriptors");
        let help = "write the others in a RateLimit of its own";
        report.error(codes::LIMIT, &written.at, message, help);
    }
    let descriptors = written.descriptors.iter();
    let descriptors = descriptors.map(|one| descriptor(one, report));
    if limits.len() > MAX_LIMITS {
        let message = format!("a rule has at most {MAX_LIMITS} limits");
        let help = "write the others in a RateLimit of its own";
        report.error(codes::LIMIT, &written.at, message, help);
    }
    Some(LimitRule {
        source: report.source(&written.at),
        name,
        matches: written.matches.clone(),
        limits: limits.iter().filter_map(|one| limit(one, report)).collect(),
        descriptors: descriptors.collect::<Option<_>>()?,
        hits: match &written.hits {
            Some(number) => count(number, u32::MAX, report)?,
            None => 1,
        },
    })
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

fn limit(written: &written::Limit, report: &Report) -> Option<Limit> {
    let requests = report.required(written.requests.as_ref(), &written.at, "requests");
    let requests = requests.and_then(|number| count(number, u32::MAX, report));
    let per = report.required(written.per.as_ref(), &written.at, "per");
    let per = per.and_then(|text| Some((text, report.duration(text)?)));
    let burst = match &written.burst {
        Some(number) => count(number, u32::MAX, report),
        None => requests,
    };
    let keys = match &written.keys {
        Some(number) => count(number, MAX_KEYS, report),
        None => Some(DEFAULT_KEYS),
    };
    let by = by(&written.by, report)?;
    if let Some(keys) = written.keys.as_ref().filter(|_| by.is_nothing()) {
        let message = "`keys` has no effect: without `by` all requests share one bucket";
        report.error(
            codes::CONTRADICTION,
            &keys.at,
            message,
            "add `by`, or remove it",
        );
    }
    let (requests, (text, per), burst, keys) = (requests?, per?, burst?, keys?);
    rate(requests, per, burst, text, report)?;
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

fn by(written: &written::WrittenBy, report: &Report) -> Option<LimitBy> {
    if let Some(one) = written.headers.get(MAX_HEADERS) {
        let message = format!("a key has at most {MAX_HEADERS} headers");
        report.error(codes::LIMIT, &one.at, message, "");
    }
    let said = |flag: &Option<SpannedValue<bool>>| flag.as_ref().is_some_and(|flag| flag.value);
    let headers = written.headers.iter();
    Some(LimitBy {
        identity: said(&written.identity),
        address: said(&written.address),
        headers: headers
            .map(|text| header_name(text, report))
            .collect::<Option<_>>()?,
    })
}
