//! One figure of several contestants: bars from zero with their intervals, or ratios around one.

use std::fmt::Write as _;

use super::{RIGHT, TOP, WIDTH, open};
use crate::record::Estimate;
use crate::words::escape;

/// The least that labels are given, and the most.
const LABELS: (f64, f64) = (96.0, 270.0);
/// About what a letter of 13 units takes in a wide font.
const BIG_LETTER: f64 = 7.6;
const ROW: f64 = 24.0;

/// One bar: its label, its colour class, its value.
pub(crate) struct PlotBar {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    pub(crate) value: Estimate,
}

/// Horizontal bars with their intervals.
pub(crate) fn bars(title: &str, rows: &[PlotBar], show: fn(f64) -> String) -> String {
    let most = rows
        .iter()
        .map(|row| {
            row.value
                .high
                .unwrap_or(row.value.median)
                .max(row.value.median)
        })
        .fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let height = TOP + ROW * rows.len() as f64 + 6.0;
    let left = room(rows.iter().map(|row| row.label.as_str()));
    let x = |value: f64| left + (WIDTH - left - RIGHT) * (value.max(0.0) / most);
    let mut svg = open(title, height);
    for (at, row) in rows.iter().enumerate() {
        let y = TOP + ROW * at as f64;
        let middle = y + ROW / 2.0;
        let value = &row.value;
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="l" text-anchor="end">{}</text>"#,
            left - 6.0,
            middle + 4.0,
            fitted(&row.label)
        );
        let width = (x(value.median) - left).max(1.0);
        let class = row.class;
        let _ = write!(
            svg,
            r#"<rect x="{left:.1}" y="{:.1}" width="{width:.1}" height="{:.1}" class="{class}"/>"#,
            y + 4.0,
            ROW - 8.0
        );
        let mut end = x(value.median);
        if let (Some(low), Some(high)) = (value.low, value.high) {
            whisker(&mut svg, x(low), x(high), middle);
            end = end.max(x(high));
        }
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="v">{}</text>"#,
            end + 6.0,
            middle + 4.0,
            escape(&show(value.median))
        );
    }
    svg + "</svg>"
}

fn whisker(svg: &mut String, low: f64, high: f64, y: f64) {
    let _ = write!(
        svg,
        r#"<path d="M{low:.1} {y:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8" class="w"/>"#,
        y - 4.0,
        y - 4.0
    );
}

/// Ratios with intervals around 1.
pub(crate) fn dots(title: &str, rows: &[PlotBar]) -> String {
    let reach = rows
        .iter()
        .flat_map(|row| [Some(row.value.median), row.value.low, row.value.high])
        .flatten()
        .map(|value| (value - 1.0).abs())
        .fold(0.05, f64::max)
        .min(1.0);
    let height = TOP + ROW * rows.len() as f64 + 22.0;
    let left = room(rows.iter().map(|row| row.label.as_str()));
    let x = |value: f64| {
        left + (WIDTH - left - RIGHT) * ((value - 1.0 + reach) / (2.0 * reach)).clamp(0.0, 1.0)
    };
    let mut svg = open(title, height);
    let bottom = TOP + ROW * rows.len() as f64;
    let _ = write!(
        svg,
        r#"<path d="M{:.1} {TOP}V{bottom:.1}" class="g one"/>"#,
        x(1.0)
    );
    for value in [1.0 - reach, 1.0, 1.0 + reach] {
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="a" text-anchor="middle">{value:.2}</text>"#,
            x(value),
            bottom + 16.0
        );
    }
    for (at, row) in rows.iter().enumerate() {
        let (label, value) = (&row.label, &row.value);
        let y = TOP + ROW * at as f64 + ROW / 2.0;
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="l" text-anchor="end">{}</text>"#,
            left - 8.0,
            y + 4.0,
            fitted(label)
        );
        if let (Some(low), Some(high)) = (value.low, value.high) {
            whisker(&mut svg, x(low), x(high), y);
        }
        let _ = write!(
            svg,
            r#"<circle cx="{:.1}" cy="{y:.1}" r="4.5" class="{}"/>"#,
            x(value.median),
            row.class
        );
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="v">{:.3}</text>"#,
            WIDTH - RIGHT + 14.0,
            y + 4.0,
            value.median
        );
    }
    svg + "</svg>"
}

/// Cuts a label so that its bar has room. The rest of a long label shows only on hover.
fn fitted(label: &str) -> String {
    let most = ((LABELS.1 - 14.0) / BIG_LETTER) as usize;
    if label.chars().count() <= most {
        return escape(label);
    }
    let beginning: String = label.chars().take(most - 1).collect();
    format!("<title>{}</title>{}…", escape(label), escape(&beginning))
}

/// Width of the longest label.
fn room<'a>(labels: impl Iterator<Item = &'a str>) -> f64 {
    let longest = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    (longest as f64 * BIG_LETTER + 14.0).clamp(LABELS.0, LABELS.1)
}
