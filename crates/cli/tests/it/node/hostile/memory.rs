//! Callers with a good certificate that want a waypoint or a node proxy to hold much memory: heads that HPACK makes large, bytes
//! that an application does not take, and bytes that the client does not take, on many connections. Others call meanwhile.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Ping, PingPong, RecvStream, SendStream};
use http::{Method, Request};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use voile_identity::{CertificateStore, mesh_client_config};
use voile_transport::{Origin, TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream, connect_tls};

use crate::mesh::memory_before_attack;
use crate::node::hostile::{Caller, certified};
use crate::node::waypoint::hostile::{BEHIND, GATE, WEB, reflect, start_gate_with};
use crate::node::*;

/// Connections of an attack.
const CONNECTIONS: usize = 96;
/// Tunnels with large heads on each.
const HEADS: usize = 100;
/// A field that HPACK repeats in one byte, and fields of a head: 16 KiB in all, the most that a head may have.
const FIELD_BYTES: usize = 3_900;
const FIELDS: usize = 4;
/// Tunnels on each connection whose client takes nothing.
const UNREAD: usize = 4;
/// Tunnels on each connection whose server takes nothing: together they may fill the window of the connection.
const UNTAKEN: usize = 8;
/// The window of a connection of HBONE, for each end.
const WINDOW: u32 = 16 << 20;
/// Bytes that are sent at a time.
const CHUNK: usize = 64 << 10;
/// The limit of the attacked proxy.
const LIMIT: u64 = 128 << 20;
const MIB: u64 = 1 << 20;
/// Calls in a row after which a peak that did not change is the last.
const SETTLED: u32 = 20;
/// Longest time in which nobody else may be served.
const LONGEST_GAP: Duration = Duration::from_secs(5);

/// Applications at these ports of the server: one reads nothing, one sends without end.
const DEAF: u16 = 8082;
const TALKER: u16 = 8083;

/// A connection whose client can stop reading from its socket.
struct Deafened {
    stream: TransportStream,
    deaf: Rc<Cell<bool>>,
}

