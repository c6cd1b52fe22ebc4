//! Our load generator beside Fortio. Both must agree where Fortio can measure; ours must see more where only ours can.

use super::generators::{BOUND, within};
use super::view::{SceneView, Sides, bar, bar_plot, by_round, section, slices};
use crate::plots::plot::Plot;
use crate::record::Record;
use crate::record::scene::{BoundedValue, Finding, SceneBound, SceneFigure, ScenePart};
use crate::words::{duration, per_second};

/// The least part of the expected p99 that shows a stall.
const SHOWN: f64 = 0.8;
const SIDES: Sides = [
    ("voile", "voile", "c-voile"),
    ("fortio", "fortio", "c-other"),
];

pub(super) fn asked(parts: &[ScenePart]) -> Vec<Finding> {
    parts.iter().flat_map(of_part).collect()
}

fn within_by_median(on: BoundedValue) -> Vec<SceneBound> {
    vec![SceneBound {
        by_median: true,
        ..within(on)
    }]
}

/// What is asked of a part's figure, and the other reading of it where there are two.
fn of_part(part: &ScenePart) -> Vec<Finding> {
    let name = &part.figure;
    let figure = |contestant: &str, label: &str, clock: &str, name: &str| {
        SceneFigure::new(label, contestant, &part.name, &format!("{clock}.{name}"))
    };
    let due = figure("voile", "voile load", "latency_us", name);
    let fortio = figure("fortio", "fortio", "latency_us", name);
    let finding = |measure: &str, of| Finding::of(&part.title, measure, "us", of);
    if let Some(expected_us) = part.expected_us {
        let words = format!(
            "at least {:.0} % of the {} that an open loop must see",
            SHOWN * 100.0,
            duration(expected_us)
        );
        let bound = SceneBound {
            at_least: Some(SHOWN * expected_us),
            by_median: true,
            ..SceneBound::default()
        };
        return vec![finding(name, due).beside(fortio).asked(words, vec![bound])];
    }
    let percent = BOUND * 100.0;
    if part.against_mean {
        let mean = figure("fortio", "fortio's mean", "latency_us", "mean");
        let words = format!("within {percent:.0} % of Fortio's mean, which buckets do not affect");
        return vec![
            finding(name, due.clone())
                .beside(mean)
                .asked(words, within_by_median(BoundedValue::Medians)),
            finding(name, due).beside(fortio),
        ];
    }
    let words = format!("within {percent:.0} % of Fortio's");
    if part.from_sent {
        let sent = figure("voile", "voile load", "service_us", name);
        let words = words + ", both from when a request was sent";
        return vec![
            finding(name, sent)
                .beside(fortio)
                .asked(words, within_by_median(BoundedValue::Ratio)),
            finding(&format!("{name} from when due"), due),
        ];
    }
    vec![
        finding(name, due)
            .beside(fortio)
            .asked(words, within_by_median(BoundedValue::Ratio)),
    ]
}

pub(super) fn view(record: &Record) -> SceneView {
    let scene = record.own_scene();
    let mut words: Vec<String> = Vec::new();
    for part in scene.parts.iter().filter(|part| !part.explained.is_empty()) {
        words.push(format!("{}: why: {}", part.title, part.explained));
    }
    let valid = record.runs.iter().filter(|run| run.valid).count();
    words.push(format!(
        "{valid} of {} slices are valid.",
        record.runs.len()
    ));
    let rounds = scene.parts.iter().map(|part| {
        let title = format!("{}, {}", part.figure, part.name);
        let figure = format!("latency_us.{}", part.figure);
        by_round(record, title, (&part.name, &figure), &SIDES)
    });
    let texts = scene.parts.iter().map(|part| {
        let lines = std::iter::once(&part.server).chain(part.generators.values());
        let lines: Vec<&str> = lines.map(String::as_str).collect();
        (part.title.clone(), lines.join("\n"))
    });
    let columns = [
        ("p50", "latency_us.p50", duration as fn(f64) -> String),
        ("p99", "latency_us.p99", duration),
        ("max", "latency_us.max", duration),
        ("mean", "latency_us.mean", duration),
        ("requests/s", "achieved_rps", per_second),
    ];
    SceneView {
        title: "Does voile load agree with Fortio?".to_owned(),
        words,
        sections: vec![
            section(
                "Comparison",
                "Medians over rounds with 95 % intervals, and the reasons of differences.",
                scene
                    .parts
                    .iter()
                    .filter_map(|part| bars(part, &scene.findings))
                    .collect(),
            ),
            section(
                "Rounds",
                "Every slice by its round; crosses do not count.",
                rounds.collect(),
            ),
        ],
        evidence: vec![slices(record, &columns)],
        texts: texts.collect(),
        ..SceneView::default()
    }
}

