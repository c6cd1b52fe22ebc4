//! HTTP/2 (RFC 9113) without I/O: bytes in, bytes out, and between them streams that tasks of one thread hold by
//! handles. The owner of the socket feeds [`Connection::receive`] and writes [`Connection::output`]; nothing here
//! reads a clock.
//!
//! ```text
//! socket ─ bytes ─► Connection ─ heads, data ─► RecvStream, ResponseFuture … (tasks)
//!        ◄─ bytes ─ (windows, HPACK, limits) ◄─ SendStream, SendResponse …
//! ```

mod budget;
mod connection;
mod fields;
mod frame;
mod handle;
mod head;
mod hpack;
mod pool;
mod source_ids;

pub use budget::{HeadBudget, MAX_HEADS_OF_ALL, USUAL_HEAD};
pub use connection::{Config, Connection, Failure, Http2End, MemoryHolder};
pub use fields::Fields;
pub use frame::{ErrorCode, PREFACE};
pub use handle::{Link, RecvStream, ResponseFuture, SendResponse, SendStream};
pub use head::{CheckedHead, HeadKind, Malformed, check as check_head};
pub use hpack::unhuffman;
pub use pool::{HeadRoom, MemoryChange, MemoryHolders, Pool, ROOM_BYTES};
pub use source_ids::{number_of, source_number};
