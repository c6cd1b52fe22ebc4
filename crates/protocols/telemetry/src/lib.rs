//! Telemetry of a proxy: Istio's standard metrics without a lock on the request path, access logs that never hold a
//! request up, a small admin server, and logging whose level changes at run time.
//!
//! ```text
//! worker: Shard (plain counters) ──scrape message──► control thread: Scrape (merge) ──► Prometheus text
//! ```

pub mod access_log;
pub mod admin;
pub mod export;
mod exposition;
pub mod generated;
mod histogram;
mod labels;
pub mod logging;
mod names;
pub mod outbox;
mod process;
mod shard;
pub mod tap;
pub mod trace;

pub use exposition::{
    LabelChange, MetricFamily, MetricShape, Projection, Scrape, escape_label, open_metrics,
};
pub use histogram::Histogram;
pub use labels::{
    GRPC, HTTP, Labels, Locality, PeerLabels, Reporter, Security, ServiceLabels, TCP, UNKNOWN,
};
pub use names::{DnsFigures, OnDemandFigures};
pub use process::ProcessFigures;
pub use shard::{
    IDLE_SERIES, MAX_ALL_VALUED, MAX_OUTCOMES, MAX_SERIES, MAX_VALUED, SeriesId, Shard, Snapshot,
};
