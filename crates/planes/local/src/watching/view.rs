//! The live state as text: pure, so that every line of it can be tested.

use std::fmt::Write as _;
use std::time::Duration;

use crate::scrape::ScrapedRates;

/// Content of the terminal view.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TerminalView {
    /// The folder.
    pub folder: String,
    /// Since when the mesh runs.
    pub uptime: Duration,
    /// `running`, or why not.
    pub control: String,
    /// Number of services.
    pub services: usize,
    /// Addresses of the mesh for clients outside: service and URL.
    pub reach: Vec<(String, String)>,
    /// Current problems.
    pub troubles: Vec<String>,
    /// One row a workload.
    pub rows: Vec<Row>,
    /// Recent events, oldest first.
    pub events: Vec<String>,
}

/// One workload: a Deployment or a bare Pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Its name, with the namespace.
    pub name: String,
    /// Pods that are ready.
    pub ready: usize,
    /// Pods that should be.
    pub wanted: usize,
    /// Pods that an error keeps from being started.
    pub refused: usize,
    /// Its SPIFFE identity; empty without a sidecar.
    pub identity: String,
    /// Recent figures of its sidecars.
    pub figures: ScrapedRates,
    /// Number of restarts of its processes.
    pub restarts: u32,
}

impl Row {
    /// The identity, and the pods that have none because they are not started.
    fn identity_cell(&self) -> String {
        let identity = match self.identity.as_str() {
            "" => "no sidecar",
            identity => identity,
        };
        match self.refused {
            0 => identity.to_owned(),
            refused => format!("{identity} ({refused} not started: error)"),
        }
    }
}

/// Lines of the latest events that are shown.
const SHOWN_EVENT_LINES: usize = 8;
/// Lines of problems that are shown: the rest of the picture must keep its place.
const SHOWN_TROUBLES: usize = 5;

