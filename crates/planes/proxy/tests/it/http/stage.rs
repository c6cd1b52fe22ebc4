//! The stage: a role that records, a scripted server per upstream connection, a client of plain bytes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use voile_proxy::http::role::RequestOptions;
use voile_proxy::http::{
    BodyPrefix, BodyWanted, Buffers, ConnectFailure, ConnectionEnd, Drain, Exchange, Grpc,
    HttpHead, HttpRole, HttpTimeouts, HttpWorker, Io, Pending, RequestRoute, ResponseFlag,
    RoleRefusal, UpstreamHttp, UpstreamTerms, serve_connection,
};
use voile_proxy::http2;
use voile_traffic::{Attempt, RetryPolicy};
use voile_transport::{SocketEvents, TransportStream};

/// Far more than anything here takes; a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Path whose requests share no connection with those of other paths.
pub(crate) const OTHER: &str = "/other";

/// Action of a scripted server on one connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Read to the end of a head.
    Head,
    /// Read until what was read since the last step ends with this.
    Until(&'static [u8]),
    /// Read so many bytes.
    Read(usize),
    /// Read HTTP/2 frames up to one of this kind.
    Frame(u8),
    /// Write.
    Say(Vec<u8>),
    /// Wait for the end of the stream.
    Eof,
    /// Close our side and keep reading.
    HalfClose,
    /// Reset; the script is over.
    Reset,
    /// Wait until the test says so.
    Wait,
}

/// `Step::Say` from text.
pub(crate) fn say(text: impl AsRef<[u8]>) -> Step {
    Step::Say(text.as_ref().to_vec())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) path: Option<String>,
    pub(crate) status: u16,
    pub(crate) flag: ResponseFlag,
    pub(crate) details: &'static str,
    pub(crate) request_body: u64,
    pub(crate) response_body: u64,
    pub(crate) reused: bool,
    pub(crate) attempts: u32,
    pub(crate) duration: Duration,
    /// The duration begins before the role saw the request.
    pub(crate) from_head: bool,
    pub(crate) grpc: Option<Grpc>,
}

/// Answers of the role about both neighbours, and its retries.
#[derive(Clone, Default)]
pub(crate) struct Manner {
    /// A verified sidecar answers.
    pub(crate) to_sidecar: bool,
    /// A verified sidecar asks.
    pub(crate) serves_sidecar: bool,
    /// The pool's connections do not show their end before they are written to, as if it came a moment later.
    pub(crate) blind: bool,
    /// Retry policy; attempts follow without a pause.
    pub(crate) retry: Option<Rc<RetryPolicy>>,
    /// Status of the local reply to every request.
    pub(crate) reply: Option<u16>,
    /// Clients speak HTTP/2.
    pub(crate) http2_clients: bool,
    /// Servers speak HTTP/2.
    pub(crate) http2_servers: bool,
    /// No connection to a server is ever opened, nor refused.
    pub(crate) unreachable: bool,
    /// Sockets to servers hold a few kilobytes.
    pub(crate) narrow: bool,
    /// Timeout of a connect.
    pub(crate) connect_timeout: Option<Duration>,
    /// The route's timeout of the answer.
    pub(crate) timeout: Option<Duration>,
    /// Limits of a connection to a server.
    pub(crate) terms: UpstreamTerms,
}

/// A stream that may be made blind to the kernel's word.
pub(crate) struct Upstream {
    stream: TransportStream,
    opened: Instant,
    blind: bool,
}

impl AsyncRead for Upstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Io for Upstream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The pool looks with a waker that wakes no task.
        if self.blind && cx.waker().will_wake(Waker::noop()) {
            return Poll::Pending;
        }
        Io::poll_readable(&mut self.stream, cx)
    }

    fn abort(&mut self) {
        self.stream.abort();
    }

    fn news(&mut self) -> SocketEvents {
        match self.blind {
            true => SocketEvents::None,
            false => self.stream.news(),
        }
    }

    fn age(&self) -> Option<Duration> {
        Some(self.opened.elapsed())
    }

    fn written(&self) -> u64 {
        self.stream.written()
    }

    fn closed_before(&self, mark: u64) -> bool {
        self.stream.closed_before(mark)
    }
}

