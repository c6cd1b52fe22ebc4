//! Cost of a request for a load generator, ours beside others against the same server.

use super::data::SceneFigures;
use super::view::{SceneView, bar, bar_plot, section, slices};
use crate::plots::plot::Plot;
use crate::record::Record;
use crate::record::scene::{
    BoundedValue, Finding, OtherGenerator, SceneBound, SceneFigure, ScenePart,
};
use crate::words::{duration, per_second};

/// Largest distance from 1 of the ratio of two figures that agree.
pub(super) const BOUND: f64 = 0.10;

/// The bound of figures that must agree.
pub(super) fn within(on: BoundedValue) -> SceneBound {
    SceneBound {
        on,
        at_least: Some(1.0 - BOUND),
        at_most: Some(1.0 + BOUND),
        by_median: false,
    }
}

/// Unit and name of a figure.
fn named(figure: &str) -> (&'static str, &'static str) {
    match figure {
        "p50_us" => ("us", "p50"),
        "mean_us" => ("us", "mean"),
        "cpu_us" => ("us", "CPU per request"),
        "requests_per_second" => ("/s", "requests, whoever's core"),
        _ => ("/s", "requests per core of the generator"),
    }
}

pub(super) fn asked(parts: &[ScenePart]) -> Vec<Finding> {
    let finding = |part: &ScenePart, bound: &OtherGenerator| {
        let figure = bound.figure.as_ref().unwrap_or(&part.figure);
        let of = |label: &str, name: &str| SceneFigure::new(label, name, &part.name, figure);
        let (unit, measure) = named(figure);
        let finding = Finding::of(&part.title, measure, unit, of("voile load", "voile"))
            .beside(of(&bound.of, &bound.of));
        match bound.at_least {
            Some(least) => finding.asked(
                format!("at least {least} × {}", bound.of),
                vec![SceneBound {
                    on: BoundedValue::Ratio,
                    at_least: Some(least),
                    ..SceneBound::default()
                }],
            ),
            None if figure.starts_with("requests_per_") => finding,
            None => finding.asked(
                format!("within {:.0} % of {}", BOUND * 100.0, bound.of),
                vec![within(BoundedValue::Ratio)],
            ),
        }
    };
    let mut all = Vec::new();
    for part in parts {
        all.extend(part.bounds.iter().map(|bound| finding(part, bound)));
    }
    all
}

impl ScenePart {
    /// Ours, then the others.
    fn names(&self) -> impl Iterator<Item = &str> {
        let others = self.bounds.iter().map(|bound| bound.of.as_str());
        std::iter::once("voile").chain(others)
    }
}

pub(super) fn view(record: &Record, figures: &SceneFigures) -> SceneView {
    let parts = &record.own_scene().parts;
    let mut words: Vec<String> = parts.iter().flat_map(|part| costs(part, figures)).collect();
    let failed = record.runs.iter().filter(|run| !run.valid);
    words.extend(failed.map(|run| {
        let why = run.invalid_reasons.join("; ");
        format!("{} {} failed: {why}", run.mode, run.contestant)
    }));
    let plots = |kind: &str, figure_of: &dyn Fn(&ScenePart) -> Option<String>| -> Vec<Plot> {
        let plot = |part: &ScenePart| bars(part, kind, &figure_of(part)?, figures);
        parts.iter().filter_map(plot).collect()
    };
    let number: fn(f64) -> String = |value| format!("{value:.2}");
    let columns = [
        (
            "requests/s",
            "requests_per_second",
            per_second as fn(f64) -> String,
        ),
        ("its cores", "cores", number),
        ("CPU/request, µs", "cpu_us", number),
        ("the server's cores", "server_cores", number),
        ("p50", "p50_us", duration),
        ("mean", "mean_us", duration),
    ];
    SceneView {
        title: "Cost of a request for a load generator".to_owned(),
        words,
        sections: vec![
            section(
                "Comparison",
                "Medians over rounds with 95 % intervals.",
                plots("scene", &|part| Some(part.figure.clone())),
            ),
            section(
                "Cost of a request",
                "CPU of the generator's process for a request, its system calls included.",
                plots("cpu", &|part| {
                    let most = part.figure.starts_with("requests_per_");
                    most.then(|| "cpu_us".to_owned())
                }),
            ),
        ],
        evidence: vec![slices(record, &columns)],
        ..SceneView::default()
    }
}

fn bars(part: &ScenePart, kind: &str, figure: &str, figures: &SceneFigures) -> Option<Plot> {
    let (unit, measure) = named(figure);
    let bars = part.names().map(|name| {
        let class = if name == "voile" {
            "c-voile"
        } else {
            "c-other"
        };
        let at = SceneFigure::new(name, name, &part.name, figure);
        bar(name, class, figures.estimate(&at))
    });
    let title = format!("{measure}: {}", part.title);
    bar_plot(kind, title, bars, super::view::shower(unit))
}

