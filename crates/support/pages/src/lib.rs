//! What clients of pages and probes read, outside the path of requests: an answer of HTTP/1, and metrics in Prometheus' text format.

mod answer;
mod metrics;

pub use answer::{Answer, AnswerError, MAX_HEAD_BYTES};
pub use metrics::{Buckets, Sample, samples};
