//! HTTP/3 (RFC 9114) without I/O: frames of a QUIC stream, and blocks of fields by QPACK (RFC 9204). There is no
//! dynamic table, so that no stream waits for another and no client fills this end's memory.
//!
//! ```text
//! bytes of a stream ─► Frames ─► block of a head ─► decode ─► Fields
//!                        └────► data
//! ```

pub mod code;
mod frame;
mod integer;
mod known;
mod qpack;

pub use code::Code;
pub use frame::{FrameEvent, Frames, data_head, goaway, head_frame, settings};
pub use integer::{put as put_integer, take as take_integer};
pub use qpack::{BadBlock, DecodedBlock, decode, encode};

/// Purpose of a unidirectional stream (RFC 9114 section 6.2, RFC 9204 section 4.2).
pub mod purpose {
    /// Settings, and that the end is near.
    pub const CONTROL: u64 = 0;
    /// Server push; from a client it is an error.
    pub const PUSH: u64 = 1;
    /// Changes of the dynamic table, of which there are none.
    pub const ENCODER: u64 = 2;
    /// Acknowledgements of that table.
    pub const DECODER: u64 = 3;
}
