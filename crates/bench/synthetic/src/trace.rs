//! The header fields that join calls into one trace: those that isotope passes on, and B3's single one.

use std::sync::OnceLock;

use http::{HeaderMap, HeaderName};

const NAMES: [&str; 16] = [
    "x-request-id",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
    "b3",
    "x-ot-span-context",
    "x-datadog-trace-id",
    "x-datadog-parent-id",
    "x-datadog-sampling-priority",
    "traceparent",
    "tracestate",
    "baggage",
    "x-cloud-trace-context",
    "grpc-trace-bin",
];

fn names() -> &'static [HeaderName] {
    static PARSED: OnceLock<Vec<HeaderName>> = OnceLock::new();
    PARSED.get_or_init(|| NAMES.into_iter().map(HeaderName::from_static).collect())
}

/// Those of a request, to be passed on.
pub(crate) fn inherited(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in names() {
        for value in headers.get_all(name) {
            kept.append(name, value.clone());
        }
    }
    kept
}

/// Adds them to a request; who set one of them by the graph has the last word with the values that came, as in isotope.
pub(crate) fn pass_on(inherited: &HeaderMap, headers: &mut HeaderMap) {
    for name in inherited.keys() {
        headers.remove(name);
    }
    for (name, value) in inherited {
        headers.append(name, value.clone());
    }
}
