//! HTTP/3: frames of a stream mean the same however they are cut, and blocks of QPACK are read within their limit.

use bytes::Bytes;
use voile_http2::Fields;
use voile_http3::{Code, FrameEvent, Frames, decode, encode};

/// Bytes of a block that are kept.
const MAX_BLOCK: usize = 64;

/// Size of the fields that are read of a block, in bytes, as RFC 9114 counts them.
const MAX_FIELDS: usize = 4096;
/// Size of a field beside its text (RFC 9114 section 4.2.2).
const OVERHEAD: usize = 32;

/// Content of a stream; adjacent data is one.
#[derive(Debug, PartialEq, Eq, Default)]
struct Stream {
    events: Vec<FrameEvent>,
    error: Option<Code>,
    ended_between_frames: bool,
}

impl Stream {
    fn push(&mut self, event: FrameEvent) {
        if let FrameEvent::Block { bytes, .. } = &event {
            assert!(bytes.len() <= MAX_BLOCK, "{} bytes of a block", bytes.len());
        }
        match (self.events.last_mut(), event) {
            (_, FrameEvent::Data(data)) if data.is_empty() => {}
            (Some(FrameEvent::Data(before)), FrameEvent::Data(data)) => {
                *before = [&before[..], &data[..]].concat().into();
            }
            (_, event) => self.events.push(event),
        }
    }
}

fn read(mut frames: Frames, bytes: &[u8], step: usize) -> Stream {
    let mut stream = Stream::default();
    for piece in bytes.chunks(step) {
        let mut piece = Bytes::copy_from_slice(piece);
        loop {
            match frames.next(&mut piece) {
                Ok(Some(event)) => stream.push(event),
                Ok(None) => break,
                Err(code) => {
                    stream.error = Some(code);
                    return stream;
                }
            }
        }
        assert!(piece.is_empty(), "{} bytes were left", piece.len());
    }
    stream.ended_between_frames = frames.is_between();
    stream
}

/// The first byte says how the rest is cut, and whether it comes on a control stream.
pub(crate) fn frames(data: &[u8]) {
    let Some((how, bytes)) = data.split_first() else {
        return;
    };
    let frames = || match how & 1 {
        0 => Frames::of_request(MAX_BLOCK),
        _ => Frames::of_control(),
    };
    let whole = read(frames(), bytes, bytes.len().max(1));
    for step in [1, usize::from(how >> 1) + 1] {
        let pieces = read(frames(), bytes, step);
        assert_eq!(whole, pieces, "in pieces of {step}");
    }
}

fn lines(fields: &Fields) -> Vec<(String, Vec<u8>)> {
    let line = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
    fields.iter().map(line).collect()
}

/// Checks that a block is read or refused. A block that is read stays within its limit, and reads the same after it
/// was written. Of a block that was cut, the fields before the cut are the same.
pub(crate) fn qpack(block: &[u8]) {
    let cut = decode(block, false, MAX_FIELDS);
    let Ok(decoded) = decode(block, true, MAX_FIELDS) else {
        return;
    };
    let lines_read = lines(&decoded.fields);
    let size: usize = lines_read
        .iter()
        .map(|(name, value)| name.len() + value.len() + OVERHEAD)
        .sum();
    assert!(size <= MAX_FIELDS, "{size} bytes");
    let cut = cut.expect("a block that can be read whole can be read in part");
    assert_eq!(lines(&cut.fields), lines_read);
    let written = encode(&decoded.fields);
    // A status may be written that was not plain before; it counts, too.
    let again = decode(&written, true, MAX_FIELDS + OVERHEAD + ":status".len() + 5);
    let again = again.expect("what we write can be read");
    assert!(again.whole);
    assert_eq!(lines(&again.fields), lines_read);
    assert_eq!(again.fields.status(), decoded.fields.status());
}
