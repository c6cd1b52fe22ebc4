//! Counting a finished request in a worker's series, with what only gRPC has.

use voile_model::mesh::telemetry::Side;
use voile_telemetry::{GRPC, HTTP, SeriesId};

use super::Worker;
use crate::http::{Exchange, HttpRole};

/// `request_protocol` of an exchange.
pub(crate) fn protocol<R: HttpRole>(exchange: &Exchange<'_, R>) -> &'static str {
    match exchange.grpc {
        Some(_) => GRPC,
        None => HTTP,
    }
}

/// Counts an exchange in its series.
pub(crate) fn count<R: HttpRole>(
    worker: &Worker,
    side: Side,
    series: SeriesId,
    exchange: &Exchange<'_, R>,
) {
    if !worker.recording.borrow().side(side).metrics {
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
