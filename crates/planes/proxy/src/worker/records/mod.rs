//! Records of finished requests and connections: metrics, access logs and spans.

pub(in crate::worker) mod access_logs;
pub(in crate::worker) mod downstream;
pub(in crate::worker) mod inbound_series;
pub(in crate::worker) mod reporter;
pub(in crate::worker) mod request_notes;
pub(in crate::worker) mod request_series;
