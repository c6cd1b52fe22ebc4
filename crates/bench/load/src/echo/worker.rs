//! One thread of the echo server: its connections, the timer of delayed answers, and answers of called services.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, PoisonError};

use crate::accept::Inbox;
use crate::clock::{SECOND, Timer, now, sharpen_timers};
use crate::echo::EchoOptions;
use crate::echo::calls::{Callers, Job, Replies};
use crate::echo::connection::{ConnectionPhase, EchoConnection, KEPT_BYTES, PendingResponse};
use crate::echo::pipe::Pipe;
use crate::echo::plan::{Defaults, MAX_DELAY, ResponsePlan};
use crate::echo::request::{self, RequestRefusal};
use crate::echo::websocket::FrameMeaning;
use crate::http2::{Http2Server, PREFACE};
use crate::poll::{Poll, Readiness};
use crate::stop::Stop;

/// One read: a request head, and most bodies, in one piece.
const BUFFER_BYTES: usize = 64 * 1024;
/// The largest request body that is kept to be echoed.
const MAX_ECHO_BYTES: u64 = 16 * 1024 * 1024;
/// Number of kept plans. A client with ever new targets makes the worker forget plans; memory does not grow.
const MAX_PLANS: usize = 256;
/// Answers that may wait for their time; beyond that they go out at once. A client that resets streams leaves theirs behind.
const MAX_DELAYED: usize = 1_000_000;
/// After a stop, how long requests begun may still be answered.
const DRAIN_NS: u64 = 2 * SECOND;

const INBOX: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
const TIMER: u64 = u64::MAX - 2;
const REPLIES: u64 = u64::MAX - 3;

pub(crate) struct EchoWorker {
    poll: Poll,
    inbox: Arc<Inbox>,
    options: Arc<EchoOptions>,
    defaults: Defaults,
    pub(super) calls: Option<Callers>,
    pub(super) replies: Arc<Replies>,
    connections: Vec<Option<EchoConnection>>,
    free: Vec<usize>,
    generation: u32,
    plans: HashMap<Vec<u8>, Arc<ResponsePlan>>,
    timer: Timer,
    /// When, which connection, and which of its streams (0 for HTTP/1.1).
    pub(super) delayed: BinaryHeap<Reverse<(u64, u64, u32)>>,
    began: u64,
    pub(super) drain_until: Option<u64>,
    buffer: Box<[u8]>,
}

/// A connection that must be closed: it has failed, or is done.
pub(super) struct ClosedConnection;

impl From<io::Error> for ClosedConnection {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl EchoWorker {
    pub(crate) fn new(
        inbox: Arc<Inbox>,
        options: Arc<EchoOptions>,
        calls: Option<Callers>,
        began: u64,
    ) -> io::Result<Self> {
        let headers = options
            .name
            .as_ref()
            .map(|name| format!("x-voile-echo: {name}\r\n"))
            .unwrap_or_default();
        let delay = options.delay.as_nanos() as u64;
        Ok(Self {
            poll: Poll::new()?,
            inbox,
            defaults: Defaults {
                size: options.size,
                delay,
                query: options.query.clone(),
                headers,
            },
            options,
            calls,
            replies: Replies::new()?,
            connections: Vec::new(),
            free: Vec::new(),
            generation: 0,
            plans: HashMap::new(),
            timer: Timer::new()?,
            delayed: BinaryHeap::new(),
            began,
            drain_until: None,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
        })
    }

    pub(crate) fn run(mut self, stop: &Stop) -> io::Result<()> {
        sharpen_timers();
        self.poll.add_level(self.inbox.waker.fd(), INBOX)?;
        self.poll.add_level(stop.fd(), STOP)?;
        self.poll.add_level(self.replies.waker.fd(), REPLIES)?;
        self.poll.add_timer(&self.timer, TIMER)?;
        loop {
            for index in 0..self.poll.wait()? {
                let ready = self.poll.event(index);
                match ready.token {
                    INBOX => self.open_new(),
                    REPLIES => self.take_replies(),
                    TIMER => self.timer.fired(),
                    STOP => {
                        self.poll.remove(stop.fd())?;
                        self.drain();
                    }
                    _ => self.on_ready(ready),
                }
            }
            self.fire()?;
            if let Some(until) = self.drain_until
                && (self.free.len() == self.connections.len() || now() >= until)
            {
                return Ok(());
            }
        }
    }

