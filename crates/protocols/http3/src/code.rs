//! Why a stream or a connection ends (RFC 9114 section 8.1, RFC 9204 section 6).

use std::fmt;

/// A code as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// Nothing is wrong.
    pub const NO_ERROR: Self = Self(0x100);
    /// Ours.
    pub const INTERNAL_ERROR: Self = Self(0x102);
    /// A stream that must not be opened, or not twice.
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    /// A stream ended that may not.
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    /// A frame where it may not be.
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    /// A frame that lacks required content.
    pub const FRAME_ERROR: Self = Self(0x106);
    /// Work without wanting its results.
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    /// A push, or a stream of the peer's farewell, by a number that was never allowed.
    pub const ID_ERROR: Self = Self(0x108);
    /// Settings that may not be, or twice.
    pub const SETTINGS_ERROR: Self = Self(0x109);
    /// The first frame was another.
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    /// Nothing was done with it: it may be asked again.
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    /// The answer is no longer wanted.
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    /// It ended before it was a request.
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    /// A request that is none.
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    /// A block that cannot be read.
    pub const DECOMPRESSION_FAILED: Self = Self(0x200);
    /// Changes of a table that has no room.
    pub const ENCODER_STREAM_ERROR: Self = Self(0x201);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HTTP/3 code {:#x}", self.0)
    }
}
