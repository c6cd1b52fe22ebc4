//! A gate for continuous integration: is the new record provably worse than the base? Each figure of each cell is tested by ranks
//! (Mann and Whitney, one-sided), after the allowed worsening is divided out. Holm's procedure decides which of many tests count
//! as proven: of 100 gates on equal records at most five fail. A change of the machine in between is no random error; ratios to
//! another contestant, paired within each record's rounds, cancel it. Without them, a figure whose value without a proxy moved is
//! judged only by what that movement leaves.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::ranks::{higher, proven_together};
use crate::record::{CellKey, Estimate, Record};
use crate::side_by_side::{
    ComparedFigure, FIGURES, cells, comparable, depends_on_speed, same_machine, values,
};
use crate::statistics::{ROUNDS_FOR_INTERVAL, unpaired_ratio};
use crate::summarise::Rounds;
use crate::words::{interval, load_title, path_title, ratio};

/// Probability of a false alarm if nothing differs.
pub const LEVEL: f64 = 0.05;
/// Default bound: a figure may be 5 % worse. Two records of one machine usually differ by less.
pub const BOUND: f64 = 0.05;

/// Options of the gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateOptions {
    /// Default bound on the worsening of any figure, as a share.
    pub bound: f64,
    /// By figure, where it may be another.
    pub bounds: Vec<(String, f64)>,
    /// Contestant whose figures are judged.
    pub contestant: String,
    /// Judged is the ratio within rounds to this contestant, so that a machine that changed between the records cancels out.
    pub beside: Option<String>,
}

impl Default for GateOptions {
    fn default() -> Self {
        Self {
            bound: BOUND,
            bounds: Vec::new(),
            contestant: "voile".to_owned(),
            beside: None,
        }
    }
}

/// Verdict of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateOutcome {
    /// At least one figure is provably worse by more than its bound.
    Regression,
    /// Every interval lies within the bounds.
    Within,
    /// None is provably worse, and some interval reaches beyond its bound: more rounds would tell.
    CannotTell,
}

impl GateOutcome {
    /// The word in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Regression => "regression",
            Self::Within => "within",
            Self::CannotTell => "cannot-tell",
        }
    }
}

/// One figure of one cell.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedFigure {
    /// The cell.
    pub cell: CellKey,
    /// The figure.
    pub figure: ComparedFigure,
    /// Allowed worsening.
    pub bound: f64,
    /// New divided by base.
    pub ratio: Estimate,
    /// The same figure on the path without a proxy, new divided by base, where it provably got worse itself.
    pub baseline: Option<Estimate>,
    /// The chance of rounds as much worse, if it were worse by no more than the bound and the baseline's movement.
    pub chance: f64,
    /// Verdict on the figure.
    pub outcome: GateOutcome,
}

/// One figure of one cell as it is tested: the rounds of base and new.
struct Test {
    cell: CellKey,
    figure: ComparedFigure,
    bound: f64,
    before: Vec<f64>,
    after: Vec<f64>,
    baseline: Option<Estimate>,
    chance: f64,
    proven: bool,
}

/// Judges every figure that both records have.
///
/// # Errors
/// When they cannot be judged: another profile, load or machine, nothing in common, too few rounds.
pub fn judge(
    base: &Record,
    new: &Record,
    asked: &GateOptions,
) -> Result<Vec<JudgedFigure>, String> {
    let seed = base.experiment.seed;
    let judged = tests(base, new, asked)?.into_iter().filter_map(|test| {
        let ratio = unpaired_ratio(&test.after, &test.before, seed)?;
        let beyond = if test.figure.more_is_better {
            ratio.low.is_none_or(|low| low < 1.0 - test.bound)
        } else {
            ratio.high.is_none_or(|high| high > 1.0 + test.bound)
        };
        Some(JudgedFigure {
            cell: test.cell,
            figure: test.figure,
            bound: test.bound,
            ratio,
            baseline: test.baseline,
            chance: test.chance,
            outcome: match (test.proven, beyond) {
                (true, _) => GateOutcome::Regression,
                (false, true) => GateOutcome::CannotTell,
                (false, false) => GateOutcome::Within,
            },
        })
    });
    Ok(judged.collect())
}

