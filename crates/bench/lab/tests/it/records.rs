//! Records of earlier versions are drawn again, and tell nothing of the machine they came from.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use voile_report::gzip;
use voile_report::record::Record;
use voile_report::record::scene::SceneKind;
use voile_report::scenes;

pub(crate) fn committed() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../benchmarks/records");
    let entries = fs::read_dir(folder).expect("the committed records");
    let mut folders: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

#[test]
fn every_committed_record_can_be_read() {
    let folders = committed();
    assert!(folders.len() > 5);
    for folder in folders {
        if folder.join(voile_lab::RECORD).is_file() {
            let record = voile_lab::read(&folder).expect("it is read");
            assert!(!record.runs.is_empty(), "{}", folder.display());
        }
    }
}

#[test]
fn a_record_of_another_kind_is_called_what_it_is_where_an_experiments_is_wanted() {
    for folder in committed() {
        let Err(why) = voile_lab::read(&folder) else {
            continue;
        };
        assert!(
            why.contains(".json, not the record of an experiment: "),
            "{why}"
        );
    }
    let figures = committed()
        .into_iter()
        .find(|p| p.ends_with("2026-11-29-cluster"));
    let why = voile_lab::read(&figures.expect("it is committed")).expect_err("it has no runs");
    assert!(
        why.contains("figures.json") && why.contains("cannot be drawn"),
        "{why}"
    );
    let nothing = tempfile::tempdir().expect("a folder");
    let why = voile_lab::read(nothing.path()).expect_err("nothing is there");
    assert!(why.starts_with("reading "), "{why}");
}

#[test]
fn an_old_record_is_drawn_again_without_the_places_it_names() {
    let program = std::env::current_exe().expect("this program");
    let place = program.parent().expect("a folder").display().to_string();
    for name in [
        "2026-11-21-speed-telemetry-3",
        "2026-11-23-agreement-3",
        "2026-11-23-generators-4",
    ] {
        let all = committed();
        let from = all.iter().find(|path| path.ends_with(name));
        let from = from.expect("it is committed");
        let folder = tempfile::tempdir().expect("a folder");
        for file in [voile_lab::RECORD, "agreement.json", "generators.json"] {
            let Ok(bytes) = fs::read(from.join(file)) else {
                continue;
            };
            let raw = gzip::decompress(&bytes);
            let text = raw.as_deref().or(str::from_utf8(&bytes)).expect("text");
            let told = text.replacen("\"voile bench", &format!("\"{place}/voile bench"), 1);
            assert_ne!(told, text, "the old record names a command");
            let bytes = match raw {
                Ok(_) => gzip::compress(&told),
                Err(_) => told.into_bytes(),
            };
            fs::write(folder.path().join(file), bytes).expect("written");
        }
        let drawn = voile_lab::redraw(folder.path()).expect("it is drawn");
        let page = fs::read_to_string(folder.path().join("report.html")).expect("it was written");
        assert!(!page.is_empty() && !page.contains(&place), "{name}");
        let sections = match drawn.scene {
            None => voile_report::plots::sections(&drawn),
            Some(_) => scenes::sections(&drawn),
        };
        let formats = [voile_lab::Format::Svg, voile_lab::Format::Png];
        let plots = sections.iter().flat_map(|section| &section.plots);
        let count = voile_lab::write_plots(plots, folder.path(), &formats).expect("written");
        let files = fs::read_dir(folder.path().join("plots")).expect("plots");
        assert!(count > 2 && files.count() == count, "{name}: {count}");
    }
}

#[test]
fn every_committed_record_has_plots_that_stand_alone() {
    for folder in committed() {
        let sections = match side(&folder) {
            Some(record) => scenes::sections(&record),
            None if folder.join(voile_lab::RECORD).is_file() => {
                let mut record = voile_lab::read(&folder).expect("it is read");
                voile_report::summarise::summarise(&mut record);
                voile_report::plots::sections(&record)
            }
            None => continue,
        };
        let plots: Vec<_> = sections.iter().flat_map(|section| &section.plots).collect();
        assert!(!plots.is_empty(), "{}", folder.display());
        for plot in &plots {
            let file = voile_report::picture::svg_file(&plot.svg);
            for none in ["NaN", "inf\"", "var("] {
                assert!(!file.contains(none), "{none} in {}", plot.id);
            }
        }
        let png = voile_report::picture::png(&plots[0].svg).expect("it is drawn");
        assert!(png.starts_with(b"\x89PNG"));
    }
}

/// The record of a scene.
fn side(folder: &Path) -> Option<Record> {
    let here = |kind: &SceneKind| folder.join(kind.file()).is_file();
    let kind = SceneKind::ALL.into_iter().find(here)?;
    Some(scene(kind, &folder.join(kind.file())))
}

/// The record of a scene, with its findings.
pub(crate) fn scene(kind: SceneKind, path: &Path) -> Record {
    let text = fs::read_to_string(path).expect("it is read");
    let held = serde_json::from_str(&text).expect("JSON");
    let mut record = scenes::read(kind, held).expect("a record");
    scenes::conclude(&mut record);
    record
}

