//! Relay of a published UDP port. Each client's datagrams go to one ready pod from a socket of their own, by which
//! the pod's answers return. The relay never reads the content, and forgets a client that is silent for long.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Clients of one port at once, of a descriptor each. Datagrams of further clients are dropped, and a log line says
/// so.
const MAX_CLIENTS: usize = 1024;

/// Silence of its pod after which a client is forgotten: longer than a gateway keeps a connection of HTTP/3 that says nothing (300 s).
const SILENCE: Duration = Duration::from_secs(330);

/// Bytes of a datagram at most.
const MAX_DATAGRAM: usize = 65_535;

/// One port; dropping it closes its socket and forgets its clients.
#[derive(Debug)]
pub(crate) struct Datagrams {
    address: SocketAddr,
    targets: watch::Sender<Vec<SocketAddr>>,
    task: tokio::task::JoinHandle<()>,
}

impl Datagrams {
    /// Relays the datagrams of `socket`. Runs on `runtime`.
    pub(crate) fn start(
        runtime: &tokio::runtime::Handle,
        socket: std::net::UdpSocket,
    ) -> io::Result<Self> {
        Self::with_room(runtime, socket, MAX_CLIENTS)
    }

    fn with_room(
        runtime: &tokio::runtime::Handle,
        socket: std::net::UdpSocket,
        most: usize,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let _inside = runtime.enter();
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let (targets, watched) = watch::channel(Vec::new());
        let relay = DatagramRelay {
            socket,
            address,
            targets: watched,
            clients: HashMap::new(),
            answering: JoinSet::new(),
            turn: 0,
            most,
            is_full: false,
        };
        Ok(Self {
            address,
            targets,
            task: runtime.spawn(relay.serve()),
        })
    }

    /// Returns the listening address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes where new clients' datagrams go.
    pub(crate) fn set_targets(&self, targets: Vec<SocketAddr>) {
        self.targets.send_replace(targets);
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct DatagramRelay {
    socket: Arc<UdpSocket>,
    address: SocketAddr,
    targets: watch::Receiver<Vec<SocketAddr>>,
    /// A socket towards the pod of each.
    clients: HashMap<SocketAddr, Arc<UdpSocket>>,
    /// Ends with whose client is to be forgotten.
    answering: JoinSet<SocketAddr>,
    turn: usize,
    /// Clients at once.
    most: usize,
    /// It was said that there is no more room.
    is_full: bool,
}

impl DatagramRelay {
    async fn serve(mut self) {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let socket = Arc::clone(&self.socket);
        loop {
            tokio::select! {
                received = socket.recv_from(&mut buffer) => {
                    // An error is news of some client that is gone.
                    if let Ok((length, client)) = received {
                        self.pass(client, &buffer[..length]).await;
                    }
                }
                Some(Ok(client)) = self.answering.join_next() => {
                    self.clients.remove(&client);
                    self.is_full = false;
                }
            }
        }
    }

    /// Sends a datagram to the client's pod. A lost datagram is the client's to send again.
    async fn pass(&mut self, client: SocketAddr, datagram: &[u8]) {
        let known = self.clients.get(&client).cloned();
        let socket = match known {
            Some(socket) => Some(socket),
            None => self.begin(client).await,
        };
        if let Some(socket) = socket {
            let _ = socket.send(datagram).await;
        }
    }

    /// A socket towards a pod for a new client, if there are a pod and room.
    async fn begin(&mut self, client: SocketAddr) -> Option<Arc<UdpSocket>> {
        if self.clients.len() >= self.most {
            if !std::mem::replace(&mut self.is_full, true) {
                let (address, most) = (self.address, self.most);
                tracing::error!(
                    "the published port {address}: the limit of {most} UDP clients is reached; datagrams of other clients are dropped"
                );
            }
            return None;
        }
        let pod = {
            let targets = self.targets.borrow();
            self.turn = self.turn.wrapping_add(1);
            *targets.get(self.turn.checked_rem(targets.len())?)?
        };
        let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).await;
        let socket = Arc::new(socket.ok()?);
        socket.connect(pod).await.ok()?;
        let (from, to) = (Arc::clone(&socket), Arc::clone(&self.socket));
        self.answering.spawn(async move {
            answer(&from, &to, client).await;
            client
        });
        self.clients.insert(client, Arc::clone(&socket));
        Some(socket)
    }
}

/// Passes a pod's answers on until it says nothing any more.
async fn answer(from: &UdpSocket, to: &UdpSocket, client: SocketAddr) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    // An error means that the pod's port has no listener.
    while let Ok(Ok(length)) = timeout(SILENCE, from.recv(&mut buffer)).await {
        let _ = to.send_to(&buffer[..length], client).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::relay::RelayThread;

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let patience = Some(Duration::from_secs(20));
        socket.set_read_timeout(patience).expect("patience");
        socket
    }

