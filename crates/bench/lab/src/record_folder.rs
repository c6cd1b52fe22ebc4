//! The record folder: written once at the end of a run, and drawn again from itself.
//!
//! ```text
//! record.json.gz  report.html  results.csv  definition.toml  environment.json  flames/<cell>-<role>.{folded,svg} (--profile)
//! histograms/<cell>.hdr (merged, V2 base64)   samples/slices.jsonl.gz (one line a slice: its run and its histogram)
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use voile_report::gzip;
use voile_report::plots::Plot;
use voile_report::record::scene::SceneKind;
use voile_report::record::{CellKey, MergedHistogram, Record, SliceRun};
use voile_report::scenes;
use voile_report::summarise::summarise;

use crate::path_privacy;

/// The record of an experiment, in its folder.
pub const RECORD: &str = "record.json.gz";
/// Its slices: after each round a gzip member of their lines is appended.
pub(crate) const SLICES: &str = "samples/slices.jsonl.gz";

/// `voile-results/<date>-<name>` in the working folder.
#[must_use]
pub fn default_folder(name: &str, started: &str) -> PathBuf {
    let stamp: String = started
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    Path::new("voile-results").join(format!("{stamp}-{name}"))
}

/// Replaces a file as a whole. If the process ends while writing, or the disk is full, the old file stays.
///
/// # Errors
/// When it cannot be written; says why.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    replace(path, text.as_bytes())
}

/// The same, compressed by gzip.
pub(crate) fn write_compressed(path: &Path, text: &str) -> Result<(), String> {
    replace(path, &gzip::compress(text))
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.map_err(|e| {
        let _ = fs::remove_file(&part);
        format!("writing {}: {e}", path.display())
    })
}

/// A slice's line in [`SLICES`].
pub(crate) fn slice_line(run: &SliceRun, histogram: &str) -> String {
    let line = serde_json::json!({ "run": run, "latency_histogram": histogram });
    format!("{line}\n")
}

/// The record without the places of this machine.
pub(crate) fn placeless<R: Serialize + DeserializeOwned>(record: &R) -> Result<R, String> {
    let mut value = serde_json::to_value(record).map_err(|e| e.to_string())?;
    path_privacy::without_in(&mut value);
    serde_json::from_value(value).map_err(|e| e.to_string())
}

fn make(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|e| format!("making {}: {e}", path.display()))
}

/// Result of a run.
pub struct ExperimentOutcome {
    /// The record, summed up.
    pub record: Record,
    /// Each slice's histogram in the order of `record.runs`: HdrHistogram V2 deflated, base64.
    pub histograms: Vec<String>,
    /// Folder of the record; each round is there already.
    pub folder: PathBuf,
    /// Error that ended the run early; none if the run was complete or the user ended it.
    pub failed: Option<String>,
}

impl ExperimentOutcome {
    /// Writes the remaining files: the summed-up record, its environment, histograms and drawings.
    ///
    /// # Errors
    /// When something cannot be written; says what.
    pub fn write(&self) -> Result<(), String> {
        let folder = self.folder.as_path();
        make(&folder.join("samples"))?;
        make(&folder.join("histograms"))?;
        write_compressed(&folder.join(RECORD), &self.record.to_json())?;
        let environment = serde_json::to_string_pretty(&self.record.environment);
        let environment = environment.map_err(|e| e.to_string())? + "\n";
        write(&folder.join("environment.json"), &environment)?;
        let mut lines = String::new();
        for (run, histogram) in self.record.runs.iter().zip(&self.histograms) {
            lines.push_str(&slice_line(run, histogram));
        }
        write_compressed(&folder.join(SLICES), &lines)?;
        for merged in &self.record.histograms {
            write(
                &folder.join("histograms").join(histogram_name(merged)),
                &(merged.hdr.clone() + "\n"),
            )?;
        }
        draw(&self.record, folder)
    }
}

fn histogram_name(merged: &MergedHistogram) -> String {
    format!("{}.hdr", cell_name(&merged.cell))
}

/// A name per cell, made of all properties that distinguish it from others.
fn cell_name(cell: &CellKey) -> String {
    let tls = if cell.tls { "mtls" } else { "plaintext" };
    let rate = match cell.rate {
        0 => "max".to_owned(),
        rate => rate.to_string(),
    };
    let shape: String = cell
        .shape
        .to_string()
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .map(|word| format!("-{word}"))
        .collect();
    format!(
        "{}-{}-{tls}-{}-{}-{rate}-{}{shape}",
        cell.contestant, cell.mode, cell.protocol, cell.arrival, cell.connections
    )
}

fn draw(record: &Record, folder: &Path) -> Result<(), String> {
    write(
        &folder.join("report.html"),
        &voile_report::html::render(record),
    )?;
    write(
        &folder.join("results.csv"),
        &voile_report::csv::render(record),
    )?;
    flames(record, folder)
}

