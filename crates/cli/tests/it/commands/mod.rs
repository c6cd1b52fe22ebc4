//! Commands about folders and records: what they print, and how they end.

mod analyze;
mod explain;
mod export;
mod from_istio;
mod graph;
mod inject;
mod install;
mod load;
mod plan;
mod tools_agree;
mod wait;
