//! Graphs of chosen shapes. The same seed gives the same graph.

mod mesh;

use crate::model::{
    Graph, GraphService, Probability, ScriptStep, ServiceCall, ServiceProtocol, Step,
};

/// Plan of a graph to generate.
#[derive(Debug, Clone)]
pub struct GraphShape {
    /// The shape.
    pub shape: ShapeKind,
    /// Number of services.
    pub services: usize,
    /// Bytes of requests.
    pub request_size: u64,
    /// Bytes of answers.
    pub response_size: u64,
    /// Replicas of each service.
    pub replicas: u32,
    /// Protocol of all services.
    pub protocol: ServiceProtocol,
    /// The share of requests that each service fails.
    pub error_rate: Probability,
    /// Work of each service before it calls others: CPU time or a pause.
    pub work: Vec<ScriptStep>,
    /// For the shapes that are left to chance.
    pub seed: u64,
}

/// Shapes.
#[derive(Debug, Clone, PartialEq)]
pub enum ShapeKind {
    /// Each service calls so many others at the same time, level by level; the last number holds for all further levels.
    Tree(Vec<usize>),
    /// Each calls the next.
    Chain,
    /// The first calls all others, at the same time.
    Star,
    /// Every service calls every other: the first all of them in every request, each other so seldom that a request to it makes
    /// half a request more.
    Mesh,
    /// Tiers from front to store; each service calls some of the next tier.
    Multitier,
    /// Shape of real systems, as traces show them: few services with many callers, most calls near the leaves, calls in turn
    /// and at once, some of them seldom.
    Realistic,
}

/// Makes it. The first service is the entry point.
///
/// # Errors
/// When the numbers do not fit.
pub fn generate(plan: &GraphShape) -> Result<Graph, String> {
    let most = crate::parse::MAX_SERVICES;
    if plan.services == 0 || plan.services > most {
        return Err(format!(
            "a graph has 1 to {most} services, not {}",
            plan.services
        ));
    }
    let mut graph = match &plan.shape {
        ShapeKind::Tree(branches) => tree(plan, branches)?,
        ShapeKind::Chain => chain(plan),
        ShapeKind::Star => tree(plan, &[plan.services.max(2) - 1])?,
        ShapeKind::Mesh => mesh::full(plan)?,
        ShapeKind::Multitier => mesh::multitier(plan),
        ShapeKind::Realistic => mesh::realistic(plan),
    };
    for (place, service) in graph.services.iter_mut().enumerate() {
        service.entry = place == 0;
        service.replicas = plan.replicas;
        service.response_size = plan.response_size;
        service.protocol = plan.protocol;
        service.error_rate = plan.error_rate;
        let work = plan.work.iter().cloned().map(Step::One);
        service.script.splice(0..0, work);
    }
    Ok(graph)
}

/// Names as in istio's load test: `svc-0`, its callees `svc-0-0`, `svc-0-1` and so on.
fn tree(plan: &GraphShape, branches: &[usize]) -> Result<Graph, String> {
    let Some(last) = branches.last() else {
        return Err("a tree needs a number of branches".to_owned());
    };
    if branches.contains(&0) {
        return Err("a tree has at least 1 branch on each level".to_owned());
    }
    let mut services = vec![GraphService::named("svc-0")];
    // (place, level); services are filled level by level, as in isotope's script.
    let mut parents = std::collections::VecDeque::from([(0usize, 0usize)]);
    while let Some((parent, level)) = parents.pop_front() {
        let wanted = *branches.get(level).unwrap_or(last);
        let mut calls = Vec::new();
        for branch in 0..wanted.min(plan.services - services.len()) {
            let name = format!("{}-{branch}", services[parent].name);
            if name.len() > voile_model::names::MAX_LABEL_BYTES {
                return Err(format!(
                    "the names of {} levels would be too long",
                    level + 2
                ));
            }
            calls.push(ScriptStep::Call(ServiceCall::to(
                services.len(),
                plan.request_size,
            )));
            parents.push_back((services.len(), level + 1));
            services.push(GraphService::named(name));
        }
        services[parent].script.extend(together(calls));
    }
    Ok(Graph { services })
}

/// One step of the calls; a single one needs no list, none no step.
fn together(mut calls: Vec<ScriptStep>) -> Option<Step> {
    match calls.len() {
        0 => None,
        1 => calls.pop().map(Step::One),
        _ => Some(Step::Together(calls)),
    }
}

fn chain(plan: &GraphShape) -> Graph {
    let service = |place: usize| {
        let mut service = GraphService::named(format!("svc-{place}"));
        if place + 1 < plan.services {
            let call = ServiceCall::to(place + 1, plan.request_size);
            service.script.push(Step::One(ScriptStep::Call(call)));
        }
        service
    };
    Graph {
        services: (0..plan.services).map(service).collect(),
    }
}
