//! The HTTP/1.1 engine: serves downstream connections, pools upstream ones, relays between them.
//!
//! One task per downstream connection on a current-thread runtime; nothing here is `Send`, nothing takes a lock.

pub mod external_check;
pub mod buffers;
pub(crate) mod clock;
mod connection;
mod external_check_wait;
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

pub use external_check::{HeadAmendment, BodyWanted, FieldPlacement, Names, Pending, BodyPrefix, ExternalReply};
pub use buffers::Buffers;
pub use drain::Drain;
pub(crate) use head::is_grpc;
pub use head::{HttpHead, HttpVersion};
pub use io::Io;
pub use limits::HttpTimeouts;
pub use role::{
    UpstreamResponse, ConnectFailure, DENIED, Exchange, Grpc, HttpRole, HeadObserver, RoleRefusal, ResponseFlag,
    RequestRoute, UpstreamHttp, UpstreamTerms,
};
pub(crate) use role::{BODY_TOO_LARGE, HeadEdit, REVOKED, Revocation, UNREACHED};
pub use worker::{ConnectionEnd, HttpWorker, serve_connection};
