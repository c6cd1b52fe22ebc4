//! Check of Telemetry. A filter that cannot be parsed refuses the resource by name: the author's intent cannot be
//! guessed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::authorization::{GATEWAY_API, written_targets};
use super::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue};
use crate::logs::log_filter::LogFilter;
use crate::mesh::telemetry::{
    CustomTag, LoggingRule, Metric, MetricOverride, MetricsRule, ProviderName, SamplingShare,
    TagOverride, Telemetry, TelemetrySides, TracingRule,
};
use crate::text::{clip, suggest};
use crate::written::{Text, telemetry as written};

const MODES: [(&str, TelemetrySides); 3] = [
    ("CLIENT_AND_SERVER", TelemetrySides::BOTH),
    (
        "CLIENT",
        TelemetrySides {
            client: true,
            server: false,
        },
    ),
    (
        "SERVER",
        TelemetrySides {
            client: false,
            server: true,
        },
    ),
];

/// Longest tag of a span or label of a metric, in bytes.
const MAX_TAG_NAME_BYTES: usize = 256;

pub(super) fn telemetry(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Telemetry {
    let written = written::Telemetry::read(fields);
    let known = [
        (GATEWAY_API, "Gateway"),
        ("", "Service"),
        ("networking.istio.io", "ServiceEntry"),
    ];
    let help = "a Gateway (gateway.networking.k8s.io) of a gateway or a waypoint, or a Service or ServiceEntry (networking.istio.io) behind a waypoint";
    let aims = |at: &FieldPath| written_targets(&written.target, at, (&known, help), report);
    let targets = written.at.as_ref().map(aims).unwrap_or_default();
    Telemetry {
        name: meta.name,
        source: meta.source,
        created: meta.created,
        targets,
        selector: values::selector(written.target.selector.as_ref(), report),
        metrics: written
            .metrics
            .iter()
            .map(|rule| metrics(rule, report))
            .collect(),
        tracing: written
            .tracing
            .iter()
            .map(|rule| tracing(rule, report))
            .collect(),
        access_logging: written
            .access_logging
            .iter()
            .map(|rule| logging(rule, report))
            .collect(),
    }
}

fn sides(mode: Option<&Text>, report: &Report) -> TelemetrySides {
    mode.and_then(|mode| report.one_of(mode, &MODES))
        .unwrap_or(TelemetrySides::BOTH)
}

fn providers(written: &[Text], report: &Report) -> Vec<ProviderName> {
    let name = |text: &Text| ProviderName {
        name: text.value.clone(),
        source: report.source(&text.at),
    };
    written.iter().map(name).collect()
}

fn logging(written: &written::AccessLogging, report: &Report) -> LoggingRule {
    let filter = written.filter.as_ref().and_then(|text| {
        LogFilter::parse(&text.value)
            .map_err(|error| report.error(codes::BAD_VALUE, &text.at, error.message, error.help))
            .ok()
    });
    LoggingRule {
        providers: providers(&written.providers, report),
        sides: sides(written.mode.as_ref(), report),
        disabled: written.disabled.as_ref().is_some_and(|flag| flag.value),
        filter,
    }
}

fn tracing(written: &written::Tracing, report: &Report) -> TracingRule {
    if let Some(second) = written.providers.get(1) {
        let message = format!(
            "provider `{}` gets no spans: only the first provider of a rule does",
            clip(&second.value)
        );
        report.warning(codes::NO_MEANING, &second.at, message, "keep one");
    }
    TracingRule {
        providers: providers(&written.providers, report),
        sides: sides(written.mode.as_ref(), report),
        sampling: written
            .sampling
            .as_ref()
            .and_then(|number| share(number, report)),
        disable_span_reporting: written
            .disable_span_reporting
            .as_ref()
            .map(|flag| flag.value),
        custom_tags: written
            .custom_tags
            .as_deref()
            .map(|tags| custom_tags(tags, report)),
        use_request_id: written.use_request_id.as_ref().map(|flag| flag.value),
        istio_tags: written.istio_tags.as_ref().map(|flag| flag.value),
    }
}

/// A percentage.
pub(super) fn share(number: &SpannedValue<f64>, report: &Report) -> Option<SamplingShare> {
    let share = SamplingShare::percent(number.value);
    if share.is_none() {
        let message = format!("{} is not a percentage", number.value);
        report.error(
            codes::BAD_VALUE,
            &number.at,
            message,
            "a number from 0 to 100",
        );
    }
    share
}

/// Tags by name.
pub(super) fn custom_tags(
    written: &[written::CustomTag],
    report: &Report,
) -> BTreeMap<Arc<str>, CustomTag> {
    let tag = |tag: &written::CustomTag| {
        tag_name(&tag.name, report)?;
        if tag.kinds != 1 {
            let message = format!("a tag has exactly one source, not {}", tag.kinds);
            report.error(
                codes::CONTRADICTION,
                &tag.name.at,
                message,
                "write one of literal, environment, header",
            );
            return None;
        }
        if tag.formatter {
            return None;
        }
        let named = |named: &written::WrittenName| {
            let name = report.required(named.name.as_ref(), &named.at, "name")?;
            Some((
                name.clone(),
                named.default.as_ref().map(|text| text.value.clone()),
            ))
        };
        let value = if let Some(text) = &tag.literal {
            CustomTag::Literal(text.value.clone())
        } else if let Some(environment) = &tag.environment {
            let (name, default) = named(environment)?;
            CustomTag::Environment {
                name: name.value,
                default,
            }
        } else {
            let (name, default) = named(tag.header.as_ref()?)?;
            CustomTag::Header {
                name: header_name(&name, report)?,
                default,
            }
        };
        Some((tag.name.value.clone(), value))
    };
    written.iter().filter_map(tag).collect()
}

fn tag_name(name: &Text, report: &Report) -> Option<()> {
    let fine = |text: &str| {
        let short = !text.is_empty() && text.len() <= MAX_TAG_NAME_BYTES;
        (short && !text.chars().any(char::is_control)).then_some(())
    };
    report.parsed(
        name,
        "a tag",
        fine,
        "at most 256 bytes without control characters",
    )
}

/// The name of a header, in lower case.
pub(super) fn header_name(text: &Text, report: &Report) -> Option<Arc<str>> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    let lower = |text: &str| {
        let fine = !text.is_empty() && text.bytes().all(token);
        fine.then(|| text.to_ascii_lowercase().into())
    };
    report.parsed(text, "a header", lower, "letters, digits and `-`")
}

