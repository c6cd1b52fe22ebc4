//! Live view of a run: a line a second, or on a terminal a picture that redraws itself. The view writes once a second and clears
//! lines as it writes them, so that nothing flickers. Pure: widths and times are arguments.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use crate::options::UNTIL_STOPPED;
use crate::samples::Samples;
use crate::units::{count, time};
use crate::worker::Live;

/// Form of the live view on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    Quiet,
    /// A line each second.
    Lines,
    /// A picture, on a terminal.
    Picture,
}

impl From<bool> for Progress {
    fn from(lines: bool) -> Self {
        if lines { Self::Lines } else { Self::Quiet }
    }
}

/// Rows of the histogram, at most.
const ROWS: usize = 10;
/// Seconds of the rate that are shown.
const SECONDS: usize = 60;
/// The narrowest terminal that the picture is drawn for; less is cut.
const MIN_WIDTH: usize = 40;
/// Eighths of a character cell, from left to right and from bottom to top.
const ACROSS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
const UP: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A terminal shows all of an update at once between these, if it knows how; others pass them over.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";
/// Clears the line right of the cursor, and all below it.
const CLEAR_RIGHT: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The picture and its state.
#[derive(Debug, Default)]
pub(crate) struct LoadView {
    all: Samples,
    ok: u64,
    errors: u64,
    rates: VecDeque<u64>,
    /// Lines that stand on the terminal now.
    drawn: usize,
}

impl LoadView {
    /// The picture after one more second, over the last one. `planned` is how long all lasts.
    pub(crate) fn draw(
        &mut self,
        second: &Live,
        elapsed: Duration,
        planned: Duration,
        (width, height): (usize, usize),
    ) -> String {
        self.all.merge(&second.latency);
        self.ok += second.ok;
        self.errors += second.errors;
        if self.rates.len() == SECONDS {
            self.rates.pop_front();
        }
        self.rates.push_back(second.ok);
        let width = width.max(MIN_WIDTH) - 1;
        let mut lines = vec![
            fitting(&self.head(second, elapsed, planned), width),
            fitting(&percentiles("this second", &second.latency), width),
            fitting(&percentiles("since the start", &self.all), width),
            self.rate_line(width),
        ];
        lines.extend(histogram(&self.all, width));
        // The view cannot redraw lines that have scrolled away.
        lines.truncate(height.saturating_sub(1).max(1));
        let mut text = String::from(BEGIN);
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in &lines {
            text.extend(line.chars().take(width));
            text += CLEAR_RIGHT;
            text.push('\n');
        }
        text += CLEAR_BELOW;
        text += END;
        self.drawn = lines.len();
        text
    }

    /// Removes the picture, before text is printed at the end.
    pub(crate) fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A{CLEAR_BELOW}"),
        }
    }

    fn head(&self, second: &Live, elapsed: Duration, planned: Duration) -> Vec<String> {
        let of = match planned.as_secs() {
            _ if planned >= UNTIL_STOPPED => String::new(),
            planned => format!(" of {planned}"),
        };
        vec![
            format!("{:>4} s{of}", elapsed.as_secs()),
            format!("   {} ok/s", count(second.ok)),
            format!("   {} failed", count(self.errors)),
            format!(" of {}", count(self.ok + self.errors)),
        ]
    }

    fn rate_line(&self, width: usize) -> String {
        let most = self.rates.iter().copied().max().unwrap_or(0).max(1);
        let label = format!("ok/s, to {}  ", count(most));
        let room = width.saturating_sub(label.chars().count());
        let skipped = self.rates.len().saturating_sub(room);
        let bars = self.rates.iter().skip(skipped);
        let bars = bars.map(|rate| UP[(rate * (UP.len() as u64 - 1) / most) as usize]);
        label + &bars.collect::<String>()
    }
}

/// The first of these that are whole in so many columns: half a number looks like another one.
fn fitting(parts: &[String], width: usize) -> String {
    let mut text = String::new();
    for part in parts {
        if text.chars().count() + part.trim_end().chars().count() > width {
            break;
        }
        text += part;
    }
    text
}

/// All of them are whole in 80 columns.
fn percentiles(label: &str, samples: &Samples) -> Vec<String> {
    let mut parts = vec![format!("{label:<16}")];
    for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
        let time = time(samples.quantile_us(quantile));
        parts.push(format!("{name} {time:<8}"));
    }
    parts.push(format!("max {}", time(samples.max_us())));
    parts
}

