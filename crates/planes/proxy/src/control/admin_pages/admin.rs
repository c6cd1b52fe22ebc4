//! What the pages of a sidecar, gateway or waypoint show, and what people may ask of it there.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use voile_process::PageSource;
use voile_telemetry::admin::{PageRequest, PageResponse};
use voile_telemetry::logging::LogLevelHandle;
use voile_telemetry::tap::{Tap, TapQuestion};

use crate::control::admin_pages::{dump, metrics};
use crate::control::discovery::state::Control;
use crate::control::network::sockets;
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

/// See the module.
pub(in crate::control) struct ProxyPages {
    pub(in crate::control) control: Rc<RefCell<Control>>,
    pub(in crate::control) ending: Rc<ShutdownRequest>,
}

impl PageSource for ProxyPages {
    const HELP: &'static str = HELP;

    fn unready(&self) -> Vec<String> {
        self.control.borrow().unready()
    }

    fn config_dump(&self) -> String {
        dump::configuration(&self.control.borrow())
    }

    fn certificates(&self) -> String {
        dump::certificates(&self.control.borrow())
    }

    fn renew(&self) {
        self.control.borrow().store.ask_to_renew();
    }

    fn log(&self) -> Option<LogLevelHandle> {
        self.control.borrow().log.clone()
    }

    fn end(&self) {
        self.ending.ask();
    }

    async fn metrics(self: Rc<Self>) -> String {
        metrics::page(&self.control).await
    }

    /// The workers record requests and connections only while somebody asks.
    fn begin_tap(self: Rc<Self>, question: &TapQuestion) -> Result<Arc<Tap>, String> {
        let known = self.control.borrow().recorders.tap.clone();
        let tap = known.clone().unwrap_or_default();
        tap.begin(question)?;
        if known.is_none() {
            self.control.borrow_mut().set_tap(Some(Arc::clone(&tap)));
            let end = end_tap(Rc::clone(&self.control), Arc::clone(&tap));
            tokio::task::spawn_local(end);
        }
        Ok(tap)
    }

    async fn metrics_page(self: Rc<Self>, question: PageRequest) -> PageResponse {
        match question.path.as_str() {
            "/metrics" | "/stats/prometheus" => {
                let own = metrics::page(&self.control).await;
                let application = self.control.borrow().application_metrics.clone();
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
                let probers = self.control.borrow().probers.clone();
                probers.answer(&question).await
            }
            path => PageResponse::not_found(path),
        }
    }
}

/// Stops the records when the last session has ended.
async fn end_tap(control: Rc<RefCell<Control>>, tap: Arc<Tap>) {
    while let Some(end) = tap.next_end() {
        sockets::until(Some(end)).await;
    }
    control.borrow_mut().set_tap(None);
}
