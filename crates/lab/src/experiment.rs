//! Runs an experiment from its definition to its record. Whatever happens (a contestant that does not start, one that dies
//! half way, Ctrl-C), what was measured is kept, what was started is ended, and the record says what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use voile_load::samples::Samples;
use voile_report::record::{CellKey, Experiment, FORMAT, Kind, Merged, Record};
use voile_report::summarise::summarise;

use crate::court::Court;
use crate::definition::Definition;
use crate::environment::{environment, now, warnings};
use crate::find::Found;
use crate::gate;
use crate::idle::possible;
use crate::slice::merge_histogram;
use crate::target::{Echo, HTTP, Lab, TCP, TCP_SINK, start_echo};

/// What to run and with what.
pub struct Settings {
    /// The experiment.
    pub definition: Definition,
    /// The `voile` program to measure, which is also generator, server and relay.
    pub voile: PathBuf,
    /// Peers on this machine.
    pub found: Found,
    /// How often all of it runs, processes started anew each time, into one record; usually 1.
    pub repeats: u32,
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
    let began = Instant::now();
    voile_host::machine::raise_descriptor_limit();
    let mut record = new_record(settings);
    let mut histograms = Vec::new();
    for repeat in 1..=settings.repeats.max(1) {
        if stopped() {
            break;
        }
        if settings.repeats > 1 {
            say(&format!("run {repeat} of {}", settings.repeats));
        }
        let more = run_once(settings, repeat, began, &mut record, say, stopped);
        // What earlier repeats measured is kept.
        match more {
            Ok(more) => histograms.extend(more),
            Err(why) if record.runs.is_empty() => return Err(why),
            Err(why) => {
                record.notes.push(format!("Run {repeat} failed: {why}"));
                break;
            }
        }
    }
    record.experiment.interrupted = stopped();
    if record.runs.is_empty() {
        return Err(if record.experiment.interrupted {
            "interrupted before anything was measured"
        } else {
            "nothing could be measured"
        }
        .to_owned());
    }
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
    let record = placeless(&record)?;
    Ok(Outcome { record, histograms })
}

/// The record without the places of this machine.
fn placeless(record: &Record) -> Result<Record, String> {
    let mut value = serde_json::to_value(record).map_err(|e| e.to_string())?;
    crate::places::without_in(&mut value);
    serde_json::from_value(value).map_err(|e| e.to_string())
}

/// Starts everything, measures all rounds into the record, ends everything. Returns the new slices' histograms.
fn run_once(
    settings: &Settings,
    repeat: u32,
    began: Instant,
    record: &mut Record,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<String>, String> {
    let folder = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    // Another order in each repeat.
    let definition = Definition {
        seed: settings.definition.seed + u64::from(repeat - 1),
        ..settings.definition.clone()
    };
    let (echo, http) = start_echo(&settings.voile, folder.path(), HTTP, &[], stopped)?;
    let tcp_server = if definition.is_bulk() { TCP_SINK } else { TCP };
    let (tcp_echo, tcp) = start_echo(&settings.voile, folder.path(), tcp_server, &[], stopped)?;
    let lab = Lab {
        voile: settings.voile.clone(),
        folder: folder.path(),
        echo: Echo { http, tcp },
        workers: definition.workers,
        stopped,
    };
    let echoes = vec![echo.pid(), tcp_echo.pid()];
    let mut court = Court::new(
        &definition,
        &lab,
        &settings.found,
        say,
        echoes,
        began,
        repeat,
    );
    court.start_all(record);
    court.prove_all(record);
    let histograms = court.run_slices(record);
    court.stop_all();
    drop((echo, tcp_echo));
    Ok(histograms)
}

fn new_record(settings: &Settings) -> Record {
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
            seed: definition.seed,
            validity: gate::in_words(&definition.validity),
            targets: definition.targets.clone(),
            ..Experiment::default()
        },
        environment: environment(&settings.voile),
        ..Record::default()
    };
    record.notes.extend(warnings(&record.environment));
    let most = definition.cells.iter().filter(|c| c.kind == Kind::Idle);
    if let Some(asked) = most.map(|cell| cell.connections).max() {
        let open = possible(asked);
        if open < asked {
            record.notes.push(format!(
                "Of {asked} idle connections {open} are opened: a process here may hold {} descriptors, and a sidecar \
                 needs two for each.",
                voile_host::machine::descriptor_limit().unwrap_or(0)
            ));
        }
    }
    if !definition.validity.heed_generator {
        record.notes.push(
            "Smoke test: it shows that everything works; its figures mean nothing.".to_owned(),
        );
    }
    record
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
        .map(|(cell, samples)| Merged {
            cell,
            hdr: samples.encode(),
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
