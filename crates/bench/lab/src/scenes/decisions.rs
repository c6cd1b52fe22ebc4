//! Cost of a decision by the number of policies. `voile decide` runs once a round, as a new process so that no lucky memory
//! layout lasts, with its turns in another order each time. It runs once more under valgrind, whose instruction counts have no
//! noise.
//!
//! ```text
//! round: voile decide --sets … --seed ROUND ── a line a set, a line a turn ── × rounds;  valgrind voile decide --count
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::child::{Output, Spec};
use voile_report::decisions::{BYTES, COMPILED, INSTRUCTIONS, figure};
use voile_report::record::scene::SceneKind;
use voile_report::record::{Record, SliceRun};

use crate::environment::{ended, environment, scene_record, warnings};

/// Settings of the measurement.
pub struct DecisionSettings {
    /// The `voile` program.
    pub voile: PathBuf,
    /// Numbers of rules in one policy.
    pub rules: Vec<u32>,
    /// Numbers of policies, of [`RULES_EACH`] rules each; of the first kind.
    pub policies: Vec<u32>,
    /// Numbers of issuers of tokens, for kinds whose rules are issuers.
    pub issuers: Vec<u32>,
    /// Kinds of rules; all if empty.
    pub kinds: Vec<String>,
    /// Number of times that each set is compiled and measured.
    pub rounds: u32,
    /// True if instructions are counted, too.
    pub count: bool,
    /// The user's command line, for the record.
    pub command: String,
}

/// Rules of each of many policies.
const RULES_EACH: u32 = 5;
/// Decisions that `voile decide --count` makes between two dumps.
const COUNTED: f64 = 50.0;
/// Interval at which the lab checks if the user asked to stop, and if a round is done.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A line of `voile decide`.
#[derive(Deserialize)]
struct DecisionLine {
    kind: String,
    rules: u32,
    policies: u32,
    hit: Option<String>,
    #[serde(default)]
    ns: f64,
    #[serde(default)]
    compile_ns: f64,
    #[serde(default)]
    bytes: f64,
}

/// Runs it. `say` receives lines for people; `stopped` is asked often.
///
/// # Errors
/// When `voile decide` fails, or the user ends it before a round was measured.
pub fn measure_decisions(
    settings: &DecisionSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<Record, String> {
    let folder = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    let began = Instant::now();
    let place = environment(&settings.voile);
    let notes = warnings(&place);
    let mut record = scene_record(SceneKind::Decisions, &settings.command, notes, place);
    let lab = Subject {
        voile: &settings.voile,
        folder: folder.path(),
        stopped,
    };
    let sets = plan(settings, lab.kinds()?);
    for round in 1..=settings.rounds {
        say(&format!("\rround {round}/{}", settings.rounds));
        let Some(lines) = lab.round(&sets, round)? else {
            break;
        };
        let measured = lines.iter().flat_map(figures).collect();
        let run = SliceRun::of_scene("voile", "", round, measured);
        record.runs.push(run);
    }
    if settings.count && !record.runs.is_empty() && !stopped() {
        say("\rinstructions (a minute or two)");
        match lab.counts(&sets) {
            Ok(counts) => {
                let run = SliceRun::of_scene("voile", INSTRUCTIONS, 1, counts);
                record.runs.push(run);
            }
            Err(why) => record.notes.push(why),
        }
    }
    say("\r");
    ended(record, began, stopped)
}

/// A kind of rules, as `voile decide --list` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RuleSetKind {
    name: String,
    /// Its rules are issuers of tokens, not of policies.
    issuers: bool,
}

/// Arguments of `voile decide` for the sets: each kind in one policy, then the first kind in many.
fn plan(settings: &DecisionSettings, mut kinds: Vec<RuleSetKind>) -> Vec<String> {
    if !settings.kinds.is_empty() {
        let of_issuers =
            |name: &String| kinds.iter().any(|kind| kind.issuers && kind.name == *name);
        // Unknown kinds are passed on, and `voile decide` refuses them.
        let wanted = settings.kinds.iter().map(|name| RuleSetKind {
            name: name.clone(),
            issuers: of_issuers(name),
        });
        kinds = wanted.collect();
    }
    let one = |kind: &RuleSetKind| -> Vec<String> {
        let sizes = if kind.issuers {
            &settings.issuers
        } else {
            &settings.rules
        };
        let name = &kind.name;
        let sizes = sizes.iter().map(|rules| format!("{name}:{rules}:1"));
        sizes.collect()
    };
    let mut sets: Vec<String> = kinds.iter().flat_map(one).collect();
    let first = kinds.iter().find(|kind| !kind.issuers);
    if let (Some(RuleSetKind { name: kind, .. }), false) = (first, settings.policies.is_empty()) {
        sets.push(format!("{kind}:{RULES_EACH}:1"));
        let many = settings.policies.iter().filter(|policies| **policies > 1);
        sets.extend(many.map(|policies| format!("{kind}:{}:{policies}", policies * RULES_EACH)));
    }
    let mut seen = BTreeSet::new();
    sets.retain(|set| seen.insert(set.clone()));
    sets
}

/// The figures of a line.
fn figures(line: &DecisionLine) -> Vec<(String, f64)> {
    match &line.hit {
        Some(hit) => vec![(line.figure(hit), line.ns)],
        None => vec![
            (line.figure(COMPILED), line.compile_ns),
            (line.figure(BYTES), line.bytes),
        ],
    }
}

