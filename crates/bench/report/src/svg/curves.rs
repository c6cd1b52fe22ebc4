//! Plots of latency distributions: by percentile, and as shapes.

use std::fmt::Write as _;

use super::axis::log_ticks;
use super::lines::tick;
use super::{DASHES, LETTER, LegendEntry, TOP, WIDTH, legend, open};
use crate::words::{duration, escape};

/// A line: its name, and its points, either (share of samples, microseconds) or (microseconds, share of the highest).
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Latency by percentile, both axes logarithmic: towards the right each step is ten times rarer.
pub(crate) fn curves(title: &str, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let rarest = points().map(|point| rarity(point.0)).fold(2.0, f64::max);
    let (low, high) = ends(points().map(|point| point.1));
    let x = |share: f64| LEFT + (WIDTH - LEFT - EDGE) * (rarity(share) / rarest);
    let y = |us: f64| BOTTOM - (BOTTOM - TOP) * ((us.max(1.0).log10() - low) / (high - low));
    let mut body = String::new();
    for (share, name) in [
        (0.0, "0"),
        (0.5, "p50"),
        (0.9, "p90"),
        (0.99, "p99"),
        (0.999, "p99.9"),
        (0.9999, "p99.99"),
        (0.99999, "p99.999"),
    ] {
        if rarity(share) <= rarest + 0.01 {
            upright(&mut body, x(share), name);
        }
    }
    for us in log_ticks(low, high) {
        let at = y(us);
        let _ = write!(
            body,
            r#"<path d="M{LEFT} {at:.1}H{:.1}" class="g"/><text x="{:.1}" y="{:.1}" class="a" text-anchor="end">{}</text>"#,
            WIDTH - EDGE,
            LEFT - 6.0,
            at + 4.0,
            tick(duration, us)
        );
    }
    finish(title, body, curves, "percentile", |point| {
        (x(point.0), y(point.1))
    })
}

/// Draws the frequency of each latency, the most frequent at the top: one bump or two, a long tail or none.
pub(crate) fn shapes(title: &str, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let (low, high) = ends(points().map(|point| point.0));
    let x = |us: f64| LEFT + (WIDTH - LEFT - EDGE) * ((us.max(1.0).log10() - low) / (high - low));
    let y = |share: f64| BOTTOM - (BOTTOM - TOP) * share.clamp(0.0, 1.0) * 0.96;
    let mut body = String::new();
    for us in log_ticks(low, high) {
        upright(&mut body, x(us), &tick(duration, us));
    }
    let _ = write!(
        body,
        r#"<path d="M{LEFT} {BOTTOM}H{:.1}" class="g"/>"#,
        WIDTH - EDGE
    );
    finish(
        title,
        body,
        curves,
        "latency, by how often it occurs",
        |point| (x(point.0), y(point.1)),
    )
}

const LEFT: f64 = 66.0;
const EDGE: f64 = 16.0;
const BOTTOM: f64 = 214.0;

/// The logarithms between which these lie, with room.
fn ends(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let low = values
        .clone()
        .fold(f64::INFINITY, f64::min)
        .clamp(1.0, 1e12);
    let high = values.fold(low * 1.5, f64::max);
    (low.log10() - 0.05, high.log10() + 0.05)
}

/// A line of the grid from top to bottom, with its word.
fn upright(svg: &mut String, at: f64, word: &str) {
    // A word at the edge stays inside.
    let half = (word.chars().count() + 1) as f64 * LETTER / 2.0;
    let middle = at.min(WIDTH - half);
    let _ = write!(
        svg,
        r#"<path d="M{at:.1} {TOP}V{BOTTOM}" class="g"/><text x="{middle:.1}" y="{:.1}" class="a" text-anchor="middle">{word}</text>"#,
        BOTTOM + 17.0
    );
}

fn finish(
    title: &str,
    mut body: String,
    curves: &[Curve],
    across: &str,
    place: impl Fn(&(f64, f64)) -> (f64, f64),
) -> String {
    for (number, curve) in curves.iter().enumerate() {
        let mut path = String::new();
        for (at, point) in curve.points.iter().enumerate() {
            let word = if at == 0 { 'M' } else { 'L' };
            let (x, y) = place(point);
            let _ = write!(path, "{word}{x:.1} {y:.1}");
        }
        let dash = DASHES[dash(curves, number) % DASHES.len()];
        let _ = write!(
            body,
            r#"<path d="{path}" class="line {} {dash}"/>"#,
            curve.class
        );
    }
    let _ = write!(
        body,
        r#"<text x="{:.1}" y="{:.1}" class="a" text-anchor="middle">{}</text>"#,
        f64::midpoint(LEFT, WIDTH - EDGE),
        BOTTOM + 34.0,
        escape(across)
    );
    let keys: Vec<LegendEntry<'_>> = curves
        .iter()
        .enumerate()
        .map(|(at, curve)| LegendEntry {
            label: &curve.label,
            class: curve.class,
            dash: dash(curves, at),
            mark: None,
        })
        .collect();
    let top = BOTTOM + 42.0;
    let height = legend(&mut body, &keys, 12.0, top);
    open(title, top + height + 4.0) + &body + "</svg>"
}

/// Curves of one colour differ in their dashes.
fn dash(curves: &[Curve], at: usize) -> usize {
    let before = curves[..at].iter();
    before
        .filter(|curve| curve.class == curves[at].class)
        .count()
}

/// Rarity of latencies beyond this share: 1 for one in ten, 2 for one in a hundred.
fn rarity(share: f64) -> f64 {
    -(1.0 - share).max(1e-9).log10()
}
