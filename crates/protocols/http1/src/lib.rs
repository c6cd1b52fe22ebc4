//! The HTTP/1.1 codec, without I/O: strict by RFC 9112, so that two receivers never disagree where a message ends.
//!
//! Bytes in a caller's buffer → positions ([`RequestIndex`], [`ResponseIndex`]) → a borrowed view → a forwarded head
//! written into another buffer, and a body whose bytes are checked where they lie and relayed as they are ([`Body`]).
//! Nothing here allocates once its buffers have grown.

mod body;
mod bytes;
mod chunked;
mod fields;
mod forward;
mod framing;
mod limits;
mod reject;
mod request;
mod response;
mod scan;
mod target;

pub use body::Body;
pub use chunked::{BodyError, ChunkScanner, is_forbidden_trailer};
pub use fields::loosely_equal;
pub use forward::{RequestEdit, ResponseEdit};
pub use framing::{Framing, Version, parse_length};
pub use limits::*;
pub use reject::Reject;
pub use request::{Progress, RequestHead, RequestIndex};
pub use response::{RequestSummary, ResponseHead, ResponseIndex};
pub use target::{is_authority, is_path, is_tunnel_authority};
