//! Readiness, metrics and status pages, on a thread of their own: a slow scraper shares nothing with pushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use voile_telemetry::admin::{PageRequest, PageResponse, serve_private};

use crate::error::ControlError;
use crate::status::Status;
use voile_xds::server::SubscriptionIndex;

const HELP: &str = "GET /ready         200 once the first configuration is in force\nGET /metrics       counters, for Prometheus\nGET /debug/status  connected proxies, with the resources they accepted and refused\nGET /debug/config?proxy=NAME  resources of a proxy, and the documents they come from (NAME: a stream number, an identity, NAMESPACE/POD, or a node id)\nGET /debug/workloads  every workload as proxies receive it, and whether it takes traffic\nGET /debug/events?after=NUMBER&wait=SECONDS  events since NUMBER, waiting for the next one; without `after`, the current number\n";

/// Longest wait for a stream's report of its proxy's resources: it answers at once unless the machine is overloaded.
const PATIENCE: Duration = Duration::from_secs(5);
/// Streams that are asked at once, when a name means several.
const MAX_ASKED: usize = 16;

/// State that the pages show.
#[derive(Debug, Clone)]
pub(super) struct MonitoringSources {
    pub(super) status: Arc<Status>,
    pub(super) interest: Arc<SubscriptionIndex>,
}

/// The running pages.
#[derive(Debug)]
pub(super) struct Monitoring {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Monitoring {
    /// Ends and waits.
    pub(super) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Dropping the sender is the signal.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Monitoring {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn start(
    listener: TcpListener,
    known: MonitoringSources,
) -> Result<Monitoring, ControlError> {
    let failed = |error: std::io::Error| ControlError::Setup(format!("monitoring: {error}"));
    let listener = listener.into_std().map_err(failed)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name("monitoring".to_owned())
        .spawn(move || {
            let pages = async move {
                match TcpListener::from_std(listener) {
                    Ok(listener) => {
                        let pages = move |question| answer(known.clone(), question);
                        serve_private(listener, pages, is_private).await;
                    }
                    Err(error) => tracing::error!(%error, "monitoring"),
                }
            };
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = pages => {}
                    _ = stopped => {}
                }
            });
        })
        .map_err(failed)?;
    Ok(Monitoring {
        stop: Some(stop),
        thread: Some(thread),
    })
}

/// Returns true if a page tells of the mesh: a browser that was led here by a name (DNS rebinding) must not read such a page.
/// Scrapers and probes of a cluster ask for the other pages by name.
fn is_private(path: &str) -> bool {
    !matches!(path, "/ready" | "/healthz/ready" | "/metrics")
}

async fn answer(known: MonitoringSources, question: PageRequest) -> PageResponse {
    let status = &known.status;
    if question.method != Method::GET {
        return PageResponse::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match question.path.as_str() {
        "/ready" | "/healthz/ready" => match status.ready.load(Ordering::Relaxed) {
            true => PageResponse::text(StatusCode::OK, "ready\n"),
            false => PageResponse::text(StatusCode::SERVICE_UNAVAILABLE, "no configuration yet\n"),
        },
        "/metrics" => PageResponse::metrics(status.metrics(), &question),
        "/debug/status" => PageResponse::json(status.json()),
        "/debug/workloads" => PageResponse::json(status.workloads()),
        "/debug/config" => config(&known, &question).await,
        "/debug/events" => events(status, &question).await,
        "/help" | "/" => PageResponse::text(StatusCode::OK, HELP),
        path => PageResponse::not_found(path),
    }
}

async fn config(known: &MonitoringSources, question: &PageRequest) -> PageResponse {
    let Some(word) = question.parameter("proxy").filter(|word| !word.is_empty()) else {
        return PageResponse::text(StatusCode::BAD_REQUEST, "a proxy is missing: ?proxy=NAME\n");
    };
    let mut held = Vec::new();
    for id in known.status.called(word).into_iter().take(MAX_ASKED) {
        let Some(answered) = known.interest.ask(id) else {
            continue;
        };
        // A stream that ends meanwhile holds nothing.
        if let Ok(Ok(all)) = tokio::time::timeout(PATIENCE, answered).await {
            held.push((id, all));
        }
    }
    match held.is_empty() {
        true => PageResponse::text(
            StatusCode::NOT_FOUND,
            "no connected proxy has this name; GET /debug/status lists them\n",
        ),
        false => PageResponse::json(known.status.explain(held)),
    }
}

async fn events(status: &Status, question: &PageRequest) -> PageResponse {
    let number = |name| match question.parameter(name) {
        Some(text) => text.parse::<u64>().map(Some),
        None => Ok(None),
    };
    match (number("after"), number("wait")) {
        (Ok(after), Ok(wait)) => {
            let wait = Duration::from_secs(wait.unwrap_or(0));
            PageResponse::json(status.journal.after(after, wait).await)
        }
        _ => PageResponse::text(
            StatusCode::BAD_REQUEST,
            "`after` and `wait` must be whole numbers\n",
        ),
    }
}
