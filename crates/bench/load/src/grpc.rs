//! gRPC on top of HTTP/2: length-prefixed messages, the status in the trailers, and the few protobuf fields of the methods that
//! we call and serve. Other parts of messages stay opaque.

/// Any number of messages.
pub const ANY_MESSAGES: u32 = u32::MAX;

/// Compressed flag and length, before each message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The standard health service, which any gRPC server may be asked for.
pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// The same as a stream, which sends the health again whenever it changes.
pub(crate) const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Methods by which clients ask for descriptions of the served methods, under both names.
pub(crate) const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
/// Our echo service (`crates/bench/load/proto/echo.proto`).
pub const ECHO_UNARY: &str = "/voile.echo.v1.Echo/Unary";
/// The same, of many messages: each is sent back as it comes.
pub const ECHO_STREAM: &str = "/voile.echo.v1.Echo/Stream";
/// Many messages, of which the last is sent back.
pub const ECHO_COLLECT: &str = "/voile.echo.v1.Echo/Collect";
/// One message, sent back as often as `messages=` sets.
pub const ECHO_REPEAT: &str = "/voile.echo.v1.Echo/Repeat";
/// Fortio's echo service.
pub const FORTIO_PING: &str = "/fgrpc.PingServer/Ping";

/// Methods of collectors: access logs come as one long stream, spans one message a call. The server drops the messages and
/// answers with an empty one. A proxy's reports can so be measured without the cost of a collector.
pub(crate) const COLLECTORS: [&str; 2] = [
    "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs",
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
];

/// Reports if the path is one of [`COLLECTORS`].
pub(crate) fn collects(path: &[u8]) -> bool {
    COLLECTORS.iter().any(|method| method.as_bytes() == path)
}

/// Method of external authorizers: it decides if a request may pass. Only paths in the query's `deny=` are denied, so that the
/// check of a proxy can be measured without the cost of a decision.
pub(crate) const AUTHORIZE: &str = "/envoy.service.auth.v3.Authorization/Check";

/// `CheckResponse { status: { code: 7 } }`: PERMISSION_DENIED.
pub(crate) const DENIED: &[u8] = &[0x0a, 0x02, 0x08, 0x07];

/// The path that an external authorizer is asked about: `attributes.request.http.path`.
pub(crate) fn path_in_question(message: &[u8]) -> Option<&[u8]> {
    [1, 4, 2, 4].into_iter().try_fold(message, bytes_in)
}

/// Counts messages as their bytes come.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Messages {
    head: u8,
    left: u32,
    /// Messages that have wholly come.
    pub(crate) whole: u32,
    /// Bytes of messages, prefixes left out.
    pub(crate) bytes: u64,
}

impl Messages {
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(first) = bytes.first().copied() {
            if usize::from(self.head) < PREFIX_BYTES {
                // The flag goes into no length: four bytes follow it and shift it out.
                self.left = self.left << 8 | u32::from(first);
                self.head += 1;
                bytes = &bytes[1..];
            } else {
                let taken = bytes.len().min(self.left as usize);
                self.bytes += taken as u64;
                self.left -= taken as u32;
                bytes = &bytes[taken..];
            }
            if usize::from(self.head) == PREFIX_BYTES && self.left == 0 {
                self.whole = self.whole.saturating_add(1);
                self.head = 0;
            }
        }
    }

    /// Exactly one message, and nothing after it, as a unary call must bring.
    pub(crate) fn one(&self) -> bool {
        self.exactly(1)
    }

    /// Reports if part of a further message has come.
    pub(crate) fn torn(&self) -> bool {
        self.head != 0
    }

    /// So many messages, or any number, and nothing after them.
    pub(crate) fn exactly(&self, count: u32) -> bool {
        (self.whole == count || count == ANY_MESSAGES) && self.head == 0
    }
}

/// Appends a message with its prefix.
pub(crate) fn put_message(out: &mut Vec<u8>, message: &[u8]) {
    out.push(0);
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(message);
}

/// Returns the number of bytes of a body that are whole messages.
pub(crate) fn whole_messages(body: &[u8]) -> usize {
    let mut at = 0;
    while let Some(message) = message_at(body, at) {
        at += PREFIX_BYTES + message.len();
    }
    at
}

/// The messages of a body of whole ones.
pub(crate) fn messages(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let message = message_at(body, at)?;
        at += PREFIX_BYTES + message.len();
        Some(message)
    })
}

/// Reports if any whole message of a body is compressed.
pub(crate) fn compressed(body: &[u8]) -> bool {
    let mut at = 0;
    while let Some(message) = message_at(body, at) {
        if body[at] & 1 != 0 {
            return true;
        }
        at += PREFIX_BYTES + message.len();
    }
    false
}

fn message_at(body: &[u8], at: usize) -> Option<&[u8]> {
    let head = body.get(at..at + PREFIX_BYTES)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    body.get(at + PREFIX_BYTES..at + PREFIX_BYTES + length)
}

/// Returns the offset of the last message in a body of whole messages.
pub(crate) fn last_message(body: &[u8]) -> usize {
    let (mut last, mut at) = (0, 0);
    while let Some(head) = body.get(at..at + PREFIX_BYTES) {
        last = at;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        at += PREFIX_BYTES + length as usize;
    }
    last
}

/// The message that carries a payload to a method: in the field where that method keeps it.
pub(crate) fn message(method: &str, payload: &[u8]) -> Vec<u8> {
    if payload.is_empty() {
        return Vec::new();
    }
    let field = if method == FORTIO_PING { 3 } else { 1 };
    let mut message = Vec::with_capacity(payload.len() + 6);
    put_bytes(&mut message, field, payload);
    message
}

/// Appends a field of bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a variable-length integer.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field that is a number.
pub(crate) fn put_number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    put_varint(out, value);
}

/// The bytes in a field of a message; none if it is not there, or the message is none.
fn bytes_in(mut message: &[u8], field: u64) -> Option<&[u8]> {
    let mut found = None;
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        match key & 7 {
            0 => _ = take_varint(&mut message)?,
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                if key >> 3 == field {
                    found = message.get(..length);
                }
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    found
}

/// The number in a field of a message; none if it is not there, or the message is none.
pub(crate) fn varint(mut message: &[u8], field: u64) -> Option<u64> {
    let mut found = None;
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        match key & 7 {
            0 => {
                let value = take_varint(&mut message)?;
                if key >> 3 == field {
                    found = Some(value);
                }
            }
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    found
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
