//! Scripts, made ready for one process and carried out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::HeaderMap;
use voile_graph::dice::{Decision, ProcessRandom};
use voile_graph::{Graph, Probability, ScriptStep, ServiceProtocol, Step};

use crate::body::Payload;
use crate::call::{Callee, Callees, Reason};
use crate::metrics::Metrics;
use crate::places::{self, CalleeAddress};
use crate::work;

/// Bytes of reasons of failed calls that an answer repeats: reasons hold those of callees of callees.
const MAX_REASON_BYTES: usize = 1024;

/// A call, with everything found out that does not change.
#[derive(Debug, Clone)]
pub(crate) struct PlannedCall {
    pub(crate) name: String,
    pub(crate) authority: String,
    pub(crate) protocol: ServiceProtocol,
    pub(crate) place: CalleeAddress,
    extra: Vec<(std::sync::Arc<str>, std::sync::Arc<str>)>,
    size: u64,
    probability: Probability,
    /// Latency added because the callee is in another cluster.
    away: Duration,
    /// Among the destinations of the metrics.
    destination: usize,
    /// Among the callees of a thread: calls by one name to one place share connections.
    callee: usize,
}

/// A service's script in a form to execute: calls by their number.
#[derive(Debug, Clone)]
pub(crate) struct CallPlan {
    steps: Vec<Step>,
    calls: Vec<PlannedCall>,
    pub(crate) destinations: Vec<String>,
}

impl CallPlan {
    pub(crate) fn new(
        graph: &Graph,
        service: usize,
        namespace: &str,
        told: &BTreeMap<String, Vec<SocketAddr>>,
        variables: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let mut calls: Vec<PlannedCall> = Vec::new();
        let mut destinations: Vec<String> = Vec::new();
        let mut callees = 0;
        for call in graph.services[service].calls() {
            let callee = &graph.services[call.service];
            let authority = places::authority(graph, call);
            let place = places::find(graph, call, namespace, told, variables);
            let known = destinations.iter().position(|known| *known == authority);
            let destination = known.unwrap_or_else(|| {
                destinations.push(authority.clone());
                destinations.len() - 1
            });
            let same = |known: &&PlannedCall| known.authority == authority && known.place == place;
            let shared = calls.iter().find(same).map(|known| known.callee);
            calls.push(PlannedCall {
                name: callee.name.to_string(),
                protocol: callee.protocol,
                extra: call.headers.clone(),
                size: call.size,
                probability: call.probability,
                away: graph.between_clusters(service, call.service),
                destination,
                callee: shared.unwrap_or_else(|| {
                    callees += 1;
                    callees - 1
                }),
                authority,
                place,
            });
        }
        Self {
            steps: graph.services[service].script.clone(),
            calls,
            destinations,
        }
    }
}

/// A script as one thread carries it out.
pub(crate) struct Script {
    plan: CallPlan,
    callees: Callees,
    ready: Vec<(HeaderMap, Payload)>,
    dice: ProcessRandom,
    metrics: std::sync::Arc<Metrics>,
}

impl Script {
    pub(crate) fn new(
        plan: &CallPlan,
        dice: ProcessRandom,
        metrics: std::sync::Arc<Metrics>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let mut callees = Callees::new();
        let mut ready = Vec::new();
        for call in &plan.calls {
            if call.callee == callees.len() {
                let (name, place) = (call.name.clone(), call.place.clone());
                let callee = Callee::new(name, place, call.protocol, &call.authority, timeout)?;
                callees.push(Rc::new(callee));
            }
            let headers = callees[call.callee].headers(&call.authority, &call.extra)?;
            let payload = match call.protocol {
                ServiceProtocol::Http => Payload::plain(call.size),
                ServiceProtocol::Grpc => Payload::message(call.size),
            };
            ready.push((headers, payload));
        }
        Ok(Self {
            plan: plan.clone(),
            callees,
            ready,
            dice,
            metrics,
        })
    }

    /// Executes the script for one request. Allocated memory is held until the answer is dropped.
    pub(crate) async fn execute(
        &self,
        request: u64,
        inherited: &HeaderMap,
    ) -> Result<Vec<Vec<u8>>, Reason> {
        let held = RefCell::new(Vec::new());
        let mut number = 0;
        for step in &self.plan.steps {
            match step {
                Step::One(command) => {
                    let call = number;
                    number += u32::from(matches!(command, ScriptStep::Call(_)));
                    self.command(command, call, request, inherited, &held)
                        .await?;
                }
                Step::Together(commands) => {
                    let running = commands.iter().map(|command| {
                        let call = number;
                        number += u32::from(matches!(command, ScriptStep::Call(_)));
                        self.command(command, call, request, inherited, &held)
                    });
                    let outcomes = join_all(running).await;
                    together(outcomes)?;
                }
            }
        }
        Ok(held.into_inner())
    }

    async fn command(
        &self,
        command: &ScriptStep,
        call: u32,
        request: u64,
        inherited: &HeaderMap,
        held: &RefCell<Vec<Vec<u8>>>,
    ) -> Result<(), Reason> {
        match command {
            ScriptStep::Sleep(time) => work::sleep(*time).await,
            ScriptStep::Cpu(time) => work::burn(*time).await,
            ScriptStep::Memory(bytes) => {
                let memory = work::hold(*bytes);
                held.borrow_mut().push(memory);
            }
            ScriptStep::Call(_) => return self.call(call, request, inherited).await,
        }
        Ok(())
    }

    async fn call(&self, call: u32, request: u64, inherited: &HeaderMap) -> Result<(), Reason> {
        let planned = &self.plan.calls[call as usize];
        if !self
            .dice
            .hit(request, Decision::Call(call), planned.probability)
        {
            return Ok(());
        }
        let (headers, payload) = &self.ready[call as usize];
        self.metrics.called(planned.destination, planned.size);
        let began = Instant::now();
        // One pause for both directions: a client cannot tell in which half a call is.
        if !planned.away.is_zero() {
            work::sleep(planned.away).await;
        }
        let outcome = self.callees[planned.callee]
            .call(payload, headers, inherited)
            .await;
        self.metrics
            .returned(planned.destination, began.elapsed(), outcome.is_ok());
        outcome
    }
}

/// All have ended; if any failed, so has the step.
fn together(outcomes: Vec<Result<(), Reason>>) -> Result<(), Reason> {
    let reasons: Vec<Reason> = outcomes.into_iter().filter_map(Result::err).collect();
    if reasons.is_empty() {
        return Ok(());
    }
    let mut text = format!("{} errors occurred: {}", reasons.len(), reasons.join(", "));
    text.truncate(text.floor_char_boundary(MAX_REASON_BYTES));
    Err(text)
}