fn tests(base: &Record, new: &Record, asked: &GateOptions) -> Result<Vec<Test>, String> {
    comparable(base, new)?;
    let same = same_machine(&base.environment, &new.environment);
    if !same && asked.beside.is_none() {
        return Err("the records are of different machines; --beside CONTESTANT judges ratios within each record instead".to_owned());
    }
    let (all_before, all_after) = (cells(base), cells(new));
    for name in std::iter::once(&asked.contestant).chain(&asked.beside) {
        has("base", &all_before, name)?;
        has("new", &all_after, name)?;
    }
    let mut tests = Vec::new();
    let ours = all_before.keys();
    for cell in ours.filter(|cell| cell.contestant == asked.contestant) {
        for figure in FIGURES {
            let of = |all: &Cells| rounds(all, cell, figure, asked.beside.as_deref());
            let (before, after) = (of(&all_before), of(&all_after));
            if before.len().min(after.len()) >= ROUNDS_FOR_INTERVAL {
                let own = asked.bounds.iter().find(|(name, _)| name == figure.name);
                let bound = own.map_or(asked.bound, |(_, bound)| *bound);
                let seed = base.experiment.seed;
                let baseline = moved((&all_before, &all_after), cell, figure, seed);
                let baseline = baseline.filter(|_| asked.beside.is_none());
                let moved = baseline.as_ref().map_or(1.0, |by| furthest(figure, by));
                let excused: Vec<f64> = before.iter().map(|value| value * moved).collect();
                tests.push(Test {
                    cell: cell.clone(),
                    figure,
                    bound,
                    chance: chance(figure, bound, &excused, &after),
                    baseline,
                    before,
                    after,
                    proven: false,
                });
            }
        }
    }
    if tests.is_empty() {
        return Err(format!(
            "no figure of {} is in both records with {ROUNDS_FOR_INTERVAL} valid rounds or more",
            asked.contestant
        ));
    }
    let chances: Vec<f64> = tests.iter().map(|test| test.chance).collect();
    for (test, proven) in tests.iter_mut().zip(proven_together(&chances, LEVEL)) {
        test.proven = proven;
    }
    Ok(tests)
}

type Cells = std::collections::BTreeMap<CellKey, Rounds>;

fn has(which: &str, all: &Cells, name: &str) -> Result<(), String> {
    let names: std::collections::BTreeSet<&str> =
        all.keys().map(|cell| cell.contestant.as_str()).collect();
    if names.contains(name) {
        return Ok(());
    }
    let names: Vec<&str> = names.into_iter().collect();
    let names = names.join(", ");
    Err(format!(
        "{name} is not in the {which} record, which has {names}"
    ))
}

/// A figure's rounds, or its ratios to another contestant's in the same rounds.
fn rounds(all: &Cells, cell: &CellKey, figure: ComparedFigure, beside: Option<&str>) -> Vec<f64> {
    let Some(ours) = all.get(cell) else {
        return Vec::new();
    };
    let Some(beside) = beside else {
        return values(cell, ours, figure.name);
    };
    let beside = CellKey {
        contestant: beside.to_owned(),
        ..cell.clone()
    };
    all.get(&beside)
        .map_or_else(Vec::new, |theirs| ratios(ours, theirs, figure.name))
}

/// How much worse the path without a proxy got under the same load, if it provably did: by the figure itself, its median latency or
/// its CPU, whichever excuses most. That is the generator, the server and the machine, and no regression of a proxy.
fn moved(
    (before, after): (&Cells, &Cells),
    cell: &CellKey,
    figure: ComparedFigure,
    seed: u64,
) -> Option<Estimate> {
    if !depends_on_speed(figure.name) {
        return None;
    }
    let of = |all: &Cells, name| {
        let mut baselines = all.iter().filter(|(key, _)| key.is_baseline());
        let found = baselines.find(|(key, _)| key.same_load(cell));
        found.map_or_else(Vec::new, |(key, rounds)| values(key, rounds, name))
    };
    let ratio = |name| unpaired_ratio(&of(after, name), &of(before, name), seed);
    if figure.more_is_better {
        return ratio(figure.name).filter(|ratio| ratio.high.is_some_and(|high| high < 1.0));
    }
    let names = [figure.name, "latency_us.p50", "machine_cpu_us_per_request"];
    let worse = names.into_iter().filter_map(ratio);
    worse
        .filter(|ratio| ratio.low.is_some_and(|low| low > 1.0))
        .max_by(|a, b| furthest(figure, a).total_cmp(&furthest(figure, b)))
}

/// The end of the interval on the worse side.
fn furthest(figure: ComparedFigure, ratio: &Estimate) -> f64 {
    let end = if figure.more_is_better {
        ratio.low
    } else {
        ratio.high
    };
    end.unwrap_or(ratio.median)
}

/// Probability of rounds as much worse if the new ones were worse by no more than the bound. Worse is more, or less for
/// throughput. The allowed worsening is taken off first.
fn chance(figure: ComparedFigure, bound: f64, before: &[f64], after: &[f64]) -> f64 {
    if figure.more_is_better {
        let allowed: Vec<f64> = before.iter().map(|value| value * (1.0 - bound)).collect();
        higher(&allowed, after)
    } else {
        let allowed: Vec<f64> = after.iter().map(|value| value / (1.0 + bound)).collect();
        higher(&allowed, before)
    }
}

