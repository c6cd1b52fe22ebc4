//! Whether our load generator tells the same as Fortio where both can, and more where only it can: the record of
//! interleaved slices of both against the same servers, what follows from it, and how it is written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::head::Head;
use crate::record::{Estimate, Latency};
use crate::statistics::{estimate, paired_ratio};
use crate::words::{duration, interval, ratio};

/// How far from 1 the ratio of medians may be.
pub const BOUND: f64 = 0.10;
/// The least part of the expected p99 that shows a stall.
const SHOWN: f64 = 0.8;

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Where, when and how.
    #[serde(flatten)]
    pub head: Head,
    /// The servers and how both generators were called in each scene.
    pub scenes: Vec<Scene>,
    /// Every slice in order, invalid ones included.
    pub slices: Vec<Slice>,
    /// What follows.
    pub findings: Vec<Finding>,
}

/// A server and the load it gets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scene {
    /// Its name in slices and findings.
    pub name: String,
    /// In words.
    pub title: String,
    /// Command line of the server.
    pub server: String,
    /// Command line of each generator, by its name.
    pub generators: BTreeMap<String, String>,
    /// What is compared: `p50` or `p99`.
    pub figure: String,
    /// What an open loop must see as that figure, in µs, when it can be computed.
    pub expected_us: Option<f64>,
}

/// One generator's turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The scene.
    pub scene: String,
    /// `voile` or `fortio`.
    pub generator: String,
    /// From 1.
    pub round: u32,
    /// Its place in the order of all slices, from 1.
    pub sequence: u32,
    /// Whether it counts.
    pub valid: bool,
    /// Why not.
    pub invalid_reasons: Vec<String>,
    /// Answers per second.
    pub achieved_rps: f64,
    /// Failed requests.
    pub errors: u64,
    /// As the generator tells it: ours from the intended send time, Fortio's from the actual.
    pub latency_us: Latency,
}

/// What one scene says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The scene.
    pub scene: String,
    /// `p50` or `p99`.
    pub figure: String,
    /// Ours in µs, over rounds.
    pub voile: Option<Estimate>,
    /// Fortio's in µs.
    pub fortio: Option<Estimate>,
    /// Ours divided by Fortio's, paired within rounds.
    pub ratio: Option<Estimate>,
    /// What was asked for, in words.
    pub asked: String,
    /// Whether it holds.
    pub pass: bool,
}

impl Agreement {
    /// Fills `findings` from `slices`.
    pub fn conclude(&mut self) {
        self.findings = self
            .scenes
            .iter()
            .map(|scene| self.finding(scene))
            .collect();
    }