/// The whole picture, redrawn in place: no line is wider than `width`, and there are no more than `height`.
pub fn picture(view: &TerminalView, width: usize, height: usize) -> String {
    let mut text = format!(
        "voile up {} · {} · control {} · {} services · {} of {} instances ready\n",
        view.folder,
        duration(view.uptime),
        view.control,
        view.services,
        view.rows.iter().map(|row| row.ready).sum::<usize>(),
        view.rows.iter().map(|row| row.wanted).sum::<usize>(),
    );
    for (service, url) in &view.reach {
        let _ = writeln!(text, "  {url}  → {service}");
    }
    for trouble in view.troubles.iter().take(SHOWN_TROUBLES) {
        let _ = writeln!(text, "! {}", trouble.lines().next().unwrap_or_default());
    }
    if let Some(more) = view.troubles.len().checked_sub(SHOWN_TROUBLES)
        && more > 0
    {
        let _ = writeln!(text, "! and {more} more");
    }
    let name = view
        .rows
        .iter()
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or(0)
        .max(8);
    let _ = writeln!(
        text,
        "\n{:name$}  {:>5}  {:>8}  {:>7}  {:>8}  {:>8}  {:>5}  {:>8}  IDENTITY",
        "WORKLOAD", "READY", "REQ/S", "ERR/S", "P50 MS*", "P99 MS*", "MTLS", "RESTARTS"
    );
    for row in &view.rows {
        let figures = &row.figures;
        let _ = writeln!(
            text,
            "{:name$}  {:>5}  {:>8.1}  {:>7.1}  {:>8}  {:>8}  {:>5}  {:>8}  {}",
            row.name,
            format!("{}/{}", row.ready, row.wanted),
            figures.rate,
            figures.errors,
            milliseconds(figures.p50),
            milliseconds(figures.p99),
            share(figures.mutual_tls),
            row.restarts,
            row.identity_cell(),
        );
    }
    text.push_str("* from the sidecars' histogram buckets, so an estimate\n");
    let events: Vec<String> = view
        .events
        .iter()
        .flat_map(|event| {
            format!("- {event}")
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    for line in &events[events.len().saturating_sub(SHOWN_EVENT_LINES)..] {
        let _ = writeln!(text, "{line}");
    }
    text.lines()
        .take(height)
        .map(|line| line.chars().take(width).collect::<String>() + "\n")
        .collect()
}

/// One line, for a log.
pub fn line(view: &TerminalView) -> String {
    let rows = &view.rows;
    let ready: usize = rows.iter().map(|row| row.ready).sum();
    let wanted: usize = rows.iter().map(|row| row.wanted).sum();
    let mut text = format!(
        "{} control {}, {ready} of {wanted} ready;",
        duration(view.uptime),
        view.control
    );
    if let Some(first) = view.troubles.first() {
        let more = match view.troubles.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        let first = first.lines().next().unwrap_or_default();
        let _ = write!(text, " wrong: {first}{more};");
    }
    for row in rows.iter().filter(|row| row.figures.rate > 0.0) {
        let figures = &row.figures;
        let _ = write!(
            text,
            " {} {:.1}/s err {:.1}/s p50~{} p99~{} ms mtls {};",
            row.name,
            figures.rate,
            figures.errors,
            milliseconds(figures.p50),
            milliseconds(figures.p99),
            share(figures.mutual_tls),
        );
    }
    if rows.iter().all(|row| row.figures.rate == 0.0) {
        text.push_str(" no requests;");
    }
    text.pop();
    text
}

fn milliseconds(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn share(value: Option<f64>) -> String {
    // Rounded down: 100% must mean every single one.
    value.map_or_else(
        || "-".to_owned(),
        |value| format!("{:.0}%", (value * 100.0).floor()),
    )
}

fn duration(value: Duration) -> String {
    let seconds = value.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> TerminalView {
        TerminalView {
            folder: "shop".to_owned(),
            uptime: Duration::from_secs(65),
            control: "running".to_owned(),
            services: 2,
            reach: vec![("shop/front".to_owned(), "http://127.0.0.1:8080".to_owned())],
            troubles: (0..7).map(|n| format!("trouble {n}\nhelp")).collect(),
            rows: vec![
                Row {
                    name: "shop/front".to_owned(),
                    ready: 1,
                    wanted: 2,
                    refused: 0,
                    identity: "spiffe://cluster.local/ns/shop/sa/front".to_owned(),
                    figures: ScrapedRates {
                        rate: 5.0,
                        errors: 0.5,
                        p50: Some(1.234),
                        p99: Some(123.4),
                        mutual_tls: Some(0.999),
                    },
                    restarts: 3,
                },
                Row {
                    name: "shop/traffic".to_owned(),
                    ready: 1,
                    wanted: 2,
                    refused: 1,
                    ..Row::default()
                },
            ],
            events: (0..8).map(|n| format!("event {n}\nwith details")).collect(),
        }
    }

    #[test]
    fn the_picture_shows_every_workload_and_the_latest_events() {
        let expected = "\
voile up shop · 1m05s · control running · 2 services · 2 of 4 instances ready
  http://127.0.0.1:8080  → shop/front
! trouble 0
! trouble 1
! trouble 2
! trouble 3
! trouble 4
! and 2 more

WORKLOAD      READY     REQ/S    ERR/S   P50 MS*   P99 MS*   MTLS  RESTARTS  IDENTITY
shop/front      1/2       5.0      0.5      1.23       123    99%         3  spiffe://cluster.local/ns/shop/sa/front
shop/traffic    1/2       0.0      0.0         -         -      -         0  no sidecar (1 not started: error)
* from the sidecars' histogram buckets, so an estimate
- event 4
with details
- event 5
with details
- event 6
with details
- event 7
with details
";
        assert_eq!(picture(&view(), 200, 50), expected);
    }

    #[test]
    fn the_picture_never_outgrows_the_terminal() {
        assert_eq!(picture(&view(), 80, 3).lines().count(), 3);
        for width in [1, 20, 80] {
            assert!(
                picture(&view(), width, 50)
                    .lines()
                    .all(|line| line.chars().count() <= width)
            );
        }
    }

    #[test]
    fn the_line_says_what_moved() {
        assert_eq!(
            line(&view()),
            "1m05s control running, 2 of 4 ready; wrong: trouble 0 and 6 more; shop/front 5.0/s err 0.5/s p50~1.23 p99~123 ms mtls 99%"
        );
        assert_eq!(
            line(&TerminalView {
                control: "down".to_owned(),
                ..TerminalView::default()
            }),
            "0s control down, 0 of 0 ready; no requests"
        );
    }
}
