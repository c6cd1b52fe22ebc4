//! Forbidden actions: of a caller with a good certificate who speaks HBONE by hand, and of the pods themselves.

mod handshakes;
mod memory;
mod pods;

use std::future::Future;
use std::sync::Arc;

use h2::client::SendRequest;
use http::{Method, Request, StatusCode};
use rustls::pki_types::ServerName;
use voile_identity::{CertificateClient, CertificateStore, ClientSettings, mesh_client_config};
use voile_transport::{Origin, TLS_HANDSHAKE_TIMEOUT, TcpIo, connect_tls};

use super::*;
use crate::captured::connect;

/// Streams that are opened and reset.
const RESETS: usize = 5_000;

pub(super) type Caller = SendRequest<bytes::Bytes>;

/// Runs this with a caller from the world to `FIRST:15008`, with a certificate of `shop/ACCOUNT`.
fn calls<T, F: Future<Output = T>>(
    mesh: &Mesh,
    account: &str,
    work: impl FnOnce(Caller) -> F + Send,
) -> T
where
    T: Send,
{
    calls_at(mesh, account, FIRST, work)
}

/// The same of another address.
pub(super) fn calls_at<T, F: Future<Output = T>>(
    mesh: &Mesh,
    account: &str,
    address: Ipv4Addr,
    work: impl FnOnce(Caller) -> F + Send,
) -> T
where
    T: Send,
{
    calls_by(mesh, account, address, |caller, _| work(caller))
}

/// The same for tests that need the serial number of the certificate.
pub(super) fn calls_by<T, F: Future<Output = T>>(
    mesh: &Mesh,
    account: &str,
    address: Ipv4Addr,
    work: impl FnOnce(Caller, String) -> F + Send,
) -> T
where
    T: Send,
{
    certified(mesh, account, |store| async move {
        let serial = store.current().expect("obtained").serial().to_owned();
        work(speak(&store, address).await, serial).await
    })
}

/// Runs this in the world with a certificate of `shop/ACCOUNT`.
pub(super) fn certified<T, F: Future<Output = T>>(
    mesh: &Mesh,
    account: &str,
    work: impl FnOnce(Arc<CertificateStore>) -> F + Send,
) -> T
where
    T: Send,
{
    let token_file = Some(mesh.token(&format!("shop/{account}"), account));
    let settings = ClientSettings {
        control: vec![format!("https://{WORLD}:{XDS}")],
        root_cert: mesh.folder.path().join("state/root-cert.pem"),
        token_file,
        join_token_file: None,
        ttl: None,
    };
    in_the_world(mesh, || async {
        let store = Arc::new(CertificateStore::new());
        let certificates = CertificateClient::new(settings, Arc::clone(&store));
        certificates.obtain().await.expect("a certificate");
        work(store).await
    })
}

/// Does this on a runtime in the world.
pub(super) fn in_the_world<T: Send, F: Future<Output = T>>(
    mesh: &Mesh,
    work: impl FnOnce() -> F + Send,
) -> T {
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.expect("a runtime"), async { work().await })
    };
    mesh.world.run(inside).expect("entered")
}

/// Calls `address:15008` with this certificate.
pub(super) async fn speak(store: &Arc<CertificateStore>, address: Ipv4Addr) -> Caller {
    let caller = try_to_speak(store, address).await;
    caller.expect("a connection and a handshake")
}

/// The same; nothing if the connection is refused.
pub(super) async fn try_to_speak(
    store: &Arc<CertificateStore>,
    address: Ipv4Addr,
) -> Option<Caller> {
    let config = mesh_client_config(store, &[b"h2"]).expect("TLS");
    let to = SocketAddr::from((address, 15008));
    let tcp = voile_transport::connect(to, Origin::default(), TLS_HANDSHAKE_TIMEOUT);
    let io = TcpIo::from(tcp.await.ok()?);
    let name = ServerName::from(to.ip());
    let stream = connect_tls(config, name, io, TLS_HANDSHAKE_TIMEOUT).await;
    let (caller, connection) = h2::client::handshake(stream.ok()?).await.ok()?;
    tokio::task::spawn_local(async move {
        // It may end as it likes.
        let _ = connection.await;
    });
    Some(caller)
}

