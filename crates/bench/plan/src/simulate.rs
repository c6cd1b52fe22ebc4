//! Discrete-event simulation of requests through a graph: each proxy is a queue with workers, each service does its script.
//! Deterministic by its seed, and bounded in events.

mod quantiles;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use voile_graph::{Graph, ScriptStep, Step};

pub use quantiles::Quantiles;

/// Most events of one simulation: some seconds of one core.
pub const MAX_EVENTS: u64 = 4_000_000;
/// Most requests at the entries that are simulated: a hundred lie beyond the 99th percentile.
pub const REQUESTS: u64 = 10_000;
/// The share of requests that only fill the queues.
const WARM_UP: f64 = 0.1;
/// Samples that must lie beyond a percentile for it to be told, as in the lab.
const BEYOND: f64 = 10.0;
/// Microseconds of a second.
const SECOND: f64 = 1e6;

/// What a call to a service takes, in microseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallTimes {
    /// Time of a worker of the caller's proxy.
    pub client: Option<Quantiles>,
    /// Time of a worker of the waypoint.
    pub waypoint: Option<Quantiles>,
    /// Time of a worker of the called service's proxy.
    pub server: Option<Quantiles>,
    /// Time that the mesh adds beside its workers' time: wakes of threads, the kernel.
    pub rest: Quantiles,
    /// Time without a mesh.
    pub hop: Quantiles,
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct SimulatedMesh<'a> {
    /// The services and their scripts.
    pub graph: &'a Graph,
    /// Requests per second at entries.
    pub entries: Vec<(usize, f64)>,
    /// A call to each service by another.
    pub calls: Vec<CallTimes>,
    /// A call to each service from outside of the mesh.
    pub from_outside: Vec<CallTimes>,
    /// The proxies of each service's replicas, by place in `queues`.
    pub proxies: Vec<Vec<usize>>,
    /// The waypoint, by place in `queues`.
    pub waypoint: Option<usize>,
    /// Workers of each proxy.
    pub queues: Vec<u32>,
}

/// Latencies of one service or of all entries, in microseconds. A percentile with too few samples beyond it is none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedLatency {
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// Number of samples.
    pub samples: usize,
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedTraffic {
    /// Of the requests from outside.
    pub end_to_end: SimulatedLatency,
    /// Of the calls of each service, as its callers see them.
    pub services: Vec<SimulatedLatency>,
    /// Requests that entered and that were answered.
    pub entered: u64,
    /// Always all that entered.
    pub answered: u64,
    /// Calls to each service, warm-up included.
    pub calls: Vec<u64>,
    /// Events until the end.
    pub events: u64,
}

/// A moment, in microseconds, and a number that keeps the order of equals.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moment(f64, u64);

impl Eq for Moment {}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request from outside, at the entry of this place among the entries.
    Entry(usize),
    /// A call goes on.
    Continue(usize),
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Client,
    Waypoint,
    Server,
    Delay,
    Script(usize),
}

#[derive(Debug, Clone)]
struct ActiveCall {
    service: usize,
    /// Place of its replica among the service's proxies.
    replica: usize,
    caller: Option<usize>,
    stage: Stage,
    began: f64,
    /// Calls of the current step that are not answered.
    waiting: usize,
    /// The step's own work ends then.
    step_ends: f64,
    counted: bool,
}

struct Simulation<'a> {
    mesh: &'a SimulatedMesh<'a>,
    random: fastrand::Rng,
    events: BinaryHeap<Reverse<(Moment, Event)>>,
    /// For each proxy, when each of its workers is free.
    workers: Vec<BinaryHeap<Reverse<Moment>>>,
    calls: Vec<ActiveCall>,
    free: Vec<usize>,
    next_replica: Vec<usize>,
    order: u64,
    wanted: u64,
    end_to_end: Vec<f64>,
    latencies: Vec<Vec<f64>>,
    entered: u64,
    answered: u64,
    called: Vec<u64>,
}

/// Simulates `requests` requests at the entries, which arrive at random (Poisson). A graph of many calls gets fewer of them, so
/// that [`MAX_EVENTS`] holds.
#[must_use]
pub fn simulate(mesh: &SimulatedMesh<'_>, requests: u64, seed: u64) -> SimulatedTraffic {
    let services = mesh.graph.services.len();
    let worker = |count: &u32| (0..(*count).max(1)).map(|_| Reverse(Moment(0.0, 0)));
    let mut simulation = Simulation {
        mesh,
        random: fastrand::Rng::with_seed(seed),
        events: BinaryHeap::new(),
        workers: mesh.queues.iter().map(|n| worker(n).collect()).collect(),
        calls: Vec::new(),
        free: Vec::new(),
        next_replica: vec![0; services],
        order: 0,
        wanted: requests,
        end_to_end: Vec::new(),
        latencies: vec![Vec::new(); services],
        entered: 0,
        answered: 0,
        called: vec![0; services],
    };
    for entry in 0..mesh.entries.len() {
        simulation.next_entry(entry, 0.0);
    }
    let mut events = 0;
    while let Some(Reverse((now, event))) = simulation.events.pop() {
        events += 1;
        // Requests under way are always answered, so that every one that entered counts.
        if events >= MAX_EVENTS {
            simulation.wanted = simulation.entered;
        }
        match event {
            Event::Entry(entry) => simulation.enter(entry, now.0),
            Event::Continue(call) => simulation.proceed(call, now.0),
        }
    }
    SimulatedTraffic {
        end_to_end: latency(simulation.end_to_end),
        services: simulation.latencies.into_iter().map(latency).collect(),
        entered: simulation.entered,
        answered: simulation.answered,
        calls: simulation.called,
        events,
    }
}

