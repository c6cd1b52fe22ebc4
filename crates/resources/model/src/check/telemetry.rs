//! Check of Telemetry. A filter that cannot be parsed refuses the resource by name: the author's intent cannot be
//! guessed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::authorization::{GATEWAY_API, targets};
use super::values::Meta;
use crate::codes;
use crate::decode::{Fields, Report, SpannedValue, Text};
use crate::logs::log_filter::LogFilter;
use crate::mesh::telemetry::{
    CustomTag, LoggingRule, Metric, MetricOverride, MetricsRule, ProviderName, RequestAttribute,
    SamplingShare, TagOverride, Telemetry, TelemetrySides, TracingRule, quoted,
};
use crate::text::{clip, suggest};

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

pub(super) fn telemetry(meta: Meta, fields: &mut Fields<'_>) -> Telemetry {
    let known = [
        (GATEWAY_API, "Gateway"),
        ("", "Service"),
        ("networking.istio.io", "ServiceEntry"),
    ];
    let help = "a Gateway (gateway.networking.k8s.io) of a gateway or a waypoint, or a Service or ServiceEntry (networking.istio.io) behind a waypoint";
    let mut telemetry = Telemetry {
        name: meta.name,
        source: meta.source,
        created: meta.created,
        targets: Vec::new(),
        selector: None,
        metrics: Vec::new(),
        tracing: Vec::new(),
        access_logging: Vec::new(),
    };
    fields.ignore(&["status"]);
    fields.mapping("spec", |spec| {
        (telemetry.targets, telemetry.selector) = targets(spec, (&known, help));
        telemetry.metrics = spec.mappings("metrics", |fields| Some(metrics(fields)));
        telemetry.tracing = spec.mappings("tracing", |fields| Some(tracing(fields)));
        telemetry.access_logging = spec.mappings("accessLogging", |fields| Some(logging(fields)));
    });
    telemetry
}

/// `match: {mode: …}`.
fn matched_sides(fields: &mut Fields<'_>) -> TelemetrySides {
    fields
        .mapping("match", sides)
        .unwrap_or(TelemetrySides::BOTH)
}

fn sides(matching: &mut Fields<'_>) -> TelemetrySides {
    let mode = matching.one_of("mode", &MODES);
    mode.unwrap_or(TelemetrySides::BOTH)
}

/// `providers: [{name: …}]`.
fn providers(fields: &mut Fields<'_>) -> Vec<Text> {
    let report = fields.report();
    fields.mappings("providers", |fields| {
        let name = fields.text("name").filter(|name| !name.value.is_empty());
        report.required(name, fields.at(), "name")
    })
}

fn provider_names(providers: Vec<Text>, report: &Report) -> Vec<ProviderName> {
    let name = |text: Text| ProviderName {
        source: report.source(&text.at),
        name: text.value,
    };
    providers.into_iter().map(name).collect()
}

fn logging(fields: &mut Fields<'_>) -> LoggingRule {
    let report = fields.report();
    let sides = matched_sides(fields);
    let providers = provider_names(providers(fields), report);
    let disabled = fields.flag("disabled");
    let filter = fields.mapping("filter", |filter| {
        let text = filter.text("expression");
        let text = report.required(text, filter.at(), "expression")?;
        LogFilter::parse(&text.value)
            .map_err(|error| report.error(codes::BAD_VALUE, &text.at, error.message, error.help))
            .ok()
    });
    LoggingRule {
        providers,
        sides,
        disabled,
        filter: filter.flatten(),
    }
}