impl AsyncRead for Deafened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.deaf.get() {
            true => Poll::Pending,
            false => Pin::new(&mut self.stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Deafened {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// One connection of the attack.
struct Attacker {
    caller: Caller,
    pings: PingPong,
    deaf: Rc<Cell<bool>>,
}

impl Attacker {
    /// Connects with windows as large as the proxy's; none if it is refused.
    async fn connect(store: &Arc<CertificateStore>, to: Ipv4Addr) -> Option<Self> {
        let config = mesh_client_config(store, &[b"h2"]).expect("TLS");
        let to = SocketAddr::from((to, 15008));
        let tcp = voile_transport::connect(to, Origin::default(), TLS_HANDSHAKE_TIMEOUT);
        let io = TcpIo::from(tcp.await.ok()?);
        let name = ServerName::from(to.ip());
        let stream = connect_tls(config, name, io, TLS_HANDSHAKE_TIMEOUT).await;
        let (stream, deaf) = (stream.ok()?, Rc::new(Cell::new(false)));
        let stream = Deafened {
            stream,
            deaf: Rc::clone(&deaf),
        };
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW);
        builder.initial_connection_window_size(WINDOW);
        let (caller, mut connection) = builder.handshake(stream).await.ok()?;
        let pings = connection.ping_pong().expect("asked for once");
        tokio::task::spawn_local(async move {
            // It may end as it likes.
            let _ = connection.await;
        });
        Some(Self {
            caller,
            pings,
            deaf,
        })
    }

    /// Asks for a tunnel, with these fields.
    async fn ask(
        &self,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Option<(ResponseFuture, SendStream<Bytes>)> {
        let mut request = Request::builder().method(Method::CONNECT).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let mut ready = self.caller.clone().ready().await.ok()?;
        ready.send_request(request, false).ok()
    }

    async fn open(&self, target: &str) -> Option<(RecvStream, SendStream<Bytes>)> {
        let (answer, send) = self.ask(target, &[]).await?;
        let answer = answer.await.ok()?;
        (answer.status() == 200).then(|| (answer.into_body(), send))
    }

    /// Returns true if the proxy has read what was sent before.
    async fn is_heard(&mut self) -> bool {
        self.pings.ping(Ping::opaque()).await.is_ok()
    }

    /// Sends until no window is left. Returns the bytes that the proxy has read.
    async fn fill(&mut self, tunnels: &mut [(RecvStream, SendStream<Bytes>)]) -> usize {
        let chunk = Bytes::from_static(&[0; CHUNK]);
        let mut taken = 0;
        loop {
            let mut sent = 0;
            for (_, send) in &mut *tunnels {
                send.reserve_capacity(CHUNK);
                let room = send.capacity().min(CHUNK);
                if room > 0 && send.send_data(chunk.slice(..room), false).is_ok() {
                    sent += room;
                }
            }
            if sent == 0 || !self.is_heard().await {
                return taken;
            }
            taken += sent;
        }
    }
}

/// What an attacker holds on to, and the bytes that the proxy has read of it.
#[derive(Default)]
struct Held {
    attackers: Vec<Attacker>,
    asked: Vec<(ResponseFuture, SendStream<Bytes>)>,
    tunnels: Vec<(RecvStream, SendStream<Bytes>)>,
    taken: usize,
}

/// Opens tunnels whose heads HPACK makes large, to nowhere in particular.
async fn heads(store: &Arc<CertificateStore>, to: Ipv4Addr, target: &str) -> Held {
    let mut held = Held::default();
    let value = "x".repeat(FIELD_BYTES);
    let fields = [("x-large", &*value); FIELDS];
    for _ in 0..CONNECTIONS {
        let Some(mut attacker) = Attacker::connect(store, to).await else {
            continue;
        };
        for _ in 0..HEADS {
            let Some(asked) = attacker.ask(target, &fields).await else {
                break;
            };
            held.asked.push(asked);
            tokio::task::yield_now().await;
        }
        attacker.is_heard().await;
        held.attackers.push(attacker);
    }
    held
}

/// Opens tunnels to a server that takes nothing on so many connections, and fills the windows of all at the same time.
async fn untaken(
    store: &Arc<CertificateStore>,
    (to, target): (Ipv4Addr, &str),
    connections: usize,
) -> Held {
    let mut held = Held::default();
    let mut filling = Vec::new();
    for _ in 0..connections {
        let mut attacker = Attacker::connect(store, to).await.expect("room");
        let mut tunnels = Vec::new();
        for _ in 0..UNTAKEN {
            tunnels.push(attacker.open(target).await.expect("a tunnel"));
        }
        filling.push(async move {
            let taken = attacker.fill(&mut tunnels).await;
            (attacker, tunnels, taken)
        });
    }
    let filling: Vec<_> = filling.into_iter().map(tokio::task::spawn_local).collect();
    for filled in filling {
        let (attacker, tunnels, taken) = filled.await.expect("filled");
        held.attackers.push(attacker);
        held.tunnels.extend(tunnels);
        held.taken += taken;
    }
    held
}

/// Opens tunnels to a server that sends without end, and reads nothing any more, not even from the socket.
async fn unread(store: &Arc<CertificateStore>, to: Ipv4Addr, target: &str) -> Held {
    let mut held = Held::default();
    for _ in 0..CONNECTIONS {
        let Some(attacker) = Attacker::connect(store, to).await else {
            continue;
        };
        for _ in 0..UNREAD {
            held.tunnels.extend(attacker.open(target).await);
        }
        attacker.deaf.set(true);
        held.attackers.push(attacker);
    }
    held
}

/// A server that takes nothing, and one that sends without end.
fn serve_badly(pod: &Pod) {
    let (deaf, talker) = (
        listen(&pod.inside, (FIRST, DEAF)),
        listen(&pod.inside, (FIRST, TALKER)),
    );
    // What the kernel keeps for it is no part of the attack.
    set_socket_recv_buffer_size(&deaf, 4096).expect("a size");
    std::thread::spawn(move || {
        let open: Vec<_> = deaf.incoming().collect();
        drop(open);
    });
    std::thread::spawn(move || {
        for stream in talker.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || while stream.write_all(&[0; CHUNK]).is_ok() {});
        }
    });
}

/// Calls of somebody else during an attack.
#[derive(Debug, Default)]
struct HonestCalls {
    answered: u32,
    refused: u32,
    longest_gap: Duration,
}

/// Does this while somebody else calls over and over.
fn meanwhile<T: Send>(
    call: impl Fn() -> bool + Sync,
    attack: impl FnOnce() -> T,
) -> (T, HonestCalls) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let (mut calls, mut last) = (HonestCalls::default(), Instant::now());
            while !over.load(Ordering::Relaxed) {
                if !call() {
                    calls.refused += 1;
                    continue;
                }
                calls.answered += 1;
                calls.longest_gap = calls.longest_gap.max(last.elapsed());
                last = Instant::now();
            }
            calls.longest_gap = calls.longest_gap.max(last.elapsed());
            calls
        });
        let done = attack();
        over.store(true, Ordering::Relaxed);
        (done, calling.join().expect("a caller"))
    })
}