/// Each figure of a part once.
fn bars(part: &ScenePart, findings: &[Finding]) -> Option<Plot> {
    let mut labels: Vec<String> = Vec::new();
    let mut bars = Vec::new();
    for finding in findings.iter().filter(|finding| finding.what == part.title) {
        let beside = finding
            .beside
            .as_ref()
            .map(|beside| (beside, finding.other, "c-other"));
        let both = [Some((&finding.of, finding.value, "c-voile")), beside];
        for (figure, value, class) in both.into_iter().flatten() {
            let label = match figure.label.ends_with("mean") {
                true => figure.label.clone(),
                false => format!("{} {}", figure.label, finding.measure),
            };
            if !labels.contains(&label) {
                bars.push(bar(&label, class, value));
                labels.push(label);
            }
        }
    }
    let plot = bar_plot("scene", part.title.clone(), bars, duration)?;
    Some(Plot {
        caption: part.explained.clone(),
        ..plot
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::scene::SceneRecord;
    use crate::record::{Latency, SliceRun};
    use crate::scenes::{conclude, drawings, shortcoming, terminal};

    fn slice(contestant: &str, round: u32, us: f64) -> SliceRun {
        let latency_us = Latency {
            p50: Some(us),
            p99: Some(us),
            count: 3000,
            ..Latency::default()
        };
        SliceRun {
            mode: "it".to_owned(),
            contestant: contestant.to_owned(),
            round,
            valid: true,
            latency_us,
            ..SliceRun::default()
        }
    }

    fn measured(part: ScenePart, ours: f64, theirs: f64) -> Record {
        let part = ScenePart {
            name: "it".to_owned(),
            title: "it".to_owned(),
            ..part
        };
        let scene = SceneRecord {
            parts: vec![part],
            ..SceneRecord::default()
        };
        let mut record = Record {
            scene: Some(scene),
            ..Record::default()
        };
        for round in 1..=6 {
            record.runs.push(slice("voile", round, ours));
            record.runs.push(slice("fortio", round, theirs));
        }
        // Would spoil every median, were it counted.
        record.runs.push(SliceRun {
            valid: false,
            ..slice("voile", 6, 9e9)
        });
        record
    }

    fn concluded(expected_us: Option<f64>, ours: f64, theirs: f64) -> Record {
        let part = ScenePart {
            figure: if expected_us.is_some() { "p99" } else { "p50" }.to_owned(),
            expected_us,
            ..ScenePart::default()
        };
        let mut record = measured(part, ours, theirs);
        conclude(&mut record);
        record
    }

    fn holds(record: &Record) -> bool {
        shortcoming(record).is_none()
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
            assert_eq!(holds(&record), pass, "{}", terminal(&record));
        }
        let nothing = Record {
            scene: Some(SceneRecord::default()),
            ..Record::default()
        };
        assert!(!holds(&nothing), "nothing measured, nothing shown");
    }

    /// Our figure is right if Fortio's own mean confirms it, even if Fortio's buckets shift the median. Otherwise it is wrong.
    #[test]
    fn buckets_too_wide_are_not_held_against_us() {
        for (mean, pass) in [(2100.0, true), (2600.0, false)] {
            let part = ScenePart {
                figure: "p50".to_owned(),
                against_mean: true,
                explained: "buckets <1 ms>".to_owned(),
                ..ScenePart::default()
            };
            let mut record = measured(part, 2060.0, 2500.0);
            for slice in &mut record.runs {
                slice.latency_us.mean = Some(mean);
            }
            conclude(&mut record);
            assert_eq!(holds(&record), pass, "{}", terminal(&record));
            let page = &drawings(&record)[0].1;
            assert!(page.contains("why: buckets &lt;1 ms&gt;"), "{page}");
            assert!(page.contains("fortio&#39;s mean"), "{page}");
        }
    }

    /// The report states the wait of a request before its send, but charges neither generator for it. The rest is compared.
    #[test]
    fn a_part_is_compared_by_one_clock() {
        for (service, pass) in [(Some(2150.0), true), (Some(2400.0), false), (None, false)] {
            let part = ScenePart {
                figure: "p50".to_owned(),
                from_sent: true,
                ..ScenePart::default()
            };
            let mut record = measured(part, 2500.0, 2100.0);
            for slice in record
                .runs
                .iter_mut()
                .filter(|run| run.contestant == "voile")
            {
                slice.service_us.p50 = service;
            }
            conclude(&mut record);
            let words = terminal(&record);
            assert_eq!(holds(&record), pass, "{words}");
            let due = words.lines().find(|line| line.contains("from when due"));
            assert!(
                due.is_some_and(|due| due.contains("2.50 ms [2.50–2.50]")),
                "{words}"
            );
        }
    }

    #[test]
    fn the_report_holds_each_slice_and_the_verdict() {
        let record = concluded(None, 2500.0, 2000.0);
        let text = &drawings(&record)[1].1;
        assert!(
            text.contains("missed") && text.contains("2.50 ms"),
            "{text}"
        );
        assert_eq!(text.matches("| voile |").count(), 7, "{text}");
        let (name, csv) = &drawings(&record)[2];
        assert_eq!((*name, csv.lines().count()), ("slices.csv", 27));
    }
}
