//! Byte relays inside `voile up`: published ports on the host, and the part that Kubernetes' service addresses play for
//! pods without a sidecar. They copy bytes to a pod that is ready, one after the other, and know nothing of HTTP.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::connection_limit::ConnectionLimit;

/// Timeout of connecting to a pod on this machine. A longer wait means that no application accepts there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that one relay holds at once, of two descriptors each; more wait in the kernel's queue, and it is said.
const MAX_CONNECTIONS: usize = 4096;
/// After accept failed (descriptors ran out), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The thread that all relays run on; dropping it ends them.
#[derive(Debug)]
pub struct RelayThread {
    handle: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RelayThread {
    /// Starts it.
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            // An error says that the sender is gone, which is a stop too.
            let _ = runtime.block_on(stopped);
        });
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the runtime of the relays.
    pub fn handle(&self) -> &tokio::runtime::Handle {
        &self.handle
    }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One relay; dropping it closes its socket and its connections.
#[derive(Debug)]
pub struct PortRelay {
    address: SocketAddr,
    targets: watch::Sender<Vec<SocketAddr>>,
    task: tokio::task::JoinHandle<()>,
}

impl PortRelay {
    /// Relays the connections of `listener`; to pods, it connects from `source` if there is one. Runs on `runtime`.
    pub fn start(
        runtime: &tokio::runtime::Handle,
        listener: std::net::TcpListener,
        source: Option<Ipv4Addr>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        let (targets, watched) = watch::channel(Vec::new());
        let what = match source {
            None => format!("the published port {address}"),
            Some(pod) => format!("the services that {pod} calls at {address}"),
        };
        let room = ConnectionLimit::new(&what, MAX_CONNECTIONS);
        let task = runtime.spawn(serve(listener, source, watched, room));
        Ok(Self {
            address,
            targets,
            task,
        })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes where new connections go.
    pub fn set_targets(&self, targets: Vec<SocketAddr>) {
        self.targets.send_if_modified(|current| {
            let changed = *current != targets;
            *current = targets;
            changed
        });
    }
}

impl Drop for PortRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    source: Option<Ipv4Addr>,
    targets: watch::Receiver<Vec<SocketAddr>>,
    room: ConnectionLimit,
) {
    let turn = Arc::new(AtomicUsize::new(0));
    // Dropped with this task, and each connection's task with it.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Some(place) = room.place().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "{} cannot accept", room.what());
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (targets, turn) = (targets.clone(), turn.clone());
        connections.spawn(async move {
            // Dropping `client` is all the answer there is when no pod takes the connection.
            if let Some((client, pod)) = connect(client, source, &targets, &turn).await {
                copy(client, pod).await;
            }
            drop(place);
        });
    }
}

async fn copy(mut client: TcpStream, mut pod: TcpStream) {
    // Only the two ends care how a connection ended.
    let _ = copy_bidirectional(&mut client, &mut pod).await;
}

async fn connect(
    client: TcpStream,
    source: Option<Ipv4Addr>,
    targets: &watch::Receiver<Vec<SocketAddr>>,
    turn: &AtomicUsize,
) -> Option<(TcpStream, TcpStream)> {
    let targets = targets.borrow().clone();
    let first = turn.fetch_add(1, Ordering::Relaxed);
    for n in 0..targets.len() {
        let target = targets[(first.wrapping_add(n)) % targets.len()];
        let socket = TcpSocket::new_v4().ok()?;
        if let Some(source) = source {
            socket.bind((source, 0).into()).ok()?;
        }
        if let Ok(Ok(pod)) = timeout(CONNECT_TIMEOUT, socket.connect(target)).await {
            // Requests are small and must not wait for each other's acknowledgement.
            let _ = (client.set_nodelay(true), pod.set_nodelay(true));
            return Some((client, pod));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn server(text: &'static str) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("accepted");
                let mut heard = String::new();
                let _ = stream.read_to_string(&mut heard);
                let _ = write!(stream, "{text} heard {heard}");
            }
        });
        address
    }

    fn ask(address: SocketAddr) -> String {
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        // A relay without a target may have closed already.
        let _ = stream.write_all(b"hello");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn connections_take_turns_skip_the_dead_and_survive_half_close() {
        let runtime = RelayThread::start().expect("a thread");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let relay = PortRelay::start(runtime.handle(), listener, Some(Ipv4Addr::LOCALHOST))
            .expect("a relay");
        assert_eq!(
            ask(relay.address()),
            "",
            "without a target there is no answer, and no hang"
        );
        let closed = std::net::TcpListener::bind("127.0.0.1:0")
            .expect("a port")
            .local_addr()
            .expect("an address");
        relay.set_targets(vec![server("a"), closed, server("b")]);
        let answers: std::collections::BTreeSet<_> = (0..6).map(|_| ask(relay.address())).collect();
        assert_eq!(
            answers.into_iter().collect::<Vec<_>>(),
            ["a heard hello", "b heard hello"]
        );
        let address = relay.address();
        drop(relay);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while std::net::TcpListener::bind(address).is_err() {
            assert!(
                std::time::Instant::now() < deadline,
                "the socket is still bound"
            );
            std::thread::yield_now();
        }
    }
}
