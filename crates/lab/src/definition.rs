//! Experiment definitions as written in TOML, and checked. An error names file, line, column and what would be right.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::plan::Cell;

/// The definition that `voile bench quick` runs, part of the program so that it runs from anywhere.
const QUICK: &str = include_str!("../../../benchmarks/quick.toml");

/// Contestants that the lab knows how to start.
const CONTESTANTS: [&str; 4] = ["baseline", "voile", "envoy", "relay"];
const MODES: [&str; 4] = ["baseline", "clientonly", "serveronly", "both"];
const ARRIVALS: [&str; 3] = ["uniform", "poisson", "fortio"];

/// Rounds, rates and so on beyond which a typing error is likelier than a wish.
const MAX_ROUNDS: u32 = 1000;
const MAX_SLICE: Duration = Duration::from_secs(3600);
const MAX_RATE: f64 = 1e6;
const MAX_CONNECTIONS: u32 = 10_000;
const MAX_SIZE_BYTES: u64 = 64 << 20;
const MAX_WORKERS: u32 = 256;

/// A checked experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its name, also in the record folder's.
    pub name: String,
    /// What it asks, in words.
    pub title: String,
    /// The text it was read from.
    pub text: String,
    /// How often every cell is measured.
    pub rounds: u32,
    /// Measured part of a slice.
    pub slice: Duration,
    /// Load before it.
    pub warmup: Duration,
    /// Of order and bootstrap.
    pub seed: u64,
    /// Requests per second.
    pub rate: f64,
    /// Connections of the generator.
    pub connections: u32,
    /// Bytes of an answer.
    pub size: u64,
    /// Threads of each proxy.
    pub workers: u32,
    /// The gate's bounds.
    pub validity: Validity,
    /// What is measured, without the control.
    pub cells: Vec<Cell>,
    /// The cell that is measured twice.
    pub control: Option<Cell>,
}

/// Bounds outside which a slice does not count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Validity {
    /// Generator's own lateness at its 99th percentile.
    pub max_lateness: Duration,
    /// Achieved against asked for.
    pub max_rate_error: f64,
    /// Failed requests.
    pub max_error_share: f64,
    /// Median of one half of the slice over that of the other.
    pub max_drift: f64,
    /// Whether a run that the generator itself calls invalid is left out. Not in a smoke test, which only shows that
    /// everything works, on machines too busy to measure anything.
    pub heed_generator: bool,
}

/// Which contestants are wanted.
pub type Only = Option<BTreeSet<String>>;

/// What the command line changes.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Rounds.
    pub rounds: Option<u32>,
    /// Measured part of a slice.
    pub slice: Option<Duration>,
    /// Contestants; baseline is always measured.
    pub only: Only,
    /// A few seconds that show that everything works, no figures to speak of.
    pub smoke: bool,
}

/// A definition that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionError {
    file: String,
    line: usize,
    column: usize,
    what: String,
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.file, self.line, self.column, self.what
        )
    }
}

