//! Runs an experiment from its definition to its record. After any failure (a contestant that does not start, a contestant that
//! dies half way, Ctrl-C) the measured slices are kept and the started processes are ended. The record states the missing parts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use voile_load::samples::Samples;
use voile_report::record::{CellKey, Experiment, FORMAT, MergedHistogram, Record, ValueKind};
use voile_report::summarise::summarise;

use crate::agent::{AgentAddress, AgentConnection};
use crate::calibration::calibrate;
use crate::definition::{Definition, EventAction, Isolation, ScheduledEvent};
use crate::environment::{environment, now, warnings};
use crate::find::FoundPeers;
use crate::origin_servers::OriginServerSet;
use crate::plan::possible;
use crate::record_folder::{ExperimentOutcome, default_folder, placeless};
use crate::record_writer::{Ledger, RecordKeeping, differs};
use crate::running_setup::{Clock, ExperimentPart, RunningSetup};
use crate::slice::merge_histogram;
use crate::{gate, hooks, process_bounds};

/// Settings of a run.
pub struct Settings {
    /// The experiment.
    pub definition: Definition,
    /// The `voile` program to measure, which is also generator, server and relay.
    pub voile: PathBuf,
    /// Peers on this machine.
    pub found: FoundPeers,
    /// Number of runs of the whole experiment into one record, with processes started anew each time; usually 1.
    pub repeats: u32,
    /// True if each cell is profiled after all rounds.
    pub profile: bool,
    /// The user's command line, for the record.
    pub command: String,
    /// Folder of the record.
    pub keeping: RecordKeeping,
    /// Agent of the far end; none if it is on this machine.
    pub agent: Option<AgentAddress>,
}

/// An experiment while it runs.
struct RunningExperiment<'a> {
    settings: &'a Settings,
    far: Option<&'a AgentConnection>,
    say: &'a dyn Fn(&str),
    stopped: &'a dyn Fn() -> bool,
    record: Record,
    histograms: Vec<String>,
    ledger: Ledger,
    began: Instant,
    /// Run time before the record was resumed.
    before: f64,
}

/// Checks that this machine has what the definition asks for, before anything is started. `apart` is true if some of it runs
/// elsewhere.
///
/// # Errors
/// Names of missing cores, control groups or programs of hooks.
pub fn can_run(definition: &Definition, apart: bool) -> Result<(), String> {
    process_bounds::possible(definition, apart)?;
    hooks::possible(definition)
}