/// CPU cost of a request for each generator, and the load of both sides.
fn costs(part: &ScenePart, figures: &SceneFigures) -> Vec<String> {
    let line = |name: &str| {
        let middle = |figure: &str| {
            let at = SceneFigure::new(name, name, &part.name, figure);
            figures.estimate(&at).map_or(0.0, |found| found.median)
        };
        (middle("cpu_us") > 0.0).then(|| {
            format!(
                "{}: {name}: {:.2} µs of CPU a request ({:.2} in user mode), {}, {:.2} cores; the server {:.2} cores.",
                part.title,
                middle("cpu_us"),
                middle("user_us"),
                per_second(middle("requests_per_second")),
                middle("cores"),
                middle("server_cores"),
            )
        })
    };
    part.names().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SliceRun;
    use crate::record::scene::{SceneKind, SceneRecord};
    use crate::record::target_verdicts::TargetResult;
    use crate::scenes::{conclude, drawings, shortcoming, terminal};

    fn record(figure: &str, at_least: Option<f64>, ours: f64, theirs: f64) -> Record {
        let part = ScenePart {
            name: "it".to_owned(),
            title: "it".to_owned(),
            figure: figure.to_owned(),
            bounds: vec![OtherGenerator {
                of: "fortio".to_owned(),
                at_least,
                figure: None,
            }],
            ..ScenePart::default()
        };
        let scene = SceneRecord {
            kind: SceneKind::Generators,
            parts: vec![part],
            ..SceneRecord::default()
        };
        let mut record = Record {
            scene: Some(scene),
            ..Record::default()
        };
        for round in 1..=6 {
            for (contestant, value) in [("voile", ours), ("fortio", theirs)] {
                let figures = ["requests_per_core", "requests_per_second", "p50_us"];
                record.runs.push(SliceRun {
                    mode: "it".to_owned(),
                    contestant: contestant.to_owned(),
                    round,
                    valid: true,
                    measured: figures.map(|name| (name.to_owned(), value)).into(),
                    ..SliceRun::default()
                });
            }
        }
        conclude(&mut record);
        record
    }

    fn outcome(record: &Record) -> Option<TargetResult> {
        record.own_scene().findings[0].outcome
    }

    #[test]
    fn rates_have_a_least_ratio_and_latencies_must_agree() {
        use TargetResult::{Missed, Reached};
        for (figure, at_least, ours, theirs, wanted) in [
            ("requests_per_core", Some(2.0), 210.0, 100.0, Some(Reached)),
            ("requests_per_core", Some(2.0), 190.0, 100.0, Some(Missed)),
            ("requests_per_core", None, 50.0, 100.0, None),
            ("requests_per_second", None, 50.0, 100.0, None),
            ("p50_us", None, 2100.0, 2000.0, Some(Reached)),
            ("p50_us", None, 2300.0, 2000.0, Some(Missed)),
        ] {
            let record = record(figure, at_least, ours, theirs);
            assert_eq!(outcome(&record), wanted, "{}", terminal(&record));
            assert_eq!(shortcoming(&record).is_none(), wanted != Some(Missed));
        }
    }

    /// h2load reports no median, so the means are compared.
    #[test]
    fn who_tells_another_figure_is_compared_in_that() {
        let mut record = record("p50_us", None, 2100.0, 3100.0);
        let scene = record.scene.as_mut().expect("a scene");
        scene.parts[0].bounds[0].figure = Some("mean_us".to_owned());
        for slice in &mut record.runs {
            slice.measured.insert("mean_us".to_owned(), 2000.0);
        }
        conclude(&mut record);
        assert_eq!(outcome(&record), Some(TargetResult::Reached));
        let words = terminal(&record);
        let mean = words.lines().find(|line| line.contains("mean, voile load"));
        assert!(mean.is_some_and(|mean| mean.contains("2.00 ms")), "{words}");
        assert!(drawings(&record)[0].1.contains("p50: it"));
    }

    #[test]
    fn whoever_was_not_there_is_not_measured_and_no_failure() {
        let mut record = record("requests_per_core", Some(2.0), 1.0, 1.0);
        record.runs.retain(|slice| slice.contestant == "voile");
        conclude(&mut record);
        assert_eq!(outcome(&record), Some(TargetResult::NotMeasured));
        assert!(shortcoming(&record).is_none() && drawings(&record)[1].1.contains("not measured"));
        record.runs[0].valid = false;
        assert!(shortcoming(&record).is_some(), "ours must not fail");
    }
}
