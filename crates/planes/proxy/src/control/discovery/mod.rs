//! Subscriptions to the control plane, and the plan that workers get from them.

pub(in crate::control) mod compiler;
pub(in crate::control) mod credentials;
pub(in crate::control) mod destinations;
pub(in crate::control) mod discovery_state;
pub(in crate::control) mod external_hosts;
pub(in crate::control) mod files;
pub(in crate::control) mod followed_subscriptions;
pub(in crate::control) mod names;
pub(in crate::control) mod state;
pub(in crate::control) mod unknown_callers;
