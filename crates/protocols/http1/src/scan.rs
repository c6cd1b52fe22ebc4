//! Finds the end of a head, reading each byte once however the bytes were split.
//!
//! A refusal depends on positions alone, never on how the bytes arrived; garbage is refused long before a head is
//! complete.

use crate::limits::{
    MAX_FORWARDED_HEADERS, MAX_HEAD_BYTES, MAX_LEADING_EMPTY_LINES, MAX_REQUEST_LINE_BYTES,
};
use crate::reject::Reject;

/// Kind of the expected start line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartLineKind {
    Request,
    Response,
}

/// Positions of the lines in a complete head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadLayout {
    /// Start of the start line, after skipped empty lines.
    pub(crate) start: usize,
    /// Start of its CRLF.
    pub(crate) line_end: usize,
    /// Field lines.
    pub(crate) fields: usize,
    /// One past the empty line that ends the head.
    pub(crate) end: usize,
}

/// A line that was found to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScannedLine<'a> {
    /// The start line, without its CRLF.
    Start(&'a [u8]),
    /// A field line, by its number from 0 and one past its CRLF.
    Field(usize, usize),
}

/// The state between two calls with a growing buffer.
#[derive(Debug, Default, Clone)]
pub(crate) struct HeadScanner {
    scanned: usize,
    start: usize,
    line_start: usize,
    line_end: Option<usize>,
    lines: usize,
    empty_lines: usize,
}

impl HeadScanner {
    /// Scans the bytes that were added since the last call. It passes each line to `found` as soon as it is complete,
    /// the start line first.
    pub(crate) fn scan(
        &mut self,
        bytes: &[u8],
        kind: StartLineKind,
        mut found: impl FnMut(ScannedLine<'_>) -> Result<(), Reject>,
    ) -> Result<Option<HeadLayout>, Reject> {
        loop {
            let fresh = &bytes[self.scanned..];
            let newline = memchr::memchr(b'\n', fresh).map(|at| self.scanned + at);
            if self.line_end.is_none() {
                self.check_start_bytes(bytes, newline.unwrap_or(bytes.len()), kind)?;
            }
            let Some(at) = newline else {
                self.scanned = bytes.len();
                // A head that is not complete within the limit cannot become so.
                let full = bytes.len() - self.start >= MAX_HEAD_BYTES;
                return if full {
                    Err(Reject::HeadTooLarge)
                } else {
                    Ok(None)
                };
            };
            if at + 1 - self.start > MAX_HEAD_BYTES {
                return Err(Reject::HeadTooLarge);
            }
            self.scanned = at + 1;
            if at == self.line_start || bytes[at - 1] != b'\r' {
                return Err(Reject::BareLf);
            }
            let line = self.line_start..at - 1;
            self.line_start = at + 1;
            match self.line_end {
                None if line.is_empty() => self.skip_empty_line(kind)?,
                None => {
                    found(ScannedLine::Start(&bytes[line.clone()]))?;
                    self.line_end = Some(line.end);
                }
                Some(line_end) if line.is_empty() => {
                    let layout = HeadLayout {
                        start: self.start,
                        line_end,
                        fields: self.lines,
                        end: at + 1,
                    };
                    return Ok(Some(layout));
                }
                Some(_) => {
                    if self.lines == MAX_FORWARDED_HEADERS {
                        return Err(Reject::TooManyHeaders);
                    }
                    found(ScannedLine::Field(self.lines, at + 1))?;
                    self.lines += 1;
                }
            }
        }
    }

    fn skip_empty_line(&mut self, kind: StartLineKind) -> Result<(), Reject> {
        self.empty_lines += 1;
        if kind == StartLineKind::Response {
            return Err(Reject::StatusLine);
        }
        if self.empty_lines > MAX_LEADING_EMPTY_LINES {
            return Err(Reject::RequestLine);
        }
        self.start = self.line_start;
        Ok(())
    }

    /// Refuses control characters in an incomplete start line, so that a TLS hello or a port scan is answered at once.
    fn check_start_bytes(
        &self,
        bytes: &[u8],
        end: usize,
        kind: StartLineKind,
    ) -> Result<(), Reject> {
        let limit = self.line_start + MAX_REQUEST_LINE_BYTES + 2;
        let from = self.scanned.max(self.line_start);
        let fresh = &bytes[from..end.min(limit).max(from)];
        // All bytes at once, not up to the first bad one: that can be done sixteen at a time.
        let bad = match kind {
            StartLineKind::Request => fresh.iter().fold(false, |bad, byte| {
                bad | !matches!(byte, 0x20..=0x7e | b'\r')
            }),
            StartLineKind::Response => fresh.iter().fold(false, |bad, byte| {
                bad | !matches!(byte, b'\t' | b'\r' | 0x20..=0x7e | 0x80..)
            }),
        };
        if bad {
            return Err(match kind {
                StartLineKind::Request => Reject::RequestLine,
                StartLineKind::Response => Reject::StatusLine,
            });
        }
        if end >= limit {
            return Err(Reject::TargetTooLong);
        }
        Ok(())
    }
}
