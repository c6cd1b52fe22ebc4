//! Reads the file of a scene. Builds before format 2 wrote a format of its own for each scene; such a file becomes a record here.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::decisions::{BYTES, COMPILED, INSTRUCTIONS, figure};
use crate::record::scene::{BARE, MESH, SceneKind, SceneRecord};
use crate::record::{Experiment, Record, SCENE_FORMAT, SliceRun};

/// Reads it.
///
/// # Errors
/// When it is no such file, or of a later version.
pub fn read(kind: SceneKind, file: Value) -> Result<Record, String> {
    if file["format"] == SCENE_FORMAT {
        return Record::from_json(&file.to_string());
    }
    let graph = kind == SceneKind::Graph;
    let scene = SceneRecord {
        kind,
        graph: graph.then(|| part(&file)).transpose()?.flatten(),
        parts: part(&file["scenes"])?.unwrap_or_default(),
        ..SceneRecord::default()
    };
    let mut record = Record {
        format: SCENE_FORMAT,
        // Its other fields are unknown to the older formats.
        experiment: Experiment {
            name: kind.name().to_owned(),
            ..part(&file)?.unwrap_or_default()
        },
        environment: part(&file["environment"])?.unwrap_or_default(),
        notes: part(&file["notes"])?.unwrap_or_default(),
        scene: Some(scene),
        ..Record::default()
    };
    record.runs = match kind {
        SceneKind::Decisions => decisions(&file),
        SceneKind::ControlPlane | SceneKind::Sidecars | SceneKind::Nodes => {
            figures(&mut record, &file);
            return Ok(record);
        }
        _ => list(&file["slices"]).map(slice).collect::<Result<_, _>>()?,
    };
    Ok(record)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// Figures of the record's own mesh, and of the others.
fn figures(record: &mut Record, file: &Value) {
    for mesh in std::iter::once(file).chain(list(&file["sizes"])) {
        let properties = [
            "services",
            "workloads",
            "proxies",
            "used",
            "sidecars",
            "nodes",
            "churn",
        ];
        record.begin_mesh(&properties.map(|name| (name, mesh[name].as_f64().unwrap_or(0.0))));
        for old in list(&mesh["figures"]) {
            let seen = (old["seen"].as_f64().unwrap_or(0.0), text(old, "unit"));
            let asked = old["asked"].as_f64();
            let finding = record.add(text(old, "what"), text(old, "measure"), seen, asked);
            finding.key(text(old, "key"));
            if old["at_least"] == true {
                finding.at_least();
            }
        }
    }
}

/// Decisions and sets by round.
fn decisions(file: &Value) -> Vec<SliceRun> {
    let mut rounds: BTreeMap<(&str, u32), BTreeMap<String, f64>> = BTreeMap::new();
    for set in list(&file["sets"]).chain(list(&file["cells"])) {
        let number = |name: &str| set[name].as_u64().and_then(|n| u32::try_from(n).ok());
        let number = |name: &str| number(name).unwrap_or(0);
        let name = |own: &str| figure(text(set, "kind"), number("rules"), number("policies"), own);
        let (own, values) = match set["hit"].as_str() {
            Some(hit) => (hit, &set["ns"]),
            None => (COMPILED, &set["compile_ns"]),
        };
        for (value, round) in list(values).zip(1..) {
            let measured = rounds.entry(("", round)).or_default();
            measured.extend(value.as_f64().map(|value| (name(own), value)));
            measured.extend(set["bytes"].as_f64().map(|bytes| (name(BYTES), bytes)));
        }
        if let Some(counted) = set["instructions"].as_f64() {
            let measured = rounds.entry((INSTRUCTIONS, 1)).or_default();
            measured.insert(name(own), counted);
        }
    }
    let slice = |((part, round), measured): ((&str, u32), _)| {
        SliceRun::of_scene("voile", part, round, measured)
    };
    rounds.into_iter().map(slice).collect()
}

/// A part of a file, if it has it.
fn part<T: DeserializeOwned>(value: &Value) -> Result<Option<T>, String> {
    serde_json::from_value(value.clone()).map_err(|e| e.to_string())
}

/// A slice: what has a place in today's slices goes there, and all other numbers are figures by their place.
fn slice(old: &Value) -> Result<SliceRun, String> {
    let contestant = match old["mesh"].as_bool() {
        Some(true) => MESH,
        Some(false) => BARE,
        None => text(old, "generator"),
    };
    let blank = SliceRun {
        contestant: contestant.to_owned(),
        mode: text(old, "scene").to_owned(),
        ..SliceRun::default()
    };
    let mut known = serde_json::to_value(blank).map_err(|e| e.to_string())?;
    let mut measured = BTreeMap::new();
    for (name, value) in old.as_object().into_iter().flatten() {
        match known.get_mut(name) {
            Some(known) if !value.is_null() => known.clone_from(value),
            Some(_) => {}
            None => flatten(name, value, &mut measured),
        }
    }
    let mut run: SliceRun = serde_json::from_value(known).map_err(|e| e.to_string())?;
    let failure = old["failure"].as_str().map(str::to_owned);
    run.invalid_reasons.extend(failure);
    run.valid = run.invalid_reasons.is_empty();
    run.measured = measured;
    Ok(run)
}

fn flatten(name: &str, value: &Value, measured: &mut BTreeMap<String, f64>) {
    if let Some(number) = value.as_f64() {
        measured.insert(name.to_owned(), number);
    }
    for (inner, value) in value.as_object().into_iter().flatten() {
        flatten(&format!("{name}.{inner}"), value, measured);
    }
}
