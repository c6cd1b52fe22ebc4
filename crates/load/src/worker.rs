//! One generator thread: a share of the connections, a share of the schedule, one epoll, one absolute timer.
//!
//! ```text
//! timer or response ─▶ pump: while a request is due and a connection is free, send it
//!                      (a due request without a free connection stays in the schedule, and its clock runs)
//! ```
//!
//! A lane is room for one request in flight: a connection, or one of the streams of an HTTP/2 connection. This file
//! keeps time and lanes; `sockets` moves bytes; `wire` knows what they mean.

mod channel;
mod sockets;

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConnection;

use crate::clock::{MILLISECOND, SECOND, Timer, now, sharpen_timers, thread_cpu};
use crate::options::LoadOptions;
use crate::poll::Poll;
use crate::samples::Samples;
use crate::schedule::{Arrival, Schedule, Spread};
use crate::stop::Stop;
use crate::tally::{Finished, Outcome, Tally};
use crate::threads::Generator;
use crate::wire::{Answer, Event, Wire, wire};

/// One read of a response: a 64 KiB socket buffer's worth.
const BUFFER_BYTES: usize = 64 * 1024;
/// After the last scheduled instant, how long answers (and requests that still wait) are waited for.
const DRAIN_NS: u64 = SECOND;
/// Deadlines are looked at no more often than this: a timeout may come this much late, a scan costs little.
const SCAN_NS: u64 = MILLISECOND;

const TIMER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// The instants that all threads of a run share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeline {
    /// The first request may be sent.
    pub(crate) start: u64,
    /// Requests due from here on are counted.
    pub(crate) measure: u64,
    /// No request is due from here on.
    pub(crate) end: u64,
}

/// What the live line shows: all since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) ok: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Samples,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No socket; the next request connects.
    Down,
    Connecting,
    /// TLS is being agreed.
    Handshaking,
    /// The protocol is being agreed.
    Greeting,
    Open,
    /// A connection attempt failed; not to be tried before that instant.
    Paused(u64),
}

impl State {
    fn on_its_way(self) -> bool {
        matches!(self, Self::Connecting | Self::Handshaking | Self::Greeting)
    }
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    intended: u64,
    sent: u64,
    first: Option<u64>,
}

#[derive(Debug)]
struct Connection {
    stream: Option<TcpStream>,
    state: State,
    /// Tells events of this socket from those of its predecessors.
    generation: u32,
    wire: Box<dyn Wire>,
    tls: Option<Box<ClientConnection>>,
    /// When connecting began, and then when the handshake did.
    since: u64,
    hangup: bool,
    /// Has something to be written at the end of this turn.
    dirty: bool,
}

/// Room for one request in flight.
#[derive(Debug, Default)]
struct Lane {
    request: Option<InFlight>,
    free_since: u64,
}

#[derive(Debug)]
enum Pacing {
    Shared(Schedule),
    PerLane { schedules: Vec<Schedule>, due: u64 },
    Closed,
}

/// A generator thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    options: Arc<LoadOptions>,
    index: usize,
    connections: Vec<Connection>,
    /// Lanes of each connection.
    streams: usize,
    /// The lanes of connection c are those from c × streams.
    lanes: Vec<Lane>,
    /// Lanes without a request, the longest free first: load is spread evenly, as users of a pool are.
    free: VecDeque<usize>,
    /// A lane became free since the last pump: when.
    freed: Option<u64>,
    /// Connections with something to be written at the end of this turn.
    dirty: Vec<usize>,
    /// Connections that had more to be read than one turn allows.
    unread: Vec<usize>,
    /// What came of a read, until it is dealt with; kept for its memory.
    events: Vec<Event>,
    in_flight: usize,
    paused: usize,
    poll: Poll,
    timer: Timer,
    next_scan: u64,
    timeout: u64,
    pacing: Pacing,
    timeline: Timeline,
    tally: Tally,
    cpu_from: Option<u64>,
    live: Option<Arc<Mutex<Live>>>,
    buffer: Box<[u8]>,
    /// What TLS makes of it; empty without TLS.
    plain: Box<[u8]>,
    /// Of all connections, those before the start too.
    connecting: Samples,
    handshake: Samples,
    agreed: Option<String>,
}

