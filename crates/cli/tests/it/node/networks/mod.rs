//! Two meshes on two networks, each with a control plane, node proxies and the very same addresses, under one authority. The only
//! way from one to the other is the test's own load balancer before the gateway.

mod beside;
mod sidecars;

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};
use voile_host::netns::Namespace;

use super::hostile::{Caller, calls_at, is_unheard, statuses_at};
use super::mixed::sidecar_of;
use super::revoked::{revoke, serial};
use super::*;
use crate::node::waypoint::hostile::{GATE, start_gate};
use crate::ztunnel::node::shared;
use crate::ztunnel::program;

/// Address of the east's gateway, on the west's network.
const ENTRANCE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 9);
pub(super) const SERVICE: (Ipv4Addr, u16) = (VIP, 80);
const OPENED: &str = "istio_tcp_connections_opened_total{";

pub(super) const WEST: &str = r#"---
apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: west}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: east
  namespace: istio-system
  labels: {topology.istio.io/network: east}
  annotations: {gateway.istio.io/service-account: gate}
spec:
  gatewayClassName: istio-remote
  addresses: [{type: IPAddress, value: 10.244.0.9}]
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: first-east, namespace: shop}
spec: {address: 10.244.0.3, network: east, serviceAccount: server, labels: {app: server}}
"#;

/// The gateway, whose pod is [`gate_pod`]; beside the service that all may call, one that is the east's own.
const EAST: &str = r#"---
apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: east}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate, namespace: istio-system, labels: {topology.istio.io/network: east}}
spec:
  gatewayClassName: istio-east-west
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: Service
metadata: {name: inner, namespace: shop}
spec:
  clusterIP: 10.96.0.12
  selector: {app: server}
  ports: [{name: tcp, port: 80, targetPort: 8080}]
"#;

/// The east: its client, its server, and the gateway.
pub(super) struct East {
    pub(super) mesh: Mesh,
    pub(super) client: Pod,
    pub(super) first: Pod,
}

/// Function that makes a pod: for our node proxy, or for a ztunnel.
type Make = fn(&Mesh, &'static str, Ipv4Addr) -> Pod;

/// The east's words.
fn eastern() -> String {
    let gate = gate_pod("istio-system", "gate", GATE);
    resources(&[("first", FIRST)]) + ZTUNNEL + EAST + &gate
}

/// These words, by which others may call the server's service.
pub(super) fn exported(text: &str) -> String {
    let private = "  name: server\n  namespace: shop\nspec:\n  clusterIP";
    let global = "  name: server\n  namespace: shop\n  labels: {istio.io/global: \"true\"}\nspec:\n  clusterIP";
    assert!(text.contains(private));
    text.replace(private, global)
}

/// The label by which sidecars say that they take tunnels.
pub(super) const TAKES: &str = "    networking.istio.io/tunnel: http\n";

/// The same where the server has a sidecar that takes tunnels.
pub(super) fn sided() -> String {
    let labels = "  name: first\n  namespace: shop\n  labels:\n    app: server\n";
    let text = eastern();
    assert!(text.contains(labels));
    let more = format!("{labels}    sidecar.istio.io/inject: \"true\"\n{TAKES}");
    text.replace(labels, &more)
}

impl East {
    fn start(make: Make) -> Option<Self> {
        Self::start_with(make, "")
    }

    /// Beside more resources.
    pub(super) fn start_with(make: Make, more: &str) -> Option<Self> {
        Self::start_of(&(eastern() + more), make, make)
    }

    /// Beside more resources, and its server with a sidecar.
    pub(super) fn start_sided(more: &str) -> Option<Self> {
        let mut east = Self::start_of(&(sided() + more), pod, Mesh::pod)?;
        sidecar_of(&mut east.mesh, &east.first, "server");
        Some(east)
    }

    fn start_of(text: &str, make: Make, make_server: Make) -> Option<Self> {
        let mut mesh = mesh(&exported(text))?;
        let client = make(&mesh, "client", CLIENT);
        let first = make_server(&mesh, "first", FIRST);
        serve(&first, FIRST);
        let gate = mesh.pod_with("gate", GATE, Rules::default());
        start_gate(&mut mesh, &gate, "istio-system/gate");
        Some(Self {
            mesh,
            client,
            first,
        })
    }

    /// Its node proxy.
    pub(super) fn node(&mut self) -> Node {
        let pods = [(&self.client, "client"), (&self.first, "server")];
        Node::start(&mut self.mesh, "ztunnel-one", 0, &pods, &[])
    }
}

/// The west, whose client calls a service without near endpoints, and the address at which connections enter
/// the east.
pub(super) struct West {
    pub(super) mesh: Mesh,
    pub(super) client: Pod,
    leads_to: Arc<Mutex<SocketAddr>>,
}

impl West {
    pub(super) fn start(east: &East, make: Make) -> Option<Self> {
        Self::start_as(east, make, WEST)
    }

    /// In these words.
    pub(super) fn start_as(east: &East, make: Make, words: &str) -> Option<Self> {
        let mesh = mesh_trusting(&(resources(&[]) + ZTUNNEL + words), &east.mesh)?;
        let client = make(&mesh, "client", CLIENT);
        let leads_to = Arc::new(Mutex::new(SocketAddr::from((GATE, 15008))));
        let west = Self {
            mesh,
            client,
            leads_to,
        };
        west.enter(east, "entrance", ENTRANCE);
        Some(west)
    }

    /// From now on connections into the east go to this address.
    pub(super) fn lead_to(&self, there: SocketAddr) {
        *self.leads_to.lock().expect("nobody panicked") = there;
    }

    /// The east is entered here, too. Says how often it was.
    pub(super) fn enter(&self, east: &East, name: &'static str, at: Ipv4Addr) -> Arc<AtomicUsize> {
        let entrance = self.mesh.pod_with(name, at, Rules::default());
        let listener = listen(&entrance.inside, (at, 15008));
        lead(listener, &east.mesh.world, Arc::clone(&self.leads_to))
    }

    /// Its node proxy, which has one worker: those of several share no connections.
    pub(super) fn node(&mut self) -> Node {
        let pods = [(&self.client, "client")];
        let one = ["--workers", "1"];
        Node::start(&mut self.mesh, "ztunnel-one", 0, &pods, &one)
    }
}

/// Leads connections from one network to an address of another, as they are, and counts them.
fn lead(listener: TcpListener, into: &Namespace, to: Arc<Mutex<SocketAddr>>) -> Arc<AtomicUsize> {
    let (into, led) = (into.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&led);
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            // One end may have left.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    };
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let Ok(near) = near else { return };
            count.fetch_add(1, Ordering::Relaxed);
            let to = *to.lock().expect("nobody panicked");
            let Ok(Ok(far)) = into.run(|| TcpStream::connect(to)) else {
                continue;
            };
            let twice = |stream: &TcpStream| stream.try_clone().expect("the same");
            pass(twice(&near), twice(&far));
            pass(far, near);
        }
    });
    led
}

