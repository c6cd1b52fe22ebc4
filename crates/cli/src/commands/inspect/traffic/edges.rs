//! `voile edges` and `voile top`: who calls whom, and which workloads serve how much, from the metrics of all proxies.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::{Value, json};
use voile_local::edges::{Edge, Edges};
use voile_local::scrape::TrafficCounters;

use crate::commands::inspect::monitoring::{PageServer, runtime, texts};
use crate::commands::inspect::traffic::shown::{Figures, ShownTraffic, TrafficRow};

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
    counted: CountedTraffic,
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
    counted: CountedTraffic,
}

/// Which traffic is shown, and since when.
#[derive(Debug, clap::Args)]
struct CountedTraffic {
    #[command(flatten)]
    shown: ShownTraffic,
    /// Show all traffic since the proxies' start, as counts.
    #[arg(long, conflicts_with = "watch")]
    total: bool,
}

/// Traffic of a pair or of a workload, over a time.
#[derive(Debug)]
struct EdgeRow {
    source: String,
    destination: String,
    edge: Edge,
    counters: TrafficCounters,
    /// Requests that the workload itself sent.
    sent: f64,
}

pub(crate) fn run(args: &EdgesArgs) -> ExitCode {
    let heads: &[&'static str] = match args.wide {
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
    let cells = |row: &EdgeRow, seconds: f64| {
        let figures = row.figures(seconds);
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
    args.counted.show("edges", heads, &edge_rows, &cells)
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
    let cells = |row: &EdgeRow, seconds: f64| {
        let figures = row.figures(seconds);
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
    args.counted.show("top", &heads, &by_workload, &cells)
}

/// One row for each workload that is called or calls.
fn by_workload(edges: &Edges) -> Vec<EdgeRow> {
    let each = edges.by_workload().into_iter();
    each.map(|(name, (counters, sent))| EdgeRow {
        source: String::new(),
        destination: name.to_owned(),
        edge: Edge::default(),
        counters,
        sent,
    })
    .collect()
}

impl CountedTraffic {
    /// Reads, and shows rows as a table or as JSON.
    fn show(
        &self,
        command: &str,
        heads: &[&'static str],
        rows: &dyn Fn(&Edges) -> Vec<EdgeRow>,
        cells: &dyn Fn(&EdgeRow, f64) -> Vec<String>,
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
        heads: &[&'static str],
        rows: &dyn Fn(&Edges) -> Vec<EdgeRow>,
        cells: &dyn Fn(&EdgeRow, f64) -> Vec<String>,
    ) -> Result<ExitCode, String> {
        let runtime = runtime()?;
        let (mut before, mut at, mut silent) = (Edges::default(), Instant::now(), 0);
        if !self.total {
            (before, silent) = read(command, &self.shown.watched.proxies()?);
            at = Instant::now();
        }
        loop {
            if !self.total {
                runtime.block_on(async { tokio::time::sleep(self.shown.interval).await });
            }
            let proxies = self.shown.watched.proxies()?;
            if proxies.is_empty() {
                return Err("the mesh has no proxy that runs; cure: label a namespace istio-injection=enabled".to_owned());
            }
            let (now, missing) = read(command, &proxies);
            let seconds = (!self.total).then(|| at.elapsed().as_secs_f64());
            at = Instant::now();
            let rows = rows(&now.since(&before));
            self.shown.print(rows, heads, cells, seconds);
            if !self.shown.watch {
                return Ok(ExitCode::from(u8::from(missing + silent > 0)));
            }
            before = now;
        }
    }
}

/// The edges as objects, with counts.
pub(crate) fn edge_objects(edges: &Edges) -> Vec<Value> {
    edge_rows(edges).iter().map(EdgeRow::json).collect()
}

/// One row for each pair.
fn edge_rows(edges: &Edges) -> Vec<EdgeRow> {
    let each = edges.0.iter();
    each.map(|(ends, edge)| EdgeRow {
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

impl TrafficRow for EdgeRow {
    fn names(&self) -> [&str; 2] {
        [&self.source, &self.destination]
    }

    fn figures(&self, seconds: f64) -> Figures {
        Figures::of_counters(&self.counters, seconds)
    }

    fn json(&self) -> Value {
        let counters = &self.counters;
        let figures = self.figures(1.0);
        let mut page = json!({
            "destination": self.destination,
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
        if self.source.is_empty() {
            page["sent"] = json!(self.sent);
        } else {
            page["source"] = json!(self.source);
            page["protocols"] = json!(self.edge.protocols);
            page["source_identities"] = json!(self.edge.source_identities);
            page["destination_identities"] = json!(self.edge.destination_identities);
        }
        page
    }
}
