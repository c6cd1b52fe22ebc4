//! Latency of a forecast: three simulations with the same seed, of the lower ends of what was measured, the medians and the upper
//! ends.

use voile_report::record::Estimate;

use crate::curves::{CurvePoint, LatencyCost};
use crate::features::{
    CLIENT_NODE, CLIENT_SIDECAR, DataPlane, SERVER_NODE, SERVER_SIDECAR, WAYPOINT,
};
use crate::lookup::{Figure, Law, Load, look_up};
use crate::simulate::{
    CallTimes, Quantiles, REQUESTS, SimulatedLatency, SimulatedMesh, SimulatedTraffic, simulate,
};

use super::{Planner, SideFigure, lacks};

/// The median, the 90th and the 99th percentile.
type Percentiles = [Option<Figure>; 3];

/// Latencies of all services.
pub(super) struct LatencyForecast {
    pub(super) end_to_end: Percentiles,
    pub(super) services: Vec<Percentiles>,
}

/// The end of an interval that a simulation takes of every figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Low,
    Median,
    High,
}

impl End {
    fn of(self, figure: &Figure) -> f64 {
        match self {
            Self::Low => figure.low.unwrap_or(figure.value),
            Self::Median => figure.value,
            Self::High => figure.high.unwrap_or(figure.value),
        }
    }
}

/// What a call to a service takes beside its script.
struct MeasuredTimes {
    /// Of the mesh: mean and percentiles.
    added: [Option<Figure>; 4],
    /// Without one.
    hop: [Option<Figure>; 4],
}

impl Planner<'_> {
    pub(super) fn latency(&mut self, sides: &[Vec<SideFigure>]) -> Result<LatencyForecast, String> {
        let count = self.graph.services.len();
        let none = || LatencyForecast {
            end_to_end: [None, None, None],
            services: vec![[None, None, None]; count],
        };
        if let Some(overload) = self.overload(sides) {
            self.notes.insert(overload);
            return Ok(none());
        }
        let times: Vec<MeasuredTimes> = (0..count)
            .map(|service| self.times(service))
            .collect::<Result<_, _>>()?;
        let certain = |figures: &[Option<Figure>; 4]| {
            figures.iter().flatten().all(|figure| figure.low.is_some())
        };
        let sure = times
            .iter()
            .all(|one| certain(&one.added) && certain(&one.hop));
        let run = |end| self.simulated(sides, &times, end);
        let median = run(End::Median);
        let ends = sure.then(|| (run(End::Low), run(End::High)));
        let pick = |of: &dyn Fn(&SimulatedTraffic) -> SimulatedLatency| {
            let low = ends.as_ref().map(|ends| percentiles(of(&ends.0)));
            let high = ends.as_ref().map(|ends| percentiles(of(&ends.1)));
            let values = percentiles(of(&median));
            std::array::from_fn(|n| {
                Some(Figure {
                    value: values[n]?,
                    low: low.and_then(|low| low[n]),
                    high: high.and_then(|high| high[n]),
                    extrapolated: extrapolated(&times),
                })
            })
        };
        Ok(LatencyForecast {
            end_to_end: pick(&|traffic| traffic.end_to_end),
            services: (0..count)
                .map(|service| pick(&|traffic| traffic.services[service]))
                .collect(),
        })
    }

    fn workers(&self) -> u32 {
        self.demand.workers.unwrap_or(self.curves.workers).max(1)
    }

    /// The proxy that has more work than workers, in words.
    fn overload(&self, sides: &[Vec<SideFigure>]) -> Option<String> {
        let (busy, name) = (0..self.graph.services.len())
            .map(|service| {
                let cores = self.vcpu(service, sides).value / self.replicas(service);
                (cores, &self.graph.services[service].name)
            })
            .max_by(|one, other| one.0.total_cmp(&other.0))?;
        let workers = f64::from(self.workers());
        let shared = matches!(self.choice.plane, DataPlane::Node | DataPlane::Waypoint);
        let all: f64 = (0..self.graph.services.len())
            .map(|service| self.vcpu(service, sides).value)
            .sum();
        if shared && all / f64::from(self.demand.nodes) >= workers {
            return Some(format!(
                "no latency: the shared proxies need {all:.1} cores and have {workers:.0} workers on each of {} nodes, so their queues grow without end; cure: --nodes or --workers",
                self.demand.nodes
            ));
        }
        (!shared && busy >= workers).then(|| {
            format!(
                "no latency: the proxy of {name} needs {busy:.1} cores a replica and has {workers:.0} workers, so its queue grows without end; cure: more replicas, or --workers"
            )
        })
    }

    /// Measured latency of a call to a service.
    fn times(&self, service: usize) -> Result<MeasuredTimes, String> {
        let load = self.load(service);
        let hop = quantiles(self.curves.set("none")?, &load, Law::Scaled);
        if hop[1].is_none() {
            return Err(lacks("none", "its latency"));
        }
        let (points, extras) = self.points()?;
        let mut added: [Option<Figure>; 4] = [None, None, None, None];
        if self.choice.plane != DataPlane::None {
            added = quantiles(points, &load, Law::Scaled);
            if added[1].is_none() {
                let what = "latency over the baseline's at the same load";
                return Err(lacks(self.choice.plane.set(), what));
            }
            for extra in extras {
                for (sum, more) in added.iter_mut().zip(quantiles(extra, &load, Law::Nearest)) {
                    if let (Some(one), Some(more)) = (&*sum, more) {
                        *sum = Some(one.plus(&more).at_least_zero());
                    }
                }
            }
        }
        Ok(MeasuredTimes { added, hop })
    }

    fn simulated(
        &self,
        sides: &[Vec<SideFigure>],
        times: &[MeasuredTimes],
        end: End,
    ) -> SimulatedTraffic {
        let plane = self.choice.plane;
        let services = self.graph.services.iter();
        let (mut queues, mut proxies) = (Vec::new(), Vec::new());
        let nodes = self.demand.nodes as usize;
        match plane {
            DataPlane::None => proxies = services.map(|_| Vec::new()).collect(),
            DataPlane::Sidecar | DataPlane::MutualTls => {
                for service in services {
                    let first = queues.len();
                    let replicas = service.replicas.max(1) as usize;
                    queues.extend(vec![self.workers(); replicas]);
                    proxies.push((first..first + replicas).collect());
                }
            }
            DataPlane::Node | DataPlane::Waypoint => {
                queues.extend(vec![self.workers(); nodes]);
                proxies = services.enumerate().map(|(n, _)| vec![n % nodes]).collect();
            }
        }
        let waypoint = (plane == DataPlane::Waypoint).then(|| {
            queues.push(self.workers());
            queues.len() - 1
        });
        let call = |service: usize, outside: bool| {
            call_times(&sides[service], &times[service], end, outside)
        };
        let all = 0..self.graph.services.len();
        let mesh = SimulatedMesh {
            graph: self.graph,
            entries: self.demand.entries.clone(),
            calls: all.clone().map(|service| call(service, false)).collect(),
            from_outside: all.map(|service| call(service, true)).collect(),
            proxies,
            waypoint,
            queues,
        };
        simulate(&mesh, REQUESTS, self.demand.seed)
    }
}

