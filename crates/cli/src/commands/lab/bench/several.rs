//! Several experiments, one after the other: where each has its record, what is done when one of them fails or the user ends them
//! all, and how they are gone on with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use voile_lab::{Definition, RecordKeeping};
use voile_report::record::Record;

use super::{BenchOptions, FinishedExperiment, experiment, keeping, overridden};
use crate::commands::lab::bench::outcome::{Done, failed, usage};

/// A folder with a record's folder in it for each experiment, by its name.
pub(super) struct RecordFolders(PathBuf);

impl RecordFolders {
    /// That of all presets, where the user names none.
    pub(super) fn all() -> Self {
        Self::named("all")
    }

    /// That of experiments with a name in common, where the user names none.
    pub(super) fn named(name: &str) -> Self {
        Self(voile_lab::default_folder(name, &voile_lab::now()))
    }

    /// Selects the folder for the record of that experiment, or returns its record if that is
    /// complete.
    fn keeping(
        &self,
        definition: &Definition,
        run: &BenchOptions,
    ) -> Result<KeptRecord, (u8, String)> {
        let folder = self.0.join(&definition.name);
        if run.resume.is_none() || !is_record(&folder) {
            return Ok(KeptRecord::Wanted(RecordKeeping::New(folder)));
        }
        let mut record = voile_lab::read(&folder).map_err(failed)?;
        if record.experiment.rounds_whole < definition.rounds * run.repeat {
            return Ok(KeptRecord::Wanted(RecordKeeping::Resume(folder)));
        }
        voile_report::summarise::summarise(&mut record);
        Ok(KeptRecord::Whole(Box::new(record)))
    }
}

enum KeptRecord {
    Wanted(RecordKeeping),
    Whole(Box<Record>),
}

fn is_record(folder: &Path) -> bool {
    folder.join(voile_lab::RECORD).is_file()
}

/// The folder of all of them, as the command line names it.
fn below(
    definitions: &[Definition],
    run: &BenchOptions,
    usual: Option<RecordFolders>,
) -> Result<Option<RecordFolders>, (u8, String)> {
    if let Some(folder) = run.out.as_ref().or(run.resume.as_ref()) {
        let shown = folder.display();
        if is_record(folder) {
            return Err(usage(format!(
                "{shown} is the folder of one record; for several experiments give the folder above their records"
            )));
        }
        let none = !definitions
            .iter()
            .any(|one| is_record(&folder.join(&one.name)));
        if run.resume.is_some() && none {
            return Err(usage(format!("{shown} has no record of these experiments")));
        }
        return Ok(Some(RecordFolders(folder.clone())));
    }
    Ok(usual)
}

/// Message on how one of several experiments ended, with the folder that `--resume` continues.
fn told(name: &str, why: &str, goes_on: Option<&Path>) -> String {
    match goes_on.filter(|_| !why.contains("--resume")) {
        Some(folder) => format!("{name}: {why}; continue with --resume {}", folder.display()),
        None => format!("{name}: {why}"),
    }
}

/// Runs each experiment. A failure of one of several is reported and does not stop the others.
pub(super) fn run_all(
    definitions: Vec<Definition>,
    run: &BenchOptions,
    usual: Option<RecordFolders>,
) -> Result<(Vec<Record>, Done), (u8, String)> {
    let number = definitions.len();
    let definitions: Vec<Definition> = definitions
        .into_iter()
        .map(|definition| overridden(definition, run))
        .collect::<Result<_, _>>()?;
    let below = match number {
        0 | 1 => None,
        _ => below(&definitions, run, usual)?,
    };
    let goes_on = below.as_ref().map(|below| below.0.as_path());
    let (mut records, mut failure, mut planned) = (Vec::new(), None, Duration::ZERO);
    for (at, definition) in definitions.into_iter().enumerate() {
        let name = definition.name.clone();
        let kept = match &below {
            Some(below) => below.keeping(&definition, run)?,
            None => KeptRecord::Wanted(keeping(run)),
        };
        let keeping = match kept {
            KeptRecord::Wanted(keeping) => keeping,
            KeptRecord::Whole(record) => {
                println!("{name} is complete and left as it is");
                records.push(*record);
                continue;
            }
        };
        if number > 1 && !run.dry_run {
            eprintln!("{name}: experiment {} of {number}", at + 1);
        }
        match experiment(definition, run, keeping, goes_on) {
            Ok(FinishedExperiment::Planned(takes)) => planned += takes,
            Ok(FinishedExperiment::Measured(record)) => records.push(*record),
            Err((code, why)) if number > 1 && !voile_host::interrupt::asked() => {
                eprintln!("voile bench: {name}: {why}");
                failure = Some((code, format!("{name} failed")));
            }
            Err((code, why)) if number > 1 => return Err((code, told(&name, &why, goes_on))),
            Err(failure) => return Err(failure),
        }
    }
    if run.dry_run && number > 1 {
        let minutes = planned.as_secs().div_ceil(60);
        println!("{number} experiments, about {minutes} min in all");
    }
    Ok((records, failure.map_or(Ok(()), Err)))
}