impl Worker {
    /// A thread's share of the run: `index` of `options.threads`.
    pub(crate) fn new(
        options: Arc<LoadOptions>,
        index: usize,
        live: Option<Arc<Mutex<Live>>>,
    ) -> io::Result<Self> {
        let share = (index..options.connections)
            .step_by(options.threads)
            .count();
        let requests = options.requests();
        let connection = |_| Connection {
            stream: None,
            state: State::Down,
            generation: 0,
            wire: wire(&options, &requests),
            tls: None,
            since: 0,
            hangup: false,
            dirty: false,
        };
        let lanes = share * options.streams;
        Ok(Self {
            connections: (0..share).map(connection).collect(),
            streams: options.streams,
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            free: VecDeque::with_capacity(lanes),
            freed: None,
            dirty: Vec::new(),
            unread: Vec::new(),
            events: Vec::new(),
            in_flight: 0,
            paused: 0,
            poll: Poll::new()?,
            timer: Timer::new()?,
            next_scan: u64::MAX,
            timeout: u64::try_from(options.timeout.as_nanos())
                .unwrap_or(u64::MAX / 4)
                .min(u64::MAX / 4),
            pacing: Pacing::Closed,
            timeline: Timeline {
                start: 0,
                measure: 0,
                end: 0,
            },
            tally: Tally::new(0, 0),
            cpu_from: None,
            live,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            plain: vec![
                0;
                if options.tls.is_some() {
                    BUFFER_BYTES
                } else {
                    0
                }
            ]
            .into_boxed_slice(),
            connecting: Samples::new(),
            handshake: Samples::new(),
            agreed: None,
            options,
            index,
        })
    }
}

impl Generator for Worker {
    type Count = Tally;

    /// Opens all connections and waits until each is open or has failed (failed ones are tried again by the
    /// requests that need them).
    fn prepare(&mut self, stop: &Stop) -> io::Result<()> {
        sharpen_timers();
        self.poll.add_timer(&self.timer, TIMER)?;
        self.poll.add_level(stop.fd(), STOP)?;
        let deadline = now() + self.timeout;
        if self.options.keepalive {
            for index in 0..self.connections.len() {
                // A failure leaves the connection down; the request that next takes it reports it.
                let _ = self.connect(index);
            }
        }
        while self
            .connections
            .iter()
            .any(|connection| connection.state.on_its_way())
            && now() < deadline
            && !stop.raised()
        {
            self.timer.set(Some(deadline))?;
            for event in 0..self.poll.wait()? {
                let ready = self.poll.event(event);
                match ready.token {
                    TIMER => self.timer.fired(),
                    STOP => stop.seen(),
                    _ => self.on_ready(ready),
                }
            }
        }
        for index in 0..self.connections.len() {
            if self.connections[index].state != State::Open {
                self.close(index);
            }
        }
        // First one lane of each connection, then another: the load is spread over connections before streams.
        for stream in 0..self.streams {
            let lanes = (0..self.connections.len()).map(|index| index * self.streams + stream);
            self.free.extend(lanes);
        }
        Ok(())
    }

    /// Runs the schedule and returns what was counted.
    fn run(mut self, timeline: Timeline, stop: &Stop) -> io::Result<Tally> {
        self.timeline = timeline;
        self.tally = Tally::new(timeline.measure, timeline.end);
        self.pacing = self.pacing_of(timeline);
        loop {
            let mut at = now();
            if stop.raised() {
                self.end_early(at);
            }
            self.read_on();
            at = self.pump(at);
            if at >= self.next_scan {
                self.scan(at);
                at = self.pump(at);
            }
            if self.finished(at) {
                break;
            }
            let wake = self.wake_at(at);
            self.timer.set(Some(wake))?;
            for event in 0..self.poll.wait_unless(!self.unread.is_empty())? {
                let ready = self.poll.event(event);
                match ready.token {
                    TIMER => {
                        self.timer.fired();
                        self.pump(now());
                    }
                    STOP => stop.seen(),
                    _ => {
                        self.on_ready(ready);
                        match self.freed.take() {
                            Some(at) => drop(self.pump(at)),
                            None => self.flush(),
                        }
                    }
                }
            }
        }
        self.close_books(now());
        self.tally.connecting = self.connecting;
        self.tally.handshake = self.handshake;
        self.tally.agreed = self.agreed;
        Ok(self.tally)
    }
}