pub(crate) struct StageRole {
    manner: Manner,
    upstream: Cell<SocketAddr>,
    pub(crate) records: RefCell<Vec<Recorded>>,
    pub(crate) connects: Cell<usize>,
    /// A request waits for a connection or an external service that never answers.
    pub(crate) waits: Cell<bool>,
    /// The leave of every exchange is revoked.
    pub(crate) revoked: Cell<bool>,
    /// When the role saw the last request of no other path.
    seen: Cell<Option<Instant>>,
}

fn denied() -> RoleRefusal<StageRole> {
    RoleRefusal::new(403, ResponseFlag::Unauthorized, "RBAC: access denied")
}

/// A question by this path. A number at its end is the length of a body that it takes.
fn asks(path: &str) -> RoleRefusal<StageRole> {
    let max = path.rsplit('/').next().and_then(|end| end.parse().ok());
    let mut refusal = denied();
    refusal.pending = Some(Box::new(Pending {
        question: path.to_owned(),
        body: max.map(|max| BodyWanted {
            max,
            partial: false,
        }),
    }));
    refusal
}

impl StageRole {
    fn forward(&self, head: &HttpHead<'_>) -> RequestRoute<Self> {
        // Servers of another path are reached by connections of their own.
        let mut route = RequestRoute::new(u32::from(head.path() == OTHER), ());
        route.default_authority = Some("fallback".into());
        route.connect_timeout = self.manner.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        route.to_sidecar = self.manner.to_sidecar;
        route.retry.clone_from(&self.manner.retry);
        route.terms = self.manner.terms;
        if self.manner.http2_servers {
            route.upstream = UpstreamHttp::Http2;
        }
        if self.manner.timeout.is_some() {
            route.besides = Some(Box::new(RequestOptions {
                timeout: self.manner.timeout,
                ..RequestOptions::default()
            }));
        }
        route
    }

    async fn never(&self) {
        self.waits.set(true);
        std::future::pending::<()>().await;
    }
}

impl HttpRole for StageRole {
    type Upstream = Upstream;
    type Key = u32;
    type Ticket = ();
    /// The request's path.
    type Question = String;

    fn route(&self, head: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        if head.path() != OTHER {
            self.seen.set(Some(Instant::now()));
        }
        if head.path() == "/refused" {
            return Err(denied());
        }
        if let Some(status) = self.manner.reply {
            return Err(RoleRefusal::new(status, ResponseFlag::None, "ours"));
        }
        if head.path().starts_with("/asked") {
            return Err(asks(head.path()));
        }
        Ok(self.forward(head))
    }

    async fn ask(&self, path: &mut String, body: Option<BodyPrefix>) {
        if path == "/asked/in-vain" {
            self.never().await;
        }
        if path == "/asked/again/9" && body.is_none_or(|body| body.bytes != b"hello") {
            "/asked/refused".clone_into(path);
        }
    }

    fn answered(
        &self,
        head: &HttpHead<'_>,
        path: String,
    ) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        match path.as_str() {
            "/asked/refused" => Err(denied()),
            "/asked/twice/9" => Err(asks("/asked/again/9")),
            _ => Ok(self.forward(head)),
        }
    }

    fn is_revoked<'h>(&self, (): &(), _: impl FnOnce() -> HttpHead<'h>) -> bool {
        self.revoked.get()
    }

    fn again(&self, _route: &mut RequestRoute<Self>, last: Attempt, made: u32) -> Option<Duration> {
        let wishes = self.manner.retry.as_ref()?.wishes(last, made);
        wishes.then_some(Duration::ZERO)
    }

    fn serves_sidecar(&self) -> bool {
        self.manner.serves_sidecar
    }

    async fn connect(&self, _route: &RequestRoute<Self>) -> Result<Upstream, ConnectFailure> {
        self.connects.set(self.connects.get() + 1);
        if self.manner.unreachable {
            self.never().await;
        }
        let stream = TcpStream::connect(self.upstream.get()).await;
        let stream = stream.map_err(|_| ConnectFailure::new("connection_refused"))?;
        stream.set_nodelay(true).unwrap();
        if self.manner.narrow {
            let socket = socket2::SockRef::from(&stream);
            socket.set_send_buffer_size(4096).unwrap();
        }
        Ok(Upstream {
            stream: TransportStream::Tcp(stream.into()),
            opened: Instant::now(),
            blind: self.manner.blind,
        })
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let record = exchange.record;
        self.records.borrow_mut().push(Recorded {
            path: exchange.head.map(|head| head.path_and_query().to_owned()),
            status: record.status,
            flag: record.flag,
            details: record.details,
            request_body: record.request_body_bytes,
            response_body: record.response_body_bytes,
            reused: record.upstream_reused,
            attempts: record.attempts,
            duration: record.duration,
            from_head: self.seen.get().is_none_or(|seen| record.started <= seen),
            grpc: record.grpc,
        });
    }
}

