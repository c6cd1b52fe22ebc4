//! The echo server: answers of chosen size, delay and status, as cheap as a server can be, because it runs on the
//! same cores as the proxies under test.
//!
//! ```text
//! acceptor ─▶ worker: read → request → plan (by target, kept) → write        one read, one write, no allocation
//!                                        └▶ wait (timer) or calls to other services (own threads) ─▶ write
//! ```

mod calls;
mod connection;
mod datagrams;
mod http2;
mod pipe;
mod plan;
mod raw;
mod request;
mod tls;
mod websocket;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::accept::{Inbox, accept_loop, listen, raise_descriptor_limit};
use crate::clock::now;
use crate::options::LoadTarget;
use crate::stop::Stop;

pub(crate) use raw::ACK_BYTES;
use raw::RawServiceKind;

pub use plan::{MAX_DELAY, MAX_SIZE, ResponsePlan, WeightedValue};
pub(crate) use request::takes_gzip;
pub use tls::{ServerTls, ServerTlsOptions};

/// Largest gRPC message made on demand: the default limit of clients.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024 - 16;

/// Options of the echo server.
#[derive(Debug, Clone, Default)]
pub struct EchoOptions {
    /// Addresses that serve HTTP. Here and below, port 0 takes a free port.
    pub listen: Vec<SocketAddr>,
    /// Addresses that serve HTTP over TLS, with the certificate of `tls`.
    pub listen_tls: Vec<SocketAddr>,
    /// The server's certificate and client authorities for TLS.
    pub tls: Option<ServerTls>,
    /// Addresses that send TCP bytes back as they come.
    pub tcp: Vec<SocketAddr>,
    /// Addresses that send bytes back over TLS, with the certificate of `tls`.
    pub tcp_tls: Vec<SocketAddr>,
    /// Addresses that send UDP datagrams back.
    pub udp: Vec<SocketAddr>,
    /// Addresses of sinks: they take bytes and acknowledge them.
    pub sink: Vec<SocketAddr>,
    /// Addresses of sources: they send bytes without end.
    pub source: Vec<SocketAddr>,
    /// Worker threads.
    pub threads: usize,
    /// Size of answers that ask for none with `size=`; without it, the request's body is echoed.
    pub size: Option<usize>,
    /// Delay of answers that ask for none with `delay=`.
    pub delay: Duration,
    /// The query of requests that have none.
    pub query: String,
    /// Answer nothing for a while, again and again.
    pub stall: Option<Stall>,
    /// The `x-voile-echo` field of answers, and `service` in the answers of a calling server.
    pub name: Option<String>,
    /// Services to call, in order, before answering.
    pub calls: Vec<LoadTarget>,
    /// Log of HTTP/1.1 answers: when each request had come and when its answer went out. Tests of a generator read it.
    pub log: Option<Log>,
}

/// When requests had come and when their answers went out, in nanoseconds of the monotonic clock.
pub type Log = Arc<std::sync::Mutex<Vec<(u64, u64)>>>;

/// A server that stops answering for `length` at the end of every `every`, as one in garbage collection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// From one stall's beginning to the next.
    pub every: Duration,
    /// Length of a stall; shorter than `every`.
    pub length: Duration,
}

impl Stall {
    /// Reads `EVERY:FOR`, such as `5s:200ms`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (every, length) = text
            .split_once(':')
            .ok_or("expected EVERY:FOR, such as 5s:200ms")?;
        let (every, length) = (
            crate::parse_duration(every)?,
            crate::parse_duration(length)?,
        );
        if length >= every {
            return Err(format!(
                "`{text}`: the stall must be shorter than its period"
            ));
        }
        Ok(Self { every, length })
    }

    /// When something due at `at` can happen, both in nanoseconds since the server started. The first stall begins
    /// after one period.
    #[must_use]
    pub fn release(self, at: u64) -> u64 {
        let (every, length) = (self.every.as_nanos() as u64, self.length.as_nanos() as u64);
        let (turn, into) = (at / every, at % every);
        if turn > 0 && into < length {
            turn * every + length
        } else {
            at
        }
    }
}

/// A server that listens but does not yet answer.
#[derive(Debug)]
pub struct Echo {
    options: EchoOptions,
    http: Vec<TcpListener>,
    raw: Vec<TcpListener>,
    kinds: Vec<RawServiceKind>,
    datagrams: Vec<UdpSocket>,
}

