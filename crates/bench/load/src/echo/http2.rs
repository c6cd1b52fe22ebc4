//! The echo server over HTTP/2: which answer a stream gets, for plain requests and for the gRPC methods it serves.
//!
//! gRPC: `voile.echo.v1.Echo/Unary` sends the message back, `Stream` each of many as it comes, `Collect` the last of many, `Repeat` one many times; `fgrpc.PingServer/Ping` does so with the time in it, and
//! `grpc.health.v1.Health/Check` says SERVING. Access logs and spans are taken and forgotten, and an external authorizer's questions answered with yes, but for `deny=`. Arguments come in the target's query or in the field `echo-query`.

mod live;
mod reflection;

use std::cmp::Reverse;
use std::io;

use super::calls::Job;
use super::connection::{EchoConnection, gzip};
use super::plan::ResponsePlan;
use super::request;
use super::worker::{ClosedConnection, EchoWorker, token};
use crate::clock::unix_now;
use crate::grpc;
use crate::http2::{Http2Server, Reply, RequestProgress, ResponseBody, ServerStream};

/// Unsent bytes beyond which no more requests are read: a client must read its answers.
const MAX_UNSENT_BYTES: usize = 512 * 1024;

/// The most bytes of an answer of many messages.
const MAX_REPEATED_BYTES: usize = 64 * 1024 * 1024;

/// gRPC status codes that we give.
const INVALID_ARGUMENT: u16 = 3;
const UNIMPLEMENTED: u16 = 12;
const INTERNAL: u16 = 13;
/// `HealthCheckResponse { status: SERVING }`.
const SERVING: &[u8] = &[0x08, 0x01];

impl EchoWorker {
    /// Goes on with an HTTP/2 connection as far as its socket allows.
    pub(super) fn drive_http2(
        &mut self,
        slot: usize,
        connection: &mut EchoConnection,
        buffer: &mut [u8],
    ) -> Result<(), ClosedConnection> {
        let Some(mut server) = connection.http2.take() else {
            return Err(ClosedConnection);
        };
        let ended = self.serve(slot, connection, &mut server, buffer);
        connection.http2 = Some(server);
        ended
    }

