//! From files to a snapshot: sources, reloads, the last good state, and the state folder.

pub(crate) mod deferred_work;
pub(crate) mod last_good;
pub(crate) mod reload;
pub mod source;
pub(crate) mod state_file;
pub(crate) mod state_watch;
