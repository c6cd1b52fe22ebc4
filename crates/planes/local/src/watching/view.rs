//! The live state as text: pure, so that every line of it can be tested.

use std::fmt::Write as _;
use std::time::Duration;

use crate::edges::EdgeEnds;
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
    /// Who calls whom, the most requests first.
    pub edges: Vec<(EdgeEnds, ScrapedRates)>,
    /// Recent events, oldest first.
    pub events: Vec<String>,
}

/// Kind of proxy that serves a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServingProxy {
    /// None: no policy is enforced for it.
    #[default]
    None,
    /// A sidecar in each pod.
    Sidecar,
    /// The node proxy.
    Node,
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
    /// Its proxy.
    pub proxy: ServingProxy,
    /// Its SPIFFE identity; empty without a proxy.
    pub identity: String,
    /// Recent figures of what it serves.
    pub figures: ScrapedRates,
    /// Requests a second that it sends.
    pub sent: f64,
    /// Requests that it has served since its proxies started.
    pub total: f64,
    /// Number of restarts of its processes.
    pub restarts: u32,
}

/// How the view is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Picture {
    /// Columns of the terminal.
    pub width: usize,
    /// Lines of the terminal.
    pub height: usize,
    /// Whether the terminal shows colours.
    pub colour: bool,
}

/// Lines of the latest events that are shown.
const SHOWN_EVENT_LINES: usize = 8;
/// Problems that are shown: the rest of the picture must keep its place.
const SHOWN_TROUBLES: usize = 5;
/// Lines of one problem that are shown.
const SHOWN_TROUBLE_LINES: usize = 4;
/// Between two columns.
const GAP: usize = 2;

/// Style of a cell or line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Head,
    Good,
    Warning,
    Bad,
}

impl Style {
    /// Bad if it is more than nothing.
    fn of(count: f64, style: Self) -> Self {
        if count > 0.0 { style } else { Self::Plain }
    }

    fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Head => "1",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
            Self::Plain => "",
        };
        match colour && !code.is_empty() && !text.trim().is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// A column of a table: its head, whether it is kept when the terminal is narrow (the least first to go), and its cells.
struct Column {
    head: &'static str,
    keep: u8,
    cells: Vec<(String, Style)>,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|(text, _)| text.chars().count());
        cells.chain([self.head.len()]).max().unwrap_or(0)
    }
}

/// The columns that fit side by side, as lines.
fn table(mut columns: Vec<Column>, picture: &Picture) -> Vec<String> {
    let width = |columns: &[Column]| -> usize {
        let widths: usize = columns.iter().map(Column::width).sum();
        widths + GAP * columns.len().saturating_sub(1)
    };
    while width(&columns) > picture.width && columns.len() > 2 {
        let keeps = columns.iter().enumerate();
        let Some((least, _)) = keeps.min_by_key(|(_, column)| column.keep) else {
            break;
        };
        columns.remove(least);
    }
    // The name gives way for what is left.
    let rest: usize = columns.iter().skip(1).map(|one| one.width() + GAP).sum();
    let widest = picture.width.saturating_sub(rest).max(8);
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let line = |row: Option<usize>| {
        let mut line = String::new();
        let mut room = picture.width;
        for (at, column) in columns.iter().enumerate() {
            let (text, style) = match row {
                Some(row) => (column.cells[row].0.as_str(), column.cells[row].1),
                None => (column.head, Style::Head),
            };
            let last = at + 1 == columns.len();
            // Names to the left, figures to the right.
            let padded = match at {
                0 => {
                    let width = column.width().min(widest);
                    let cut: String = text.chars().take(width).collect();
                    format!("{cut:width$}")
                }
                _ if last => text.to_owned(),
                _ => format!("{text:>width$}", width = column.width()),
            };
            let cut: String = padded.chars().take(room).collect();
            room -= cut.chars().count();
            line += &style.paint(&cut, picture.colour);
            if !last {
                let gap = GAP.min(room);
                line += &" ".repeat(gap);
                room -= gap;
            }
        }
        line
    };
    let rows = (0..rows).map(|row| line(Some(row)));
    [line(None)].into_iter().chain(rows).collect()
}