/// Runs it. `say` receives lines for people; `stopped` is asked often.
///
/// # Errors
/// When not even the baseline can be measured, or this machine cannot do what the definition asks.
pub fn run(
    settings: &Settings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentOutcome, String> {
    voile_host::machine::raise_descriptor_limit();
    can_run(&settings.definition, settings.agent.is_some())?;
    let far = match &settings.agent {
        Some(agent) => {
            apart(settings)?;
            Some(AgentConnection::call(agent, &environment(&settings.voile))?)
        }
        None => None,
    };
    let mut running = RunningExperiment::begin(settings, far.as_ref(), say, stopped)?;
    let ended = running.all_repeats();
    match &ended {
        Err(why) if running.record.runs.is_empty() => {
            running.ledger.discard();
            Err(why.clone())
        }
        _ => running.conclude(ended.err()),
    }
}

impl<'a> RunningExperiment<'a> {
    fn begin(
        settings: &'a Settings,
        far: Option<&'a AgentConnection>,
        say: &'a dyn Fn(&str),
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, String> {
        let fresh = new_record(settings, far)?;
        let text = &settings.definition.text;
        let experiment = &fresh.experiment;
        let (ledger, record, histograms) = match &settings.keeping {
            RecordKeeping::Resume(folder) => {
                let (ledger, (mut record, histograms)) = Ledger::resume(folder.clone(), text)?;
                if let Some(why) = differs(&record, &fresh) {
                    return Err(format!("{} cannot be continued: {why}", folder.display()));
                }
                go_on(&mut record, &fresh)?;
                (ledger, record, histograms)
            }
            RecordKeeping::New(folder) => (Ledger::begin(folder.clone(), text)?, fresh, Vec::new()),
            RecordKeeping::Default => {
                let folder = default_folder(&experiment.name, &experiment.started_at);
                (Ledger::begin(folder, text)?, fresh, Vec::new())
            }
        };
        Ok(Self {
            settings,
            far,
            say,
            stopped,
            before: record.experiment.took_seconds,
            record,
            histograms,
            ledger,
            began: Instant::now(),
        })
    }

    fn all_repeats(&mut self) -> Result<(), String> {
        let rounds = self.settings.definition.rounds;
        let done = self.record.experiment.rounds_whole;
        let repeats = self.settings.repeats.max(1);
        for repeat in done / rounds + 1..=repeats {
            if (self.stopped)() {
                break;
            }
            if repeats > 1 {
                (self.say)(&format!("run {repeat} of {repeats}"));
            }
            let first = (done + 1).saturating_sub((repeat - 1) * rounds).max(1);
            if let Err(why) = self.run_once(repeat, first) {
                // The slices of earlier repeats and rounds are kept.
                if !self.record.runs.is_empty() {
                    let note = format!("Run {repeat} failed: {why}");
                    self.record.notes.push(note);
                }
                return Err(why);
            }
        }
        Ok(())
    }

    /// Starts everything, measures all rounds from that one on into the record, ends everything.
    fn run_once(&mut self, repeat: u32, first_round: u32) -> Result<(), String> {
        let settings = self.settings;
        let folder = tempfile::Builder::new()
            .prefix("voile-lab-")
            .tempdir()
            .map_err(|e| format!("a temporary folder: {e}"))?;
        // Another order in each repeat.
        let definition = Definition {
            seed: settings.definition.seed + u64::from(repeat - 1),
            ..settings.definition.clone()
        };
        let halls = OriginServerSet::open(
            &definition,
            &settings.voile,
            folder.path(),
            self.far,
            self.stopped,
        )?;
        let clock = Clock {
            began: self.began,
            before: self.before,
        };
        let turn = ExperimentPart {
            repeat,
            first_round,
            clock,
        };
        let mut court = RunningSetup::new(&definition, &halls, &settings.found, self.say, turn);
        court.start_all(&mut self.record);
        court.prove_all(&mut self.record);
        let ledger = &mut self.ledger;
        let mut whole = |record: &mut Record, histograms: &[String]| {
            record.experiment.took_seconds = clock.seconds();
            // Until it ends, it is as good as interrupted.
            record.experiment.interrupted = true;
            ledger.keep(record, histograms)
        };
        let kept = court.run_slices(&mut self.record, &mut self.histograms, &mut whole);
        if settings.profile && repeat == settings.repeats.max(1) && kept.is_ok() {
            court.profile_all(&mut self.record);
        }
        court.stop_all();
        kept
    }

    fn conclude(self, failed: Option<String>) -> Result<ExperimentOutcome, String> {
        let Self {
            mut record,
            histograms,
            ledger,
            ..
        } = self;
        let interrupted = (self.stopped)();
        record.experiment.interrupted = interrupted || failed.is_some();
        if record.runs.is_empty() {
            ledger.discard();
            return Err(if interrupted {
                "interrupted before anything was measured"
            } else {
                "nothing could be measured"
            }
            .to_owned());
        }
        if interrupted {
            record.notes.push(
                "Interrupted: rounds that were not measured are missing; the measured rounds are kept."
                    .to_owned(),
            );
        }
        record.experiment.took_seconds = self.before + self.began.elapsed().as_secs_f64();
        record.experiment.rounds_done = record.runs.iter().map(|run| run.round).max().unwrap_or(0);
        record.histograms = merged(&record, &histograms);
        unequal_tls(&mut record);
        summarise(&mut record);
        Ok(ExperimentOutcome {
            record: placeless(&record)?,
            histograms,
            folder: ledger.folder().to_owned(),
            failed,
        })
    }
}

/// Makes a record that was interrupted one that goes on.
fn go_on(record: &mut Record, fresh: &Record) -> Result<(), String> {
    let whole = record.experiment.rounds_whole;
    let wanted = fresh.experiment.rounds * fresh.experiment.repeats.max(1);
    if whole >= wanted {
        return Err(format!(
            "nothing to do: all {wanted} rounds are measured; use --rounds for more"
        ));
    }
    record.experiment.rounds = fresh.experiment.rounds;
    record
        .notes
        .retain(|note| !note.starts_with("Interrupted:"));
    record.notes.push(format!(
        "Continued at {} after round {whole}, with new processes.",
        fresh.experiment.started_at
    ));
    Ok(())
}

/// Checks that the experiment can run with its ends on two machines.
fn apart(settings: &Settings) -> Result<(), String> {
    let definition = &settings.definition;
    if definition.isolation == Isolation::Netns {
        return Err(
            "isolation \"netns\" puts client and server into network namespaces of one machine, but with --agent they are on two: use isolation \"loopback\" (sidecars are called by address), or remove --agent"
                .to_owned(),
        );
    }
    let upgrades = |event: &ScheduledEvent| event.action == EventAction::UpgradeProxy;
    if definition.events.iter().any(upgrades) {
        return Err(
            "event upgrade-proxy hands over between two processes through a socket in a shared folder, which an agent does not support: use restart-proxy, or remove --agent and separate client and server with isolation \"netns\""
                .to_owned(),
        );
    }
    Ok(())
}

/// Adds the agent's machine, and notes on the two machines for the reader.
fn note_far(record: &mut Record, settings: &Settings, far: &AgentConnection) -> Result<(), String> {
    let mut there = far.environment();
    let here = record.environment.clone();
    if here.calibration.is_some() {
        there.calibration = Some(far.calibrate()?);
    }
    let near = &here.host;
    record.notes.push(format!(
        "Servers and the server's sidecars ran at an agent on {}, everything else on {near}: latencies include the network in between.",
        far.host()
    ));
    if far.one_machine() {
        record.notes.push(
            "The agent runs on this machine, too: its CPU is part of the machine's, and is counted once."
                .to_owned(),
        );
    }
    for (name, peer) in &settings.found.all() {
        let (Ok(peer), Some(version)) = (peer, there.versions.get(*name)) else {
            continue;
        };
        if peer.version != *version {
            record.notes.push(format!(
                "{name} is version {} here and {version} at the agent.",
                peer.version
            ));
        }
    }
    if here.voile_sha256 != there.voile_sha256 {
        record
            .notes
            .push("The two ends run different builds of voile.".to_owned());
    }
    let notes = warnings(&there);
    let notes = notes
        .into_iter()
        .map(|note| format!("On {}: {note}", far.host()));
    record.notes.extend(notes);
    record.far = Some(there);
    Ok(())
}

fn new_record(settings: &Settings, far: Option<&AgentConnection>) -> Result<Record, String> {
    let definition = &settings.definition;
    let mut record = Record {
        format: FORMAT,
        experiment: Experiment {
            name: definition.name.clone(),
            title: definition.title.clone(),
            started_at: now(),
            command: settings.command.clone(),
            rounds: definition.rounds,
            repeats: settings.repeats.max(1),
            slice_seconds: definition.slice.as_secs_f64(),
            warmup_seconds: definition.warmup.as_secs_f64(),
            size_bytes: definition.size,
            workers: definition.workers,
            isolation: definition.isolation.word().to_owned(),
            cpus: definition.cpus.clone(),
            limits: definition
                .limits
                .map_or(String::new(), |limits| limits.in_words()),
            seed: definition.seed,
            validity: gate::in_words(&definition.validity),
            targets: definition.targets.clone(),
            claims: definition.claims.clone(),
            ..Experiment::default()
        },
        environment: environment(&settings.voile),
        ..Record::default()
    };
    // A smoke test measures nothing, so there is nothing to be set beside another machine's.
    if definition.validity.heed_generator {
        record.environment.calibration = Some(calibrate());
    }
    record.notes.extend(warnings(&record.environment));
    if let Some(far) = far {
        note_far(&mut record, settings, far)?;
    }
    let most = definition
        .cells
        .iter()
        .filter(|c| c.kind == ValueKind::Idle);
    if let Some(asked) = most.map(|cell| cell.connections).max() {
        let open = possible(asked);
        if open < asked {
            record.notes.push(format!(
                "Of {asked} idle connections only {open} are opened: a process here may have {} descriptors, and a sidecar needs two for each connection.",
                voile_host::machine::descriptor_limit().unwrap_or(0)
            ));
        }
    }
    for missing in &definition.missing {
        record.notes.push(format!("Missing: {missing}."));
    }
    if !definition.validity.heed_generator && definition.events.is_empty() {
        record.notes.push(
            "Smoke test: it only checks that everything works; its figures mean nothing."
                .to_owned(),
        );
    }
    Ok(record)
}

/// Merges the valid slices' histograms of each cell, for display.
fn merged(record: &Record, histograms: &[String]) -> Vec<MergedHistogram> {
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
        .map(|(cell, samples)| MergedHistogram {
            cell,
            hdr: samples.encode(),
        })
        .collect()
}

/// Contestants that negotiated other parameters are still shown, with a note for the reader.
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