impl DecisionLine {
    fn figure(&self, name: &str) -> String {
        figure(&self.kind, self.rules, self.policies, name)
    }
}

/// Program, folder and stop flag of the measurement.
struct Subject<'a> {
    voile: &'a Path,
    folder: &'a Path,
    stopped: &'a dyn Fn() -> bool,
}

impl Subject<'_> {
    /// The kinds of rules that it knows.
    fn kinds(&self) -> Result<Vec<RuleSetKind>, String> {
        let spec = Spec::new("decide", self.voile).args(["decide", "--list"]);
        let told = self.run(spec)?.unwrap_or_default();
        let kind = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            Some(RuleSetKind {
                name: words.next()?.to_owned(),
                issuers: words.next() == Some("issuers"),
            })
        };
        Ok(told.lines().filter_map(kind).collect())
    }

    /// A round; none when it was stopped.
    fn round(&self, sets: &[String], seed: u32) -> Result<Option<Vec<DecisionLine>>, String> {
        let spec = Spec::new("decide", self.voile)
            .args(["decide", "--sets", &sets.join(","), "--seed"])
            .arg(seed.to_string());
        self.run(spec)?.map(|told| lines(&told)).transpose()
    }

    /// Instructions of one decision in each turn.
    fn counts(&self, sets: &[String]) -> Result<BTreeMap<String, f64>, String> {
        let dump = self.folder.join("counts");
        let spec = Spec::new("valgrind", "valgrind")
            .args(["--tool=callgrind", "--zero-before=*begin_counting*"])
            .arg("--dump-before=*end_counting*")
            .arg(format!("--callgrind-out-file={}", dump.display()))
            .arg(self.voile)
            .args(["decide", "--count", "--sets", &sets.join(",")]);
        let missing = |why: String| {
            format!("Instructions were not counted: {why} (`apt-get install valgrind`).")
        };
        let told = self.run(spec).map_err(missing)?;
        let turns = lines(&told.unwrap_or_default())?.into_iter();
        let turns = turns.filter_map(|line| Some(line.figure(line.hit.as_ref()?)));
        let counted = turns.zip(1..).map(|(figure, number)| {
            let text = std::fs::read_to_string(dump.with_extension(number.to_string()));
            let text = text.map_err(|e| format!("Instructions were not counted: {e}."))?;
            let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
            let total: Option<f64> = total.and_then(|total| total.trim().parse().ok());
            let total = total.ok_or("Instructions were not counted: a dump without a total.")?;
            Ok((figure, total / COUNTED))
        });
        counted.collect()
    }

    /// Runs `voile decide` and returns its output; none if the user stopped it.
    fn run(&self, spec: Spec) -> Result<Option<String>, String> {
        let (out, log) = (
            self.folder.join("decide.out"),
            self.folder.join("decide.log"),
        );
        let spec = spec
            .stdout(Output::File(out.clone()))
            .stderr(Output::File(log.clone()));
        let mut child = spec.start().map_err(|e| e.to_string())?;
        let exit = loop {
            if (self.stopped)() {
                return Ok(None);
            }
            if let Some(exit) = child.wait(LOOK_EVERY) {
                break exit;
            }
        };
        if !exit.is_success() {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let first = said.lines().next().unwrap_or_default();
            return Err(format!("{} {exit}: {first}", child.name()));
        }
        let told = std::fs::read_to_string(&out);
        told.map(Some)
            .map_err(|e| format!("cannot read its output: {e}"))
    }
}

fn lines(told: &str) -> Result<Vec<DecisionLine>, String> {
    let read = |line: &str| {
        serde_json::from_str(line).map_err(|e| format!("voile decide prints `{line}`: {e}"))
    };
    told.lines().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_planned_and_what_is_told_of_them_is_gathered() {
        let settings = DecisionSettings {
            voile: PathBuf::new(),
            rules: vec![10, 1_000],
            policies: vec![1, 2_000],
            issuers: vec![1, 500],
            kinds: Vec::new(),
            rounds: 2,
            count: false,
            command: String::new(),
        };
        let kind = |name: &str| RuleSetKind {
            name: name.to_owned(),
            issuers: name == "jwt",
        };
        let sets = plan(&settings, ["paths", "mixed", "jwt"].map(kind).into());
        let wanted = [
            "paths:10:1",
            "paths:1000:1",
            "mixed:10:1",
            "mixed:1000:1",
            "jwt:1:1",
            "jwt:500:1",
            "paths:5:1",
            "paths:10000:2000",
        ];
        assert_eq!(sets, wanted);
        let told = "{\"kind\":\"paths\",\"rules\":10,\"policies\":1,\"compile_ns\":7,\"bytes\":9}\n\
                    {\"kind\":\"paths\",\"rules\":10,\"policies\":1,\"hit\":\"miss\",\"ns\":41.5}\n";
        let lines_of = lines(told).expect("lines");
        let wanted = [
            ("paths:10:1 bytes", 9.0),
            ("paths:10:1 compile_ns", 7.0),
            ("paths:10:1 miss", 41.5),
        ];
        let found: BTreeMap<String, f64> = lines_of.iter().flat_map(figures).collect();
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(found, BTreeMap::from(wanted));
        assert!(lines("nonsense").is_err());
    }
}
