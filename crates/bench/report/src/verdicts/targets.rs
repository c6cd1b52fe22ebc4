//! Targets and their verdicts. A verdict looks at the whole interval. A target is reached if all of the interval is on the good
//! side of the bound, and missed if none of it is. Otherwise this record cannot tell.

pub use crate::record::target_verdicts::TargetResult;
pub use crate::record::target_verdicts::TargetVerdict;
use crate::record::{CellKey, Estimate, FigureTarget, Record, Summary};
use crate::statistics::{estimate, paired_ratio};
use crate::summarise::by_cell;
use crate::words::{Unit, interval, load_title, ratio, unit};

/// All verdicts of a record, in the order of its targets.
#[must_use]
pub fn verdicts(record: &Record) -> Vec<TargetVerdict> {
    let mut verdicts = Vec::new();
    for target in &record.experiment.targets {
        let cells: Vec<&Summary> = record
            .summary
            .iter()
            .filter(|summary| target.means(&summary.key()))
            .collect();
        for figure in &target.figures {
            if cells.is_empty() {
                verdicts.push(TargetVerdict {
                    row: target.row.clone(),
                    figure: figure.clone(),
                    wanted: wanted(target, figure),
                    outcome: TargetResult::NotMeasured,
                    ..TargetVerdict::default()
                });
            }
            verdicts.extend(
                cells
                    .iter()
                    .map(|summary| judge(record, target, figure, summary)),
            );
        }
    }
    verdicts
}

impl FigureTarget {
    /// Returns true if the target applies to this cell.
    fn means(&self, cell: &CellKey) -> bool {
        fn says<T: PartialEq>(wanted: &Option<T>, is: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == is)
        }
        self.contestant == cell.contestant
            && says(&self.mode, &cell.mode)
            && says(&self.tls, &cell.tls)
            && says(&self.kind, &cell.kind)
            && says(&self.protocol, &cell.protocol)
            && says(&self.arrival, &cell.arrival)
            && says(&self.rate, &cell.rate)
            && says(&self.connections, &cell.connections)
            && says(&self.generated, &cell.shape.generated)
            && says(&self.verdict, &cell.shape.verdict)
            && says(&self.hit, &cell.shape.hit)
            && says(&self.token, &cell.shape.token)
    }
}

fn judge(record: &Record, target: &FigureTarget, figure: &str, summary: &Summary) -> TargetVerdict {
    let unit = unit(figure);
    let ratios = |names: &[String]| -> Vec<(String, Option<Estimate>)> {
        names
            .iter()
            .map(|name| {
                let found = summary.ratios.get(name).and_then(|r| r.get(figure));
                (name.clone(), found.copied())
            })
            .collect()
    };
    let is_ratio = !target.of.is_empty() || target.ratio_to.is_some();
    let parts: Vec<(String, Option<Estimate>)> = if !target.of.is_empty() {
        ratios(&target.of)
    } else if let Some(other) = &target.ratio_to {
        let pairs = pairs(record, summary, &other.beside(&summary.key()), figure);
        vec![(format!("of itself {other}"), paired_ratio(&pairs))]
    } else if let Some(other) = &target.more_than {
        let pairs = pairs(record, summary, &other.beside(&summary.key()), figure);
        let differences: Vec<f64> = pairs.iter().map(|pair| pair.0 - pair.1).collect();
        vec![(format!("more than {other}"), estimate(&differences))]
    } else if let Some(other) = &target.minus {
        let theirs = CellKey {
            contestant: other.clone(),
            ..summary.key()
        };
        let pairs = pairs(record, summary, &theirs, figure);
        let differences: Vec<f64> = pairs.iter().map(|pair| pair.0 - pair.1).collect();
        vec![(format!("more than {other}"), estimate(&differences))]
    } else {
        vec![(String::new(), summary.figures.get(figure).copied())]
    };
    let show = |estimate: &Estimate| match is_ratio {
        true => interval(estimate, ratio),
        false => interval(estimate, unit.show),
    };
    let told = |parts: &[(String, Option<Estimate>)], show: &dyn Fn(&Estimate) -> String| {
        let words: Vec<String> = parts
            .iter()
            .map(|(name, found)| {
                let figure = found.as_ref().map_or_else(|| "–".to_owned(), show);
                format!("{figure} {name}").trim_end().to_owned()
            })
            .collect();
        words.join(", ")
    };
    let own = summary.figures.get(figure);
    let mut beside: Vec<String> = Vec::new();
    if let (Some(own), true) = (own, parts.iter().all(|(name, _)| !name.is_empty())) {
        beside.push(format!("itself {}", interval(own, unit.show)));
    }
    let mut others = ratios(&target.beside);
    others.retain(|(_, found)| found.is_some());
    if !others.is_empty() {
        beside.push(told(&others, &|estimate| interval(estimate, ratio)));
    }
    TargetVerdict {
        row: target.row.clone(),
        cell: load_title(&summary.key()),
        figure: figure.to_owned(),
        wanted: wanted(target, figure),
        seen: told(&parts, &show),
        beside: beside.join("; "),
        outcome: parts
            .iter()
            .map(|(_, found)| outcome(target, found.as_ref()))
            .fold(TargetResult::Reached, TargetResult::and),
    }
}

fn outcome(target: &FigureTarget, found: Option<&Estimate>) -> TargetResult {
    let Some(found) = found else {
        return TargetResult::NotMeasured;
    };
    let (Some(low), Some(high)) = (found.low, found.high) else {
        return TargetResult::CannotTell;
    };
    if target.within_noise {
        return if low <= 1.0 {
            TargetResult::Reached
        } else {
            TargetResult::Missed
        };
    }
    let (good, bad) = match (target.at_most, target.at_least) {
        (Some(bound), _) => (high <= bound, low > bound),
        (None, Some(bound)) => (low >= bound, high < bound),
        (None, None) => (false, false),
    };
    match (good, bad) {
        (true, _) => TargetResult::Reached,
        (_, true) => TargetResult::Missed,
        _ => TargetResult::CannotTell,
    }
}

/// The requirement, in words.
fn wanted(target: &FigureTarget, figure: &str) -> String {
    let Unit { show, words, .. } = unit(figure);
    let others = match &target.ratio_to {
        Some(other) => format!("itself {other}"),
        None => target.of.join(" and "),
    };
    if target.within_noise {
        return format!("{words} not above {others} beyond the noise");
    }
    let (sign, bound) = match (target.at_most, target.at_least) {
        (Some(bound), _) => ("≤", bound),
        (None, Some(bound)) => ("≥", bound),
        (None, None) => return words.to_owned(),
    };
    if !others.is_empty() {
        return format!("{words} {sign} {bound} × {others}");
    }
    let other = target.more_than.as_ref().map(ToString::to_string);
    match other.as_ref().or(target.minus.as_ref()) {
        Some(other) => format!("{words} {sign} {} more than {other}", show(bound)),
        None => format!("{words} {sign} {}", show(bound)),
    }
}

/// A cell's figure and another's, by rounds that have both.
fn pairs(record: &Record, summary: &Summary, other: &CellKey, figure: &str) -> Vec<(f64, f64)> {
    let cells = by_cell(record);
    let (Some(ours), Some(theirs)) = (cells.get(&summary.key()), cells.get(other)) else {
        return Vec::new();
    };
    let both = ours.iter().filter_map(|(round, figures)| {
        Some((*figures.get(figure)?, *theirs.get(round)?.get(figure)?))
    });
    both.collect()
}
