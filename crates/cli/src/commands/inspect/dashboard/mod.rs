//! `voile dashboard`: a page that shows the mesh while somebody looks at it.
//!
//! ```text
//! browser ─ data.json, every two seconds ─▶ the latest reading ◀─ a thread that reads while it is asked for
//!                                                                  ├─ metrics of every proxy
//!                                                                  └─ status of every control plane
//!         ─ requests.json, every second ─────▶ the latest records ◀─ a thread that watches every proxy
//! Prometheus ─ targets.json, metrics/… ─▶ metrics of a proxy or control plane
//!         ─ workload.json, when a part is opened ─▶ an answer about one workload
//! ```

mod records;
mod requests;
mod scrape;
mod workload;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use serde_json::{Value, json};
use voile_local::edges::Edges;
use voile_telemetry::admin::{PageResponse, serve_local};

use crate::commands::inspect::monitoring::{WatchedMesh, texts, word};
use crate::commands::inspect::traffic::edges::edge_objects;
use records::LabRecords;
use requests::LatestRequests;
use workload::WorkloadAnswers;

/// Show the mesh in a browser: who calls whom, with rates, errors, refusals, latencies and mutual TLS; proxies; problems; requests as
/// they end; of a workload who can call it, its configuration and its logs.
///
/// Serves a page on this machine until Ctrl-C, and prints its address. The mesh is that of `voile up` on this machine, or with
/// `--kubernetes` that of a cluster. The figures are those of `voile edges`. Proxies and control planes are asked only while the page is
/// open and visible; proxies record requests, as `voile tap` does, only while it shows them.
///
/// A Prometheus on this machine finds the proxies and control planes of `voile up` at /targets.json (http_sd_configs) and reads their
/// metrics here.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 after Ctrl-C, 2 if no mesh can be reached or the address is not free."
)]
pub(crate) struct DashboardArgs {
    #[command(flatten)]
    watched: WatchedMesh,
    /// Address of the page: a loopback address, because everybody who reaches it may look. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    listen: SocketAddr,
    /// Folder with records of `voile bench`, for the page's list of them; repeat the option for several. Without it `voile-results`.
    /// With it a mesh need not run.
    #[arg(long, value_name = "DIR")]
    records: Vec<PathBuf>,
}

/// Address of the page if none is given.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:15040";
const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
/// Answer to who does not know the key.
const WITHOUT_KEY: &str =
    "open the address that voile printed: the path begins with the key of this page\n";
/// Shortest time between two readings.
const PAUSE: Duration = Duration::from_secs(2);
/// A page that has not asked for so long is closed.
const LOOKING: Duration = Duration::from_secs(6);

pub(crate) fn run(args: DashboardArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile dashboard: {reason}");
            ExitCode::from(2)
        }
    }
}

fn serve(args: DashboardArgs) -> Result<(), String> {
    let listener = bind(args.listen)?;
    // An error now is one that the user sees.
    if args.records.is_empty() {
        args.watched.control_planes()?;
    }
    println!("{}", listener.url()?);
    serve_pages(
        listener,
        args.watched,
        args.records,
        tokio::signal::ctrl_c(),
    )
}

/// The page's socket, and the key that begins the path of everything it shows. Other users of the machine reach the socket, and do not
/// know the key.
#[derive(Debug)]
pub(crate) struct DashboardListener {
    listener: TcpListener,
    key: String,
}

/// Takes the address of the page.
pub(crate) fn bind(listen: SocketAddr) -> Result<DashboardListener, String> {
    if !listen.ip().is_loopback() {
        return Err(format!(
            "{listen} is not a loopback address: everybody who reaches the page may look; cure: 127.0.0.1, and a tunnel"
        ));
    }
    let failed = |error: std::io::Error| format!("{listen}: {error}");
    let listener = TcpListener::bind(listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let mut random = [0; 16];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| "the system gives no random bytes")?;
    let key = format!("{:032x}", u128::from_ne_bytes(random));
    Ok(DashboardListener { listener, key })
}

