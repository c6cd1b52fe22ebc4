//! Runs all processes of an experiment. Starts the contestants, proves their paths, and measures every planned slice, by the same
//! rules for all. A failure of one contestant is recorded and does not end the slices of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use voile_host::child::SupervisedChild;
use voile_report::profile::Profile;
use voile_report::record::{
    CellKey as Cell, Contestant as Listed, PathProof, Record, SliceRun, ValueKind,
};

use crate::checks::failures;
use crate::contestants::contestant::{Contestant, GeneratorTraffic};
use crate::contestants::named;
use crate::definition::{Definition, ScheduledEvent};
use crate::find::FoundPeers;
use crate::generator::{BrokenSlice, GeneratorRequest};
use crate::hooks::{self, HookPhase};
use crate::idle::{anew, watch};
use crate::machine::instance::is_proxy;
use crate::origin_servers::OriginServerSet;
use crate::plan::{
    ContestantSetup, MAX_PROFILED_CELLS, PlannedSlice, RequestPath, SlicePlan, is_started_anew,
};
use crate::proof::prove;
use crate::run::profile;
use crate::run::slice_checks::{note_clock, note_undone, uncounted};
use crate::shared_processes::Lab;
use crate::slice::measure;
use crate::{events, gate};

/// Length of a proof's marked requests, their rate, and their number of connections.
const PROOF: Duration = Duration::from_millis(300);
const PROOF_RATE: u32 = 1000;
const PROOF_CONNECTIONS: u32 = 16;
/// The sink's proof sends a quarter of a megabyte with each.
const SINK_PROOF_RATE: u32 = 100;
/// Planned slices for each spoiled slice that may be repeated: on a machine that spoils more, repeating takes time and does not
/// help.
const SLICES_PER_REPEAT: usize = 5;
/// Number of slices after which the lab knows how much longer than planned slices take here.
const SLICES_FOR_PACE: usize = 5;

/// Everything that runs during an experiment.
pub(crate) struct RunningSetup<'a> {
    definition: &'a Definition,
    halls: &'a OriginServerSet<'a>,
    found: &'a FoundPeers,
    say: &'a dyn Fn(&str),
    /// Those that could be started; some are ended again and started anew for each of their slices.
    present: BTreeSet<(String, ContestantSetup)>,
    running: Vec<(ContestantSetup, Box<dyn Contestant>)>,
    /// Reasons why the runs of a path do not count.
    broken: BTreeMap<RequestPath, Vec<String>>,
    turn: ExperimentPart,
}

/// Position within an experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExperimentPart {
    /// Number of the repeat, from 1.
    pub(crate) repeat: u32,
    /// First round of this repeat, from 1.
    pub(crate) first_round: u32,
    pub(crate) clock: Clock,
}

/// Time since the experiment began, pauses left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) began: Instant,
    /// Seconds before it was gone on with.
    pub(crate) before: f64,
}

impl Clock {
    pub(crate) fn seconds(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }
}

/// Told after each whole round; an error ends the experiment.
pub(crate) type RoundDone<'a> = dyn FnMut(&mut Record, &[String]) -> Result<(), String> + 'a;

/// A slice, and whether it was the machine that spoiled it.
struct TakenSlice {
    run: SliceRun,
    histogram: String,
    spoiled: bool,
}

impl<'a> RunningSetup<'a> {
    pub(crate) fn new(
        definition: &'a Definition,
        halls: &'a OriginServerSet<'a>,
        found: &'a FoundPeers,
        say: &'a dyn Fn(&str),
        turn: ExperimentPart,
    ) -> Self {
        Self {
            definition,
            halls,
            found,
            say,
            present: BTreeSet::new(),
            running: Vec::new(),
            broken: BTreeMap::new(),
            turn,
        }
    }

    /// Starts every contestant of the definition, once for each outfit that its cells need.
    pub(crate) fn start_all(&mut self, record: &mut Record) {
        let cells = self.definition.cells.iter();
        let wanted: BTreeSet<(&str, ContestantSetup)> = cells
            .map(|cell| (cell.contestant.as_str(), ContestantSetup::of(cell)))
            .collect();
        for (name, outfit) in wanted {
            if self.halls.stopped() {
                return;
            }
            // With thousands of resources, or many outfits, this takes a while.
            (self.say)(&format!("\rstarting {name}{outfit}"));
            self.start_one(name, outfit, record);
        }
        (self.say)("\r");
    }

