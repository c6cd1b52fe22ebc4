//! `voile.dev`: HealthCheck.

use super::{Selector, Text};
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// `spec` of a HealthCheck.
#[derive(Debug)]
pub(crate) struct HealthCheck {
    pub(crate) at: FieldPath,
    pub(crate) host: Option<Text>,
    pub(crate) port: Option<SpannedValue<i64>>,
    pub(crate) selector: Option<Selector>,
    pub(crate) interval: Option<Text>,
    pub(crate) jitter: Option<SpannedValue<i64>>,
    pub(crate) timeout: Option<Text>,
    pub(crate) healthy: Option<SpannedValue<i64>>,
    pub(crate) unhealthy: Option<SpannedValue<i64>>,
    pub(crate) panic: Option<SpannedValue<i64>>,
    pub(crate) http: Option<HttpQuestion>,
    pub(crate) grpc: Option<GrpcQuestion>,
    /// It has nothing to say.
    pub(crate) tcp: Option<FieldPath>,
}

/// `http`.
#[derive(Debug)]
pub(crate) struct HttpQuestion {
    pub(crate) at: FieldPath,
    pub(crate) path: Option<Text>,
    pub(crate) host: Option<Text>,
    pub(crate) expected: Vec<Statuses>,
}

/// One of `expectedStatuses`.
#[derive(Debug)]
pub(crate) struct Statuses {
    pub(crate) at: FieldPath,
    pub(crate) start: Option<SpannedValue<i64>>,
    pub(crate) end: Option<SpannedValue<i64>>,
}

/// `grpc`.
#[derive(Debug)]
pub(crate) struct GrpcQuestion {
    pub(crate) service: Option<Text>,
}

impl HealthCheck {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Option<Self> {
        document.ignore(&["status"]);
        let mut spec = document.inner("spec")?;
        let read = Self {
            at: spec.at().clone(),
            host: spec.text("host"),
            port: spec.integer("port"),
            selector: Selector::read(&mut spec, "selector", "matchLabels"),
            interval: spec.text("interval"),
            jitter: spec.integer("intervalJitterPercent"),
            timeout: spec.text("timeout"),
            healthy: spec.integer("healthyThreshold"),
            unhealthy: spec.integer("unhealthyThreshold"),
            panic: spec.integer("panicThreshold"),
            http: spec.inner("http").map(HttpQuestion::read),
            grpc: spec.inner("grpc").map(GrpcQuestion::read),
            tcp: spec.inner("tcp").map(|fields| {
                let at = fields.at().clone();
                fields.finish();
                at
            }),
        };
        spec.finish();
        Some(read)
    }
}

impl HttpQuestion {
    fn read(mut fields: Fields<'_>) -> Self {
        let http = Self {
            at: fields.at().clone(),
            path: fields.text("path"),
            host: fields.text("host"),
            expected: fields.list("expectedStatuses", Statuses::read),
        };
        fields.finish();
        http
    }
}

impl Statuses {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let statuses = Self {
            at: cursor.at().clone(),
            start: fields.integer("start"),
            end: fields.integer("end"),
        };
        fields.finish();
        Some(statuses)
    }
}

impl GrpcQuestion {
    fn read(mut fields: Fields<'_>) -> Self {
        let grpc = Self {
            service: fields.text("service"),
        };
        fields.finish();
        grpc
    }
}
