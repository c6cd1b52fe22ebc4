//! Comparison of our load generator with Fortio. Both must agree where Fortio can measure; ours must see more where only ours
//! can. Holds the record of interleaved slices of both generators against the same servers, the findings, and their text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::head::RecordHead;
use crate::html;
use crate::page::{begin, end, table, with_plots, words};
use crate::plots::plot::{Plot, Section};
use crate::record::{Estimate, Latency};
use crate::side_record::SideRecord;
use crate::statistics::{estimate, paired_ratio};
use crate::svg::{Frame, PlotBar, PlotPoint, Scale, Series, bars, lines};
use crate::words::{duration, escape, interval, ratio};

/// Largest distance from 1 of the ratio of medians.
pub const BOUND: f64 = 0.10;
const TITLE: &str = "Does voile load agree with Fortio?";
/// The least part of the expected p99 that shows a stall.
const SHOWN: f64 = 0.8;

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Environment, time and command of the comparison.
    #[serde(flatten)]
    pub head: RecordHead,
    /// The servers and how both generators were called in each scene.
    pub scenes: Vec<AgreementScene>,
    /// Every slice in order, invalid ones included.
    pub slices: Vec<Slice>,
    /// What follows.
    pub findings: Vec<AgreementFinding>,
}

/// A server and the load it gets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgreementScene {
    /// Its name in slices and findings.
    pub name: String,
    /// In words.
    pub title: String,
    /// Command line of the server.
    pub server: String,
    /// Command line of each generator, by its name.
    pub generators: BTreeMap<String, String>,
    /// Compared figure: `p50` or `p99`.
    pub figure: String,
    /// Value of the figure that an open loop must see, in µs, if it can be computed.
    pub expected_us: Option<f64>,
    /// True if our latency is compared from the actual send time, as Fortio counts. In such a scene all requests are due at one
    /// instant and go out one after the other. Our generator counts their wait before the send; Fortio does not.
    #[serde(default)]
    pub from_sent: bool,
    /// True if our figure is compared with Fortio's mean. The mean is exact; Fortio's percentiles come from wide buckets here.
    #[serde(default)]
    pub against_mean: bool,
    /// Explanation of a difference between both.
    #[serde(default)]
    pub explained: String,
}

/// A slice of one generator.
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
    /// True if the slice counts.
    pub valid: bool,
    /// Reasons why the slice does not count.
    pub invalid_reasons: Vec<String>,
    /// Answers per second.
    pub achieved_rps: f64,
    /// Failed requests.
    pub errors: u64,
    /// Latency by the generator's own count: ours from the intended send time, Fortio's from the actual.
    pub latency_us: Latency,
    /// Latency from the actual send time, if the generator reports both.
    #[serde(default)]
    pub service_us: Option<Latency>,
}

/// Finding of one scene.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgreementFinding {
    /// The scene.
    pub scene: String,
    /// `p50` or `p99`.
    pub figure: String,
    /// Our figure in µs, over rounds: from the due time, or from the actual send time if the scene says so.
    pub voile: Option<Estimate>,
    /// Ours from when a request was due, where `voile` is from when it was sent.
    #[serde(default)]
    pub from_due: Option<Estimate>,
    /// Fortio's in µs.
    pub fortio: Option<Estimate>,
    /// Ours divided by Fortio's, paired within rounds.
    pub ratio: Option<Estimate>,
    /// Fortio's mean in µs, where ours is held to it.
    #[serde(default)]
    pub mean: Option<Estimate>,
    /// The requirement, in words.
    pub asked: String,
    /// True if the requirement holds.
    pub pass: bool,
}

impl Agreement {
    /// Reports if all requirements hold.
    fn holds(&self) -> bool {
        !self.findings.is_empty() && self.findings.iter().all(|finding| finding.pass)
    }

