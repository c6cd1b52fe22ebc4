//! Logic that both ends of an HTTP/2 connection share: settings, connection windows, pings, header blocks in pieces, and the
//! limits against hostile peers.

use super::Malformed;
use super::frame::{self, Frame};
use super::hpack::{Decoder, Encoder, MAX_LIST_BYTES};

/// Window before the peer sets another (RFC 9113, section 6.9.2).
const DEFAULT_WINDOW: i64 = 65_535;
/// The largest window there may be.
const MAX_WINDOW: i64 = 0x7fff_ffff;
/// Receive window of one stream: large enough for a bulk response at loopback speed.
pub(super) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
/// Receive window of a connection, for all its streams.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The most bytes of one compressed header block.
const MAX_BLOCK_BYTES: usize = MAX_LIST_BYTES;
/// The most pieces of one header block: 64 KiB are four full frames, the rest is patience.
const MAX_PIECES: usize = 64;
/// Unsent bytes beyond which no more of a body is made ready.
const MAX_READY_BYTES: usize = 256 * 1024;
/// Unsent bytes beyond which a peer that makes us answer (pings, settings) and does not read is given up.
const MAX_UNSENT_BYTES: usize = 1024 * 1024;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// RST_STREAM and GOAWAY codes that we send.
pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const FLOW_CONTROL_ERROR: u32 = 3;
pub(super) const STREAM_CLOSED: u32 = 5;
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const CANCEL: u32 = 8;
pub(super) const ENHANCE_YOUR_CALM: u32 = 11;

/// Meaning of a frame for the streams.
#[derive(Debug)]
pub(super) enum IncomingFrame<'a> {
    Nothing,
    /// A header block is whole: [`Core::fields`] reads it.
    Headers {
        stream: u32,
        end: bool,
    },
    /// `length` counts against the stream's window, padding included.
    Data {
        stream: u32,
        bytes: &'a [u8],
        length: usize,
        end: bool,
    },
    Reset {
        stream: u32,
    },
    /// The stream may send so many bytes more; stream 0 stands for the connection.
    Window {
        stream: u32,
        by: i64,
    },
    /// All streams may send so many bytes more, or fewer.
    Initial {
        by: i64,
    },
    GoAway {
        last: u32,
    },
}

#[derive(Debug)]
pub(super) struct Http2Core {
    /// Written but not yet sent; `sent` bytes of it are gone.
    out: Vec<u8>,
    sent: usize,
    decoder: Decoder,
    encoder: Encoder,
    /// Bytes of bodies that the connection may send.
    pub(super) window: i64,
    /// The window that new streams have for sending.
    pub(super) initial: i64,
    /// Streams the peer allows at once.
    pub(super) max_streams: usize,
    /// The peer's first SETTINGS have come.
    pub(super) settled: bool,
    received: u32,
    block: Vec<u8>,
    unfinished: Option<(u32, bool)>,
    /// Error code of the GOAWAY that we send for the peer's mistake.
    pub(super) fault: u32,
    pieces: usize,
    coded: Vec<u8>,
}