/// Attacks a proxy while somebody else calls. Returns its memory at most, and what its heap grew by.
fn attacked(
    (mesh, pid): (&Mesh, u32),
    is_served: &(impl Fn() -> bool + Sync),
    attack: impl AsyncFnOnce(Arc<CertificateStore>) -> Held + Send,
) -> (u64, u64) {
    let before = memory_before_attack(pid);
    let heap = || memory(pid, "RssAnon:");
    let heap_before = heap();
    let peak = || memory(pid, "VmHWM:");
    let (grown, calls) = meanwhile(is_served, || {
        certified(mesh, "client", async |store| {
            let held = attack(store).await;
            // What was sent last is on its way: until nothing changes while others are served.
            let (mut same, mut last) = (0, 0);
            wait_until("the attack is at its height", || {
                let now = peak();
                same = if now == last { same + 1 } else { 0 };
                last = now;
                same >= SETTLED
            });
            let (tunnels, connections) =
                (held.asked.len() + held.tunnels.len(), held.attackers.len());
            println!(
                "{connections} connections, {tunnels} tunnels, {} MiB read",
                held.taken as u64 / MIB
            );
            heap().saturating_sub(heap_before)
        })
    });
    let most = peak();
    println!(
        "{} MiB before, {} MiB at most, the heap {} MiB more; {calls:?}",
        before / MIB,
        most / MIB,
        grown / MIB
    );
    assert!(
        calls.answered > 0 && calls.longest_gap < LONGEST_GAP,
        "{calls:?}"
    );
    wait_until("others are served again", is_served);
    (most, grown)
}

