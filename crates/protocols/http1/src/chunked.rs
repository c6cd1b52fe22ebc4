//! The chunked coding, checked byte by byte where it lies, so that a body can be relayed verbatim.
//!
//! ```text
//! Size → Extension → SizeLf → Data → DataCr → DataLf → Size …
//!                      └ size 0 → TrailerStart → TrailerName → TrailerValue → TrailerLf → TrailerStart … → EndLf → Done
//! ```

use crate::bytes::TOKEN;
use crate::limits::{MAX_CHUNK_EXTENSION_BYTES, MAX_CHUNK_SIZE_DIGITS, MAX_TRAILER_BYTES};

/// Reason to refuse a body. The bytes before the defect have been relayed; the message cannot be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyError {
    /// The chunk size is not hexadecimal digits followed by CRLF or `;`, or has too many digits.
    ChunkSize,
    /// A control character in, or too much of, chunk extensions.
    ChunkExtension,
    /// Chunk data is not followed by CRLF.
    ChunkEnd,
    /// A malformed trailer line, or too much of them.
    Trailer,
    /// A trailer that would frame, route, authenticate or identify (RFC 9110 section 6.5.1).
    ForbiddenTrailer,
}

impl BodyError {
    /// One word for logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ChunkSize => "invalid_chunk_size",
            Self::ChunkExtension => "invalid_chunk_extension",
            Self::ChunkEnd => "chunk_without_end",
            Self::Trailer => "invalid_trailer",
            Self::ForbiddenTrailer => "forbidden_trailer",
        }
    }
}

/// Trailers that would change decisions on the head. Refused rather than dropped: the body is relayed as it is, and
/// no client sends these in good faith.
const FORBIDDEN_TRAILERS: [&[u8]; 16] = [
    b"content-length",
    b"transfer-encoding",
    b"host",
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
    b"expect",
    b"authorization",
    b"cookie",
    b"set-cookie",
    b"x-envoy-peer-metadata",
    b"x-envoy-peer-metadata-id",
    b"x-forwarded-client-cert",
];

/// Returns true if a field may not be a trailer; `name` in lower case.
pub fn is_forbidden_trailer(name: &str) -> bool {
    FORBIDDEN.contains(&name_hash(name.as_bytes()))
}

/// Names are compared by their hashes, so that a name of any length needs a fixed space. A client that sends another
/// name with the same hash is refused for it, and harms no other client.
const FORBIDDEN: [u64; FORBIDDEN_TRAILERS.len()] = {
    let mut hashes = [0; FORBIDDEN_TRAILERS.len()];
    let mut at = 0;
    while at < hashes.len() {
        hashes[at] = name_hash(FORBIDDEN_TRAILERS[at]);
        at += 1;
    }
    hashes
};

