//! Bodies of any size that cost no memory of that size: a head, then one block of bytes over and over, then trailers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};

/// Bytes handed over at a time, and the size up to which a message is kept ready as a whole.
const BLOCK_BYTES: usize = 64 * 1024;

/// The block: characters without pattern, so that nothing on the way profits much from compressing them, and that do no harm
/// to a terminal.
fn block() -> Bytes {
    static BLOCK: OnceLock<Bytes> = OnceLock::new();
    BLOCK
        .get_or_init(|| {
            let mut random = fastrand::Rng::with_seed(0x0076_6f69_6c65);
            (0..BLOCK_BYTES)
                .map(|_| random.alphanumeric() as u8)
                .collect()
        })
        .clone()
}

/// A payload, ready to be sent any number of times.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    head: Bytes,
    left: u64,
}

impl Payload {
    /// So many bytes.
    pub(crate) fn plain(size: u64) -> Self {
        match usize::try_from(size) {
            Ok(size) if size <= BLOCK_BYTES => Self {
                head: block().slice(..size),
                left: 0,
            },
            _ => Self {
                head: Bytes::new(),
                left: size,
            },
        }
    }

    /// A gRPC message whose field 1 has so many bytes (`bytes payload = 1`).
    pub(crate) fn message(size: u64) -> Self {
        let mut field = BytesMut::new();
        if size > 0 {
            field.put_u8(0x0a); // field 1, length-delimited
            let mut rest = size;
            while rest >= 0x80 {
                field.put_u8(rest as u8 | 0x80);
                rest >>= 7;
            }
            field.put_u8(rest as u8);
        }
        let mut head = BytesMut::new();
        head.put_u8(0); // not compressed
        // Sizes are at most `voile_graph::size::MAX_SIZE`, a quarter of the range of 32 bits.
        head.put_u32(u32::try_from(field.len() as u64 + size).unwrap_or(u32::MAX));
        head.extend_from_slice(&field);
        let mut left = size;
        if size as usize <= BLOCK_BYTES {
            head.extend_from_slice(&block()[..size as usize]);
            left = 0;
        }
        Self {
            head: head.freeze(),
            left,
        }
    }

    /// Bytes of it on the wire, without framing of HTTP.
    pub(crate) fn len(&self) -> u64 {
        self.head.len() as u64 + self.left
    }
}

/// A body: what a payload says, then trailers.
#[derive(Debug)]
pub(crate) struct PayloadBody {
    head: Option<Bytes>,
    left: u64,
    trailers: Option<HeaderMap>,
}

impl PayloadBody {
    pub(crate) fn new(payload: &Payload) -> Self {
        Self {
            head: (!payload.head.is_empty()).then(|| payload.head.clone()),
            left: payload.left,
            trailers: None,
        }
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self {
            head: Some(text.into()).filter(|text| !text.is_empty()),
            left: 0,
            trailers: None,
        }
    }

    pub(crate) fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }
}

impl Body for PayloadBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = if let Some(head) = self.head.take() {
            Some(Frame::data(head))
        } else if self.left > 0 {
            let size = self.left.min(BLOCK_BYTES as u64);
            self.left -= size;
            Some(Frame::data(block().slice(..size as usize)))
        } else {
            self.trailers.take().map(Frame::trailers)
        };
        Poll::Ready(next.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none() && self.left == 0 && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.head.as_ref().map_or(0, |head| head.len() as u64) + self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_framed_as_grpc_and_protobuf_say() {
        for (size, begins, length) in [
            (0, vec![0, 0, 0, 0, 0], 5),
            (1, vec![0, 0, 0, 0, 3, 0x0a, 1], 8),
            (300, vec![0, 0, 0, 1, 47, 0x0a, 0xac, 2], 308),
            (
                1 << 20,
                vec![0, 0, 16, 0, 4, 0x0a, 0x80, 0x80, 0x40],
                (1 << 20) + 9,
            ),
        ] {
            let payload = Payload::message(size);
            assert_eq!(payload.head[..begins.len()], begins, "{size}");
            assert_eq!(payload.len(), length, "{size}");
        }
    }
}