impl Simulation<'_> {
    fn at(&mut self, time: f64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((Moment(time, self.order), event)));
    }

    fn next_entry(&mut self, entry: usize, now: f64) {
        let rate = self.mesh.entries[entry].1;
        if rate > 0.0 && self.entered < self.wanted {
            let gap = -(1.0 - self.random.f64()).ln() * SECOND / rate;
            self.at(now + gap, Event::Entry(entry));
        }
    }

    fn enter(&mut self, entry: usize, now: f64) {
        if self.entered >= self.wanted {
            return;
        }
        self.entered += 1;
        let counted = self.entered as f64 > self.wanted as f64 * WARM_UP;
        self.call(self.mesh.entries[entry].0, None, counted, now);
        self.next_entry(entry, now);
    }

    fn call(&mut self, service: usize, caller: Option<usize>, counted: bool, now: f64) {
        let replicas = self.mesh.proxies[service].len().max(1);
        let replica = self.next_replica[service] % replicas;
        self.next_replica[service] = replica + 1;
        self.called[service] += 1;
        let call = ActiveCall {
            service,
            replica,
            caller,
            stage: Stage::Client,
            began: now,
            waiting: 0,
            step_ends: now,
            counted,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.calls[place] = call;
                place
            }
            None => {
                self.calls.push(call);
                self.calls.len() - 1
            }
        };
        self.at(now, Event::Continue(place));
    }

    fn proceed(&mut self, place: usize, now: f64) {
        let mesh = self.mesh;
        let call = &self.calls[place];
        let (service, stage) = (call.service, call.stage);
        let times = match call.caller {
            Some(_) => &mesh.calls[service],
            None => &mesh.from_outside[service],
        };
        let proxy = |call: &ActiveCall| mesh.proxies[call.service].get(call.replica).copied();
        let (queue, work, next) = match stage {
            Stage::Client => {
                let caller = call.caller.and_then(|caller| proxy(&self.calls[caller]));
                (caller, times.client.as_ref(), Stage::Waypoint)
            }
            Stage::Waypoint => (mesh.waypoint, times.waypoint.as_ref(), Stage::Server),
            Stage::Server => (proxy(call), times.server.as_ref(), Stage::Delay),
            Stage::Delay => {
                let delay = times.rest.at(self.random.f64()) + times.hop.at(self.random.f64());
                self.calls[place].stage = Stage::Script(0);
                return self.at(now + delay, Event::Continue(place));
            }
            Stage::Script(step) => return self.script(place, step, now),
        };
        self.calls[place].stage = next;
        let done = match (queue, work) {
            (Some(queue), Some(work)) => {
                let work = work.at(self.random.f64());
                self.serve(queue, work, now)
            }
            _ => now,
        };
        self.at(done, Event::Continue(place));
    }

    /// First come, first served: the worker that is free first takes the work.
    fn serve(&mut self, queue: usize, work: f64, now: f64) -> f64 {
        let workers = &mut self.workers[queue];
        let free = workers.pop().map_or(now, |Reverse(moment)| moment.0);
        let done = free.max(now) + work;
        workers.push(Reverse(Moment(done, 0)));
        done
    }

    fn script(&mut self, place: usize, step: usize, now: f64) {
        let graph = self.mesh.graph;
        let call = self.calls[place].clone();
        let service = &graph.services[call.service];
        let fails = step == 0
            && service.error_rate.get() > 0.0
            && self.random.f64() < service.error_rate.get();
        let Some(commands) = service
            .script
            .get(step)
            .filter(|_| !fails)
            .map(Step::commands)
        else {
            return self.answer(place, now);
        };
        let (mut own, mut waiting) = (0.0f64, 0);
        let mut callees = Vec::new();
        for command in commands {
            match command {
                ScriptStep::Sleep(time) | ScriptStep::Cpu(time) => {
                    own = own.max(time.as_secs_f64() * SECOND);
                }
                ScriptStep::Memory(_) => {}
                ScriptStep::Call(to) => {
                    let share = to.probability.get();
                    if share >= 1.0 || self.random.f64() < share {
                        let away = graph.between_clusters(call.service, to.service);
                        callees.push((to.service, now + away.as_secs_f64() * SECOND));
                        waiting += 1;
                    }
                }
            }
        }
        let active = &mut self.calls[place];
        active.stage = Stage::Script(step + 1);
        (active.waiting, active.step_ends) = (waiting, now + own);
        if waiting == 0 {
            return self.at(now + own, Event::Continue(place));
        }
        for (callee, starts) in callees {
            self.call(callee, Some(place), call.counted, starts);
        }
    }

    fn answer(&mut self, place: usize, now: f64) {
        let call = self.calls[place].clone();
        let took = now - call.began;
        if call.counted {
            self.latencies[call.service].push(took);
        }
        self.free.push(place);
        let Some(caller) = call.caller else {
            self.answered += 1;
            if call.counted {
                self.end_to_end.push(took);
            }
            return;
        };
        let waits = &mut self.calls[caller];
        waits.waiting -= 1;
        if waits.waiting == 0 {
            let goes_on = now.max(waits.step_ends);
            self.at(goes_on, Event::Continue(caller));
        }
    }
}

fn latency(mut samples: Vec<f64>) -> SimulatedLatency {
    samples.sort_unstable_by(f64::total_cmp);
    let count = samples.len();
    let percentile = |share: f64| {
        let place = (share * count as f64).ceil() as usize;
        let beyond = count as f64 * (1.0 - share);
        (beyond >= BEYOND).then(|| samples[place.clamp(1, count) - 1])
    };
    SimulatedLatency {
        p50: percentile(0.5),
        p90: percentile(0.9),
        p99: percentile(0.99),
        mean: (count > 0).then(|| samples.iter().sum::<f64>() / count as f64),
        samples: count,
    }
}
