//! When requests and answers travel on connections that many of them share: the frames of HTTP/2 in plaintext, followed from
//! outside. A capture may begin in the midst of a connection, and frames have no mark to find their beginning by, so a
//! direction is followed from the first segment that is a row of whole frames; after a gap, from the next such one.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::Segment;

/// RFC 9113, 3.4 and 4.1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
/// CONTINUATION: kinds above it are extensions, of which no contestant sends any.
const LAST_KIND: u8 = 9;
const END_STREAM: u8 = 1;
/// Largest frame without a setting by the peer. No contestant sets another.
const MAX_FRAME: usize = 1 << 14;
/// Largest number of requests without an answer, over all connections.
const MAX_ASKED: usize = 1 << 16;

/// Begin or end of a stream within a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentMark {
    /// The first byte of a head.
    Head(u32),
    /// The last byte of a stream's direction.
    End(u32),
}

#[derive(Debug, Clone, Copy)]
struct CapturedHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl CapturedHead {
    fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, rest @ ..] = bytes else {
            return None;
        };
        let head = Self {
            length: usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c),
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes(*rest.first_chunk::<4>()?),
        };
        let plausible =
            head.kind <= LAST_KIND && head.length <= MAX_FRAME && head.stream >> 31 == 0;
        plausible.then_some(head)
    }

    fn ends(self) -> bool {
        self.kind <= HEADERS && self.flags & END_STREAM != 0
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct CapturedDirection {
    /// The place after what was followed; none before a beginning was found.
    next: Option<u32>,
    /// Received part of a frame's head that a segment's border cuts.
    begun: Vec<u8>,
    /// Bytes left of the current frame, and the stream that ends with it.
    left: usize,
    ending: Option<u32>,
}

impl CapturedDirection {
    fn follow(&mut self, segment: &Segment<'_>) -> Vec<SegmentMark> {
        let mut payload = segment.payload;
        if segment.opens {
            *self = Self::default();
        }
        if let Some(next) = self.next {
            let again = next.wrapping_sub(segment.sequence).cast_signed();
            match usize::try_from(again) {
                Ok(again) => payload = &payload[again.min(payload.len())..],
                // Something between was not seen.
                Err(_) => *self = Self::default(),
            }
        }
        let end = segment.sequence.wrapping_add(segment.payload.len() as u32);
        if payload.is_empty() {
            return Vec::new();
        }
        if self.next.is_none() {
            payload = payload.strip_prefix(PREFACE).unwrap_or(payload);
            if !is_row(payload) {
                return Vec::new();
            }
        }
        self.next = Some(end);
        let marks = self.marks(payload);
        if marks.is_none() {
            *self = Self::default();
        }
        marks.unwrap_or_default()
    }

    /// None where these are no frames.
    fn marks(&mut self, mut payload: &[u8]) -> Option<Vec<SegmentMark>> {
        let mut marks = Vec::new();
        while !payload.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(payload.len());
                payload = &payload[taken..];
                self.left -= taken;
            } else {
                let taken = (HEAD - self.begun.len()).min(payload.len());
                self.begun.extend_from_slice(&payload[..taken]);
                payload = &payload[taken..];
                if self.begun.len() < HEAD {
                    break;
                }
                let head = CapturedHead::read(&self.begun)?;
                self.begun.clear();
                self.left = head.length;
                if head.kind == HEADERS {
                    marks.push(SegmentMark::Head(head.stream));
                }
                self.ending = head.ends().then_some(head.stream);
            }
            if self.left == 0
                && let Some(stream) = self.ending.take()
            {
                marks.push(SegmentMark::End(stream));
            }
        }
        Some(marks)
    }
}

/// Returns true if the bytes are whole frames, one after the other, and nothing else.
fn is_row(mut bytes: &[u8]) -> bool {
    let mut known = false;
    while !bytes.is_empty() {
        let Some(head) = CapturedHead::read(bytes) else {
            return false;
        };
        // Frames of a stream carry its number; frames of the connection carry 0.
        known |= matches!(head.kind, DATA | HEADERS) && head.stream > 0;
        let Some(rest) = bytes.get(HEAD + head.length..) else {
            return false;
        };
        bytes = rest;
    }
    known
}

/// Streams of all connections of the watched hops.
#[derive(Debug, Default)]
pub(super) struct Streams {
    directions: HashMap<(SocketAddr, SocketAddr), CapturedDirection>,
    /// Times of whole requests without an answer, by client, listener and stream.
    asked: HashMap<(SocketAddr, SocketAddr, u32), u64>,
}