impl Http2Core {
    /// `opening` are the bytes before our SETTINGS: the client's preface.
    pub(super) fn new(opening: &[u8], max_streams: Option<u32>) -> Self {
        let mut out = opening.to_vec();
        let settings = [
            (ENABLE_PUSH, 0),
            (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (MAX_HEADER_LIST_SIZE, MAX_LIST_BYTES as u32),
            (MAX_CONCURRENT_STREAMS, max_streams.unwrap_or_default()),
        ];
        // A client may not be pushed to, and so has no streams to limit; a server may not speak of pushing.
        let ours = if max_streams.is_some() {
            &settings[1..]
        } else {
            &settings[..3]
        };
        frame::put_settings(&mut out, ours);
        let more = CONNECTION_WINDOW - DEFAULT_WINDOW as u32;
        frame::put_number(&mut out, frame::WINDOW_UPDATE, 0, more);
        Self {
            out,
            sent: 0,
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            window: DEFAULT_WINDOW,
            initial: DEFAULT_WINDOW,
            max_streams: usize::MAX,
            settled: false,
            received: 0,
            block: Vec::new(),
            unfinished: None,
            fault: PROTOCOL_ERROR,
            pieces: 0,
            coded: Vec::new(),
        }
    }

    /// Bytes waiting to be written.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// `count` bytes have been written.
    pub(super) fn wrote(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// Applies a frame to the connection, and returns its meaning for the streams.
    pub(super) fn accept<'a>(&mut self, frame: &Frame<'a>) -> Result<IncomingFrame<'a>, Malformed> {
        if !self.settled && (frame.kind != frame::SETTINGS || frame.has(frame::ACK)) {
            return Err(Malformed("does not begin with SETTINGS"));
        }
        if self.unfinished.is_some() && frame.kind != frame::CONTINUATION {
            return Err(Malformed("header block is interrupted"));
        }
        let on_stream = matches!(
            frame.kind,
            frame::DATA
                | frame::HEADERS
                | frame::PRIORITY
                | frame::RST_STREAM
                | frame::CONTINUATION
        );
        let on_connection = matches!(frame.kind, frame::SETTINGS | frame::PING | frame::GOAWAY);
        if (on_stream && frame.stream == 0) || (on_connection && frame.stream != 0) {
            return Err(Malformed("frame on the wrong stream"));
        }
        let length = frame.payload.len();
        let right = match frame.kind {
            frame::PRIORITY => length == 5,
            frame::RST_STREAM | frame::WINDOW_UPDATE => length == 4,
            frame::PING => length == 8,
            frame::GOAWAY => length >= 8,
            frame::SETTINGS if frame.has(frame::ACK) => length == 0,
            frame::SETTINGS => length.is_multiple_of(6),
            _ => true,
        };
        if !right {
            return Err(Malformed("frame of the wrong length"));
        }
        match frame.kind {
            frame::DATA => self.data(frame),
            frame::HEADERS => self.headers(frame),
            frame::CONTINUATION => self.continuation(frame),
            frame::RST_STREAM => Ok(IncomingFrame::Reset {
                stream: frame.stream,
            }),
            frame::SETTINGS => self.settings(frame),
            frame::PUSH_PROMISE => Err(Malformed("sends a push, although push is disabled")),
            frame::PING => self.ping(frame),
            frame::GOAWAY => Ok(IncomingFrame::GoAway {
                last: frame::number(frame.payload) & 0x7fff_ffff,
            }),
            frame::WINDOW_UPDATE => self.window_update(frame),
            // PRIORITY says nothing any more, and frames of unknown kinds are to be passed over.
            _ => Ok(IncomingFrame::Nothing),
        }
    }

