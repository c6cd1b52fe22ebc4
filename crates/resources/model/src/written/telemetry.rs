//! `telemetry.istio.io`: Telemetry.

use super::Text;
use super::authorization::WrittenTarget;
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// `spec` of a Telemetry.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    pub(crate) at: Option<FieldPath>,
    pub(crate) target: WrittenTarget,
    pub(crate) metrics: Vec<Metrics>,
    pub(crate) tracing: Vec<Tracing>,
    pub(crate) access_logging: Vec<AccessLogging>,
}

/// One of `metrics`.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) providers: Vec<Text>,
    pub(crate) overrides: Vec<MetricOverride>,
    pub(crate) reporting_interval: Option<Text>,
}

/// One of `metrics[].overrides`.
#[derive(Debug)]
pub(crate) struct MetricOverride {
    pub(crate) at: FieldPath,
    pub(crate) metric: Option<Text>,
    pub(crate) custom_metric: Option<Text>,
    pub(crate) mode: Option<Text>,
    pub(crate) disabled: Option<SpannedValue<bool>>,
    pub(crate) tags: Vec<TagOverride>,
}

/// One of `tagOverrides`.
#[derive(Debug)]
pub(crate) struct TagOverride {
    pub(crate) name: Text,
    pub(crate) operation: Option<Text>,
    pub(crate) value: Option<Text>,
}

/// One of `tracing`.
#[derive(Debug)]
pub(crate) struct Tracing {
    pub(crate) mode: Option<Text>,
    pub(crate) providers: Vec<Text>,
    pub(crate) sampling: Option<SpannedValue<f64>>,
    pub(crate) disable_span_reporting: Option<SpannedValue<bool>>,
    pub(crate) custom_tags: Option<Vec<CustomTag>>,
    pub(crate) use_request_id: Option<SpannedValue<bool>>,
    pub(crate) istio_tags: Option<SpannedValue<bool>>,
}

/// One of `customTags`.
#[derive(Debug)]
pub(crate) struct CustomTag {
    pub(crate) name: Text,
    pub(crate) literal: Option<Text>,
    pub(crate) environment: Option<WrittenName>,
    pub(crate) header: Option<WrittenName>,
    /// True if the value is a `formatter`, which is not supported.
    pub(crate) formatter: bool,
    pub(crate) kinds: usize,
}

/// Something with a default.
#[derive(Debug)]
pub(crate) struct WrittenName {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) default: Option<Text>,
}

/// One of `accessLogging`.
#[derive(Debug)]
pub(crate) struct AccessLogging {
    pub(crate) mode: Option<Text>,
    pub(crate) providers: Vec<Text>,
    pub(crate) disabled: Option<SpannedValue<bool>>,
    pub(crate) filter: Option<Text>,
}

impl Telemetry {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        document.ignore(&["status"]);
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let telemetry = Self {
            at: Some(spec.at().clone()),
            target: WrittenTarget::read(&mut spec),
            metrics: spec.list("metrics", Metrics::read),
            tracing: spec.list("tracing", Tracing::read),
            access_logging: spec.list("accessLogging", AccessLogging::read),
        };
        spec.finish();
        telemetry
    }
}

/// `providers: [{name: …}]`.
fn providers(fields: &mut Fields<'_>) -> Vec<Text> {
    fields.list("providers", |cursor| {
        let mut fields = cursor.fields()?;
        let name = fields.text("name");
        let at = fields.at().clone();
        fields.finish();
        let name = name.filter(|name| !name.value.is_empty());
        cursor.report.required(name, &at, "name")
    })
}

/// `match: {mode: …}`.
fn mode(fields: &mut Fields<'_>) -> Option<Text> {
    let mut inner = fields.inner("match")?;
    let mode = inner.text("mode");
    inner.finish();
    mode
}

impl Metrics {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            providers: providers(&mut fields),
            overrides: fields.list("overrides", MetricOverride::read),
            reporting_interval: fields.text("reportingInterval"),
        };
        fields.finish();
        Some(read)
    }
}

impl MetricOverride {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let (mut metric, mut custom_metric, mut mode) = (None, None, None);
        if let Some(mut matching) = fields.inner("match") {
            metric = matching.text("metric");
            custom_metric = matching.text("customMetric");
            mode = matching.text("mode");
            matching.finish();
        }
        let tags = fields
            .get("tagOverrides")
            .map(|cursor| cursor.entries())
            .unwrap_or_default();
        let read = Self {
            at: cursor.at.clone(),
            metric,
            custom_metric,
            mode,
            disabled: fields.boolean("disabled"),
            tags: tags.into_iter().filter_map(TagOverride::read).collect(),
        };
        fields.finish();
        Some(read)
    }
}

impl TagOverride {
    fn read((name, cursor): (Text, Cursor<'_>)) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            name,
            operation: fields.text("operation"),
            value: fields.text("value"),
        };
        fields.finish();
        Some(read)
    }
}

impl Tracing {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            mode: mode(&mut fields),
            providers: providers(&mut fields),
            sampling: fields.number("randomSamplingPercentage"),
            disable_span_reporting: fields.boolean("disableSpanReporting"),
            custom_tags: custom_tags(&mut fields),
            use_request_id: fields.boolean("useRequestIdForTraceSampling"),
            istio_tags: fields.boolean("enableIstioTags"),
        };
        fields.not_obeyed(
            "disableContextPropagation",
            &["false"],
            "trace headers are forwarded to the next workload",
            "remove it; everything else of this resource is in force",
        );
        fields.finish();
        Some(read)
    }
}

/// `customTags: {NAME: {literal | environment | header}}`.
pub(crate) fn custom_tags(fields: &mut Fields<'_>) -> Option<Vec<CustomTag>> {
    let entries = fields.get("customTags")?.entries();
    Some(entries.into_iter().filter_map(CustomTag::read).collect())
}

impl CustomTag {
    fn read((name, cursor): (Text, Cursor<'_>)) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let literal = fields.inner("literal");
        let environment = fields.inner("environment");
        let header = fields.inner("header");
        let formatter = fields.get("formatter").is_some();
        fields.without_effect(&[("formatter", "the tag is left out of spans")]);
        let kinds = [
            literal.is_some(),
            environment.is_some(),
            header.is_some(),
            formatter,
        ];
        let literal = literal.and_then(|mut literal| {
            let value = literal.text("value");
            let at = literal.at().clone();
            literal.finish();
            cursor.report.required(value, &at, "value")
        });
        fields.finish();
        Some(Self {
            name,
            literal,
            environment: environment.map(WrittenName::read),
            header: header.map(WrittenName::read),
            formatter,
            kinds: kinds.into_iter().filter(|there| *there).count(),
        })
    }
}

impl WrittenName {
    fn read(mut fields: Fields<'_>) -> Self {
        let read = Self {
            at: fields.at().clone(),
            name: fields.text("name"),
            default: fields.text("defaultValue"),
        };
        fields.finish();
        read
    }
}

impl AccessLogging {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            mode: mode(&mut fields),
            providers: providers(&mut fields),
            disabled: fields.boolean("disabled"),
            filter: fields.inner("filter").and_then(|mut filter| {
                let expression = filter.text("expression");
                let at = filter.at().clone();
                filter.finish();
                cursor.report.required(expression, &at, "expression")
            }),
        };
        fields.finish();
        Some(read)
    }
}
