//! Outcome of a command of the lab, the program under test, and the command line as a record has it.

use std::io::IsTerminal as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use voile_host::interrupt;
use voile_report::record::Record;
use voile_report::scenes;

/// Wrong usage, as opposed to a run that failed.
pub(super) const USAGE: u8 = 2;
/// Exit code after Ctrl-C or SIGTERM, with the measured part kept: 128 + SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

pub(super) type Done = Result<(), (u8, String)>;

pub(super) fn failed(why: String) -> (u8, String) {
    (1, why)
}

pub(super) fn interrupted(why: String) -> (u8, String) {
    (INTERRUPTED, why)
}

pub(super) fn usage(why: String) -> (u8, String) {
    (USAGE, why)
}

/// Program to measure: the given one, or this one.
pub(super) fn program(given: Option<&Path>) -> Result<PathBuf, (u8, String)> {
    match given {
        Some(path) => Ok(path.to_owned()),
        None => std::env::current_exe()
            .map_err(|e| failed(format!("cannot find the path of this program: {e}"))),
    }
}

/// Runs a measurement that Ctrl-C or SIGTERM ends early.
pub(super) fn measured<T>(
    measure: impl FnOnce(&dyn Fn(&str), &dyn Fn() -> bool) -> Result<T, String>,
) -> Result<T, (u8, String)> {
    interrupt::watch().map_err(|e| failed(format!("cannot watch for signals: {e}")))?;
    measure(&say, &interrupt::asked).map_err(ended)
}

/// The reason for an end, with its exit code.
fn ended(why: String) -> (u8, String) {
    match interrupt::asked() {
        true => interrupted(why),
        false => failed(why),
    }
}

/// Ends the command of a side experiment: [`show`] with the folder `out`, or one by the name of the record and its start time.
pub(super) fn finish(
    record: &Record,
    out: Option<&Path>,
    json: bool,
    broken: Option<String>,
) -> Done {
    let experiment = &record.experiment;
    let default = || voile_lab::default_folder(&experiment.name, &experiment.started_at);
    let folder = out.map_or_else(default, Path::to_owned);
    show(record, Some(&folder), json, broken)
}

/// Writes a record, if a folder is given, and prints it. `broken` is the reason for an early end; it comes last.
pub(super) fn show(
    record: &Record,
    folder: Option<&Path>,
    json: bool,
    broken: Option<String>,
) -> Done {
    // A folder that cannot be written must not hide the figures.
    let written = folder.map_or(Ok(()), |folder| voile_lab::write_scene(record, folder));
    if json {
        print!("{}", voile_lab::scene_json(record).map_err(failed)?);
    } else {
        for note in &record.notes {
            println!("{note}\n");
        }
        print!("{}", scenes::terminal(record));
    }
    written.map_err(failed)?;
    if let Some(folder) = folder {
        let report = folder.join("report.html");
        if json {
            say(&report.display().to_string());
        } else {
            println!("\n{}", report.display());
        }
    }
    let kept = || match folder {
        Some(folder) => format!("the measured figures are in {}", folder.display()),
        None => "the measured figures are shown".to_owned(),
    };
    match (broken, scenes::shortcoming(record)) {
        (Some(why), _) => Err(ended(format!("{why}; {}", kept()))),
        (None, _) if interrupt::asked() => Err(ended(format!("interrupted; {}", kept()))),
        (None, Some(why)) => Err(failed(why.to_owned())),
        (None, None) => Ok(()),
    }
}

/// The command line, for the record. Leaves out paths of this machine, since they are private.
pub(super) fn command() -> String {
    let mut agents = false;
    let words = std::env::args().skip(1).map(|word| {
        // The agent's token is private, too.
        let agent = std::mem::replace(&mut agents, word == "--agent");
        if agent || word.starts_with("--agent=") {
            let at = word.find("--agent=").map_or(0, |_| "--agent=".len());
            let end = word[at..].find('=').map_or(word.len(), |end| at + end);
            return word[..end].to_owned();
        }
        let names_a_place = |name: &str| {
            word.strip_prefix("--peer=")
                .unwrap_or(&word)
                .starts_with(name)
        };
        match ["envoy=", "fortio=", "nginx=", "haproxy=", "wrk=", "h2load="]
            .into_iter()
            .find(|name| names_a_place(name))
        {
            Some(name) => format!("{}PATH", &word[..word.find(name).unwrap_or(0) + name.len()]),
            None => word,
        }
    });
    let words = words.map(|word| voile_lab::without_places(&word));
    format!("voile {}", words.collect::<Vec<_>>().join(" "))
}

/// Progress (lines that begin with a carriage return) overwrites itself on a terminal; elsewhere it is lines.
fn say(line: &str) {
    let mut stderr = std::io::stderr();
    let terminal = stderr.is_terminal();
    let result = match line.strip_prefix('\r') {
        Some(progress) if terminal => write!(stderr, "\r\x1b[2K{progress}"),
        Some("") => Ok(()),
        Some(progress) => writeln!(stderr, "{progress}"),
        None if terminal => writeln!(stderr, "\r\x1b[2K{line}"),
        None => writeln!(stderr, "{line}"),
    };
    // A closed stderr is no reason to stop measuring.
    let _ = result.and_then(|()| stderr.flush());
}