fn workloads(rows: &[Row]) -> Vec<Column> {
    let column = |head, keep, cell: &dyn Fn(&Row) -> (String, Style)| Column {
        head,
        keep,
        cells: rows.iter().map(cell).collect(),
    };
    let plain = |text: String| (text, Style::Plain);
    let rate = |value: f64| format!("{value:.1}");
    let refusals = |value: f64| (rate(value), Style::of(value, Style::Warning));
    let ready = |row: &Row| {
        let style = match row.ready == row.wanted {
            true => Style::Good,
            false => Style::Bad,
        };
        (format!("{}/{}", row.ready, row.wanted), style)
    };
    let proxy = |row: &Row| match (row.proxy, row.refused) {
        (_, refused) if refused > 0 => (format!("{refused} not started"), Style::Bad),
        (ServingProxy::Sidecar, _) => plain("sidecar".to_owned()),
        (ServingProxy::Node, _) => plain("node".to_owned()),
        (ServingProxy::None, _) => ("none".to_owned(), Style::Warning),
    };
    vec![
        column("WORKLOAD", 255, &|row| plain(row.name.clone())),
        column("READY", 100, &ready),
        column("PROXY", 60, &proxy),
        column("REQ/S", 95, &|row| plain(rate(row.figures.rate))),
        column("ERR/S", 90, &|row| {
            let errors = row.figures.errors;
            (rate(errors), Style::of(errors, Style::Bad))
        }),
        column("DENIED/S", 85, &|row| refusals(row.figures.denied)),
        column("LIMITED/S", 40, &|row| refusals(row.figures.limited)),
        column("P50 MS*", 50, &|row| plain(milliseconds(row.figures.p50))),
        column("P99 MS*", 80, &|row| plain(milliseconds(row.figures.p99))),
        column("MTLS", 70, &|row| plain(share(row.figures.mutual_tls))),
        column("OUT/S", 30, &|row| plain(rate(row.sent))),
        column("TOTAL", 45, &|row| plain(format!("{:.0}", row.total))),
        column("RESTARTS", 20, &|row| {
            let restarts = f64::from(row.restarts);
            (
                row.restarts.to_string(),
                Style::of(restarts, Style::Warning),
            )
        }),
        column("IDENTITY", 10, &|row| plain(row.identity.clone())),
    ]
}

/// The first of these edges, the most requests first.
fn edges(edges: &[(EdgeEnds, ScrapedRates)], shown: usize) -> Vec<Column> {
    type Edge = (EdgeEnds, ScrapedRates);
    let column = |head, keep, cell: &dyn Fn(&Edge) -> (String, Style)| Column {
        head,
        keep,
        cells: edges.iter().take(shown).map(cell).collect(),
    };
    let plain = |text: String| (text, Style::Plain);
    let counted = |value: f64, style| (format!("{value:.1}"), Style::of(value, style));
    vec![
        column("FROM → TO", 255, &|(ends, _)| {
            plain(format!("{} → {}", ends.source, ends.destination))
        }),
        column("REQ/S", 100, &|(_, figures)| {
            counted(figures.rate, Style::Plain)
        }),
        column("ERR/S", 90, &|(_, figures)| {
            counted(figures.errors, Style::Bad)
        }),
        column("DENIED/S", 80, &|(_, figures)| {
            counted(figures.denied, Style::Warning)
        }),
        column("LIMITED/S", 40, &|(_, figures)| {
            counted(figures.limited, Style::Warning)
        }),
        column("P50 MS*", 50, &|(_, figures)| {
            plain(milliseconds(figures.p50))
        }),
        column("P99 MS*", 70, &|(_, figures)| {
            plain(milliseconds(figures.p99))
        }),
        column("MTLS", 60, &|(_, figures)| plain(share(figures.mutual_tls))),
    ]
}

/// Lines of at most so many characters; those after the first are indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word = word;
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        if !line.trim().is_empty() && !fits {
            lines.push(std::mem::replace(&mut line, " ".to_owned()));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        // A word that no line can hold.
        while line.chars().count() + word.chars().count() > width {
            let room = width.saturating_sub(line.chars().count()).max(1);
            let cut = word
                .char_indices()
                .nth(room)
                .map_or(word.len(), |(at, _)| at);
            line.push_str(&word[..cut]);
            word = &word[cut..];
            lines.push(std::mem::replace(&mut line, "  ".to_owned()));
            if word.is_empty() {
                return lines;
            }
        }
        line.push_str(word);
    }
    if !line.trim().is_empty() {
        lines.push(line);
    }
    lines
}

