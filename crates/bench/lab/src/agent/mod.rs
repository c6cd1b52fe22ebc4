//! The far end of an experiment on another host: `voile bench agent` starts the servers and the server's sidecars there,
//! measures them, and looks at the wire; the near end keeps the clock, the generator and the record.
//!
//! ```text
//! near (voile bench run --agent)                      far (voile bench agent)
//!   load ── client's sidecar ───────── network ───────── server's sidecar ── echo
//!   Far ──── one TLS connection, both ends proven by one token ──── Session (one at a time)
//! ```
//! The protocol is a closed set of typed requests: no command line, no program's name, no path. The agent fills in its own
//! templates and runs only programs that it finds itself. It ends all of them with the connection.

mod frames;
pub(crate) mod link;
pub(crate) mod messages;
mod remote;
pub(crate) mod token;

pub use frames::any_frame;
pub(crate) use messages::{AgentProgram, PeerOrder, VoileOrder};
pub use remote::AgentAddress;
pub(crate) use remote::{AgentConnection, FarLook, FarProcess, RemoteProcess};
pub use token::Token;