impl std::error::Error for DefinitionError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Spanned<String>,
    #[serde(default)]
    title: String,
    rounds: Spanned<u32>,
    slice: Spanned<String>,
    warmup: Spanned<String>,
    #[serde(default)]
    seed: u64,
    load: WrittenLoad,
    proxy: WrittenProxy,
    #[serde(default)]
    validity: WrittenValidity,
    control: Option<Spanned<WrittenControl>>,
    cells: Vec<WrittenCells>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLoad {
    rate: Spanned<f64>,
    connections: Spanned<u32>,
    size: Spanned<u64>,
    protocol: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenProxy {
    workers: Spanned<u32>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrittenValidity {
    max_lateness: Option<Spanned<String>>,
    max_rate_error: Option<Spanned<f64>>,
    max_error_share: Option<Spanned<f64>>,
    max_drift: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenControl {
    contestant: String,
    mode: String,
    #[serde(default)]
    tls: bool,
    arrival: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCells {
    contestants: Vec<Spanned<String>>,
    modes: Vec<Spanned<String>>,
    #[serde(default)]
    tls: bool,
    arrivals: Vec<Spanned<String>>,
}

/// The built-in experiment.
#[must_use]
pub fn quick() -> Definition {
    Definition::parse("quick.toml", QUICK).expect("invariant: the built-in definition is tested")
}

/// Where in which file a complaint belongs.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
}

impl Place<'_> {
    fn error(&self, span: Range<usize>, what: impl Into<String>) -> DefinitionError {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        DefinitionError {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            what: what.into(),
        }
    }

    fn number<T: PartialOrd + Copy + fmt::Display>(
        &self,
        field: &str,
        value: &Spanned<T>,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<T, DefinitionError> {
        let number = *value.get_ref();
        if range.contains(&number) {
            return Ok(number);
        }
        let (low, high) = (range.start(), range.end());
        Err(self.error(
            value.span(),
            format!("{field} is {number}; it must lie between {low} and {high}"),
        ))
    }

    fn duration(
        &self,
        field: &str,
        value: &Spanned<String>,
        range: std::ops::RangeInclusive<Duration>,
    ) -> Result<Duration, DefinitionError> {
        let fail = |why: String| self.error(value.span(), format!("{field}: {why}"));
        let duration =
            voile_load::parse_duration(value.get_ref()).map_err(|e| fail(e.to_string()))?;
        if range.contains(&duration) {
            return Ok(duration);
        }
        Err(fail(format!(
            "{duration:?} must lie between {:?} and {:?}",
            range.start(),
            range.end()
        )))
    }

    fn word(
        &self,
        field: &str,
        value: &Spanned<String>,
        known: &[&str],
    ) -> Result<String, DefinitionError> {
        let word = value.get_ref();
        if known.contains(&word.as_str()) {
            return Ok(word.clone());
        }
        Err(self.error(
            value.span(),
            format!("{field} \"{word}\" is unknown; known: {}", known.join(", ")),
        ))
    }
}

impl Definition {
    /// Reads and checks.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(file: &str, text: &str) -> Result<Self, DefinitionError> {
        let place = Place { file, text };
        let written: Written = toml::from_str(text)
            .map_err(|e| place.error(e.span().unwrap_or(0..0), e.message().replace('\n', "; ")))?;
        let name = written.name.get_ref();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            let why =
                format!("name \"{name}\" becomes a folder's name: letters, digits and '-' only");
            return Err(place.error(written.name.span(), why));
        }
        place.word("protocol", &written.load.protocol, &["http1"])?;
        let cells = cells(&place, &written.cells)?;
        Ok(Self {
            name: name.clone(),
            title: written.title.clone(),
            text: text.to_owned(),
            rounds: place.number("rounds", &written.rounds, 1..=MAX_ROUNDS)?,
            slice: place.duration(
                "slice",
                &written.slice,
                Duration::from_millis(100)..=MAX_SLICE,
            )?,
            warmup: place.duration("warmup", &written.warmup, Duration::ZERO..=MAX_SLICE)?,
            seed: written.seed,
            rate: place.number("rate", &written.load.rate, 1.0..=MAX_RATE)?,
            connections: place.number(
                "connections",
                &written.load.connections,
                1..=MAX_CONNECTIONS,
            )?,
            size: place.number("size", &written.load.size, 0..=MAX_SIZE_BYTES)?,
            workers: place.number("workers", &written.proxy.workers, 1..=MAX_WORKERS)?,
            validity: validity(&place, &written.validity)?,
            control: control(&place, written.control.as_ref(), &cells)?,
            cells,
        })
    }

    /// Applies what the command line says.
    ///
    /// # Errors
    /// When a contestant is named that the experiment does not have.
    pub fn with(mut self, overrides: &Overrides) -> Result<Self, String> {
        if overrides.smoke {
            self.rounds = 2;
            self.slice = Duration::from_millis(300);
            self.warmup = Duration::from_millis(60);
            self.validity.max_lateness = Duration::from_secs(10);
            self.validity.max_rate_error = 1.0;
            self.validity.max_drift = f64::INFINITY;
            self.validity.heed_generator = false;
        }
        if let Some(rounds) = overrides.rounds {
            if !(1..=MAX_ROUNDS).contains(&rounds) {
                return Err(format!(
                    "--rounds {rounds}: must lie between 1 and {MAX_ROUNDS}"
                ));
            }
            self.rounds = rounds;
        }
        if let Some(slice) = overrides.slice {
            if slice < Duration::from_millis(100) || slice > MAX_SLICE {
                return Err(format!(
                    "--slice {slice:?}: must lie between 100ms and {MAX_SLICE:?}"
                ));
            }
            self.slice = slice;
        }
        if let Some(only) = &overrides.only {
            let has: BTreeSet<String> = self
                .cells
                .iter()
                .map(|cell| cell.contestant.clone())
                .collect();
            if let Some(stranger) = only.difference(&has).next() {
                let has = has.iter().cloned().collect::<Vec<_>>().join(", ");
                return Err(format!("--only {stranger}: this experiment has {has}"));
            }
            let wanted = |cell: &Cell| cell.is_baseline() || only.contains(&cell.contestant);
            self.cells.retain(wanted);
            self.control = self.control.filter(wanted);
        }
        Ok(self)
    }
}

fn cells(place: &Place<'_>, written: &[WrittenCells]) -> Result<Vec<Cell>, DefinitionError> {
    let mut cells = Vec::new();
    for group in written {
        for contestant in &group.contestants {
            let name = place.word("contestant", contestant, &CONTESTANTS)?;
            for mode in &group.modes {
                let mode_name = place.word("mode", mode, &MODES)?;
                if (name == "baseline") != (mode_name == "baseline") {
                    let why = format!(
                        "mode \"{mode_name}\" does not go with contestant \"{name}\": baseline has no proxy"
                    );
                    return Err(place.error(mode.span(), why));
                }
                if group.tls && (mode_name != "both" || name == "relay") {
                    let why = format!(
                        "tls needs a sidecar on both sides that speaks it: not {name} in mode {mode_name}"
                    );
                    return Err(place.error(mode.span(), why));
                }
                for arrival in &group.arrivals {
                    let arrival = place.word("arrival", arrival, &ARRIVALS)?;
                    let cell = Cell {
                        contestant: name.clone(),
                        mode: mode_name.clone(),
                        tls: group.tls,
                        arrival,
                    };
                    if cells.contains(&cell) {
                        return Err(
                            place.error(contestant.span(), format!("cell {cell} is there twice"))
                        );
                    }
                    cells.push(cell);
                }
            }
        }
    }
    if cells.is_empty() {
        return Err(place.error(
            0..0,
            "there is no cell: add [[cells]] with contestants, modes and arrivals",
        ));
    }
    Ok(cells)
}

fn control(
    place: &Place<'_>,
    written: Option<&Spanned<WrittenControl>>,
    cells: &[Cell],
) -> Result<Option<Cell>, DefinitionError> {
    let Some(written) = written else {
        return Ok(None);
    };
    let WrittenControl {
        contestant,
        mode,
        tls,
        arrival,
    } = written.get_ref();
    let cell = Cell {
        contestant: contestant.clone(),
        mode: mode.clone(),
        tls: *tls,
        arrival: arrival.clone(),
    };
    if !cells.contains(&cell) {
        return Err(place.error(
            written.span(),
            format!("control {cell} is not one of the cells"),
        ));
    }
    Ok(Some(cell))
}

fn validity(place: &Place<'_>, written: &WrittenValidity) -> Result<Validity, DefinitionError> {
    let share = |field, value: &Option<Spanned<f64>>, otherwise| match value {
        Some(value) => place.number(field, value, 0.0..=1.0),
        None => Ok(otherwise),
    };
    let second = Duration::from_secs(1);
    Ok(Validity {
        heed_generator: true,
        max_lateness: match &written.max_lateness {
            Some(value) => {
                place.duration("max_lateness", value, Duration::from_micros(1)..=second)?
            }
            None => Duration::from_millis(1),
        },
        max_rate_error: share("max_rate_error", &written.max_rate_error, 0.02)?,
        max_error_share: share("max_error_share", &written.max_error_share, 0.0)?,
        max_drift: match &written.max_drift {
            Some(value) => place.number("max_drift", value, 1.0..=1000.0)?,
            None => 4.0,
        },
    })
}