fn metrics(written: &written::Metrics, report: &Report) -> MetricsRule {
    if let Some(interval) = &written.reporting_interval {
        report.duration(interval);
        let message = "`reportingInterval` has no effect: metrics are scraped, not pushed";
        report.warning(codes::NO_MEANING, &interval.at, message, "remove it");
    }
    let overrides = written.overrides.iter();
    MetricsRule {
        providers: providers(&written.providers, report),
        overrides: overrides
            .filter_map(|one| metric_override(one, report))
            .collect(),
    }
}

fn metric_override(written: &written::MetricOverride, report: &Report) -> Option<MetricOverride> {
    if let Some(custom) = &written.custom_metric {
        let message = format!(
            "custom metric `{}` does not exist: Voile makes Istio's standard metrics only",
            clip(&custom.value)
        );
        report.error(
            codes::REFUSED,
            &custom.at,
            message,
            "match a standard metric by `metric`",
        );
    }
    let tags = written.tags.iter();
    let checked = MetricOverride {
        metric: written
            .metric
            .as_ref()
            .and_then(|text| metric(text, report)),
        sides: sides(written.mode.as_ref(), report),
        disabled: written.disabled.as_ref().map(|flag| flag.value),
        tags: tags.filter_map(|tag| tag_override(tag, report)).collect(),
    };
    if checked.disabled.is_none() && written.tags.is_empty() {
        nothing(&written.at, report);
    }
    Some(checked)
}

fn nothing(at: &FieldPath, report: &Report) {
    report.warning(
        codes::NO_MEANING,
        at,
        "this override has no effect",
        "write `disabled` or `tagOverrides`",
    );
}

/// `None` is all of them.
fn metric(text: &Text, report: &Report) -> Option<Metric> {
    if &*text.value == "ALL_METRICS" {
        return None;
    }
    let found = Metric::NAMES
        .iter()
        .find(|(word, ..)| *word == &*text.value);
    if found.is_none() {
        let words = Metric::NAMES
            .iter()
            .map(|(word, ..)| *word)
            .chain(["ALL_METRICS"]);
        report.bad(text, " for a metric", suggest(&text.value, words));
    }
    found.map(|(_, metric, _)| *metric)
}

fn tag_override(
    written: &written::TagOverride,
    report: &Report,
) -> Option<(Arc<str>, TagOverride)> {
    let name = &written.name;
    let label = |text: &str| {
        let first = text
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let rest = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let reserved = text.starts_with("__") || text == "le";
        (first && rest && !reserved && text.len() <= MAX_TAG_NAME_BYTES).then_some(())
    };
    report.parsed(
        name,
        "a label",
        label,
        "letters, digits and `_`, not beginning with a digit or `__`, and not `le`",
    )?;
    let operations = [("UPSERT", false), ("REMOVE", true)];
    let removes = match &written.operation {
        Some(text) => report.one_of(text, &operations)?,
        None => false,
    };
    match (removes, &written.value) {
        (true, None) => Some((name.value.clone(), TagOverride::Remove)),
        (true, Some(value)) => {
            report.error(
                codes::CONTRADICTION,
                &value.at,
                "a label that is removed has no value",
                "",
            );
            None
        }
        (false, None) => {
            report.required(None::<()>, &name.at, "value");
            None
        }
        (false, Some(value)) => {
            let set = tag_value(value, report)?;
            Some((name.value.clone(), TagOverride::Set(set)))
        }
    }
}

/// A constant. Anything of the request would make series without a bound.
fn tag_value(text: &Text, report: &Report) -> Option<Arc<str>> {
    let value = text.value.trim();
    let quoted = |quote: char| {
        let inner = value.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains([quote, '\\'])).then(|| inner.into())
    };
    if let Some(constant) = quoted('"').or_else(|| quoted('\'')) {
        return Some(constant);
    }
    let message = format!(
        "`{}` is not a constant: a label made of each request's own values has no bound",
        clip(&text.value)
    );
    report.error(
        codes::NOT_YET,
        &text.at,
        message,
        "write a text in quotes inside the quotes: \"'eu-1'\"",
    );
    None
}
