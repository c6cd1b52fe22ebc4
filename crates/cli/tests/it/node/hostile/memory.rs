//! Callers with a good certificate that want a waypoint or a node proxy to hold much memory: heads that HPACK makes large, and
//! tunnels whose client reads nothing, on many connections.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::{Method, Request};
use voile_identity::CertificateStore;

use crate::mesh::memory_before_attack;
use crate::node::hostile::{Caller, certified, try_to_speak};
use crate::node::waypoint::hostile::{BEHIND, GATE, WEB, reflect, start_gate_with};
use crate::node::*;

/// Connections of an attack, and tunnels on each.
const CONNECTIONS: usize = 48;
const TUNNELS: usize = 100;
/// A field that HPACK repeats in one byte, and fields of a head: 16 KiB in all, the most that a head may have.
const FIELD_BYTES: usize = 3_900;
const FIELDS: usize = 4;
/// Bytes that the client of a tunnel sends to a server that sends them back, and reads none of.
const SENT: usize = 256 * 1024;
/// The limit of the waypoint.
const LIMIT: u64 = 64 * 1024 * 1024;

/// Memory that an attack may add to a node proxy, which has no limit: 4 MiB were measured.
const GROWTH: u64 = 32 * 1024 * 1024;

const MIB: u64 = 1024 * 1024;

/// What an attacker holds on to.
#[derive(Default)]
struct Held {
    callers: Vec<Caller>,
    opened: Vec<(ResponseFuture, SendStream<Bytes>)>,
    unread: Vec<(RecvStream, SendStream<Bytes>)>,
}

/// Opens tunnels whose heads HPACK makes large, to nowhere in particular.
async fn heads(store: &Arc<CertificateStore>, to: Ipv4Addr, target: &str) -> Held {
    let mut held = Held::default();
    let value = "x".repeat(FIELD_BYTES);
    for _ in 0..CONNECTIONS {
        let Some(caller) = try_to_speak(store, to).await else {
            continue;
        };
        for _ in 0..TUNNELS {
            let Ok(mut ready) = caller.clone().ready().await else {
                break;
            };
            let mut request = Request::builder().method(Method::CONNECT).uri(target);
            for _ in 0..FIELDS {
                request = request.header("x-large", &value);
            }
            let request = request.body(()).expect("a request");
            let Ok(opened) = ready.send_request(request, false) else {
                break;
            };
            held.opened.push(opened);
            tokio::task::yield_now().await;
        }
        held.callers.push(caller);
    }
    held
}

/// Opens tunnels to a server that sends everything back, and reads none of it.
async fn unread(store: &Arc<CertificateStore>, to: Ipv4Addr, target: &str) -> Held {
    let mut held = Held::default();
    for _ in 0..CONNECTIONS {
        let Some(caller) = try_to_speak(store, to).await else {
            continue;
        };
        for _ in 0..TUNNELS / 4 {
            let Ok(mut ready) = caller.clone().ready().await else {
                break;
            };
            let request = Request::builder().method(Method::CONNECT).uri(target);
            let request = request.body(()).expect("a request");
            let Ok((answer, mut send)) = ready.send_request(request, false) else {
                break;
            };
            let Ok(answer) = answer.await else { break };
            if answer.status() != 200 || send.send_data(vec![b'\n'; SENT].into(), false).is_err() {
                break;
            }
            held.unread.push((answer.into_body(), send));
        }
        held.callers.push(caller);
    }
    held
}

/// Memory of a process while it is attacked: before, and the peak.
fn attacked(
    mesh: &Mesh,
    pid: u32,
    attack: impl AsyncFnOnce(Arc<CertificateStore>) -> Held + Send,
) -> (u64, u64) {
    let before = memory_before_attack(pid);
    let tunnels = certified(mesh, "client", async |store| {
        let held = attack(store).await;
        // What was sent last is on its way: until nothing changes.
        let mut last = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = memory(pid, "VmHWM:");
            if now == last {
                break held.opened.len() + held.unread.len();
            }
            last = now;
        }
    });
    let most = memory(pid, "VmHWM:");
    println!(
        "{tunnels} tunnels: {} MiB before, {} MiB at most",
        before / MIB,
        most / MIB
    );
    (before, most)
}

/// A client, a server, and a waypoint with a memory limit.
fn started() -> Option<(Mesh, Node, [Pod; 3])> {
    let text = resources(&[("first", FIRST)]) + ZTUNNEL + &(waypoint_pod("gate", GATE) + BEHIND);
    let mut mesh = mesh_of(&text, &[])?;
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let gate = mesh.pod_with("gate", GATE, Rules::default());
    serve(&first, FIRST);
    reflect(&first);
    let pods = [(&client, "client"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    start_gate_with(&mut mesh, &gate, "shop/gate", &["--memory-limit", "64M"]);
    Some((mesh, node, [client, first, gate]))
}

fn pid_of(mesh: &Mesh, name: &str) -> u32 {
    let found = mesh.processes.iter().find(|one| one.name() == name);
    found.expect("it was started").pid()
}

#[test]
fn the_memory_limit_of_a_waypoint_holds_under_large_heads_and_tunnels_that_are_not_read() {
    let Some((mesh, _node, [client, ..])) = started() else {
        return;
    };
    let web = SocketAddr::from((WEB, 90));
    let is_served = || name(&client.inside, web).as_deref() == Some("first");
    wait_until("the service is called through the waypoint", is_served);
    let gate = pid_of(&mesh, "gate");
    let (_, most) = attacked(&mesh, gate, async |store| {
        heads(&store, GATE, "10.96.0.11:80").await
    });
    assert!(most < LIMIT, "{} MiB under large heads", most / MIB);
    wait_until("others are served again", is_served);
    let (_, most) = attacked(&mesh, gate, async |store| {
        unread(&store, GATE, "10.96.0.11:90").await
    });
    assert!(most < LIMIT, "{} MiB under unread bytes", most / MIB);
    wait_until("others are served again", is_served);
}

#[test]
fn the_memory_of_a_node_proxy_is_bounded_under_large_heads_and_tunnels_that_are_not_read() {
    let Some((mesh, node, [client, ..])) = started() else {
        return;
    };
    let service = SocketAddr::from((VIP, 80));
    let is_served = || name(&client.inside, service).as_deref() == Some("first");
    wait_until("the service is called", is_served);
    let proxy = pid_of(&mesh, node.process);
    let (before, most) = attacked(&mesh, proxy, async |store| {
        heads(&store, FIRST, "10.244.0.3:8080").await
    });
    assert!(most - before < GROWTH, "{} MiB", (most - before) / MIB);
    wait_until("others are served again", is_served);
    let (before, most) = attacked(&mesh, proxy, async |store| {
        unread(&store, FIRST, "10.244.0.3:8080").await
    });
    assert!(most - before < GROWTH, "{} MiB", (most - before) / MIB);
    wait_until("others are served again", is_served);
}
