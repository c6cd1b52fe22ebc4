//! The pages for people and scrapers: admin (15000), metrics (15020), readiness (15021). A data plane says what they show.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

use http::{Method, StatusCode};
use tokio::task::{AbortHandle, JoinHandle};
use voile_telemetry::admin::{PageRequest, PageResponse, serve, serve_local};
use voile_telemetry::logging::LogLevelHandle;
use voile_telemetry::tap::{Tap, TapQuestion};
use voile_transport::handover::{InheritedSockets, Lent};

use crate::{ProcessOptions, RunError};

/// A data plane, as its pages show it and as people ask things of it.
pub trait PageSource: 'static {
    /// The text of `/help`.
    const HELP: &'static str;

    /// Why it is not ready; empty when it is.
    fn unready(&self) -> Vec<String>;

    /// Its configuration, as JSON.
    fn config_dump(&self) -> String;

    /// Its certificates, as JSON, and never a key.
    fn certificates(&self) -> String;

    /// Asks for new certificates.
    fn renew(&self);

    /// Changes the log's level.
    fn log(&self) -> Option<LogLevelHandle>;

    /// Ends in good order.
    fn end(&self);

    /// Metrics in Prometheus' text format.
    fn metrics(self: Rc<Self>) -> impl Future<Output = String>;

    /// Begins to record what happens, for a session that asks.
    ///
    /// # Errors
    /// There are too many sessions.
    fn begin_tap(self: Rc<Self>, question: &TapQuestion) -> Result<Arc<Tap>, String>;

    /// A page of the metrics port.
    fn metrics_page(self: Rc<Self>, question: PageRequest) -> impl Future<Output = PageResponse> {
        async move {
            match question.path.as_str() {
                "/metrics" | "/stats/prometheus" => {
                    PageResponse::metrics(self.metrics().await, &question)
                }
                path => PageResponse::not_found(path),
            }
        }
    }
}

/// The three sockets.
#[derive(Debug)]
pub struct PageSockets([(&'static str, TcpListener); 3]);

impl PageSockets {
    /// Binds them, or takes those of the process before. `role` names each in a handover by its purpose.
    ///
    /// # Errors
    /// An address is taken, not ours, or not permitted.
    pub fn bind(
        options: &ProcessOptions,
        inherited: &mut InheritedSockets,
        role: impl Fn(&str) -> String,
    ) -> Result<Self, RunError> {
        let mut bind =
            |purpose: &'static str, address| match inherited.bind(&role(purpose), address) {
                Ok(socket) => Ok((purpose, socket)),
                Err(error) => Err(RunError::Bind {
                    address,
                    purpose,
                    error,
                }),
            };
        Ok(Self([
            bind("admin", options.admin)?,
            bind("metrics", options.metrics)?,
            bind("readiness", options.readiness)?,
        ]))
    }

    /// The sockets for a successor, each by its role.
    ///
    /// # Errors
    /// Descriptors run out.
    pub fn lend(&self, role: impl Fn(&str) -> String) -> io::Result<Vec<Lent>> {
        let lend = |(purpose, socket): &(&str, TcpListener)| -> io::Result<Lent> {
            let address = socket.local_addr()?;
            Ok((role(purpose), address, socket.try_clone()?.into()))
        };
        self.0.iter().map(lend).collect()
    }

    /// Starts the three servers, in a `LocalSet`. The sockets stay, for a successor.
    ///
    /// # Errors
    /// Descriptors run out.
    pub fn serve<S: PageSource>(&self, source: &Rc<S>) -> io::Result<Vec<AbortHandle>> {
        let listen = |(_, socket): &(&str, TcpListener)| -> io::Result<_> {
            tokio::net::TcpListener::from_std(socket.try_clone()?)
        };
        let [admin, metrics, readiness] = &self.0;
        let (admin, metrics, readiness) = (listen(admin)?, listen(metrics)?, listen(readiness)?);
        let (one, two, three) = (Rc::clone(source), Rc::clone(source), Rc::clone(source));
        let servers = [
            tokio::task::spawn_local(serve_local(admin, move |question| {
                admin_page(Rc::clone(&one), question)
            })),
            tokio::task::spawn_local(serve(metrics, move |question| {
                Rc::clone(&two).metrics_page(question)
            })),
            tokio::task::spawn_local(serve(readiness, move |question| {
                std::future::ready(match question.path.as_str() {
                    "/healthz/ready" => PageResponse::readiness(&three.unready()),
                    path => PageResponse::not_found(path),
                })
            })),
        ];
        Ok(servers.iter().map(JoinHandle::abort_handle).collect())
    }
}

async fn admin_page<S: PageSource>(source: Rc<S>, question: PageRequest) -> PageResponse {
    match (&question.method, question.path.as_str()) {
        (&Method::GET, "/config_dump") => PageResponse::json(source.config_dump()),
        (&Method::GET, "/certs") => PageResponse::json(source.certificates()),
        (&Method::POST, "/certs/renew") => {
            source.renew();
            let asked = "renewal requested; GET /certs will show the new serial number\n";
            PageResponse::text(StatusCode::ACCEPTED, asked)
        }
        (&Method::GET, "/ready") => PageResponse::readiness(&source.unready()),
        (&Method::GET, "/stats/prometheus" | "/metrics") => {
            PageResponse::metrics(source.metrics().await, &question)
        }
        (&Method::GET | &Method::PUT | &Method::POST, "/logging") => {
            PageResponse::log_level(source.log().as_ref(), &question)
        }
        (&Method::POST, "/tap") => tap(source, &question).await,
        (&Method::POST, "/quitquitquit") => {
            source.end();
            PageResponse::text(StatusCode::OK, "draining\n")
        }
        (&Method::GET, "/" | "/help") => PageResponse::text(StatusCode::OK, S::HELP),
        (
            _,
            "/quitquitquit" | "/config_dump" | "/certs" | "/certs/renew" | "/ready"
            | "/stats/prometheus" | "/metrics" | "/logging" | "/tap",
        ) => PageResponse::wrong_method(),
        (_, path) => PageResponse::not_found(path),
    }
}

/// What happens, as it ends. It is recorded only while somebody asks.
async fn tap<S: PageSource>(source: Rc<S>, question: &PageRequest) -> PageResponse {
    let question = match TapQuestion::parse(question) {
        Ok(question) => question,
        Err(reason) => return PageResponse::text(StatusCode::BAD_REQUEST, reason + "\n"),
    };
    match source.begin_tap(&question) {
        Ok(tap) => PageResponse::json(tap.answer(&question).await),
        Err(reason) => PageResponse::text(StatusCode::TOO_MANY_REQUESTS, reason + "\n"),
    }
}
