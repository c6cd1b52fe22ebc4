//! Policies and tokens, from YAML to the answer that a caller gets.

mod at_once;
pub(crate) mod authorization;
pub(crate) mod custom;
mod held;
pub(crate) mod live_connections;
mod marks;
mod mutual_tls;
mod targets;
pub(crate) mod tokens;
