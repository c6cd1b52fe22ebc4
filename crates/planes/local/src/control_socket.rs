//! The control socket of a run: a Unix socket in the run's folder, by which commands find the mesh without addresses. It
//! forwards the pages of control planes and proxies, tells the state of the run, and takes the order to stop. It speaks
//! HTTP/1.0, one request a connection.
//!
//! | request | answer |
//! |---|---|
//! | `GET /mesh` | the state of the run, as JSON |
//! | `GET /control/N/PAGE` | a monitoring page of control plane N, from 0 on |
//! | `GET /proxy/NAMESPACE/POD/PAGE` | an administration page of a pod's proxy |
//! | `POST /stop` | 202, and the run ends as after SIGTERM |

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use voile_host::netns::Namespace;

use crate::connection_limit::ConnectionLimit;

/// Connections at once; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// Largest head of a request, in bytes.
const MAX_HEAD_BYTES: u64 = 8192;
/// Time for the head, for the connection to a page, and for a client to take a part of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest part of a page that is forwarded at once, in bytes.
const MAX_PART_BYTES: usize = 16 * 1024;
/// After accept failed (descriptors ran out), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a client asks of the run's main loop.
#[derive(Debug)]
pub(crate) enum RunQuestion {
    /// The state of the run.
    State(oneshot::Sender<Value>),
    /// The administration pages of the proxy of `namespace/name`; none without such a proxy.
    Proxy(String, oneshot::Sender<Option<PageAddress>>),
}

/// Where a proxy serves its pages.
#[derive(Debug)]
pub(crate) struct PageAddress {
    pub(crate) address: SocketAddr,
    /// The network namespace of the address, where it is not that of this process.
    pub(crate) namespace: Option<Namespace>,
}

/// See the module. Dropping it closes the socket; the file goes with the run's folder.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    questions: mpsc::Receiver<RunQuestion>,
    task: JoinHandle<()>,
}

impl ControlSocket {
    /// Listens. `controls` are the monitoring addresses of the control planes.
    pub(crate) fn open(
        path: &Path,
        controls: Vec<SocketAddr>,
        runtime: &Handle,
    ) -> io::Result<Self> {
        let _inside = runtime.enter();
        let listener = UnixListener::bind(path)?;
        let (ask, questions) = mpsc::channel();
        let pages = Pages { controls, ask };
        let task = runtime.spawn(serve(listener, pages));
        Ok(Self { questions, task })
    }

