//! Metrics, access logs, admin plumbing