    fn start_one(&mut self, name: &str, outfit: ContestantSetup, record: &mut Record) {
        let found = self.found;
        let started = self.halls.lab(&outfit).and_then(|(lab, _)| {
            let mut contestant = named(name, &outfit, &self.definition.variants, found)?;
            if lab.network.is_some() && !contestant.captures() {
                return Err(format!(
                    "{name} is not transparent: measured in isolation \"loopback\" only"
                ));
            }
            contestant.start(&lab)?;
            contestant.ready(&lab)?;
            Ok(contestant)
        });
        let at = record.contestants.iter().position(|c| c.name == name);
        let at = at.unwrap_or_else(|| {
            record.contestants.push(Listed {
                name: name.to_owned(),
                ..Listed::default()
            });
            record.contestants.len() - 1
        });
        let listed = &mut record.contestants[at];
        match started {
            Ok(contestant) => {
                if listed.commands.is_empty() {
                    let commands = contestant.commands();
                    let shown = commands.iter().map(|line| self.shown(line, found));
                    listed.commands = shown.collect();
                    listed.terms = contestant.terms();
                    let variants = &self.definition.variants;
                    let build = variants.iter().find(|variant| variant.name == name);
                    if let Some(program) = build.and_then(|build| build.program.as_deref()) {
                        listed.sha256 = crate::environment::sha256(program).unwrap_or_default();
                    }
                }
                if !contestant.version().is_empty() {
                    let versions = &mut record.environment.versions;
                    versions.insert(name.to_owned(), contestant.version());
                }
                self.present.insert((name.to_owned(), outfit.clone()));
                self.running.push((outfit, contestant));
            }
            Err(why) => {
                (self.say)(&format!("{name} is left out: {why}"));
                let first = why.lines().next().unwrap_or_default();
                let first = first.strip_suffix("; it said:").unwrap_or(first);
                let note = format!("{name} is left out: {first}");
                if !record.notes.contains(&note) {
                    record.notes.push(note);
                }
                listed.missing = Some(why);
            }
        }
    }

    /// A command line without the places of programs and folders on this machine.
    fn shown(&self, line: &str, found: &FoundPeers) -> String {
        let mut line = line.replace(&self.halls.voile().display().to_string(), "voile");
        if let Ok((lab, _)) = self.halls.lab(&ContestantSetup::default()) {
            line = line.replace(&lab.folder.display().to_string(), "FOLDER");
        }
        for (name, peer) in found.all() {
            if let Ok(peer) = peer {
                line = line.replace(&peer.path.display().to_string(), name);
            }
        }
        line
    }

    fn order(&self, cell: &Cell, duration: Duration, seed: u64) -> GeneratorRequest {
        GeneratorRequest {
            kind: cell.kind,
            protocol: cell.protocol.clone(),
            rate: cell.rate,
            connections: cell.connections,
            size: cell.shape.response_bytes.unwrap_or(self.definition.size),
            request_bytes: cell.shape.request_bytes,
            intervals: !self.definition.events.is_empty(),
            arrival: cell.arrival.clone(),
            duration,
            warmup: match cell.shape.is_cold() {
                true => Duration::ZERO,
                false => self.definition.warmup,
            },
            seed,
            marker: None,
            sink: false,
            refused: ContestantSetup::of(cell).refusal(),
            token: cell.shape.token.clone(),
            asks: ContestantSetup::of(cell).asks(),
        }
    }

    pub(crate) fn prove_all(&mut self, record: &mut Record) {
        let ways: BTreeSet<RequestPath> =
            self.definition.cells.iter().map(RequestPath::of).collect();
        let mut running = std::mem::take(&mut self.running);
        for (outfit, contestant) in &mut running {
            let own_name = contestant.name().to_owned();
            let own = |way: &&RequestPath| way.contestant == own_name && way.outfit == *outfit;
            for way in ways.iter().filter(own) {
                if self.halls.stopped() {
                    break;
                }
                self.prove_one(contestant.as_mut(), way, record);
            }
        }
        self.running = running;
        self.end_those_started_anew();
    }

    /// Ends contestants that start anew for each slice. The process that proved the path would share memory with the measured one.
    fn end_those_started_anew(&mut self) {
        let cells = &self.definition.cells;
        let stays = |name: &str| {
            cells
                .iter()
                .any(|cell| cell.contestant == name && !is_started_anew(cell))
        };
        self.running.retain_mut(|(_, contestant)| {
            let stays = stays(contestant.name());
            if !stays {
                contestant.stop();
            }
            stays
        });
    }

