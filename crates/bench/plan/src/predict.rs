//! From a graph, a load and a choice to figures for each service and in all: CPU and memory by the curves, latency by simulation.

mod latency;

use std::collections::BTreeSet;

use serde::Serialize;
use voile_graph::{Graph, GraphService, ServiceProtocol, weigh};
use voile_report::record::Estimate;

use crate::curves::{CurvePoint, Curves, SideCost};
use crate::features::{
    CLIENT_NODE, CLIENT_SIDECAR, Choice, DataPlane, SERVER_NODE, SERVER_SIDECAR, WAYPOINT,
};
use crate::lookup::{Figure, Law, Load, look_up};

/// What is asked beside the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Requests per second at each entry.
    pub entries: Vec<(usize, f64)>,
    /// Connections between each two services, and into each entry.
    pub connections: u32,
    /// Worker threads of each proxy; those of the measurement if unset.
    pub workers: Option<u32>,
    /// Nodes, each with a node proxy.
    pub nodes: u32,
    /// Seed of the simulation.
    pub seed: u64,
}

/// The forecast of one choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// The choice, as `--with` reads it.
    pub with: String,
    /// Requests per second at all entries.
    pub rate: f64,
    /// In the order of the graph.
    pub services: Vec<ServiceForecast>,
    /// All together; its latency is that of requests at the entries.
    pub total: Costs,
    /// What the reader must know.
    pub notes: Vec<String>,
}

/// The forecast of one service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceForecast {
    /// Its name.
    pub name: String,
    /// Requests per second that it serves.
    pub served: f64,
    /// Requests per second that it sends.
    pub sent: f64,
    /// What its proxies cost; its latency is that of a call as the caller sees it.
    #[serde(flatten)]
    pub costs: Costs,
}

/// What proxies cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Costs {
    /// Cores of the proxies.
    pub vcpu: Figure,
    /// Resident memory of the proxies.
    pub memory_bytes: Figure,
    /// Microseconds; none where queues grow without end, or samples are too few.
    pub p50_us: Option<Figure>,
    /// 90th percentile.
    pub p90_us: Option<Figure>,
    /// 99th percentile.
    pub p99_us: Option<Figure>,
}

/// Cost of one proxy for each request.
#[derive(Debug, Clone)]
struct SideFigure {
    role: &'static str,
    cpu_us: Figure,
}

/// Requests per second of each service.
#[derive(Debug, Clone)]
struct Traffic {
    served: Vec<f64>,
    sent: Vec<f64>,
    /// Number of other services that call it, and a 1 for the outside of an entry.
    callers: Vec<u32>,
    callees: Vec<u32>,
}

struct Planner<'a> {
    graph: &'a Graph,
    demand: &'a Demand,
    curves: &'a Curves,
    choice: &'a Choice,
    traffic: Traffic,
    notes: BTreeSet<String>,
}

/// Predicts what a choice costs.
///
/// # Errors
/// If the curves lack a set that the choice needs.
pub fn predict(
    graph: &Graph,
    demand: &Demand,
    curves: &Curves,
    choice: &Choice,
) -> Result<Forecast, String> {
    let mut planner = Planner {
        graph,
        demand,
        curves,
        choice,
        traffic: traffic(graph, demand),
        notes: BTreeSet::new(),
    };
    let sides: Vec<Vec<SideFigure>> = (0..graph.services.len())
        .map(|service| planner.sides(service))
        .collect::<Result<_, _>>()?;
    let latency = planner.latency(&sides)?;
    let mut total = Costs {
        vcpu: Figure::zero(),
        memory_bytes: planner.shared_memory()?,
        p50_us: latency.end_to_end[0].clone(),
        p90_us: latency.end_to_end[1].clone(),
        p99_us: latency.end_to_end[2].clone(),
    };
    let mut services = Vec::new();
    for (place, service) in graph.services.iter().enumerate() {
        let [p50_us, p90_us, p99_us] = latency.services[place].clone();
        let costs = Costs {
            vcpu: planner.vcpu(place, &sides),
            memory_bytes: planner.memory(place)?,
            p50_us,
            p90_us,
            p99_us,
        };
        total.vcpu = total.vcpu.plus(&costs.vcpu);
        total.memory_bytes = total.memory_bytes.plus(&costs.memory_bytes);
        services.push(ServiceForecast {
            name: service.name.to_string(),
            served: planner.traffic.served[place],
            sent: planner.traffic.sent[place],
            costs,
        });
    }
    Ok(Forecast {
        with: choice.to_string(),
        rate: demand.entries.iter().map(|(_, rate)| rate).sum(),
        services,
        total,
        notes: planner.notes.into_iter().collect(),
    })
}