/// More than all windows and buffers on the way hold, there and back.
pub(super) fn carries_much(open: &mut TcpStream) {
    let all: Vec<u8> = (0..3_000_001_u32).map(|n| (n / 251) as u8).collect();
    let mut half = open.try_clone().expect("the same");
    let sent = all.clone();
    std::thread::spawn(move || half.write_all(&sent).expect("taken"));
    let mut heard = vec![0; all.len()];
    open.read_exact(&mut heard).expect("all of it");
    assert!(heard == all, "whole and in order");
}

pub(super) const ELSE: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: second\n  namespace: shop\n  labels:\n    app: server\nspec:\n  \
    serviceAccountName: server\n  nodeName: one\n  containers:\n  - name: app\nstatus:\n  phase: Running\n  podIP: 10.244.0.4\n";

#[test]
fn pods_of_two_networks_speak_by_their_own_identities_under_the_policy_of_who_is_called() {
    let Some(mut east) = East::start(pod) else {
        return;
    };
    let called = east.node();
    let Some(mut west) = West::start(&east, pod) else {
        return;
    };
    let calling = west.node();
    assert_eq!(name(&west.client.inside, SERVICE).as_deref(), Some("first"));
    wait_until(
        "the east counts it by the western client's identity",
        || is_counted(&called.metrics(&east.mesh)),
    );
    wait_until("both sides tell of both identities", || {
        is_told(&calling.log(&west.mesh), "outbound") && is_told(&called.log(&east.mesh), "inbound")
    });
    // Many connections share the way to the gateway; what is inside is each one's own, and ends with it.
    for _ in 0..5 {
        assert!(name(&west.client.inside, SERVICE).is_some());
    }
    wait_until("nothing but the way to the gateway is kept", || {
        calling.counter(&west.mesh, "voile_node_pooled_tunnels") == 1
    });
    let (_, mut open) = answers(&west.client.inside, SERVICE).expect("the far server");
    carries_much(&mut open);
    // A policy of the east takes hold of new connections and of those that are open.
    east.mesh.write("deny.yaml", DENIED);
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    let cut = open.read(&mut [0; 16]);
    let reset = cut.expect_err("the open connection is cut, and does not look finished");
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(name(&west.client.inside, SERVICE), None, "nor a new one");
    east.mesh.remove("deny.yaml");
    wait_until("the policy is gone", || {
        name(&west.client.inside, SERVICE).as_deref() == Some("first")
    });
    // A workload of the other network is not called by its own address: here another pod may have that address, or
    // none.
    let direct = west
        .client
        .inside
        .run(|| TcpStream::connect_timeout(&(FIRST, APPLICATION).into(), Duration::from_secs(5)));
    let heard = direct.expect("entered").map(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.read(&mut [0; 16])
    });
    assert!(!matches!(heard, Ok(Ok(1..))), "{heard:?}");
}

