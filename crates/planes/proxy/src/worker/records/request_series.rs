//! Counting a finished request in a worker's metric series, gRPC's own metrics included.

use voile_telemetry::{GRPC, HTTP, SeriesId};

use crate::http::ExchangeRecord;
use crate::worker::Worker;
use crate::worker::records::reporter::ReporterLabels;

/// `request_protocol` of an record.
pub(crate) fn protocol(record: &ExchangeRecord) -> &'static str {
    match record.grpc {
        Some(_) => GRPC,
        None => HTTP,
    }
}

/// Counts an exchange in its series.
pub(crate) fn count<'a>(
    worker: &'a Worker,
    from: impl Into<ReporterLabels<'a>>,
    series: SeriesId,
    record: &ExchangeRecord,
) {
    let from = from.into();
    if !from.recording(worker).side(from.side).metrics {
        return;
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
