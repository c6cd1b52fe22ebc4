//! Reasons why a claim cannot be judged: slices too short for its percentile, a cell without valid slices, or a missing cell.
//! Each reason has its own remedy, so the reasons are kept apart.

use crate::record::claims::Claim;
use crate::record::{CellKey, Record, Summary};
use crate::words::load_title;

/// Nothing of the kind was measured, or no slice of it counts.
const NONE: &str = "no valid slice of such a cell";
/// Reason if every cell has the figure, but never in the same round.
const NO_ROUND: &str = "no round in which all cells that it takes have a valid slice";
/// Prefix of the names of figures over the baseline.
const ADDED: &str = "added_us.";

impl Claim {
    /// Reason why none of these cells could be judged: for each cell with valid slices, the first cell that it needs and that
    /// lacks the figure.
    pub(super) fn lacking(&self, fitting: &[&Summary], record: &Record) -> String {
        let mut reasons: Vec<String> = Vec::new();
        for summary in fitting.iter().filter(|summary| summary.runs_valid > 0) {
            let needed = self.needed(&summary.key());
            let mut lacks = needed
                .iter()
                .filter_map(|cell| lack(&self.figure, cell, record));
            let reason = lacks.next().unwrap_or_else(|| NO_ROUND.to_owned());
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        match reasons.is_empty() {
            true => NONE.to_owned(),
            false => reasons.join("; "),
        }
    }
}

/// Reason why the cell lacks the figure; none if it has the figure.
fn lack(figure: &str, cell: &CellKey, record: &Record) -> Option<String> {
    let title = || {
        let (who, mode) = (&cell.contestant, &cell.mode);
        let who = match cell.is_baseline() {
            true => who.clone(),
            false => format!("{who} ({mode})"),
        };
        format!("{who}, {}", load_title(cell))
    };
    let Some(summary) = record.summary.iter().find(|one| one.key() == *cell) else {
        return Some(format!("not measured: {}", title()));
    };
    if summary.runs_valid == 0 {
        return Some(format!("no valid slice of {}", title()));
    }
    if summary.figures.contains_key(figure) {
        return None;
    }
    let baseline = || {
        let all = record.summary.iter().map(Summary::key);
        all.filter(|other| other.is_baseline() && other.same_load(cell))
            .find_map(|other| lack(&figure.replace(ADDED, "latency_us."), &other, record))
    };
    let added = figure.starts_with(ADDED) && !cell.is_baseline();
    let of_baseline = added.then(baseline).flatten();
    of_baseline.or_else(|| Some(too_few(figure, summary)))
}

/// Said where a cell was measured and lacks the figure: how long a slice must be for so many samples at that rate, and a fifth
/// more, since slices differ.
fn too_few(figure: &str, cell: &Summary) -> String {
    let of = |percentile: &str| match percentile {
        "p50" => Some(("p50", 20.0)),
        "p90" => Some(("p90", 100.0)),
        "p99" => Some(("p99", 1000.0)),
        "p999" => Some(("p99.9", 10_000.0)),
        _ => None,
    };
    let Some((words, samples)) = figure.rsplit('.').next().and_then(of) else {
        return "no slice of that cell has it".to_owned();
    };
    let text = format!("too few samples in a slice: {words} needs ten beyond it");
    if cell.rate <= 0.0 {
        return format!("{text}, so a longer --slice");
    }
    let seconds = (samples * 1.2 / cell.rate).ceil();
    format!("{text}, so --slice {seconds}s at {}/s", cell.rate)
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::super::{CellSelector, judge};
    use super::*;
    use crate::summarise::summarise;

    /// Returns the report's sentence about Voile's cells.
    fn not_judged(mut record: Record, claim: Claim) -> String {
        let figure = match claim.figure.as_str() {
            "" => "latency_us.p50".to_owned(),
            figure => figure.to_owned(),
        };
        record.experiment.claims = vec![Claim {
            figure,
            of: vec!["voile".to_owned()],
            ..claim
        }];
        summarise(&mut record);
        judge(&record)[0].1[0].seen.clone()
    }

    #[test]
    fn a_percentile_of_too_few_samples_is_said_to_be_that() {
        let claim = Claim {
            figure: "latency_us.p999".to_owned(),
            of: vec!["voile".to_owned(), "nginx".to_owned()],
            ..Claim::default()
        };
        let mut record = record(1.0, 1.0);
        record.experiment.claims = vec![claim];
        summarise(&mut record);
        let judged = judge(&record);
        let seen: Vec<&str> = judged[0].1.iter().map(|one| one.seen.as_str()).collect();
        let wanted =
            "too few samples in a slice: p99.9 needs ten beyond it, so --slice 12s at 1000/s";
        assert_eq!(seen, [wanted, "no valid slice of such a cell"]);
        for (figure, rate, wanted) in [
            (
                "latency_us.p999",
                1000.0,
                "p99.9 needs ten beyond it, so --slice 12s at 1000/s",
            ),
            (
                "added_us.p99",
                500.0,
                "p99 needs ten beyond it, so --slice 3s at 500/s",
            ),
            (
                "latency_us.p90",
                10.0,
                "p90 needs ten beyond it, so --slice 12s at 10/s",
            ),
            (
                "latency_us.p99",
                0.0,
                "needs ten beyond it, so a longer --slice",
            ),
            ("sidecar.rss_bytes", 10.0, "no slice of that cell has it"),
        ] {
            let mut cell = record.summary[0].clone();
            cell.rate = rate;
            let said = too_few(figure, &cell);
            assert!(said.ends_with(wanted), "{said}");
        }
    }

    /// Not that slices are too short: that would have people wait longer for the same.
    #[test]
    fn a_cell_of_which_no_slice_counts_is_named_though_others_are_valid() {
        let spoiled = |contestant: &str, connections: u32| {
            let mut record = record(1.0, 1.0);
            for run in &mut record.runs {
                run.valid &= run.contestant != contestant || run.connections != connections;
            }
            record
        };
        let envoy = || CellSelector {
            contestant: Some("envoy".to_owned()),
            ..CellSelector::default()
        };
        let at = |connections: u32| CellSelector {
            connections: Some(connections),
            ..CellSelector::default()
        };
        let slope = || Claim {
            steeper_over: vec![2, 16, 64],
            ..Claim::default()
        };
        let beside = || Claim {
            cell: at(16),
            ratio_to: Some(envoy()),
            ..Claim::default()
        };
        let title = |who: &str, connections: u32| {
            format!(
                "{who} (both), HTTP/1.1, 1000/s over {connections} connections, uniform arrival"
            )
        };
        let mut apart = record(1.0, 1.0);
        for run in &mut apart.runs {
            run.valid &= (run.contestant == "voile") == (run.round < 5);
        }
        let mut alone = record(1.0, 1.0);
        alone.runs.retain(|run| run.contestant == "voile");
        for (record, claim, wanted) in [
            (
                spoiled("voile", 64),
                slope(),
                format!("no valid slice of {}", title("voile", 64)),
            ),
            (
                spoiled("envoy", 16),
                beside(),
                format!("no valid slice of {}", title("envoy", 16)),
            ),
            (
                spoiled("voile", 16),
                beside(),
                "no valid slice of such a cell".to_owned(),
            ),
            (
                alone,
                beside(),
                format!("not measured: {}", title("envoy", 16)),
            ),
            (
                apart,
                beside(),
                "no round in which all cells that it takes have a valid slice".to_owned(),
            ),
        ] {
            assert_eq!(not_judged(record, claim), wanted);
        }
    }

    #[test]
    fn what_is_added_to_a_baseline_without_a_valid_slice_is_not_told_for_that() {
        let added = |valid: bool| {
            let mut record = record(1.0, 1.0);
            let baseline = record.runs.clone().into_iter().map(|mut run| {
                (run.contestant, run.mode) = ("baseline".to_owned(), "baseline".to_owned());
                run.valid = valid;
                run
            });
            let baseline = baseline
                .filter(|run| run.connections == 16)
                .collect::<Vec<_>>();
            record.runs.extend(baseline);
            let claim = Claim {
                figure: "added_us.p50".to_owned(),
                cell: CellSelector {
                    connections: Some(16),
                    ..CellSelector::default()
                },
                ..Claim::default()
            };
            not_judged(record, claim)
        };
        let wanted =
            "no valid slice of baseline, HTTP/1.1, 1000/s over 16 connections, uniform arrival";
        assert_eq!(added(false), wanted);
        assert!(!added(true).contains("valid slice"), "it is judged");
    }
}
