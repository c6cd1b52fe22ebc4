//! A figure against connections, rate or time: lines with intervals, or only points, and events where something was done.

use std::fmt::Write as _;

use super::axis::Axis;
use super::{DASHES, LegendEntry, TOP, WIDTH, legend, marker, open};
use crate::record::Estimate;
use crate::words::escape;

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By factors.
    Log,
}

/// One point of a series.
pub(crate) struct PlotPoint {
    pub(crate) x: f64,
    pub(crate) y: Estimate,
    /// Drawn as a cross and not part of the line: a slice that does not count.
    pub(crate) invalid: bool,
}

/// A line.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    /// Number of the dash pattern, which distinguishes series of one colour.
    pub(crate) dash: usize,
    pub(crate) points: Vec<PlotPoint>,
}

/// Something that happened at a place of the horizontal axis.
pub(crate) struct PlotMark {
    pub(crate) at: f64,
    /// Written beside its line: a number that a table under the plot explains, or nothing.
    pub(crate) sign: String,
    pub(crate) words: String,
}

/// Frame of a plot: title, axes and options.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    /// Under the horizontal axis.
    pub(crate) across: &'a str,
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    /// Formatter of the values of the vertical axis.
    pub(crate) show: fn(f64) -> String,
    /// True if points are joined.
    pub(crate) joined: bool,
    /// True if the horizontal axis names each value that occurs (connections), false for round values.
    pub(crate) each: bool,
}

const LEFT: f64 = 66.0;
const EDGE: f64 = 14.0;
const BOTTOM: f64 = 214.0;
/// Distance between series at the same position, so that their intervals can be distinguished.
const APART: f64 = 5.0;
/// Values of the horizontal axis are not written closer than this.
const CLOSE: f64 = 26.0;

/// Draws them.
pub(crate) fn lines(frame: &Frame<'_>, series: &[Series], marks: &[PlotMark]) -> String {
    let points = || series.iter().flat_map(|series| series.points.iter());
    let x = Axis::of(
        points()
            .map(|point| point.x)
            .chain(marks.iter().map(|mark| mark.at)),
        frame.x,
    );
    let y = Axis::of(
        points().flat_map(|point| {
            let value = &point.y;
            [value.low, Some(value.median), value.high]
                .into_iter()
                .flatten()
        }),
        frame.y,
    );
    let place = LabelPosition { x, y };
    let mut body = String::new();
    place.grid(&mut body, frame, series);
    for mark in marks {
        let at = place.across(mark.at);
        let _ = write!(
            body,
            r#"<path d="M{at:.1} {TOP}V{BOTTOM}" class="g one"><title>{}</title></path><text x="{:.1}" y="{:.1}" class="a">{}</text>"#,
            escape(&mark.words),
            at + 3.0,
            TOP + 10.0,
            escape(&mark.sign)
        );
    }
    for (at, one) in series.iter().enumerate() {
        // Only what has intervals needs to be moved apart.
        let ends = one.points.iter().any(|point| point.y.low.is_some());
        let apart = if frame.joined && ends && series.len() > 1 {
            (at as f64 - (series.len() - 1) as f64 / 2.0) * APART.min(24.0 / series.len() as f64)
        } else {
            0.0
        };
        place.series(&mut body, one, (frame.joined, at), apart);
    }
    let keys: Vec<LegendEntry<'_>> = series
        .iter()
        .enumerate()
        .map(|(at, series)| LegendEntry {
            label: &series.label,
            class: series.class,
            dash: series.dash,
            mark: Some(at),
        })
        .collect();
    let top = BOTTOM + 42.0;
    let height = legend(&mut body, &keys, 12.0, top);
    open(frame.title, top + height + 4.0) + &body + "</svg>"
}

struct LabelPosition {
    x: Axis,
    y: Axis,
}

impl LabelPosition {
    fn across(&self, value: f64) -> f64 {
        // Half of the distance between series stays free at both ends.
        let (left, width) = (LEFT + 14.0, WIDTH - LEFT - EDGE - 28.0);
        left + width * self.x.at(value)
    }

    fn up(&self, value: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * self.y.at(value)
    }