#[test]
fn who_is_near_is_called_as_long_as_anybody_there_is_well() {
    let Some(mut east) = East::start(pod) else {
        return;
    };
    let _called = east.node();
    let Some(mut west) = West::start(&east, pod) else {
        return;
    };
    west.mesh.write("second.yaml", ELSE);
    let second = pod(&west.mesh, "second", SECOND);
    serve(&second, SECOND);
    let pods = [(&west.client, "client"), (&second, "server")];
    let _calling = Node::start(&mut west.mesh, "ztunnel-one", 0, &pods, &[]);
    for _ in 0..16 {
        let called = name(&west.client.inside, SERVICE);
        assert_eq!(called.as_deref(), Some("second"));
    }
    let pending = ELSE.replace("phase: Running", "phase: Pending");
    west.mesh.write("second.yaml", &pending);
    wait_until("the other network is called", || {
        name(&west.client.inside, SERVICE).as_deref() == Some("first")
    });
    west.mesh.write("second.yaml", ELSE);
    wait_until("and no more once somebody is near", || {
        (0..8).all(|_| name(&west.client.inside, SERVICE).as_deref() == Some("second"))
    });
}

#[test]
fn whoever_is_not_who_was_expected_hears_nothing() {
    let Some(mut east) = East::start(pod) else {
        return;
    };
    let called = east.node();
    let Some(mut west) = West::start(&east, pod) else {
        return;
    };
    // A node proxy of the east stands where the gateway should be.
    west.lead_to((FIRST, 15008).into());
    let pods = [(&west.client, "client")];
    let calling = Node::start(&mut west.mesh, "ztunnel-one", 0, &pods, &[]);
    let (entered, west, client) = (&west, &west.mesh, &west.client.inside);
    let refused = |what: &str, word: &str| {
        wait_until(what, || {
            name(client, SERVICE).is_none() && calling.log(west).contains(word)
        });
    };
    refused("the gateway is somebody else", "TLS_FAILURE");
    assert_eq!(called.counter(&east.mesh, OPENED), 0);
    entered.lead_to((GATE, 15008).into());
    assert_eq!(name(client, SERVICE).as_deref(), Some("first"));
    // Behind the gateway another workload answers than the expected one.
    let mesh = resources(&[]) + ZTUNNEL + WEST;
    let other = mesh.replace("serviceAccount: server", "serviceAccount: other");
    west.write("mesh.yaml", &other);
    refused("who answers is not who was expected", "sa/other");
    // The gateway is not who it must be.
    let other = mesh.replace("service-account: gate", "service-account: keeper");
    west.write("mesh.yaml", &other);
    refused("the gateway is not who was expected", "sa/keeper");
    // The gateway's expected identity is not given.
    let said = "  annotations: {gateway.istio.io/service-account: gate}\n";
    west.write("mesh.yaml", &mesh.replace(said, ""));
    refused("nobody is called", "has no endpoint");
    west.write("mesh.yaml", &mesh);
    wait_until("all is well again", || {
        name(client, SERVICE).as_deref() == Some("first")
    });
}

#[test]
fn who_is_believed_no_longer_here_carries_nothing_more_from_another_network() {
    let Some(mut east) = East::start(pod) else {
        return;
    };
    let called = east.node();
    let Some(mut west) = West::start(&east, pod) else {
        return;
    };
    let _calling = west.node();
    let (said, mut open) = answers(&west.client.inside, SERVICE).expect("the far server");
    assert_eq!(said, "first");
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    // The east's own lists say nothing of it: there it goes on being shown.
    revoke(&west.mesh, &serial(&called.log(&east.mesh), "server"));
    let cut = open.read(&mut [0; 16]);
    let reset = cut.expect_err("the open connection is cut, and does not look finished");
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(name(&west.client.inside, SERVICE), None, "nor a new one");
    assert_eq!(
        name(&east.client.inside, SERVICE).as_deref(),
        Some("first"),
        "who is there goes on"
    );
}

