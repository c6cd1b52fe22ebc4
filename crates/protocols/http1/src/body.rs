//! Remaining length of a body, whatever its framing.

use crate::chunked::{BodyError, ChunkScanner};
use crate::framing::Framing;

/// The rest of one body.
#[derive(Debug, Clone)]
pub enum Body {
    /// Exactly so many bytes more; 0 is a body that is over.
    Length(u64),
    /// Chunks.
    Chunked(ChunkScanner),
    /// Until the connection ends.
    UntilClose,
}

impl Default for Body {
    fn default() -> Self {
        Self::Length(0)
    }
}

impl Body {
    /// A whole body.
    pub fn new(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::Length(0),
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(ChunkScanner::default()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// Refuses trailers of these names, too. To be called before the body is looked at.
    pub fn forbid_trailers<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) {
        if let Self::Chunked(scanner) = self {
            scanner.forbid_trailers(names);
        }
    }

    /// Returns true if nothing more is to come. [`Body::UntilClose`] is over only with its connection.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(scanner) => scanner.is_done(),
            Self::UntilClose => false,
        }
    }

    /// Checks bytes and says how many belong to this body; fewer than given only when it is over.
    pub fn accept(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        match self {
            Self::Length(left) => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                Ok(taken)
            }
            Self::Chunked(scanner) => scanner.accept(bytes),
            Self::UntilClose => Ok(bytes.len()),
        }
    }

    /// The same, and removes chunked framing: the data is moved to the beginning of `bytes`. Gives (used, data).
    pub fn unwrap_in_place(&mut self, bytes: &mut [u8]) -> Result<(usize, usize), BodyError> {
        match self {
            Self::Chunked(scanner) => scanner.unwrap_in_place(bytes),
            _ => self.accept(bytes).map(|used| (used, used)),
        }
    }

    /// The same, and appends the lines of the trailer section, each with its CRLF.
    pub fn unwrap_keeping_trailers(
        &mut self,
        bytes: &mut [u8],
        trailers: &mut Vec<u8>,
    ) -> Result<(usize, usize), BodyError> {
        match self {
            Self::Chunked(scanner) => scanner.unwrap_keeping_trailers(bytes, trailers),
            _ => self.accept(bytes).map(|used| (used, used)),
        }
    }
}
