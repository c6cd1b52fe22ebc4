//! The probes of a container, as written.

use super::Text;
use crate::decode::{Cursor, FieldPath, Fields, IntegerOrText, SpannedValue};

/// `startupProbe`, `readinessProbe` or `livenessProbe`.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) at: FieldPath,
    pub(crate) http: Option<HttpGet>,
    pub(crate) tcp: Option<TcpSocket>,
    pub(crate) grpc: Option<Grpc>,
    pub(crate) exec: Option<Exec>,
    pub(crate) initial_delay: Option<SpannedValue<i64>>,
    pub(crate) period: Option<SpannedValue<i64>>,
    pub(crate) timeout: Option<SpannedValue<i64>>,
    pub(crate) success_threshold: Option<SpannedValue<i64>>,
    pub(crate) failure_threshold: Option<SpannedValue<i64>>,
    pub(crate) termination_grace: Option<SpannedValue<i64>>,
}

/// `httpGet`.
#[derive(Debug)]
pub(crate) struct HttpGet {
    pub(crate) at: FieldPath,
    pub(crate) path: Option<Text>,
    pub(crate) port: Option<SpannedValue<IntegerOrText>>,
    pub(crate) host: Option<Text>,
    pub(crate) scheme: Option<Text>,
    pub(crate) headers: Vec<HttpHeader>,
}

/// One of `httpHeaders`.
#[derive(Debug)]
pub(crate) struct HttpHeader {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) value: Option<Text>,
}

/// `tcpSocket`.
#[derive(Debug)]
pub(crate) struct TcpSocket {
    pub(crate) at: FieldPath,
    pub(crate) port: Option<SpannedValue<IntegerOrText>>,
    pub(crate) host: Option<Text>,
}

/// `grpc`.
#[derive(Debug)]
pub(crate) struct Grpc {
    pub(crate) at: FieldPath,
    pub(crate) port: Option<SpannedValue<i64>>,
    pub(crate) service: Option<Text>,
}

/// `exec`.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) at: FieldPath,
    pub(crate) command: Vec<Text>,
}

impl Probe {
    /// Reads the probe of that name.
    pub(crate) fn read(container: &mut Fields<'_>, field: &'static str) -> Option<Self> {
        let mut fields = container.inner(field)?;
        let probe = Self {
            at: fields.at().clone(),
            http: fields.inner("httpGet").map(HttpGet::read),
            tcp: fields.inner("tcpSocket").map(TcpSocket::read),
            grpc: fields.inner("grpc").map(Grpc::read),
            exec: fields.inner("exec").map(Exec::read),
            initial_delay: fields.integer("initialDelaySeconds"),
            period: fields.integer("periodSeconds"),
            timeout: fields.integer("timeoutSeconds"),
            success_threshold: fields.integer("successThreshold"),
            failure_threshold: fields.integer("failureThreshold"),
            termination_grace: fields.integer("terminationGracePeriodSeconds"),
        };
        fields.finish();
        Some(probe)
    }
}

impl HttpGet {
    fn read(mut fields: Fields<'_>) -> Self {
        let http = Self {
            at: fields.at().clone(),
            path: fields.text("path"),
            port: fields.integer_or_text("port"),
            host: fields.text("host"),
            scheme: fields.text("scheme"),
            headers: fields.list("httpHeaders", HttpHeader::read),
        };
        fields.finish();
        http
    }
}

impl HttpHeader {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let header = Self {
            at: cursor.at.clone(),
            name: fields.text("name"),
            value: fields.text("value"),
        };
        fields.finish();
        Some(header)
    }
}

impl TcpSocket {
    fn read(mut fields: Fields<'_>) -> Self {
        let tcp = Self {
            at: fields.at().clone(),
            port: fields.integer_or_text("port"),
            host: fields.text("host"),
        };
        fields.finish();
        tcp
    }
}

impl Grpc {
    fn read(mut fields: Fields<'_>) -> Self {
        let grpc = Self {
            at: fields.at().clone(),
            port: fields.integer("port"),
            service: fields.text("service"),
        };
        fields.finish();
        grpc
    }
}

impl Exec {
    fn read(mut fields: Fields<'_>) -> Self {
        let exec = Self {
            at: fields.at().clone(),
            command: fields.texts("command"),
        };
        fields.finish();
        exec
    }
}