    fn prove_one(
        &mut self,
        contestant: &mut dyn Contestant,
        way: &RequestPath,
        record: &mut Record,
    ) {
        let Ok((lab, _)) = self.halls.lab(&way.outfit) else {
            return;
        };
        let Some(route) = contestant.route(&lab, way) else {
            let why = format!("it does not support {way}");
            (self.say)(&why);
            self.broken.insert(way.clone(), vec![why]);
            return;
        };
        (self.say)(&format!("proving the path of {way}"));
        let order = self.proof_order(way);
        match prove(&lab, contestant, way, &route, &order) {
            Ok(proven) => {
                let tls = &mut record.environment.tls;
                if let Some(hello) = proven.hello {
                    tls.insert(way.contestant.clone(), hello.in_words());
                } else if let Some(word) = contestant.tls_by_its_own_word().filter(|_| way.tls) {
                    tls.insert(way.contestant.clone(), format!("{word} (its own word)"));
                }
                let reasons = failures(&proven.proof);
                for reason in &reasons {
                    (self.say)(&format!("{way}: {reason}"));
                }
                let known = |proof: &PathProof| {
                    let path = |proof: &PathProof| {
                        let path = [&proof.mode, &proof.protocol];
                        let mesh = [&proof.verdict, &proof.hit, &proof.token];
                        (path.map(String::clone), mesh.map(String::clone), proof.tls)
                    };
                    proof.contestant == proven.proof.contestant
                        && path(proof) == path(&proven.proof)
                        && failures(proof).is_empty()
                };
                // Of paths that differ in numbers alone, the record shows the last, which has the highest numbers.
                match record.proofs.iter().position(known) {
                    Some(at) if reasons.is_empty() => record.proofs[at] = proven.proof,
                    _ => record.proofs.push(proven.proof),
                }
                if !reasons.is_empty() {
                    self.broken.insert(way.clone(), reasons);
                }
            }
            Err(BrokenSlice::Stopped) => {}
            Err(BrokenSlice::Failed(why)) => {
                (self.say)(&format!("{way}: {why}"));
                self.broken
                    .insert(way.clone(), vec![format!("proof of path failed: {why}")]);
            }
        }
    }

    /// Marked requests of a proof: few, on a schedule, for any kind of cell.
    fn proof_order(&self, way: &RequestPath) -> GeneratorRequest {
        let sink = way.protocol == "tcp" && self.definition.is_bulk();
        GeneratorRequest {
            kind: ValueKind::Latency,
            protocol: way.protocol.clone(),
            rate: match sink {
                true => SINK_PROOF_RATE,
                false => self.proof_rate(way),
            },
            connections: PROOF_CONNECTIONS,
            size: self.definition.size,
            request_bytes: None,
            intervals: false,
            arrival: "uniform".to_owned(),
            duration: PROOF.min(self.definition.slice),
            warmup: Duration::ZERO,
            seed: self.definition.seed,
            marker: None,
            sink,
            refused: way.outfit.refusal(),
            token: way.outfit.token.clone(),
            asks: way.outfit.asks(),
        }
    }

    /// Rate of a proof. With tokens, it is at most that of the slowest cell: checking a thousand issuers takes a peer 12 ms.
    fn proof_rate(&self, way: &RequestPath) -> u32 {
        let cells = self.definition.cells.iter();
        let own = cells.filter(|cell| cell.rate > 0 && RequestPath::of(cell) == *way);
        let slowest = own.map(|cell| cell.rate).min();
        match slowest.filter(|_| way.outfit.believes()) {
            Some(rate) => rate.min(PROOF_RATE),
            None => PROOF_RATE,
        }
    }

