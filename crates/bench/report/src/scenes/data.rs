//! Figures of a scene's slices over rounds, and the judgement of a finding.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::scene::{BARE, BoundedValue, Finding, SceneBound, SceneFigure, SceneRecord};
use crate::record::target_verdicts::TargetResult;
use crate::record::{Estimate, Record, SliceRun};
use crate::statistics::{estimate, paired_ratio};
use crate::summarise::{Rounds, figures};

impl Record {
    /// The scene of a scene's record.
    ///
    /// # Panics
    /// On the record of an experiment.
    pub(super) fn own_scene(&self) -> &SceneRecord {
        let scene = self.scene.as_ref();
        scene.expect("invariant: only records of scenes are drawn as such")
    }
}

/// Figures of a scene's valid slices, by contestant, part and round. A round of a graph counts on both sides or on neither.
pub(super) struct SceneFigures(BTreeMap<(String, String), Rounds>);

impl SceneFigures {
    pub(super) fn of(record: &Record) -> Self {
        let mut cells: BTreeMap<(String, String), Rounds> = BTreeMap::new();
        let graph = record
            .scene
            .as_ref()
            .is_some_and(|scene| scene.graph.is_some());
        let mut spoiled = record.runs.iter().filter(|run| graph && !run.valid);
        let spoiled: BTreeSet<u32> = spoiled.by_ref().map(|run| run.round).collect();
        let whole = |run: &&SliceRun| run.valid && !spoiled.contains(&run.round);
        for run in record.runs.iter().filter(whole) {
            let rounds = cells.entry((run.contestant.clone(), run.mode.clone()));
            rounds.or_default().insert(run.round, figures(run));
        }
        Self(cells)
    }

    pub(super) fn rounds(&self, at: &SceneFigure) -> BTreeMap<u32, f64> {
        let rounds = self.0.get(&(at.contestant.clone(), at.part.clone()));
        let figure =
            |(round, of): (&u32, &BTreeMap<String, f64>)| Some((*round, *of.get(&at.figure)?));
        rounds.into_iter().flatten().filter_map(figure).collect()
    }

    pub(super) fn estimate(&self, at: &SceneFigure) -> Option<Estimate> {
        estimate(&self.rounds(at).into_values().collect::<Vec<_>>())
    }

    /// Values of both in the rounds that have both.
    pub(super) fn pairs(&self, of: &SceneFigure, beside: &SceneFigure) -> Vec<(f64, f64)> {
        let others = self.rounds(beside);
        let own = self.rounds(of).into_iter();
        own.filter_map(|(round, value)| Some((value, *others.get(&round)?)))
            .collect()
    }

    /// What the first has more than the second, within rounds.
    pub(super) fn added(&self, with: &SceneFigure, without: &SceneFigure) -> Option<Estimate> {
        let pairs = self.pairs(with, without);
        estimate(
            &pairs
                .iter()
                .map(|(with, without)| with - without)
                .collect::<Vec<_>>(),
        )
    }
}

impl SceneFigure {
    pub(super) fn new(label: &str, contestant: &str, part: &str, figure: &str) -> Self {
        Self {
            label: label.to_owned(),
            contestant: contestant.to_owned(),
            part: part.to_owned(),
            figure: figure.to_owned(),
        }
    }
}

impl SceneBound {
    fn judge(&self, finding: &Finding) -> TargetResult {
        let medians = || {
            let median = finding.value?.median / finding.other?.median;
            Some(Estimate {
                median,
                ..Estimate::default()
            })
        };
        let bounded = match self.on {
            BoundedValue::Figure => finding.value,
            BoundedValue::Ratio => finding.ratio,
            BoundedValue::Medians => medians(),
        };
        let Some(bounded) = bounded else {
            return TargetResult::NotMeasured;
        };
        let ends = match self.by_median {
            true => Some((bounded.median, bounded.median)),
            false => bounded.low.zip(bounded.high),
        };
        let (low, high) = (
            self.at_least.unwrap_or(f64::NEG_INFINITY),
            self.at_most.unwrap_or(f64::INFINITY),
        );
        match ends {
            Some((least, most)) if least >= low && most <= high => TargetResult::Reached,
            Some((least, most)) if most < low || least > high => TargetResult::Missed,
            _ => TargetResult::CannotTell,
        }
    }
}

impl Finding {
    pub(super) fn of(what: &str, measure: &str, unit: &str, of: SceneFigure) -> Self {
        Self {
            what: what.to_owned(),
            measure: measure.to_owned(),
            unit: unit.to_owned(),
            of,
            ..Self::default()
        }
    }

    pub(super) fn beside(self, other: SceneFigure) -> Self {
        Self {
            beside: Some(other),
            ..self
        }
    }

    pub(super) fn asked(self, words: String, bounds: Vec<SceneBound>) -> Self {
        Self {
            asked: words,
            bounds,
            ..self
        }
    }

    pub(super) fn conclude(&mut self, figures: &SceneFigures) {
        self.value = figures.estimate(&self.of);
        if let Some(beside) = &self.beside {
            self.other = figures.estimate(beside);
            self.ratio = paired_ratio(&figures.pairs(&self.of, beside));
            let bare = beside.contestant == BARE;
            self.added = figures.added(&self.of, beside).filter(|_| bare);
        }
        let judged = self.bounds.iter().map(|bound| bound.judge(self));
        self.outcome = judged.reduce(TargetResult::and);
    }
}
