//! The HTTP/1.1 engine: serves downstream connections, pools upstream ones, relays between them.
//!
//! One task per downstream connection on a current-thread runtime; nothing here is `Send`, nothing takes a lock.

pub mod buffers;
pub(crate) mod clock;
mod connection;
mod download;
pub mod drain;
mod exchange;
mod flight;
mod head;
pub mod io;
pub mod limits;
mod pool;
mod reply;
pub mod role;
pub(crate) mod timer;
mod tunnel;
mod upload;
mod upstream;
pub mod worker;

pub use buffers::Buffers;
pub use drain::Drain;
pub use head::{Head, HttpVersion};
pub use io::Io;
pub use limits::HttpTimeouts;
pub use role::{
    ConnectFailure, DENIED, Exchange, Grpc, HttpRole, Observe, Refusal, ResponseFlag, Route,
    UpstreamHttp,
};
pub(crate) use role::{REVOKED, UNREACHED};
pub use worker::{ConnectionEnd, HttpWorker, serve_connection};