    /// Whether everything asked for holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.findings.is_empty() && self.findings.iter().all(|finding| finding.pass)
    }

    fn finding(&self, scene: &Scene) -> Finding {
        let of = |generator: &str| self.rounds(scene, generator);
        let (voile, fortio) = (of("voile"), of("fortio"));
        let pairs: Vec<(f64, f64)> = voile
            .iter()
            .filter_map(|(round, ours)| Some((*ours, *fortio.get(round)?)))
            .collect();
        let over_rounds =
            |rounds: &BTreeMap<u32, f64>| estimate(&rounds.values().copied().collect::<Vec<_>>());
        let (ours, ratio) = (over_rounds(&voile), paired_ratio(&pairs));
        let (asked, pass) = match scene.expected_us {
            None => (
                format!("within {:.0} % of Fortio's", BOUND * 100.0),
                ratio.is_some_and(|ratio| (ratio.median - 1.0).abs() <= BOUND),
            ),
            Some(expected) => (
                format!(
                    "at least {:.0} % of the {} that an open loop must see",
                    SHOWN * 100.0,
                    duration(expected)
                ),
                ours.is_some_and(|ours| ours.median >= SHOWN * expected),
            ),
        };
        Finding {
            scene: scene.name.clone(),
            figure: scene.figure.clone(),
            voile: ours,
            fortio: over_rounds(&fortio),
            ratio,
            asked,
            pass,
        }
    }

    fn rounds(&self, scene: &Scene, generator: &str) -> BTreeMap<u32, f64> {
        let of_scene = |slice: &&Slice| {
            slice.valid && slice.scene == scene.name && slice.generator == generator
        };
        self.slices
            .iter()
            .filter(of_scene)
            .filter_map(|slice| {
                let latency = &slice.latency_us;
                let value = if scene.figure == "p99" {
                    latency.p99
                } else {
                    latency.p50
                };
                Some((slice.round, value?))
            })
            .collect()
    }

    /// One line per slice, in the order they ran.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = "scene,generator,round,sequence,valid,achieved_rps,errors,samples,p50_us,p90_us,p99_us,p999_us,max_us,mean_us\n".to_owned();
        for slice in &self.slices {
            let latency = &slice.latency_us;
            let values: Vec<String> = [
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p999,
                latency.max,
                latency.mean,
            ]
            .iter()
            .map(|value| value.map_or_else(String::new, |us| format!("{us:.1}")))
            .collect();
            let _ = writeln!(
                text,
                "{},{},{},{},{},{:.2},{},{},{}",
                slice.scene,
                slice.generator,
                slice.round,
                slice.sequence,
                slice.valid,
                slice.achieved_rps,
                slice.errors,
                latency.count,
                values.join(",")
            );
        }
        text
    }

    /// The answer in sentences, for the terminal and the head of the report.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut text = String::new();
        for (scene, finding) in self.scenes.iter().zip(&self.findings) {
            let show = |value: Option<&Estimate>| {
                value.map_or_else(|| "–".to_owned(), |e| interval(e, duration))
            };
            let _ = writeln!(
                text,
                "{}: {} of voile load {}, of fortio {}; ratio {}. Asked: {}: {}.",
                scene.title,
                finding.figure,
                show(finding.voile.as_ref()),
                show(finding.fortio.as_ref()),
                finding
                    .ratio
                    .as_ref()
                    .map_or_else(|| "–".to_owned(), |e| interval(e, ratio)),
                finding.asked,
                if finding.pass {
                    "holds"
                } else {
                    "DOES NOT HOLD"
                }
            );
        }
        let invalid = self.slices.iter().filter(|slice| !slice.valid).count();
        let _ = writeln!(
            text,
            "{} of {} slices are valid.",
            self.slices.len() - invalid,
            self.slices.len()
        );
        text
    }

    /// A small report in Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let title = "Does `voile load` agree with Fortio?";
        let mut text = self.head.to_markdown(title, &self.in_words());
        text.push_str("\nMedians over rounds with 95 % intervals; ratios paired within rounds. `agreement.json` holds everything, `slices.csv` one line per slice.\n");
        for scene in &self.scenes {
            let _ = write!(text, "\n## {}\n\n```text\n{}\n", scene.title, scene.server);
            for command in scene.generators.values() {
                let _ = writeln!(text, "{command}");
            }
            text.push_str("```\n\n| round | generator | p50 | p99 | max | requests/s | |\n| --- | --- | --- | --- | --- | --- | --- |\n");
            for slice in self.slices.iter().filter(|slice| slice.scene == scene.name) {
                let show = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), duration);
                let latency = &slice.latency_us;
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {:.1} | {} |",
                    slice.round,
                    slice.generator,
                    show(latency.p50),
                    show(latency.p99),
                    show(latency.max),
                    slice.achieved_rps,
                    slice.invalid_reasons.join("; ").replace('|', "/")
                );
            }
        }
        text
    }

    /// The JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self)
            .expect("invariant: a record holds nothing JSON cannot say")
            + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(scene: &str, generator: &str, round: u32, us: f64) -> Slice {
        let latency_us = Latency {
            p50: Some(us),
            p99: Some(us),
            count: 3000,
            ..Latency::default()
        };
        Slice {
            scene: scene.to_owned(),
            generator: generator.to_owned(),
            round,
            valid: true,
            latency_us,
            ..Slice::default()
        }
    }

    fn concluded(expected_us: Option<f64>, ours: f64, theirs: f64) -> Agreement {
        let scene = Scene {
            name: "it".to_owned(),
            title: "it".to_owned(),
            figure: if expected_us.is_some() { "p99" } else { "p50" }.to_owned(),
            expected_us,
            ..Scene::default()
        };
        let mut record = Agreement {
            scenes: vec![scene],
            ..Agreement::default()
        };
        for round in 1..=6 {
            record.slices.push(slice("it", "voile", round, ours));
            record.slices.push(slice("it", "fortio", round, theirs));
        }
        // Would spoil every median, were it counted.
        record.slices.push(Slice {
            valid: false,
            ..slice("it", "voile", 6, 9e9)
        });
        record.conclude();
        record
    }

    #[test]
    fn agreement_is_within_ten_percent_and_a_stall_must_show() {
        for (expected, ours, theirs, pass) in [
            (None, 2100.0, 2100.0, true),
            (None, 2300.0, 2100.0, true),
            (None, 2320.0, 2100.0, false),
            (None, 1880.0, 2100.0, false),
            (Some(150_000.0), 148_000.0, 500.0, true),
            (Some(150_000.0), 119_000.0, 500.0, false),
            // Fortio seeing it too would be no failure of ours.
            (Some(150_000.0), 148_000.0, 148_000.0, true),
        ] {
            let record = concluded(expected, ours, theirs);
            assert_eq!(record.holds(), pass, "{}", record.in_words());
        }
        assert!(
            !Agreement::default().holds(),
            "nothing measured, nothing shown"
        );
    }

    #[test]
    fn the_report_holds_each_slice_and_the_verdict() {
        let record = concluded(None, 2500.0, 2000.0);
        let text = record.to_markdown();
        assert!(
            text.contains("DOES NOT HOLD") && text.contains("2.50 ms"),
            "{text}"
        );
        assert_eq!(text.matches("| voile |").count(), 7, "{text}");
        assert_eq!(record.to_csv().lines().count(), 14);
    }
}
