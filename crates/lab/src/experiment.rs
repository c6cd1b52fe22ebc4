//! Runs an experiment from its definition to its record. Whatever happens (a contestant that does not start, one that dies
//! half way, Ctrl-C), what was measured is kept, what was started is ended, and the record says what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use voile_load::samples::Samples;
use voile_report::record::{CellKey, Contestant as Listed, Experiment, FORMAT, Merged, Record};
use voile_report::summarise::summarise;

use crate::contestants::{Contestant, Instance, named};
use crate::definition::Definition;
use crate::environment::{environment, now, warnings};
use crate::find::Found;
use crate::gate;
use crate::plan::{Cell, Plan, Planned};
use crate::proof::{failures, prove};
use crate::slice::{Broken, Generated, Order, measure, merge_histogram};
use crate::target::{Lab, start_echo};

/// How long the marked requests of a proof are sent.
const PROOF: Duration = Duration::from_millis(300);

/// What to run and with what.
pub struct Settings {
    /// The experiment.
    pub definition: Definition,
    /// The `voile` program to measure, which is also generator, server and relay.
    pub voile: PathBuf,
    /// Peers on this machine.
    pub found: Found,
    /// How the user called us, for the record.
    pub command: String,
}

/// What came of it.
pub struct Outcome {
    /// The record, summed up.
    pub record: Record,
    /// Each slice's histogram in the order of `record.runs`: HdrHistogram V2 deflated, base64.
    pub histograms: Vec<String>,
}

/// Runs it. `say` receives lines for people; `stopped` is asked often.
///
/// # Errors
/// When not even the baseline can be measured.
pub fn run(
    settings: &Settings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<Outcome, String> {
    let folder = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    let began = Instant::now();
    let definition = &settings.definition;
    let mut record = new_record(settings);
    let (echo, address) = start_echo(&settings.voile, folder.path(), &[], stopped)?;
    let lab = Lab {
        voile: settings.voile.clone(),
        folder: folder.path(),
        echo: address,
        workers: definition.workers,
        stopped,
    };
    let server = Instance {
        name: "echo".to_owned(),
        role: "server",
        pids: vec![echo.pid()],
    };
    let mut court = Court {
        definition,
        lab: &lab,
        say,
        running: Vec::new(),
        server,
        broken: BTreeMap::new(),
        began,
    };
    court.start_all(&settings.found, &mut record);
    court.prove_all(&mut record);
    let histograms = court.run_slices(&mut record);
    court.stop_all();
    drop(echo);
    record.experiment.interrupted = stopped();
    if record.experiment.interrupted {
        record.notes.push(
            "Interrupted: rounds that were not measured are missing; what was measured is kept."
                .to_owned(),
        );
    }
    record.experiment.took_seconds = began.elapsed().as_secs_f64();
    record.experiment.rounds_done = record.runs.iter().map(|run| run.round).max().unwrap_or(0);
    record.histograms = merged(&record, &histograms);
    unequal_tls(&mut record);
    summarise(&mut record);
    if record.runs.is_empty() {
        return Err(if record.experiment.interrupted {
            "interrupted before anything was measured"
        } else {
            "nothing could be measured"
        }
        .to_owned());
    }
    Ok(Outcome { record, histograms })
}

fn new_record(settings: &Settings) -> Record {
    let definition = &settings.definition;
    let mut record = Record {
        format: FORMAT,
        experiment: Experiment {
            name: definition.name.clone(),
            started_at: now(),
            command: settings.command.clone(),
            rounds: definition.rounds,
            slice_seconds: definition.slice.as_secs_f64(),
            warmup_seconds: definition.warmup.as_secs_f64(),
            size_bytes: definition.size,
            workers: definition.workers,
            seed: definition.seed,
            validity: gate::in_words(&definition.validity),
            ..Experiment::default()
        },
        environment: environment(&settings.voile),
        ..Record::default()
    };
    record.notes.extend(warnings(&record.environment));
    if !definition.validity.heed_generator {
        record.notes.push(
            "Smoke test: it shows that everything works; its figures mean nothing.".to_owned(),
        );
    }
    record
}

/// Everything that runs during an experiment.
struct Court<'a> {
    definition: &'a Definition,
    lab: &'a Lab<'a>,
    say: &'a dyn Fn(&str),
    running: Vec<Box<dyn Contestant>>,
    server: Instance,
    /// Why the runs of a cell's path do not count, by contestant, mode and tls.
    broken: BTreeMap<(String, String, bool), Vec<String>>,
    began: Instant,
}

