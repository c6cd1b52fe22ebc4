//! What `voile edges`, `top` and `routes` share: which rows are shown, in which order, and as what.

use std::io::IsTerminal as _;
use std::time::Duration;

use serde_json::{Value, json};
use voile_local::scrape::{ScrapedRates, TrafficCounters};
use voile_local::view::milliseconds;

use crate::commands::inspect::monitoring::{WatchedMesh, table};
use crate::commands::values::Output;

/// Which traffic is shown, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct ShownTraffic {
    #[command(flatten)]
    pub(crate) watched: WatchedMesh,
    /// Only rows with a workload or service of this namespace.
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Only rows with errors or refusals.
    #[arg(long)]
    failing: bool,
    /// What the rows are sorted by.
    #[arg(long, value_enum, default_value_t = SortedBy::Rate)]
    sort: SortedBy,
    /// Time in which is counted, such as 10s.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = crate::commands::values::duration)]
    pub(crate) interval: Duration,
    /// Go on until Ctrl-C, with new figures after each interval.
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// With `json`: counts, and the `seconds` in which they were counted (null with `--total`).
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SortedBy {
    /// Most requests first.
    Rate,
    /// Most errors and refusals first.
    Errors,
    /// Slowest first.
    P99,
    /// By name.
    Name,
}

/// A row of such a table.
pub(crate) trait TrafficRow {
    /// The names by which a namespace chooses it, `NAMESPACE/NAME` each.
    fn names(&self) -> [&str; 2];
    /// Its figures, when they were counted in so many seconds.
    fn figures(&self, seconds: f64) -> Figures;
    /// As an object, with counts.
    fn json(&self) -> Value;
}

impl ShownTraffic {
    /// Shows rows, that come in the order of their names, as a table or as JSON. Without `seconds` they are counts.
    pub(crate) fn print<R: TrafficRow>(
        &self,
        mut rows: Vec<R>,
        heads: &[&'static str],
        cells: &dyn Fn(&R, f64) -> Vec<String>,
        seconds: Option<f64>,
    ) {
        rows.retain(|row| self.is_shown(row));
        rows.sort_by(|one, other| {
            let by = |figure: &dyn Fn(ScrapedRates) -> f64| {
                let figure = |row: &R| figure(row.figures(1.0).rates);
                figure(other).total_cmp(&figure(one))
            };
            match self.sort {
                SortedBy::Rate => by(&|rates| rates.rate),
                SortedBy::Errors => by(&|rates| failures(&rates)),
                SortedBy::P99 => by(&|rates| rates.p99.unwrap_or(-1.0)),
                SortedBy::Name => std::cmp::Ordering::Equal,
            }
        });
        if self.output == Output::Json {
            let list: Vec<Value> = rows.iter().map(R::json).collect();
            let page = json!({ "seconds": seconds, "rows": list });
            // With `--watch` one object a line.
            match self.watch {
                true => println!("{page}"),
                false => println!("{page:#}"),
            }
            return;
        }
        if self.watch && std::io::stdout().is_terminal() {
            print!("\x1b[H\x1b[J");
        }
        let of_counts = |head: &&'static str| match head.strip_suffix("/S") {
            Some("REQ") => "REQUESTS",
            Some("IN B") => "IN BYTES",
            Some("OUT B") => "OUT BYTES",
            Some(other) => other,
            None => *head,
        };
        let heads: Vec<&str> = match seconds {
            Some(_) => heads.to_vec(),
            None => heads.iter().map(of_counts).collect(),
        };
        let cells = rows.iter().map(|row| cells(row, seconds.unwrap_or(1.0)));
        print!("{}", table(&heads, &cells.collect::<Vec<_>>()));
        if rows.is_empty() {
            let time = if seconds.is_none() {
                ""
            } else {
                " in this time"
            };
            eprintln!("no traffic{time}");
        }
    }

    fn is_shown(&self, row: &impl TrafficRow) -> bool {
        let fails = failures(&row.figures(1.0).rates) > 0.0;
        let within = |name: &str, namespace: &str| {
            let rest = name.strip_prefix(namespace);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let mut names = row.names().into_iter();
        let meant = self.namespace.as_deref();
        (fails || !self.failing)
            && meant.is_none_or(|namespace| names.any(|name| within(name, namespace)))
    }
}

fn failures(rates: &ScrapedRates) -> f64 {
    rates.errors + rates.denied + rates.limited
}

/// The figures of a row, as cells.
pub(crate) struct Figures {
    pub(crate) rates: ScrapedRates,
    /// Share of requests that were answered well.
    pub(crate) success: Option<f64>,
}

impl Figures {
    /// Of rates, when a row has requests.
    pub(crate) fn of(rates: ScrapedRates) -> Self {
        let (all, failed) = (rates.rate, failures(&rates));
        Self {
            rates,
            success: (all > 0.0).then(|| (1.0 - failed / all).max(0.0)),
        }
    }

    pub(crate) fn of_counters(counters: &TrafficCounters, seconds: f64) -> Self {
        Self::of(counters.over(Duration::from_secs_f64(seconds)))
    }

    pub(crate) fn rate(&self) -> String {
        format!("{:.1}", self.rates.rate)
    }

    pub(crate) fn success(&self) -> String {
        share(self.success)
    }

    pub(crate) fn denied(&self) -> String {
        format!("{:.1}", self.rates.denied)
    }

    pub(crate) fn limited(&self) -> String {
        format!("{:.1}", self.rates.limited)
    }

    pub(crate) fn p50(&self) -> String {
        milliseconds(self.rates.p50)
    }

    pub(crate) fn p99(&self) -> String {
        milliseconds(self.rates.p99)
    }

    pub(crate) fn mutual_tls(&self) -> String {
        share(self.rates.mutual_tls)
    }
}

/// Rounded down: 100% must mean every single one.
fn share(value: Option<f64>) -> String {
    value.map_or_else(
        || "-".to_owned(),
        |value| format!("{:.1}%", (value * 1000.0).floor() / 10.0),
    )
}
