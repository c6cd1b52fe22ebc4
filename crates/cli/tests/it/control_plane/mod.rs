//! The control plane and its proxies: joining, losing each other, listeners, names, and reports of the state in force.

mod credentials;
mod groups;
pub(crate) mod in_force;
pub(crate) mod insight;
mod lifecycle;
mod listeners;
mod names;
mod replicas;