    fn open_new(&mut self) {
        for (stream, listener) in self.inbox.take() {
            if self.drain_until.is_some() || self.open(stream, listener).is_err() {
                self.inbox.closed();
            }
        }
    }

    fn open(&mut self, stream: TcpStream, listener: usize) -> io::Result<()> {
        let slot = self.free.last().copied().unwrap_or(self.connections.len());
        self.generation = self.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.poll
            .add_stream(&stream, token(slot, self.generation))?;
        if self.free.pop().is_none() {
            self.connections.push(None);
        }
        // Listeners with TLS come after those without.
        let sealed = self
            .options
            .tls
            .as_ref()
            .filter(|_| listener >= self.options.listen.len());
        let pipe = match sealed {
            Some(tls) => Pipe::sealed(stream, &tls.0)?,
            None => Pipe::plain(stream),
        };
        self.connections[slot] = Some(EchoConnection::new(pipe, self.generation));
        Ok(())
    }

    fn close(&mut self, slot: usize) {
        if let Some(mut connection) = self.connections[slot].take() {
            connection.pipe.end();
            self.free.push(slot);
            self.inbox.closed();
        }
    }

    /// Stops taking requests: idle connections are closed at once.
    fn drain(&mut self) {
        self.drain_until = Some(now() + DRAIN_NS);
        for slot in 0..self.connections.len() {
            if self.connections[slot]
                .as_ref()
                .is_some_and(EchoConnection::idle)
            {
                self.close(slot);
                continue;
            }
            let connection = self.connections[slot].as_mut();
            if let Some(server) = connection.and_then(|connection| connection.http2.as_mut()) {
                server.go_away(false);
                if let Some(connection) = self.connections[slot].take() {
                    self.resume(slot, connection);
                }
            }
        }
    }

    fn lookup(&self, token: u64) -> Option<usize> {
        let (slot, generation) = ((token & u64::from(u32::MAX)) as usize, (token >> 32) as u32);
        let connection = self.connections.get(slot)?.as_ref()?;
        (connection.generation == generation).then_some(slot)
    }

    fn on_ready(&mut self, ready: Readiness) {
        let Some(slot) = self.lookup(ready.token) else {
            return;
        };
        let Some(mut connection) = self.connections[slot].take() else {
            return;
        };
        connection.readable |= ready.readable();
        connection.hangup |= ready.hangup();
        self.resume(slot, connection);
    }

    /// Goes on with a connection taken out of its slot, and puts it back unless it is over.
    fn resume(&mut self, slot: usize, mut connection: EchoConnection) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let over = self.drive(slot, &mut connection, &mut buffer).is_err();
        self.buffer = buffer;
        self.connections[slot] = Some(connection);
        if over {
            self.close(slot);
        }
    }

    fn drive(
        &mut self,
        slot: usize,
        connection: &mut EchoConnection,
        buffer: &mut [u8],
    ) -> Result<(), ClosedConnection> {
        loop {
            if connection.http2.is_some() {
                return self.drive_http2(slot, connection, buffer);
            }
            if !connection.flush()?
                || matches!(
                    connection.phase,
                    ConnectionPhase::Waiting | ConnectionPhase::Calling
                )
            {
                return Ok(());
            }
            if connection.closing {
                return Err(ClosedConnection);
            }
            if !connection.input.is_empty() && !connection.starved {
                let mut input = std::mem::take(&mut connection.input);
                let used = self.consume(slot, connection, &input);
                input.drain(..used);
                connection.starved = used == 0;
                connection.input = input;
            } else if connection.readable {
                self.read(slot, connection, buffer)?;
            } else if connection.ended {
                return Err(ClosedConnection);
            } else {
                if connection.input.is_empty() && connection.input.capacity() > KEPT_BYTES {
                    connection.input = Vec::new();
                }
                return Ok(());
            }
        }
    }