impl Worker {
    fn pacing_of(&self, timeline: Timeline) -> Pacing {
        let Timeline { start, end, .. } = timeline;
        let (rate, threads, index) = (self.options.rate, self.options.threads, self.index as u64);
        if rate <= 0.0 {
            return Pacing::Closed;
        }
        let stride = threads as u64;
        if let Some(instants) = &self.options.replay {
            let instants = Arc::clone(instants);
            return Pacing::Shared(Schedule::trace(start, end, instants, index, stride));
        }
        let shaped = |spread| {
            let (profile, burst) = (self.options.profile(), self.options.burst);
            Pacing::Shared(Schedule::shaped(start, end, profile, spread, burst))
        };
        match self.options.arrival {
            Arrival::Uniform => shaped(Spread::Even {
                offset: index,
                stride,
            }),
            Arrival::Poisson => {
                // Each thread its share, by its own seed: the sum of Poisson processes is one.
                let share = self.connections.len() as f64 / self.options.connections as f64;
                let seed = self
                    .options
                    .seed
                    .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                shaped(Spread::Random { share, seed })
            }
            Arrival::Fortio => {
                let lanes = self.options.connections * self.streams;
                let each = Schedule::even(start, end, rate / lanes as f64, 0, 1);
                let schedules = vec![each; self.lanes.len()];
                Pacing::PerLane {
                    schedules,
                    due: start,
                }
            }
        }
    }

    fn begin_measuring(&mut self) {
        self.cpu_from = Some(thread_cpu());
        self.tally.bytes_sent = 0;
        self.tally.bytes_received = 0;
        self.tally.connects = 0;
    }

    /// Somebody asked to stop: nothing more is due, and nothing is waited for.
    fn end_early(&mut self, at: u64) {
        let end = self.timeline.end.min(at);
        self.timeline.end = end;
        match &mut self.pacing {
            Pacing::Shared(schedule) => schedule.cut(end),
            Pacing::PerLane { schedules, .. } => {
                for each in schedules {
                    each.cut(end);
                }
            }
            Pacing::Closed => {}
        }
    }

    /// Sends what is due as far as lanes are free; returns the time it then is.
    fn pump(&mut self, at: u64) -> u64 {
        let at = self.start_due(at);
        self.flush();
        at
    }

    fn start_due(&mut self, mut at: u64) -> u64 {
        if self.cpu_from.is_none() && at >= self.timeline.measure {
            self.begin_measuring();
        }
        loop {
            let (index, intended) = match &mut self.pacing {
                Pacing::Shared(schedule) => {
                    let Some(intended) = schedule.peek().filter(|due| *due <= at) else {
                        return at;
                    };
                    let Some(index) = self.free.pop_front() else {
                        return at;
                    };
                    schedule.advance();
                    (index, intended)
                }
                Pacing::PerLane { schedules, due } => {
                    if at < *due {
                        return at;
                    }
                    let ready =
                        |index: &usize| schedules[*index].peek().is_some_and(|due| due <= at);
                    let Some(position) = self.free.iter().position(ready) else {
                        // Those that are free wait for the next tick; the others ask again when they are free.
                        let peeks = self
                            .free
                            .iter()
                            .filter_map(|index| schedules[*index].peek());
                        *due = peeks.min().unwrap_or(u64::MAX);
                        return at;
                    };
                    let Some(index) = self.free.remove(position) else {
                        return at;
                    };
                    let Some(intended) = schedules[index].next() else {
                        return at;
                    };
                    (index, intended)
                }
                Pacing::Closed => {
                    if at < self.timeline.start || at >= self.timeline.end {
                        return at;
                    }
                    let Some(index) = self.free.pop_front() else {
                        return at;
                    };
                    (index, now())
                }
            };
            at = at.max(self.start(index, intended));
        }
    }

    /// Begins a request on a free lane; returns when.
    fn start(&mut self, lane: usize, intended: u64) -> u64 {
        let sent = now();
        if self.lanes[lane].free_since <= intended && intended >= self.timeline.measure {
            self.tally.lateness.record(sent.saturating_sub(intended));
        }
        self.lanes[lane].request = Some(InFlight {
            intended,
            sent,
            first: None,
        });
        self.in_flight += 1;
        self.next_scan = self.next_scan.min(sent + self.timeout);
        let index = lane / self.streams;
        match self.connections[index].state {
            State::Open => self.send(lane),
            // Another lane's request is already connecting; this one goes out with it.
            State::Connecting | State::Handshaking | State::Greeting => {}
            State::Down | State::Paused(_) => {
                if self.connect(index).is_err() {
                    self.fail(index, Outcome::Connect);
                }
            }
        }
        sent
    }

