//! The program's own log: one line per event on stderr, its level changeable while it runs.

use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// Crates whose debug output drowns ours; they follow only when named.
const CHATTY: [&str; 7] = [
    "h2",
    "hyper",
    "hyper_util",
    "tonic",
    "tower",
    "rustls",
    "mio",
];

/// Changes the level of a running program.
#[derive(Debug, Clone)]
pub struct LogLevelHandle(reload::Handle<Targets, Registry>);

/// Why a level cannot be set.
#[derive(Debug)]
pub struct BadLevel(String);

impl std::fmt::Display for BadLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: expected off, error, warn, info, debug or trace, or `target=level,…`",
            self.0
        )
    }
}

impl std::error::Error for BadLevel {}

/// Installs the log for the whole process. `level` is a level, or `target=level` pairs separated by commas.
///
/// # Errors
/// When `level` means nothing, or a log is installed already.
pub fn install(level: &str) -> Result<LogLevelHandle, BadLevel> {
    let (filter, handle) = reload::Layer::new(targets(level)?);
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(true)
        .with_ansi(false);
    let registry = tracing_subscriber::registry().with(filter).with(lines);
    registry
        .try_init()
        .map_err(|error| BadLevel(error.to_string()))?;
    Ok(LogLevelHandle(handle))
}

impl LogLevelHandle {
    /// Sets another level.
    ///
    /// # Errors
    /// When `level` means nothing.
    pub fn set(&self, level: &str) -> Result<(), BadLevel> {
        let filter = targets(level)?;
        self.0
            .reload(filter)
            .map_err(|error| BadLevel(error.to_string()))
    }

    /// Returns the current level.
    #[must_use]
    pub fn current(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }
}

fn targets(level: &str) -> Result<Targets, BadLevel> {
    let bad = |error: ParseError| BadLevel(format!("`{level}`: {error}"));
    if level.trim().is_empty() {
        return Err(BadLevel("no level".to_owned()));
    }
    match LevelFilter::from_str(level.trim()) {
        Ok(plain) => {
            let others = plain.min(LevelFilter::WARN);
            Ok(CHATTY
                .iter()
                .fold(Targets::new().with_default(plain), |all, name| {
                    all.with_target(*name, others)
                }))
        }
        // One word that is no level would be taken for a target, and everything else would fall silent.
        Err(_) if level.split(',').any(|part| !part.contains('=')) => {
            Err(BadLevel(format!("`{level}`")))
        }
        Err(_) => level.parse().map_err(bad),
    }
}
