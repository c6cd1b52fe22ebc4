//! Cost of a request for a load generator, ours beside others. Holds the record of interleaved slices against the same server,
//! and the findings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::agreement::BOUND;
use crate::head::RecordHead;
use crate::html;
use crate::page::{begin, end, table, with_plots, words};
use crate::plots::plot::{Plot, Section};
use crate::record::Estimate;
use crate::record::target_verdicts::TargetResult;
use crate::side_record::SideRecord;
use crate::statistics::{estimate, paired_ratio};
use crate::svg::{PlotBar, bars};
use crate::words::{duration, escape, interval, per_second, ratio};

const TITLE: &str = "Cost of a request for a load generator";

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Generators {
    /// Environment, time and command of the comparison.
    #[serde(flatten)]
    pub head: RecordHead,
    /// The compared loads.
    pub scenes: Vec<GeneratorScene>,
    /// Every slice in order, failed ones included.
    pub slices: Vec<GeneratorTurn>,
    /// What follows.
    pub findings: Vec<GeneratorFinding>,
}

/// A load that several generators make.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratorScene {
    /// Its name in slices.
    pub name: String,
    /// In words.
    pub title: String,
    /// Compared figure: `requests_per_core`, `requests_per_second`, `p50_us` or `mean_us`.
    pub figure: String,
    /// The generators that ours is compared with, and the required ratios.
    pub bounds: Vec<OtherGenerator>,
}

/// Another generator in a scene.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherGenerator {
    /// Its name.
    pub of: String,
    /// The least ratio of ours to its figure; without one rates are only shown, and latencies must agree.
    pub at_least: Option<f64>,
    /// Figure of the other generator, if it does not report the scene's figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<String>,
}

/// A slice of one generator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratorTurn {
    /// The scene.
    pub scene: String,
    /// Name of the generator.
    pub generator: String,
    /// From 1.
    pub round: u32,
    /// By its own word.
    pub requests_per_second: f64,
    /// Cores that it kept busy.
    pub cores: f64,
    /// One divided by the other.
    pub requests_per_core: f64,
    /// CPU time of the generator for a request, in µs, and the part of it in user mode (sampled by ticks).
    #[serde(default)]
    pub cpu_us: f64,
    /// See `cpu_us`.
    #[serde(default)]
    pub user_us: f64,
    /// Cores that the server kept busy meanwhile: below its threads, it was not the limit.
    #[serde(default)]
    pub server_cores: f64,
    /// Median latency, if the generator reports one.
    pub p50_us: Option<f64>,
    /// Mean latency, if the generator reports one.
    pub mean_us: Option<f64>,
    /// Reason why there are no figures.
    pub failure: Option<String>,
}

/// Ours beside one other in one scene.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratorFinding {
    /// The scene.
    pub scene: String,
    /// The generator that ours is divided by.
    pub of: String,
    /// The divided figure.
    #[serde(default)]
    pub figure: String,
    /// Ours.
    pub voile: Option<Estimate>,
    /// The other's.
    pub other: Option<Estimate>,
    /// Paired within rounds.
    pub ratio: Option<Estimate>,
    /// The requirement, in words; empty if there is none.
    pub asked: String,
    /// Verdict on the requirement.
    pub outcome: Option<TargetResult>,
}

impl Generators {
    fn finding(&self, scene: &GeneratorScene, bound: &OtherGenerator) -> GeneratorFinding {
        let figure = bound.figure.as_ref().unwrap_or(&scene.figure);
        let of = |generator: &str| self.rounds(scene, generator, figure);
        let (ours, theirs) = (of("voile"), of(&bound.of));
        let pairs: Vec<(f64, f64)> = ours
            .iter()
            .filter_map(|(round, ours)| Some((*ours, *theirs.get(round)?)))
            .collect();
        let over =
            |rounds: &BTreeMap<u32, f64>| estimate(&rounds.values().copied().collect::<Vec<_>>());
        let ratio = paired_ratio(&pairs);
        let rates = figure.starts_with("requests_per_");
        let (low, high) = match bound.at_least {
            Some(least) => (least, f64::INFINITY),
            None => (1.0 - BOUND, 1.0 + BOUND),
        };
        let asked = match bound.at_least {
            Some(least) => format!("at least {least} × {}", bound.of),
            None if rates => String::new(),
            None => format!("within {:.0} % of {}", BOUND * 100.0, bound.of),
        };
        GeneratorFinding {
            scene: scene.name.clone(),
            of: bound.of.clone(),
            figure: figure.clone(),
            voile: over(&ours),
            other: over(&theirs),
            outcome: (!asked.is_empty()).then(|| outcome(ratio.as_ref(), low, high)),
            ratio,
            asked,
        }
    }

