//! Cost of policy decisions and of token checks, by one rule up to ten thousand rules of every kind.

use std::collections::BTreeSet;

use super::data::SceneFigures;
use super::view::{SceneTable, SceneView, bar, bar_plot, section, shower, shown};
use crate::plots::plot::Plot;
use crate::record::Record;
use crate::record::scene::{BoundedValue, Finding, SceneBound, SceneFigure};
use crate::table::Row;

/// Largest cost of a decision, as a multiple of the cost with the smallest set.
const GROWTH: f64 = 1.2;
/// Most nanoseconds of a decision by rules of one kind, and by mixed ones.
const ONE_KIND_NS: f64 = 1_000.0;
const MIXED_NS: f64 = 3_000.0;
/// Most nanoseconds that a token takes which was seen before.
const WARM_NS: f64 = 2_000.0;
/// Largest cost of a token that was never seen before, as a multiple of the bare check of its signature.
const COLD: f64 = 1.2;
/// Prefix of the kinds whose rules are issuers of tokens.
const TOKENS: &str = "jwt-";
/// Most bytes that this many rules of paths may hold.
const PATHS_BYTES: f64 = 2_000_000.0;
const PATHS: u32 = 10_000;
/// The hits of tokens that are set beside each other.
const BARE: &str = "bare";
const COLD_HIT: &str = "cold";
/// A figure of a set that is no hit: time of its compilation.
pub const COMPILED: &str = "compile_ns";
/// Bytes of its compiled form.
pub const BYTES: &str = "bytes";

/// Rules of one kind in a number of policies, and the rule that matches: `first`, `last`, `miss`, or `any` (a thousand requests
/// that match different rules). For tokens: `cold` was never seen, `warm` was seen before, `none` is no token, and `bare` is the
/// check of the signature alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct DecisionCell {
    kind: String,
    policies: u32,
    rules: u32,
    hit: String,
}

/// The name of a figure of decisions: nanoseconds of one by that rule, or a figure of the set.
#[must_use]
pub fn figure(kind: &str, rules: u32, policies: u32, hit: &str) -> String {
    format!("{kind}:{rules}:{policies} {hit}")
}

impl DecisionCell {
    fn read(figure: &str) -> Option<Self> {
        let (set, hit) = figure.split_once(' ')?;
        let mut words = set.split(':');
        Some(Self {
            kind: words.next()?.to_owned(),
            rules: words.next()?.parse().ok()?,
            policies: words.next()?.parse().ok()?,
            hit: hit.to_owned(),
        })
    }

    fn size(&self) -> (u32, u32) {
        (self.rules, self.policies)
    }

    fn series(&self) -> Series {
        match self.policies {
            _ if self.kind.starts_with(TOKENS) => Series::Tokens,
            1 => Series::OnePolicy,
            _ => Series::ManyPolicies,
        }
    }

    /// The same kind and hit with another set.
    fn sized(&self, (rules, policies): (u32, u32)) -> Self {
        Self {
            rules,
            policies,
            ..self.clone()
        }
    }

    fn figure(&self, part: &str) -> SceneFigure {
        let figure = figure(&self.kind, self.rules, self.policies, &self.hit);
        let label = match (self.series(), self.hit.as_str()) {
            (_, BARE) => "the bare check of the signature".to_owned(),
            (Series::Tokens, _) => format!("{} issuers", self.rules),
            (Series::OnePolicy, _) => format!("{} rules", self.rules),
            (Series::ManyPolicies, _) => {
                format!("{} rules in {} policies", self.rules, self.policies)
            }
        };
        SceneFigure::new(&label, "voile", part, &figure)
    }
}

/// Group of sets that share one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Series {
    OnePolicy,
    ManyPolicies,
    Tokens,
}

/// The part of slices that count instructions.
pub const INSTRUCTIONS: &str = "instructions";

/// Every measured decision, in the order of the record's tables.
fn cells(record: &Record) -> Vec<DecisionCell> {
    let figures = record.runs.iter().flat_map(|run| run.measured.keys());
    let cells: BTreeSet<DecisionCell> = figures.filter_map(|f| DecisionCell::read(f)).collect();
    cells.into_iter().collect()
}

fn is_decision(cell: &&DecisionCell) -> bool {
    ![COMPILED, BYTES].contains(&cell.hit.as_str())
}

