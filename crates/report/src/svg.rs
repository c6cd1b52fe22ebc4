//! Plots as inline SVG: no script, no network, colours from the page's style so that they follow light, dark and print.
//! All are drawn 460 units wide, so that two fit beside each other on a desk and one on a phone, with readable letters.

use std::fmt::Write as _;

use crate::record::Estimate;
use crate::words::escape;

const WIDTH: f64 = 460.0;
const LEFT: f64 = 112.0;
const RIGHT: f64 = 92.0;
const ROW: f64 = 24.0;
const TOP: f64 = 8.0;

/// One bar: its label, whose colour it has, its value.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) contestant: String,
    pub(crate) value: Estimate,
}

/// Horizontal bars with their intervals.
pub(crate) fn bars(title: &str, rows: &[Bar], show: fn(f64) -> String) -> String {
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
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value.max(0.0) / most);
    let mut svg = open(title, height);
    for (at, row) in rows.iter().enumerate() {
        let y = TOP + ROW * at as f64;
        let middle = y + ROW / 2.0;
        let value = &row.value;
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="l" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            middle + 4.0,
            escape(&row.label)
        );
        let width = (x(value.median) - LEFT).max(1.0);
        let class = class(&row.contestant);
        let _ = write!(
            svg,
            r#"<rect x="{LEFT}" y="{:.1}" width="{width:.1}" height="{:.1}" class="{class}"/>"#,
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
pub(crate) fn dots(title: &str, rows: &[(String, Estimate)]) -> String {
    let reach = rows
        .iter()
        .flat_map(|(_, value)| [Some(value.median), value.low, value.high])
        .flatten()
        .map(|value| (value - 1.0).abs())
        .fold(0.05, f64::max)
        .min(1.0);
    let height = TOP + ROW * rows.len() as f64 + 22.0;
    let left = 150.0;
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
    for (at, (label, value)) in rows.iter().enumerate() {
        let y = TOP + ROW * at as f64 + ROW / 2.0;
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="l" text-anchor="end">{}</text>"#,
            left - 8.0,
            y + 4.0,
            escape(label)
        );
        if let (Some(low), Some(high)) = (value.low, value.high) {
            whisker(&mut svg, x(low), x(high), y);
        }
        let _ = write!(
            svg,
            r#"<circle cx="{:.1}" cy="{y:.1}" r="4.5" class="c-voile"/>"#,
            x(value.median)
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

/// A line: whose it is, and its points as (share of samples, microseconds).
pub(crate) struct Curve {
    pub(crate) contestant: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Latency by percentile, both axes logarithmic: towards the right each step is ten times rarer.
pub(crate) fn curves(title: &str, curves: &[Curve]) -> String {
    let (left, bottom, height) = (52.0, 214.0, 262.0);
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let rarest = points().map(|point| rarity(point.0)).fold(2.0, f64::max);
    let low = points()
        .map(|point| point.1)
        .fold(f64::INFINITY, f64::min)
        .max(1.0);
    let high = points().map(|point| point.1).fold(low * 1.5, f64::max);
    let (low, high) = (low.log10() - 0.05, high.log10() + 0.05);
    let x = |share: f64| left + (WIDTH - left - 14.0) * (rarity(share) / rarest);
    let y = |us: f64| bottom - (bottom - TOP) * ((us.max(1.0).log10() - low) / (high - low));
    let mut svg = open(title, height);
    for (share, name) in [
        (0.0, "0"),
        (0.5, "p50"),
        (0.9, "p90"),
        (0.99, "p99"),
        (0.999, "p99.9"),
        (0.9999, "p99.99"),
    ] {
        if rarity(share) <= rarest + 0.01 {
            let at = x(share);
            let _ = write!(
                svg,
                r#"<path d="M{at:.1} {TOP}V{bottom}" class="g"/><text x="{at:.1}" y="{:.1}" class="a" text-anchor="middle">{name}</text>"#,
                bottom + 16.0
            );
        }
    }
    for us in ticks(low, high) {
        let at = y(us);
        let _ = write!(
            svg,
            r#"<path d="M{left} {at:.1}H{:.1}" class="g"/><text x="{:.1}" y="{:.1}" class="a" text-anchor="end">{us:.0}</text>"#,
            WIDTH - 14.0,
            left - 6.0,
            at + 4.0
        );
    }
    let mut legend = left;
    for curve in curves {
        let class = class(&curve.contestant);
        let mut path = String::new();
        for (at, (share, us)) in curve.points.iter().enumerate() {
            let _ = write!(
                path,
                "{}{:.1} {:.1}",
                if at == 0 { 'M' } else { 'L' },
                x(*share),
                y(*us)
            );
        }
        let _ = write!(svg, r#"<path d="{path}" class="line {class}"/>"#);
        let _ = write!(
            svg,
            r#"<rect x="{legend:.1}" y="240" width="12" height="12" class="{class}"/><text x="{:.1}" y="250" class="a">{}</text>"#,
            legend + 16.0,
            escape(&curve.contestant)
        );
        legend += 30.0 + 8.0 * curve.contestant.chars().count() as f64;
    }
    let _ = write!(
        svg,
        r#"<text x="{:.1}" y="250" class="a" text-anchor="end">µs, by percentile</text>"#,
        WIDTH - 14.0
    );
    svg + "</svg>"
}

/// How rare what lies beyond this share is: 1 for one in ten, 2 for one in a hundred.
fn rarity(share: f64) -> f64 {
    -(1.0 - share).max(1e-9).log10()
}

/// 1, 2 and 5 times each power of ten between the two logarithms.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let all = (0..9).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
    let mut ticks: Vec<f64> = all
        .filter(|value| (low..=high).contains(&value.log10()))
        .collect();
    if ticks.len() > 7 {
        ticks.retain(|value| value.log10().fract() == 0.0);
    }
    ticks
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{title}"><title>{title}</title>"#
    )
}

/// Colours are known for contestants we know; anybody else's name never becomes markup.
fn class(contestant: &str) -> &'static str {
    match contestant {
        "voile" => "c-voile",
        "envoy" => "c-envoy",
        "relay" => "c-relay",
        "baseline" => "c-baseline",
        _ => "c-other",
    }
}
