//! `voile routes`: which routes the requests of a mesh take, and how each fares. Proxies count by workload and not by route, so the
//! figures are of their live records: they cost nothing while nobody looks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use voile_local::scrape::{DENIED, LIMITED, ScrapedRates};

use crate::commands::inspect::traffic::proxy_watch::{WatchNews, WatchedRecords};
use crate::commands::inspect::traffic::route_documents::{RouteDocument, RouteDocuments};
use crate::commands::inspect::traffic::shown::{Figures, ShownTraffic, TrafficRow};
use crate::commands::inspect::traffic::tap::{is_named, service};

/// Show which routes requests take: rates, success, refusals and latency of each route and destination, and where it is written.
///
/// A route is one of a VirtualService, HTTPRoute or GRPCRoute, by its name and place, or `default` where none holds. Proxies of callers,
/// gateways and waypoints choose routes. Their requests are recorded for `--interval`, as `voile tap` does, and not otherwise; of more
/// than 1,024 a second at one proxy these are a sample, and the rates are scaled. DENIED/S counts what policies refused, at the caller's
/// proxy or the server's if that is watched, too. Percentiles of what was recorded are exact to 0.1 %. TCP connections take no route; `voile edges` has them.
///
/// The mesh is that of `voile up` on this machine, or with `--kubernetes` that of a cluster. At most 64 proxies are watched at a time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  voile routes --sort p99\n  voile routes shop/web --watch\n  voile routes --kubernetes shop -o json\n\n\
                  Exit code: 0; 1 if a proxy did not answer; 2 if no proxy can be watched."
)]
pub(crate) struct RoutesArgs {
    /// NAMESPACE, or NAMESPACE/NAME of a pod or workload whose proxy chooses the routes. Without it all proxies of the mesh.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    shown: ShownTraffic,
}

const HEADS: [&str; 9] = [
    "CALLED",
    "ROUTE",
    "TO",
    "REQ/S",
    "SUCCESS",
    "DENIED/S",
    "P50 MS",
    "P99 MS",
    "WRITTEN IN",
];

pub(crate) fn run(args: &RoutesArgs) -> ExitCode {
    match watch(args) {
        Ok(code) => code,
        Err(reason) => {
            eprintln!("voile routes: {reason}");
            ExitCode::from(2)
        }
    }
}

fn watch(args: &RoutesArgs) -> Result<ExitCode, String> {
    let targets = args.targets.clone();
    let mesh = &args.shown.watched;
    let mut documents = RouteDocuments::new(mesh.mesh());
    let watched = WatchedRecords {
        mesh: mesh.clone(),
        filter: Box::new(move |proxy| is_named(&targets, &proxy.to_string()).then(String::new)),
    };
    let told = watched.watch();
    let mut proxies: Option<BTreeSet<String>> = None;
    let (mut answered, mut silent) = (BTreeSet::new(), BTreeSet::new());
    let (mut traffic, mut begin) = (RouteTraffic::default(), None::<Instant>);
    loop {
        let end = begin.map(|begin| begin + args.shown.interval);
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match told.recv_timeout(left.unwrap_or(Duration::MAX)) {
            Ok(WatchNews::Listed(Ok(listed))) if listed.is_empty() && proxies.is_none() => {
                return Err(
                    "no proxy that runs is meant; `voile status` lists the proxies".to_owned(),
                );
            }
            Ok(WatchNews::Listed(Ok(listed))) => proxies = Some(listed),
            Ok(WatchNews::Listed(Err(reason))) if proxies.is_none() || answered.is_empty() => {
                return Err(reason);
            }
            Ok(WatchNews::Listed(Err(_))) => {}
            Ok(WatchNews::Answered(proxy, Ok(page))) => {
                if begin.is_some() {
                    traffic.add(&proxy, &page, &mut documents);
                }
                answered.insert(proxy);
            }
            Ok(WatchNews::Answered(proxy, Err(reason))) => {
                if !silent.contains(&proxy) && !answered.contains(&proxy) {
                    eprintln!("voile routes: {proxy} cannot be watched: {reason}");
                    silent.insert(proxy);
                }
            }
            Err(_) => {
                let seconds = begin.map_or(1.0, |begin| begin.elapsed().as_secs_f64());
                let rows = std::mem::take(&mut traffic).rows();
                args.shown.print(rows, &HEADS, &cells, Some(seconds));
                if !args.shown.watch {
                    return Ok(ExitCode::from(u8::from(!silent.is_empty())));
                }
                begin = Some(Instant::now());
            }
        }
        let is_known = |proxy: &String| answered.contains(proxy) || silent.contains(proxy);
        // The time begins when all proxies record.
        if begin.is_none() && proxies.iter().flatten().all(is_known) && proxies.is_some() {
            if answered.is_empty() {
                return Err(format!("none of {} proxies can be watched", silent.len()));
            }
            begin = Some(Instant::now());
        }
    }
}