/// For each kind and hit the largest set beside the smallest, of one policy and of many; a token never seen before also beside
/// the check of its signature; and the sets of ten thousand paths.
pub(super) fn asked(record: &Record) -> Vec<Finding> {
    let cells = cells(record);
    let largest = |of: &DecisionCell| {
        let alike = cells.iter().filter(|other| {
            (&other.kind, &other.hit, other.series()) == (&of.kind, &of.hit, of.series())
        });
        let mut sizes: Vec<(u32, u32)> = alike.map(DecisionCell::size).collect();
        sizes.sort_unstable();
        sizes.first().copied().zip(sizes.last().copied())
    };
    let counted = record.runs.iter().any(|run| run.mode == INSTRUCTIONS);
    let mut findings = Vec::new();
    for cell in cells.iter().filter(is_decision) {
        let Some((least, most)) = largest(cell).filter(|(_, most)| *most == cell.size()) else {
            continue;
        };
        if cell.hit == COLD_HIT {
            let bare = DecisionCell {
                hit: BARE.to_owned(),
                ..cell.clone()
            };
            // Valgrind's processor checks signatures by other instructions than this one, so that only time can tell.
            let finding = beside(cell, &bare, "");
            let words = format!("{COLD} × the bare check");
            findings.push(finding.asked(words, vec![at_most(BoundedValue::Ratio, COLD)]));
        }
        let few = match cell.policies {
            1 => least,
            // Many policies beside one that has as many rules as each of them.
            _ => (most.0 / most.1, 1),
        };
        if few == most || cell.hit == BARE {
            continue;
        }
        let few = cell.sized(few);
        findings.push(judged(beside(cell, &few, ""), cell, counted));
        if counted {
            let growth = vec![at_most(BoundedValue::Medians, GROWTH)];
            let finding = beside(cell, &few, INSTRUCTIONS);
            findings.push(match bound_ns(cell) {
                Some(_) if cell.kind != "mixed" => finding.asked(format!("{GROWTH} ×"), growth),
                _ => finding,
            });
        }
    }
    let paths = |cell: &&DecisionCell| {
        cell.hit == BYTES && cell.kind.contains("path") && cell.rules == PATHS
    };
    findings.extend(cells.iter().filter(paths).map(|cell| {
        let finding = Finding::of(&cell.kind, "memory", "B", cell.figure(""));
        let words = format!("{PATHS_BYTES} bytes");
        let bound = at_most(BoundedValue::Figure, PATHS_BYTES);
        finding.asked(
            words,
            vec![SceneBound {
                by_median: true,
                ..bound
            }],
        )
    }));
    findings
}

fn at_most(on: BoundedValue, most: f64) -> SceneBound {
    SceneBound {
        on,
        at_most: Some(most),
        // Counts have no noise.
        by_median: on == BoundedValue::Medians,
        ..SceneBound::default()
    }
}

fn beside(cell: &DecisionCell, other: &DecisionCell, part: &str) -> Finding {
    let hit = match (cell.series(), cell.hit.as_str()) {
        (Series::Tokens, "none") => "no token".to_owned(),
        (Series::Tokens, hit) => format!("{hit} token"),
        (_, "miss") => "missed".to_owned(),
        (_, hit) => format!("{hit} hit"),
    };
    let (measure, unit) = match part {
        "" => (hit, "ns"),
        _ => (format!("{hit}, {part}"), ""),
    };
    Finding::of(&cell.kind, &measure, unit, cell.figure(part)).beside(other.figure(part))
}

/// Most nanoseconds of a decision; none if it has no bound: `any` shows the cost of memory beside the decision, and a token
/// never seen before is mostly the check of its signature.
fn bound_ns(cell: &DecisionCell) -> Option<f64> {
    match (cell.hit.as_str(), cell.kind.as_str()) {
        ("any" | COLD_HIT, _) => None,
        (_, "mixed") => Some(MIXED_NS),
        (_, kind) if kind.starts_with(TOKENS) => Some(WARM_NS),
        _ => Some(ONE_KIND_NS),
    }
}

/// Instruction counts have no noise: if the record has them, they decide about growth.
fn judged(finding: Finding, cell: &DecisionCell, counted: bool) -> Finding {
    let Some(most) = bound_ns(cell) else {
        return finding;
    };
    let time = at_most(BoundedValue::Figure, most);
    let words = format!("{} µs", most / 1e3);
    match counted || cell.kind == "mixed" {
        true => finding.asked(words, vec![time]),
        false => {
            let growth = at_most(BoundedValue::Ratio, GROWTH);
            finding.asked(format!("{words} and {GROWTH} ×"), vec![time, growth])
        }
    }
}

