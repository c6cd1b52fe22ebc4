//! `voile edges` and `voile top`: who calls whom, and which workloads serve how much, from the metrics of all proxies.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use voile_local::edges::{Edge, Edges};
use voile_local::scrape::{ScrapedRates, TrafficCounters};

use crate::commands::inspect::monitoring::{PageServer, WatchedMesh, runtime, table, texts};
use crate::commands::values::Output;

/// Show who calls whom: rates, success, refusals, latency and mutual TLS of each pair of workloads.
///
/// The figures are the proxies' own metrics, read twice, `--interval` apart. A call has two proxies: rates and latencies are those
/// of the caller's if it has one, refusals and mutual TLS those of the server's (MTLS is – where none counted). SUCCESS counts answers
/// below 500 that were not refused. DENIED/S is what authorization policies refused, LIMITED/S what rate limits refused. Percentiles are interpolated in the
/// histograms' buckets, so they are estimates. TCP connections count as one request each.
///
/// The mesh is that of `voile up` on this machine, or with `--kubernetes` that of a cluster: the administration ports of its sidecars,
/// gateways, waypoints and node proxies are forwarded. Proxies that do not answer are named on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0; 1 if a proxy did not answer; 2 if no mesh can be reached.")]
pub(crate) struct EdgesArgs {
    #[command(flatten)]
    shown: ShownTraffic,
    /// Show the verified identities, bytes and limits, too.
    #[arg(long)]
    wide: bool,
}

/// Show what each workload serves: rates, success, refusals, latency and mutual TLS, and what it calls.
///
/// The figures are those of `voile edges`, summed for each workload that is called or calls. OUT/S is what it calls itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0; 1 if a proxy did not answer; 2 if no mesh can be reached.")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    shown: ShownTraffic,
}

/// Which traffic is shown, and how.
#[derive(Debug, clap::Args)]
struct ShownTraffic {
    #[command(flatten)]
    watched: WatchedMesh,
    /// Only rows with a workload of this namespace.
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Only rows with errors or refusals.
    #[arg(long)]
    failing: bool,
    /// What the rows are sorted by.
    #[arg(long, value_enum, default_value_t = SortedBy::Rate)]
    sort: SortedBy,
    /// Time between the two readings, such as 10s.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = crate::commands::values::duration)]
    interval: Duration,
    /// Show all traffic since the proxies' start, as counts.
    #[arg(long, conflicts_with = "watch")]
    total: bool,
    /// Go on until Ctrl-C, with new figures after each interval.
    #[arg(long, short)]
    watch: bool,
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

/// Traffic of a pair or of a workload, over a time.
#[derive(Debug)]
struct TrafficRow {
    source: String,
    destination: String,
    edge: Edge,
    counters: TrafficCounters,
    /// Requests that the workload itself sent.
    sent: f64,
}

pub(crate) fn run(args: &EdgesArgs) -> ExitCode {
    let heads: &[&str] = match args.wide {
        true => &[
            "FROM",
            "TO",
            "PROTOCOL",
            "REQ/S",
            "SUCCESS",
            "DENIED/S",
            "LIMITED/S",
            "P50 MS",
            "P99 MS",
            "IN B/S",
            "OUT B/S",
            "MTLS",
            "CALLER",
            "SERVER",
        ],
        false => &[
            "FROM", "TO", "PROTOCOL", "REQ/S", "SUCCESS", "DENIED/S", "P50 MS", "P99 MS", "MTLS",
        ],
    };
    let cells = |row: &TrafficRow, seconds: f64| {
        let figures = Figures::of(&row.counters, seconds);
        let edge = &row.edge;
        let list = |set: &BTreeSet<String>| match set.is_empty() {
            true => "-".to_owned(),
            false => set.iter().cloned().collect::<Vec<_>>().join(","),
        };
        let mut cells = vec![
            row.source.clone(),
            row.destination.clone(),
            list(&edge.protocols),
        ];
        cells.extend([figures.rate(), figures.success(), figures.denied()]);
        if args.wide {
            cells.push(figures.limited());
        }
        cells.extend([figures.p50(), figures.p99()]);
        if args.wide {
            let per_second = |bytes: f64| format!("{:.0}", bytes / seconds);
            cells.push(per_second(row.counters.bytes_to_server));
            cells.push(per_second(row.counters.bytes_to_client));
        }
        cells.push(figures.mutual_tls());
        if args.wide {
            cells.push(list(&edge.source_identities));
            cells.push(list(&edge.destination_identities));
        }
        cells
    };
    args.shown.show("edges", heads, &edge_rows, &cells)
}

pub(crate) fn run_top(args: &TopArgs) -> ExitCode {
    let heads = [
        "WORKLOAD",
        "REQ/S",
        "SUCCESS",
        "DENIED/S",
        "LIMITED/S",
        "P50 MS",
        "P99 MS",
        "MTLS",
        "OUT/S",
    ];
    let cells = |row: &TrafficRow, seconds: f64| {
        let figures = Figures::of(&row.counters, seconds);
        vec![
            row.destination.clone(),
            figures.rate(),
            figures.success(),
            figures.denied(),
            figures.limited(),
            figures.p50(),
            figures.p99(),
            figures.mutual_tls(),
            format!("{:.1}", row.sent / seconds),
        ]
    };
    args.shown.show("top", &heads, &by_workload, &cells)
}

/// One row for each workload that is called or calls.
fn by_workload(edges: &Edges) -> Vec<TrafficRow> {
    let each = edges.by_workload().into_iter();
    each.map(|(name, (counters, sent))| TrafficRow {
        source: String::new(),
        destination: name.to_owned(),
        edge: Edge::default(),
        counters,
        sent,
    })
    .collect()
}

impl ShownTraffic {
    /// Reads, and shows rows as a table or as JSON.
    fn show(
        &self,
        command: &str,
        heads: &[&str],
        rows: &dyn Fn(&Edges) -> Vec<TrafficRow>,
        cells: &dyn Fn(&TrafficRow, f64) -> Vec<String>,
    ) -> ExitCode {
        match self.read_and_print(command, heads, rows, cells) {
            Ok(code) => code,
            Err(reason) => {
                eprintln!("voile {command}: {reason}");
                ExitCode::from(2)
            }
        }
    }