    fn data<'a>(&mut self, frame: &Frame<'a>) -> Result<IncomingFrame<'a>, Malformed> {
        let length = frame.payload.len();
        self.received += length as u32;
        if self.received > CONNECTION_WINDOW {
            return Err(Malformed("more data than the connection's window"));
        }
        if self.received >= CONNECTION_WINDOW / 2 {
            frame::put_number(&mut self.out, frame::WINDOW_UPDATE, 0, self.received);
            self.received = 0;
        }
        Ok(IncomingFrame::Data {
            stream: frame.stream,
            bytes: unpadded(frame)?,
            length,
            end: frame.has(frame::END_STREAM),
        })
    }

    fn headers<'a>(&mut self, frame: &Frame<'a>) -> Result<IncomingFrame<'a>, Malformed> {
        let mut block = unpadded(frame)?;
        if frame.has(frame::PRIORITISED) {
            block = block
                .get(5..)
                .ok_or(Malformed("frame of the wrong length"))?;
        }
        self.block.clear();
        self.block.extend_from_slice(block);
        self.pieces = 0;
        Ok(self.piece(frame, frame.has(frame::END_STREAM)))
    }

    fn continuation<'a>(&mut self, frame: &Frame<'a>) -> Result<IncomingFrame<'a>, Malformed> {
        let Some((stream, end)) = self.unfinished.take() else {
            return Err(Malformed("CONTINUATION without a header block"));
        };
        self.pieces += 1;
        let size = self.block.len() + frame.payload.len();
        if stream != frame.stream || self.pieces > MAX_PIECES || size > MAX_BLOCK_BYTES {
            return Err(Malformed("header block of too many bytes or pieces"));
        }
        self.block.extend_from_slice(frame.payload);
        Ok(self.piece(frame, end))
    }

    fn piece<'a>(&mut self, frame: &Frame<'a>, end: bool) -> IncomingFrame<'a> {
        let stream = frame.stream;
        if frame.has(frame::END_HEADERS) {
            return IncomingFrame::Headers { stream, end };
        }
        self.unfinished = Some((stream, end));
        IncomingFrame::Nothing
    }

    /// Reads the header block that has become whole. Every block must be read, wanted or not: the table learns from it.
    pub(super) fn fields(
        &mut self,
        field: &mut impl FnMut(&[u8], &[u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.decoder.decode(&self.block, field)
    }

    fn settings<'a>(&mut self, frame: &Frame<'a>) -> Result<IncomingFrame<'a>, Malformed> {
        if frame.has(frame::ACK) {
            return Ok(IncomingFrame::Nothing);
        }
        let mut by = 0;
        for setting in frame.payload.chunks_exact(6) {
            let value = frame::number(&setting[2..]);
            match u16::from_be_bytes([setting[0], setting[1]]) {
                HEADER_TABLE_SIZE => self.encoder.resize(value as usize),
                ENABLE_PUSH if value > 1 => return Err(Malformed("setting out of range")),
                MAX_CONCURRENT_STREAMS => self.max_streams = value as usize,
                INITIAL_WINDOW_SIZE if i64::from(value) <= MAX_WINDOW => {
                    by += i64::from(value) - self.initial;
                    self.initial = i64::from(value);
                }
                // We send none longer than the least that every peer takes.
                MAX_FRAME_SIZE if (16_384..1 << 24).contains(&value) => {}
                INITIAL_WINDOW_SIZE | MAX_FRAME_SIZE => {
                    return Err(Malformed("setting out of range"));
                }
                _ => {}
            }
        }
        self.settled = true;
        frame::put_head(&mut self.out, 0, frame::SETTINGS, frame::ACK, 0);
        self.patience()?;
        Ok(IncomingFrame::Initial { by })
    }

    fn ping<'a>(&mut self, frame: &Frame<'a>) -> Result<IncomingFrame<'a>, Malformed> {
        if !frame.has(frame::ACK) {
            frame::put_head(&mut self.out, 8, frame::PING, frame::ACK, 0);
            self.out.extend_from_slice(frame.payload);
            self.patience()?;
        }
        Ok(IncomingFrame::Nothing)
    }

    fn patience(&self) -> Result<(), Malformed> {
        if self.unsent().len() > MAX_UNSENT_BYTES {
            return Err(Malformed("sends many frames and reads no answers"));
        }
        Ok(())
    }

    fn window_update<'a>(&mut self, frame: &Frame<'a>) -> Result<IncomingFrame<'a>, Malformed> {
        let by = i64::from(frame::number(frame.payload) & 0x7fff_ffff);
        if by == 0 {
            return Err(Malformed("window update of 0"));
        }
        if frame.stream == 0 {
            self.window += by;
            if self.window > MAX_WINDOW {
                self.fault = FLOW_CONTROL_ERROR;
                return Err(Malformed("window larger than 2^31-1"));
            }
        }
        Ok(IncomingFrame::Window {
            stream: frame.stream,
            by,
        })
    }

    /// Encodes fields into a block; true if the same fields will encode to the same bytes the next time.
    pub(super) fn encode<'a>(
        &mut self,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8], bool)>,
    ) -> bool {
        self.coded.clear();
        let before = self.coded.len();
        self.encoder.begin(&mut self.coded);
        let mut steady = self.coded.len() == before;
        for (name, value, learn) in fields {
            steady &= !self.encoder.field(name, value, learn, &mut self.coded);
        }
        steady
    }

    /// The encoder must say something before the next block, or the next block will be read differently.
    pub(super) fn resized(&self) -> bool {
        self.encoder.resized()
    }

    /// The block last encoded.
    pub(super) fn coded(&self) -> &[u8] {
        &self.coded
    }

    /// Appends the block last encoded, as HEADERS of a stream.
    pub(super) fn put_coded(&mut self, stream: u32, end: bool) {
        let coded = std::mem::take(&mut self.coded);
        self.put_block(&coded, stream, end);
        self.coded = coded;
    }

    /// Appends a header block in as many frames as it takes.
    pub(super) fn put_block(&mut self, block: &[u8], stream: u32, end: bool) {
        let mut rest = block;
        let mut kind = frame::HEADERS;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(frame::MAX_PAYLOAD_BYTES));
            let mut flags = 0;
            if kind == frame::HEADERS && end {
                flags |= frame::END_STREAM;
            }
            if after.is_empty() {
                flags |= frame::END_HEADERS;
            }
            frame::put_head(&mut self.out, piece.len(), kind, flags, stream);
            self.out.extend_from_slice(piece);
            if after.is_empty() {
                return;
            }
            (rest, kind) = (after, frame::CONTINUATION);
        }
    }

    /// Returns how many of `wanted` bytes of body may be sent now.
    pub(super) fn room(&self, window: i64, wanted: usize) -> usize {
        if self.unsent().len() >= MAX_READY_BYTES {
            return 0;
        }
        let window = usize::try_from(window.min(self.window)).unwrap_or(0);
        wanted.min(window).min(frame::MAX_PAYLOAD_BYTES)
    }

    /// Appends a piece of body, for which there is [`Core::room`].
    pub(super) fn put_data(&mut self, bytes: &[u8], stream: u32, end: bool) {
        let flags = if end { frame::END_STREAM } else { 0 };
        frame::put_head(&mut self.out, bytes.len(), frame::DATA, flags, stream);
        self.out.extend_from_slice(bytes);
        self.window -= bytes.len() as i64;
    }

    pub(super) fn put_reset(&mut self, stream: u32, code: u32) {
        frame::put_number(&mut self.out, frame::RST_STREAM, stream, code);
    }

    pub(super) fn put_goaway(&mut self, last: u32, code: u32) {
        frame::put_goaway(&mut self.out, last, code);
    }

    /// Gives a stream its window back once half of it is used; returns what it has received since.
    pub(super) fn replenish(&mut self, received: u32, stream: u32) -> Result<u32, Malformed> {
        if received > STREAM_WINDOW {
            return Err(Malformed("more data than the stream's window"));
        }
        if received < STREAM_WINDOW / 2 {
            return Ok(received);
        }
        frame::put_number(&mut self.out, frame::WINDOW_UPDATE, stream, received);
        Ok(0)
    }
}

/// Widens a window for sending; false if it is now wider than there may be.
pub(super) fn widen(window: &mut i64, by: i64) -> bool {
    *window += by;
    *window <= MAX_WINDOW
}

fn unpadded<'a>(frame: &Frame<'a>) -> Result<&'a [u8], Malformed> {
    if !frame.has(frame::PADDED) {
        return Ok(frame.payload);
    }
    let wrong = Malformed("padding longer than its frame");
    let (length, rest) = frame.payload.split_first().ok_or(wrong.clone())?;
    let kept = rest.len().checked_sub(usize::from(*length)).ok_or(wrong)?;
    Ok(&rest[..kept])
}