/// The hash of no byte (FNV-1a).
const NO_NAME: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash with one byte more, as a careless receiver reads it: case ignored, `_` taken for `-`.
const fn with_byte(hash: u64, byte: u8) -> u64 {
    let byte = match byte {
        b'_' => b'-',
        byte => byte.to_ascii_lowercase(),
    };
    (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

const fn name_hash(name: &[u8]) -> u64 {
    let (mut hash, mut at) = (NO_NAME, 0);
    while at < name.len() {
        hash = with_byte(hash, name[at]);
        at += 1;
    }
    hash
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ChunkState {
    #[default]
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

impl ChunkState {
    /// Returns true if the next byte belongs to a trailer line that has begun.
    fn is_in_trailer(self) -> bool {
        matches!(
            self,
            Self::TrailerName | Self::TrailerValue | Self::TrailerLf
        )
    }
}

/// A step through a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many bytes of framing.
    Framing(usize),
    /// So many bytes of data.
    Data(usize),
    /// The body is over.
    Done,
}

/// Position in a chunked body.
#[derive(Debug, Clone, Default)]
pub struct ChunkScanner {
    state: ChunkState,
    digits: u8,
    remaining: u64,
    extension: u32,
    trailer: u32,
    /// The hash of the trailer's name, so far.
    name: u64,
    /// Names that are no trailers of this body either.
    besides: Option<Box<[u64]>>,
}

impl ChunkScanner {
    /// Returns true if the body is over.
    pub fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Refuses trailers of these names, too: the sender may not override in a trailer a field that a proxy sets.
    /// Names that came already are not checked again.
    pub fn forbid_trailers<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) {
        self.besides = Some(names.map(name_hash).collect());
    }

    /// Checks bytes and says how many belong to the body; fewer than given only when the body is over.
    pub fn accept(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let mut at = 0;
        while at < bytes.len() {
            match self.step(&bytes[at..], |_| ())? {
                Step::Framing(used) | Step::Data(used) => at += used,
                Step::Done => break,
            }
        }
        Ok(at)
    }

    /// Removes the framing: moves the data among `bytes` to their beginning. Gives (bytes used, bytes of data).
    pub fn unwrap_in_place(&mut self, bytes: &mut [u8]) -> Result<(usize, usize), BodyError> {
        self.unwrap(bytes, |_| ())
    }

    /// The same, and appends the lines of the trailer section, each with its CRLF.
    pub fn unwrap_keeping_trailers(
        &mut self,
        bytes: &mut [u8],
        trailers: &mut Vec<u8>,
    ) -> Result<(usize, usize), BodyError> {
        self.unwrap(bytes, |byte| trailers.push(byte))
    }

    fn unwrap(
        &mut self,
        bytes: &mut [u8],
        mut trailer: impl FnMut(u8),
    ) -> Result<(usize, usize), BodyError> {
        let (mut at, mut kept) = (0, 0);
        while at < bytes.len() {
            match self.step(&bytes[at..], &mut trailer)? {
                Step::Framing(used) => at += used,
                Step::Data(used) => {
                    bytes.copy_within(at..at + used, kept);
                    at += used;
                    kept += used;
                }
                Step::Done => break,
            }
        }
        Ok((at, kept))
    }

    /// Shows every byte of a trailer line to `trailer`.
    fn step(&mut self, bytes: &[u8], mut trailer: impl FnMut(u8)) -> Result<Step, BodyError> {
        if self.state == ChunkState::Data {
            let run =
                usize::try_from(self.remaining).map_or(bytes.len(), |left| left.min(bytes.len()));
            self.remaining -= run as u64;
            if self.remaining == 0 {
                self.state = ChunkState::DataCr;
            }
            return Ok(Step::Data(run));
        }
        if self.state == ChunkState::Done {
            return Ok(Step::Done);
        }
        let mut used = 0;
        for &byte in bytes {
            let before = self.state;
            self.framing_byte(byte)?;
            used += 1;
            if before.is_in_trailer() || self.state == ChunkState::TrailerName {
                trailer(byte);
            }
            if matches!(self.state, ChunkState::Data | ChunkState::Done) {
                break;
            }
        }
        Ok(Step::Framing(used))
    }

    fn framing_byte(&mut self, byte: u8) -> Result<(), BodyError> {
        self.state = match (self.state, byte) {
            (ChunkState::Size, _) => self.size_byte(byte)?,
            (ChunkState::Extension, b'\r') => ChunkState::SizeLf,
            (ChunkState::Extension, b'\t' | 0x20..=0x7e | 0x80..) => {
                self.extension += 1;
                if self.extension > MAX_CHUNK_EXTENSION_BYTES {
                    return Err(BodyError::ChunkExtension);
                }
                ChunkState::Extension
            }
            (ChunkState::Extension, _) => return Err(BodyError::ChunkExtension),
            (ChunkState::SizeLf, b'\n') => {
                self.digits = 0;
                if self.remaining == 0 {
                    ChunkState::TrailerStart
                } else {
                    ChunkState::Data
                }
            }
            (ChunkState::SizeLf, _) => return Err(BodyError::ChunkSize),
            (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => ChunkState::Size,
            (ChunkState::DataCr | ChunkState::DataLf, _) => return Err(BodyError::ChunkEnd),
            (ChunkState::EndLf, b'\n') => ChunkState::Done,
            _ => return self.trailer_byte(byte),
        };
        Ok(())
    }

    fn size_byte(&mut self, byte: u8) -> Result<ChunkState, BodyError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if self.digits > 0 => return Ok(ChunkState::SizeLf),
            b';' if self.digits > 0 => return Ok(ChunkState::Extension),
            _ => return Err(BodyError::ChunkSize),
        };
        self.digits += 1;
        if self.digits > MAX_CHUNK_SIZE_DIGITS {
            return Err(BodyError::ChunkSize);
        }
        self.remaining = self.remaining * 16 + u64::from(digit);
        Ok(ChunkState::Size)
    }

    fn trailer_byte(&mut self, byte: u8) -> Result<(), BodyError> {
        self.trailer += 1;
        if self.trailer > MAX_TRAILER_BYTES {
            return Err(BodyError::Trailer);
        }
        self.state = match (self.state, byte) {
            (ChunkState::TrailerStart, b'\r') => ChunkState::EndLf,
            (ChunkState::TrailerStart, _) if TOKEN.has(byte) => {
                self.name = with_byte(NO_NAME, byte);
                ChunkState::TrailerName
            }
            (ChunkState::TrailerName, b':') => {
                self.check_name()?;
                ChunkState::TrailerValue
            }
            (ChunkState::TrailerName, _) if TOKEN.has(byte) => {
                self.name = with_byte(self.name, byte);
                ChunkState::TrailerName
            }
            (ChunkState::TrailerValue, b'\r') => ChunkState::TrailerLf,
            (ChunkState::TrailerValue, b'\t' | 0x20..=0x7e | 0x80..) => ChunkState::TrailerValue,
            (ChunkState::TrailerLf, b'\n') => ChunkState::TrailerStart,
            _ => return Err(BodyError::Trailer),
        };
        Ok(())
    }

    fn check_name(&self) -> Result<(), BodyError> {
        let besides = self.besides.as_deref().unwrap_or_default();
        match FORBIDDEN.contains(&self.name) || besides.contains(&self.name) {
            true => Err(BodyError::ForbiddenTrailer),
            false => Ok(()),
        }
    }
}