/// A call: of each proxy on its way a worker's time, and of what the mesh adds beside it the share of these proxies. A call from
/// outside has no proxy at the client.
fn call_times(sides: &[SideFigure], times: &MeasuredTimes, end: End, outside: bool) -> CallTimes {
    let cpu = |roles: [&str; 2]| {
        let one = sides.iter().find(|one| roles.contains(&one.role))?;
        Some(end.of(&one.cpu_us))
    };
    let client = cpu([CLIENT_SIDECAR, CLIENT_NODE]);
    let server = cpu([SERVER_SIDECAR, SERVER_NODE]);
    let waypoint = cpu([WAYPOINT, WAYPOINT]);
    let all: f64 = [client, server, waypoint].into_iter().flatten().sum();
    let client = client.filter(|_| !outside);
    let present: f64 = [client, server, waypoint].into_iter().flatten().sum();
    let share = if all > 0.0 { present / all } else { 1.0 };
    CallTimes {
        client: client.map(Quantiles::constant),
        waypoint: waypoint.map(Quantiles::constant),
        server: server.map(Quantiles::constant),
        rest: distribution(&times.added, end, share).less(present),
        hop: distribution(&times.hop, end, 1.0),
    }
}

fn distribution(figures: &[Option<Figure>; 4], end: End, share: f64) -> Quantiles {
    let [mean, p50, p90, p99] = figures
        .each_ref()
        .map(|figure| figure.as_ref().map(|figure| end.of(figure) * share));
    let Some(p50) = p50 else {
        return Quantiles::default();
    };
    let p90 = p90.unwrap_or(p50);
    Quantiles::measured(mean, p50, p90, p99.unwrap_or(p90))
}

fn quantiles(points: &[CurvePoint], load: &Load, law: Law) -> [Option<Figure>; 4] {
    let parts: [fn(&LatencyCost) -> Option<Estimate>; 4] = [
        |latency| latency.mean,
        |latency| latency.p50,
        |latency| latency.p90,
        |latency| latency.p99,
    ];
    parts.map(|part| look_up(points, load, law, |point| part(&point.latency_us)))
}

fn percentiles(latency: SimulatedLatency) -> [Option<f64>; 3] {
    [latency.p50, latency.p90, latency.p99]
}

fn extrapolated(times: &[MeasuredTimes]) -> std::collections::BTreeSet<crate::lookup::Axis> {
    let all = times
        .iter()
        .flat_map(|one| one.added.iter().chain(&one.hop));
    let all = all.flatten().flat_map(|figure| &figure.extrapolated);
    all.copied().collect()
}