/// Opens a tunnel to this target and sends bytes that are no TLS handshake. Returns the answer.
async fn said_in_plaintext(caller: SendRequest<Bytes>, target: &str) -> Vec<u8> {
    let request = Request::builder().method(Method::CONNECT).uri(target);
    let mut caller = caller.ready().await.expect("room");
    let request = request.body(()).expect("a request");
    let (answer, mut send) = caller.send_request(request, false).expect("sent");
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let said = Bytes::from_static(b"GET / HTTP/1.1\r\nhost: first\r\n\r\n");
    send.send_data(said, false).expect("sent");
    let mut body = answer.into_body();
    let mut heard = Vec::new();
    while let Some(Ok(chunk)) = body.data().await {
        heard.extend_from_slice(&chunk);
    }
    heard
}

#[test]
fn a_gateway_between_networks_leads_to_exported_services_and_nowhere_else() {
    let Some(mut east) = East::start(pod) else {
        return;
    };
    let called = east.node();
    let mesh = &east.mesh;
    let asked = [
        (Method::CONNECT, "server.shop.svc.cluster.local:80"),
        (Method::CONNECT, "SERVER.shop.svc.cluster.local:80"),
        // Another port, a service that is not exported, addresses of the service, of pods, of this machine, the control plane,
        // the gateway itself, the world, and no tunnel at all.
        (Method::CONNECT, "server.shop.svc.cluster.local:8080"),
        (Method::CONNECT, "server.shop.svc.cluster.local:15008"),
        (Method::CONNECT, "inner.shop.svc.cluster.local:80"),
        (Method::CONNECT, "10.96.0.10:80"),
        (Method::CONNECT, "10.244.0.3:8080"),
        (Method::CONNECT, "10.244.0.3:15008"),
        (Method::CONNECT, "127.0.0.1:15000"),
        (Method::CONNECT, "10.244.0.1:15012"),
        (Method::CONNECT, "gate.istio-system.svc.cluster.local:15008"),
        (Method::CONNECT, "example.com:443"),
        (Method::GET, "https://server.shop.svc.cluster.local:80/"),
    ];
    let found = statuses_at(mesh, GATE, &asked);
    assert_eq!(
        found,
        [
            200, 200, 404, 404, 404, 404, 404, 404, 404, 404, 404, 404, 400
        ]
    );
    // Only the node proxy reads bytes that are passed on, and it wants a handshake.
    let heard = calls_at(mesh, "client", GATE, async |caller: Caller| {
        said_in_plaintext(caller, "server.shop.svc.cluster.local:80").await
    });
    let alert = heard.first().is_none_or(|first| *first == 21);
    assert!(alert, "{heard:?}");
    assert_eq!(
        called.counter(mesh, OPENED),
        0,
        "the application was never called"
    );
    // Without an identity of the mesh not even that.
    let said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert!(
        is_unheard(mesh, GATE, said),
        "TLS says no, and nobody anything else"
    );
    // A service that is no longer exported is no longer reachable.
    mesh.write("mesh.yaml", &eastern());
    wait_until("it is not there for others any more", || {
        statuses_at(mesh, GATE, &asked[..1]) == [404]
    });
}

#[test]
fn a_ztunnel_goes_to_another_network_through_our_gateway_as_our_node_proxy_does() {
    let Some(program) = program() else {
        return;
    };
    let Some(mut east) = East::start(pod) else {
        return;
    };
    let called = east.node();
    let Some(mut west) = West::start(&east, Mesh::pod) else {
        return;
    };
    let mut agent = shared(&mut west.mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&west.client, "client");
    agent.complete();
    wait_until("a ztunnel calls ours", || {
        name(&west.client.inside, SERVICE).as_deref() == Some("first")
    });
    wait_until("ours tells of its identity", || {
        is_told(&called.log(&east.mesh), "inbound")
    });
    // It is as strict as ours about who answers there.
    let mesh = resources(&[]) + ZTUNNEL + WEST;
    let other = mesh.replace("serviceAccount: server", "serviceAccount: other");
    west.mesh.write("mesh.yaml", &other);
    wait_until("somebody else answers", || {
        name(&west.client.inside, SERVICE).is_none()
    });
}

#[test]
fn a_ztunnel_is_called_from_another_network_through_our_gateway_as_our_node_proxy_is() {
    let Some(program) = program() else {
        return;
    };
    let Some(mut east) = East::start(Mesh::pod) else {
        return;
    };
    let mut agent = shared(&mut east.mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&east.first, "server");
    agent.complete();
    let Some(mut west) = West::start(&east, pod) else {
        return;
    };
    let _calling = west.node();
    wait_until("ours calls a ztunnel", || {
        name(&west.client.inside, SERVICE).as_deref() == Some("first")
    });
    wait_until("it tells of our identity", || {
        let mut all = east.mesh.processes.iter();
        let ztunnel = all.find(|process| process.name() == "ztunnel-one");
        let log = ztunnel.expect("it was started").log();
        log.contains("spiffe://cluster.local/ns/shop/sa/client")
    });
}