    fn read_and_print(
        &self,
        command: &str,
        heads: &[&str],
        rows: &dyn Fn(&Edges) -> Vec<TrafficRow>,
        cells: &dyn Fn(&TrafficRow, f64) -> Vec<String>,
    ) -> Result<ExitCode, String> {
        let runtime = runtime()?;
        let (mut before, mut at, mut silent) = (Edges::default(), Instant::now(), 0);
        if !self.total {
            (before, silent) = read(command, &self.watched.proxies()?);
            at = Instant::now();
        }
        loop {
            if !self.total {
                runtime.block_on(async { tokio::time::sleep(self.interval).await });
            }
            let proxies = self.watched.proxies()?;
            if proxies.is_empty() {
                return Err("the mesh has no proxy that runs; cure: label a namespace istio-injection=enabled".to_owned());
            }
            let (now, missing) = read(command, &proxies);
            let seconds = match self.total {
                true => 1.0,
                false => at.elapsed().as_secs_f64(),
            };
            at = Instant::now();
            self.print(rows(&now.since(&before)), heads, cells, seconds);
            if !self.watch {
                return Ok(ExitCode::from(u8::from(missing + silent > 0)));
            }
            before = now;
        }
    }

    fn print(
        &self,
        mut rows: Vec<TrafficRow>,
        heads: &[&str],
        cells: &dyn Fn(&TrafficRow, f64) -> Vec<String>,
        seconds: f64,
    ) {
        rows.retain(|row| self.is_shown(row));
        let failures =
            |row: &TrafficRow| row.counters.errors + row.counters.denied + row.counters.limited;
        rows.sort_by(|one, other| {
            let by = |figure: &dyn Fn(&TrafficRow) -> f64| figure(other).total_cmp(&figure(one));
            match self.sort {
                SortedBy::Rate => by(&|row| row.counters.requests),
                SortedBy::Errors => by(&failures),
                SortedBy::P99 => by(&|row| row.counters.quantile(0.99).unwrap_or(-1.0)),
                SortedBy::Name => std::cmp::Ordering::Equal,
            }
        });
        if self.output == Output::Json {
            let list: Vec<Value> = rows.iter().map(json).collect();
            let page = json!({ "seconds": (!self.total).then_some(seconds), "rows": list });
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
        let heads: Vec<&str> = heads
            .iter()
            .map(|head| match self.total {
                true => head.strip_suffix("/S").map_or(*head, |head| match head {
                    "REQ" => "REQUESTS",
                    "IN B" => "IN BYTES",
                    "OUT B" => "OUT BYTES",
                    other => other,
                }),
                false => *head,
            })
            .collect();
        let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, seconds)).collect();
        print!("{}", table(&heads, &cells));
        if rows.is_empty() {
            eprintln!(
                "no traffic{}",
                if self.total { "" } else { " in this time" }
            );
        }
    }

