//! Attacks of pods and their callers on a node proxy: another pod's address, the proxy's own port, another identity, forged
//! headers, a hundred thousand streams. All of them fail, and no other pod notices.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use voile_testkit::{TestAuthority, hostile_server_config};

use crate::mesh::application;
use crate::node::hostile::{Caller, calls_at, certified, speak};
use crate::node::*;

const SERVICE: (Ipv4Addr, u16) = (VIP, 80);

/// A third pod of the node, with an account of its own.
const OTHER: &str = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: other, namespace: shop}\n\
    ---\napiVersion: v1\nkind: Pod\nmetadata: {name: other, namespace: shop, labels: {app: other}}\n\
    spec: {serviceAccountName: other, nodeName: one, containers: [{name: app}]}\nstatus: {phase: Running, podIP: 10.244.0.4}\n";

/// The servers allow only this source.
fn only(source: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: only, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: server}}}}\n  rules: [{{from: [{{source: {{{source}}}}}]}}]\n"
    )
}

/// Connects from this address, which the pod has given itself.
fn from_address(pod: &Pod, own: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let connecting = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &SocketAddr::from((own, 0)))?;
        rustix::net::connect(&socket, &to)?;
        Ok(TcpStream::from(socket))
    };
    pod.inside.run(connecting).expect("entered")
}

/// First bytes from the other end; none of a connection that is reset.
fn heard(stream: std::io::Result<TcpStream>) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = stream {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("open");
        let mut bytes = [0; 64];
        // One word is enough.
        if let Ok(read) = stream.read(&mut bytes) {
            text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
    text
}

#[test]
fn a_pod_with_anothers_address_is_neither_that_nor_anybody() {
    let text = resources(&[("first", FIRST)]) + ZTUNNEL + OTHER;
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let other = pod(&mesh, "other", SECOND);
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&first, "server"), (&other, "other")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    let given = client.inside.run(|| {
        std::process::Command::new("ip")
            .args(["address", "add", "10.244.0.4/32", "dev", "lo"])
            .status()
    });
    assert!(given.expect("entered").expect("ip").success());
    let spoofed = || heard(from_address(&client, SECOND, SERVICE.into()));
    for source in [
        "principals: [cluster.local/ns/shop/sa/other]",
        "ipBlocks: [10.244.0.4]",
    ] {
        mesh.write("only.yaml", &only(source));
        wait_until("the other pod is let in alone", || {
            name(&other.inside, SERVICE).as_deref() == Some("first")
                && name(&client.inside, SERVICE).is_none()
        });
        assert_eq!(spoofed(), "", "{source}");
    }
    wait_until("it is said why", || {
        node.log(&mesh)
            .contains("10.244.0.4 is not an address of the pod")
    });
    // By its own address it is who it is.
    mesh.write(
        "only.yaml",
        &only("principals: [cluster.local/ns/shop/sa/client]"),
    );
    wait_until("it is let in", || {
        name(&client.inside, SERVICE).as_deref() == Some("first")
    });
    assert_eq!(spoofed(), "");
    assert_eq!(name(&other.inside, SERVICE), None);
}

#[test]
fn a_pod_that_opens_the_proxys_port_itself_hears_nothing_and_cannot_where_the_proxy_has_it() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    // No proxy serves this pod: its application claims the expected identity, by an authority of its own.
    let authority = TestAuthority::new();
    let certificate = (&authority.certificate("shop", "server")).into();
    let mut config = ServerConfig::clone(&hostile_server_config(&certificate));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (config, told) = (Arc::new(config), Arc::new(Mutex::new((0, Vec::new()))));
    let telling = Arc::clone(&told);
    application::serve(listen(&first.inside, (FIRST, 15008)), move |stream| {
        let tls = ServerConnection::new(Arc::clone(&config)).expect("a server");
        let mut stream = StreamOwned::new(tls, stream);
        let mut bytes = Vec::new();
        // However it ends.
        let _ = stream.read_to_end(&mut bytes);
        let mut told = telling.lock().expect("nobody panicked");
        told.0 += 1;
        told.1.extend(bytes);
    });
    let calling = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    wait_until("it is called", || {
        assert_eq!(name(&client.inside, SERVICE), None);
        told.lock().expect("nobody panicked").0 > 0
    });
    assert!(told.lock().expect("nobody panicked").1.is_empty());
    wait_until("it is said why", || {
        calling.log(&mesh).contains("TLS_FAILURE")
    });
    // No other program can bind a node proxy's ports in a pod it serves, shared or not.
    for port in [15001, 15006, 15008] {
        for address in [CLIENT, Ipv4Addr::UNSPECIFIED] {
            let taking = || {
                let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
                set_socket_reuseport(&socket, true)?;
                rustix::net::bind(&socket, &SocketAddr::from((address, port)))
            };
            let taken = client.inside.run(taking).expect("entered");
            assert!(taken.is_err(), "{address}:{port}");
        }
    }
}

