//! One generator thread: a share of the connections, a share of the schedule, one epoll, one absolute timer.
//!
//! ```text
//! timer or response ─▶ pump: while a request is due and a connection is free, send it
//!                      (a due request without a free connection stays in the schedule, and its clock runs)
//! ```
//!
//! This file keeps time; `sockets` moves bytes.

mod sockets;

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{MILLISECOND, SECOND, Timer, now, sharpen_timers, thread_cpu};
use crate::options::LoadOptions;
use crate::poll::Poll;
use crate::response::{Reader, Response};
use crate::samples::Samples;
use crate::schedule::{Arrival, Schedule};
use crate::stop::Stop;
use crate::tally::{Finished, Outcome, Tally};

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
    Open,
    /// A connection attempt failed; not to be tried before that instant.
    Paused(u64),
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    intended: u64,
    sent: u64,
}

#[derive(Debug)]
struct Connection {
    stream: Option<TcpStream>,
    state: State,
    /// Tells events of this socket from those of its predecessors.
    generation: u32,
    reader: Reader,
    request: Option<InFlight>,
    written: usize,
    free_since: u64,
    opened: u64,
    hangup: bool,
}

#[derive(Debug)]
enum Pacing {
    Shared(Schedule),
    PerConnection { schedules: Vec<Schedule>, due: u64 },
    Closed,
}

