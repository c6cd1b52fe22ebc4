//! Outcomes of exchanges for their endpoint, for outlier detection and load balancing.

use voile_traffic::{Attempt, UpstreamOutcome};

use crate::http::{ExchangeRecord, ResponseFlag};

/// Outcome of an exchange for its endpoint; `None` if the exchange ended for another party's reason.
pub(crate) fn of_exchange(record: &ExchangeRecord) -> Option<UpstreamOutcome> {
    match record.flag {
        ResponseFlag::None if record.attempts > 0 && record.status > 0 => {
            let grpc = record.grpc.and_then(|grpc| grpc.status);
            Some(UpstreamOutcome::Answered(match grpc {
                Some(status) if record.status == 200 => of_grpc(status),
                _ => record.status,
            }))
        }
        ResponseFlag::UpstreamConnectionFailure
        | ResponseFlag::UpstreamConnectionTermination
        | ResponseFlag::UpstreamProtocolError
        | ResponseFlag::UpstreamRequestTimeout
        | ResponseFlag::UpstreamRemoteReset => Some(UpstreamOutcome::Failed),
        _ => None,
    }
}

/// Outcome of an attempt that another attempt follows.
pub(crate) fn of_attempt(attempt: Attempt) -> UpstreamOutcome {
    match attempt {
        Attempt::Answered(status) => UpstreamOutcome::Answered(status),
        // A sidecar that is there and has no room; Envoy sees its 503.
        Attempt::Refused => UpstreamOutcome::Answered(503),
        _ => UpstreamOutcome::Failed,
    }
}

/// Returns true if load balancing avoids the endpoint after this outcome, unless the endpoint itself stated a
/// time.
pub(crate) fn is_shy(outcome: UpstreamOutcome) -> bool {
    matches!(
        outcome,
        UpstreamOutcome::Failed | UpstreamOutcome::Answered(429 | 503)
    )
}

/// The status of HTTP that a gRPC status stands for, as Envoy has it (grpc/status.cc).
fn of_grpc(status: u16) -> u16 {
    match status {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}