/// Rows of all samples, by powers of a number that makes them few enough.
pub(crate) fn histogram(samples: &Samples, width: usize) -> Vec<String> {
    let Some((least, _, _)) = samples.buckets().next() else {
        return Vec::new();
    };
    let (low, high) = (least.max(1) as f64, samples.max_us().max(2) as f64);
    let step = (high / low).powf(1.0 / ROWS as f64).max(1.05);
    let row = |us: u64| ((us.max(1) as f64 / low).ln() / step.ln()).max(0.0) as usize;
    let mut counts = [0u64; ROWS];
    for (from, to, count) in samples.buckets() {
        let at = row(u64::midpoint(from, to)).min(ROWS - 1);
        counts[at] += count;
    }
    let all = samples.count().max(1);
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
    let room = width.saturating_sub(34);
    let line = |(at, count): (usize, &u64)| {
        let edge = |at: usize| time((low * step.powi(at as i32)).round() as u64);
        let share = *count as f64 * 100.0 / all as f64;
        let label = format!("{:>10} – {:<10} {share:>6.2} %  ", edge(at), edge(at + 1));
        label + &bar(*count as f64 / most as f64 * room as f64)
    };
    counts[..=last].iter().enumerate().map(line).collect()
}

fn bar(cells: f64) -> String {
    let eighths = (cells * 8.0).round() as usize;
    let mut text: String = std::iter::repeat_n('█', eighths / 8).collect();
    if !eighths.is_multiple_of(8) {
        text.push(ACROSS[eighths % 8 - 1]);
    }
    text
}

/// One line of a second.
pub(crate) fn line(second: &Live, elapsed: Duration) -> String {
    let times = [("p50", 0.50), ("p99", 0.99)].map(|(name, at)| {
        let us = second.latency.quantile_us(at);
        format!(
            "{name} {:>8}",
            if second.ok > 0 {
                time(us)
            } else {
                "–".to_owned()
            }
        )
    });
    format!(
        "{:>4} s  {:>9} ok/s  {:>7} failed  {}\n",
        elapsed.as_secs(),
        count(second.ok),
        count(second.errors),
        times.join("  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(milliseconds: &[u64], errors: u64) -> Live {
        let mut live = Live {
            ok: milliseconds.len() as u64 - errors,
            errors,
            ..Live::default()
        };
        for ms in &milliseconds[errors as usize..] {
            live.latency.record(ms * 1_000_000);
        }
        live
    }

    #[test]
    fn a_picture_is_drawn_over_the_last_one_and_keeps_its_width() {
        let mut view = LoadView::default();
        let (one, ten) = (Duration::from_secs(1), Duration::from_secs(10));
        let first = view.draw(&second(&[1, 2, 2, 3, 40], 1), one, ten, (60, 40));
        let lines = first.matches('\n').count();
        assert!(
            !first.contains('A') || !first.contains("\x1b[0A"),
            "{first:?}"
        );
        assert!(
            first.contains("1 s of 10   4 ok/s   1 failed of 5"),
            "{first}"
        );
        assert!(first.contains("40.0 ms") && first.contains('█'), "{first}");
        let next = view.draw(&second(&[2], 0), ten, ten, (10, 40));
        assert!(
            next.starts_with(&format!("{BEGIN}\x1b[{lines}A")),
            "{next:?}"
        );
        for line in next.lines() {
            let shown = line.split(CLEAR_RIGHT).next().unwrap_or_default();
            let shown = shown.replace(BEGIN, "");
            let shown = shown
                .strip_prefix(&format!("\x1b[{lines}A"))
                .unwrap_or(&shown)
                .to_owned();
            assert!(shown.chars().count() < MIN_WIDTH, "{shown:?}");
        }
        assert_eq!(
            view.erase(),
            format!("\x1b[{}A{CLEAR_BELOW}", next.matches('\n').count())
        );
        assert_eq!(view.erase(), "", "there is nothing left to erase");
    }

    #[test]
    fn a_figure_is_shown_whole_or_not_at_all() {
        let all = second(&[10, 20, 20, 300, 59_000], 1);
        let lines = |width: usize| {
            let one = Duration::from_secs(1);
            let text = LoadView::default().draw(&all, one, Duration::from_secs(3600), (width, 40));
            let whole = text.replace(BEGIN, "").replace(CLEAR_RIGHT, "");
            whole.lines().take(3).map(str::to_owned).collect::<Vec<_>>()
        };
        for line in &lines(80)[1..] {
            assert!(
                line.contains("p99.9 ") && line.contains(" max "),
                "{line:?}"
            );
        }
        for width in MIN_WIDTH..120 {
            let lines = lines(width);
            for line in &lines[1..] {
                let last = line.split_whitespace().last().unwrap_or_default();
                assert!(["ms", "s"].contains(&last), "{width}: {line:?}");
            }
            let last = lines[0].split_whitespace().last().unwrap_or_default();
            assert!(
                ["ok/s", "failed", "5"].contains(&last),
                "{width}: {lines:?}"
            );
        }
    }

    #[test]
    fn a_low_terminal_gets_what_fits() {
        let all = second(&[1, 2, 2, 3, 40], 1);
        let text = LoadView::default().draw(&all, Duration::ZERO, Duration::ZERO, (80, 5));
        assert_eq!(text.matches('\n').count(), 4, "{text:?}");
    }

    #[test]
    fn a_second_without_answers_has_no_histogram_and_no_panic() {
        let text =
            LoadView::default().draw(&Live::default(), Duration::ZERO, Duration::ZERO, (80, 40));
        assert_eq!(text.matches('\n').count(), 4, "{text:?}");
    }
}