/// The whole picture, redrawn in place: no line is wider than the terminal, and there are no more than it has.
pub fn picture(view: &TerminalView, picture: &Picture) -> String {
    let Picture {
        width,
        height,
        colour,
        ..
    } = *picture;
    let cut = |text: &str, style: Style| {
        let cut: String = text.chars().take(width).collect();
        style.paint(&cut, colour)
    };
    let mut lines = vec![cut(
        &format!(
            "{} of {} pods ready · control {} · {} services · {} · voile up {}",
            view.rows.iter().map(|row| row.ready).sum::<usize>(),
            view.rows.iter().map(|row| row.wanted).sum::<usize>(),
            view.control,
            view.services,
            duration(view.uptime),
            view.folder,
        ),
        Style::Head,
    )];
    for (service, url) in &view.reach {
        lines.push(cut(&format!("  {url}  → {service}"), Style::Plain));
    }
    for trouble in view.troubles.iter().take(SHOWN_TROUBLES) {
        let first = trouble.lines().next().unwrap_or_default();
        let wrapped = wrapped(&format!("! {first}"), width.max(4));
        let shown = wrapped.iter().take(SHOWN_TROUBLE_LINES);
        lines.extend(shown.map(|line| cut(line, Style::Bad)));
    }
    if let Some(more) = view.troubles.len().checked_sub(SHOWN_TROUBLES)
        && more > 0
    {
        lines.push(cut(&format!("! and {more} more"), Style::Bad));
    }
    lines.push(String::new());
    lines.extend(table(workloads(&view.rows), picture));
    let help = "* estimated from histogram buckets · Ctrl-C stops · `voile edges` shows more";
    lines.push(cut(help, Style::Plain));
    let events = view.events.iter().flat_map(|event| {
        let lines = event.lines().enumerate();
        lines.flat_map(|(at, line)| {
            let (begin, room) = (
                if at == 0 { "- " } else { "  " },
                width.saturating_sub(2).max(4),
            );
            let wrapped = wrapped(line, room).into_iter();
            wrapped.map(move |line| format!("{begin}{line}"))
        })
    });
    let events: Vec<String> = events.collect();
    let shown = &events[events.len().saturating_sub(SHOWN_EVENT_LINES)..];
    lines.extend(shown.iter().map(|line| cut(line, Style::Plain)));
    // Who calls whom has the rest of the screen: a line without words, the heads, and a line each.
    let room = height.saturating_sub(lines.len() + 2);
    if room > 0 && !view.edges.is_empty() {
        lines.push(String::new());
        lines.extend(table(edges(&view.edges, room), picture));
    }
    let shown = lines.into_iter().take(height);
    shown
        .map(|line| line.trim_end().to_owned() + "\n")
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
            " {} {:.1}/s err {:.1}/s{} p50~{} p99~{} ms mtls {};",
            row.name,
            figures.rate,
            figures.errors,
            match figures.denied > 0.0 {
                true => format!(" denied {:.1}/s", figures.denied),
                false => String::new(),
            },
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

/// A latency with about three digits.
pub fn milliseconds(value: Option<f64>) -> String {
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
                    proxy: ServingProxy::Sidecar,
                    identity: "spiffe://cluster.local/ns/shop/sa/front".to_owned(),
                    figures: ScrapedRates {
                        rate: 5.0,
                        errors: 0.5,
                        denied: 0.2,
                        limited: 0.1,
                        p50: Some(1.234),
                        p99: Some(123.4),
                        mutual_tls: Some(0.999),
                    },
                    sent: 10.0,
                    total: 1234.0,
                    restarts: 3,
                    ..Row::default()
                },
                Row {
                    name: "shop/traffic".to_owned(),
                    ready: 1,
                    wanted: 2,
                    refused: 1,
                    ..Row::default()
                },
            ],
            edges: vec![(
                EdgeEnds {
                    source: "unknown".to_owned(),
                    destination: "shop/front".to_owned(),
                },
                ScrapedRates {
                    rate: 5.0,
                    ..ScrapedRates::default()
                },
            )],
            events: (0..8).map(|n| format!("event {n}\nwith details")).collect(),
        }
    }

    fn drawn(width: usize, height: usize) -> String {
        let size = Picture {
            width,
            height,
            colour: false,
        };
        picture(&view(), &size)
    }

    #[test]
    fn the_picture_shows_every_workload_and_the_latest_events() {
        let expected = "\
2 of 4 pods ready · control running · 2 services · 1m05s · voile up shop
  http://127.0.0.1:8080  → shop/front
! trouble 0
! trouble 1
! trouble 2
! trouble 3
! trouble 4
! and 2 more

WORKLOAD      READY          PROXY  REQ/S  ERR/S  DENIED/S  LIMITED/S  P50 MS*  P99 MS*  MTLS  OUT/S  TOTAL  RESTARTS  IDENTITY
shop/front      1/2        sidecar    5.0    0.5       0.2        0.1     1.23      123   99%   10.0   1234         3  spiffe://cluster.local/ns/shop/sa/front
shop/traffic    1/2  1 not started    0.0    0.0       0.0        0.0        -        -     -    0.0      0         0
* estimated from histogram buckets · Ctrl-C stops · `voile edges` shows more
- event 4
  with details
- event 5
  with details
- event 6
  with details
- event 7
  with details

FROM → TO             REQ/S  ERR/S  DENIED/S  LIMITED/S  P50 MS*  P99 MS*  MTLS
unknown → shop/front    5.0    0.0       0.0        0.0        -        -  -
";
        assert_eq!(drawn(200, 50), expected);
    }

    #[test]
    fn a_narrow_terminal_keeps_the_figures_that_matter_most() {
        let narrow = drawn(80, 50);
        let table: Vec<&str> = narrow.lines().skip(9).take(3).collect();
        assert_eq!(
            table,
            [
                "WORKLOAD      READY          PROXY  REQ/S  ERR/S  DENIED/S  P99 MS*  MTLS",
                "shop/front      1/2        sidecar    5.0    0.5       0.2      123  99%",
                "shop/traffic    1/2  1 not started    0.0    0.0       0.0        -  -",
            ]
        );
    }

    #[test]
    fn the_picture_never_outgrows_the_terminal() {
        assert_eq!(drawn(80, 3).lines().count(), 3);
        for width in [1, 5, 20, 40, 80] {
            let picture = drawn(width, 50);
            let long = |line: &&str| line.chars().count() > width;
            assert_eq!(picture.lines().find(long), None, "{width}");
        }
    }

    #[test]
    fn problems_are_wrapped_and_not_cut() {
        let text = "! mesh/a.yaml:3: error[V0312]: PeerAuthentication STRICT is not enforced";
        assert_eq!(
            wrapped(text, 40),
            [
                "! mesh/a.yaml:3: error[V0312]:",
                "  PeerAuthentication STRICT is not",
                "  enforced",
            ]
        );
        assert_eq!(
            wrapped("! abcdefghij", 6),
            ["!", "  abcd", "  efgh", "  ij"]
        );
        assert_eq!(wrapped("", 6), Vec::<String>::new());
    }

    #[test]
    fn colours_mark_what_fails_and_change_no_width() {
        let size = |colour| Picture {
            width: 120,
            height: 50,
            colour,
        };
        let painted = picture(&view(), &size(true));
        assert!(
            painted.contains("\x1b[31m! trouble 0\x1b[0m"),
            "{painted:?}"
        );
        let mut plain = painted;
        for code in ["0", "1", "31", "32", "33"] {
            plain = plain.replace(&format!("\x1b[{code}m"), "");
        }
        let trimmed = |text: &str| -> Vec<String> {
            text.lines()
                .map(|line| line.trim_end().to_owned())
                .collect()
        };
        assert_eq!(trimmed(&plain), trimmed(&picture(&view(), &size(false))));
    }

    #[test]
    fn the_line_says_what_moved() {
        assert_eq!(
            line(&view()),
            "1m05s control running, 2 of 4 ready; wrong: trouble 0 and 6 more; shop/front 5.0/s err 0.5/s denied 0.2/s p50~1.23 p99~123 ms mtls 99%"
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
