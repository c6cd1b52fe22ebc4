//! One pod as it runs: first its sidecar, then, when that is ready, its applications; and the way out in the other order.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use voile_host::netns::Namespace;
use voile_model::{Mesh, ResourceName};

use crate::expand::{PodPlan, RunPlan};
use crate::observer::{Observation, ObservedProxy};
use crate::pod_network::PodNetwork;
use crate::probing::Probing;
use crate::process::Process;

/// Shortest time that clients get to learn that a pod ends, before its sidecar stops taking connections. Requests
/// sent earlier arrive meanwhile.
const NEWS: Duration = Duration::from_millis(700);
/// Longest extra wait for a client that does not learn it.
const LONGEST_NEWS: Duration = Duration::from_secs(10);
/// Time that a sidecar gets to drain: its own drain timeout and a little.
const SIDECAR_GRACE: Duration = Duration::from_secs(7);
/// Longest time that an application gets to stop, whatever `terminationGracePeriodSeconds` says: the user waits at a
/// terminal.
const LONGEST_GRACE: Duration = Duration::from_secs(5);

/// A pod that runs or is about to.
#[derive(Debug)]
pub struct PodRun {
    /// Plan of the pod.
    pub plan: PodPlan,
    /// Its sidecar.
    pub sidecar: Option<Process>,
    /// Its applications.
    pub apps: Vec<Process>,
    /// The probes of each of them.
    probing: Vec<Probing>,
    /// Its namespace, where it has one of its own. After the processes, which live in it.
    network: Option<PodNetwork>,
    apps_started: bool,
    generation: u32,
    /// True while no proxy serves the pod that should: its applications wait.
    unserved: bool,
    /// Its applications have ended for good.
    over: bool,
    /// Why a container of it cannot be started.
    refused: Option<String>,
}

impl PodRun {
    /// Nothing started yet.
    pub fn new(
        plan: PodPlan,
        network: Option<PodNetwork>,
        sidecar: Option<Process>,
        apps: Vec<(Process, Probing)>,
    ) -> Self {
        let (apps, probing) = apps.into_iter().unzip();
        Self {
            plan,
            network,
            sidecar,
            apps,
            probing,
            apps_started: false,
            generation: 0,
            unserved: false,
            over: false,
            refused: None,
        }
    }

    /// A container of it cannot be started, so that it never is ready.
    pub fn refuse(&mut self, why: String) {
        self.refused = Some(why);
    }

    /// Returns true if it waits for nothing but itself: a container cannot be started, or ended as often as this.
    pub fn has_failed(&self, ends: u32) -> bool {
        self.refused.is_some() || self.apps.iter().any(|app| app.restarts >= ends)
    }

    /// Looks after its processes; returns messages for the user.
    pub fn tick(&mut self, now: Instant, seen: &Observation) -> Vec<String> {
        let mut said: Vec<String> = self
            .sidecar
            .iter_mut()
            .filter_map(|sidecar| sidecar.tick(now))
            .collect();
        let alone = self.sidecar.is_none() && !self.unserved;
        self.apps_started |= alone || seen.sidecar_ready;
        if self.apps_started {
            for (app, probing) in self.apps.iter_mut().zip(&mut self.probing) {
                if let Some(text) = app.tick(now) {
                    self.generation += 1;
                    said.push(text);
                }
                let outcome = probing.tick(now, app.life());
                said.extend(outcome.said);
                if let Some(grace) = outcome.restart {
                    app.restart(now, grace.unwrap_or(self.plan.template.termination_grace));
                }
            }
            said.extend(self.settle());
        }
        said
    }

    /// When its applications have ended for good its sidecar ends, too: that is how a job is done.
    fn settle(&mut self) -> Option<String> {
        if self.over
            || self.apps.is_empty()
            || !self.apps.iter().all(|app| app.finished().is_some())
        {
            return None;
        }
        self.over = true;
        self.sidecar.iter_mut().for_each(Process::end);
        let failed = |app: &&Process| app.finished().is_some_and(|exit| !exit.is_success());
        let failed: Vec<_> = self.apps.iter().filter(failed).map(Process::name).collect();
        let name = &self.plan.name;
        Some(match failed.is_empty() {
            true => format!("{name} has succeeded"),
            false => format!("{name} has failed: {}", failed.join(", ")),
        })
    }

    /// Returns true if its applications have ended and are not started again.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Takes a plan whose changes do not affect the pod's processes.
    pub fn go_on_as(&mut self, plan: PodPlan) {
        if self.plan.endpoints != plan.endpoints {
            self.generation += 1;
        }
        for probing in &mut self.probing {
            probing.follow(&plan);
        }
        self.plan = plan;
    }

    /// Makes the pod's applications wait for a node proxy that serves the pod.
    pub fn wait_for_node(&mut self, unserved: bool) {
        self.unserved = unserved;
    }