#[test]
fn every_committed_side_record_keeps_its_findings_and_figures() {
    let (mut findings, mut figures) = (0, 0);
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    let folders = committed().into_iter();
    let of_folder = |folder: PathBuf| SceneKind::ALL.map(|kind| (folder.join(kind.file()), kind));
    for (path, kind) in folders.flat_map(of_folder) {
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let held: Value = serde_json::from_str(&text).expect("JSON");
        let found = super::lowered::old_findings(&held, concluded(kind, &held));
        for part in ["findings", "figures", "sizes"] {
            let changed = difference(&held[part], &found[part]);
            assert_eq!(changed, None, "{} {part}", path.display());
        }
        findings += count(&held["findings"]);
        figures += count(&held["figures"]);
        let sizes = held["sizes"].as_array().into_iter().flatten();
        figures += sizes.map(|size| count(&size["figures"])).sum::<usize>();
    }
    assert!(findings >= 127 && figures >= 1970, "{findings}, {figures}");
}

/// Reads a record without its findings, and concludes it.
fn concluded(kind: SceneKind, held: &Value) -> Value {
    let mut held = held.clone();
    if let Some(findings) = held.get_mut("findings") {
        *findings = json!([]);
    }
    let mut record = scenes::read(kind, held).expect("a record");
    scenes::conclude(&mut record);
    serde_json::to_value(record).expect("JSON")
}

/// The first difference, by its place. Fields that only `found` has count as equal, and so do words of a requirement.
fn difference(held: &Value, found: &Value) -> Option<String> {
    match (held, found) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
            ((a - b).abs() > 1e-9 * a.abs().max(1.0)).then(|| format!(": {a} became {b}"))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(at, (a, b))| Some(format!("/{at}{}", difference(a, b)?)))
        }
        (Value::Object(held), _) => held
            .iter()
            .filter(|(name, value)| *name != "asked" || !value.is_string())
            .find_map(|(name, value)| {
                let found = found.get(name).unwrap_or(&Value::Null);
                Some(format!("/{name}{}", difference(value, found)?))
            }),
        _ => (held != found).then(|| format!(": {held} became {found}")),
    }
}

/// A committed record of an agreement, written into `out`.
fn write_agreement(out: &Path, reason: Option<String>) -> Record {
    let all = committed();
    let from = all
        .iter()
        .find(|path| path.ends_with("2026-11-23-agreement-3"));
    let text = fs::read_to_string(from.expect("it is committed").join("agreement.json"));
    let held = serde_json::from_str(&text.expect("it is read")).expect("JSON");
    let mut record = scenes::read(SceneKind::Agreement, held).expect("a record");
    record.runs[0].invalid_reasons.extend(reason);
    scenes::conclude(&mut record);
    voile_lab::write_scene(&record, out).expect("it is written");
    record
}

/// The files of a record by name.
fn files(out: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(out).expect("the record").flatten();
    let one = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).expect("text");
        (entry.file_name().to_string_lossy().into_owned(), text)
    };
    entries.map(one).collect()
}

#[test]
fn no_file_of_a_side_record_names_a_folder_of_this_machine() {
    let out = tempfile::tempdir().expect("a folder");
    let place = out.path().display().to_string();
    write_agreement(out.path(), Some(format!("cannot read {place}/fortio.json")));
    let files = files(out.path());
    assert!(files["agreement.json"].contains("cannot read fortio.json"));
    for (name, text) in &files {
        assert!(!text.contains(&place), "{name}");
    }
}

#[test]
fn a_side_record_is_drawn_again_as_it_was_written() {
    let out = tempfile::tempdir().expect("a folder");
    write_agreement(out.path(), None);
    let written = files(out.path());
    for name in written.keys().filter(|name| *name != "agreement.json") {
        fs::remove_file(out.path().join(name)).expect("removed");
    }
    voile_lab::redraw(out.path()).expect("it is drawn");
    assert_eq!(
        files(out.path()).keys().collect::<Vec<_>>(),
        written.keys().collect::<Vec<_>>()
    );
    assert!(files(out.path()) == written, "a file differs");
}

#[test]
fn files_of_a_side_record_are_replaced_as_a_whole() {
    let (out, kept) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let formats = [voile_lab::Format::Svg, voile_lab::Format::Png];
    let write = || {
        let record = write_agreement(out.path(), None);
        let sections = scenes::sections(&record);
        let plots = sections.iter().flat_map(|section| &section.plots);
        voile_lab::write_plots(plots, out.path(), &formats).expect("drawn");
    };
    write();
    let plots = out.path().join("plots");
    let entries = [out.path(), &plots].map(|folder| fs::read_dir(folder).expect("files"));
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    assert!(paths.len() > 8, "{paths:?}");
    // A second name keeps each old file, so that its number is not used again.
    let old = |at: usize| kept.path().join(at.to_string());
    for (at, path) in paths.iter().enumerate() {
        fs::hard_link(path, old(at)).expect("linked");
    }
    write();
    let number = |path: &Path| fs::metadata(path).expect("it is there").ino();
    for (at, path) in paths.iter().enumerate() {
        assert_ne!(number(path), number(&old(at)), "{}", path.display());
    }
}
