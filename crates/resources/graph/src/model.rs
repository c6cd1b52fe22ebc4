//! A graph in which every call leads to a service. A service's script is its work for each request.

use std::sync::Arc;
use std::time::Duration;

use voile_model::Source;

/// Services and what they do.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// In the order they were written; calls name them by their place here.
    pub services: Vec<GraphService>,
}

/// One service.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphService {
    /// Its name, a DNS label.
    pub name: Arc<str>,
    /// The namespace it lives in, when one was named.
    pub namespace: Option<Arc<str>>,
    /// The cluster it lives in, when one was named.
    pub cluster: Option<Arc<str>>,
    /// Latency added to each of its calls to a service of another cluster.
    pub cluster_latency: Duration,
    /// Protocol of its calls.
    pub protocol: ServiceProtocol,
    /// Number of processes that serve it.
    pub replicas: u32,
    /// True if requests come in here.
    pub entry: bool,
    /// The share of requests it fails without doing anything.
    pub error_rate: Probability,
    /// Bytes of an answer's body (HTTP) or payload (gRPC).
    pub response_size: u64,
    /// Work before the answer.
    pub script: Vec<Step>,
    /// Labels of its Kubernetes resources.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// The share of one CPU that it burns all the time, requests or not.
    pub compute: Probability,
    /// Memory it holds all the time.
    pub memory: Memory,
    /// Isotope's `numRbacPolicies`: authorization policies for it in a mesh, of which the last lets all in.
    pub policies: u32,
    /// Place of its definition.
    pub at: FieldLocation,
}

/// Place in a file: the source, and the field's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldLocation {
    /// File, line and column.
    pub source: Source,
    /// Such as `services[2].script[0].call`.
    pub field: Arc<str>,
}

impl FieldLocation {
    /// Of what no file says: generated graphs.
    #[must_use]
    pub fn nowhere() -> Self {
        Self {
            source: Source {
                file: "generated".into(),
                line: 1,
                column: 1,
            },
            field: "".into(),
        }
    }
}

/// Protocol of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceProtocol {
    /// HTTP/1.1.
    Http,
    /// gRPC over HTTP/2.
    Grpc,
}

impl ServiceProtocol {
    /// Isotope's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

/// A share from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Probability {
    /// Never.
    pub const NONE: Self = Self(0.0);
    /// Always.
    pub const ALL: Self = Self(1.0);

    /// None when it is no share.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self(share))
    }

    /// From 0 to 1.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// As a percentage with as many digits as it needs: `0.01%`.
    #[must_use]
    pub fn percent(self) -> String {
        // Ten digits are more than a file has, and hide the noise of binary fractions.
        let text = format!("{:.10}", self.0 * 100.0);
        format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Memory that a service holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Memory {
    /// So many bytes; 0 is none.
    Bytes(u64),
    /// A share of its cgroup's limit.
    OfLimit(Probability),
}

/// One step of a script.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// One command.
    One(ScriptStep),
    /// Commands that run at the same time; the step ends with the last.
    Together(Vec<ScriptStep>),
}

impl Step {
    /// Its commands.
    #[must_use]
    pub fn commands(&self) -> &[ScriptStep] {
        match self {
            Self::One(command) => std::slice::from_ref(command),
            Self::Together(commands) => commands,
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptStep {
    /// Wait.
    Sleep(Duration),
    /// Use so much time of a CPU.
    Cpu(Duration),
    /// Hold so many bytes until the answer is made.
    Memory(u64),
    /// Call a service.
    Call(ServiceCall),
}

/// A call to a service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceCall {
    /// Its place among the graph's services.
    pub service: usize,
    /// The host it is called by, and port, when not by its name.
    pub hostname: Option<Arc<str>>,
    /// Headers sent with it.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// Bytes of the request's body (HTTP) or payload (gRPC).
    pub size: u64,
    /// Probability that the call is made.
    pub probability: Probability,
    /// Place of its definition.
    pub at: FieldLocation,
}

impl GraphService {
    /// A service that answers at once.
    #[must_use]
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            namespace: None,
            cluster: None,
            cluster_latency: Duration::ZERO,
            protocol: ServiceProtocol::Http,
            replicas: 1,
            entry: false,
            error_rate: Probability::NONE,
            response_size: 0,
            script: Vec::new(),
            labels: Vec::new(),
            compute: Probability::NONE,
            memory: Memory::Bytes(0),
            policies: 0,
            at: FieldLocation::nowhere(),
        }
    }