    fn finding(&self, scene: &AgreementScene) -> AgreementFinding {
        let due: fn(&Slice) -> Option<&Latency> = |slice| Some(&slice.latency_us);
        let sent: fn(&Slice) -> Option<&Latency> = |slice| slice.service_us.as_ref();
        let of = |generator: &str, clock| self.rounds(scene, generator, &scene.figure, clock);
        let voile = of("voile", if scene.from_sent { sent } else { due });
        let fortio = of("fortio", due);
        let means = self.rounds(scene, "fortio", "mean", due);
        let from_due = scene.from_sent.then(|| of("voile", due));
        let pairs: Vec<(f64, f64)> = voile
            .iter()
            .filter_map(|(round, ours)| Some((*ours, *fortio.get(round)?)))
            .collect();
        let over_rounds =
            |rounds: &BTreeMap<u32, f64>| estimate(&rounds.values().copied().collect::<Vec<_>>());
        let (ours, ratio) = (over_rounds(&voile), paired_ratio(&pairs));
        let mean = over_rounds(&means).filter(|_| scene.against_mean);
        let (asked, pass) = match scene.expected_us {
            None if scene.against_mean => (
                format!(
                    "within {:.0} % of Fortio's mean, which buckets do not affect ({})",
                    BOUND * 100.0,
                    mean.map_or_else(|| "–".to_owned(), |mean| interval(&mean, duration))
                ),
                ours.zip(mean)
                    .is_some_and(|(ours, mean)| (ours.median / mean.median - 1.0).abs() <= BOUND),
            ),
            None => (
                format!(
                    "within {:.0} % of Fortio's{}",
                    BOUND * 100.0,
                    match scene.from_sent {
                        true => ", both from when a request was sent",
                        false => "",
                    }
                ),
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
        AgreementFinding {
            scene: scene.name.clone(),
            figure: scene.figure.clone(),
            voile: ours,
            from_due: from_due.as_ref().and_then(over_rounds),
            fortio: over_rounds(&fortio),
            ratio,
            mean,
            asked,
            pass,
        }
    }

    fn rounds(
        &self,
        scene: &AgreementScene,
        generator: &str,
        figure: &str,
        clock: fn(&Slice) -> Option<&Latency>,
    ) -> BTreeMap<u32, f64> {
        let of_scene = |slice: &&Slice| {
            slice.valid && slice.scene == scene.name && slice.generator == generator
        };
        self.slices
            .iter()
            .filter(of_scene)
            .filter_map(|slice| Some((slice.round, read(clock(slice)?, figure)?)))
            .collect()
    }

    fn by_round(&self, scene: &AgreementScene) -> Plot {
        let of = |generator: &str, class| Series {
            label: generator.to_owned(),
            class,
            dash: 0,
            points: self
                .slices
                .iter()
                .filter(|slice| slice.scene == scene.name && slice.generator == generator)
                .filter_map(|slice| {
                    let median = read(&slice.latency_us, &scene.figure)?;
                    let y = Estimate {
                        median,
                        ..Estimate::default()
                    };
                    Some(PlotPoint {
                        x: f64::from(slice.round),
                        y,
                        invalid: !slice.valid,
                    })
                })
                .collect(),
        };
        let title = format!("{}, {}", scene.figure, scene.name);
        let frame = Frame {
            title: &title,
            across: "round",
            x: Scale::Linear,
            y: Scale::Linear,
            show: duration,
            joined: false,
            each: true,
        };
        let svg = lines(
            &frame,
            &[of("voile", "c-voile"), of("fortio", "c-other")],
            &[],
        );
        Plot::new("rounds", title.clone(), svg)
    }

    /// One line per slice, in the order they ran.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = "scene,generator,round,sequence,valid,achieved_rps,errors,samples,p50_us,p90_us,p99_us,p999_us,max_us,mean_us,p50_from_sent_us\n".to_owned();
        for slice in &self.slices {
            let latency = &slice.latency_us;
            let values: Vec<String> = [
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p999,
                latency.max,
                latency.mean,
                slice.service_us.as_ref().and_then(|service| service.p50),
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
}

impl SideRecord for Agreement {
    const FILES: &'static [&'static str] = &["agreement.json"];

    fn head(&self) -> &RecordHead {
        &self.head
    }

    /// Fills `findings` from `slices`.
    fn conclude(&mut self) {
        self.findings = self
            .scenes
            .iter()
            .map(|scene| self.finding(scene))
            .collect();
    }

    /// Its plots: each scene's figure of both, then every slice.
    fn sections(&self) -> Vec<Section> {
        let figures = self
            .scenes
            .iter()
            .zip(&self.findings)
            .map(|(scene, finding)| {
                let bar = |label: &str, class, value: Option<Estimate>| {
                    let label = label.to_owned();
                    value.map(|value| PlotBar {
                        label,
                        class,
                        value,
                    })
                };
                let rows = [
                    bar(
                        &format!("voile load {}", finding.figure),
                        "c-voile",
                        finding.voile,
                    ),
                    bar(
                        &format!("voile load {} from when due", finding.figure),
                        "c-voile",
                        finding.from_due,
                    ),
                    bar(
                        &format!("fortio {}", finding.figure),
                        "c-other",
                        finding.fortio,
                    ),
                    bar("fortio mean", "c-other", finding.mean),
                ];
                let rows: Vec<PlotBar> = rows.into_iter().flatten().collect();
                let svg = bars(&scene.title, &rows, duration);
                Plot {
                    caption: scene.explained.clone(),
                    ..Plot::new("scene", scene.title.clone(), svg)
                }
            });
        let figures = figures.collect();
        let section = |title, words, plots| Section {
            title,
            words,
            plots,
            folded: false,
        };
        with_plots(vec![
            section(
                "Comparison",
                "Medians over rounds with 95 % intervals, and the reasons of differences.",
                figures,
            ),
            section(
                "Rounds",
                "Every slice by its round; crosses do not count.",
                self.scenes
                    .iter()
                    .map(|scene| self.by_round(scene))
                    .collect(),
            ),
        ])
    }

    fn to_html(&self) -> String {
        let mut page = begin(TITLE, &self.head);
        words(&mut page, &self.in_words());
        html::draw(&mut page, &self.sections());
        page.push_str("<h2>Command lines</h2>\n");
        for scene in &self.scenes {
            let mut lines = scene.server.clone();
            for command in scene.generators.values() {
                let _ = write!(lines, "\n{command}");
            }
            let _ = writeln!(
                page,
                "<h3>{}</h3>\n<pre>{}</pre>",
                escape(&scene.title),
                escape(&lines)
            );
        }
        page.push_str("<h2>Every slice</h2>\n<details><summary>All of them</summary>\n");
        let rows: Vec<Vec<String>> = self.slices.iter().map(row).collect();
        table(
            &mut page,
            &[
                "scene",
                "round",
                "generator",
                "p50",
                "p99",
                "max",
                "mean",
                "requests/s",
                "why it is invalid",
            ],
            &rows,
        );
        page.push_str("</details>\n");
        end(&mut page, &self.head, self.file());
        page
    }

    fn in_words(&self) -> String {
        let mut text = String::new();
        for (scene, finding) in self.scenes.iter().zip(&self.findings) {
            let show = |value: Option<&Estimate>| {
                value.map_or_else(|| "–".to_owned(), |e| interval(e, duration))
            };
            let _ = writeln!(
                text,
                "{}: {} of voile load {}{}, of fortio {}; ratio {}. Asked: {}: {}.",
                scene.title,
                finding.figure,
                show(finding.voile.as_ref()),
                finding.from_due.as_ref().map_or_else(String::new, |due| {
                    format!(" ({} from when due)", interval(due, duration))
                }),
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
            if !scene.explained.is_empty() {
                let _ = writeln!(text, "Why: {}", scene.explained);
            }
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

    fn to_markdown(&self) -> String {
        let mut text = self.head.to_markdown(TITLE, &self.in_words());
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

    fn more_files(&self) -> Vec<(&'static str, String)> {
        vec![("slices.csv", self.to_csv())]
    }

    fn shortcoming(&self) -> Option<&'static str> {
        (!self.holds()).then_some("the generators do not agree within the bounds")
    }
}

/// A figure by its name.
fn read(latency: &Latency, figure: &str) -> Option<f64> {
    match figure {
        "p99" => latency.p99,
        "mean" => latency.mean,
        _ => latency.p50,
    }
}

/// A slice as a line of a table.
fn row(slice: &Slice) -> Vec<String> {
    let show = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), duration);
    let latency = &slice.latency_us;
    vec![
        escape(&slice.scene),
        slice.round.to_string(),
        escape(&slice.generator),
        show(latency.p50),
        show(latency.p99),
        show(latency.max),
        show(latency.mean),
        format!("{:.1}", slice.achieved_rps),
        format!(
            "<span class=\"bad\">{}</span>",
            escape(&slice.invalid_reasons.join("; "))
        ),
    ]
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
        let scene = AgreementScene {
            name: "it".to_owned(),
            title: "it".to_owned(),
            figure: if expected_us.is_some() { "p99" } else { "p50" }.to_owned(),
            expected_us,
            ..AgreementScene::default()
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

    /// Our figure is right if Fortio's own mean confirms it, even if Fortio's buckets shift the median. Otherwise it is wrong.
    #[test]
    fn buckets_too_wide_are_not_held_against_us() {
        for (mean, pass) in [(2100.0, true), (2600.0, false)] {
            let mut record = concluded(None, 2060.0, 2500.0);
            record.scenes[0].against_mean = true;
            record.scenes[0].explained = "buckets <1 ms>".to_owned();
            for slice in &mut record.slices {
                slice.latency_us.mean = Some(mean);
            }
            record.conclude();
            assert_eq!(record.holds(), pass, "{}", record.in_words());
            let page = record.to_html();
            assert!(page.contains("Why: buckets &lt;1 ms&gt;"), "{page}");
            assert!(page.contains("fortio mean"));
        }
    }

    /// The report states the wait of a request before its send, but charges neither generator for it. The rest is compared.
    #[test]
    fn a_scene_is_compared_by_one_clock() {
        for (service, pass) in [(Some(2150.0), true), (Some(2400.0), false), (None, false)] {
            let mut record = concluded(None, 2500.0, 2100.0);
            record.scenes[0].from_sent = true;
            for slice in &mut record.slices {
                let ours = slice.generator == "voile";
                slice.service_us = service.filter(|_| ours).map(|us| Latency {
                    p50: Some(us),
                    ..Latency::default()
                });
            }
            record.conclude();
            let words = record.in_words();
            assert_eq!(record.holds(), pass, "{words}");
            assert!(
                words.contains("(2.50 ms [2.50–2.50] from when due)"),
                "{words}"
            );
        }
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