    fn is_shown(&self, row: &TrafficRow) -> bool {
        let counters = &row.counters;
        let fails = counters.errors + counters.denied + counters.limited > 0.0;
        let within = |name: &str, namespace: &str| {
            let rest = name.strip_prefix(namespace);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let mut names = [&row.source, &row.destination].into_iter();
        let meant = self.namespace.as_deref();
        (fails || !self.failing)
            && meant.is_none_or(|namespace| names.any(|name| within(name, namespace)))
    }
}

/// The edges as objects, with counts.
pub(crate) fn edge_objects(edges: &Edges) -> Vec<Value> {
    edge_rows(edges).iter().map(json).collect()
}

/// One row for each pair.
fn edge_rows(edges: &Edges) -> Vec<TrafficRow> {
    let each = edges.0.iter();
    each.map(|(ends, edge)| TrafficRow {
        source: ends.source.clone(),
        destination: ends.destination.clone(),
        edge: edge.clone(),
        counters: edge.counters(),
        sent: 0.0,
    })
    .collect()
}

/// The edges that these proxies counted, and how many of them did not answer.
fn read(command: &str, proxies: &[PageServer]) -> (Edges, usize) {
    let (mut edges, mut missing) = (Edges::default(), 0);
    for page in texts(proxies, "/stats/prometheus") {
        match page {
            Ok(page) => edges.add(&page),
            Err(reason) => {
                missing += 1;
                eprintln!("voile {command}: {reason}");
            }
        }
    }
    (edges, missing)
}

/// The figures of a row, as cells.
struct Figures {
    rates: ScrapedRates,
    /// Share of requests that were answered well.
    success: Option<f64>,
}

impl Figures {
    fn of(counters: &TrafficCounters, seconds: f64) -> Self {
        let failed = counters.errors + counters.denied + counters.limited;
        let all = counters.requests;
        Self {
            rates: counters.over(Duration::from_secs_f64(seconds)),
            success: (all > 0.0).then(|| (1.0 - failed / all).max(0.0)),
        }
    }

    fn rate(&self) -> String {
        format!("{:.1}", self.rates.rate)
    }

    fn success(&self) -> String {
        share(self.success)
    }

    fn denied(&self) -> String {
        format!("{:.1}", self.rates.denied)
    }

    fn limited(&self) -> String {
        format!("{:.1}", self.rates.limited)
    }

    fn p50(&self) -> String {
        milliseconds(self.rates.p50)
    }

    fn p99(&self) -> String {
        milliseconds(self.rates.p99)
    }

    fn mutual_tls(&self) -> String {
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

fn milliseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn json(row: &TrafficRow) -> Value {
    let counters = &row.counters;
    let figures = Figures::of(counters, 1.0);
    let mut page = json!({
        "destination": row.destination,
        "requests": counters.requests,
        "errors": counters.errors,
        "denied": counters.denied,
        "limited": counters.limited,
        "success": figures.success,
        "p50_ms": figures.rates.p50,
        "p99_ms": figures.rates.p99,
        "bytes_to_server": counters.bytes_to_server,
        "bytes_to_client": counters.bytes_to_client,
        "mutual_tls": figures.rates.mutual_tls,
    });
    if row.source.is_empty() {
        page["sent"] = json!(row.sent);
    } else {
        page["source"] = json!(row.source);
        page["protocols"] = json!(row.edge.protocols);
        page["source_identities"] = json!(row.edge.source_identities);
        page["destination_identities"] = json!(row.edge.destination_identities);
    }
    page
}
