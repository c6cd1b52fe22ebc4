//! Published claims about the cost of a mesh, beside our measurements. A claim holds if the whole interval lies within its
//! bounds. It does not hold here if the whole interval lies outside; otherwise this record cannot tell. A claim about a feature
//! that is not built names the missing feature.

mod lacking;

use std::collections::BTreeMap;
use std::fmt::Write as _;

pub use crate::record::claims::CellSelector;
pub use crate::record::claims::Claim;
use crate::record::{CellKey, Estimate, Record, Summary};
use crate::statistics::{estimate, paired_ratio, ratio_of_medians};
use crate::summarise::{Rounds, by_cell};
use crate::words::{interval, load_title, ratio, unit};

/// Verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The whole interval lies within it.
    Holds,
    /// The whole interval lies below it.
    Less,
    /// The whole interval lies above it.
    More,
    /// An end of it lies inside the interval, or there is no interval.
    CannotTell,
    /// The record lacks the required measurement.
    NotMeasured,
}

impl ClaimVerdict {
    /// For people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Less => "does not hold here: less",
            Self::More => "does not hold here: more",
            Self::CannotTell => "cannot tell at this noise",
            Self::NotMeasured => "not measured",
        }
    }
}

/// One measurement beside a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredClaim {
    /// Contestant of the measurement.
    pub contestant: String,
    /// Under which load, in words.
    pub load: String,
    /// The measured value, in words.
    pub seen: String,
    /// Verdict on the claim.
    pub verdict: ClaimVerdict,
}

/// Each claim of a record with its measurements. Without a fitting cell there is one entry, which states the missing data.
#[must_use]
pub fn judge(record: &Record) -> Vec<(&Claim, Vec<MeasuredClaim>)> {
    let cells = by_cell(record);
    let seed = record.experiment.seed;
    let claims = record.experiment.claims.iter();
    claims
        .map(|claim| {
            let mut measured = Vec::new();
            for contestant in &claim.of {
                let fits = |summary: &&Summary| {
                    summary.contestant == *contestant && claim.cell.fits(&summary.key())
                };
                let found: Vec<MeasuredClaim> = record
                    .summary
                    .iter()
                    .filter(fits)
                    .filter_map(|summary| claim.measured(&summary.key(), &cells, seed))
                    .collect();
                if found.is_empty() {
                    let fitting: Vec<&Summary> = record.summary.iter().filter(fits).collect();
                    measured.push(MeasuredClaim {
                        contestant: contestant.clone(),
                        load: String::new(),
                        seen: match claim.needs.is_empty() {
                            true => claim.lacking(&fitting, record),
                            false => claim.needs.clone(),
                        },
                        verdict: ClaimVerdict::NotMeasured,
                    });
                }
                measured.extend(found);
            }
            (claim, measured)
        })
        .collect()
}

type Cells = BTreeMap<CellKey, Rounds>;

/// The same over another number of connections.
fn over(cell: &CellKey, connections: u32) -> CellKey {
    CellKey {
        connections,
        ..cell.clone()
    }
}

impl Claim {
    /// Reports if this cell is judged and `all` contains the cells that it is compared with.
    #[must_use]
    pub fn cells(&self, cell: &CellKey, all: &[CellKey]) -> bool {
        let beside = self.than_at.is_none() || self.ratio_to.is_some();
        let there = |needed: &CellKey| needed == cell || all.contains(needed);
        beside && self.cell.fits(cell) && self.needed(cell).iter().all(there)
    }

    /// Returns the cells whose figures the judgement of `cell` needs: the cell itself, or the cells of a slope, and the cells
    /// compared with them.
    fn needed(&self, cell: &CellKey) -> Vec<CellKey> {
        let mut all: Vec<CellKey> = match self.steeper_over.as_slice() {
            [] => vec![cell.clone()],
            several => several.iter().map(|n| over(cell, *n)).collect(),
        };
        let beside = [&self.ratio_to, &self.more_than].into_iter().flatten();
        let beside = beside.chain(&self.rises_from);
        all.extend(beside.map(|other| other.beside(cell)));
        if let (Some(connections), Some(other)) = (self.than_at, &self.ratio_to) {
            let there = over(cell, connections);
            all.extend([other.beside(&there), there]);
        }
        all
    }