    /// Measures all rounds. A slice that the machine spoiled is measured once more at the end of its round, so that the pairs
    /// within rounds stay whole. A slice that its contestant failed is not. `round_done` gets the record after each whole round.
    pub(crate) fn run_slices(
        &mut self,
        record: &mut Record,
        histograms: &mut Vec<String>,
        round_done: &mut RoundDone<'_>,
    ) -> Result<(), String> {
        let plan = SlicePlan::new(self.definition, &|cell| {
            let needs = (cell.contestant.clone(), ContestantSetup::of(cell));
            self.present.contains(&needs)
        });
        let mut again_at_most = plan.slices.len() / SLICES_PER_REPEAT;
        let mut spoiled: Vec<&PlannedSlice> = Vec::new();
        let began = Instant::now();
        let skipped = plan.before_round(self.turn.first_round);
        for (done, planned) in plan.slices.iter().enumerate().skip(skipped) {
            self.tell(&plan, skipped, done, began);
            let Ok(taken) = self.slice(planned, record) else {
                break;
            };
            if let Some(why) = self.halls.lost() {
                return Err(why);
            }
            if taken.spoiled {
                spoiled.push(planned);
            }
            note_undone(record, &taken.run);
            note_clock(record, &taken.run);
            record.runs.push(taken.run);
            histograms.push(taken.histogram);
            let next = plan.slices.get(done + 1);
            if next.is_some_and(|next| next.round == planned.round) {
                continue;
            }
            for planned in spoiled.drain(..).take(again_at_most) {
                again_at_most -= 1;
                let Ok(taken) = self.slice(planned, record) else {
                    break;
                };
                if let Some(why) = self.halls.lost() {
                    return Err(why);
                }
                record.runs.push(SliceRun {
                    again: true,
                    ..taken.run
                });
                histograms.push(taken.histogram);
            }
            let kept = record.experiment.rounds_whole;
            record.experiment.rounds_whole = self.round(planned);
            // A round that could not be written does not count as whole.
            round_done(record, histograms)
                .inspect_err(|_| record.experiment.rounds_whole = kept)?;
        }
        (self.say)("\r");
        Ok(())
    }

    /// Number of that round over all repeats.
    fn round(&self, planned: &PlannedSlice) -> u32 {
        planned.round + (self.turn.repeat - 1) * self.definition.rounds
    }

    /// Says where we are, and how long the rest will take at the pace so far.
    fn tell(&self, plan: &SlicePlan, skipped: usize, done: usize, began: Instant) {
        let planned = &plan.slices[done];
        let expected = plan
            .left(skipped)
            .saturating_sub(plan.left(done))
            .as_secs_f64();
        let pace = if done >= skipped + SLICES_FOR_PACE && expected > 0.0 {
            began.elapsed().as_secs_f64() / expected
        } else {
            1.0
        };
        (self.say)(&format!(
            "\rround {}/{}, slice {}/{}, about {:.0} s left: {}",
            planned.round,
            self.definition.rounds,
            done + 1,
            plan.slices.len(),
            plan.left(done).as_secs_f64() * pace,
            planned.cell
        ));
    }

    /// Takes one slice; a generator that brings nothing makes an invalid one. An error means that the user asked to end.
    fn slice(
        &mut self,
        planned: &PlannedSlice,
        record: &Record,
    ) -> Result<TakenSlice, BrokenSlice> {
        if self.halls.stopped() {
            return Err(BrokenSlice::Stopped);
        }
        let sequence = record.runs.len() as u32 + 1;
        let taken = self.hook(planned, HookPhase::Before).and_then(|()| {
            if is_started_anew(&planned.cell) {
                self.started_anew(planned, sequence, record)
            } else {
                self.running_all_the_time(planned, sequence, record)
            }
        });
        let after = self.hook(planned, HookPhase::After);
        let mut taken = match taken {
            Ok(taken) => taken,
            Err(BrokenSlice::Stopped) => return Err(BrokenSlice::Stopped),
            Err(BrokenSlice::Failed(why)) => TakenSlice {
                run: Self::failed_run(planned, why),
                histogram: String::new(),
                spoiled: false,
            },
        };
        match after {
            Err(BrokenSlice::Stopped) => return Err(BrokenSlice::Stopped),
            Err(BrokenSlice::Failed(why)) => {
                taken.run.invalid_reasons.push(why);
                taken.run.valid = false;
            }
            Ok(()) => {}
        }
        let run = &mut taken.run;
        run.round = self.round(planned);
        run.repeat = self.turn.repeat;
        run.control = planned.control;
        run.sequence = sequence;
        run.started_seconds = self.turn.clock.seconds() - self.definition.slice.as_secs_f64();
        Ok(taken)
    }