/// Each flame graph by itself, and its stacks as other tools take them.
fn flames(record: &Record, folder: &Path) -> Result<(), String> {
    let folder = folder.join("flames");
    for profile in record.profiles.iter().filter(|p| !p.flames.is_empty()) {
        make(&folder)?;
        let cell = cell_name(&profile.cell);
        for flame in &profile.flames {
            let name = |end: &str| folder.join(format!("{cell}-{}.{end}", flame.role));
            write(&name("folded"), &flame.folded())?;
            write(&name("svg"), &voile_report::profile::svg(flame))?;
        }
    }
    Ok(())
}

/// A file format of plots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Vectors: scales, follows light and dark.
    Svg,
    /// Pixels, on white.
    Png,
}

/// Writes each plot into `plots/` of that folder; returns how many.
///
/// # Errors
/// When one cannot be drawn or written.
pub fn write_plots<'a>(
    plots: impl IntoIterator<Item = &'a Plot>,
    folder: &Path,
    formats: &[Format],
) -> Result<usize, String> {
    let folder = folder.join("plots");
    make(&folder)?;
    let mut count = 0;
    for plot in plots {
        for format in formats {
            match format {
                Format::Svg => {
                    let file = voile_report::picture::svg_file(&plot.svg);
                    write(&folder.join(format!("{}.svg", plot.id)), &file)?;
                }
                Format::Png => {
                    let png = voile_report::picture::png(&plot.svg)?;
                    replace(&folder.join(format!("{}.png", plot.id)), &png)?;
                }
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Reads a record folder, sums it up anew from its runs and draws it again. Older records hold more of the machine's paths than
/// newer ones do; the drawing removes them.
///
/// # Errors
/// When there is no record, it cannot be read, or the drawing cannot be written.
pub fn redraw(folder: &Path) -> Result<Record, String> {
    let here = |kind: &SceneKind| folder.join(kind.file()).is_file();
    if let Some(kind) = SceneKind::ALL.into_iter().find(here) {
        let record = read_scene(kind, &folder.join(kind.file()))?;
        draw_scene(&record, folder)?;
        return Ok(record);
    }
    let mut record = read(folder)?;
    summarise(&mut record);
    draw(&record, folder)?;
    Ok(record)
}

/// Writes the folder of a scene: its record and the drawings of it.
///
/// # Errors
/// When something cannot be written; says what.
pub fn write_scene(record: &Record, folder: &Path) -> Result<(), String> {
    let record = placeless(record)?;
    make(folder)?;
    let name = format!("{}.json", record.experiment.name);
    write(&folder.join(name), &record.to_json())?;
    draw_scene(&record, folder)
}

/// The record of a scene as its file has it.
///
/// # Errors
/// When the record holds a number that JSON has no word for.
pub fn scene_json(record: &Record) -> Result<String, String> {
    Ok(placeless(record)?.to_json())
}

fn draw_scene(record: &Record, folder: &Path) -> Result<(), String> {
    let files = scenes::drawings(record);
    files
        .iter()
        .try_for_each(|(name, text)| write(&folder.join(name), text))
}

fn read_scene(kind: SceneKind, path: &Path) -> Result<Record, String> {
    let why = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = fs::read_to_string(path).map_err(|e| why(&e))?;
    let mut value = serde_json::from_str(&text).map_err(|e| why(&e))?;
    path_privacy::without_in(&mut value);
    let mut record = scenes::read(kind, value).map_err(|e| why(&e))?;
    scenes::conclude(&mut record);
    Ok(record)
}

/// A table of figures that a script of `tests/cluster` wrote. It holds no runs, and nothing draws it.
const FIGURES: &str = "figures.json";

/// Reads the record of a folder.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn read(folder: &Path) -> Result<Record, String> {
    let path = folder.join(RECORD);
    let mut scenes = SceneKind::ALL.into_iter().map(SceneKind::file);
    let none = |e: std::io::Error| match scenes.find(|name| folder.join(name).is_file()) {
        Some(name) => format!(
            "{} has {name}, not the record of an experiment: `voile bench report` can draw it, but it cannot be compared with others",
            folder.display()
        ),
        None if folder.join(FIGURES).is_file() => format!(
            "{} has {FIGURES}, not the record of an experiment: it is a table to be read as it is, and cannot be drawn or compared",
            folder.display()
        ),
        None => format!("reading {}: {e}", path.display()),
    };
    let bytes = fs::read(&path).map_err(none)?;
    let why = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = gzip::decompress(&bytes).map_err(|e| why(&e))?;
    let mut value = serde_json::from_str(&text).map_err(|e| why(&e))?;
    path_privacy::without_in(&mut value);
    Record::from_json(&value.to_string()).map_err(|e| why(&e))
}