#[test]
fn what_belongs_to_an_identity_that_a_pod_has_no_longer_ends_and_the_next_one_is_expected() {
    let text = on_two_nodes(&[("first", FIRST)])
        + "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: next, namespace: shop}\n";
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let calling = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let called = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    let (_, mut open) = answers(&client.inside, SERVICE).expect("the server");
    // The mesh says that another account's pod is there, and its node's agent has not said so yet.
    let next = text.replacen("serviceAccountName: server", "serviceAccountName: next", 1);
    assert_ne!(next, text);
    mesh.write("mesh.yaml", &next);
    wait_until("nobody is called who is not that", || {
        name(&client.inside, SERVICE).is_none()
    });
    called.agent.remove("first");
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    let cut = open.read(&mut [0; 16]).expect_err("it is cut");
    assert_eq!(cut.kind(), std::io::ErrorKind::ConnectionReset);
    called.agent.add(&first, "next");
    wait_until("the next one is called", || {
        name(&client.inside, SERVICE).as_deref() == Some("first")
    });
    let of =
        |account: &str| format!("dst.identity=\"spiffe://cluster.local/ns/shop/sa/{account}\"");
    wait_until("by its own identity", || {
        calling.log(&mesh).contains(&of("next"))
    });
}

/// The status of a CONNECT with these headers.
async fn asked(caller: &SendRequest<Bytes>, headers: &[(&str, &str)]) -> u16 {
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri("10.244.0.3:8080");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut caller = caller.clone().ready().await.expect("room");
    let request = request.body(()).expect("a request");
    let (answer, _send) = caller.send_request(request, false).expect("sent");
    answer.await.expect("an answer").status().as_u16()
}

#[test]
fn who_calls_is_whose_certificate_it_is_whatever_the_heads_say() {
    let text = resources(&[("first", FIRST)]) + ZTUNNEL + OTHER;
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let first = pod(&mesh, "first", FIRST);
    serve(&first, FIRST);
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &[(&first, "server")], &[]);
    let forged = [
        (
            "baggage",
            "k8s.namespace.name=shop,k8s.pod.name=other,service.name=other",
        ),
        ("forwarded", "for=\"10.244.0.4:4000\";host=web"),
        ("x-forwarded-for", "10.244.0.4"),
        (
            "x-forwarded-client-cert",
            "By=x;URI=spiffe://cluster.local/ns/shop/sa/other",
        ),
        ("x-istio-source", "gateway"),
        ("x-forwarded-network", "east"),
    ];
    let statuses = |account: &str| {
        calls_at(&mesh, account, FIRST, async |caller: Caller| {
            [asked(&caller, &[]).await, asked(&caller, &forged).await]
        })
    };
    for source in [
        "principals: [cluster.local/ns/shop/sa/other]",
        "ipBlocks: [10.244.0.4]",
    ] {
        mesh.write("only.yaml", &only(source));
        wait_until("the client is refused", || statuses("client") == [401, 401]);
    }
    mesh.write(
        "only.yaml",
        &only("principals: [cluster.local/ns/shop/sa/client]"),
    );
    wait_until("the client is let in", || statuses("client") == [200, 200]);
    wait_until("it is told of as itself", || {
        let log = node.log(&mesh);
        log.contains("src.identity=\"spiffe://cluster.local/ns/shop/sa/client\"")
    });
    assert!(
        !node.log(&mesh).contains("sa/other\""),
        "{}",
        node.log(&mesh)
    );
    assert!(!node.metrics(&mesh).contains("source_workload=\"other\""));
}

#[test]
fn who_comes_again_and_again_to_open_and_reset_stalls_nobody_and_takes_no_room() {
    /// Opened and reset in all.
    const STREAMS: usize = 100_000;
    /// More than is held for a few connections.
    const ROOM: u64 = 8 << 20;
    let text = resources(&[("first", FIRST)]) + ZTUNNEL;
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    let (_, mut open) = answers(&client.inside, SERVICE).expect("the server");
    let held = || memory(node.running(&mesh).pid(), "VmRSS:");
    let mut before = None;
    let (reset, connections) = certified(&mesh, "client", async |store| {
        let (mut reset, mut connections) = (0, 1);
        let mut caller = speak(&store, FIRST).await;
        while reset < STREAMS {
            let request = Request::builder().method(Method::CONNECT);
            let request = request.uri("10.244.0.3:8080").body(()).expect("a request");
            let sent = async {
                let mut ready = caller.clone().ready().await?;
                ready.send_request(request, false)
            };
            match sent.await {
                Ok((answer, mut send)) => {
                    send.send_reset(h2::Reason::CANCEL);
                    drop(answer);
                    reset += 1;
                    tokio::task::yield_now().await;
                }
                Err(_) => {
                    // The first connection brings the baseline of memory that all connections
                    // share.
                    before.get_or_insert_with(held);
                    connections += 1;
                    caller = speak(&store, FIRST).await;
                }
            }
        }
        (reset, connections)
    });
    assert!(
        connections > 10,
        "{reset} streams of {connections} connections"
    );
    open.write_all(b"still\n").expect("open");
    let mut echo = [0; 6];
    open.read_exact(&mut echo).expect("repeated");
    assert_eq!(name(&client.inside, SERVICE).as_deref(), Some("first"));
    drop(open);
    wait_until("nothing is left over", || {
        node.counter(&mesh, "voile_connections ") <= 2
    });
    let before = before.expect("it was disconnected");
    wait_until("nothing is held", || held() < before + ROOM);
}
