//! Saves an experiment while it runs: after each round its slices and the current record. Ctrl-C or a crash of the machine loses
//! at most the current round. Also reads a saved experiment to resume it.
//!
//! ```text
//! DIR/definition.toml   DIR/samples/slices.jsonl.gz (grows)   DIR/record.json.gz (replaced as a whole, `rounds_whole` true of it)
//! ```

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use voile_report::gzip;
use voile_report::record::{Environment, Experiment, Record};
use voile_report::summarise::summarise;

use crate::record_folder::{self, RECORD, SLICES};

/// Folder of a record, and the choice to resume an existing record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordKeeping {
    /// In a folder of its own below `voile-results`.
    Default,
    /// In that folder, which holds no record yet.
    New(PathBuf),
    /// In that folder, after the rounds that its record holds.
    Resume(PathBuf),
}

/// A record folder that grows.
#[derive(Debug)]
pub(crate) struct Ledger {
    folder: PathBuf,
    /// Slices that are written.
    slices: usize,
    /// True if this run created the folder.
    made: bool,
}

/// A record and its slices' histograms, in the same order.
pub(crate) type Measured = (Record, Vec<String>);

impl Ledger {
    /// Begins a folder; that nothing can be written there is found out before anything is measured.
    pub(crate) fn begin(folder: PathBuf, definition: &str) -> Result<Self, String> {
        if folder.join(RECORD).exists() {
            return Err(format!(
                "{} already has a record: use another --out, or continue it with --resume",
                folder.display()
            ));
        }
        let made = !folder.exists();
        let samples = folder.join("samples");
        fs::create_dir_all(&samples).map_err(|e| format!("making {}: {e}", samples.display()))?;
        let ledger = Self {
            folder,
            slices: 0,
            made,
        };
        record_folder::write(&ledger.folder.join("definition.toml"), definition)?;
        record_folder::write(&ledger.slices_path(), "")?;
        Ok(ledger)
    }