    fn measured(&self, key: &CellKey, cells: &Cells, seed: u64) -> Option<MeasuredClaim> {
        if !self.needs.is_empty() {
            return None;
        }
        let show = unit(&self.figure).show;
        let own = cells.get(key)?;
        let (found, seen) = if let Some(other) = &self.ratio_to {
            let pairs = match self.than_at {
                None => self.pairs(own, cells.get(&other.beside(key))?),
                Some(connections) => {
                    let there = over(key, connections);
                    let ratios = |key: &CellKey| self.ratios(key, other, cells);
                    let (here, there) = (ratios(key)?, ratios(&there)?);
                    let both = here.iter();
                    both.filter_map(|(round, ratio)| Some((*ratio, *there.get(round)?)))
                        .collect()
                }
            };
            let found = paired_ratio(&pairs);
            (found, found.map(|f| interval(&f, ratio)))
        } else if let Some(other) = &self.more_than {
            let pairs = self.pairs(own, cells.get(&other.beside(key))?);
            let differences: Vec<f64> = pairs.iter().map(|pair| pair.0 - pair.1).collect();
            let found = estimate(&differences);
            (found, found.map(|f| interval(&f, show)))
        } else if let [first, second] = &self.rises_from[..] {
            let (first, second) = (
                cells.get(&first.beside(key))?,
                cells.get(&second.beside(key))?,
            );
            let rises: Vec<f64> = own
                .iter()
                .filter_map(|(round, figures)| {
                    let of = |figures: &BTreeMap<String, f64>| figures.get(&self.figure).copied();
                    let (a, b) = (of(first.get(round)?)?, of(second.get(round)?)?);
                    Some((of(figures)? - b) - (b - a))
                })
                .collect();
            let found = estimate(&rises);
            (found, found.map(|f| interval(&f, show)))
        } else if let [low, middle, high] = self.steeper_over[..] {
            // Told once, of the upper end.
            if key.connections != high {
                return None;
            }
            let found = self.steeper(key, cells, [low, middle, high], seed);
            (found, found.map(|f| interval(&f, ratio)))
        } else {
            let values: Vec<f64> = own
                .values()
                .filter_map(|f| f.get(&self.figure).copied())
                .collect();
            let found = estimate(&values);
            (found, found.map(|f| interval(&f, show)))
        };
        let found = found?;
        Some(MeasuredClaim {
            contestant: key.contestant.clone(),
            load: load_title(key),
            seen: seen?,
            verdict: self.verdict(&found),
        })
    }

    /// The ratio to another cell's figure, by round.
    fn ratios(
        &self,
        key: &CellKey,
        other: &CellSelector,
        cells: &Cells,
    ) -> Option<BTreeMap<u32, f64>> {
        let (ours, theirs) = (cells.get(key)?, cells.get(&other.beside(key))?);
        let by_round = ours.iter().filter_map(|(round, figures)| {
            let other = theirs
                .get(round)?
                .get(&self.figure)
                .filter(|it| **it != 0.0)?;
            Some((*round, figures.get(&self.figure)? / other))
        });
        Some(by_round.collect())
    }

    fn pairs(&self, ours: &Rounds, theirs: &Rounds) -> Vec<(f64, f64)> {
        let both = ours.iter().filter_map(|(round, figures)| {
            Some((
                *figures.get(&self.figure)?,
                *theirs.get(round)?.get(&self.figure)?,
            ))
        });
        both.collect()
    }

    /// The slope between the upper two connection counts divided by that between the lower two.
    fn steeper(&self, key: &CellKey, cells: &Cells, at: [u32; 3], seed: u64) -> Option<Estimate> {
        let of = |connections: u32| {
            let key = CellKey {
                connections,
                ..key.clone()
            };
            cells.get(&key)
        };
        let [low, middle, high] = [of(at[0])?, of(at[1])?, of(at[2])?];
        let [x0, x1, x2] = at.map(f64::from);
        let value = |rounds: &Rounds, round: &u32| rounds.get(round)?.get(&self.figure).copied();
        let slopes: Vec<(f64, f64)> = high
            .keys()
            .filter_map(|round| {
                let [y0, y1, y2] = [
                    value(low, round)?,
                    value(middle, round)?,
                    value(high, round)?,
                ];
                Some(((y2 - y1) / (x2 - x1), (y1 - y0) / (x1 - x0)))
            })
            .collect();
        ratio_of_medians(&slopes, seed)
    }

