//! The end-to-end tests of the one binary, and `tidy`, which keeps the house as ARCHITECTURE.md draws it.

mod access_log;
mod analyze;
mod bench;
mod captured;
mod credentials;
mod destination_rules;
mod handover;
mod handover_names;
mod handover_protocols;
mod hostile;
mod http2;
mod impostors;
mod leaks;
mod lifecycle;
mod listeners;
mod mesh;
mod names;
mod overload;
mod policy;
mod probes;
mod rollout;
mod telemetry;
mod tidy;
mod traffic;
mod up;
mod up_netns;