fn tracing(fields: &mut Fields<'_>) -> TracingRule {
    let report = fields.report();
    let sides = matched_sides(fields);
    let providers = providers(fields);
    if let Some(second) = providers.get(1) {
        let message = format!(
            "provider `{}` gets no spans: only the first provider of a rule does",
            clip(&second.value)
        );
        report.warning(codes::NO_MEANING, &second.at, message, "keep one");
    }
    let sampling = fields.number("randomSamplingPercentage");
    let rule = TracingRule {
        providers: provider_names(providers, report),
        sides,
        sampling: sampling.and_then(|number| share(&number, report)),
        disable_span_reporting: fields.optional_flag("disableSpanReporting"),
        custom_tags: custom_tags(fields),
        use_request_id: fields.optional_flag("useRequestIdForTraceSampling"),
        istio_tags: fields.optional_flag("enableIstioTags"),
    };
    fields.not_obeyed(
        "disableContextPropagation",
        &["false"],
        "trace headers are forwarded to the next workload",
        "remove it; everything else of this resource is in force",
    );
    rule
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

/// `customTags: {NAME: {literal | environment | header}}`.
pub(super) fn custom_tags(fields: &mut Fields<'_>) -> Option<BTreeMap<Arc<str>, CustomTag>> {
    let tags = fields.get("customTags")?.entries().into_iter();
    let tags = tags.filter_map(|(name, tag)| {
        let tag = tag.mapping(|fields| custom_tag(&name, fields)).flatten()?;
        Some((name.value, tag))
    });
    Some(tags.collect())
}

fn custom_tag(name: &Text, fields: &mut Fields<'_>) -> Option<CustomTag> {
    let report = fields.report();
    let sources = [
        fields.mapping("literal", |literal| {
            let value = report.required(literal.text("value"), literal.at(), "value")?;
            Some(CustomTag::Literal(value.value))
        }),
        fields.mapping("environment", |environment| {
            let (name, default) = named(environment)?;
            let name = name.value;
            Some(CustomTag::Environment { name, default })
        }),
        fields.mapping("header", |header| {
            let (name, default) = named(header)?;
            let name = header_name(&name, report)?;
            Some(CustomTag::Header { name, default })
        }),
        fields.get("formatter").map(|_| None),
    ];
    fields.without_effect(&[("formatter", "the tag is left out of spans")]);
    tag_name(name, report)?;
    let mut sources: Vec<Option<CustomTag>> = sources.into_iter().flatten().collect();
    if sources.len() != 1 {
        let message = format!("a tag has exactly one source, not {}", sources.len());
        let help = "write one of literal, environment, header";
        report.error(codes::CONTRADICTION, &name.at, message, help);
        return None;
    }
    sources.pop()?
}

/// `name` and `defaultValue`.
fn named(fields: &mut Fields<'_>) -> Option<(Text, Option<Arc<str>>)> {
    let report = fields.report();
    let name = report.required(fields.text("name"), fields.at(), "name");
    let default = fields.value("defaultValue");
    Some((name?, default))
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

fn metrics(fields: &mut Fields<'_>) -> MetricsRule {
    let report = fields.report();
    let rule = MetricsRule {
        providers: provider_names(providers(fields), report),
        overrides: fields.mappings("overrides", |fields| Some(metric_override(fields))),
    };
    if let Some(interval) = fields.text("reportingInterval") {
        report.duration(&interval);
        let message = "`reportingInterval` has no effect: metrics are scraped, not pushed";
        report.warning(codes::NO_MEANING, &interval.at, message, "remove it");
    }
    rule
}

fn metric_override(fields: &mut Fields<'_>) -> MetricOverride {
    let report = fields.report();
    let matching = fields.mapping("match", |matching| {
        let name = matching.text("metric");
        let metric = name.and_then(|text| metric(&text, report));
        if let Some(custom) = matching.text("customMetric") {
            let message = format!(
                "custom metric `{}` does not exist: Voile makes Istio's standard metrics only",
                clip(&custom.value)
            );
            let help = "match a standard metric by `metric`";
            report.error(codes::REFUSED, &custom.at, message, help);
        }
        (metric, sides(matching))
    });
    let (metric, sides) = matching.unwrap_or((None, TelemetrySides::BOTH));
    let tags = fields.get("tagOverrides").map(|tags| tags.entries());
    let tags = tags.into_iter().flatten();
    let tags = tags.filter_map(|(name, tag)| tag.mapping(|fields| tag_override(name, fields)));
    let tags: Vec<Option<(Arc<str>, TagOverride)>> = tags.collect();
    let disabled = fields.optional_flag("disabled");
    if disabled.is_none() && tags.is_empty() {
        let message = "this override has no effect";
        let help = "write `disabled` or `tagOverrides`";
        report.warning(codes::NO_MEANING, fields.at(), message, help);
    }
    MetricOverride {
        metric,
        sides,
        disabled,
        tags: tags.into_iter().flatten().collect(),
    }
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

fn tag_override(name: Text, fields: &mut Fields<'_>) -> Option<(Arc<str>, TagOverride)> {
    let report = fields.report();
    let (operation, value) = (fields.text("operation"), fields.text("value"));
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
        &name,
        "a label",
        label,
        "letters, digits and `_`, not beginning with a digit or `__`, and not `le`",
    )?;
    let operations = [("UPSERT", false), ("REMOVE", true)];
    let removes = match operation {
        Some(text) => report.one_of(&text, &operations)?,
        None => false,
    };
    let tag = match (removes, value) {
        (true, None) => TagOverride::Remove,
        (true, Some(value)) => {
            let message = "a label that is removed has no value";
            report.error(codes::CONTRADICTION, &value.at, message, "");
            return None;
        }
        (false, value) => {
            let value = report.required(value, &name.at, "value")?;
            tag_value(&value, report)?
        }
    };
    Some((name.value, tag))
}

/// A constant, or one value of a request.
fn tag_value(text: &Text, report: &Report) -> Option<TagOverride> {
    let value = text.value.trim();
    let constant = quoted(value).map(|constant| TagOverride::Set(constant.into()));
    let computed = || RequestAttribute::parse(value).map(TagOverride::Computed);
    let found = constant.or_else(computed);
    if found.is_none() {
        let message = format!(
            "`{}` is neither a constant nor a value of requests that a label may have",
            clip(&text.value)
        );
        let help = "one of \"'text'\", request.method, request.host, request.scheme, request.path, request.url_path, \
                    request.useragent, request.headers['name']";
        report.error(codes::NOT_YET, &text.at, message, help);
    }
    found
}
