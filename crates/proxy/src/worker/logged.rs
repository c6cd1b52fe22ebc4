//! Access log entries of one worker: nothing is formatted unless a log is on.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use voile_telemetry::access_log::Entry;

use super::Worker;
use crate::http::{Exchange, Head, HttpRole};

/// An opaque connection that ended.
pub(crate) struct TcpRecord<'a> {
    pub(crate) start: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) flags: &'a str,
    pub(crate) failure: &'a str,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) upstream: Option<SocketAddr>,
    pub(crate) cluster: &'a str,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) principal: &'a str,
}

pub(crate) fn tcp(worker: &Worker, record: &TcpRecord<'_>) {
    let log = worker.access_log.borrow();
    let Some(log) = log.as_ref() else { return };
    let upstream = record
        .upstream
        .map(|address| address.to_string())
        .unwrap_or_default();
    log.write(&Entry {
        start: Some(record.start),
        flags: record.flags,
        failure: record.failure,
        received: record.received,
        sent: record.sent,
        duration: record.duration,
        upstream_host: &upstream,
        upstream_cluster: record.cluster,
        downstream_local: &record.local.to_string(),
        downstream_remote: &record.remote.to_string(),
        downstream_principal: record.principal,
        ..Entry::default()
    });
}

/// What the engine does not know of a request.
pub(crate) struct HttpContext<'a> {
    pub(crate) upstream: Option<SocketAddr>,
    pub(crate) cluster: &'a str,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) principal: &'a str,
}

pub(crate) fn http<R: HttpRole>(
    worker: &Worker,
    exchange: &Exchange<'_, R>,
    context: &HttpContext<'_>,
) {
    let log = worker.access_log.borrow();
    let Some(log) = log.as_ref() else { return };
    let head = exchange.head.as_ref();
    let header = |name| {
        let value = head.and_then(|head| head.header(name)).unwrap_or_default();
        std::str::from_utf8(value).unwrap_or_default()
    };
    let upstream = context
        .upstream
        .map(|address| address.to_string())
        .unwrap_or_default();
    log.write(&Entry {
        start: SystemTime::now().checked_sub(exchange.duration),
        method: head.map(Head::method).unwrap_or_default(),
        path: head.map(Head::path_and_query).unwrap_or_default(),
        protocol: head.map_or("HTTP/1.1", |head| head.version().name()),
        code: exchange.status,
        flags: exchange.flag.code(),
        details: exchange.details,
        failure: "",
        received: exchange.request_body_bytes,
        sent: exchange.response_body_bytes,
        duration: exchange.duration,
        forwarded_for: header("x-forwarded-for"),
        user_agent: header("user-agent"),
        request_id: header("x-request-id"),
        authority: head.and_then(Head::authority).unwrap_or_default(),
        upstream_host: &upstream,
        upstream_cluster: context.cluster,
        downstream_local: &context.local.to_string(),
        downstream_remote: &context.remote.to_string(),
        downstream_principal: context.principal,
    });
}