    /// The questions that wait for an answer.
    pub(crate) fn questions(&self) -> Vec<RunQuestion> {
        self.questions.try_iter().collect()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What requests can reach.
#[derive(Debug, Clone)]
struct Pages {
    controls: Vec<SocketAddr>,
    ask: mpsc::Sender<RunQuestion>,
}

/// An answer that is no page of others.
type Refusal = (&'static str, String);

async fn serve(listener: UnixListener, pages: Pages) {
    let room = ConnectionLimit::new("the control socket", MAX_CONNECTIONS);
    // Dropped with this task, and each connection's task with it.
    let mut connections = JoinSet::new();
    loop {
        let Some(place) = room.place().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let Ok((mut client, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let pages = pages.clone();
        connections.spawn(async move {
            if let Err((status, text)) = answer(&mut client, &pages).await {
                let head = format!(
                    "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n",
                    text.len()
                );
                // A client that is gone or takes nothing needs no answer.
                let text = head + &text;
                let _ = timeout(PATIENCE, client.write_all(text.as_bytes())).await;
            }
            drop(place);
        });
    }
}

/// Answers one request: relays a page, or returns what is to be said.
async fn answer(client: &mut UnixStream, pages: &Pages) -> Result<(), Refusal> {
    let late = |_| ("408 Request Timeout", "the request is late\n".to_owned());
    let head = timeout(PATIENCE, request_line(client))
        .await
        .map_err(late)?;
    let bad = |error: io::Error| ("400 Bad Request", format!("{error}\n"));
    let (method, path) = head.map_err(bad)?;
    let unknown = || {
        let known = "GET /mesh, /control/N/PAGE, /proxy/NAMESPACE/POD/PAGE; POST /stop, /proxy/NAMESPACE/POD/tap";
        (
            "404 Not Found",
            format!("no such page; there are: {known}\n"),
        )
    };
    let parts: Vec<&str> = path.splitn(4, '/').collect();
    match (&*method, &*parts) {
        ("GET", ["", "mesh"]) => {
            let state = pages.ask(RunQuestion::State).await?;
            Err(("200 OK", format!("{state}\n")))
        }
        ("POST", ["", "stop"]) => {
            let this = rustix::process::getpid();
            let sent = rustix::process::kill_process(this, rustix::process::Signal::TERM);
            let failed = |error| ("500 Internal Server Error", format!("{error}\n"));
            sent.map_err(failed)?;
            Err(("202 Accepted", "stopping\n".to_owned()))
        }
        ("GET", ["", "control", number, page @ ..]) => {
            let number = number.parse::<usize>().ok();
            let address = number.and_then(|number| pages.controls.get(number).copied());
            let at = PageAddress {
                address: address.ok_or_else(unknown)?,
                namespace: None,
            };
            relay(client, at, "GET", &page.join("/")).await
        }
        ("GET" | "POST", ["", "proxy", namespace, rest]) => {
            let (pod, page) = rest.split_once('/').ok_or_else(unknown)?;
            // Of the orders that a proxy takes, the records of its requests alone.
            if method == "POST" && page.split('?').next() != Some("tap") {
                return Err(unknown());
            }
            let name = format!("{namespace}/{pod}");
            let of = name.clone();
            let at = pages.ask(|to| RunQuestion::Proxy(of, to)).await?;
            let none = || ("404 Not Found", format!("{name} has no proxy that runs\n"));
            relay(client, at.ok_or_else(none)?, &method, page).await
        }
        _ => Err(unknown()),
    }
}

impl Pages {
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> RunQuestion,
    ) -> Result<T, Refusal> {
        let (to, told) = oneshot::channel();
        let busy = || ("503 Service Unavailable", "the mesh stops\n".to_owned());
        self.ask.send(question(to)).map_err(|_| busy())?;
        told.await.map_err(|_| busy())
    }
}

/// Reads the head of a request. Returns method and path, which every client that this socket is for writes in one piece.
async fn request_line(client: &mut UnixStream) -> io::Result<(String, String)> {
    let mut head = Vec::new();
    let mut limited = client.take(MAX_HEAD_BYTES);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if limited.read_buf(&mut head).await? == 0 {
            return Err(io::Error::other("this is not a head of HTTP/1"));
        }
    }
    let head = String::from_utf8_lossy(&head);
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some(method), Some(path), Some(version)) if version.starts_with("HTTP/1.") => {
            Ok((method.to_owned(), path.to_owned()))
        }
        _ => Err(io::Error::other("this is not a request line of HTTP/1")),
    }
}

/// Copies the answer of a page as it comes. A client that takes nothing loses its place.
async fn relay(
    client: &mut UnixStream,
    at: PageAddress,
    method: &str,
    page: &str,
) -> Result<(), Refusal> {
    let unreached = |error: io::Error| ("502 Bad Gateway", format!("{}: {error}\n", at.address));
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let connected = timeout(PATIENCE, connect(&at)).await.map_err(late);
    let mut server = connected.flatten().map_err(unreached)?;
    // Pages of the machine itself accept this name.
    let request =
        format!("{method} /{page} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    server
        .write_all(request.as_bytes())
        .await
        .map_err(unreached)?;
    let (mut asks, mut client) = client.split();
    let (mut answers, mut end) = server.split();
    let (mut part, mut more, mut left) = (vec![0; MAX_PART_BYTES], [0; 64], false);
    // Only the two ends care how it ended.
    loop {
        tokio::select! {
            read = answers.read(&mut part) => {
                let Ok(read @ 1..) = read else { break };
                let taken = timeout(PATIENCE, client.write_all(&part[..read])).await;
                if !matches!(taken, Ok(Ok(()))) {
                    break;
                }
            }
            read = asks.read(&mut more), if !left => {
                left = !matches!(read, Ok(1..));
                if left {
                    let _ = end.shutdown().await;
                }
            }
        }
    }
    Ok(())
}

async fn connect(at: &PageAddress) -> io::Result<TcpStream> {
    let socket = match &at.namespace {
        Some(namespace) => namespace.within(TcpSocket::new_v4)??,
        None => TcpSocket::new_v4()?,
    };
    socket.connect(at.address).await
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    /// More than sockets keep for a reader.
    const PAGE_BYTES: usize = 16 << 20;

    #[test]
    fn clients_that_say_nothing_take_nothing_or_never_end_lose_their_places() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let handle = runtime.handle().clone();
        // It ends with the process.
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        let pages = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = pages.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut page in pages.incoming().flatten() {
                // Until the socket's end is gone.
                std::thread::spawn(move || page.write_all(&vec![b'x'; PAGE_BYTES]));
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        let socket = ControlSocket::open(&path, vec![address], &handle);
        let socket = socket.expect("it listens");
        let connect = |head: &[u8]| {
            let mut client = UnixStream::connect(&path).expect("connected");
            client
                .set_read_timeout(Some(6 * PATIENCE))
                .expect("it is open");
            client.write_all(head).expect("there is room");
            client
        };
        let heads: [&[u8]; 2] = [b"GET ", b"GET /control/0/page HTTP/1.0\r\n\r\n"];
        let held: Vec<_> = (0..2 * MAX_CONNECTIONS)
            .map(|number| connect(heads[number % heads.len()]))
            .collect();
        let began = Instant::now();
        let never_ends = vec![b'x'; 2 * MAX_HEAD_BYTES as usize];
        for (head, status) in [
            (&b"GET /control/9/page HTTP/1.0\r\n\r\n"[..], "404"),
            (&never_ends, "400"),
        ] {
            let (mut client, mut answer) = (connect(head), Vec::new());
            // The end may be a reset, for what was not read.
            let _ = client.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            assert!(
                answer.starts_with(&format!("HTTP/1.0 {status} ")),
                "{answer}"
            );
        }
        println!("answered after {:?}", began.elapsed());
        assert!(began.elapsed() < 5 * PATIENCE, "{:?}", began.elapsed());
        drop((held, socket));
    }
}