impl Court<'_> {
    fn start_all(&mut self, found: &Found, record: &mut Record) {
        let names: BTreeSet<&str> = self
            .definition
            .cells
            .iter()
            .map(|cell| cell.contestant.as_str())
            .collect();
        for name in names {
            if (self.lab.stopped)() {
                return;
            }
            let started = named(name, found).and_then(|mut contestant| {
                contestant.start(self.lab)?;
                contestant.ready(self.lab)?;
                Ok(contestant)
            });
            let mut listed = Listed {
                name: name.to_owned(),
                ..Listed::default()
            };
            match started {
                Ok(contestant) => {
                    listed.commands = contestant.commands();
                    listed.terms = contestant.terms();
                    if !contestant.version().is_empty() {
                        record
                            .environment
                            .versions
                            .insert(name.to_owned(), contestant.version());
                    }
                    self.running.push(contestant);
                }
                Err(why) => {
                    (self.say)(&format!("{name} is left out: {why}"));
                    record.notes.push(format!(
                        "{name} is left out: {}",
                        why.lines().next().unwrap_or_default()
                    ));
                    listed.missing = Some(why);
                }
            }
            record.contestants.push(listed);
        }
    }

    fn order(&self, cell: &Cell, duration: Duration, seed: u64) -> Order {
        Order {
            rate: self.definition.rate,
            connections: self.definition.connections,
            size: self.definition.size,
            arrival: cell.arrival.clone(),
            duration,
            warmup: self.definition.warmup,
            seed,
            marker: None,
        }
    }

    fn prove_all(&mut self, record: &mut Record) {
        let paths: BTreeSet<(String, String, bool)> = self
            .definition
            .cells
            .iter()
            .map(|cell| (cell.contestant.clone(), cell.mode.clone(), cell.tls))
            .collect();
        let mut running = std::mem::take(&mut self.running);
        for contestant in &mut running {
            let own_name = contestant.name();
            for path in paths.iter().filter(|path| path.0 == own_name) {
                if (self.lab.stopped)() {
                    break;
                }
                let (name, mode, tls) = path;
                let Some(route) = contestant.route(self.lab, mode, *tls) else {
                    self.broken.insert(
                        path.clone(),
                        vec![format!("{name} cannot carry mode {mode}")],
                    );
                    continue;
                };
                let cell = Cell {
                    contestant: name.clone(),
                    mode: mode.clone(),
                    tls: *tls,
                    arrival: "uniform".to_owned(),
                };
                (self.say)(&format!("proving the path of {cell}"));
                let order = self.order(
                    &cell,
                    PROOF.min(self.definition.slice),
                    self.definition.seed,
                );
                match prove(self.lab, contestant.as_mut(), mode, *tls, &route, &order) {
                    Ok(proven) => {
                        if let Some(hello) = proven.hello {
                            record
                                .environment
                                .tls
                                .insert(name.clone(), hello.in_words());
                        } else if let Some(word) = contestant.tls_by_its_own_word().filter(|_| *tls)
                        {
                            record
                                .environment
                                .tls
                                .insert(name.clone(), format!("{word} (its own word)"));
                        }
                        let reasons = failures(&proven.proof);
                        for reason in &reasons {
                            (self.say)(&format!("{cell}: {reason}"));
                        }
                        if !reasons.is_empty() {
                            self.broken.insert(path.clone(), reasons);
                        }
                        record.proofs.push(proven.proof);
                    }
                    Err(Broken::Stopped) => break,
                    Err(Broken::Failed(why)) => {
                        (self.say)(&format!("{cell}: {why}"));
                        self.broken
                            .insert(path.clone(), vec![format!("proof of path failed: {why}")]);
                    }
                }
            }
        }
        self.running = running;
    }

    fn run_slices(&mut self, record: &mut Record) -> Vec<String> {
        let mut histograms = Vec::new();
        let present: BTreeSet<&str> = self
            .running
            .iter()
            .map(|contestant| contestant.name())
            .collect();
        let plan = Plan::new(self.definition, &|cell| {
            present.contains(cell.contestant.as_str())
        });
        let total = plan.slices.len();
        for (done, planned) in plan.slices.iter().enumerate() {
            if (self.lab.stopped)() {
                break;
            }
            let left = plan.left(done).as_secs();
            (self.say)(&format!(
                "\rround {}/{}, slice {}/{total}, about {left} s left: {}",
                planned.round,
                self.definition.rounds,
                done + 1,
                planned.cell
            ));
            match self.slice(planned, done as u32 + 1, record) {
                Ok((run, histogram)) => {
                    record.runs.push(run);
                    histograms.push(histogram);
                }
                Err(Broken::Stopped) => break,
                Err(Broken::Failed(why)) => {
                    record
                        .runs
                        .push(self.failed_run(planned, done as u32 + 1, why));
                    histograms.push(String::new());
                }
            }
        }
        (self.say)("\r");
        histograms
    }

    fn slice(
        &mut self,
        planned: &Planned,
        sequence: u32,
        record: &Record,
    ) -> Result<(voile_report::record::Run, String), Broken> {
        let cell = &planned.cell;
        let order = self.order(
            cell,
            self.definition.slice,
            self.definition.seed ^ u64::from(sequence),
        );
        let at = self
            .running
            .iter()
            .position(|contestant| contestant.name() == cell.contestant);
        let contestant =
            &mut self.running[at.ok_or_else(|| Broken::Failed("it does not run".to_owned()))?];
        contestant.alive(self.lab).map_err(Broken::Failed)?;
        let route = contestant
            .route(self.lab, &cell.mode, cell.tls)
            .ok_or_else(|| {
                Broken::Failed(format!(
                    "{} cannot carry mode {}",
                    cell.contestant, cell.mode
                ))
            })?;
        let mut shared = contestant.instances(&cell.mode);
        shared.push(self.server.clone());
        let before = contestant.requests();
        let (mut run, generated) = measure(
            self.lab,
            cell,
            &route,
            &order,
            &shared,
            &record.environment.host,
        )?;
        let after = contestant.requests();
        run.round = planned.round;
        run.control = planned.control;
        run.sequence = sequence;
        run.started_seconds =
            self.began.elapsed().as_secs_f64() - self.definition.slice.as_secs_f64();
        run.invalid_reasons
            .extend(gate::reasons(self.definition, &run, &generated));
        run.invalid_reasons
            .extend(uncounted(&route, before, after, &generated));
        if let Some(reasons) =
            self.broken
                .get(&(cell.contestant.clone(), cell.mode.clone(), cell.tls))
        {
            run.invalid_reasons.extend(reasons.iter().cloned());
        }
        run.valid = run.invalid_reasons.is_empty();
        Ok((run, generated.latency_histogram))
    }

    fn failed_run(
        &self,
        planned: &Planned,
        sequence: u32,
        why: String,
    ) -> voile_report::record::Run {
        let cell = &planned.cell;
        voile_report::record::Run {
            contestant: cell.contestant.clone(),
            mode: cell.mode.clone(),
            tls: cell.tls,
            protocol: "http1".to_owned(),
            arrival: cell.arrival.clone(),
            rate: self.definition.rate,
            connections: self.definition.connections,
            round: planned.round,
            control: planned.control,
            sequence,
            started_seconds: self.began.elapsed().as_secs_f64(),
            invalid_reasons: vec![why],
            ..voile_report::record::Run::default()
        }
    }

    fn stop_all(&mut self) {
        for contestant in &mut self.running {
            contestant.stop();
        }
        self.running.clear();
    }
}

