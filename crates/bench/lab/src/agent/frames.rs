//! Frames of the agent protocol: a length of four bytes, then JSON. Any host that reaches the agent's port may send any bytes.
//! Until the peer has proven the token, a frame may have only a few thousand bytes.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::messages::{
    AgentReply, AgentRequest, AgentWelcome, FRAME_BYTES, GREETING_BYTES, Hello, TokenProof,
};

/// Sends one frame of at most so many bytes.
pub(super) fn write(
    stream: &mut (impl Write + ?Sized),
    words: &impl Serialize,
    limit: usize,
) -> io::Result<()> {
    let text = serde_json::to_vec(words)?;
    if text.len() > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} bytes are more than a frame allows", text.len()),
        ));
    }
    let length = (text.len() as u32).to_be_bytes();
    stream.write_all(&[&length[..], &text].concat())?;
    stream.flush()
}

/// Receives one; none when the other end hung up between frames.
pub(super) fn read<T: DeserializeOwned>(
    stream: &mut (impl Read + ?Sized),
    limit: usize,
) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    let got = match stream.read(&mut length) {
        // An end without TLS's closing alert: a killed process sends none.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
        got => got?,
    };
    if got == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut length[got..])?;
    let length = u32::from_be_bytes(length) as usize;
    if length > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes; {limit} are allowed"),
        ));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    let words = serde_json::from_slice(&text);
    words.map(Some).map_err(|e| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("not a message of this protocol: {e}"),
        )
    })
}

/// Reader that returns its bytes in pieces of `step` bytes.
struct FramePieces<'a> {
    rest: &'a [u8],
    step: usize,
}

impl Read for FramePieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.step.min(buffer.len());
        self.rest.read(&mut buffer[..length])
    }
}

/// Properties of one kind of message for any bytes: it reads alike in pieces of any size, and a message that is written and read
/// again stays the same.
fn any<T: DeserializeOwned + Serialize>(bytes: &[u8], step: usize, limit: usize) {
    let value = |words: &Option<T>| serde_json::to_value(words).unwrap_or_default();
    let whole = read::<T>(&mut &*bytes, limit);
    let pieces = read::<T>(&mut FramePieces { rest: bytes, step }, limit);
    match (&whole, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(value(whole), value(pieces)),
        (Err(whole), Err(pieces)) => assert_eq!(whole.kind(), pieces.kind()),
        _ => panic!(
            "read as {} whole, in pieces {}",
            whole.is_ok(),
            pieces.is_ok()
        ),
    }
    let Ok(Some(words)) = whole else { return };
    let mut again = Vec::new();
    // The message may be longer than its bytes: a number is written out, say.
    if write(&mut again, &words, limit).is_ok() {
        let read = read::<T>(&mut &*again, limit).expect("invariant: what we write is read");
        let (read, written) = (value(&read), value(&Some(words)));
        assert!(alike(&read, &written), "{written} is read as {read}");
    }
}

/// The same but for the last digit of fractions, which reading may round.
fn alike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
            (a - b).abs() <= a.abs() * 4.0 * f64::EPSILON
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(name, a)| b.get(name).is_some_and(|b| alike(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        _ => one == other,
    }
}

/// Checks the properties that frames must have for any bytes; for `fuzz`. The bytes may come from a peer of the agent or of the
/// near end. The first byte sets the size of the pieces in which they arrive.
///
/// # Panics
/// If a property does not hold.
pub fn any_frame(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else {
        return;
    };
    let step = usize::from(*step % 32) + 1;
    any::<TokenProof>(bytes, step, GREETING_BYTES);
    any::<Hello>(bytes, step, GREETING_BYTES);
    any::<AgentWelcome>(bytes, step, FRAME_BYTES);
    any::<AgentRequest>(bytes, step, FRAME_BYTES);
    any::<AgentReply>(bytes, step, FRAME_BYTES);
}
