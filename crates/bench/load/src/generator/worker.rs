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
mod group;
mod sockets;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConnection;
use socket2::Socket;

use group::{ConnectionGroup, Pacing};

use crate::clock::{MILLISECOND, SECOND, Timer, now, sharpen_timers, thread_cpu};
use crate::options::{LoadOptions, LoadProtocol};
use crate::poll::Poll;
use crate::samples::Samples;
use crate::schedule::{ArrivalPattern, Schedule, Spread};
use crate::stop::Stop;
use crate::tally::{FinishedRequest, FirstAnswer, OfTarget, RequestOutcome, RunTally};
use crate::threads::Generator;
use crate::wire::of_protocol::wire;
use crate::wire::{HttpResponse, Wire, WireEvent};

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

/// Figures of the live line: everything since the previous line; latencies of what was answered as expected.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) ok: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Samples,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneState {
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

impl LaneState {
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
struct LoadConnection {
    stream: Option<Socket>,
    /// Each read and each write is a datagram.
    datagrams: bool,
    state: LaneState,
    /// Tells events of this socket from those of its predecessors.
    generation: u32,
    wire: Box<dyn Wire>,
    tls: Option<Box<ClientConnection>>,
    /// When connecting began, and then when the handshake did.
    since: u64,
    hangup: bool,
    /// Index of the destination, which is also the group of the connection's lanes.
    place: usize,
    to: SocketAddr,
    /// Answers until it is closed.
    left: u64,
    /// The connection takes no more requests, and is closed after those in flight.
    retiring: bool,
    /// Has something to be written at the end of this turn.
    dirty: bool,
}

/// Room for one request in flight.
#[derive(Debug, Default)]
struct Lane {
    request: Option<InFlight>,
    /// Index of the request among the run's requests.
    which: usize,
    free_since: u64,
}

/// A generator thread's state.
#[derive(Debug)]
pub(crate) struct LoadWorker {
    options: Arc<LoadOptions>,
    index: usize,
    connections: Vec<LoadConnection>,
    /// Lanes of each connection.
    streams: usize,
    /// The lanes of connection c are those from c × streams.
    lanes: Vec<Lane>,
    /// By place.
    groups: Vec<ConnectionGroup>,
    /// By place: the run as if its first target were the only one.
    places: Vec<LoadOptions>,
    /// The target of each request.
    targets: Vec<usize>,
    random: fastrand::Rng,
    /// Connections with something to be written at the end of this turn.
    dirty: Vec<usize>,
    /// Connections that had more to be read than one turn allows.
    unread: Vec<usize>,
    /// Events of a read, until the worker has handled them. The vector is kept for its memory.
    events: Vec<WireEvent>,
    in_flight: usize,
    paused: usize,
    poll: Poll,
    timer: Timer,
    next_scan: u64,
    timeout: u64,
    timeline: Timeline,
    tally: RunTally,
    /// Requests that may still be sent, where their number ends the run.
    remaining: u64,
    cpu_from: Option<u64>,
    live: Option<Arc<Mutex<Live>>>,
    /// Whether the servers of the run give any sign of life.
    pub(crate) first: Arc<FirstAnswer>,
    /// This thread has had an answer.
    answered: bool,
    buffer: Box<[u8]>,
    /// Decrypted form of `buffer`; empty without TLS.
    plain: Box<[u8]>,
    /// Times of all connections, those before the start too.
    connecting: Samples,
    handshake: Samples,
    agreed: Option<String>,
}

impl LoadWorker {
    /// A thread's share of the run: `index` of `options.threads`.
    pub(crate) fn new(
        options: Arc<LoadOptions>,
        index: usize,
        live: Option<Arc<Mutex<Live>>>,
    ) -> io::Result<Self> {
        let requests = options.requests();
        let weights: Vec<(usize, f64)> = requests
            .iter()
            .map(|request| (request.place, request.weight))
            .collect();
        let places: Vec<LoadOptions> = options
            .places()
            .iter()
            .map(|place| options.only(place.first))
            .collect();
        let sealed = places.iter().any(|place| place.tls.is_some());
        let seed = options.seed;
        let group = |place| ConnectionGroup::new(&weights, place, seed);
        let ours = options.place_of_connections();
        let ours = ours.into_iter().skip(index).step_by(options.threads);
        let connection = |place: usize| LoadConnection {
            place,
            to: places[place].target.address,
            left: u64::MAX,
            retiring: false,
            stream: None,
            datagrams: places[place].protocol == LoadProtocol::Udp,
            state: LaneState::Down,
            generation: 0,
            wire: wire(&places[place], &requests),
            tls: None,
            since: 0,
            hangup: false,
            dirty: false,
        };
        let connections: Vec<LoadConnection> = ours.map(connection).collect();
        let lanes = connections.len() * options.streams;
        Ok(Self {
            connections,
            groups: (0..places.len()).map(group).collect(),
            places,
            targets: requests.iter().map(|request| request.target).collect(),
            random: fastrand::Rng::with_seed(seed.wrapping_add(index as u64)),
            streams: options.streams,
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
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
            timeline: Timeline {
                start: 0,
                measure: 0,
                end: 0,
            },
            tally: RunTally::new(0, 0, false),
            remaining: u64::MAX,
            cpu_from: None,
            live,
            first: Arc::default(),
            answered: false,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            plain: vec![0; if sealed { BUFFER_BYTES } else { 0 }].into_boxed_slice(),
            connecting: Samples::new(),
            handshake: Samples::new(),
            agreed: None,
            options,
            index,
        })
    }
}

impl Generator for LoadWorker {
    type Count = RunTally;

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
            if self.connections[index].state != LaneState::Open {
                self.close(index);
            }
        }
        // First one lane of each connection, then another: the load is spread over connections before streams.
        for stream in 0..self.streams {
            for index in 0..self.connections.len() {
                let place = self.connections[index].place;
                self.groups[place]
                    .free
                    .push_back(index * self.streams + stream);
            }
        }
        Ok(())
    }

    /// Runs the schedule and returns what was counted.
    fn run(mut self, timeline: Timeline, stop: &Stop) -> io::Result<RunTally> {
        self.timeline = timeline;
        let closed = self.options.rate <= 0.0;
        self.tally = RunTally::new(timeline.measure, timeline.end, closed);
        self.tally.interval = u64::try_from(self.options.interval.as_nanos()).unwrap_or(0);
        if !self.options.more.is_empty() {
            let targets = self.options.more.len() + 1;
            self.tally.targets.resize_with(targets, OfTarget::default);
        }
        if let Some(requests) = self.options.requests {
            let (threads, index) = (self.options.threads as u64, self.index as u64);
            self.remaining = requests / threads + u64::from(index < requests % threads);
        }
        let pacing = self.pacing_of(timeline);
        for group in &mut self.groups {
            if let Some(recorded) = &self.options.recorded {
                group.follow(Arc::clone(&recorded.which));
            }
            if self.options.each.is_some() {
                group.in_turn();
            }
            group.pace(pacing.clone());
        }
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
            if self.tally.aborted.is_some() && !stop.raised() {
                stop.raise();
                continue;
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
                    // The worker reads and timestamps received bytes before it sends anything. A send costs ten times a read, so
                    // answers behind a send would look that much slower. The server also sleeps, and is woken less often.
                    _ => self.on_ready(ready),
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

impl LoadWorker {
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
            ArrivalPattern::Uniform => shaped(Spread::Even {
                offset: index,
                stride,
            }),
            ArrivalPattern::Poisson => {
                // Each thread its share, by its own seed: the sum of Poisson processes is one.
                let share = self.connections.len() as f64 / self.options.connections as f64;
                let seed = self
                    .options
                    .seed
                    .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                shaped(Spread::Random { share, seed })
            }
            ArrivalPattern::Fortio => {
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

    /// The user asked to stop: no further request is due, and no answer is waited for.
    fn end_early(&mut self, at: u64) {
        let end = self.timeline.end.min(at);
        self.timeline.end = end;
        for group in &mut self.groups {
            group.cut(end);
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
        let open = at >= self.timeline.start && at < self.timeline.end;
        for place in 0..self.groups.len() {
            if !open && matches!(self.groups[place].pacing, Pacing::Closed) {
                continue;
            }
            while self.remaining > 0
                && let Some((lane, intended, which)) = self.groups[place].next(at)
            {
                self.lanes[lane].which = which;
                at = at.max(self.start(lane, intended));
                if intended.is_none() && at >= self.timeline.end {
                    break;
                }
            }
        }
        at
    }

    /// Begins a request on a free lane; returns when.
    fn start(&mut self, lane: usize, due: Option<u64>) -> u64 {
        let sent = now();
        let intended = due.unwrap_or(sent);
        if due.is_some()
            && self.lanes[lane].free_since <= intended
            && intended >= self.timeline.measure
        {
            self.tally.lateness.record(sent.saturating_sub(intended));
        }
        self.lanes[lane].request = Some(InFlight {
            intended,
            sent,
            first: None,
        });
        if self.options.requests.is_some() && intended >= self.timeline.measure {
            self.remaining -= 1;
        }
        self.in_flight += 1;
        self.next_scan = self.next_scan.min(sent + self.timeout);
        let index = lane / self.streams;
        match self.connections[index].state {
            LaneState::Open => self.send(lane),
            // Another lane's request is already connecting; this one goes out with it.
            LaneState::Connecting | LaneState::Handshaking | LaneState::Greeting => {}
            LaneState::Down | LaneState::Paused(_) => {
                if let Err(error) = self.connect(index) {
                    self.unconnected(index, &error);
                }
            }
        }
        sent
    }

    /// Counts the request of a lane and lets the lane take another.
    fn finish(
        &mut self,
        lane: usize,
        outcome: RequestOutcome,
        answer: Option<HttpResponse>,
        done: u64,
    ) {
        let Some(request) = self.lanes[lane].request.take() else {
            return;
        };
        self.lanes[lane].free_since = done;
        self.in_flight -= 1;
        if !self.answered {
            if answer.is_some() {
                self.answered = true;
                self.first.answered();
            } else {
                self.first.failed(outcome.words().into());
            }
        }
        self.tally.finish(FinishedRequest {
            intended: request.intended,
            sent: Some(request.sent),
            first: request.first,
            done,
            outcome,
            answered: answer.is_some(),
            status: answer.and_then(|answer| answer.status),
            body: answer.map_or(0, |answer| answer.body),
            target: self.targets[self.lanes[lane].which],
        });
        if let Some(live) = &self.live {
            let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
            if outcome == RequestOutcome::Ok {
                live.latency.record(done.saturating_sub(request.intended));
                live.ok += 1;
            } else {
                live.errors += 1;
            }
        }
        let unwanted = self.options.abort_on.iter().find(|on| match on {
            Some(status) => answer.and_then(|answer| answer.status) == Some(*status),
            None => answer.is_none(),
        });
        if let (Some(status), None) = (unwanted, &self.tally.aborted) {
            self.tally.aborted = Some(*status);
        }
        let index = lane / self.streams;
        if self.connections[index].retiring {
            self.retire(index);
        } else if !matches!(self.connections[index].state, LaneState::Paused(_)) {
            self.release(lane);
        }
    }

    /// A connection that has answered its number is closed once its last request is, and its lanes are free again.
    fn retire(&mut self, index: usize) {
        let lanes = self.lanes_of(index);
        if self.lanes[lanes.clone()]
            .iter()
            .any(|lane| lane.request.is_some())
        {
            return;
        }
        self.connections[index].retiring = false;
        self.close(index);
        for lane in lanes {
            self.release(lane);
        }
    }

    fn release(&mut self, lane: usize) {
        let place = self.connections[lane / self.streams].place;
        self.groups[place].release(lane);
    }

    /// The lanes of a connection.
    fn lanes_of(&self, index: usize) -> std::ops::Range<usize> {
        index * self.streams..(index + 1) * self.streams
    }

    /// Lets a connection rest until then, and no request take a lane of it meanwhile.
    fn pause(&mut self, index: usize, until: u64) {
        self.connections[index].state = LaneState::Paused(until);
        self.paused += 1;
        self.next_scan = self.next_scan.min(until);
        let lanes = self.lanes_of(index);
        let place = self.connections[index].place;
        self.groups[place].free.retain(|lane| !lanes.contains(lane));
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
            let LaneState::Paused(until) = self.connections[index].state else {
                continue;
            };
            if until > at {
                next = next.min(until);
                continue;
            }
            self.connections[index].state = LaneState::Down;
            self.paused -= 1;
            for lane in self.lanes_of(index) {
                self.lanes[lane].free_since = at;
                self.release(lane);
            }
        }
        self.next_scan = next.max(at + SCAN_NS);
    }

    fn backlog(&self) -> bool {
        self.groups.iter().any(ConnectionGroup::backlog)
    }

    fn finished(&mut self, at: u64) -> bool {
        if self.remaining == 0 && self.in_flight == 0 {
            self.timeline.end = self.timeline.end.min(at);
        }
        at >= self.timeline.end
            && ((self.in_flight == 0 && !self.backlog()) || at >= self.timeline.end + DRAIN_NS)
    }

    fn wake_at(&self, at: u64) -> u64 {
        let scheduled = self.groups.iter().filter_map(ConnectionGroup::due).min();
        let start = Some(self.timeline.start).filter(|start| *start > at);
        let due = scheduled.or(start);
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

    /// Counts each request without an answer as an error, and its age as a sample.
    fn close_books(&mut self, at: u64) {
        for lane in &mut self.lanes {
            if let Some(request) = lane.request.take() {
                self.tally.finish(FinishedRequest {
                    intended: request.intended,
                    sent: Some(request.sent),
                    first: request.first,
                    done: at,
                    outcome: RequestOutcome::Unanswered,
                    answered: false,
                    status: None,
                    body: 0,
                    target: self.targets[lane.which],
                });
            }
        }
        for group in &mut self.groups {
            while let Some((intended, which)) = group.left() {
                self.tally.finish(FinishedRequest {
                    intended,
                    sent: None,
                    first: None,
                    done: at,
                    outcome: RequestOutcome::Unsent,
                    answered: false,
                    status: None,
                    body: 0,
                    target: self.targets[which],
                });
            }
        }
        let cpu = thread_cpu();
        self.tally.cpu_ns = cpu - self.cpu_from.unwrap_or(cpu);
        self.tally.end = self.timeline.end;
    }
}