pub(super) async fn status(caller: &mut Caller, method: Method, target: &str) -> StatusCode {
    answered(caller, method, target).await.expect("an answer")
}

/// Statuses of a mesh client's requests at an address, one after the other.
pub(super) fn statuses_at(mesh: &Mesh, address: Ipv4Addr, asked: &[(Method, &str)]) -> Vec<u16> {
    calls_at(mesh, "client", address, async |mut caller| {
        let mut found = Vec::new();
        for (method, target) in asked {
            let status = status(&mut caller, method.clone(), target).await;
            found.push(status.as_u16());
        }
        found
    })
}

/// Sends these bytes without TLS. Returns true if the answer is at most a TLS alert.
pub(super) fn is_unheard(mesh: &Mesh, address: Ipv4Addr, said: &[u8]) -> bool {
    let mut stream = connect(&mesh.world, (address, 15008));
    stream.write_all(said).expect("sent");
    let mut heard = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut heard);
    heard.first().is_none_or(|first| *first == 21)
}

/// The status, or that the connection is over.
pub(super) async fn answered(
    caller: &mut Caller,
    method: Method,
    target: &str,
) -> Result<StatusCode, h2::Error> {
    let request = Request::builder().method(method).uri(target).body(());
    let mut caller = caller.clone().ready().await?;
    let (answer, _send) = caller.send_request(request.expect("a request"), false)?;
    Ok(answer.await?.status())
}

#[test]
fn a_pod_is_nobodys_way_to_elsewhere_nor_to_its_proxys_own_doors() {
    let Some((mesh, node, _client, _first)) = started() else {
        return;
    };
    // A neighbour sends packets for another host through the pod, as if it were a router.
    let neighbour = mesh.pod_behind("neighbour", SECOND, FIRST);
    let elsewhere = SocketAddr::from(([192, 0, 2, 77], APPLICATION));
    let own = SocketAddr::from((FIRST, 15001));
    for (from, to) in [(&neighbour.inside, elsewhere), (&mesh.world, own)] {
        assert_eq!(name(from, to), None);
        wait_until(
            "it is refused for where it leads, and nobody is asked",
            || {
                let refusal = format!("{to} is not an address and port of the application");
                node.log(&mesh).contains(&refusal)
            },
        );
    }
}

#[test]
fn who_is_refused_again_and_again_is_disconnected() {
    let Some((mesh, _node, client, _first)) = started() else {
        return;
    };
    let refused = calls(&mesh, "client", async |mut caller| {
        for at in 0..RESETS {
            match answered(&mut caller, Method::CONNECT, "10.244.0.9:8080").await {
                Ok(status) => assert_eq!(status.as_u16(), 400),
                Err(_) => return at,
            }
        }
        RESETS
    });
    assert!((500..RESETS).contains(&refused), "{refused} were answered");
    let service = SocketAddr::from((VIP, 80));
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
}

/// A client and a server on one node, and another pod with another identity.
fn started() -> Option<(Mesh, Node, Pod, Pod)> {
    let mut mesh = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL))?;
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&first, "server")];
    let more = ["--drain-timeout", "1s"];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &more);
    Some((mesh, node, client, first))
}