    fn grid(&self, svg: &mut String, frame: &Frame<'_>, series: &[Series]) {
        for value in self.y.ticks() {
            let at = self.up(value);
            let _ = write!(
                svg,
                r#"<path d="M{LEFT} {at:.1}H{:.1}" class="g"/><text x="{:.1}" y="{:.1}" class="a" text-anchor="end">{}</text>"#,
                WIDTH - EDGE,
                LEFT - 6.0,
                at + 4.0,
                escape(&tick(frame.show, value))
            );
        }
        let mut values: Vec<f64> = if frame.each {
            series
                .iter()
                .flat_map(|s| s.points.iter().map(|point| point.x))
                .collect()
        } else {
            self.x.ticks()
        };
        values.sort_by(f64::total_cmp);
        values.dedup();
        let mut last = f64::NEG_INFINITY;
        for value in values {
            let at = self.across(value);
            let _ = write!(svg, r#"<path d="M{at:.1} {BOTTOM}v4" class="g"/>"#);
            let width = value.to_string().len() as f64 * 7.0;
            if at - last < CLOSE.max(width) {
                continue;
            }
            last = at;
            let _ = write!(
                svg,
                r#"<text x="{at:.1}" y="{:.1}" class="a" text-anchor="middle">{value}</text>"#,
                BOTTOM + 17.0
            );
        }
        let _ = write!(
            svg,
            r#"<path d="M{LEFT} {BOTTOM}H{:.1}" class="g"/><text x="{:.1}" y="{:.1}" class="a" text-anchor="middle">{}</text>"#,
            WIDTH - EDGE,
            f64::midpoint(LEFT, WIDTH - EDGE),
            BOTTOM + 34.0,
            escape(frame.across)
        );
    }

    fn series(
        &self,
        svg: &mut String,
        series: &Series,
        (joined, shape): (bool, usize),
        apart: f64,
    ) {
        let (class, dash) = (series.class, DASHES[series.dash % DASHES.len()]);
        let mut path = String::new();
        let valid = series.points.iter().filter(|point| !point.invalid);
        for point in valid.filter(|_| joined) {
            let word = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(
                path,
                "{word}{:.1} {:.1}",
                self.across(point.x) + apart,
                self.up(point.y.median)
            );
        }
        if !path.is_empty() {
            let _ = write!(svg, r#"<path d="{path}" class="line {class} {dash}"/>"#);
        }
        for point in &series.points {
            let (x, y) = (self.across(point.x) + apart, self.up(point.y.median));
            if point.invalid {
                let _ = write!(
                    svg,
                    r#"<path d="M{:.1} {:.1}l7 7m0 -7l-7 7" class="x"/>"#,
                    x - 3.5,
                    y - 3.5
                );
                continue;
            }
            if let (Some(low), Some(high)) = (point.y.low, point.y.high) {
                let (low, high) = (self.up(low), self.up(high));
                let _ = write!(
                    svg,
                    r#"<path d="M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} {high:.1}h6" class="i {class}"/>"#,
                    x - 3.0,
                    x - 3.0
                );
            }
            marker(svg, shape, x, y, class);
        }
    }
}

/// A round value, without digits that say nothing: `500 µs`, not `500.0 µs`.
pub(super) fn tick(show: fn(f64) -> String, value: f64) -> String {
    let text = show(value);
    let Some(dot) = text.find('.') else {
        return text;
    };
    let end = text[dot + 1..]
        .find(|c: char| !c.is_ascii_digit())
        .map_or(text.len(), |at| dot + 1 + at);
    let fraction = text[dot + 1..end].trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}{}", &text[..dot], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{bytes, duration};

    #[test]
    fn ticks_say_no_more_than_they_mean() {
        for (show, value, expected) in [
            (duration as fn(f64) -> String, 0.0, "0 µs"),
            (duration, 500.0, "500 µs"),
            (duration, 1500.0, "1.5 ms"),
            (duration, 20.0, "20 µs"),
            (bytes, 10.0 * 1_048_576.0, "10 MiB"),
        ] {
            assert_eq!(tick(show, value), expected);
        }
    }

    #[test]
    fn lines_have_points_intervals_marks_and_a_legend() {
        let point = |x, median| PlotPoint {
            x,
            y: Estimate {
                median,
                low: Some(median * 0.9),
                high: Some(median * 1.1),
                rounds: 8,
            },
            invalid: false,
        };
        let series = vec![
            Series {
                label: "one <b>".to_owned(),
                class: "c-voile",
                dash: 0,
                points: vec![point(2.0, 100.0), point(64.0, 300.0)],
            },
            Series {
                label: "two".to_owned(),
                class: "c-envoy",
                dash: 1,
                points: vec![PlotPoint {
                    invalid: true,
                    ..point(2.0, 100.0)
                }],
            },
        ];
        let frame = Frame {
            title: "t",
            across: "connections",
            x: Scale::Log,
            y: Scale::Linear,
            show: duration,
            joined: true,
            each: true,
        };
        let marks = [PlotMark {
            at: 10.0,
            sign: "1".to_owned(),
            words: "a <restart>".to_owned(),
        }];
        let svg = lines(&frame, &series, &marks);
        assert_eq!(svg.matches("class=\"i c-voile\"").count(), 2);
        assert_eq!(svg.matches("class=\"x\"").count(), 1);
        assert!(svg.contains("one &lt;b&gt;") && svg.contains("a &lt;restart&gt;"));
        assert!(svg.contains(">64</text>") && svg.contains(">connections</text>"));
        assert!(!svg.contains("NaN") && svg.ends_with("</svg>"));
        // Nothing at all is drawn as an empty frame.
        assert!(!lines(&frame, &[], &[]).contains("NaN"));
    }
}