fn ratios(ours: &Rounds, theirs: &Rounds, figure: &str) -> Vec<f64> {
    let both = ours.iter().filter_map(|(round, figures)| {
        let (ours, theirs) = (*figures.get(figure)?, *theirs.get(round)?.get(figure)?);
        (theirs > 0.0).then(|| ours / theirs)
    });
    both.collect()
}

/// The worst of all.
#[must_use]
pub fn outcome(judged: &[JudgedFigure]) -> GateOutcome {
    let any = |outcome| judged.iter().any(|one| one.outcome == outcome);
    if any(GateOutcome::Regression) {
        GateOutcome::Regression
    } else if any(GateOutcome::CannotTell) {
        GateOutcome::CannotTell
    } else {
        GateOutcome::Within
    }
}

/// Text of the result, for the terminal: regressions first, then undecided figures.
#[must_use]
pub fn render(judged: &[JudgedFigure], asked: &GateOptions) -> String {
    let mut text = String::new();
    for (outcome, words) in [
        (GateOutcome::Regression, "REGRESSION"),
        (GateOutcome::CannotTell, "cannot tell"),
    ] {
        for one in judged.iter().filter(|one| one.outcome == outcome) {
            let baseline = one.baseline.as_ref().map_or_else(String::new, |by| {
                format!("; without a proxy {} itself", interval(by, ratio))
            });
            let _ = writeln!(
                text,
                "{words}: {} of {}, {}, {}: {} (may be {} {:.0} %{baseline}; chance of it within that {:.4})",
                one.figure.title,
                one.cell.contestant,
                path_title(&one.cell.mode, one.cell.tls),
                load_title(&one.cell),
                interval(&one.ratio, ratio),
                if one.figure.more_is_better {
                    "lower by"
                } else {
                    "higher by"
                },
                one.bound * 100.0,
                one.chance
            );
        }
    }
    let beside = match &asked.beside {
        Some(beside) => format!("of ratios to {beside} within rounds"),
        None => "of records that were not measured together".to_owned(),
    };
    let count = |outcome| judged.iter().filter(|one| one.outcome == outcome).count();
    let moved = judged.iter().filter(|one| one.baseline.is_some()).count();
    if moved > 0 {
        let _ = writeln!(
            text,
            "The baseline, which has no proxy, moved itself under {moved} of the figures: what it explains is no regression."
        );
    }
    let verdict = match outcome(judged) {
        GateOutcome::Regression => "a regression is proven",
        GateOutcome::CannotTell => {
            "no regression is proven; for some figures it cannot be told at this noise"
        }
        GateOutcome::Within => "no regression: every interval lies within its bound",
    };
    let _ = writeln!(
        text,
        "Gate: {verdict}. {} figures {beside}: {} worse, {} within, {} cannot be told. If neither program nor machine changed, at most {:.0} gates in 100 fail; --beside CONTESTANT cancels out a changed machine.",
        judged.len(),
        count(GateOutcome::Regression),
        count(GateOutcome::Within),
        count(GateOutcome::CannotTell),
        LEVEL * 100.0
    );
    text
}

