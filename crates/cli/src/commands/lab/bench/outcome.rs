//! Outcome of a command of the lab, the program under test, and the command line as a record has it.

use std::io::IsTerminal as _;
use std::io::Write;
use std::path::{Path, PathBuf};

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
pub(super) fn say(line: &str) {
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