#[test]
fn a_tunnel_leads_to_the_pods_own_application_or_nowhere() {
    let Some((mesh, node, client, _first)) = started() else {
        return;
    };
    let service = SocketAddr::from((VIP, 80));
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
    let found = calls(&mesh, "client", async |mut caller| {
        let mut found = Vec::new();
        for (method, target) in [
            (Method::CONNECT, "10.244.0.3:8080"),
            // Another pod, this machine, the node proxy's own doors, and no tunnel at all.
            (Method::CONNECT, "10.244.0.2:8080"),
            (Method::CONNECT, "127.0.0.1:8080"),
            (Method::CONNECT, "10.244.0.3:15008"),
            (Method::CONNECT, "10.244.0.3:15006"),
            (Method::CONNECT, "10.244.0.3:15001"),
            (Method::GET, "https://10.244.0.3:8080/"),
            // This port has no listener.
            (Method::CONNECT, "10.244.0.3:9"),
            // The service that the pod is behind, by its name; another port of it, and services that it is not behind.
            (Method::CONNECT, "server.shop.svc.cluster.local:80"),
            (Method::CONNECT, "server.shop.svc.cluster.local:8080"),
            (Method::CONNECT, "client.shop.svc.cluster.local:80"),
            (Method::CONNECT, "localhost:15000"),
        ] {
            found.push(status(&mut caller, method, target).await.as_u16());
        }
        found
    });
    assert_eq!(
        found,
        [200, 400, 400, 400, 400, 400, 400, 503, 200, 503, 503, 503]
    );
    mesh.write("deny.yaml", DENIED);
    wait_until("the policy is known", || {
        name(&client.inside, service).is_none()
    });
    let before = node.counter(&mesh, "voile_node_denied_total");
    let denied = calls(&mesh, "client", async |mut caller| {
        status(&mut caller, Method::CONNECT, "10.244.0.3:8080")
            .await
            .as_u16()
    });
    assert_eq!(denied, 401);
    assert_eq!(node.counter(&mesh, "voile_node_denied_total"), before + 1);
}

#[test]
fn who_opens_and_resets_is_disconnected_and_the_neighbours_do_not_notice() {
    let Some((mesh, node, client, _first)) = started() else {
        return;
    };
    let service = SocketAddr::from((VIP, 80));
    let (_, mut open) = answers(&client.inside, service).expect("the server");
    let reset = calls(&mesh, "client", async |caller| {
        for at in 0..RESETS {
            let request = Request::builder().method(Method::CONNECT);
            let request = request.uri("10.244.0.3:8080").body(()).expect("a request");
            let Ok(mut ready) = caller.clone().ready().await else {
                return at;
            };
            let Ok((answer, mut send)) = ready.send_request(request, false) else {
                return at;
            };
            send.send_reset(h2::Reason::CANCEL);
            drop(answer);
            tokio::task::yield_now().await;
        }
        RESETS
    });
    assert!(reset < RESETS, "it went on for ever");
    open.write_all(b"still\n").expect("open");
    let mut echo = [0; 6];
    open.read_exact(&mut echo).expect("repeated");
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
    drop(open);
    wait_until("nothing is left over", || {
        node.counter(&mesh, "voile_connections ") <= 2
    });
}

#[test]
fn no_two_identities_share_a_connection_and_two_calls_of_one_do() {
    let other = "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: other\n  namespace: shop\nspec:\n  serviceAccountName: other\n  \
        nodeName: one\n  containers:\n  - name: app\nstatus:\n  phase: Running\n  podIP: 10.244.0.4\n";
    let text = on_two_nodes(&[("first", FIRST)]) + other;
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let other = pod(&mesh, "other", SECOND);
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&other, "other")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &["--workers", "1"]);
    let pods = [(&first, "server")];
    let called = Node::start(&mut mesh, "ztunnel-two", 100, &pods, &[]);
    let service = SocketAddr::from((VIP, 80));
    for _ in 0..3 {
        for inside in [&client.inside, &other.inside] {
            assert_eq!(name(inside, service).as_deref(), Some("first"));
        }
    }
    assert_eq!(node.counter(&mesh, "voile_node_pooled_tunnels"), 2);
    wait_until("each call is told of under its own identity", || {
        let log = called.log(&mesh);
        let inbound = log.lines().filter(|line| {
            line.contains("connection complete") && line.contains("direction=\"inbound\"")
        });
        let inbound: Vec<_> = inbound.collect();
        ["client", "other"].iter().all(|account| {
            let from = format!("src.identity=\"spiffe://cluster.local/ns/shop/sa/{account}\"");
            inbound.iter().filter(|line| line.contains(&from)).count() == 3
        })
    });
}

