//! The HTTP/1.1 engine: serves downstream connections, pools upstream ones, relays between them.
//!
//! One task per downstream connection on a current-thread runtime; nothing here is `Send`, nothing takes a lock.

pub(crate) mod clock;
mod connection;
pub mod drain_signal;
pub(crate) mod ending;
mod exchange;
pub mod external_check;
pub(crate) mod external_check_wait;
mod flight;
mod head;
pub mod limits;
pub(crate) mod pool;
pub(crate) mod reply;
pub mod role;
mod transfer;
pub(crate) mod upstream;
pub mod worker;

pub(crate) use transfer::{
    attempt, codec, downstream_request, exchange_clock, http1_upstream, stream_upstream, timer,
};
pub use transfer::{buffers, io};
use transfer::{download, tunnel, upload};

pub use buffers::Buffers;
pub use drain_signal::Drain;
pub use external_check::{
    BodyPrefix, BodyWanted, ExternalReply, FieldPlacement, HeadAmendment, Names, Pending,
};
pub(crate) use head::is_grpc;
pub use head::{HttpHead, HttpVersion};
pub use io::Io;
pub use limits::HttpTimeouts;
pub use role::{
    ConnectFailure, DENIED, Exchange, ExchangeRecord, Grpc, HeadObserver, HttpRole, RequestRoute,
    ResponseFlag, RoleRefusal, UpstreamHttp, UpstreamResponse, UpstreamTerms,
};
pub(crate) use role::{HeadEdit, REVOKED, Revocation, UNREACHED};
pub use worker::{ConnectionEnd, HttpWorker, serve_connection};
