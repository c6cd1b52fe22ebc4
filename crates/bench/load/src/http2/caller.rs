//! Makes gRPC calls one after the other, over a connection of its own. A run uses it before it begins, to ask a server for the
//! descriptions of its messages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::core::{Http2Core, IncomingFrame};
use super::frame::Frames;
use super::{Malformed, PREFACE};
use crate::grpc;
use crate::options::LoadTarget;
use crate::tls::Tls;

/// The longest wait for a connection, and for any bytes of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer that is kept.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// One read.
const BUFFER_BYTES: usize = 16 * 1024;

/// A socket, perhaps with TLS.
trait Channel: Read + Write {}
impl<T: Read + Write> Channel for T {}

/// A connection.
pub(crate) struct Http2Caller {
    channel: Box<dyn Channel>,
    authority: String,
    scheme: &'static str,
    frames: Frames,
    core: Http2Core,
    next: u32,
}

/// Reason why a call returned nothing.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The server's status and its words.
    Status(u16, String),
    /// The connection failed, or its bytes were wrong.
    Broken(String),
}

impl From<std::io::Error> for CallError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        if matches!(error.kind(), Kind::WouldBlock | Kind::TimedOut) {
            let seconds = PATIENCE.as_secs();
            return Self::Broken(format!("no answer within {seconds} s"));
        }
        Self::Broken(error.to_string())
    }
}

impl From<Malformed> for CallError {
    fn from(error: Malformed) -> Self {
        Self::Broken(format!("not HTTP/2: {error}"))
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(code, why) => write!(formatter, "gRPC status {code}: {why}"),
            Self::Broken(why) => formatter.write_str(why),
        }
    }
}

/// The answer so far.
#[derive(Default)]
struct ResponseProgress {
    status: u16,
    grpc: Option<u16>,
    why: String,
    body: Vec<u8>,
    received: u32,
    ended: bool,
}

impl Http2Caller {
    pub(crate) fn connect(target: &LoadTarget, tls: Option<&Tls>) -> Result<Self, CallError> {
        let stream = TcpStream::connect_timeout(&target.address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let channel: Box<dyn Channel> = match tls {
            None => Box::new(stream),
            Some(tls) => {
                let ours = tls
                    .connect()
                    .map_err(|error| CallError::Broken(error.to_string()))?;
                Box::new(rustls::StreamOwned::new(*ours, stream))
            }
        };
        Ok(Self {
            channel,
            authority: target.authority.clone(),
            scheme: if tls.is_some() { "https" } else { "http" },
            frames: Frames::default(),
            core: Http2Core::new(PREFACE, None),
            next: 1,
        })
    }

    /// Sends one message and returns the messages of the answer, prefixes and all.
    pub(crate) fn call(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let id = self.next;
        self.next += 2;
        let fields = [
            (":method", "POST"),
            (":scheme", self.scheme),
            (":path", path),
            (":authority", &self.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ];
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes(), true));
        self.core.encode(fields);
        self.core.put_coded(id, false);
        let mut body = Vec::new();
        grpc::put_message(&mut body, message);
        if body.len() > self.core.room(self.core.initial, body.len()) {
            return Err(CallError::Broken(
                "the request is longer than a frame".to_owned(),
            ));
        }
        self.core.put_data(&body, id, true);
        let mut answer = ResponseProgress::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        while !answer.ended {
            self.channel.write_all(self.core.unsent())?;
            self.channel.flush()?;
            self.core.wrote(self.core.unsent().len());
            let count = self.channel.read(&mut buffer)?;
            if count == 0 {
                return Err(CallError::Broken(
                    "the server closed the connection".to_owned(),
                ));
            }
            self.hear(&buffer[..count], id, &mut answer)?;
        }
        match (answer.status, answer.grpc) {
            (200, Some(0)) => Ok(answer.body),
            (200, Some(code)) => Err(CallError::Status(code, answer.why)),
            (200, None) => Err(CallError::Broken(
                "the answer has no gRPC status".to_owned(),
            )),
            (status, _) => Err(CallError::Broken(format!("HTTP status {status}"))),
        }
    }

    fn hear(
        &mut self,
        mut bytes: &[u8],
        id: u32,
        answer: &mut ResponseProgress,
    ) -> Result<(), CallError> {
        loop {
            let (used, frame) = self.frames.next(bytes)?;
            bytes = &bytes[used..];
            let Some(frame) = frame else { return Ok(()) };
            match self.core.accept(&frame)? {
                IncomingFrame::Headers { stream, end } => {
                    let ours = stream == id;
                    self.core.fields(&mut |name, value| {
                        let text = String::from_utf8_lossy(value);
                        match name {
                            b":status" if ours => answer.status = text.parse().unwrap_or(0),
                            b"grpc-status" if ours => answer.grpc = text.parse().ok(),
                            b"grpc-message" if ours => answer.why = text.into_owned(),
                            _ => {}
                        }
                        Ok(())
                    })?;
                    answer.ended |= ours && end;
                }
                IncomingFrame::Data {
                    stream,
                    bytes,
                    length,
                    end,
                } if stream == id => {
                    answer.body.extend_from_slice(bytes);
                    if answer.body.len() > MAX_ANSWER_BYTES {
                        return Err(CallError::Broken(
                            "the answer is larger than 64 MiB".to_owned(),
                        ));
                    }
                    answer.ended |= end;
                    answer.received = self.core.replenish(answer.received + length as u32, id)?;
                }
                IncomingFrame::Reset { stream } if stream == id => {
                    return Err(CallError::Broken("the server reset the call".to_owned()));
                }
                IncomingFrame::GoAway { last } if last < id => {
                    return Err(CallError::Broken("the server sent GOAWAY".to_owned()));
                }
                _ => {}
            }
        }
    }
}