    /// Its namespace, where it has one of its own.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.network.as_ref().map(PodNetwork::namespace)
    }

    /// Updates the endpoints of its virtual addresses to the ready pods; returns messages for the user.
    pub fn follow(
        &mut self,
        mesh: &Mesh,
        plan: &RunPlan,
        ready: &BTreeSet<ResourceName>,
    ) -> Option<String> {
        let followed = self.network.as_mut()?.follow(mesh, plan, &self.plan, ready);
        let error = followed.err()?;
        Some(format!(
            "{} does not reach services: {error}",
            self.plan.name
        ))
    }

    /// Returns the observer's target for this pod.
    pub fn target(&self) -> ObservedProxy {
        let running = self.apps_started && !self.over && self.apps.iter().all(Process::is_running);
        ObservedProxy {
            address: self.plan.address,
            namespace: self.namespace().cloned(),
            sidecar: !self.over && self.sidecar.as_ref().is_some_and(Process::is_running),
            endpoints: if running && self.must_listen() {
                self.plan.endpoints.clone()
            } else {
                Vec::new()
            },
            generation: self.generation,
        }
    }

    /// Returns true if the pod takes traffic as soon as its applications listen: it has no readiness probe.
    fn must_listen(&self) -> bool {
        !self.plan.endpoints.is_empty() && !self.probing.iter().any(Probing::decides)
    }

    /// Returns true if it takes traffic.
    pub fn is_ready(&self, seen: &Observation) -> bool {
        !self.over && self.missing(seen).is_none()
    }

    /// Returns the first condition that keeps it from being ready.
    pub fn missing(&self, seen: &Observation) -> Option<String> {
        if self.over {
            return None;
        }
        if self.refused.is_some() {
            return self.refused.clone();
        }
        if let Some(sidecar) = &self.sidecar
            && !(sidecar.is_running() && seen.sidecar_ready)
        {
            return Some(format!("{} to be ready", sidecar.name()));
        }
        let waits = |app: &&Process| !app.is_running() && app.finished().is_none();
        if let Some(app) = self.apps.iter().find(waits) {
            return Some(format!("{} to run", app.name()));
        }
        let probed = self.apps.iter().zip(&self.probing);
        let mut probed = probed.filter(|(app, _)| app.finished().is_none());
        if let Some(text) = probed.find_map(|(_, probing)| probing.missing()) {
            return Some(text);
        }
        if self.must_listen() && seen.listening != Some(self.generation) {
            let places: Vec<_> = self
                .plan
                .endpoints
                .iter()
                .map(|(address, port)| format!("{address}:{port}"))
                .collect();
            return Some(format!(
                "{} to listen on {}",
                self.plan.name,
                places.join(" and ")
            ));
        }
        None
    }

    /// Returns the number of restarts of its processes.
    pub fn restarts(&self) -> u32 {
        self.sidecar
            .iter()
            .chain(&self.apps)
            .map(|process| process.restarts)
            .sum()
    }

    /// Its applications that end again and again, each with the first error of its last run.
    pub fn crash_loops(&self, now: Instant) -> impl Iterator<Item = String> {
        let apps = self.apps.iter();
        apps.filter_map(move |app| app.crash_loop(now))
    }

    /// Every process of it.
    pub fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        self.sidecar.iter_mut().chain(&mut self.apps)
    }

    /// Returns the time that its applications get to stop.
    pub fn grace(&self) -> Duration {
        self.plan.template.termination_grace.min(LONGEST_GRACE)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PodStage {
    /// Clients are told by the control plane.
    News,
    /// The sidecar drains; the application still answers.
    Sidecar,
    /// The applications stop.
    Apps,
}

/// A pod on its way out.
#[derive(Debug)]
pub struct LeavingPod {
    /// The pod.
    pub pod: PodRun,
    stage: PodStage,
    until: Instant,
}

impl LeavingPod {
    /// Begins; the control plane has just been told.
    pub fn new(pod: PodRun, now: Instant) -> Self {
        Self {
            pod,
            stage: PodStage::News,
            until: now + NEWS,
        }
    }

    /// Returns true if the pod waits only for clients that have not learned of its end.
    pub fn is_waiting_for_news(&self, now: Instant) -> bool {
        self.stage == PodStage::News && now >= self.until
    }

    /// Goes to the next stage, once all clients are `told`; true when all its processes have ended.
    pub fn tick(&mut self, now: Instant, told: bool) -> bool {
        let over = now >= self.until;
        match self.stage {
            PodStage::News if over && (told || now >= self.until + LONGEST_NEWS) => {
                self.pod.sidecar.iter().for_each(Process::begin_stop);
                (self.stage, self.until) = (PodStage::Sidecar, now + SIDECAR_GRACE);
                false
            }
            PodStage::News => false,
            PodStage::Sidecar => {
                if finish(self.pod.sidecar.as_mut(), over) {
                    self.pod.apps.iter().for_each(Process::begin_stop);
                    (self.stage, self.until) = (PodStage::Apps, now + self.pod.grace());
                }
                false
            }
            PodStage::Apps => finish(&mut self.pod.apps, over),
        }
    }
}

/// Returns true if all processes have ended; kills them when `over`.
pub fn finish<'a>(processes: impl IntoIterator<Item = &'a mut Process>, over: bool) -> bool {
    let mut all = true;
    for process in processes {
        if over {
            process.kill();
        }
        all &= process.has_stopped();
    }
    all
}