    fn verdict(&self, found: &Estimate) -> ClaimVerdict {
        let (Some(least), Some(most)) = (found.low, found.high) else {
            return ClaimVerdict::CannotTell;
        };
        let low = self.low.unwrap_or(f64::NEG_INFINITY);
        let high = self.high.unwrap_or(f64::INFINITY);
        if least >= low && most <= high {
            ClaimVerdict::Holds
        } else if most < low {
            ClaimVerdict::Less
        } else if least > high {
            ClaimVerdict::More
        } else {
            ClaimVerdict::CannotTell
        }
    }
}

/// Claims and measurements for the terminal; nothing where a record has no claims.
#[must_use]
pub fn render(record: &Record) -> String {
    let judged = judge(record);
    let mut text = String::new();
    let mut last = "";
    for (claim, measured) in &judged {
        if claim.source != last {
            let _ = writeln!(text, "{}", claim.source);
            last = &claim.source;
        }
        let _ = writeln!(text, "  {}", claim.claim);
        if !claim.judged.is_empty() {
            let _ = writeln!(text, "    judged: {}", claim.judged);
        }
        for one in measured {
            let _ = writeln!(
                text,
                "    {:<17} {}",
                one.contestant,
                [one.verdict.in_words(), &one.seen, &one.load]
                    .into_iter()
                    .filter(|word| !word.is_empty())
                    .collect::<Vec<_>>()
                    .join("; ")
            );
        }
    }
    if !judged.is_empty() {
        let _ = writeln!(text, "{}", count(&judged));
    }
    text
}