    /// Counts the request of a lane and lets the lane take another.
    fn finish(&mut self, lane: usize, outcome: Outcome, answer: Option<Answer>, done: u64) {
        let Some(request) = self.lanes[lane].request.take() else {
            return;
        };
        self.lanes[lane].free_since = done;
        self.in_flight -= 1;
        self.tally.finish(Finished {
            intended: request.intended,
            sent: Some(request.sent),
            first: request.first,
            done,
            outcome,
            answered: answer.is_some(),
            status: answer.and_then(|answer| answer.status),
            body: answer.map_or(0, |answer| answer.body),
        });
        if let Some(live) = &self.live {
            let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
            live.latency.record(done.saturating_sub(request.intended));
            if outcome == Outcome::Ok {
                live.ok += 1;
            } else {
                live.errors += 1;
            }
        }
        if !matches!(
            self.connections[lane / self.streams].state,
            State::Paused(_)
        ) {
            self.release(lane);
            self.freed = Some(done);
        }
    }

    fn release(&mut self, lane: usize) {
        self.free.push_back(lane);
        if let Pacing::PerLane { schedules, due } = &mut self.pacing {
            *due = (*due).min(schedules[lane].peek().unwrap_or(u64::MAX));
        }
    }

    /// The lanes of a connection.
    fn lanes_of(&self, index: usize) -> std::ops::Range<usize> {
        index * self.streams..(index + 1) * self.streams
    }

    /// Lets a connection rest until then, and no request take a lane of it meanwhile.
    fn pause(&mut self, index: usize, until: u64) {
        self.connections[index].state = State::Paused(until);
        self.paused += 1;
        self.next_scan = self.next_scan.min(until);
        let lanes = self.lanes_of(index);
        self.free.retain(|lane| !lanes.contains(lane));
    }

    /// Times requests out and lets rested connections be tried again.
    fn scan(&mut self, at: u64) {
        let mut next = at + self.timeout;
        for lane in 0..self.lanes.len() {
            let Some(request) = self.lanes[lane].request else {
                continue;
            };
            let deadline = request.sent + self.timeout;
            if deadline <= at {
                self.time_out(lane);
            } else {
                next = next.min(deadline);
            }
        }
        for index in 0..self.connections.len() {
            let State::Paused(until) = self.connections[index].state else {
                continue;
            };
            if until > at {
                next = next.min(until);
                continue;
            }
            self.connections[index].state = State::Down;
            self.paused -= 1;
            for lane in self.lanes_of(index) {
                self.lanes[lane].free_since = at;
                self.release(lane);
            }
        }
        self.next_scan = next.max(at + SCAN_NS);
    }

    fn backlog(&self) -> bool {
        match &self.pacing {
            Pacing::Shared(schedule) => schedule.peek().is_some(),
            Pacing::PerLane { schedules, .. } => schedules.iter().any(|each| each.peek().is_some()),
            Pacing::Closed => false,
        }
    }

    fn finished(&self, at: u64) -> bool {
        at >= self.timeline.end
            && ((self.in_flight == 0 && !self.backlog()) || at >= self.timeline.end + DRAIN_NS)
    }

    fn wake_at(&self, at: u64) -> u64 {
        let due = match &self.pacing {
            _ if self.free.is_empty() => None,
            Pacing::Shared(schedule) => schedule.peek(),
            Pacing::PerLane { due, .. } => Some(*due),
            Pacing::Closed => Some(self.timeline.start).filter(|start| *start > at),
        };
        let end = if at < self.timeline.end {
            self.timeline.end
        } else {
            self.timeline.end + DRAIN_NS
        };
        let scan = if self.in_flight + self.paused > 0 {
            self.next_scan
        } else {
            u64::MAX
        };
        end.min(scan).min(due.unwrap_or(u64::MAX))
    }

    /// Whatever has no answer now is an error, and its age a sample.
    fn close_books(&mut self, at: u64) {
        for lane in &mut self.lanes {
            if let Some(request) = lane.request.take() {
                self.tally.finish(Finished {
                    intended: request.intended,
                    sent: Some(request.sent),
                    first: request.first,
                    done: at,
                    outcome: Outcome::Unanswered,
                    answered: false,
                    status: None,
                    body: 0,
                });
            }
        }
        let schedules = match &mut self.pacing {
            Pacing::Shared(schedule) => std::slice::from_mut(schedule),
            Pacing::PerLane { schedules, .. } => schedules.as_mut_slice(),
            Pacing::Closed => &mut [],
        };
        for intended in schedules.iter_mut().flatten() {
            let outcome = Outcome::Unsent;
            self.tally.finish(Finished {
                intended,
                sent: None,
                first: None,
                done: at,
                outcome,
                answered: false,
                status: None,
                body: 0,
            });
        }
        let cpu = thread_cpu();
        self.tally.cpu_ns = cpu - self.cpu_from.unwrap_or(cpu);
        self.tally.end = self.timeline.end;
    }
}