fn cells(row: &RouteRow, seconds: f64) -> Vec<String> {
    let figures = row.figures(seconds);
    let written = row.route.document.as_ref();
    vec![
        row.route.called.clone(),
        row.route.name.clone(),
        row.route.destination.clone(),
        figures.rate(),
        figures.success(),
        figures.denied(),
        figures.p50(),
        figures.p99(),
        written.map_or_else(|| "-".to_owned(), ToString::to_string),
    ]
}

/// A route to a destination.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RouteKey {
    called: String,
    /// `default` where none holds, `-` where it has no name.
    name: String,
    destination: String,
    document: Option<RouteDocument>,
}

/// Significant digits of a duration.
const DIGITS: u8 = 3;

/// Requests, weighted for those that were not recorded.
#[derive(Debug)]
struct RouteCounts {
    requests: f64,
    errors: f64,
    denied: f64,
    limited: f64,
    microseconds: Histogram<u64>,
}

impl RouteCounts {
    fn none() -> Self {
        Self {
            requests: 0.0,
            errors: 0.0,
            denied: 0.0,
            limited: 0.0,
            microseconds: Histogram::new(DIGITS).expect("invariant: up to five digits"),
        }
    }
}

#[derive(Debug)]
struct RouteRow {
    route: RouteKey,
    counts: RouteCounts,
}

/// A request as both of its proxies see it: endpoint, method, path.
type SeenRequest = (String, String, String);

/// What was recorded in a time.
#[derive(Debug, Default)]
struct RouteTraffic {
    routes: BTreeMap<RouteKey, RouteCounts>,
    /// What the proxies of servers refused.
    refused: HashMap<SeenRequest, u32>,
    /// Requests that were answered as a refusal is, which the caller's proxy cannot tell apart.
    suspected: Vec<(SeenRequest, RouteKey, f64)>,
}

impl RouteTraffic {
    /// Adds the records of a proxy.
    fn add(&mut self, proxy: &str, page: &Value, documents: &mut RouteDocuments) {
        let records = page["records"].as_array().map_or(&[][..], Vec::as_slice);
        let (kept, missed) = (records.len() as f64, page["missed"].as_f64().unwrap_or(0.0));
        let weight = (kept + missed) / kept.max(1.0);
        for record in records.iter().filter(|one| one["method"].is_string()) {
            self.add_one(proxy, record, weight, documents);
        }
    }

    fn add_one(
        &mut self,
        proxy: &str,
        record: &Value,
        weight: f64,
        documents: &mut RouteDocuments,
    ) {
        let text = |field: &str| record[field].as_str().unwrap_or_default();
        let seen = |address: &str| {
            (
                text(address).to_owned(),
                text("method").to_owned(),
                text("path").to_owned(),
            )
        };
        let flagged = |flag: &str| text("flags").split(',').any(|one| one == flag);
        // A waypoint chooses routes for what it receives.
        let routes = text("side") == "outbound" || text("cluster").starts_with("outbound|");
        if !routes {
            if flagged(DENIED) {
                *self.refused.entry(seen("destination")).or_default() += 1;
            }
            return;
        }
        let status = record["status"].as_u64().unwrap_or(0);
        let key = key(proxy, record, documents);
        let counts = self
            .routes
            .entry(key.clone())
            .or_insert_with(RouteCounts::none);
        counts.requests += weight;
        if let Some(duration) = record["duration_ms"].as_f64() {
            // It grows to any duration.
            let _ = counts.microseconds.record((duration * 1e3).round() as u64);
        }
        if status >= 500 || status == 0 {
            counts.errors += weight;
        }
        if flagged(LIMITED) {
            counts.limited += weight;
        }
        if flagged(DENIED) {
            counts.denied += weight;
        } else if matches!(status, 401 | 403) {
            self.suspected.push((seen("endpoint"), key, weight));
        }
    }

