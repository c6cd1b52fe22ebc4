//! Counting a finished request in a worker's metric series, gRPC's own metrics included.

use voile_telemetry::{GRPC, HTTP, SeriesId};

use crate::http::{Exchange, HttpRole};
use crate::worker::Worker;
use crate::worker::records::reporter::ReporterLabels;

/// `request_protocol` of an exchange.
pub(crate) fn protocol<R: HttpRole>(exchange: &Exchange<'_, R>) -> &'static str {
    match exchange.grpc {
        Some(_) => GRPC,
        None => HTTP,
    }
}

/// Counts an exchange in its series.
pub(crate) fn count<'a, R: HttpRole>(
    worker: &'a Worker,
    from: impl Into<ReporterLabels<'a>>,
    series: SeriesId,
    exchange: &Exchange<'_, R>,
) {
    let from = from.into();
    if !from.recording(worker).side(from.side).metrics {
        return;
    }
    let sizes = (
        exchange.request_head_bytes + exchange.request_body_bytes,
        exchange.response_head_bytes + exchange.response_body_bytes,
    );
    let (code, flags, duration) = (exchange.status, exchange.flag.code(), exchange.duration);
    let mut shard = worker.shard.borrow_mut();
    match exchange.grpc {
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
