//! The pages for people and scrapers: admin (15000), metrics (15020), readiness (15021).

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use http::{Method, StatusCode};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use voile_telemetry::admin::{PageRequest, PageResponse, serve as serve_pages, serve_local};
use voile_telemetry::logging::LogLevelHandle;
use voile_telemetry::tap::{Tap, TapQuestion};

use crate::control::admin_pages::{dump, metrics};
use crate::control::discovery::state::Control;
use crate::control::network::sockets;
use crate::control::own_sockets::Pages;
use crate::control::shutdown::ShutdownRequest;

const HELP: &str = "\
GET  /config_dump        configuration from the control plane, with versions, and the state of listeners
GET  /certs              the proxy's certificate, its identity and expiry (never the key)
POST /certs/renew        request a new certificate now; open connections continue
GET  /logging            the log level; PUT or POST /logging?level=LEVEL changes it
GET  /ready              200 when ready, 503 with the reasons when not
GET  /stats/prometheus   metrics
POST /tap                requests and connections as they end, while somebody asks: voile tap
POST /quitquitquit       shut down gracefully, as on SIGTERM
GET  /help               this
";

/// Starts the three servers.
pub(in crate::control) fn serve(
    control: &Rc<RefCell<Control>>,
    ending: &Rc<ShutdownRequest>,
    pages: Pages,
) -> io::Result<Vec<AbortHandle>> {
    let log = control.borrow().log.clone();
    let admin = TcpListener::from_std(pages.admin)?;
    let (shared, ending) = (Rc::clone(control), Rc::clone(ending));
    let admin = tokio::task::spawn_local(serve_local(admin, move |question| {
        admin_page(
            Rc::clone(&shared),
            Rc::clone(&ending),
            log.clone(),
            question,
        )
    }));
    let metrics = TcpListener::from_std(pages.metrics)?;
    let shared = Rc::clone(control);
    let metrics = tokio::task::spawn_local(serve_pages(metrics, move |question| {
        metrics_page(Rc::clone(&shared), question)
    }));
    let readiness = TcpListener::from_std(pages.readiness)?;
    let shared = Rc::clone(control);
    let readiness = tokio::task::spawn_local(serve_pages(readiness, move |question| {
        std::future::ready(match question.path.as_str() {
            "/healthz/ready" => ready(&shared),
            path => PageResponse::not_found(path),
        })
    }));
    Ok([admin, metrics, readiness]
        .iter()
        .map(tokio::task::JoinHandle::abort_handle)
        .collect())
}

async fn admin_page(
    control: Rc<RefCell<Control>>,
    ending: Rc<ShutdownRequest>,
    log: Option<LogLevelHandle>,
    question: PageRequest,
) -> PageResponse {
    match (&question.method, question.path.as_str()) {
        (&Method::GET, "/config_dump") => {
            PageResponse::json(dump::configuration(&control.borrow()))
        }
        (&Method::GET, "/certs") => PageResponse::json(dump::certificates(&control.borrow())),
        (&Method::POST, "/certs/renew") => {
            control.borrow().store.ask_to_renew();
            PageResponse::text(
                StatusCode::ACCEPTED,
                "renewal requested; GET /certs will show the new serial number\n",
            )
        }
        (&Method::GET, "/ready") => ready(&control),
        (&Method::GET, "/stats/prometheus" | "/metrics") => {
            PageResponse::metrics(metrics::page(&control).await, &question)
        }
        (&Method::GET | &Method::PUT | &Method::POST, "/logging") => {
            PageResponse::log_level(log.as_ref(), &question)
        }
        (&Method::POST, "/tap") => tap(control, &question).await,
        (&Method::POST, "/quitquitquit") => {
            ending.ask();
            PageResponse::text(StatusCode::OK, "draining\n")
        }
        (&Method::GET, "/" | "/help") => PageResponse::text(StatusCode::OK, HELP),
        (
            _,
            "/quitquitquit" | "/config_dump" | "/certs" | "/certs/renew" | "/ready"
            | "/stats/prometheus" | "/metrics" | "/logging" | "/tap",
        ) => PageResponse::wrong_method(),
        (_, path) => PageResponse::not_found(path),
    }
}

/// Requests and connections as they end. The workers record them only while somebody asks.
async fn tap(control: Rc<RefCell<Control>>, question: &PageRequest) -> PageResponse {
    let question = match TapQuestion::parse(question) {
        Ok(question) => question,
        Err(reason) => return PageResponse::text(StatusCode::BAD_REQUEST, reason + "\n"),
    };
    let known = control.borrow().recorders.tap.clone();
    let tap = known.clone().unwrap_or_default();
    if let Err(reason) = tap.begin(&question) {
        return PageResponse::text(StatusCode::TOO_MANY_REQUESTS, reason + "\n");
    }
    if known.is_none() {
        control.borrow_mut().set_tap(Some(Arc::clone(&tap)));
        tokio::task::spawn_local(end_tap(control, Arc::clone(&tap)));
    }
    PageResponse::json(tap.answer(&question).await)
}

/// Stops the records when the last session has ended.
async fn end_tap(control: Rc<RefCell<Control>>, tap: Arc<Tap>) {
    while let Some(end) = tap.next_end() {
        sockets::until(Some(end)).await;
    }
    control.borrow_mut().set_tap(None);
}

async fn metrics_page(control: Rc<RefCell<Control>>, question: PageRequest) -> PageResponse {
    match question.path.as_str() {
        "/metrics" | "/stats/prometheus" => {
            let own = metrics::page(&control).await;
            let application = control.borrow().application_metrics.clone();
            let Some(application) = application else {
                return PageResponse::metrics(own, &question);
            };
            // An application's text is not read, so the whole is in the format that was asked of it.
            let question = PageRequest {
                open_metrics: false,
                ..question
            };
            let page = application.merge(own, question.local).await;
            PageResponse::metrics(page, &question)
        }
        path if path.starts_with("/app-health/") || path.starts_with("/app-lifecycle/") => {
            let probers = control.borrow().probers.clone();
            probers.answer(&question).await
        }
        path => PageResponse::not_found(path),
    }
}

fn ready(control: &RefCell<Control>) -> PageResponse {
    PageResponse::readiness(&control.borrow().unready())
}
