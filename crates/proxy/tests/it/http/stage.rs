//! The stage: a role that records, a scripted server per upstream connection, a client of plain bytes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use voile_proxy::http::{
    Buffers, ConnectFailure, ConnectionEnd, Drain, Exchange, Head, HttpRole, HttpTimeouts,
    HttpWorker, Refusal, ResponseFlag, Route, serve_connection,
};

/// Far more than anything here takes; a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a scripted server does with one connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Read to the end of a head.
    Head,
    /// Read until what was read since the last step ends with this.
    Until(&'static [u8]),
    /// Read so many bytes.
    Read(usize),
    /// Write.
    Say(Vec<u8>),
    /// Wait for the end of the stream.
    Eof,
    /// Close our side and keep reading.
    HalfClose,
    /// Reset.
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
}

pub(crate) struct StageRole {
    upstream: Cell<SocketAddr>,
    pub(crate) records: RefCell<Vec<Recorded>>,
    pub(crate) connects: Cell<usize>,
}

impl HttpRole for StageRole {
    type Upstream = TcpStream;
    type Key = u32;
    type Ticket = ();

    fn route(&self, head: &Head<'_>) -> Result<Route<Self>, Refusal<Self>> {
        if head.path() == "/refused" {
            return Err(Refusal::new(
                403,
                ResponseFlag::Unauthorized,
                "RBAC: access denied",
            ));
        }
        let mut route = Route::new(0, ());
        route.default_authority = Some("fallback".into());
        route.connect_timeout = Duration::from_secs(5);
        Ok(route)
    }

    async fn connect(&self, _route: &Route<Self>) -> Result<TcpStream, ConnectFailure> {
        self.connects.set(self.connects.get() + 1);
        let stream = TcpStream::connect(self.upstream.get()).await;
        let stream = stream.map_err(|_| ConnectFailure::new("connection_refused"))?;
        stream.set_nodelay(true).unwrap();
        Ok(stream)
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        self.records.borrow_mut().push(Recorded {
            path: exchange.head.map(|head| head.path_and_query().to_owned()),
            status: exchange.status,
            flag: exchange.flag,
            details: exchange.details,
            request_body: exchange.request_body_bytes,
            response_body: exchange.response_body_bytes,
            reused: exchange.upstream_reused,
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
    /// What each upstream connection received, in order of acceptance.
    pub(crate) heard: Rc<RefCell<Vec<Vec<u8>>>>,
    pub(crate) ends: Rc<RefCell<Vec<ConnectionEnd>>>,
    pub(crate) go: Rc<tokio::sync::Notify>,
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
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (buffers, drain) = (Buffers::new(), Drain::new());
        let role = Rc::new(StageRole {
            upstream: Cell::new(server.local_addr().unwrap()),
            records: RefCell::default(),
            connects: Cell::new(0),
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
        };
        tokio::task::spawn_local(stage.worker.keeper());
        tokio::task::spawn_local(serve(
            server,
            scripts,
            stage.heard.clone(),
            stage.go.clone(),
        ));
        let (worker, role, ends) = (stage.worker.clone(), stage.role.clone(), stage.ends.clone());
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (worker, role, ends) = (worker.clone(), role.clone(), ends.clone());
                tokio::task::spawn_local(async move {
                    let end = serve_connection(&worker, &*role, stream, b"").await;
                    ends.borrow_mut().push(end);
                });
            }
        });
        stage
    }

    /// Points the role at an address where nobody listens.
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

    pub(crate) fn heard(&self, connection: usize) -> String {
        let heard = self.heard.borrow();
        String::from_utf8_lossy(heard.get(connection).map_or(&[], |bytes| bytes)).into_owned()
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
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let number = heard.borrow().len();
        heard.borrow_mut().push(Vec::new());
        let script = scripts[number.min(scripts.len() - 1)].clone();
        let (heard, go) = (heard.clone(), go.clone());
        tokio::task::spawn_local(async move {
            // A proxy that hangs up early ends the script early; the test sees that by other means.
            let _ = act(
                stream,
                script,
                |bytes| heard.borrow_mut()[number].extend_from_slice(bytes),
                &go,
            )
            .await;
        });
    }
}

async fn act(
    mut stream: TcpStream,
    script: Vec<Step>,
    mut hear: impl FnMut(&[u8]),
    go: &tokio::sync::Notify,
) -> std::io::Result<()> {
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
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                    hear(&room[..read]);
                    left -= read;
                }
            }
            Step::Say(bytes) => stream.write_all(&bytes).await?,
            Step::Eof => while stream.read_u8().await.is_ok() {},
            Step::HalfClose => stream.shutdown().await?,
            Step::Reset => socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?,
            Step::Wait => go.notified().await,
        }
    }
    Ok(())
}

async fn read_to(
    stream: &mut TcpStream,
    end: &[u8],
    hear: &mut impl FnMut(&[u8]),
) -> std::io::Result<()> {
    let mut seen = Vec::new();
    while !seen.ends_with(end) {
        let byte = stream.read_u8().await?;
        hear(&[byte]);
        seen.push(byte);
    }
    Ok(())
}
