//! Probes of one container, as the kubelet runs them. Their answers decide whether it has started, takes traffic, or
//! is to be restarted. Each probe has a thread that only asks, so that one that hangs delays no other. The main loop
//! makes all decisions, in [`Probing::tick`].

mod prober;
mod schedule;

use std::time::{Duration, Instant};

use voile_host::netns::Namespace;
use voile_model::mesh::{Probe, Probes};

use crate::expand::PodPlan;
use crate::process::{ProcessRun, Recipe};
use prober::{ProbeCall, ProbeThread};
use schedule::{ProbeHistory, ProbeKind, Verdict};

/// The probes of one container.
#[derive(Debug, Default)]
pub struct Probing {
    name: String,
    startup: Option<ContainerProbe>,
    readiness: Option<ContainerProbe>,
    liveness: Option<ContainerProbe>,
    life: Option<ProcessRun>,
    /// It took traffic, in whichever life.
    was_ready: bool,
}

/// Consequence of the probes' answers.
#[derive(Debug, Default)]
pub struct ProbeOutcome {
    /// Message for the user.
    pub said: Option<String>,
    /// The container is to be restarted, and may take so long to end (`None`: as long as its Pod says).
    pub restart: Option<Option<Duration>>,
}

/// One probe: its schedule, its verdict and its thread.
#[derive(Debug)]
struct ContainerProbe {
    course: ProbeHistory,
    grace: Option<Duration>,
    ask: ProbeCall,
    asker: ProbeThread,
    /// An answer is awaited.
    asking: bool,
    /// That answer is about an earlier life.
    stale: bool,
    /// Last failure.
    why: String,
    /// Warning for the user about a good answer, and if it was shown.
    warning: Option<String>,
    warned: bool,
}

impl Probing {
    /// Nothing asked yet. `recipe` is how the container is started, for programs beside it.
    pub fn new(
        plan: &PodPlan,
        namespace: Option<&Namespace>,
        probes: &Probes,
        recipe: &Recipe,
    ) -> Self {
        let inquiry = |probe: &Option<Probe>, kind| {
            let probe = probe.as_ref()?;
            Some(ContainerProbe {
                course: ProbeHistory::new(probe, kind, Instant::now()),
                grace: probe.termination_grace,
                ask: ProbeCall::new(plan, namespace, probe, recipe),
                asker: ProbeThread::default(),
                asking: false,
                stale: false,
                why: "not asked yet".to_owned(),
                warning: None,
                warned: false,
            })
        };
        Self {
            name: recipe.name.clone(),
            startup: inquiry(&probes.startup, ProbeKind::Startup),
            readiness: inquiry(&probes.readiness, ProbeKind::Readiness),
            liveness: inquiry(&probes.liveness, ProbeKind::Liveness),
            life: None,
            was_ready: false,
        }
    }

    /// Takes a plan whose changes do not affect the container itself, such as the address for callers.
    pub fn follow(&mut self, plan: &PodPlan) {
        for inquiry in self.all() {
            inquiry.ask.follow(plan);
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut ContainerProbe> {
        let Self {
            startup,
            readiness,
            liveness,
            ..
        } = self;
        startup.iter_mut().chain(readiness).chain(liveness)
    }

    /// Returns true if a readiness probe decides on traffic.
    pub fn decides(&self) -> bool {
        self.readiness.is_some()
    }

    /// Starts the probes that are due and takes answers. `life` is the container's present run, unless it is being
    /// ended.
    pub fn tick(&mut self, now: Instant, life: Option<ProcessRun>) -> ProbeOutcome {
        let mut outcome = self.decide(now, life);
        if outcome.said.is_none() {
            let name = self.name.clone();
            let warning = self.all().find_map(|inquiry| {
                let warning = inquiry.warning.take()?;
                Some(format!("{name}: its {} {warning}", inquiry.course.name()))
            });
            outcome.said = warning;
        }
        outcome
    }

    fn decide(&mut self, now: Instant, life: Option<ProcessRun>) -> ProbeOutcome {
        if self.life != life {
            self.life = life;
            let since = life.map_or(now, |life| life.since);
            self.all().for_each(|inquiry| inquiry.begin(since));
        }
        let mut outcome = ProbeOutcome::default();
        if life.is_none() {
            return outcome;
        }
        if let Some(startup) = &mut self.startup
            && startup.course.verdict() != Verdict::Good
        {
            if startup.tick(now) == Some(Verdict::Bad) {
                outcome = startup.restart(&self.name, "startup");
            }
            return outcome;
        }
        if let Some(readiness) = &mut self.readiness {
            outcome.said = match readiness.tick(now) {
                Some(Verdict::Good) if self.was_ready => {
                    Some(format!("{} is ready again", self.name))
                }
                Some(Verdict::Bad) => {
                    Some(format!("{} is not ready: {}", self.name, readiness.why))
                }
                _ => None,
            };
            self.was_ready |= readiness.course.verdict() == Verdict::Good;
        }
        if let Some(liveness) = &mut self.liveness
            && liveness.tick(now) == Some(Verdict::Bad)
        {
            return liveness.restart(&self.name, "liveness");
        }
        outcome
    }

    /// Returns the probe that the container still waits for before it takes traffic.
    pub fn missing(&self) -> Option<String> {
        let waits = |inquiry: &&ContainerProbe| inquiry.course.verdict() != Verdict::Good;
        let probed = self.startup.is_some() || self.readiness.is_some() || self.liveness.is_some();
        if probed && self.life.is_none() {
            return Some(format!("{} to run", self.name));
        }
        if let Some(startup) = self.startup.as_ref().filter(waits) {
            return Some(format!("{} to start ({})", self.name, startup.why));
        }
        let readiness = self.readiness.as_ref().filter(waits)?;
        Some(format!("{} to be ready ({})", self.name, readiness.why))
    }
}

impl ContainerProbe {
    fn begin(&mut self, since: Instant) {
        self.course.begin(since);
        self.stale = self.asking;
        "not asked yet".clone_into(&mut self.why);
    }

    /// The verdict, if it has changed.
    fn tick(&mut self, now: Instant) -> Option<Verdict> {
        let mut changed = None;
        if let Some(answer) = self.asker.answer() {
            self.asking = false;
            if !std::mem::take(&mut self.stale) {
                let good = answer.is_ok();
                match answer {
                    Err(why) => self.why = why,
                    Ok(warning) if !self.warned => {
                        self.warned = warning.is_some();
                        self.warning = warning;
                    }
                    Ok(_) => {}
                }
                changed = self.course.answered(now, good);
            }
        }
        if !self.asking && self.course.is_due(now) {
            self.asker.ask(self.ask.clone());
            self.asking = true;
            self.course.asked(now);
        }
        changed
    }

    fn restart(&self, name: &str, probe: &str) -> ProbeOutcome {
        let said = format!(
            "{name} failed its {probe} probe and is stopped: {}",
            self.why
        );
        ProbeOutcome {
            said: Some(said),
            restart: Some(self.grace),
        }
    }
}