/// `Of 24 comparisons …`, for the summary too.
#[must_use]
pub fn count(judged: &[(&Claim, Vec<MeasuredClaim>)]) -> String {
    let all = || judged.iter().flat_map(|(_, measured)| measured);
    let of = |verdict: &[ClaimVerdict]| all().filter(|one| verdict.contains(&one.verdict)).count();
    format!(
        "{} published claims, {} comparisons: {} hold, {} do not hold here, {} cannot be told at this noise, {} are not measured.",
        judged.len(),
        all().count(),
        of(&[ClaimVerdict::Holds]),
        of(&[ClaimVerdict::Less, ClaimVerdict::More]),
        of(&[ClaimVerdict::CannotTell]),
        of(&[ClaimVerdict::NotMeasured])
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SliceRun;
    use crate::summarise::summarise;

    /// Eight rounds through two sidecars at 2, 16 and 64 connections; a connection adds `slope` µs, from 16 on `upper`.
    pub(super) fn record(slope: f64, upper: f64) -> Record {
        let mut record = Record::default();
        for round in 1..=8 {
            for (contestant, times) in [("voile", 1.0), ("envoy", 3.0)] {
                for connections in [2, 16, 64] {
                    let mut run = SliceRun {
                        contestant: contestant.to_owned(),
                        mode: "both".to_owned(),
                        protocol: "http1".to_owned(),
                        arrival: "uniform".to_owned(),
                        rate: 1000.0,
                        connections,
                        round,
                        valid: true,
                        ..SliceRun::default()
                    };
                    let over = f64::from(connections).min(16.0) * slope
                        + f64::from(connections.saturating_sub(16)) * upper;
                    run.latency_us.p50 =
                        Some((100.0 + over) * times * (1.0 + f64::from(round) / 1000.0));
                    record.runs.push(run);
                }
            }
        }
        record
    }

    fn verdicts(mut record: Record, claim: Claim) -> Vec<ClaimVerdict> {
        record.experiment.claims = vec![Claim {
            figure: "latency_us.p50".to_owned(),
            of: vec!["voile".to_owned()],
            ..claim
        }];
        summarise(&mut record);
        let judged = judge(&record);
        let text = render(&record);
        assert!(text.contains(judged[0].1[0].verdict.in_words()), "{text}");
        judged[0].1.iter().map(|one| one.verdict).collect()
    }

    #[test]
    fn a_claim_is_judged_by_the_whole_interval() {
        let at = |connections| CellSelector {
            connections: Some(connections),
            ..CellSelector::default()
        };
        let claim = |low, high| Claim {
            cell: at(2),
            low,
            high,
            ..Claim::default()
        };
        for (low, high, expected) in [
            (Some(50.0), Some(200.0), ClaimVerdict::Holds),
            (None, Some(50.0), ClaimVerdict::More),
            (Some(200.0), None, ClaimVerdict::Less),
            (None, Some(104.5), ClaimVerdict::CannotTell),
        ] {
            assert_eq!(verdicts(record(2.0, 2.0), claim(low, high)), [expected]);
        }
        // Without a word on connections every cell is judged.
        let every = Claim {
            high: Some(1e6),
            ..Claim::default()
        };
        assert_eq!(verdicts(record(2.0, 2.0), every), [ClaimVerdict::Holds; 3]);
    }

    #[test]
    fn ratios_differences_and_slopes_are_paired_within_rounds() {
        let envoy = CellSelector {
            contestant: Some("envoy".to_owned()),
            ..CellSelector::default()
        };
        let third = Claim {
            cell: CellSelector {
                connections: Some(64),
                ..CellSelector::default()
            },
            ratio_to: Some(envoy.clone()),
            low: Some(0.333),
            high: Some(0.334),
            ..Claim::default()
        };
        assert_eq!(
            verdicts(record(2.0, 2.0), third.clone()),
            [ClaimVerdict::Holds]
        );
        let less = Claim {
            ratio_to: None,
            more_than: Some(envoy),
            low: None,
            high: Some(-100.0),
            ..third.clone()
        };
        assert_eq!(verdicts(record(2.0, 2.0), less), [ClaimVerdict::Holds]);
        // A third of the other's at any number of connections: no more of it at 64 than at 2.
        let the_same = Claim {
            than_at: Some(2),
            low: Some(0.999),
            high: Some(1.001),
            ..third.clone()
        };
        assert_eq!(verdicts(record(2.0, 2.0), the_same), [ClaimVerdict::Holds]);
        let steady = Claim {
            steeper_over: vec![2, 16, 64],
            low: Some(0.5),
            high: Some(2.0),
            ..Claim::default()
        };
        assert_eq!(
            verdicts(record(2.0, 2.0), steady.clone()),
            [ClaimVerdict::Holds]
        );
        assert_eq!(verdicts(record(2.0, 9.0), steady), [ClaimVerdict::More]);
    }

    /// A cold start is compared with running processes only if the claim says so.
    #[test]
    fn a_cold_start_is_judged_beside_what_runs_all_the_time() {
        let mut both = record(2.0, 2.0);
        let cold = both.runs.clone().into_iter().map(|mut run| {
            run.shape.start = "cold".to_owned();
            run.latency_us.p50 = run.latency_us.p50.map(|p50| p50 * 1.3);
            run
        });
        both.runs.extend(cold.collect::<Vec<_>>());
        let at = |start: Option<&str>| CellSelector {
            connections: Some(2),
            start: start.map(str::to_owned),
            ..CellSelector::default()
        };
        let beside = |start: &str| CellSelector {
            start: Some(start.to_owned()),
            ..CellSelector::default()
        };
        let claim = |cell, ratio_to, low, high| Claim {
            cell,
            ratio_to,
            low: Some(low),
            high: Some(high),
            ..Claim::default()
        };
        for (cell, ratio_to, low, high) in [
            (at(Some("cold")), Some(beside("")), 1.29, 1.31),
            (at(None), Some(beside("cold")), 0.76, 0.78),
            (at(None), None, 100.0, 110.0),
            (at(Some("cold")), None, 130.0, 140.0),
        ] {
            let claim = claim(cell, ratio_to, low, high);
            assert_eq!(verdicts(both.clone(), claim), [ClaimVerdict::Holds]);
        }
        let words = |start: &str| beside(start).to_string();
        assert_eq!(
            (words("cold"), words("")),
            ("cold start".to_owned(), "running all the time".to_owned())
        );
    }

    #[test]
    fn what_is_not_built_is_named() {
        let claim = Claim {
            needs: "a waypoint, which is not built yet".to_owned(),
            ..Claim::default()
        };
        assert_eq!(
            verdicts(record(1.0, 1.0), claim.clone()),
            [ClaimVerdict::NotMeasured]
        );
        let mut with = record(1.0, 1.0);
        with.experiment.claims = vec![Claim {
            of: vec!["voile".to_owned()],
            ..claim
        }];
        summarise(&mut with);
        let text = render(&with);
        assert!(
            text.contains("a waypoint, which is not built yet")
                && text.contains("1 are not measured"),
            "{text}"
        );
    }
}