    fn serve(
        &mut self,
        slot: usize,
        connection: &mut EchoConnection,
        server: &mut Http2Server,
        buffer: &mut [u8],
    ) -> Result<(), ClosedConnection> {
        let token = token(slot, connection.generation);
        if !connection.input.is_empty() {
            let input = std::mem::take(&mut connection.input);
            connection.closing |= !self.hear(token, server, &input);
        }
        loop {
            let flushed = flush(connection, server)?;
            let over = connection.closing || connection.ended || self.drain_until.is_some();
            if flushed && over && (connection.closing || server.idle()) {
                return Err(ClosedConnection);
            }
            if connection.closing
                || !connection.readable
                || server.unsent().len() > MAX_UNSENT_BYTES
            {
                return Ok(());
            }
            match connection.pipe.read(buffer) {
                Ok(0) => {
                    connection.ended = true;
                    connection.readable = false;
                }
                Ok(count) => {
                    connection.readable =
                        connection.hangup || !connection.pipe.drained(count, buffer.len());
                    connection.closing |= !self.hear(token, server, &buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ClosedConnection),
            }
        }
    }

    /// Takes bytes and deals with the requests in them; false if they are no HTTP/2.
    fn hear(&mut self, token: u64, server: &mut Http2Server, mut bytes: &[u8]) -> bool {
        loop {
            match server.next(&mut bytes) {
                Ok(None) => return true,
                Ok(Some(RequestProgress::Head(lane))) => self.head(server, lane),
                Ok(Some(RequestProgress::Piece(lane) | RequestProgress::Whole(lane))) => {
                    self.whole(token, server, lane);
                }
                Err(_) => {
                    server.go_away(true);
                    return false;
                }
            }
        }
    }

    /// A request's head has come: decides the answer, and if the answer needs the body.
    fn head(&mut self, server: &mut Http2Server, lane: usize) {
        let calls = self.calls.is_some();
        let stream = server.stream(lane);
        if !stream.arguments.is_empty() {
            let mark = if stream.target.contains(&b'?') {
                b'&'
            } else {
                b'?'
            };
            stream.target.push(mark);
            let arguments = std::mem::take(&mut stream.arguments);
            stream.target.extend_from_slice(&arguments);
        }
        let known = stream
            .plan
            .as_ref()
            .is_some_and(|plan| plan.target == stream.target);
        if !known {
            match self.plan(&stream.target) {
                Ok(plan) => stream.plan = Some(plan),
                Err(why) => return refuse(server, lane, &why),
            }
        }
        let echoes = stream.plan.as_ref().is_some_and(|plan| plan.echoes());
        let asked = stream.grpc && path(&stream.target) == grpc::AUTHORIZE.as_bytes();
        let collected = asked || (stream.grpc && grpc::collects(path(&stream.target)));
        let weighed = asked
            && stream
                .plan
                .as_ref()
                .is_some_and(|plan| !plan.deny.is_empty());
        stream.live = stream.grpc && live::speaks(path(&stream.target));
        stream.keep = stream.live || weighed || (echoes && !collected && (!calls || stream.grpc));
    }

    /// The request, or of a live stream a message, is whole: calls, waits or answers.
    fn whole(&mut self, token: u64, server: &mut Http2Server, lane: usize) {
        let id = server.id(lane);
        let stream = server.stream(lane);
        if let Some(calls) = self.calls.as_ref().filter(|_| !stream.grpc) {
            let trace = request::trace_of(&stream.fields);
            let replies = std::sync::Arc::clone(&self.replies);
            return calls.submit(Job {
                token,
                stream: id,
                trace,
                replies,
            });
        }
        let asked = if stream.grpc { asked_delay(stream) } else { 0 };
        match self.due(stream.plan.as_deref(), asked) {
            Some(due) => self.delayed.push(Reverse((due, token, id))),
            None => answer(server, lane),
        }
    }

    /// A stream's answer is due, if it still waits for one.
    pub(super) fn answer_stream(connection: &mut EchoConnection, id: u32) {
        if let Some(server) = &mut connection.http2
            && let Some(lane) = server.find(id)
        {
            answer(server, lane);
        }
    }

    /// The services called for a stream have answered.
    pub(super) fn answer_calls(
        connection: &mut EchoConnection,
        id: u32,
        body: Vec<u8>,
        failed: bool,
    ) {
        let Some(server) = &mut connection.http2 else {
            return;
        };
        let Some(lane) = server.find(id) else { return };
        let stream = server.stream(lane);
        let headers = stream
            .plan
            .as_ref()
            .map(|plan| plan.headers.clone())
            .unwrap_or_default();
        stream.body = body;
        let reply = Reply {
            status: if failed { 502 } else { 200 },
            content_type: "application/json",
            headers: &headers,
            content: ResponseBody::Kept,
            grpc: None,
        };
        server.answer(lane, &reply);
    }
}

/// Writes what is pending; true when nothing is left that could be written now.
fn flush(connection: &mut EchoConnection, server: &mut Http2Server) -> io::Result<bool> {
    while !server.unsent().is_empty() {
        match connection.pipe.write(server.unsent()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => server.wrote(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    connection.pipe.flush()
}

fn refuse(server: &mut Http2Server, lane: usize, why: &str) {
    let stream = server.stream(lane);
    if stream.grpc {
        return end_call(server, lane, INVALID_ARGUMENT, why);
    }
    stream.body = format!("{why}\n").into_bytes();
    let reply = Reply {
        status: 400,
        content_type: "text/plain",
        content: ResponseBody::Kept,
        ..Reply::default()
    };
    server.answer(lane, &reply);
}

/// Answers a gRPC call with its trailers alone.
fn end_call(server: &mut Http2Server, lane: usize, status: u16, why: &str) {
    let reply = Reply {
        status: 200,
        content_type: "application/grpc",
        grpc: Some((status, why)),
        ..Reply::default()
    };
    server.answer(lane, &reply);
}

/// The delay that Fortio's ping asks for in its message, in nanoseconds.
fn asked_delay(stream: &ServerStream) -> u64 {
    let message = stream.body.get(grpc::PREFIX_BYTES..);
    if !path(&stream.target).ends_with(grpc::FORTIO_PING.as_bytes()) {
        return 0;
    }
    message
        .and_then(|message| grpc::varint(message, 4))
        .unwrap_or(0)
}

fn path(target: &[u8]) -> &[u8] {
    target
        .split(|byte| *byte == b'?')
        .next()
        .unwrap_or_default()
}

fn answer(server: &mut Http2Server, lane: usize) {
    let stream = server.stream(lane);
    let Some(plan) = stream.plan.clone() else {
        return;
    };
    if stream.live {
        return live::answer(server, lane, &plan);
    }
    if stream.grpc {
        return answer_call(server, lane, &plan);
    }
    if plan.debug {
        let (method, target) = (
            String::from_utf8_lossy(&stream.method),
            String::from_utf8_lossy(&stream.target),
        );
        let (fields, length) = (&stream.fields, stream.length);
        stream.body =
            format!("{method} {target} HTTP/2\n{fields}\nbody: {length} bytes\n").into_bytes();
    }
    let size = plan.size.pick(fastrand::f64).filter(|_| !plan.debug);
    let mut headers = std::borrow::Cow::Borrowed(plan.headers.as_str());
    let mut content = size.map_or(ResponseBody::Kept, ResponseBody::Pattern);
    if stream.gzip && plan.gzip.pick(fastrand::f64) {
        stream.body = match size {
            Some(size) => gzip(std::iter::repeat_n(b'v', size)),
            None => gzip(stream.body.iter().copied()),
        };
        content = ResponseBody::Kept;
        headers += "Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n";
    }
    let kind = std::mem::take(&mut stream.kind);
    let own = size.is_some() || plan.debug || kind.is_empty();
    let reply = Reply {
        status: plan.status.pick(fastrand::f64),
        content_type: plan
            .kind
            .as_deref()
            .or(std::str::from_utf8(&kind).ok().filter(|_| !own))
            .unwrap_or("text/plain"),
        headers: &headers,
        content,
        grpc: None,
    };
    server.answer(lane, &reply);
    // Kept for its memory.
    server.stream(lane).kind = kind;
}

fn answer_call(server: &mut Http2Server, lane: usize, plan: &ResponsePlan) {
    let stream = server.stream(lane);
    let failing = plan.grpc_status.pick(fastrand::f64);
    let status = plan.status.pick(fastrand::f64);
    if status != 200 {
        // As a proxy would answer that has nobody to ask.
        let reply = Reply {
            status,
            headers: &plan.headers,
            ..Reply::default()
        };
        return server.answer(lane, &reply);
    }
    let collected = grpc::collects(path(&stream.target));
    let refusal = if failing != 0 {
        Some((failing, "as asked for"))
    } else if path(&stream.target) == grpc::AUTHORIZE.as_bytes() {
        let word = if denies(&plan.deny, &stream.body) {
            grpc::DENIED
        } else {
            &[]
        };
        stream.body.clear();
        grpc::put_message(&mut stream.body, word);
        None
    } else if collected {
        stream.body.clear();
        grpc::put_message(&mut stream.body, &[]);
        None
    } else if path(&stream.target) != grpc::ECHO_COLLECT.as_bytes() && !stream.messages.one() {
        Some((INTERNAL, "expected exactly one message"))
    } else if stream.body.first() == Some(&1) {
        Some((UNIMPLEMENTED, "compressed messages are not served"))
    } else {
        reply_message(stream, plan)
            .err()
            .map(|why| (UNIMPLEMENTED, why))
    };
    if let Some((code, why)) = refusal {
        return end_call(server, lane, code, why);
    }
    let reply = Reply {
        status: 200,
        content_type: "application/grpc",
        headers: &plan.headers,
        content: ResponseBody::Kept,
        grpc: Some((0, "")),
    };
    server.answer(lane, &reply);
}

/// Reports if an external authorizer that denies these paths denies the request in question.
fn denies(paths: &[String], body: &[u8]) -> bool {
    let message = body.get(grpc::PREFIX_BYTES..).unwrap_or_default();
    let asked = grpc::path_in_question(message);
    asked.is_some_and(|asked| paths.iter().any(|path| asked.starts_with(path.as_bytes())))
}

/// Turns the request's message into the answer's, in place.
fn reply_message(stream: &mut ServerStream, plan: &ResponsePlan) -> Result<(), &'static str> {
    let path = path(&stream.target);
    if path == grpc::HEALTH_CHECK.as_bytes() {
        stream.body.clear();
        grpc::put_message(&mut stream.body, SERVING);
    } else if path == grpc::ECHO_UNARY.as_bytes() {
        if let Some(size) = plan.size.pick(fastrand::f64) {
            let payload = vec![b'v'; size.min(super::MAX_MESSAGE_BYTES)];
            stream.body.clear();
            grpc::put_message(&mut stream.body, &grpc::message(grpc::ECHO_UNARY, &payload));
        }
    } else if path == grpc::ECHO_COLLECT.as_bytes() {
        let last = grpc::last_message(&stream.body);
        stream.body.drain(..last);
    } else if path == grpc::ECHO_REPEAT.as_bytes() {
        let times = plan.messages as usize;
        if stream.body.len().saturating_mul(times) > MAX_REPEATED_BYTES {
            return Err("more than 64 MiB to repeat");
        }
        stream.body = stream.body.repeat(times);
    } else if path == grpc::FORTIO_PING.as_bytes() {
        let mut message = stream
            .body
            .split_off(grpc::PREFIX_BYTES.min(stream.body.len()));
        // Of a field that occurs twice, the last one counts.
        grpc::put_number(&mut message, 2, unix_now());
        stream.body.clear();
        grpc::put_message(&mut stream.body, &message);
    } else {
        return Err("unknown method");
    }
    Ok(())
}