impl Streams {
    /// Follows a segment that came at that time. Returns the times at which the requests were whole whose answers begin in it.
    pub(super) fn follow(&mut self, segment: &Segment<'_>, inwards: bool, at: u64) -> Vec<u64> {
        let direction = self.directions.entry((segment.from, segment.to));
        let marks = direction.or_default().follow(segment);
        let mut answered = Vec::new();
        for mark in marks {
            match mark {
                SegmentMark::End(stream) if inwards && self.asked.len() < MAX_ASKED => {
                    self.asked.insert((segment.from, segment.to, stream), at);
                }
                SegmentMark::Head(stream) if !inwards => {
                    let asked = self.asked.remove(&(segment.to, segment.from, stream));
                    answered.extend(asked);
                }
                _ => {}
            }
        }
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        let mut bytes = (length as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.resize(HEAD + length, 0x55);
        bytes
    }

    struct StreamCapture {
        streams: Streams,
        places: [u32; 2],
    }

    impl StreamCapture {
        fn new() -> Self {
            Self {
                streams: Streams::default(),
                places: [77, u32::MAX - 20],
            }
        }

        fn see(&mut self, inwards: bool, payload: &[u8], at: u64) -> Vec<u64> {
            let [client, server] = ["127.0.0.1:9", "127.0.0.2:80"];
            let [client, server] = [client, server].map(|a| a.parse().expect("an address"));
            let (from, to) = if inwards {
                (client, server)
            } else {
                (server, client)
            };
            let place = &mut self.places[usize::from(inwards)];
            let segment = Segment {
                from,
                to,
                sequence: *place,
                opens: false,
                payload,
            };
            *place = place.wrapping_add(payload.len() as u32);
            self.streams.follow(&segment, inwards, at)
        }
    }

    #[test]
    fn each_stream_is_timed_from_the_end_of_its_request_to_its_answers_head() {
        let mut seen = StreamCapture::new();
        let preface = [PREFACE, &frame(4, 0, 0, 12), &frame(HEADERS, 4, 1, 30)].concat();
        assert!(seen.see(true, &preface, 10).is_empty());
        // Its body in two segments, and another request between.
        let body = frame(DATA, END_STREAM, 1, 40);
        seen.see(true, &body[..20], 20);
        seen.see(true, &body[20..], 30);
        seen.see(true, &frame(HEADERS, 5, 3, 8), 35);
        // The second is answered first; acknowledgements and windows are not answers.
        let row = [
            frame(4, 1, 0, 0),
            frame(8, 0, 0, 4),
            frame(HEADERS, 4, 3, 9),
        ]
        .concat();
        assert_eq!(seen.see(false, &row, 50), [35]);
        let answer = frame(HEADERS, 4, 1, 9);
        assert!(seen.see(false, &answer[..5], 60).is_empty());
        assert_eq!(seen.see(false, &answer[5..], 61), [30]);
        // Trailers begin nothing.
        assert!(seen.see(false, &frame(HEADERS, 5, 1, 3), 70).is_empty());
    }

    #[test]
    fn one_that_is_met_half_way_or_has_a_gap_is_followed_from_the_next_whole_frames() {
        let mut seen = StreamCapture::new();
        assert!(seen.see(true, &[0x55; 30], 10).is_empty());
        seen.see(true, &frame(HEADERS, 5, 5, 8), 20);
        assert_eq!(seen.see(false, &frame(HEADERS, 4, 5, 8), 25), [20]);
        seen.places[1] = seen.places[1].wrapping_add(100);
        seen.see(true, &[0x55; 12], 30);
        seen.see(true, &frame(HEADERS, 5, 9, 8), 40);
        // A retransmitted request is not counted again.
        seen.places[1] = seen.places[1].wrapping_sub(17);
        seen.see(true, &frame(HEADERS, 5, 9, 8), 44);
        assert_eq!(seen.see(false, &frame(HEADERS, 4, 9, 8), 50), [40]);
    }

    #[test]
    fn what_is_sealed_or_of_another_protocol_is_not_followed() {
        let sealed = [&[0x17, 0x03, 0x03, 0x00, 0x20][..], &[0x9a; 32]].concat();
        let mut seen = StreamCapture::new();
        for payload in [&sealed[..], b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", &[0; 18]] {
            assert!(seen.see(true, payload, 10).is_empty());
            assert!(seen.see(false, payload, 11).is_empty());
        }
        assert!(seen.streams.asked.is_empty());
    }
}