    /// Every command of its script, in order.
    pub fn commands(&self) -> impl Iterator<Item = &ScriptStep> {
        self.script.iter().flat_map(Step::commands)
    }

    /// Every call of its script, in order.
    pub fn calls(&self) -> impl Iterator<Item = &ServiceCall> {
        self.commands().filter_map(|command| match command {
            ScriptStep::Call(call) => Some(call),
            ScriptStep::Sleep(_) | ScriptStep::Cpu(_) | ScriptStep::Memory(_) => None,
        })
    }
}

impl ServiceCall {
    /// A call that is always made.
    #[must_use]
    pub fn to(service: usize, size: u64) -> Self {
        Self {
            service,
            hostname: None,
            headers: Vec::new(),
            size,
            probability: Probability::ALL,
            at: FieldLocation::nowhere(),
        }
    }
}

impl Graph {
    /// The place of a service.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.services
            .iter()
            .position(|service| &*service.name == name)
    }

    /// Latency added to a call from one service to another because they are in two clusters. A service without a cluster is in
    /// every cluster.
    #[must_use]
    pub fn between_clusters(&self, from: usize, to: usize) -> Duration {
        match self.leaves_cluster(from, to) {
            true => self.services[from].cluster_latency,
            false => Duration::ZERO,
        }
    }

    /// Returns true if a call from one service to another goes to another cluster.
    #[must_use]
    pub fn leaves_cluster(&self, from: usize, to: usize) -> bool {
        let clusters = [from, to].map(|place| self.services[place].cluster.as_deref());
        matches!(clusters, [Some(own), Some(other)] if own != other)
    }

    /// Entry points: the services marked as such, else the services without callers, else the first.
    #[must_use]
    pub fn entries(&self) -> Vec<usize> {
        let all = 0..self.services.len();
        let marked: Vec<usize> = all
            .clone()
            .filter(|&place| self.services[place].entry)
            .collect();
        if !marked.is_empty() {
            return marked;
        }
        let mut called = vec![false; self.services.len()];
        for (caller, service) in self.services.iter().enumerate() {
            for call in service.calls().filter(|call| call.service != caller) {
                called[call.service] = true;
            }
        }
        let free: Vec<usize> = all.clone().filter(|&place| !called[place]).collect();
        match free.is_empty() {
            true => all.take(1).collect(),
            false => free,
        }
    }

    /// The part of the graph that one service needs: itself, and of its callees how to call them.
    #[must_use]
    pub fn excerpt(&self, place: usize) -> Self {
        let mut kept = vec![place];
        for call in self.services[place].calls() {
            if !kept.contains(&call.service) {
                kept.push(call.service);
            }
        }
        let renumber = |old: usize| kept.iter().position(|&place| place == old).unwrap_or(0);
        let mut services = Vec::new();
        for &old in &kept {
            let mut service = self.services[old].clone();
            if old != place {
                service = GraphService {
                    namespace: service.namespace,
                    cluster: service.cluster,
                    protocol: service.protocol,
                    ..GraphService::named(service.name)
                };
            }
            for step in &mut service.script {
                let commands = match step {
                    Step::One(command) => std::slice::from_mut(command),
                    Step::Together(commands) => commands,
                };
                for command in commands {
                    if let ScriptStep::Call(call) = command {
                        call.service = renumber(call.service);
                    }
                }
            }
            services.push(service);
        }
        Self { services }
    }
}