#[test]
fn a_pod_cannot_call_the_node_proxys_own_doors() {
    let Some((mesh, node, client, _first)) = started() else {
        return;
    };
    // Its own doors need no redirection, and another pod's are no application's.
    for (address, port) in [
        (CLIENT, 15001),
        (CLIENT, 15006),
        (FIRST, 15008),
        (FIRST, 15001),
        (FIRST, 15006),
    ] {
        assert_eq!(
            name(&client.inside, (address, port)),
            None,
            "{address}:{port}"
        );
    }
    // From outside, too.
    for port in [15001, 15006] {
        assert_eq!(name(&mesh.world, (FIRST, port)), None, "{port}");
    }
    assert!(node.is_ready(&mesh));
    let service = SocketAddr::from((VIP, 80));
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
}

#[test]
fn a_pod_that_is_taken_away_in_the_middle_stalls_nobody_else() {
    let Some((mesh, node, client, first)) = started() else {
        return;
    };
    let service = SocketAddr::from((VIP, 80));
    let (_, mut open) = answers(&client.inside, service).expect("the server");
    node.agent.remove("client");
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    let cut = open
        .read(&mut [0; 16])
        .expect_err("it is cut when the drain is over");
    assert_eq!(cut.kind(), std::io::ErrorKind::ConnectionReset);
    wait_until("its doors are closed", || {
        let called = client.inside.run(|| TcpStream::connect(service));
        matches!(called, Ok(Err(_)))
    });
    // The other pod of the node is served on, and the first comes back.
    assert_eq!(
        name(&mesh.world, (FIRST, APPLICATION)).as_deref(),
        Some("first")
    );
    node.agent.add(&client, "client");
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
    drop(connect(&first.inside, (FIRST, APPLICATION)));
}

#[test]
fn an_agent_that_lies_about_a_pod_gets_it_nothing() {
    let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL)) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    // The server's pod comes with the client's account, for which this node may have certificates.
    let pods = [(&client, "client"), (&first, "client")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    let service = SocketAddr::from((VIP, 80));
    assert_eq!(name(&client.inside, service), None);
    wait_until("the client's side noticed who answered", || {
        let log = node.log(&mesh);
        log.contains("is spiffe://cluster.local/ns/shop/sa/client, but spiffe://cluster.local/ns/shop/sa/server was expected")
    });
    assert_eq!(
        name(&mesh.world, (FIRST, APPLICATION)),
        None,
        "nor is it called in plaintext"
    );
    assert_eq!(name(&first.inside, service), None, "nor does it call");
}

#[test]
fn pods_outlive_their_agent_and_what_it_no_longer_names_goes() {
    let Some((mesh, mut node, client, first)) = started() else {
        return;
    };
    let service = SocketAddr::from((VIP, 80));
    let (_, mut open) = answers(&client.inside, service).expect("the server");
    node.agent.leave();
    wait_until("the node proxy has noticed", || {
        node.log(&mesh).contains("the agent (ZDS) disconnected")
    });
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
    node.agent.greet();
    node.agent.add(&first, "server");
    node.agent.complete();
    wait_until("who is not named is served no more", || {
        let called = client.inside.run(|| TcpStream::connect(service));
        matches!(called, Ok(Err(_)))
    });
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    open.read(&mut [0; 16]).expect_err("it is cut");
    assert_eq!(
        name(&mesh.world, (FIRST, APPLICATION)).as_deref(),
        Some("first")
    );
}