    fn slices_path(&self) -> PathBuf {
        self.folder.join(SLICES)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes what is new, then the record as it is.
    pub(crate) fn keep(&mut self, record: &Record, histograms: &[String]) -> Result<(), String> {
        let path = self.slices_path();
        let failed = |e: std::io::Error| format!("writing {}: {e}", path.display());
        let mut file = File::options().append(true).open(&path).map_err(failed)?;
        let slices = record.runs.iter().zip(histograms).skip(self.slices);
        let lines: String = slices
            .map(|(run, histogram)| record_folder::slice_line(run, histogram))
            .collect();
        file.write_all(&gzip::compress(&lines)).map_err(failed)?;
        let mut record = record_folder::placeless(record)?;
        summarise(&mut record);
        record_folder::write_compressed(&self.folder.join(RECORD), &record.to_json())?;
        self.slices = record.runs.len();
        Ok(())
    }

    /// Removes a folder of ours in which nothing was kept.
    pub(crate) fn discard(&self) {
        if self.made && self.slices == 0 && !self.folder.join(RECORD).exists() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    /// Reads a folder to go on with: rounds that were not measured to their end are measured anew, so that pairs within
    /// rounds stay pairs.
    pub(crate) fn resume(folder: PathBuf, definition: &str) -> Result<(Self, Measured), String> {
        let mut record = record_folder::read(&folder)?;
        let was = folder.join("definition.toml");
        let text =
            fs::read_to_string(&was).map_err(|e| format!("reading {}: {e}", was.display()))?;
        if text != definition {
            return Err(format!(
                "{} was started with another definition (see its definition.toml): a record has only one",
                folder.display()
            ));
        }
        let whole = record.experiment.rounds_whole;
        let mut histograms = histograms(&folder)?;
        if histograms.len() < record.runs.len() {
            return Err(format!(
                "{}: {SLICES} has {} slices and {RECORD} {}: something was lost",
                folder.display(),
                histograms.len(),
                record.runs.len()
            ));
        }
        histograms.truncate(record.runs.len());
        let kept: Vec<bool> = record.runs.iter().map(|run| run.round <= whole).collect();
        let mut keep = kept.iter().copied();
        record.runs.retain(|_| keep.next().unwrap_or(false));
        let mut keep = kept.iter().copied();
        histograms.retain(|_| keep.next().unwrap_or(false));
        let mut lines = String::new();
        for (run, histogram) in record.runs.iter().zip(&histograms) {
            lines += &record_folder::slice_line(run, histogram);
        }
        let ledger = Self {
            slices: record.runs.len(),
            folder,
            made: false,
        };
        record_folder::write_compressed(&ledger.slices_path(), &lines)?;
        Ok((ledger, (record, histograms)))
    }
}

/// The histograms of a folder's slices. Slices of a member that was cut off are left out from the first damage on.
fn histograms(folder: &Path) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct LedgerLine {
        latency_histogram: String,
    }
    let path = folder.join(SLICES);
    let bytes = fs::read(&path).map_err(|e| format!("reading {}: {e}", path.display()))?;
    let text = gzip::decompress_undamaged(&bytes);
    let lines = text.lines().map(serde_json::from_str::<LedgerLine>);
    Ok(lines
        .map_while(Result::ok)
        .map(|line| line.latency_histogram)
        .collect())
}

/// Reason why the new measurement does not belong to the saved one.
pub(crate) fn differs(then: &Record, now: &Record) -> Option<String> {
    let experiment = |e: &Experiment| {
        format!(
            "slices of {} s after {} s, seed {}, {} repeats, isolation {}",
            e.slice_seconds,
            e.warmup_seconds,
            e.seed,
            e.repeats,
            if e.isolation.is_empty() {
                "loopback"
            } else {
                &e.isolation
            }
        )
    };
    let environment = |e: &Environment| {
        let build = e.voile_sha256.get(..12).unwrap_or("?");
        format!(
            "{}, kernel {}, {} cores, {} build {build}",
            e.cpu, e.kernel, e.cores, e.profile
        )
    };
    let rounds = now.experiment.repeats > 1 && then.experiment.rounds != now.experiment.rounds;
    [
        (experiment(&then.experiment), experiment(&now.experiment)),
        (
            environment(&then.environment),
            environment(&now.environment),
        ),
        (
            then.far.as_ref().map(environment).unwrap_or_default(),
            now.far.as_ref().map(environment).unwrap_or_default(),
        ),
        if rounds {
            let words = |e: &Experiment| format!("{} rounds a repeat", e.rounds);
            (words(&then.experiment), words(&now.experiment))
        } else {
            (String::new(), String::new())
        },
    ]
    .into_iter()
    .find(|(then, now)| then != now)
    .map(|(then, now)| format!("it was started with {then}; now it would use {now}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use voile_report::record::{FORMAT, SCENE_FORMAT, SliceRun};

    fn record(rounds: &[u32], whole: u32) -> Record {
        let run = |round: &u32| SliceRun {
            round: *round,
            valid: true,
            ..SliceRun::default()
        };
        Record {
            format: FORMAT,
            experiment: Experiment {
                rounds_whole: whole,
                ..Experiment::default()
            },
            runs: rounds.iter().map(run).collect(),
            ..Record::default()
        }
    }

    fn marks(number: usize) -> Vec<String> {
        (0..number).map(|at| format!("h{at}")).collect()
    }

    #[test]
    fn what_is_gone_on_with_are_whole_rounds_and_nothing_of_a_round_that_was_cut() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = base.path().join("out");
        let mut ledger = Ledger::begin(folder.clone(), "def").expect("begun");
        ledger.keep(&record(&[1, 1], 1), &marks(2)).expect("kept");
        ledger
            .keep(&record(&[1, 1, 2], 1), &marks(3))
            .expect("kept");
        // A machine that ended while the next line was written.
        let path = ledger.slices_path();
        let next = gzip::compress("{\"run\":{\"contestant\":\"voile\"}}\n");
        let cut = [fs::read(&path).expect("there"), next[..25].to_vec()].concat();
        fs::write(&path, cut).expect("written");
        let (again, (record, histograms)) =
            Ledger::resume(folder.clone(), "def").expect("it can be gone on with");
        assert_eq!((record.runs.len(), histograms), (2, marks(2)));
        assert_eq!(again.slices, 2);
        let lines = gzip::decompress(&fs::read(&path).expect("there")).expect("undamaged");
        assert_eq!(lines.lines().count(), 2);
        let why = Ledger::resume(folder.clone(), "other").expect_err("another definition");
        assert!(why.contains("another definition"), "{why}");
        let why = Ledger::begin(folder, "def").expect_err("a record is there");
        assert!(why.contains("--resume"), "{why}");
    }

    #[test]
    fn a_folder_from_a_newer_version_is_named_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let newer = format!("{{\"format\": {}}}", SCENE_FORMAT + 1);
        fs::write(folder.path().join(RECORD), gzip::compress(&newer)).expect("written");
        let why = Ledger::resume(folder.path().to_owned(), "").expect_err("newer");
        assert!(why.contains("newer than this program's"), "{why}");
    }

    #[test]
    fn another_build_or_another_machine_does_not_go_into_the_same_record() {
        let (then, mut now) = (record(&[], 0), record(&[], 0));
        assert_eq!(differs(&then, &now), None);
        now.experiment.rounds = 9;
        assert_eq!(differs(&then, &now), None, "more rounds are welcome");
        now.environment.voile_sha256 = "0123456789abcdef".to_owned();
        let why = differs(&then, &now).expect("another build");
        assert!(why.contains("0123456789ab"), "{why}");
    }

    #[test]
    fn an_empty_folder_of_ours_is_not_left_behind() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = base.path().join("out");
        Ledger::begin(folder.clone(), "").expect("begun").discard();
        assert!(!folder.exists());
    }
}