pub(super) fn view(record: &Record, figures: &SceneFigures) -> SceneView {
    let cells = cells(record);
    let series = [
        (Series::OnePolicy, "A decision, by rules in one policy"),
        (
            Series::ManyPolicies,
            "A decision, by policies × rules in each",
        ),
        (Series::Tokens, "A token, by issuers"),
    ];
    let table = |(series, title): (Series, &'static str)| {
        let own = |cell: &&DecisionCell| is_decision(cell) && cell.series() == series;
        let own: Vec<&DecisionCell> = cells.iter().filter(own).collect();
        (!own.is_empty()).then(|| by_size(title, &own, figures))
    };
    let mut tables: Vec<SceneTable> = series.into_iter().filter_map(table).collect();
    tables.push(sets(&cells, figures));
    let plots = ["first", "last", "miss", "cold", "warm", "none"];
    let plots = plots.into_iter().filter_map(|hit| bars(record, hit));
    SceneView {
        title:
            "Cost of a decision by the number of policies, and of a token by the number of issuers"
                .to_owned(),
        sections: vec![section(
            "By kind of rule",
            "Medians over rounds with 95 % intervals.",
            plots.collect(),
        )],
        tables,
        ..SceneView::default()
    }
}

/// A row for each kind and hit, a column for each size.
fn by_size(title: &'static str, cells: &[&DecisionCell], figures: &SceneFigures) -> SceneTable {
    let mut sizes: Vec<(u32, u32)> = cells.iter().map(|cell| cell.size()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let heading = sizes.iter().map(|(rules, policies)| match policies {
        1 => rules.to_string(),
        policies => format!("{policies} × {}", rules / policies),
    });
    let kind = ["kind", "hit"].map(str::to_owned).into_iter();
    let mut rows = vec![Row::Cells(kind.chain(heading).collect())];
    let mut known: Vec<(&str, &str)> = Vec::new();
    for cell in cells {
        if known.contains(&(&cell.kind, &cell.hit)) {
            continue;
        }
        known.push((&cell.kind, &cell.hit));
        let kind = [cell.kind.clone(), cell.hit.clone()].into_iter();
        let of_size = sizes.iter().map(|size| {
            let found = figures.estimate(&cell.sized(*size).figure(""));
            found.map_or_else(|| "–".to_owned(), |found| shower("ns")(found.median))
        });
        rows.push(Row::Cells(kind.chain(of_size).collect()));
    }
    SceneTable::new(title, rows)
}

/// Compile time and memory of the sets.
fn sets(cells: &[DecisionCell], figures: &SceneFigures) -> SceneTable {
    let heading = [
        "kind",
        "rules",
        "policies",
        "compiled in",
        "bytes",
        "bytes a rule",
    ];
    let mut rows = vec![Row::Cells(heading.map(str::to_owned).into())];
    rows.extend(cells.iter().filter(|cell| cell.hit == BYTES).map(|cell| {
        let compiled = DecisionCell {
            hit: COMPILED.to_owned(),
            ..cell.clone()
        };
        let took = figures.estimate(&compiled.figure(""));
        let bytes = figures
            .estimate(&cell.figure(""))
            .map_or(0.0, |found| found.median);
        Row::Cells(vec![
            cell.kind.clone(),
            cell.rules.to_string(),
            cell.policies.to_string(),
            shown(took.as_ref(), shower("ns")),
            format!("{bytes}"),
            format!("{:.0}", bytes / f64::from(cell.rules.max(1))),
        ])
    }));
    SceneTable::new("Sets", rows)
}

/// The largest set of each kind in one policy.
fn bars(record: &Record, hit: &str) -> Option<Plot> {
    let title = match hit {
        "miss" => "A decision that no rule matches, by the largest set".to_owned(),
        "cold" => "A token that is verified, with the most issuers".to_owned(),
        "warm" => "A token that was verified before, with the most issuers".to_owned(),
        "none" => "A request without a token, with the most issuers".to_owned(),
        hit => format!("A decision that the {hit} rule matches, by the largest set"),
    };
    // What is held against two others is one bar.
    let mut drawn = BTreeSet::new();
    let rows = record.own_scene().findings.iter().map(|finding| {
        let cell = DecisionCell::read(&finding.of.figure)?;
        let own = cell.hit == hit && cell.policies == 1 && finding.unit == "ns";
        (own && drawn.insert(&finding.what))
            .then(|| bar(&finding.what, "c-voile", finding.value))?
    });
    bar_plot(hit, title, rows, shower("ns"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::scene::SceneKind;
    use crate::record::target_verdicts::TargetResult;
    use crate::scenes::{conclude, read, shortcoming, terminal};
    use serde_json::{Value, json};

    /// A cell of six rounds in the form of older files.
    fn cell(rules: u32, policies: u32, hit: &str, ns: f64) -> Value {
        json!({"kind": "paths", "rules": rules, "policies": policies, "hit": hit, "ns": vec![ns; 6]})
    }

    fn with_sets(cells: &[Value], sets: &[Value]) -> Record {
        let file = json!({"format": 1, "cells": cells, "sets": sets});
        let mut record = read(SceneKind::Decisions, file).expect("a record");
        conclude(&mut record);
        record
    }

    fn record(cells: &[Value]) -> Record {
        with_sets(cells, &[])
    }

    fn labels(finding: &Finding) -> (&str, &str) {
        let beside = finding.beside.as_ref().expect("it is compared");
        (&finding.of.label, &beside.label)
    }

    #[test]
    fn the_largest_set_is_held_against_the_smallest() {
        for (few, many, outcome) in [
            (50.0, 55.0, TargetResult::Reached),
            (50.0, 61.0, TargetResult::Missed),
            (990.0, 1_100.0, TargetResult::Missed),
        ] {
            let record = record(&[
                cell(10, 1, "last", few),
                cell(1_000, 1, "last", few),
                cell(10_000, 1, "last", many),
            ]);
            let [finding] = record.own_scene().findings.as_slice() else {
                panic!("{:?}", record.own_scene().findings)
            };
            assert_eq!(labels(finding), ("10000 rules", "10 rules"));
            assert_eq!(finding.outcome, Some(outcome), "{many}");
            assert_eq!(
                shortcoming(&record).is_none(),
                outcome == TargetResult::Reached
            );
        }
    }

    #[test]
    fn counts_say_whether_it_grows_where_times_shake() {
        for (counted, outcome) in [
            (440.0, TargetResult::Reached),
            (540.0, TargetResult::Missed),
        ] {
            let mut cells = [cell(10, 1, "miss", 50.0), cell(10_000, 1, "miss", 80.0)];
            cells[0]["instructions"] = json!(400.0);
            cells[1]["instructions"] = json!(counted);
            let record = record(&cells);
            let outcomes: Vec<_> = record
                .own_scene()
                .findings
                .iter()
                .map(|one| one.outcome)
                .collect();
            assert_eq!(outcomes, [Some(TargetResult::Reached), Some(outcome)]);
        }
    }

    /// A token never seen is held against its bare check, one that was seen against one issuer's.
    #[test]
    fn tokens_are_held_against_the_check_of_their_signature_and_against_one_issuer() {
        for (cold, warm, asked) in [
            (22_000.0, 700.0, TargetResult::Reached),
            (26_000.0, 2_100.0, TargetResult::Missed),
        ] {
            let mut cells = vec![cell(10, 1, "miss", 50.0), cell(10_000, 1, "miss", 50.0)];
            for issuers in [1, 1_000] {
                for (hit, ns) in [("bare", 20_000.0), ("cold", cold), ("warm", warm)] {
                    let mut token = cell(issuers, 1, hit, ns);
                    token["kind"] = json!("jwt-rs256");
                    cells.push(token);
                }
            }
            let record = record(&cells);
            let findings = &record.own_scene().findings;
            let of = |measure: &str, beside: &str| {
                let own = |one: &&Finding| one.measure == measure && labels(one).1 == beside;
                findings.iter().find(own).expect("a finding")
            };
            let bare = "the bare check of the signature";
            assert_eq!(of("cold token", bare).outcome, Some(asked));
            assert_eq!(of("warm token", "1 issuers").outcome, Some(asked));
            assert_eq!(
                of("cold token", "1 issuers").outcome,
                None,
                "the signature's"
            );
            assert!(!findings.iter().any(|one| one.measure == "bare token"));
            let table = terminal(&record);
            for words in ["1000 issuers", bare, "1.2 × the bare check", "10000"] {
                assert!(table.contains(words), "{words}: {table}");
            }
        }
    }

    #[test]
    fn many_policies_are_held_against_one_of_them() {
        let record = record(&[
            cell(5, 1, "miss", 50.0),
            cell(10, 1, "miss", 50.0),
            cell(50, 10, "miss", 50.0),
            cell(10_000, 2_000, "miss", 70.0),
        ]);
        let mut findings = record.own_scene().findings.iter();
        let many = findings.find(|one| one.of.label.contains("policies"));
        let many = many.expect("a finding");
        assert_eq!(labels(many), ("10000 rules in 2000 policies", "5 rules"));
        assert_eq!(many.outcome, Some(TargetResult::Missed));
        let table = terminal(&record);
        assert!(table.contains("2000 × 5"), "{table}");
    }

    #[test]
    fn a_set_that_holds_too_much_is_missed() {
        let cells = [cell(10, 1, "any", 50.0), cell(10_000, 1, "any", 90.0)];
        assert!(
            shortcoming(&record(&cells)).is_none(),
            "nothing is asked of it"
        );
        let set = json!({
            "kind": "path-prefixes", "rules": 10_000, "policies": 1, "bytes": 2_100_000,
            "compile_ns": [3e7],
        });
        let record = with_sets(&cells, &[set]);
        assert!(shortcoming(&record).is_some());
        let table = terminal(&record);
        assert!(
            table.contains("2100000") && table.contains("30 ms"),
            "{table}"
        );
    }
}
