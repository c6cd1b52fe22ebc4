//! A client's unidirectional streams: its settings, and QPACK's two, on which nothing may happen since there is no dynamic table.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use quinn::{Connection, ReadError, RecvStream};
use voile_http3::{Code, Frames, purpose, take_integer};

use super::limits::MAX_CHUNK;
use super::quic;

/// Types of the connection's streams seen so far; each may come once.
pub(super) type Seen = Rc<RefCell<BTreeSet<u64>>>;

/// "The table has no room": all that an encoder may say.
const NO_ROOM: u8 = 0x20;

/// Longest integer.
const LONGEST: usize = 8;

/// Serves one stream to its end. An error closes the connection before the stream is given up.
///
/// # Errors The code with which the connection must close.
pub(super) async fn serve(
    connection: Connection,
    mut stream: RecvStream,
    seen: Seen,
) -> Result<(), Code> {
    let served = read(&mut stream, seen).await;
    if let Err(code) = served {
        connection.close(quic(code), b"");
    }
    served
}

async fn read(stream: &mut RecvStream, seen: Seen) -> Result<(), Code> {
    let mut rest = Vec::new();
    let kind = loop {
        match take_integer(&rest) {
            Some((kind, length)) => {
                rest.drain(..length);
                break kind;
            }
            None => match more(stream, LONGEST).await? {
                Some(chunk) => rest.extend_from_slice(&chunk),
                // It said nothing.
                None => return Ok(()),
            },
        }
    };
    match kind {
        purpose::CONTROL | purpose::ENCODER | purpose::DECODER => {
            if !seen.borrow_mut().insert(kind) {
                return Err(Code::STREAM_CREATION_ERROR);
            }
        }
        purpose::PUSH => return Err(Code::STREAM_CREATION_ERROR),
        _ => {
            // Streams of unknown types are not read; the stream may be closed already.
            let _ = stream.stop(quic(Code::STREAM_CREATION_ERROR));
            return Ok(());
        }
    }
    let mut frames = Frames::of_control();
    let mut chunk = Bytes::from(rest);
    loop {
        match kind {
            purpose::CONTROL => while frames.next(&mut chunk)?.is_some() {},
            purpose::ENCODER if chunk.iter().any(|byte| *byte != NO_ROOM) => {
                return Err(Code::ENCODER_STREAM_ERROR);
            }
            // The dynamic table is empty, so the client's instructions about it change nothing.
            _ => {}
        }
        chunk = more(stream, MAX_CHUNK)
            .await?
            .ok_or(Code::CLOSED_CRITICAL_STREAM)?;
    }
}

/// Next bytes; none at the end. Never returns if the connection is gone.
async fn more(stream: &mut RecvStream, most: usize) -> Result<Option<Bytes>, Code> {
    match stream.read_chunk(most, true).await {
        Ok(chunk) => Ok(chunk.map(|chunk| chunk.bytes)),
        Err(ReadError::ConnectionLost(_)) => std::future::pending().await,
        Err(_) => Ok(None),
    }
}
