//! The HTTP/1.1 engine: serves downstream connections, pools upstream ones, relays between them.
//!
//! One task per downstream connection on a current-thread runtime; nothing here is `Send`, nothing takes a lock.

pub mod buffers;
mod connection;
pub mod drain;
pub mod io;
pub mod limits;
mod pool;
pub mod role;
pub mod worker;

pub use buffers::Buffers;
pub use drain::Drain;
pub use io::Io;
pub use limits::HttpTimeouts;
pub use role::{ConnectFailure, Exchange, HttpRole, Refusal, ResponseFlag, Route};
pub use worker::{ConnectionEnd, HttpWorker, serve_connection};