    fn rounds(&self, scene: &GeneratorScene, generator: &str, figure: &str) -> BTreeMap<u32, f64> {
        let of_it = |slice: &&GeneratorTurn| {
            slice.scene == scene.name && slice.generator == generator && slice.failure.is_none()
        };
        let figure = |slice: &GeneratorTurn| match figure {
            "p50_us" => slice.p50_us,
            "mean_us" => slice.mean_us,
            "requests_per_second" => Some(slice.requests_per_second),
            "cpu_us" => Some(slice.cpu_us).filter(|us| *us > 0.0),
            _ => Some(slice.requests_per_core),
        };
        let slices = self.slices.iter().filter(of_it);
        slices
            .filter_map(|slice| Some((slice.round, figure(slice)?)))
            .collect()
    }

    /// CPU cost of a request for each generator, and the load of both sides.
    fn costs(&self, text: &mut String) {
        for scene in &self.scenes {
            let others = scene.bounds.iter().map(|bound| bound.of.as_str());
            for generator in std::iter::once("voile").chain(others) {
                let slices = self.slices.iter().filter(|slice| {
                    slice.scene == scene.name
                        && slice.generator == generator
                        && slice.failure.is_none()
                        && slice.cpu_us > 0.0
                });
                let slices: Vec<&GeneratorTurn> = slices.collect();
                let middle = |figure: fn(&GeneratorTurn) -> f64| {
                    let figures: Vec<f64> = slices.iter().map(|slice| figure(slice)).collect();
                    estimate(&figures).map_or(0.0, |found| found.median)
                };
                if slices.is_empty() {
                    continue;
                }
                let _ = writeln!(
                    text,
                    "{}: {generator}: {:.2} µs of CPU a request ({:.2} in user mode), {}, {:.2} cores; the server {:.2} cores.",
                    scene.title,
                    middle(|slice| slice.cpu_us),
                    middle(|slice| slice.user_us),
                    per_second(middle(|slice| slice.requests_per_second)),
                    middle(|slice| slice.cores),
                    middle(|slice| slice.server_cores),
                );
            }
        }
    }

    /// Reports if all requirements are met and our generator never failed.
    fn holds(&self) -> bool {
        let missed = |finding: &GeneratorFinding| finding.outcome == Some(TargetResult::Missed);
        let broke = |slice: &GeneratorTurn| slice.generator == "voile" && slice.failure.is_some();
        !self.slices.is_empty()
            && !self.slices.iter().any(broke)
            && !self.findings.iter().any(missed)
    }
}