/// A proxy and its scripted server, alive for one test.
pub(crate) struct Stage {
    pub(crate) role: Rc<StageRole>,
    pub(crate) worker: Rc<HttpWorker<StageRole>>,
    pub(crate) drain: Drain,
    pub(crate) buffers: Buffers,
    pub(crate) proxy: SocketAddr,
    /// Bytes that each upstream connection received, in order of acceptance.
    pub(crate) heard: Rc<RefCell<Vec<Vec<u8>>>>,
    pub(crate) ends: Rc<RefCell<Vec<ConnectionEnd>>>,
    pub(crate) go: Rc<tokio::sync::Notify>,
    /// A client has the first half of an answer.
    pub(crate) is_half: Cell<bool>,
    closed: Rc<Cell<usize>>,
}

/// Runs a test's body on a current-thread runtime with a deadline.
pub(crate) fn play<F: Future<Output = ()>>(body: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        tokio::time::timeout(PATIENCE, body())
            .await
            .expect("the test ends in time");
    });
}

impl Stage {
    /// `scripts[n]` is played to the n-th upstream connection; the last one also to all later ones.
    pub(crate) async fn set(scripts: Vec<Vec<Step>>) -> Self {
        Self::with(scripts, HttpTimeouts::default()).await
    }

    pub(crate) async fn with(scripts: Vec<Vec<Step>>, timeouts: HttpTimeouts) -> Self {
        Self::behaving(scripts, timeouts, Manner::default()).await
    }

    pub(crate) async fn behaving(
        scripts: Vec<Vec<Step>>,
        timeouts: HttpTimeouts,
        manner: Manner,
    ) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if manner.narrow {
            let socket = socket2::SockRef::from(&server);
            socket.set_recv_buffer_size(4096).unwrap();
        }
        let (buffers, drain) = (Buffers::new(), Drain::new());
        let role = Rc::new(StageRole {
            manner,
            upstream: Cell::new(server.local_addr().unwrap()),
            records: RefCell::default(),
            connects: Cell::new(0),
            waits: Cell::default(),
            revoked: Cell::default(),
            seen: Cell::default(),
        });
        let worker = HttpWorker::<StageRole>::new(buffers.clone(), drain.clone(), timeouts);
        let stage = Self {
            role,
            worker,
            drain,
            buffers,
            proxy: listener.local_addr().unwrap(),
            heard: Rc::default(),
            ends: Rc::default(),
            go: Rc::new(tokio::sync::Notify::new()),
            is_half: Cell::default(),
            closed: Rc::default(),
        };
        if !stage.role.manner.blind {
            tokio::task::spawn_local(stage.worker.keeper());
        }
        tokio::task::spawn_local(serve(
            server,
            scripts,
            stage.heard.clone(),
            stage.go.clone(),
            stage.closed.clone(),
        ));
        let (worker, role, ends) = (stage.worker.clone(), stage.role.clone(), stage.ends.clone());
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (worker, role, ends) = (worker.clone(), role.clone(), ends.clone());
                tokio::task::spawn_local(async move {
                    let stream = TransportStream::Tcp(stream.into());
                    let end = match role.manner.http2_clients {
                        true => http2::serve_connection(&worker, role, stream).await,
                        false => serve_connection(&worker, &*role, stream, b"").await,
                    };
                    ends.borrow_mut().push(end);
                });
            }
        });
        stage
    }

    /// Points the role at an address without a listener.
    pub(crate) async fn unplug(&self) {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.role.upstream.set(nobody.local_addr().unwrap());
    }

    pub(crate) async fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends bytes on a new connection and reads until the proxy closes.
    pub(crate) async fn exchange(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.client().await;
        client.write_all(bytes.as_ref()).await.unwrap();
        read_all(&mut client).await
    }

    /// The server goes on now that its client has the first half of the answer.
    pub(crate) fn half(&self) {
        self.is_half.set(true);
        self.go.notify_one();
    }

    pub(crate) fn heard(&self, connection: usize) -> String {
        let heard = self.heard.borrow();
        String::from_utf8_lossy(heard.get(connection).map_or(&[], |bytes| bytes)).into_owned()
    }

    /// Connections the server has ended.
    pub(crate) fn closed(&self) -> usize {
        self.closed.get()
    }

    pub(crate) fn last(&self) -> Recorded {
        self.role
            .records
            .borrow()
            .last()
            .cloned()
            .expect("something was recorded")
    }
}