    /// Does what the cell's hook says for that moment.
    fn hook(&self, planned: &PlannedSlice, when: HookPhase) -> Result<(), BrokenSlice> {
        let way = RequestPath::of(&planned.cell);
        let (lab, server) = self.halls.lab(&way.outfit).map_err(BrokenSlice::Failed)?;
        let mut running = self.running.iter();
        let its = running.find(|(outfit, contestant)| {
            *outfit == way.outfit && contestant.name() == way.contestant
        });
        let mut instances = its.map_or_else(Vec::new, |(_, its)| its.instances(&way));
        instances.push(server.clone());
        hooks::around(&lab, self.definition, planned, when, &instances)
    }

    /// A slice with processes of its own: nothing happens in it, or they are measured from their first request on.
    fn started_anew(
        &self,
        planned: &PlannedSlice,
        sequence: u32,
        record: &Record,
    ) -> Result<TakenSlice, BrokenSlice> {
        let cell = &planned.cell;
        let way = RequestPath::of(cell);
        if let Some(reasons) = self.broken.get(&way) {
            return Err(BrokenSlice::Failed(reasons.join("; ")));
        }
        let (lab, _) = self.halls.lab(&way.outfit).map_err(BrokenSlice::Failed)?;
        let folder = tempfile::Builder::new()
            .prefix("anew-")
            .tempdir_in(lab.folder)
            .map_err(|e| BrokenSlice::Failed(format!("a temporary folder: {e}")))?;
        let lab = Lab {
            folder: folder.path(),
            bounds: lab.bounds.anew(),
            ..lab
        };
        let variants = &self.definition.variants;
        let mut contestant = named(&cell.contestant, &way.outfit, variants, self.found)
            .map_err(BrokenSlice::Failed)?;
        anew(&lab, contestant.as_mut(), |contestant| {
            if cell.kind != ValueKind::Idle {
                return self.measured(&lab, contestant, planned, sequence, record);
            }
            Ok(TakenSlice {
                run: watch(&lab, contestant, cell, self.definition.slice)?,
                histogram: String::new(),
                spoiled: false,
            })
        })
    }

    fn running_all_the_time(
        &mut self,
        planned: &PlannedSlice,
        sequence: u32,
        record: &Record,
    ) -> Result<TakenSlice, BrokenSlice> {
        let cell = &planned.cell;
        let outfit = ContestantSetup::of(cell);
        let (lab, _) = self.halls.lab(&outfit).map_err(BrokenSlice::Failed)?;
        let mut running = std::mem::take(&mut self.running);
        let mut all = running.iter_mut();
        let found =
            all.find(|(its, contestant)| *its == outfit && contestant.name() == cell.contestant);
        let taken = match found {
            Some((_, its)) => self.measured(&lab, its.as_mut(), planned, sequence, record),
            None => Err(BrokenSlice::Failed("it does not run".to_owned())),
        };
        self.running = running;
        taken
    }

    /// One slice under load.
    fn measured(
        &self,
        lab: &Lab<'_>,
        contestant: &mut dyn Contestant,
        planned: &PlannedSlice,
        sequence: u32,
        record: &Record,
    ) -> Result<TakenSlice, BrokenSlice> {
        let cell = &planned.cell;
        let way = RequestPath::of(cell);
        let seed = self.definition.seed ^ u64::from(sequence);
        let order = self.order(cell, self.definition.slice, seed);
        let (_, server) = self.halls.lab(&way.outfit).map_err(BrokenSlice::Failed)?;
        contestant.alive(lab).map_err(BrokenSlice::Failed)?;
        let route = contestant
            .route(lab, &way)
            .ok_or_else(|| BrokenSlice::Failed(format!("it does not support {way}")))?;
        let mut shared = contestant.instances(&way);
        shared.push(contestant.server(&way).unwrap_or_else(|| server.clone()));
        let before = contestant.counts(&way);
        let host = &record.environment.host;
        let events: &[ScheduledEvent] = if cell.is_baseline() || cell.kind != ValueKind::Latency {
            &[]
        } else {
            &self.definition.events
        };
        let mut meanwhile = |load: &mut SupervisedChild, part| {
            events::happen(lab, load, contestant, (&way, &route), events, part)
        };
        let measured = measure(lab, cell, &route, &order, &shared, host, &mut meanwhile);
        if !events.is_empty() {
            contestant.settle(lab).map_err(BrokenSlice::Failed)?;
        }
        let (mut run, generated) = measured?;
        if events.iter().any(|event| event.action.replaces_proxies()) {
            // A replaced process has taken its CPU clock with it.
            run.processes.retain(|process| !is_proxy(&process.role));
        }
        let after = contestant.counts(&way);
        let machine = gate::reasons(self.definition, &run, &generated);
        let carried = GeneratorTraffic {
            requests: generated.ok,
            connections: cell.connections.into(),
        };
        let expected: Vec<_> = contestant.expected(&way, &route, carried).collect();
        let what = if !contestant.counts_requests(&way) {
            "connections"
        } else if way.outfit.refusal().is_some() {
            "refusals"
        } else if expected
            .iter()
            .all(|(_, wanted)| *wanted == carried.requests)
        {
            "good answers"
        } else {
            "good answers or connections"
        };
        let mut its_own = if events.is_empty() {
            uncounted(&expected, before, after, what)
        } else {
            Vec::new()
        };
        its_own.extend(self.broken.get(&way).into_iter().flatten().cloned());
        // These reasons come from a set clock, or from a measuring window at the wrong time.
        let machine: Vec<String> = run.invalid_reasons.drain(..).chain(machine).collect();
        let spoiled = !machine.is_empty() && its_own.is_empty() && run.errors == 0;
        run.invalid_reasons.extend(machine);
        run.invalid_reasons.extend(its_own);
        run.valid = run.invalid_reasons.is_empty();
        Ok(TakenSlice {
            run,
            histogram: generated.latency_histogram,
            spoiled,
        })
    }

