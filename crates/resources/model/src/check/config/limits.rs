//! `defaultConfig.runtimeValues` as far as it says what a proxy carries at most and keeps for how long. Envoy's own key for connections, and ours
//! beside it; other keys are Envoy's, have no effect here, and are named by a warning.

use std::time::Duration;

use crate::codes;
use crate::decode::{Report, Text};
use crate::mesh::ProxyLimits;
use crate::text::{clip, parse_duration, suggest};

/// Downstream connections: Envoy's name.
const CONNECTIONS: &str = "overload.global_downstream_max_connections";
const REQUESTS: &str = "voile.max_requests";
const PER_DESTINATION: &str = "voile.max_requests_per_destination";
const MEMORY: &str = "voile.memory_limit";
const SERVICE_IDLE: &str = "voile.service_idle_timeout";
const OURS: [&str; 5] = [CONNECTIONS, REQUESTS, PER_DESTINATION, MEMORY, SERVICE_IDLE];
/// Less would let go between two requests of one page.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
/// More is for ever, for all that memory is concerned.
const LONGEST_IDLE: Duration = Duration::from_hours(24);

pub(super) fn limits(written: &[(Text, Text)], report: &Report) -> ProxyLimits {
    let mut limits = ProxyLimits::default();
    for (key, value) in written {
        let number = || {
            let number = value.value.parse().ok().filter(|number| *number > 0);
            if number.is_none() {
                report.bad(value, "", "a whole number above 0");
            }
            number
        };
        match &*key.value {
            CONNECTIONS => limits.connections = number(),
            REQUESTS => limits.requests = number(),
            PER_DESTINATION => limits.requests_per_destination = number(),
            MEMORY => {
                limits.memory = bytes(&value.value);
                if limits.memory.is_none() {
                    report.bad(value, "", "a size such as 50M or 1G");
                }
            }
            SERVICE_IDLE => {
                let said = parse_duration(&value.value);
                limits.service_idle =
                    said.filter(|said| (SHORTEST_IDLE..=LONGEST_IDLE).contains(said));
                if limits.service_idle.is_none() {
                    report.bad(value, "", "a time from 1s to 24h, such as 5m");
                }
            }
            unknown if unknown.starts_with("voile.") => {
                report.bad(key, ": there is no such value", suggest(unknown, OURS));
            }
            unknown => {
                let message = format!(
                    "`{}` of Envoy has no effect: there is no such value here",
                    clip(unknown)
                );
                let help = suggest(unknown, OURS);
                report.warning(codes::NOT_OBEYED, &key.at, message, help);
            }
        }
    }
    limits
}

/// Bytes, or K, M or G of 1024.
fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}