impl Echo {
    /// Binds all addresses.
    pub fn bind(options: EchoOptions) -> io::Result<Self> {
        raise_descriptor_limit();
        let target = format!("/?{}", options.query);
        if let Err(why) = ResponsePlan::of(target.as_bytes(), &plan::Defaults::default()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let bind = |addresses: &[SocketAddr]| -> io::Result<Vec<TcpListener>> {
            addresses.iter().map(|address| listen(*address)).collect()
        };
        let mut http = bind(&options.listen)?;
        let sealed = !(options.listen_tls.is_empty() && options.tcp_tls.is_empty());
        if options.tls.is_none() && sealed {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "serving TLS requires a certificate",
            ));
        }
        http.append(&mut bind(&options.listen_tls)?);
        let (mut raw, mut kinds) = (Vec::new(), Vec::new());
        for (addresses, kind) in [
            (&options.tcp, RawServiceKind::Echo),
            (&options.sink, RawServiceKind::Sink),
            (&options.source, RawServiceKind::Source),
            (&options.tcp_tls, RawServiceKind::Sealed),
        ] {
            raw.append(&mut bind(addresses)?);
            kinds.resize(raw.len(), kind);
        }
        let datagrams = options.udp.iter().map(|address| datagrams::bind(*address));
        let datagrams = datagrams.collect::<io::Result<_>>()?;
        Ok(Self {
            options,
            http,
            raw,
            kinds,
            datagrams,
        })
    }

    /// The addresses really listened on, in this order: HTTP, HTTP over TLS, echo, sink, source, echo over TLS, UDP.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let streams = self.http.iter().chain(&self.raw);
        let streams = streams.map(TcpListener::local_addr);
        streams
            .chain(self.datagrams.iter().map(UdpSocket::local_addr))
            .collect()
    }

    /// Serves until stopped; then requests begun are answered, for a moment, and all is closed.
    pub fn run(self, stop: &Stop) -> io::Result<()> {
        let options = Arc::new(self.options);
        let calls = calls::Callers::start(&options)?;
        let began = now();
        let threads = options.threads.max(1);
        let (http, kinds) = (self.http, self.kinds);
        let mut groups = Vec::new();
        if !self.raw.is_empty() {
            let raw = group("tcp", self.raw, threads, stop, |inbox, stop| {
                let (kinds, tls) = (kinds.clone(), options.tls.as_ref().map(ServerTls::bare));
                Ok(move || raw::serve(&inbox, &kinds, tls.as_ref(), &stop))
            })?;
            groups.push(raw);
        }
        if !self.datagrams.is_empty() {
            let (sockets, stop) = (self.datagrams, stop.clone());
            let thread = thread::Builder::new().name("udp".to_owned());
            groups.push(vec![
                thread.spawn(move || datagrams::serve(&sockets, &stop))?,
            ]);
        }
        if !http.is_empty() {
            let http = group("echo", http, threads, stop, |inbox, stop| {
                let worker =
                    worker::EchoWorker::new(inbox, Arc::clone(&options), calls.clone(), began)?;
                Ok(move || worker.run(&stop))
            })?;
            groups.push(http);
        }
        let mut ended = Ok(());
        for thread in groups.into_iter().flatten() {
            let each = thread.join();
            // A failed worker ends the others.
            stop.raise();
            let each = each.unwrap_or_else(|_| Err(io::Error::other("an echo thread panicked")));
            ended = ended.and(each);
        }
        ended
    }
}

/// Starts the threads of some listeners: workers, and one that accepts for them, which ends first.
fn group<Serve: FnOnce() -> io::Result<()> + Send + 'static>(
    name: &str,
    listeners: Vec<TcpListener>,
    threads: usize,
    stop: &Stop,
    worker: impl Fn(Arc<Inbox>, Stop) -> io::Result<Serve>,
) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    let inboxes: Vec<_> = (0..threads)
        .map(|_| Inbox::new())
        .collect::<io::Result<_>>()?;
    let mut handles = Vec::new();
    for (index, inbox) in inboxes.iter().enumerate() {
        let thread = thread::Builder::new().name(format!("{name}-{index}"));
        handles.push(thread.spawn(worker(Arc::clone(inbox), stop.clone())?)?);
    }
    let (stop, thread) = (
        stop.clone(),
        thread::Builder::new().name(format!("{name}-accept")),
    );
    handles.insert(
        0,
        thread.spawn(move || accept_loop(&listeners, &inboxes, &stop))?,
    );
    Ok(handles)
}
