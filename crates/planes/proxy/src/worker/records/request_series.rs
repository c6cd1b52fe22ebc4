//! Counting a finished request in a worker's metric series, gRPC's own metrics included.

use std::sync::Arc;

use voile_model::mesh::telemetry::RequestAttribute;
use voile_telemetry::{GRPC, HTTP, SeriesId, UNKNOWN};

use crate::http::{ExchangeRecord, HttpHead};
use crate::worker::Worker;
use crate::worker::records::reporter::ReporterLabels;

/// `request_protocol` of an record.
pub(crate) fn protocol(record: &ExchangeRecord) -> &'static str {
    match record.grpc {
        Some(_) => GRPC,
        None => HTTP,
    }
}

/// Longest value of a request in a label, in bytes; the rest is cut off.
const MAX_VALUE_BYTES: usize = 128;

/// The values as a series' key: each ended by a zero byte. A request without a value has `unknown`, as in Istio.
fn key(values: &[(RequestAttribute, Arc<str>)], head: Option<&HttpHead<'_>>) -> String {
    let mut key = String::new();
    for (attribute, _) in values {
        let value = head.and_then(|head| attribute_of(attribute, head));
        let value = value.filter(|value| !value.is_empty());
        let value = value.unwrap_or(UNKNOWN.as_bytes());
        let text = String::from_utf8_lossy(&value[..value.len().min(MAX_VALUE_BYTES)]);
        key.extend(text.chars().filter(|letter| *letter != '\0'));
        key.push('\0');
    }
    key
}

fn attribute_of<'a>(attribute: &RequestAttribute, head: &HttpHead<'a>) -> Option<&'a [u8]> {
    let text = match attribute {
        RequestAttribute::Method => head.method(),
        RequestAttribute::Host => head.authority()?,
        RequestAttribute::Scheme => head.scheme(),
        RequestAttribute::Path => head.path_and_query(),
        RequestAttribute::UrlPath => head.path(),
        RequestAttribute::Header(name) => return head.header(name),
    };
    Some(text.as_bytes())
}

/// Counts an exchange in its series.
pub(crate) fn count<'a>(
    worker: &'a Worker,
    from: impl Into<ReporterLabels<'a>>,
    mut series: SeriesId,
    (head, record): (Option<&HttpHead<'_>>, &ExchangeRecord),
) {
    let from = from.into();
    let recording = from.recording(worker);
    let side = recording.side(from.side);
    if !side.metrics {
        return;
    }
    if !side.values.is_empty() {
        let key = key(&side.values, head);
        let names = side.values.iter().map(|(_, name)| name);
        series = worker.shard.borrow_mut().valued(series, &key, names);
    }
    let sizes = (
        record.request_head_bytes + record.request_body_bytes,
        record.response_head_bytes + record.response_body_bytes,
    );
    let (code, flags, duration) = (record.status, record.flag.code(), record.duration);
    let mut shard = worker.shard.borrow_mut();
    match record.grpc {
        None => shard.request(series, (code, flags), duration, sizes),
        Some(grpc) => {
            let messages = (grpc.request_messages, grpc.response_messages);
            shard.grpc(
                series,
                (code, flags, grpc.status),
                duration,
                sizes,
                messages,
            );
        }
    }
}
