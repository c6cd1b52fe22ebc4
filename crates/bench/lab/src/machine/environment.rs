//! Describes machine and programs of an experiment: enough to decide later if two records may be compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::time::Instant;

use sha2::{Digest as _, Sha256};
use voile_host::machine::{Machine, load_average};
use voile_report::record::scene::{SceneKind, SceneRecord};
use voile_report::record::{Environment, Experiment, Record, SCENE_FORMAT};
use voile_report::scenes::conclude;

/// Above this share of the cores, the load average at the beginning is worth a warning.
const BUSY_SHARE: f64 = 0.5;

/// This machine and that program.
pub(crate) fn environment(voile: &Path) -> Environment {
    let machine = Machine::here();
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    Environment {
        cpu: machine.cpu,
        kernel: machine.kernel,
        cores: machine.cores,
        memory_bytes: machine.memory_bytes,
        host: machine.host,
        load_average: load_average(),
        versions: BTreeMap::from([("voile".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
        profile: profile.to_owned(),
        // Unoptimised hashing takes many seconds, and figures of a debug build are no figures.
        voile_sha256: if profile == "debug" {
            String::new()
        } else {
            sha256(voile).unwrap_or_default()
        },
        ..Environment::default()
    }
}

/// Warnings about the machine that the reader must know before any figure.
pub(crate) fn warnings(environment: &Environment) -> Vec<String> {
    let mut warnings = Vec::new();
    if environment.profile == "debug" {
        warnings.push(
            "Voile was built without optimisation (profile debug): these figures are not representative."
                .to_owned(),
        );
    }
    let bound = BUSY_SHARE * environment.cores as f64;
    if let Some(load) = environment.load_average.filter(|load| *load > bound) {
        warnings.push(format!(
            "The machine was busy when the experiment began (load average {load:.1} on {} cores): expect noise.",
            environment.cores
        ));
    }
    warnings
}

/// The record of a scene that begins now.
pub(crate) fn scene_record(
    kind: SceneKind,
    command: &str,
    notes: Vec<String>,
    environment: Environment,
) -> Record {
    Record {
        format: SCENE_FORMAT,
        experiment: Experiment {
            name: kind.name().to_owned(),
            started_at: now(),
            command: command.to_owned(),
            ..Experiment::default()
        },
        environment,
        scene: Some(SceneRecord {
            kind,
            ..SceneRecord::default()
        }),
        notes,
        ..Record::default()
    }
}

/// The record of a scene whose slices are taken.
///
/// # Errors
/// Where there is none.
pub(crate) fn ended(
    mut record: Record,
    began: Instant,
    stopped: &dyn Fn() -> bool,
) -> Result<Record, String> {
    if record.runs.is_empty() {
        return Err(INTERRUPTED.to_owned());
    }
    if stopped() {
        let note = "Interrupted: rounds that were not measured are missing.";
        record.notes.push(note.to_owned());
    }
    record.experiment.took_seconds = began.elapsed().as_secs_f64();
    conclude(&mut record);
    Ok(record)
}

/// Why there is no record.
pub(crate) const INTERRUPTED: &str = "interrupted before anything was measured";

/// RFC 3339, UTC, whole seconds.
pub fn now() -> String {
    let now = time::OffsetDateTime::now_utc();
    let format =
        time::macros::format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    now.format(format).unwrap_or_default()
}

/// SHA-256 of a file, in hexadecimal.
pub(crate) fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash
        .finalize()
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_hash() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "abc").expect("written");
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(file.path()).expect("read"), known);
    }

    #[test]
    fn a_busy_machine_and_a_debug_build_are_told() {
        let quiet = Environment {
            cores: 2,
            load_average: Some(0.9),
            profile: "release".to_owned(),
            ..Environment::default()
        };
        assert_eq!(warnings(&quiet), Vec::<String>::new());
        let busy = Environment {
            load_average: Some(1.1),
            profile: "debug".to_owned(),
            ..quiet
        };
        assert_eq!(warnings(&busy).len(), 2);
    }
}