impl SideRecord for Generators {
    const FILES: &'static [&'static str] = &["generators.json"];

    fn head(&self) -> &RecordHead {
        &self.head
    }

    /// Fills `findings` from `slices`.
    fn conclude(&mut self) {
        let all = self.scenes.iter().flat_map(|scene| {
            let each = scene.bounds.iter();
            each.map(|bound| self.finding(scene, bound))
        });
        self.findings = all.collect();
    }

    fn in_words(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let scene = self.scenes.iter().find(|scene| scene.name == finding.scene);
            let Some(scene) = scene else { continue };
            let (show, what) = shown(match finding.figure.is_empty() {
                true => &scene.figure,
                false => &finding.figure,
            });
            let told = |found: &Option<Estimate>, show| {
                let words = found.as_ref().map(|found| interval(found, show));
                words.unwrap_or_else(|| "–".to_owned())
            };
            let _ = writeln!(
                text,
                "{}: {what}: voile load {}, {} {}; ratio {}.{}",
                scene.title,
                told(&finding.voile, show),
                finding.of,
                told(&finding.other, show),
                told(&finding.ratio, ratio),
                match finding.outcome {
                    Some(outcome) => format!(" Asked: {}: {}.", finding.asked, outcome.in_words()),
                    None => String::new(),
                }
            );
        }
        self.costs(&mut text);
        for slice in self.slices.iter().filter(|slice| slice.failure.is_some()) {
            let why = slice.failure.as_deref().unwrap_or_default();
            let _ = writeln!(text, "{} {} failed: {why}", slice.scene, slice.generator);
        }
        text
    }

    /// Plots of the record: the compared figure of each scene, and the cost of a request.
    fn sections(&self) -> Vec<Section> {
        let drawn =
            |kind: &str, figure_of: &dyn Fn(&GeneratorScene) -> Option<String>| -> Vec<Plot> {
                let scenes = self.scenes.iter().filter_map(|scene| {
                    let figure = figure_of(scene)?;
                    let (show, what) = shown(&figure);
                    let others = scene.bounds.iter().map(|bound| bound.of.as_str());
                    let rows = std::iter::once("voile")
                        .chain(others)
                        .filter_map(|generator| {
                            let rounds = self.rounds(scene, generator, &figure);
                            let value = estimate(&rounds.values().copied().collect::<Vec<_>>())?;
                            let class = if generator == "voile" {
                                "c-voile"
                            } else {
                                "c-other"
                            };
                            let label = generator.to_owned();
                            Some(PlotBar {
                                label,
                                class,
                                value,
                            })
                        });
                    let rows: Vec<PlotBar> = rows.collect();
                    let title = format!("{what}: {}", scene.title);
                    let svg = (!rows.is_empty()).then(|| bars(&title, &rows, show))?;
                    Some(Plot::new(kind, title, svg))
                });
                scenes.collect()
            };
        let section = |title, words, plots| Section {
            title,
            words,
            plots,
            folded: false,
        };
        with_plots(vec![
            section(
                "Comparison",
                "Medians over rounds with 95 % intervals.",
                drawn("scene", &|scene| Some(scene.figure.clone())),
            ),
            section(
                "Cost of a request",
                "CPU of the generator's process for a request, its system calls included.",
                drawn("cpu", &|scene| {
                    let most = scene.figure.starts_with("requests_per_");
                    most.then(|| "cpu_us".to_owned())
                }),
            ),
        ])
    }

    fn to_html(&self) -> String {
        let mut page = begin(TITLE, &self.head);
        words(&mut page, &self.in_words());
        html::draw(&mut page, &self.sections());
        page.push_str("<h2>Every slice</h2>\n<details><summary>All of them</summary>\n");
        let rows: Vec<Vec<String>> = self.slices.iter().map(row).collect();
        table(
            &mut page,
            &[
                "scene",
                "round",
                "generator",
                "requests/s",
                "its cores",
                "CPU/request, µs",
                "the server's cores",
                "p50",
                "mean",
                "why it failed",
            ],
            &rows,
        );
        page.push_str("</details>\n");
        end(&mut page, &self.head, self.file());
        page
    }

    fn to_markdown(&self) -> String {
        let mut text = self.head.to_markdown(TITLE, &self.in_words());
        let _ = writeln!(
            text,
            "\nMedians over rounds with 95 % intervals; ratios paired within rounds. Generator and server share the cores. `generators.json` \
             holds every slice. `{}`",
            self.head.command
        );
        text
    }

    fn shortcoming(&self) -> Option<&'static str> {
        (!self.holds()).then_some("a bound is missed")
    }
}

/// Formatter and name of a figure.
fn shown(figure: &str) -> (fn(f64) -> String, &'static str) {
    match figure {
        "p50_us" => (duration, "p50"),
        "mean_us" => (duration, "mean"),
        "cpu_us" => (duration, "CPU per request"),
        "requests_per_second" => (per_second, "requests, whoever's core"),
        _ => (per_second, "requests per core of the generator"),
    }
}