fn traffic(graph: &Graph, demand: &Demand) -> Traffic {
    let count = graph.services.len();
    let mut traffic = Traffic {
        served: vec![0.0; count],
        sent: vec![0.0; count],
        callers: vec![0; count],
        callees: vec![0; count],
    };
    for &(entry, rate) in &demand.entries {
        traffic.callers[entry] += 1;
        let weights = weigh::weigh(graph, entry);
        for (served, weight) in traffic.served.iter_mut().zip(weights.requests) {
            *served += rate * weight;
        }
    }
    for (caller, calls) in weigh::calls(graph).into_iter().enumerate() {
        for (callee, expected) in calls {
            traffic.sent[caller] += traffic.served[caller] * expected;
            traffic.callers[callee] += 1;
            traffic.callees[caller] += 1;
        }
    }
    traffic
}

impl Planner<'_> {
    fn replicas(&self, service: usize) -> f64 {
        f64::from(self.graph.services[service].replicas.max(1))
    }

    /// The load of calls to a service, as one of its replicas sees it.
    fn load(&self, service: usize) -> Load {
        let called = &self.graph.services[service];
        let protocol = match called.protocol {
            ServiceProtocol::Http => "http1",
            ServiceProtocol::Grpc => "grpc",
        };
        let callers = self.graph.services.iter().flat_map(GraphService::calls);
        let sizes: Vec<f64> = callers
            .filter(|call| call.service == service)
            .map(|call| call.size as f64)
            .collect();
        let request = match sizes.len() {
            0 => 0.0,
            count => sizes.iter().sum::<f64>() / count as f64,
        };
        let others = self.graph.services.len().saturating_sub(1);
        Load {
            protocol,
            rate: self.traffic.served[service] / self.replicas(service),
            connections: self.connections(self.traffic.callers[service]),
            body: request + called.response_size as f64,
            services: others as f64,
            amount: called.policies.max(1),
        }
    }

    fn connections(&self, peers: u32) -> f64 {
        f64::from(self.demand.connections) * f64::from(peers)
    }

    /// Points of the data plane, and of each feature.
    fn points(&self) -> Result<(&[CurvePoint], Vec<&[CurvePoint]>), String> {
        let extras = self.choice.extras.iter();
        let extras = extras.map(|extra| self.curves.set(extra));
        Ok((
            self.curves.set(self.choice.plane.set())?,
            extras.collect::<Result<_, _>>()?,
        ))
    }

    /// CPU of each proxy for a call to a service, features included.
    fn sides(&mut self, service: usize) -> Result<Vec<SideFigure>, String> {
        let load = self.load(service);
        let (points, extras) = self.points()?;
        let set = self.choice.plane.set();
        let mut sides = Vec::new();
        for &role in self.choice.plane.sides() {
            let cpu = look_up(points, &load, Law::Scaled, |point| {
                side(point, role)?.cpu_us
            })
            .ok_or_else(|| lacks(set, &format!("the CPU of the {role}")))?;
            sides.push(SideFigure { role, cpu_us: cpu });
        }
        let waypoint = self.choice.plane == DataPlane::Waypoint;
        for extra in extras {
            for one in &mut sides {
                let Some(role) = measured_at(one.role, waypoint) else {
                    continue;
                };
                let more = look_up(extra, &load, Law::Nearest, |point| {
                    side(point, role)?.cpu_us
                });
                if let Some(more) = more {
                    one.cpu_us = one.cpu_us.plus(&more).at_least_zero();
                }
            }
        }
        if waypoint && !self.choice.extras.is_empty() {
            self.notes.insert("features at the waypoint: their cost was measured at the server's sidecar, and is assumed to be the same".to_owned());
        }
        Ok(sides)
    }

    /// Cores: the proxies at the server for what is served, those at the client for what is sent.
    fn vcpu(&self, service: usize, sides: &[Vec<SideFigure>]) -> Figure {
        let mut sum = Figure::zero();
        for one in &sides[service] {
            if ![CLIENT_SIDECAR, CLIENT_NODE].contains(&one.role) {
                let cores = one.cpu_us.times(self.traffic.served[service] / 1e6);
                sum = sum.plus(&cores);
            }
        }
        for (callee, expected) in &weigh::calls(self.graph)[service] {
            let sent = self.traffic.served[service] * expected;
            for one in &sides[*callee] {
                if [CLIENT_SIDECAR, CLIENT_NODE].contains(&one.role) {
                    sum = sum.plus(&one.cpu_us.times(sent / 1e6));
                }
            }
        }
        sum
    }

    /// Memory of the sidecars of a service.
    fn memory(&self, service: usize) -> Result<Figure, String> {
        if !matches!(self.choice.plane, DataPlane::Sidecar | DataPlane::MutualTls) {
            return Ok(Figure::zero());
        }
        let calls = self.traffic.callees[service] > 0;
        let role = if calls {
            CLIENT_SIDECAR
        } else {
            SERVER_SIDECAR
        };
        let load = Load {
            connections: self.connections(self.traffic.callers[service]) / self.replicas(service)
                + self.connections(self.traffic.callees[service]),
            ..self.load(service)
        };
        let memory = self.memory_of(role, &load)?;
        Ok(memory.times(self.replicas(service)))
    }

    /// Memory of proxies that all services share.
    fn shared_memory(&mut self) -> Result<Figure, String> {
        let plane = self.choice.plane;
        if !matches!(plane, DataPlane::Node | DataPlane::Waypoint) {
            return Ok(Figure::zero());
        }
        let edges: u32 = self.traffic.callers.iter().sum();
        let load = Load {
            connections: self.connections(edges),
            ..self.load(self.demand.entries.first().map_or(0, |entry| entry.0))
        };
        let per_node = Load {
            connections: load.connections / f64::from(self.demand.nodes),
            ..load.clone()
        };
        let nodes = self.memory_of(SERVER_NODE, &per_node)?;
        let nodes = nodes.times(f64::from(self.demand.nodes));
        self.notes.insert(format!(
            "the memory of node proxies (on {} of --nodes) is in the total only",
            self.demand.nodes
        ));
        match plane {
            DataPlane::Waypoint => Ok(nodes.plus(&self.memory_of(WAYPOINT, &load)?)),
            _ => Ok(nodes),
        }
    }

    fn memory_of(&self, role: &'static str, load: &Load) -> Result<Figure, String> {
        let (points, extras) = self.points()?;
        let of = |role: &'static str| {
            move |point: &CurvePoint| -> Option<Estimate> { side(point, role)?.memory_bytes }
        };
        let mut memory = look_up(points, load, Law::Added, of(role)).ok_or_else(|| {
            lacks(
                self.choice.plane.set(),
                &format!("the memory of the {role}"),
            )
        })?;
        let waypoint = self.choice.plane == DataPlane::Waypoint;
        for extra in extras {
            let role = measured_at(role, waypoint);
            let more = role.and_then(|role| look_up(extra, load, Law::Nearest, of(role)));
            if let Some(more) = more {
                memory = memory.plus(&more);
            }
        }
        Ok(memory.at_least_zero())
    }
}

fn side<'a>(point: &'a CurvePoint, role: &str) -> Option<&'a SideCost> {
    point.sides.get(role)
}

/// The sidecar at which a feature's cost was measured that this proxy has; none if it does not read requests.
fn measured_at(role: &'static str, waypoint: bool) -> Option<&'static str> {
    match role {
        WAYPOINT => Some(SERVER_SIDECAR),
        CLIENT_NODE | SERVER_NODE => None,
        _ if waypoint => None,
        sidecar => Some(sidecar),
    }
}

fn lacks(set: &str, what: &str) -> String {
    format!("the curves of `{set}` lack {what}; cure: measure them again with `voile bench curves`")
}
