//! Plots as SVG: no script, no network, colours by class so that they follow light, dark and print. All are drawn 460 units
//! wide, so that two fit beside each other on a desk and one on a phone, with readable letters.
//!
//! ```text
//! bars, dots   one figure, many contestants        lines   a figure against connections, rate or time
//! curves       latency by percentile               shapes  how latencies are distributed
//! ```

mod axis;
mod bars;
mod curves;
mod flame;
mod lines;

use std::fmt::Write as _;

use crate::words::escape;

pub(crate) use bars::{PlotBar, bars, bars_to, dots, reach};
pub(crate) use curves::{Curve, curves, shapes};
pub(crate) use flame::flame;
pub(crate) use lines::{Frame, PlotMark, PlotPoint, Scale, Series, lines};

/// As [`crate::picture`] expects it.
pub(crate) const WIDTH: f64 = 460.0;
const RIGHT: f64 = 92.0;
const TOP: f64 = 8.0;
/// About what a letter of 12 units takes; fonts differ, so it is generous.
const LETTER: f64 = 6.7;
/// Between two lines of a legend.
const LEGEND_ROW: f64 = 18.0;

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{title}"><title>{title}</title>"#
    )
}

/// Colours of a record's contestants: fixed for known contestants, in turn for others. No contestant's name becomes markup.
pub(crate) struct Colours(Vec<String>);

impl Colours {
    const OTHERS: [&str; 5] = ["c-other", "c-other1", "c-other2", "c-other3", "c-other4"];

    /// For these contestants.
    pub(crate) fn of<'a>(contestants: impl Iterator<Item = &'a str>) -> Self {
        let mut others: Vec<String> = Vec::new();
        for name in contestants {
            if known(name).is_none() && !others.iter().any(|other| other == name) {
                others.push(name.to_owned());
            }
        }
        Self(others)
    }

    pub(crate) fn class(&self, contestant: &str) -> &'static str {
        known(contestant).unwrap_or_else(|| {
            let at = self.0.iter().position(|name| name == contestant);
            Self::OTHERS[at.unwrap_or(0) % Self::OTHERS.len()]
        })
    }
}

fn known(contestant: &str) -> Option<&'static str> {
    Some(match contestant {
        "voile" => "c-voile",
        "envoy" => "c-envoy",
        "nginx" => "c-nginx",
        "haproxy" => "c-haproxy",
        "relay" => "c-relay",
        "baseline" => "c-baseline",
        _ => return None,
    })
}

/// One entry of a legend.
struct LegendEntry<'a> {
    label: &'a str,
    class: &'static str,
    dash: usize,
    /// None where the line has no points of its own.
    mark: Option<usize>,
}

/// Dash patterns: the first is a whole line.
const DASHES: [&str; 4] = ["", "d1", "d2", "d3"];

/// A legend under a plot, in as many rows as it takes; returns its height.
fn legend(svg: &mut String, keys: &[LegendEntry<'_>], left: f64, top: f64) -> f64 {
    let (mut x, mut y) = (left, top);
    for key in keys {
        let width = 30.0 + LETTER * key.label.chars().count() as f64 + 10.0;
        if x + width > WIDTH && x > left {
            (x, y) = (left, y + LEGEND_ROW);
        }
        let dash = DASHES[key.dash % DASHES.len()];
        let middle = y + 6.0;
        let _ = write!(
            svg,
            r#"<path d="M{x:.1} {middle:.1}h22" class="line {} {dash}"/>"#,
            key.class
        );
        if let Some(shape) = key.mark {
            marker(svg, shape, x + 11.0, middle, key.class);
        }
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="a">{}</text>"#,
            x + 27.0,
            middle + 4.0,
            escape(key.label)
        );
        x += width;
    }
    if keys.is_empty() {
        0.0
    } else {
        y - top + LEGEND_ROW
    }
}

/// Draws a point. Series also differ in shape, for readers who do not see the colours and for paper.
fn marker(svg: &mut String, shape: usize, x: f64, y: f64, class: &str) {
    let _ = match shape % 4 {
        0 => write!(
            svg,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" class="{class}"/>"#
        ),
        1 => write!(
            svg,
            r#"<rect x="{:.1}" y="{:.1}" width="6.4" height="6.4" class="{class}"/>"#,
            x - 3.2,
            y - 3.2
        ),
        2 => write!(
            svg,
            r#"<path d="M{:.1} {:.1}l4.2 7.2h-8.4z" class="{class}"/>"#,
            x,
            y - 4.4
        ),
        _ => write!(
            svg,
            r#"<path d="M{:.1} {:.1}l4.2 4.2l-4.2 4.2l-4.2 -4.2z" class="{class}"/>"#,
            x,
            y - 4.2
        ),
    };
}
