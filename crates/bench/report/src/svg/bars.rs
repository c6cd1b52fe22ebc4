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
/// An interval's end beyond so many times the longest bar is loud: it would make the bars short.
const LOUD: f64 = 1.3;

/// One bar: its label, its colour class, its value.
pub(crate) struct PlotBar {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    pub(crate) value: Estimate,
}

/// The end of a scale for these bars: the longest bar, and the intervals as far as they are not loud.
pub(crate) fn reach<'a>(rows: impl Iterator<Item = &'a PlotBar> + Clone) -> f64 {
    let longest = rows.clone().map(|row| row.value.median).fold(0.0, f64::max);
    let ends = rows.filter_map(|row| row.value.high);
    let most = ends.fold(longest, f64::max).min(longest * LOUD);
    if most > 0.0 { most } else { 1.0 }
}

/// Horizontal bars with their intervals, on a scale of their own.
pub(crate) fn bars(title: &str, rows: &[PlotBar], show: fn(f64) -> String) -> String {
    bars_to(title, rows, show, reach(rows.iter()))
}

/// The same on a scale from zero to `most`. The value stands at the end of its bar, the interval below the bar; an interval that
/// leaves the scale is cut with an arrow.
pub(crate) fn bars_to(title: &str, rows: &[PlotBar], show: fn(f64) -> String, most: f64) -> String {
    let height = TOP + ROW * rows.len() as f64 + 6.0;
    let left = room(rows.iter().map(|row| row.label.as_str()));
    let x = |value: f64| left + (WIDTH - left - RIGHT) * (value.max(0.0) / most);
    let mut svg = open(title, height);
    for (at, row) in rows.iter().enumerate() {
        let y = TOP + ROW * at as f64;
        let middle = y + ROW / 2.0 - 1.0;
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
            y + 3.0,
            ROW - 10.0
        );
        if let (Some(low), Some(high)) = (value.low, value.high) {
            let below = y + ROW - 3.5;
            if high > most {
                let (from, to) = (x(low.min(most)), x(most));
                let _ = write!(
                    svg,
                    r#"<path d="M{from:.1} {:.1}v5M{from:.1} {below:.1}H{to:.1}m-5 -3l5 3l-5 3" class="w"/>"#,
                    below - 2.5
                );
            } else {
                whisker(&mut svg, x(low), x(high), below, 2.5);
            }
        }
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="v">{}</text>"#,
            x(value.median) + 6.0,
            middle + 4.0,
            escape(&show(value.median))
        );
    }
    svg + "</svg>"
}

fn whisker(svg: &mut String, low: f64, high: f64, y: f64, half: f64) {
    let (top, tall) = (y - half, 2.0 * half);
    let _ = write!(
        svg,
        r#"<path d="M{low:.1} {y:.1}H{high:.1}M{low:.1} {top:.1}v{tall}M{high:.1} {top:.1}v{tall}" class="w"/>"#
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
            whisker(&mut svg, x(low), x(high), y, 4.0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loud_interval_is_cut_with_an_arrow_and_keeps_the_bars_long() {
        let bar = |median, high| PlotBar {
            label: String::new(),
            class: "c-voile",
            value: Estimate {
                median,
                low: Some(median * 0.9),
                high: Some(high),
                rounds: 9,
            },
        };
        for (high, reached, arrow) in [(110.0, 110.0, false), (900.0, 130.0, true)] {
            let rows = [bar(100.0, high), bar(50.0, 55.0)];
            assert_eq!(reach(rows.iter()), reached);
            let svg = bars("", &rows, crate::words::duration);
            assert_eq!(svg.contains("l5 3l-5 3"), arrow, "{svg}");
        }
        assert_eq!(reach([].iter()), 1.0);
    }
}