impl DashboardListener {
    /// The page's address, for a browser.
    pub(crate) fn url(&self) -> Result<String, String> {
        let address = self.listener.local_addr();
        let address = address.map_err(|error| error.to_string())?;
        Ok(format!("http://{address}/{}/", self.key))
    }

    /// The path of a question behind the key; none without it.
    fn path<'a>(key: &str, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix('/')?.strip_prefix(key)?;
        rest.starts_with('/').then_some(rest)
    }
}

/// Serves the page until it is to stop.
pub(crate) fn serve_pages(
    listener: DashboardListener,
    watched: WatchedMesh,
    records: Vec<PathBuf>,
    stop: impl Future<Output = std::io::Result<()>>,
) -> Result<(), String> {
    let latest = Arc::new(Latest::default());
    let readings = Arc::clone(&latest);
    let requests = LatestRequests::new(watched.clone());
    let scraped = watched.clone();
    let workloads = Arc::new(WorkloadAnswers::new(watched.clone()));
    let records = Arc::new(LabRecords::new(records));
    // It ends with the process.
    std::thread::spawn(move || read_while_asked(&watched, &readings));
    let failed = |error: std::io::Error| error.to_string();
    let DashboardListener { listener, key } = listener;
    let address = listener.local_addr().map_err(failed)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().map_err(failed)?;
    let pages = tokio::task::LocalSet::new();
    runtime.block_on(pages.run_until(async {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        let server = serve_local(listener, move |mut question| {
            let known = DashboardListener::path(&key, &question.path).map(str::to_owned);
            let is_known = known.is_some();
            question.path = known.unwrap_or(question.path);
            let (latest, requests) = (Arc::clone(&latest), Arc::clone(&requests));
            let (workloads, records) = (Arc::clone(&workloads), Arc::clone(&records));
            let watched = scraped.clone();
            async move {
                match &*question.path {
                    path if !is_known && !scrape::is_asked(path) => {
                        PageResponse::text(StatusCode::NOT_FOUND, WITHOUT_KEY)
                    }
                    "/requests.json" => requests.page(&question),
                    "/workload.json" => without_haste(move || workloads.page(&question)).await,
                    "/records.json" | "/report.html" | "/comparison.html" => {
                        without_haste(move || records.page(&question)).await
                    }
                    path if scrape::is_asked(path) => {
                        scrape::page(question, watched, address).await
                    }
                    path => page(path, &latest),
                }
            }
        });
        tokio::select! {
            () = server => Ok(()),
            stopped = stop => stopped.map_err(failed),
        }
    }))
}

/// An answer that waits for others, on a thread of its own.
async fn without_haste(answer: impl FnOnce() -> PageResponse + Send + 'static) -> PageResponse {
    let answered = tokio::task::spawn_blocking(answer).await;
    answered.unwrap_or_else(|error| {
        PageResponse::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    })
}

fn page(path: &str, latest: &Latest) -> PageResponse {
    match path {
        "/" => html(PAGE),
        "/page.js" => PageResponse {
            content_type: "text/javascript; charset=utf-8",
            ..html(SCRIPT)
        },
        "/data.json" => PageResponse::json(latest.ask()),
        path => PageResponse::not_found(path),
    }
}

fn html(body: &str) -> PageResponse {
    PageResponse {
        content_type: "text/html; charset=utf-8",
        ..PageResponse::json(body.to_owned())
    }
}

/// The latest reading, and when somebody asked for it last.
#[derive(Debug, Default)]
struct Latest {
    state: Mutex<LatestState>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct LatestState {
    page: Option<String>,
    asked: Option<Instant>,
}

impl Latest {
    fn lock(&self) -> MutexGuard<'_, LatestState> {
        // Every change is a single assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> String {
        let mut state = self.lock();
        state.asked = Some(Instant::now());
        self.asked.notify_one();
        let waiting = || json!({ "ready": false }).to_string();
        state.page.clone().unwrap_or_else(waiting)
    }

    /// Waits until somebody looks. Returns true if nobody looked before.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        let mut anew = false;
        while state.asked.is_none_or(|at| at.elapsed() > LOOKING) {
            // What was read before the pause is no answer to who comes back.
            state.page = None;
            anew = true;
            state = self
                .asked
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        anew
    }
}