    /// The routes in the order of their names.
    fn rows(mut self) -> Vec<RouteRow> {
        for (seen, key, weight) in self.suspected {
            let refused = self.refused.get_mut(&seen).filter(|count| **count > 0);
            if let (Some(refused), Some(counts)) = (refused, self.routes.get_mut(&key)) {
                *refused -= 1;
                counts.denied += weight;
            }
        }
        let rows = self.routes.into_iter();
        rows.map(|(route, counts)| RouteRow { route, counts })
            .collect()
    }
}

fn key(proxy: &str, record: &Value, documents: &mut RouteDocuments) -> RouteKey {
    let text = |field: &str| record[field].as_str().unwrap_or_default();
    let name = text("route");
    let found = documents.find(proxy, text("authority"), name, text("cluster"));
    let destination = match text("cluster") {
        "" => "-".to_owned(),
        cluster => service(cluster),
    };
    // An unnamed route of a document is none of the defaults.
    let name = match (name, &found.document) {
        ("" | "default", Some(_)) => "-",
        ("", None) => "default",
        (name, _) => name,
    };
    RouteKey {
        called: found.called,
        name: name.to_owned(),
        destination,
        document: found.document,
    }
}

impl RouteRow {
    fn quantile(&self, quantile: f64) -> Option<f64> {
        let all = &self.counts.microseconds;
        (!all.is_empty())
            .then(|| all.lowest_equivalent(all.value_at_quantile(quantile)) as f64 / 1e3)
    }
}

impl TrafficRow for RouteRow {
    fn names(&self) -> [&str; 2] {
        let document = self.route.document.as_ref();
        [&self.route.called, document.map_or("", |one| &one.name)]
    }

    fn figures(&self, seconds: f64) -> Figures {
        let counts = &self.counts;
        Figures::of(ScrapedRates {
            rate: counts.requests / seconds,
            errors: counts.errors / seconds,
            denied: counts.denied / seconds,
            limited: counts.limited / seconds,
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            mutual_tls: None,
        })
    }

    fn json(&self) -> Value {
        let (route, counts, figures) = (&self.route, &self.counts, self.figures(1.0));
        let document = route.document.as_ref();
        let document =
            document.map(|one| json!({ "kind": one.kind, "name": one.name, "place": one.place }));
        json!({
            "called": route.called,
            "route": route.name,
            "document": document,
            "destination": route.destination,
            "requests": counts.requests,
            "errors": counts.errors,
            "denied": counts.denied,
            "limited": counts.limited,
            "success": figures.success,
            "p50_ms": figures.rates.p50,
            "p99_ms": figures.rates.p99,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_server_s_proxy_is_counted_on_the_route_that_led_there() {
        let mut traffic = RouteTraffic::default();
        let mut documents = RouteDocuments::new(Err("no mesh".to_owned()));
        let request = |path: &str, status: u16, ms: f64| {
            json!({
                "side": "outbound", "method": "GET", "authority": "web:80", "path": path, "status": status, "duration_ms": ms,
                "cluster": "outbound|80|v2|web.shop.svc.cluster.local", "endpoint": "10.0.0.2:80", "route": "canary",
            })
        };
        let caller = json!({ "missed": 5, "records": [
            request("/", 200, 1.0), request("/", 200, 3.0), request("/", 503, 2.0), request("/admin", 403, 4.0),
            request("/own", 403, 9.0),
        ]});
        let refusal = json!({
            "side": "inbound", "method": "GET", "authority": "web:80", "path": "/admin", "status": 403, "flags": "UAEX",
            "destination": "10.0.0.2:80", "cluster": "inbound|80||",
        });
        traffic.add("shop/client-1", &caller, &mut documents);
        traffic.add(
            "shop/web-1",
            &json!({ "missed": 0, "records": [refusal] }),
            &mut documents,
        );
        let rows = traffic.rows();
        let row = rows[0].json();
        assert_eq!((rows.len(), &row["route"]), (1, &"canary".into()));
        assert_eq!(row["destination"], "web.shop:80 subset=v2");
        // Half of the requests were recorded.
        for (field, expected) in [
            ("requests", 10.0),
            ("errors", 2.0),
            ("denied", 2.0),
            ("success", 0.6),
            ("p50_ms", 3.0),
            ("p99_ms", 9.0),
        ] {
            assert_eq!(row[field].as_f64(), Some(expected), "{field}");
        }
    }
}