/// Reads to the end; a reset ends with `<reset>`.
pub(crate) async fn read_all(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut room = [0; 4096];
    loop {
        match client.read(&mut room).await {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&room[..read]),
            Err(_) => {
                answer.extend_from_slice(b"<reset>");
                break;
            }
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads until the answer ends with `end`.
pub(crate) async fn read_until(client: &mut TcpStream, end: &str) -> String {
    let mut answer = String::new();
    let mut room = [0; 4096];
    while !answer.ends_with(end) {
        let read = client.read(&mut room).await.unwrap();
        assert!(read > 0, "the answer ends with {end:?}; got {answer:?}");
        answer.push_str(&String::from_utf8_lossy(&room[..read]));
    }
    answer
}

/// Waits for a condition that other tasks bring about.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE / 2;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn serve(
    listener: TcpListener,
    scripts: Vec<Vec<Step>>,
    heard: Rc<RefCell<Vec<Vec<u8>>>>,
    go: Rc<tokio::sync::Notify>,
    closed: Rc<Cell<usize>>,
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let number = heard.borrow().len();
        heard.borrow_mut().push(Vec::new());
        let script = scripts[number.min(scripts.len() - 1)].clone();
        let (heard, go, closed) = (heard.clone(), go.clone(), closed.clone());
        tokio::task::spawn_local(async move {
            // A proxy that hangs up early ends the script early; the test sees that by other means.
            let _ = act(
                stream,
                script,
                |bytes| heard.borrow_mut()[number].extend_from_slice(bytes),
                &go,
            )
            .await;
            closed.set(closed.get() + 1);
        });
    }
}

async fn act(
    mut stream: TcpStream,
    script: Vec<Step>,
    mut hear: impl FnMut(&[u8]),
    go: &tokio::sync::Notify,
) -> io::Result<()> {
    for step in script {
        match step {
            Step::Head => read_to(&mut stream, b"\r\n\r\n", &mut hear).await?,
            Step::Until(end) => read_to(&mut stream, end, &mut hear).await?,
            Step::Read(mut left) => {
                let mut room = vec![0; 64 * 1024];
                while left > 0 {
                    let want = left.min(room.len());
                    let read = stream.read(&mut room[..want]).await?;
                    if read == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    hear(&room[..read]);
                    left -= read;
                }
            }
            Step::Frame(kind) => loop {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await?;
                let [_, high, low, got, ..] = head;
                let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
                stream.read_exact(&mut payload).await?;
                hear(&payload);
                if got == kind {
                    break;
                }
            },
            Step::Say(bytes) => stream.write_all(&bytes).await?,
            Step::Eof => while stream.read_u8().await.is_ok() {},
            Step::HalfClose => stream.shutdown().await?,
            Step::Reset => {
                return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            }
            Step::Wait => go.notified().await,
        }
    }
    Ok(())
}

async fn read_to(
    stream: &mut TcpStream,
    end: &[u8],
    hear: &mut impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut seen = Vec::new();
    while !seen.ends_with(end) {
        let byte = stream.read_u8().await?;
        hear(&[byte]);
        seen.push(byte);
    }
    Ok(())
}
