//! The process: listening sockets, threads, connections, and the end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use voile_graph::Graph;
use voile_graph::dice::ProcessRandom;

use crate::body::Payload;
use crate::handle::Handler;
use crate::metrics::Metrics;
use crate::script::{CallPlan, Script};
use crate::work::{self, SteadyLoad};

/// Most connections of one thread: a client that opens without end must not take all descriptors.
const MAX_CONNECTIONS: usize = 10_000;
/// Time limit from a client's connection to its first bytes, and from there to the bytes that tell HTTP/1 from
/// HTTP/2.
const FIRST_BYTES: Duration = Duration::from_secs(60);
/// Time limit for a head, with the idle time before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Streams at a time on one connection.
const MAX_STREAMS: u32 = 1024;
/// Largest head, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Pause after a connection could not be accepted (descriptors ran out).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Options of a server.
#[derive(Debug)]
pub struct ServeOptions {
    /// The graph.
    pub graph: Graph,
    /// Index of the service in the graph.
    pub service: usize,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Threads.
    pub threads: usize,
    /// Makes error rate and probabilities repeatable.
    pub seed: Option<u64>,
    /// Which of the service's replicas this is, for the dice.
    pub replica: String,
    /// Our namespace, for callees that name none.
    pub namespace: String,
    /// Addresses of callees, as given on the command line.
    pub places: BTreeMap<String, Vec<SocketAddr>>,
    /// Time limit of a call.
    pub call_timeout: Duration,
    /// Time limit for requests in flight at shutdown.
    pub drain: Duration,
}

/// Why a service cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The runtime or a thread cannot be had.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// The graph asks for work that is impossible here.
    #[error("{0}")]
    Graph(String),
}

/// Runs futures on the thread that made them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Local;

impl<F> hyper::rt::Executor<F> for Local
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// State that all threads share.
struct ServerState {
    plan: CallPlan,
    dice: ProcessRandom,
    metrics: Arc<Metrics>,
    options: ServeOptions,
}

/// Serves until SIGTERM, SIGINT or SIGHUP, then answers the requests begun. `ready` hears the address.
///
/// # Errors
/// When it cannot begin.
pub fn serve(options: ServeOptions, ready: impl FnOnce(SocketAddr)) -> Result<(), ServeError> {
    let service = &options.graph.services[options.service];
    let held = work::hold(work::bytes_of(service.memory).map_err(ServeError::Graph)?);
    let steady = SteadyLoad::start(service.compute);
    let variables = |name: &str| std::env::var(name).ok();
    let plan = CallPlan::new(
        &options.graph,
        options.service,
        &options.namespace,
        &options.places,
        &variables,
    );
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    let shared = Arc::new(ServerState {
        dice: ProcessRandom::new(seed, &format!("{}/{}", service.name, options.replica)),
        metrics: Arc::new(Metrics::new(plan.destinations.clone())),
        plan,
        options,
    });
    let address = shared.options.listen;
    let failed = |error| ServeError::Listen(address, error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let runtime = runtime()?;
    let (stop, stopped) = watch::channel(false);
    let mut threads = Vec::new();
    for _ in 0..shared.options.threads.max(1) {
        let listener = listener.try_clone()?;
        // Built here, so that errors are reported before the service is reported as ready.
        Script::new(
            &shared.plan,
            shared.dice,
            Arc::clone(&shared.metrics),
            shared.options.call_timeout,
        )
        .map_err(ServeError::Graph)?;
        let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
        threads
            .push(std::thread::Builder::new().spawn(move || worker(&shared, listener, stopped))?);
    }
    drop(listener);
    let ended = runtime.block_on(async {
        let mut signals = signals()?;
        ready(bound);
        signals.recv().await;
        Ok(())
    });
    // The send fails only if all threads have ended by themselves.
    let _ = stop.send(true);
    let mut outcome = ended;
    for thread in threads {
        let result = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        outcome = outcome.and(result);
    }
    drop((held, steady));
    outcome.map_err(ServeError::Start)
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// A message for each signal that asks us to end.
fn signals() -> io::Result<mpsc::Receiver<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (sender, receiver) = mpsc::channel(1);
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ] {
        let mut signal = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signal.recv().await.is_some() && sender.send(()).await.is_ok() {}
        });
    }
    Ok(receiver)
}

fn worker(
    shared: &ServerState,
    listener: TcpListener,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let service = &shared.options.graph.services[shared.options.service];
    let script = Script::new(
        &shared.plan,
        shared.dice,
        Arc::clone(&shared.metrics),
        shared.options.call_timeout,
    );
    let handler = Rc::new(Handler {
        script: script.map_err(io::Error::other)?,
        metrics: Arc::clone(&shared.metrics),
        dice: shared.dice,
        error_rate: service.error_rate,
        plain: Payload::plain(service.response_size),
        message: Payload::message(service.response_size),
        in_flight: Cell::new(0),
    });
    let runtime = runtime()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        accept(&handler, listener, stopped, shared.options.drain).await;
        Ok(())
    })
}

async fn accept(
    handler: &Rc<Handler>,
    listener: tokio::net::TcpListener,
    mut stopped: watch::Receiver<bool>,
    drain: Duration,
) {
    // Every connection holds a sender; when the last is gone, the receiver hears it.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let room = Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = next => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (handler, stopped, open) = (Rc::clone(handler), stopped.clone(), open.clone());
                tokio::task::spawn_local(async move {
                    connection(handler, stream, stopped).await;
                    drop((open, permit));
                });
            }
            // The client gave up, or descriptors ran out: both pass.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
    drop((listener, open));
    // Connections that are still open after that are cut off.
    let _ = tokio::time::timeout(drain, all_closed.recv()).await;
}

async fn connection(handler: Rc<Handler>, stream: TcpStream, mut stopped: watch::Receiver<bool>) {
    // Answers must not wait for acknowledgements; a socket that refuses is as good as closed.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let kind = tokio::select! {
        kind = tokio::time::timeout(FIRST_BYTES, is_http2(&stream)) => kind,
        _ = stopped.wait_for(|stopped| *stopped) => return,
    };
    let Ok(Ok(is_http2)) = kind else { return };
    let service = service_fn(move |request| Rc::clone(&handler).handle(request));
    let stream = TokioIo::new(stream);
    // A connection's error concerns only its client.
    if is_http2 {
        let connection = http2::Builder::new(Local)
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD_BYTES as u32)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// Looks at the first bytes without taking them: `PRI` begins HTTP/2's preface and no method of HTTP/1.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    /// Between two looks at a client that sends byte by byte.
    const PAUSE: Duration = Duration::from_millis(5);
    let mut first = [0; 3];
    loop {
        let seen = stream.peek(&mut first).await?;
        match &first[..seen] {
            [] => return Err(io::ErrorKind::UnexpectedEof.into()),
            b"PRI" => return Ok(true),
            b"P" | b"PR" => tokio::time::sleep(PAUSE).await,
            _ => return Ok(false),
        }
    }
}