fn read_while_asked(watched: &WatchedMesh, latest: &Latest) {
    let mut before: Option<(Instant, Edges)> = None;
    loop {
        if latest.wait() {
            before = None;
        }
        let read = read(watched, &mut before);
        let page = read.unwrap_or_else(|reason| {
            Some(json!({
                "ready": true, "title": "Voile", "seconds": 1, "edges": [], "workloads": [], "proxies": [],
                "problems": [reason],
            }))
        });
        if let Some(page) = page {
            latest.lock().page = Some(page.to_string());
        }
        // The second reading comes soon: there are no figures before it.
        let pause = if latest.lock().page.is_some() {
            PAUSE
        } else {
            PAUSE / 4
        };
        std::thread::park_timeout(pause);
    }
}

/// One reading; none while there is none before it to compare with.
fn read(
    watched: &WatchedMesh,
    before: &mut Option<(Instant, Edges)>,
) -> Result<Option<Value>, String> {
    let mut problems = BTreeSet::new();
    let mut edges = Edges::default();
    for page in texts(&watched.proxies()?, "/stats/prometheus") {
        match page {
            Ok(page) => edges.add(&page),
            Err(reason) => drop(problems.insert(reason)),
        }
    }
    let now = Instant::now();
    let Some((then, earlier)) = before.replace((now, edges.clone())) else {
        return Ok(None);
    };
    // A pair without a call in this time keeps its place.
    let news = edges.all_since(&earlier);
    let (control_planes, state) = watched.control_planes()?;
    let mut proxies = Vec::new();
    for server in control_planes {
        match server.page("/debug/status", Duration::ZERO) {
            Ok(page) => {
                proxies.extend(list(&page["proxies"]).iter().map(proxy));
                problems.extend(list(&page["in_force"]["refused"]).iter().map(refusal));
                problems.extend(page["state_lost"].as_str().map(str::to_owned));
            }
            Err(reason) => drop(problems.insert(reason)),
        }
    }
    let state = state.unwrap_or_default();
    let told = list(&state["problems"]);
    problems.extend(
        told.iter()
            .filter_map(|one| one.as_str().map(str::to_owned)),
    );
    let title = match state["folder"].as_str() {
        Some(folder) => format!("voile up {folder}"),
        None => "Kubernetes".to_owned(),
    };
    Ok(Some(json!({
        "ready": true,
        "title": title,
        "seconds": now.duration_since(then).as_secs_f64(),
        "edges": edge_objects(&news),
        "workloads": workloads(&state),
        "proxies": proxies,
        "problems": problems,
    })))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The workloads of a mesh on this machine, each with its pods.
fn workloads(state: &Value) -> Vec<Value> {
    let pods = list(&state["pods"]);
    let with_pods = |workload: &Value| {
        let name = word(workload, "name");
        let own =
            |pod: &&Value| format!("{}/{}", word(pod, "namespace"), word(pod, "workload")) == name;
        let own = pods.iter().filter(own);
        let own: Vec<_> = own
            .map(|pod| format!("{}/{}", word(pod, "namespace"), word(pod, "name")))
            .collect();
        let mut workload = workload.clone();
        workload["pods"] = json!(own);
        workload
    };
    list(&state["workloads"]).iter().map(with_pods).collect()
}

/// A connected proxy, as the page shows it.
fn proxy(proxy: &Value) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    let types = proxy["types"].as_object();
    let refuses = types.into_iter().flatten();
    let refuses = refuses.filter(|(_, of)| of["refuses"] == true);
    let refuses: Vec<&str> = refuses.map(|(_, of)| word(of, "last_nack")).collect();
    let until = proxy["certificate_until"].as_u64();
    json!({
        "name": super::status::name(proxy),
        "identity": word(proxy, "identity"),
        "synced": proxy["synced"],
        "refuses": refuses.join("; "),
        "certificate_seconds": until.map(|until| i128::from(until) - i128::from(now)),
    })
}

fn refusal(one: &Value) -> String {
    let (proxy, resource) = (word(one, "proxy"), word(one, "resource"));
    format!("{proxy} refuses {resource}: {}", word(one, "reason"))
}
