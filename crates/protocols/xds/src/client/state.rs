//! State of the connection to the control plane, for operators.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// The client as seen from outside.
#[derive(Debug, Clone, Default)]
pub struct ClientState {
    /// True if a stream is open and has answered.
    pub connected: bool,
    /// The control plane that is asked, or was last.
    pub address: Option<String>,
    /// When the stream was opened.
    pub connected_since: Option<SystemTime>,
    /// Streams opened since the start.
    pub connections: u64,
    /// Why the last stream ended or could not be opened.
    pub last_error: Option<String>,
    /// By type URL.
    pub types: BTreeMap<Arc<str>, TypeState>,
}

/// One type of resource.
#[derive(Debug, Clone, Default)]
pub struct TypeState {
    /// When the last response was applied.
    pub last_update: Option<SystemTime>,
    /// Resources in force.
    pub held: usize,
    /// Responses applied.
    pub updates: u64,
    /// Last refusal and its time.
    pub last_rejection: Option<(SystemTime, String)>,
}