/// A slice as a line of a table.
fn row(slice: &GeneratorTurn) -> Vec<String> {
    let show = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), duration);
    vec![
        escape(&slice.scene),
        slice.round.to_string(),
        escape(&slice.generator),
        format!("{:.0}", slice.requests_per_second),
        format!("{:.2}", slice.cores),
        format!("{:.2}", slice.cpu_us),
        format!("{:.2}", slice.server_cores),
        show(slice.p50_us),
        show(slice.mean_us),
        format!(
            "<span class=\"bad\">{}</span>",
            escape(slice.failure.as_deref().unwrap_or_default())
        ),
    ]
}

fn outcome(ratio: Option<&Estimate>, low: f64, high: f64) -> TargetResult {
    let Some(ratio) = ratio else {
        return TargetResult::NotMeasured;
    };
    match (ratio.low, ratio.high) {
        (Some(least), Some(most)) if least >= low && most <= high => TargetResult::Reached,
        (Some(least), Some(most)) if most < low || least > high => TargetResult::Missed,
        _ => TargetResult::CannotTell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(figure: &str, at_least: Option<f64>, ours: f64, theirs: f64) -> Generators {
        let mut record = Generators {
            scenes: vec![GeneratorScene {
                name: "it".to_owned(),
                title: "it".to_owned(),
                figure: figure.to_owned(),
                bounds: vec![OtherGenerator {
                    of: "fortio".to_owned(),
                    at_least,
                    figure: None,
                }],
            }],
            ..Generators::default()
        };
        for round in 1..=6 {
            for (generator, value) in [("voile", ours), ("fortio", theirs)] {
                record.slices.push(GeneratorTurn {
                    scene: "it".to_owned(),
                    generator: generator.to_owned(),
                    round,
                    requests_per_core: value,
                    requests_per_second: value,
                    p50_us: Some(value),
                    ..GeneratorTurn::default()
                });
            }
        }
        record.conclude();
        record
    }

    #[test]
    fn rates_have_a_least_ratio_and_latencies_must_agree() {
        for (figure, at_least, ours, theirs, wanted) in [
            (
                "requests_per_core",
                Some(2.0),
                210.0,
                100.0,
                Some(TargetResult::Reached),
            ),
            (
                "requests_per_core",
                Some(2.0),
                190.0,
                100.0,
                Some(TargetResult::Missed),
            ),
            ("requests_per_core", None, 50.0, 100.0, None),
            ("requests_per_second", None, 50.0, 100.0, None),
            ("p50_us", None, 2100.0, 2000.0, Some(TargetResult::Reached)),
            ("p50_us", None, 2300.0, 2000.0, Some(TargetResult::Missed)),
        ] {
            let record = record(figure, at_least, ours, theirs);
            assert_eq!(record.findings[0].outcome, wanted, "{}", record.in_words());
            assert_eq!(record.holds(), wanted != Some(TargetResult::Missed));
        }
    }

    /// h2load reports no median, so the means are compared.
    #[test]
    fn who_tells_another_figure_is_compared_in_that() {
        let mut record = record("p50_us", None, 2100.0, 3100.0);
        record.scenes[0].bounds[0].figure = Some("mean_us".to_owned());
        for slice in &mut record.slices {
            slice.mean_us = Some(2000.0);
        }
        record.conclude();
        assert_eq!(record.findings[0].outcome, Some(TargetResult::Reached));
        assert!(record.in_words().contains("mean: voile load 2.00 ms"));
        assert!(record.to_html().contains("p50: it"));
    }

    #[test]
    fn whoever_was_not_there_is_not_measured_and_no_failure() {
        let mut record = record("requests_per_core", Some(2.0), 1.0, 1.0);
        record.slices.retain(|slice| slice.generator == "voile");
        record.conclude();
        assert_eq!(record.findings[0].outcome, Some(TargetResult::NotMeasured));
        assert!(record.holds() && record.to_markdown().contains("not measured"));
        record.slices[0].failure = Some("it broke".to_owned());
        assert!(!record.holds(), "ours must not fail");
    }
}