    fn heard(socket: &UdpSocket) -> (String, SocketAddr) {
        let mut bytes = [0; 100];
        let (length, from) = socket.recv_from(&mut bytes).expect("a datagram");
        (String::from_utf8_lossy(&bytes[..length]).into_owned(), from)
    }

    #[test]
    fn each_client_has_one_pod_whose_answers_find_back_until_nobody_listens_there() {
        let runtime = RelayThread::start().expect("a thread");
        let relay = Datagrams::start(runtime.handle(), socket()).expect("a relay");
        let at = |socket: &UdpSocket| socket.local_addr().expect("an address");
        let pods = [socket(), socket()];
        relay.set_targets(pods.iter().map(at).collect());
        let clients = [socket(), socket()];
        for client in &clients {
            assert_eq!(client.send_to(b"first", relay.address()).expect("sent"), 5);
        }
        // They take turns.
        let ways = [heard(&pods[0]), heard(&pods[1])];
        for ((said, way), pod) in ways.iter().zip(&pods) {
            assert_eq!(said, "first");
            pod.send_to(at(pod).to_string().as_bytes(), way)
                .expect("sent");
        }
        let answers = clients.each_ref().map(heard);
        assert_ne!(answers[0].0, answers[1].0);
        for ((pod, from), client) in answers.iter().zip(&clients) {
            assert_eq!(*from, relay.address());
            client.send_to(b"again", relay.address()).expect("sent");
            let known = pods.iter().position(|one| at(one).to_string() == *pod);
            let known = known.expect("a pod");
            assert_eq!(heard(&pods[known]), ("again".to_owned(), ways[known].1));
        }
        // A pod that left is left as soon as that is known, and its client has another.
        let [gone, other] = pods;
        let orphan = answers
            .iter()
            .position(|(pod, _)| *pod == at(&gone).to_string());
        let orphan = &clients[orphan.expect("a client")];
        relay.set_targets(vec![at(&other)]);
        drop(gone);
        let began = std::time::Instant::now();
        let said = loop {
            assert!(began.elapsed() < Duration::from_secs(20), "nobody has it");
            orphan.send_to(b"still", relay.address()).expect("sent");
            other
                .set_read_timeout(Some(Duration::from_millis(50)))
                .expect("patience");
            let mut bytes = [0; 100];
            if let Ok((length, _)) = other.recv_from(&mut bytes) {
                break bytes[..length].to_vec();
            }
        };
        assert_eq!(said, b"still");
    }

    #[test]
    fn who_finds_no_room_is_not_heard_until_somebody_has_gone() {
        let runtime = RelayThread::start().expect("a thread");
        let relay = Datagrams::with_room(runtime.handle(), socket(), 1).expect("a relay");
        let at = |socket: &UdpSocket| socket.local_addr().expect("an address");
        let (first, second) = (socket(), socket());
        relay.set_targets(vec![at(&first)]);
        let clients = [socket(), socket()];
        let says = |client: &UdpSocket, text: &str| {
            let sent = client.send_to(text.as_bytes(), relay.address());
            sent.expect("sent");
        };
        says(&clients[0], "one");
        assert_eq!(heard(&first).0, "one");
        says(&clients[1], "two");
        says(&clients[0], "three");
        assert_eq!(heard(&first).0, "three");
        relay.set_targets(vec![at(&second)]);
        drop(first);
        // The relay notices a pod's end by the next datagram.
        let moment = Some(Duration::from_millis(50));
        second.set_read_timeout(moment).expect("patience");
        let began = std::time::Instant::now();
        loop {
            assert!(began.elapsed() < Duration::from_secs(20), "nobody has room");
            says(&clients[0], "four");
            says(&clients[1], "five");
            let mut bytes = [0; 100];
            if second.recv_from(&mut bytes).is_ok() {
                return;
            }
        }
    }
}