/// The result for programs.
#[must_use]
pub fn to_json(judged: &[JudgedFigure], asked: &GateOptions) -> Value {
    let figures: Vec<Value> = judged
        .iter()
        .map(|one| {
            json!({
                "cell": one.cell,
                "figure": one.figure.name,
                "more_is_better": one.figure.more_is_better,
                "bound": one.bound,
                "ratio": one.ratio,
                "baseline_ratio": one.baseline,
                "chance": one.chance,
                "verdict": one.outcome.name(),
            })
        })
        .collect();
    json!({
        "version": 1,
        "verdict": outcome(judged).name(),
        "contestant": asked.contestant,
        "beside": asked.beside,
        "figures": figures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Process, SliceRun};

    /// A record of ten rounds, two cells, three figures. `drift` is a factor of the whole record, `worse` a factor of Voile's
    /// figures. The path without a proxy has half of the relay's latency.
    fn record(random: &mut fastrand::Rng, drift: f64, worse: f64) -> Record {
        let mut record = Record::default();
        for round in 1..=10 {
            let mut noise = |spread: f64| {
                let gauss = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                let spoiled = if random.f64() < 0.05 { 1.4 } else { 1.0 };
                (gauss * spread).exp() * spoiled * drift
            };
            let machine = noise(0.03) / drift;
            for connections in [16, 64] {
                for (contestant, mode, times) in [
                    ("voile", "both", worse),
                    ("relay", "both", 1.0),
                    ("baseline", "baseline", 0.5),
                ] {
                    let mut run = SliceRun {
                        contestant: contestant.to_owned(),
                        mode: mode.to_owned(),
                        rate: 1000.0,
                        connections,
                        round,
                        valid: true,
                        ..SliceRun::default()
                    };
                    run.latency_us.p50 = Some(150.0 * machine * noise(0.02) * times);
                    run.latency_us.p99 = Some(700.0 * machine * noise(0.25) * times);
                    run.processes.push(Process {
                        role: "client-sidecar".to_owned(),
                        cpu_us_per_request: 35.0 * machine * noise(0.02) * times,
                        rss_bytes: (9e6 * times) as u64,
                        ..Process::default()
                    });
                    record.runs.push(run);
                }
            }
        }
        record
    }

    fn failures(gates: u64, drift: f64, worse: f64, asked: &GateOptions) -> usize {
        (0..gates)
            .filter(|seed| {
                let mut random = fastrand::Rng::with_seed(*seed);
                // Two records of one machine are each off by a little of their own.
                let mut off = || 1.0 + drift * (random.f64() * 2.0 - 1.0);
                let (first, second) = (off(), off());
                let base = record(&mut random, first, 1.0);
                let new = record(&mut random, second, worse);
                let tests = tests(&base, &new, asked).expect("judged");
                tests.iter().any(|test| test.proven)
            })
            .count()
    }

    #[test]
    fn a_gate_on_records_that_do_not_differ_fails_at_most_five_times_in_a_hundred() {
        // Even with a bound of nothing; with the default bound, records may each be off by 2 %.
        let nothing = GateOptions {
            bound: 0.0,
            ..GateOptions::default()
        };
        let alarms = failures(200, 0.0, 1.0, &nothing);
        assert!(alarms <= 10, "{alarms} of 200");
        let alarms = failures(200, 0.02, 1.0, &GateOptions::default());
        assert!(alarms <= 10, "{alarms} of 200");
        // A machine that changed by 30 % cancels out beside another contestant.
        let beside = GateOptions {
            beside: Some("relay".to_owned()),
            ..GateOptions::default()
        };
        let alarms = failures(100, 0.3, 1.0, &beside);
        assert!(alarms <= 5, "{alarms} of 100");
    }

    #[test]
    fn a_gate_sees_fifteen_percent() {
        let seen = failures(50, 0.02, 1.15, &GateOptions::default());
        assert!(seen >= 45, "{seen} of 50");
        let beside = GateOptions {
            beside: Some("relay".to_owned()),
            ..GateOptions::default()
        };
        let seen = failures(50, 0.3, 1.15, &beside);
        assert!(seen >= 45, "{seen} of 50");
    }

    #[test]
    fn a_baseline_that_moved_excuses_what_it_explains_and_no_more() {
        for (drift, worse, expected) in [
            (1.3, 1.0, GateOutcome::CannotTell),
            (1.3, 1.6, GateOutcome::Regression),
            (1.0, 1.3, GateOutcome::Regression),
            // A faster machine hides nothing that it could be blamed for.
            (0.8, 1.6, GateOutcome::Regression),
        ] {
            let mut random = fastrand::Rng::with_seed(5);
            let base = record(&mut random, 1.0, 1.0);
            let new = record(&mut random, drift, worse);
            let asked = GateOptions::default();
            let judged = judge(&base, &new, &asked).expect("judged");
            let text = render(&judged, &asked);
            assert_eq!(outcome(&judged), expected, "{drift} {worse}: {text}");
            assert_eq!(text.contains("without a proxy 1."), drift > 1.0, "{text}");
            let json = to_json(&judged, &asked);
            assert_eq!(json["verdict"], expected.name());
            let p50 = json["figures"].as_array().into_iter().flatten();
            let mut p50 = p50.filter(|one| one["figure"] == "latency_us.p50");
            let moved = p50.all(|one| one["baseline_ratio"].is_object());
            assert_eq!(moved, drift > 1.0, "{json:#}");
        }
    }

    #[test]
    fn what_cannot_be_judged_is_refused_and_what_is_within_is_said() {
        let mut random = fastrand::Rng::with_seed(3);
        let base = record(&mut random, 1.0, 1.0);
        let asked = GateOptions {
            bound: 0.5,
            bounds: vec![("latency_us.p99".to_owned(), 3.0)],
            ..GateOptions::default()
        };
        let judged = judge(&base, &base, &asked).expect("judged");
        assert_eq!(
            outcome(&judged),
            GateOutcome::Within,
            "{}",
            render(&judged, &asked)
        );
        assert!(render(&judged, &asked).contains("no regression: every interval"));
        let mut few = base.clone();
        few.runs.retain(|run| run.round < 6);
        let mut elsewhere = base.clone();
        elsewhere.environment.host = "another".to_owned();
        let mut debug = base.clone();
        debug.environment.profile = "debug".to_owned();
        for (new, why) in [
            (few, "6 valid rounds or more"),
            (elsewhere, "different machines"),
            (debug, "different profiles"),
        ] {
            let error = judge(&base, &new, &GateOptions::default()).expect_err("refused");
            assert!(error.contains(why), "{error}");
        }
    }
}