/// A generator thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    options: Arc<LoadOptions>,
    index: usize,
    request: Vec<u8>,
    connections: Vec<Connection>,
    /// Connections without a request, the longest free first: load is spread evenly, as users of a pool are.
    free: VecDeque<usize>,
    /// A connection became free since the last pump: when.
    freed: Option<u64>,
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
        let head_request = options.method == "HEAD";
        let connection = |_| Connection {
            stream: None,
            state: State::Down,
            generation: 0,
            reader: Reader::new(head_request),
            request: None,
            written: 0,
            free_since: 0,
            opened: 0,
            hangup: false,
        };
        Ok(Self {
            request: options.request(),
            connections: (0..share).map(connection).collect(),
            free: VecDeque::with_capacity(share),
            freed: None,
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
            options,
            index,
        })
    }

    /// Opens all connections and waits until each is open or has failed (failed ones are tried again by the
    /// requests that need them).
    pub(crate) fn prepare(&mut self, stop: &Stop) -> io::Result<()> {
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
            .any(|connection| connection.state == State::Connecting)
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
            self.free.push_back(index);
        }
        Ok(())
    }

    /// Runs the schedule and returns what was counted.
    pub(crate) fn run(mut self, timeline: Timeline, stop: &Stop) -> io::Result<Tally> {
        self.timeline = timeline;
        self.tally = Tally::new(timeline.measure, timeline.end);
        self.pacing = self.pacing_of(timeline);
        loop {
            let mut at = now();
            if stop.raised() {
                self.end_early(at);
            }
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
            for event in 0..self.poll.wait()? {
                let ready = self.poll.event(event);
                match ready.token {
                    TIMER => {
                        self.timer.fired();
                        self.pump(now());
                    }
                    STOP => stop.seen(),
                    _ => {
                        self.on_ready(ready);
                        if let Some(at) = self.freed.take() {
                            self.pump(at);
                        }
                    }
                }
            }
        }
        self.close_books(now());
        Ok(self.tally)
    }

    fn pacing_of(&self, timeline: Timeline) -> Pacing {
        let Timeline { start, end, .. } = timeline;
        let (rate, threads, index) = (self.options.rate, self.options.threads, self.index as u64);
        if rate <= 0.0 {
            return Pacing::Closed;
        }
        match self.options.arrival {
            Arrival::Uniform => {
                Pacing::Shared(Schedule::even(start, end, rate, index, threads as u64))
            }
            Arrival::Poisson => {
                // Each thread its share, by its own seed: the sum of Poisson processes is one.
                let share = rate * self.connections.len() as f64 / self.options.connections as f64;
                let seed = self
                    .options
                    .seed
                    .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                Pacing::Shared(Schedule::poisson(start, end, share, seed))
            }
            Arrival::Fortio => {
                let each = Schedule::even(start, end, rate / self.options.connections as f64, 0, 1);
                let schedules = vec![each; self.connections.len()];
                Pacing::PerConnection {
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
            Pacing::PerConnection { schedules, .. } => {
                for each in schedules {
                    each.cut(end);
                }
            }
            Pacing::Closed => {}
        }
    }

    /// Sends what is due as far as connections are free; returns the time it then is.
    fn pump(&mut self, mut at: u64) -> u64 {
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
                Pacing::PerConnection { schedules, due } => {
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

    /// Begins a request on a free connection; returns when.
    fn start(&mut self, index: usize, intended: u64) -> u64 {
        let sent = now();
        if self.connections[index].free_since <= intended && intended >= self.timeline.measure {
            self.tally.lateness.record(sent.saturating_sub(intended));
        }
        self.connections[index].request = Some(InFlight { intended, sent });
        self.connections[index].written = 0;
        self.in_flight += 1;
        self.next_scan = self.next_scan.min(sent + self.timeout);
        match self.connections[index].state {
            State::Open => self.write(index),
            State::Down | State::Connecting | State::Paused(_) => {
                if self.connect(index).is_err() {
                    self.fail(index, Outcome::Connect);
                }
            }
        }
        sent
    }

    /// Counts the request of a connection and lets the connection take another.
    fn finish(&mut self, index: usize, outcome: Outcome, response: Option<Response>) {
        let done = now();
        let connection = &mut self.connections[index];
        let Some(request) = connection.request.take() else {
            return;
        };
        connection.free_since = done;
        self.in_flight -= 1;
        self.tally.finish(Finished {
            intended: request.intended,
            sent: Some(request.sent),
            done,
            outcome,
            status: response.map(|response| response.status),
            body: response.map_or(0, |response| response.body),
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
        if !matches!(connection.state, State::Paused(_)) {
            self.release(index);
            self.freed = Some(done);
        }
    }

    fn release(&mut self, index: usize) {
        self.free.push_back(index);
        if let Pacing::PerConnection { schedules, due } = &mut self.pacing {
            *due = (*due).min(schedules[index].peek().unwrap_or(u64::MAX));
        }
    }

    /// Times requests out and lets rested connections be tried again.
    fn scan(&mut self, at: u64) {
        let mut next = at + self.timeout;
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if let Some(request) = connection.request {
                let deadline = request.sent + self.timeout;
                if deadline <= at {
                    self.fail(index, Outcome::Timeout);
                } else {
                    next = next.min(deadline);
                }
            } else if let State::Paused(until) = connection.state {
                if until <= at {
                    connection.state = State::Down;
                    connection.free_since = at;
                    self.paused -= 1;
                    self.release(index);
                } else {
                    next = next.min(until);
                }
            }
        }
        self.next_scan = next.max(at + SCAN_NS);
    }

    fn backlog(&self) -> bool {
        match &self.pacing {
            Pacing::Shared(schedule) => schedule.peek().is_some(),
            Pacing::PerConnection { schedules, .. } => {
                schedules.iter().any(|each| each.peek().is_some())
            }
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
            Pacing::PerConnection { due, .. } => Some(*due),
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
        for connection in &mut self.connections {
            if let Some(request) = connection.request.take() {
                self.tally.finish(Finished {
                    intended: request.intended,
                    sent: Some(request.sent),
                    done: at,
                    outcome: Outcome::Unanswered,
                    status: None,
                    body: 0,
                });
            }
        }
        let schedules = match &mut self.pacing {
            Pacing::Shared(schedule) => std::slice::from_mut(schedule),
            Pacing::PerConnection { schedules, .. } => schedules.as_mut_slice(),
            Pacing::Closed => &mut [],
        };
        for intended in schedules.iter_mut().flatten() {
            let outcome = Outcome::Unsent;
            self.tally.finish(Finished {
                intended,
                sent: None,
                done: at,
                outcome,
                status: None,
                body: 0,
            });
        }
        let cpu = thread_cpu();
        self.tally.cpu_ns = cpu - self.cpu_from.unwrap_or(cpu);
        self.tally.end = self.timeline.end;
    }
}
