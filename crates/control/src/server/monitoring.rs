//! Readiness, metrics and status pages, on a thread of their own: a slow scraper shares nothing with pushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use voile_telemetry::admin::{Answer, Question, serve};

use crate::error::ControlError;
use crate::status::Status;

const HELP: &str = "GET /ready         200 once the first configuration is in force\nGET /metrics       counters, for Prometheus\nGET /debug/status  connected proxies, what they took and refused\n";

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
    status: Arc<Status>,
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
                        serve(listener, move |question| answer(status.clone(), question)).await;
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

async fn answer(status: Arc<Status>, question: Question) -> Answer {
    if question.method != Method::GET {
        return Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match question.path.as_str() {
        "/ready" | "/healthz/ready" => match status.ready.load(Ordering::Relaxed) {
            true => Answer::text(StatusCode::OK, "ready\n"),
            false => Answer::text(StatusCode::SERVICE_UNAVAILABLE, "no configuration yet\n"),
        },
        "/metrics" => Answer::metrics(status.metrics(), &question),
        "/debug/status" => Answer::json(status.json()),
        "/help" | "/" => Answer::text(StatusCode::OK, HELP),
        path => Answer::not_found(path),
    }
}
