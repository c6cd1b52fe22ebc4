//! The HTTP/1.1 engine: serves downstream connections, pools upstream ones, relays between them.
//!
//! One task per downstream connection on a current-thread runtime; nothing here is `Send`, nothing takes a lock.

pub mod ask;
pub mod buffers;
pub(crate) mod clock;
mod connection;
mod consult;
mod download;
pub mod drain;
mod exchange;
mod flight;
mod head;
pub mod io;
pub mod limits;
pub(crate) mod pool;
mod remainder;
mod reply;
pub mod role;
pub(crate) mod timer;
mod tunnel;
mod upload;
pub(crate) mod upstream;
pub mod worker;

pub use ask::{Amendment, BodyWanted, Manner, Names, Pending, Shown, Told};
pub use buffers::Buffers;
pub use drain::Drain;
pub(crate) use head::is_grpc;
pub use head::{Head, HttpVersion};
pub use io::Io;
pub use limits::HttpTimeouts;
pub use role::{
    Answer, ConnectFailure, DENIED, Exchange, Grpc, HttpRole, Observe, Refusal, ResponseFlag,
    Route, UpstreamHttp, UpstreamTerms,
};
pub(crate) use role::{BODY_TOO_LARGE, Edit, REVOKED, Revocation, UNREACHED};
pub use worker::{ConnectionEnd, HttpWorker, serve_connection};