/// A client, a server, and a waypoint with a memory limit.
fn started() -> Option<(Mesh, Node, [Pod; 3])> {
    let ports = "{name: tcp, port: 90, targetPort: 8080}";
    let deaf = format!("{ports}, {{name: tcp-deaf, port: 91, targetPort: {DEAF}}}");
    let behind = BEHIND.replace(ports, &deaf);
    let text = resources(&[("first", FIRST)]) + ZTUNNEL + &(waypoint_pod("gate", GATE) + &behind);
    let mut mesh = mesh_of(&text, &[])?;
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let gate = mesh.pod_with("gate", GATE, Rules::default());
    serve(&first, FIRST);
    reflect(&first);
    let pods = [(&client, "client"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    start_gate_with(&mut mesh, &gate, "shop/gate", &["--memory-limit", "128M"]);
    Some((mesh, node, [client, first, gate]))
}

/// A client, and a server on another node, whose node proxy has this memory limit.
fn on_nodes(limit: &str) -> Option<(Mesh, [Node; 2], [Pod; 2])> {
    let mut mesh = mesh_of(&on_two_nodes(&[("first", FIRST)]), &[])?;
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    serve_badly(&first);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let limit = ["--memory-limit", limit];
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &limit);
    Some((mesh, [one, two], [client, first]))
}

fn pid_of(mesh: &Mesh, name: &str) -> u32 {
    let found = mesh.processes.iter().find(|one| one.name() == name);
    found.expect("it was started").pid()
}

#[test]
fn the_memory_limit_of_a_waypoint_holds_under_large_heads_and_bytes_that_are_not_taken() {
    let Some((mesh, _node, [client, first, _gate])) = started() else {
        return;
    };
    serve_badly(&first);
    let web = SocketAddr::from((WEB, 90));
    let is_served = || name(&client.inside, web).as_deref() == Some("first");
    wait_until("the service is called through the waypoint", is_served);
    let gate = (&mesh, pid_of(&mesh, "gate"));
    let (most, _) = attacked(gate, &is_served, async |store| {
        heads(&store, GATE, "10.96.0.11:80").await
    });
    assert!(most < LIMIT, "{} MiB under large heads", most / MIB);
    let (most, _) = attacked(gate, &is_served, async |store| {
        unread(&store, GATE, "10.96.0.11:90").await
    });
    assert!(most < LIMIT, "{} MiB under unread bytes", most / MIB);
    let (most, _) = attacked(gate, &is_served, async |store| {
        untaken(&store, (GATE, "10.96.0.11:91"), CONNECTIONS).await
    });
    assert!(
        most < LIMIT,
        "{} MiB under bytes that the server does not take",
        most / MIB
    );
}

#[test]
fn one_connection_fills_its_window_at_a_node_proxy_without_a_limit() {
    let Some((mesh, _nodes, [client, _first])) = on_nodes("off") else {
        return;
    };
    let service = SocketAddr::from((VIP, 80));
    let is_served = || name(&client.inside, service).as_deref() == Some("first");
    wait_until("the service is called", is_served);
    let proxy = (&mesh, pid_of(&mesh, "ztunnel-two"));
    let target = (FIRST, "10.244.0.3:8082");
    let (_, grown) = attacked(proxy, &is_served, async |store| {
        untaken(&store, target, 1).await
    });
    let window = u64::from(WINDOW);
    // Windows are given back in halves, and some of it waits in the sockets of the applications.
    assert!(grown >= window / 2 && grown < 2 * window, "{grown}");
}

#[test]
fn the_memory_limit_of_a_node_proxy_holds_under_large_heads_and_bytes_that_are_not_taken() {
    let Some((mesh, _nodes, [client, _first])) = on_nodes("128M") else {
        return;
    };
    let service = SocketAddr::from((VIP, 80));
    let is_served = || name(&client.inside, service).as_deref() == Some("first");
    wait_until("the service is called", is_served);
    let proxy = (&mesh, pid_of(&mesh, "ztunnel-two"));
    let (most, _) = attacked(proxy, &is_served, async |store| {
        heads(&store, FIRST, "10.244.0.3:8080").await
    });
    assert!(most < LIMIT, "{} MiB under large heads", most / MIB);
    let (most, _) = attacked(proxy, &is_served, async |store| {
        unread(&store, FIRST, "10.244.0.3:8083").await
    });
    assert!(
        most < LIMIT,
        "{} MiB under bytes that the client does not take",
        most / MIB
    );
    let (most, _) = attacked(proxy, &is_served, async |store| {
        untaken(&store, (FIRST, "10.244.0.3:8082"), CONNECTIONS).await
    });
    assert!(
        most < LIMIT,
        "{} MiB under bytes that the server does not take",
        most / MIB
    );
}