    /// Looks at each cell that was measured more closely, once.
    pub(crate) fn profile_all(&mut self, record: &mut Record) {
        record.profiles.clear();
        let mut cells: Vec<&Cell> = self.definition.cells.iter().collect();
        cells.retain(|cell| {
            !is_started_anew(cell) && !self.broken.contains_key(&RequestPath::of(cell))
        });
        let all = cells.len();
        cells.retain(|cell| ContestantSetup::of(cell).endpoints().is_none());
        if cells.len() < all {
            let note = "Cells with several endpoints were not profiled.";
            record.notes.push(note.to_owned());
        }
        if cells.len() > MAX_PROFILED_CELLS {
            let left = cells.split_off(MAX_PROFILED_CELLS).len();
            let most = MAX_PROFILED_CELLS;
            record.notes.push(format!(
                "Only the first {most} cells were profiled, {left} were not."
            ));
        }
        let (all, each) = (cells.len(), SlicePlan::looking(self.definition));
        for (done, cell) in cells.into_iter().enumerate() {
            if self.halls.stopped() {
                return;
            }
            let left = each.as_secs_f64() * (all - done) as f64 / all as f64;
            (self.say)(&format!(
                "\rprofiling cell {}/{all}, about {left:.0} s left: {cell}",
                done + 1
            ));
            match self.profile_one(cell, record) {
                Ok(found) => record.profiles.push(found),
                Err(BrokenSlice::Stopped) => return,
                Err(BrokenSlice::Failed(why)) => {
                    let note = format!("{cell} could not be profiled: {why}");
                    (self.say)(&note);
                    record.notes.push(note);
                }
            }
        }
    }

    fn profile_one(&mut self, cell: &Cell, record: &Record) -> Result<Profile, BrokenSlice> {
        let way = RequestPath::of(cell);
        let order = self.order(cell, self.definition.slice, self.definition.seed);
        let (lab, server) = self.halls.lab(&way.outfit).map_err(BrokenSlice::Failed)?;
        let mut running = self.running.iter_mut();
        let found = running.find(|(outfit, contestant)| {
            *outfit == way.outfit && contestant.name() == cell.contestant
        });
        let (_, contestant) =
            found.ok_or_else(|| BrokenSlice::Failed("it does not run".to_owned()))?;
        contestant.alive(&lab).map_err(BrokenSlice::Failed)?;
        let route = contestant
            .route(&lab, &way)
            .ok_or_else(|| BrokenSlice::Failed(format!("it does not support {way}")))?;
        let mut instances = contestant.instances(&way);
        instances.push(contestant.server(&way).unwrap_or_else(|| server.clone()));
        profile::look(&profile::ProfiledCell {
            lab: &lab,
            cell,
            route: &route,
            order: &order,
            instances: &instances,
            host: &record.environment.host,
        })
    }

    fn failed_run(planned: &PlannedSlice, why: String) -> SliceRun {
        SliceRun {
            invalid_reasons: vec![why],
            ..SliceRun::of(&planned.cell)
        }
    }

    pub(crate) fn stop_all(&mut self) {
        for (_, contestant) in &mut self.running {
            contestant.stop();
        }
        self.running.clear();
    }
}