type Counts = Result<Option<BTreeMap<&'static str, u64>>, String>;

/// Each proxy on the path must have counted at least what the generator measured.
fn uncounted(
    route: &crate::contestants::Route,
    before: Counts,
    after: Counts,
    generated: &Generated,
) -> Vec<String> {
    let (before, after) = match (before, after) {
        (Ok(Some(before)), Ok(Some(after))) => (before, after),
        (Ok(None), _) | (_, Ok(None)) => return Vec::new(),
        (Err(why), _) | (_, Err(why)) => return vec![why],
    };
    route
        .proxies()
        .filter_map(|role| {
            let grown = after
                .get(role)
                .unwrap_or(&0)
                .saturating_sub(*before.get(role).unwrap_or(&0));
            (grown < generated.ok).then(|| {
                format!(
                    "the {role} counted {grown} requests, the generator {}: some went another way",
                    generated.ok
                )
            })
        })
        .collect()
}

/// Merges the valid slices' histograms of each cell, for display.
fn merged(record: &Record, histograms: &[String]) -> Vec<Merged> {
    let mut cells: BTreeMap<CellKey, Samples> = BTreeMap::new();
    for (run, histogram) in record
        .runs
        .iter()
        .zip(histograms)
        .filter(|(run, _)| run.valid && !run.control)
    {
        // A histogram that cannot be read is only missing from the display.
        let _ = merge_histogram(cells.entry(run.key()).or_default(), histogram);
    }
    cells
        .into_iter()
        .map(|(key, samples)| {
            let CellKey {
                contestant,
                mode,
                tls,
                arrival,
            } = key;
            Merged {
                contestant,
                mode,
                tls,
                arrival,
                hdr: samples.encode(),
            }
        })
        .collect()
}

/// Contestants that negotiated other parameters are still shown, but the reader is told.
fn unequal_tls(record: &mut Record) {
    let distinct: BTreeSet<&str> = record
        .environment
        .tls
        .values()
        .map(|words| words.trim_end_matches(" (its own word)"))
        .collect();
    if distinct.len() > 1 {
        let all: Vec<String> = record
            .environment
            .tls
            .iter()
            .map(|(name, words)| format!("{name}: {words}"))
            .collect();
        record.notes.push(format!(
            "TLS parameters differ between contestants: {}.",
            all.join("; ")
        ));
    }
}