    fn read(
        &mut self,
        slot: usize,
        connection: &mut EchoConnection,
        buffer: &mut [u8],
    ) -> Result<(), ClosedConnection> {
        match connection.pipe.read(buffer) {
            Ok(0) => {
                connection.ended = true;
                connection.readable = false;
            }
            Ok(count) => {
                connection.readable =
                    connection.hangup || !connection.pipe.drained(count, buffer.len());
                connection.starved = false;
                let used = match connection.input.is_empty() {
                    true => self.consume(slot, connection, &buffer[..count]),
                    false => 0,
                };
                connection.input.extend_from_slice(&buffer[used..count]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(ClosedConnection),
        }
        Ok(())
    }

    /// Uses bytes of at most one request; none when a head is not all there.
    fn consume(&mut self, slot: usize, connection: &mut EchoConnection, bytes: &[u8]) -> usize {
        let mut used = 0;
        if connection.websocket.is_some() {
            return self.frame(slot, connection, bytes);
        }
        if connection.fresh {
            if bytes.starts_with(PREFACE) {
                connection.http2 = Some(Box::new(Http2Server::new(self.calls.is_some())));
                return PREFACE.len();
            }
            if PREFACE.starts_with(bytes) {
                return 0;
            }
            connection.fresh = false;
        }
        if connection.phase == ConnectionPhase::Head {
            match self.begin(connection, bytes) {
                Ok(None) => return 0,
                Ok(Some(length)) => used = length,
                Err(RequestRefusal(status, reason)) => {
                    connection.refuse(status, reason);
                    return bytes.len();
                }
            }
            if connection.closing {
                return bytes.len();
            }
            if connection.websocket.is_some() {
                return used;
            }
        }
        let EchoConnection { body, request, .. } = connection;
        // Without a size asked for, the answer is the request's body.
        let keep =
            self.calls.is_none() && connection.plan.as_ref().is_some_and(|plan| plan.echoes());
        let fed = body.feed(&bytes[used..], &mut |part: &[u8]| {
            request.length += part.len() as u64;
            if keep && request.length <= MAX_ECHO_BYTES {
                request.echo.extend_from_slice(part);
            }
        });
        match fed {
            Ok(count) => used += count,
            Err(_) => {
                connection.refuse(400, "malformed chunked body");
                return bytes.len();
            }
        }
        if keep && connection.request.length > MAX_ECHO_BYTES {
            connection.refuse(
                413,
                "body larger than 16 MiB cannot be echoed; ask for a size",
            );
            return bytes.len();
        }
        if connection.body.whole() {
            self.respond(slot, connection);
        } else {
            connection.phase = ConnectionPhase::Body;
        }
        used
    }

    /// Begins a request from its head; returns the head's length.
    fn begin(
        &mut self,
        connection: &mut EchoConnection,
        bytes: &[u8],
    ) -> Result<Option<usize>, RequestRefusal> {
        let known = &connection.known;
        if let Some(framing) = known.framing
            && bytes.starts_with(&known.bytes)
        {
            // A head ends with an empty line, so one that begins with a known head is that head.
            let (head_only, http11, gzip) = (known.head_only, known.http11, known.gzip);
            let length = known.bytes.len();
            connection.begin_request(PendingResponse {
                head_only,
                http11,
                close: framing.close,
                gzip,
                ..PendingResponse::default()
            });
            connection.begin_body(framing);
            return Ok(Some(length));
        }
        let Some(head) = request::parse(bytes, self.calls.is_some())? else {
            return Ok(None);
        };
        let known = connection
            .plan
            .as_ref()
            .is_some_and(|plan| plan.target == head.target.as_bytes());
        if !known {
            match self.plan(head.target.as_bytes()) {
                Ok(plan) => connection.plan = Some(plan),
                Err(why) => {
                    connection.refuse(400, &why);
                    return Ok(Some(head.length));
                }
            }
        }
        if let Some(key) = head.websocket {
            connection.upgrade(key);
            return Ok(Some(head.length));
        }
        connection.remember(&head, &bytes[..head.length]);
        connection.begin_request(PendingResponse {
            head_only: head.method == "HEAD",
            http11: head.http11,
            close: head.framing.close,
            gzip: head.gzip,
            kind: head.kind.unwrap_or_default().to_owned(),
            trace: head.trace,
            description: head.description,
            ..PendingResponse::default()
        });
        connection.begin_body(head.framing);
        if head.expects_continue && !connection.body.whole() && bytes.len() == head.length {
            connection.invite_body();
        }
        Ok(Some(head.length))
    }

    /// Uses a frame of WebSocket.
    fn frame(&mut self, slot: usize, connection: &mut EchoConnection, bytes: &[u8]) -> usize {
        let (used, heard) = connection.frame(bytes);
        match heard {
            FrameMeaning::Nothing => {}
            FrameMeaning::Over => connection.closing = true,
            FrameMeaning::Message => self.schedule(slot, connection),
        }
        used
    }

    pub(super) fn plan(&mut self, target: &[u8]) -> Result<Arc<ResponsePlan>, String> {
        if let Some(plan) = self.plans.get(target) {
            return Ok(Arc::clone(plan));
        }
        let mut plan = ResponsePlan::of(target, &self.defaults)?;
        plan.fix();
        if self.plans.len() >= MAX_PLANS {
            self.plans.clear();
        }
        let plan = Arc::new(plan);
        self.plans.insert(target.to_vec(), Arc::clone(&plan));
        Ok(plan)
    }

    /// The request is whole: calls, waits or answers.
    fn respond(&mut self, slot: usize, connection: &mut EchoConnection) {
        if let Some(calls) = &self.calls {
            connection.phase = ConnectionPhase::Calling;
            let trace = std::mem::take(&mut connection.request.trace);
            let token = token(slot, connection.generation);
            calls.submit(Job {
                token,
                stream: 0,
                trace,
                replies: Arc::clone(&self.replies),
            });
            return;
        }
        let Some(plan) = &connection.plan else { return };
        if plan.debug {
            let request = &mut connection.request;
            request.echo =
                format!("{}\nbody: {} bytes\n", request.description, request.length).into_bytes();
        }
        self.schedule(slot, connection);
    }

    /// Answers now, or when delay and stall allow.
    fn schedule(&mut self, slot: usize, connection: &mut EchoConnection) {
        if self.options.log.is_some() {
            connection.arrived = now();
        }
        if let Some(due) = self.due(connection.plan.as_deref(), 0) {
            connection.phase = ConnectionPhase::Waiting;
            let token = token(slot, connection.generation);
            self.delayed.push(Reverse((due, token, 0)));
            return;
        }
        self.answer(connection);
    }

    fn answer(&self, connection: &mut EchoConnection) {
        if let Some(log) = &self.options.log {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push((connection.arrived, now()));
        }
        connection.answer(self.drain_until.is_some());
    }

    /// When an answer may go out, if that is not now; `least` is a delay that the request itself asks for.
    pub(super) fn due(&self, plan: Option<&ResponsePlan>, least: u64) -> Option<u64> {
        let waiting = self.delayed.len() as u64 + 1;
        let delay = plan
            .map_or(0, |plan| {
                let loaded = plan.delay_per_request.saturating_mul(waiting);
                plan.delay
                    .pick(fastrand::f64)
                    .saturating_add(loaded)
                    .min(MAX_DELAY)
            })
            .max(least.min(MAX_DELAY));
        let full = self.delayed.len() >= MAX_DELAYED;
        if full || (delay == 0 && self.options.stall.is_none()) {
            return None;
        }
        let at = now();
        let due = at + delay;
        let release = |stall: super::Stall| self.began + stall.release(due - self.began);
        let due = self.options.stall.map_or(due, release);
        (due > at).then_some(due)
    }

    /// Answers all requests that are due and arms the timer for the rest.
    fn fire(&mut self) -> io::Result<()> {
        while let Some(Reverse((due, token, stream))) = self.delayed.peek().copied() {
            if due > now() {
                break;
            }
            self.delayed.pop();
            let Some(slot) = self.lookup(token) else {
                continue;
            };
            if let Some(mut connection) = self.connections[slot].take() {
                match stream {
                    0 => self.answer(&mut connection),
                    stream => Self::answer_stream(&mut connection, stream),
                }
                self.resume(slot, connection);
            }
        }
        let due = self.delayed.peek().map(|Reverse((due, _, _))| *due);
        let next = match (due, self.drain_until) {
            (Some(due), Some(until)) => Some(due.min(until)),
            (due, until) => due.or(until),
        };
        // A disarmed timer that still runs only wakes us once for nothing, and saves a call per answer.
        if next.is_some() {
            self.timer.set(next)
        } else {
            Ok(())
        }
    }

    fn take_replies(&mut self) {
        for reply in self.replies.take() {
            let Some(slot) = self.lookup(reply.token) else {
                continue;
            };
            let Some(mut connection) = self.connections[slot].take() else {
                continue;
            };
            if reply.stream != 0 {
                Self::answer_calls(&mut connection, reply.stream, reply.body, reply.failed);
                self.resume(slot, connection);
                continue;
            }
            connection.request.status = reply.failed.then_some(502);
            connection.request.echo = reply.body;
            connection.request.json = true;
            self.schedule(slot, &mut connection);
            self.resume(slot, connection);
        }
    }
}

pub(super) fn token(slot: usize, generation: u32) -> u64 {
    slot as u64 | u64::from(generation) << 32
}
