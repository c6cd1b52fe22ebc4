//! Two networks; in one of them the server has a sidecar. The other network calls it through the gateway like a pod of a node
//! proxy, by an inner tunnel that ends at the sidecar. No one between the two can read or change it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use voile_identity::{CertificateClient, CertificateStore, ClientSettings, mesh_server_config};
use voile_transport::{TLS_HANDSHAKE_TIMEOUT, TcpIo, accept_tls};

use crate::node::hostile::{Caller, calls_at, status};
use crate::node::mixed::asked;
use crate::node::networks::beside::{
    BEHIND_WAY, GLOBAL, PAGES, denied, start_way, way, web, west_of,
};
use crate::node::networks::{East, SERVICE, TAKES, WEST, West, carries_much, exported, sided};
use crate::node::waypoint::hostile::{reflect, start_role, through};
use crate::node::*;
use crate::ztunnel::node::shared;
use crate::ztunnel::program;

/// The sidecar's own count of requests or connections by this account.
fn is_counted_by(first: &Pod, series: &str, account: &str) -> bool {
    let page = first.inside.run(|| get(local(15020), "/metrics"));
    let page = String::from_utf8(page.expect("entered").expect("metrics").body).expect("text");
    let by = format!("source_principal=\"spiffe://cluster.local/ns/shop/sa/{account}\"");
    page.lines().any(|line| {
        let counted = line.starts_with(series) && line.contains(&by);
        // It comes from the gateway's address, and is not the gateway.
        assert!(
            !counted || line.contains("source_workload=\"unknown\""),
            "{line}"
        );
        counted
            && line.contains("reporter=\"destination\"")
            && line.contains("destination_principal=\"spiffe://cluster.local/ns/shop/sa/server\"")
            && line.contains("connection_security_policy=\"mutual_tls\"")
    })
}

/// The account may not ask for anything at the server's port of requests.
fn shut_to(account: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: shut, namespace: shop}}\nspec:\n  \
         selector: {{matchLabels: {{app: server}}}}\n  action: DENY\n  rules:\n  - from: [{{source: {{principals: \
         [cluster.local/ns/shop/sa/{account}]}}}}]\n    to: [{{operation: {{ports: [\"8081\"], methods: [GET]}}}}]\n"
    )
}

/// A gateway for clients outside, which leads to the service of requests.
const EDGE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 244, 0, 11), 80);
const AT_THE_EDGE: &str = r#"---
apiVersion: v1
kind: ServiceAccount
metadata: {name: edge, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata:
  name: edge
  namespace: shop
  labels: {istio: ingress, sidecar.istio.io/inject: "true"}
  annotations: {inject.istio.io/templates: gateway}
spec: {serviceAccountName: edge, nodeName: one, containers: [{name: istio-proxy, image: auto}]}
status: {phase: Running, podIP: 10.244.0.11}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: ingress}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: web.shop.svc.cluster.local, port: {number: 80}}}]}]
"#;

#[test]
fn a_gateway_for_clients_outside_calls_a_sidecar_of_another_network() {
    let Some(east) = East::start_sided(&web(GLOBAL, "server")) else {
        return;
    };
    let words = [WEST, &web("", "server"), AT_THE_EDGE].concat();
    let Some((east, mut west, _sided)) = west_of(east, &words) else {
        return;
    };
    let edge = west.mesh.pod_with("edge", EDGE.0, Rules::default());
    start_role(&mut west.mesh, &edge, "gateway", "shop/edge", &[]);
    let outside = west.mesh.world.clone();
    wait_until("it leads there", || asked(&outside, EDGE.into()).0 == 200);
    wait_until("it is counted by the gateway's identity", || {
        is_counted_by(&east.first, "istio_requests_total{", "edge")
    });
    east.mesh.write("shut.yaml", &shut_to("edge"));
    wait_until("its policy holds", || asked(&outside, EDGE.into()).0 == 403);
}

#[test]
fn a_sidecar_is_called_from_another_network_and_its_policies_know_who_calls() {
    let Some(east) = East::start_sided(&web(GLOBAL, "server")) else {
        return;
    };
    let words = [WEST, &web("", "server")].concat();
    let Some((east, mut west, sided)) = west_of(east, &words) else {
        return;
    };
    let _calling = west.node();
    let callers = [("client", &west.client.inside), ("sided", &sided.inside)];
    for (account, inside) in callers {
        wait_until(account, || {
            name(inside, SERVICE).as_deref() == Some("first")
        });
        for _ in 0..3 {
            let (status, head) = asked(inside, PAGES.into());
            assert_eq!(status, 200, "{account}");
            assert!(head.starts_with("GET / "), "{head}");
        }
        for series in [
            "istio_requests_total{",
            "istio_tcp_connections_opened_total{",
        ] {
            wait_until("it is counted by its own identity", || {
                is_counted_by(&east.first, series, account)
            });
        }
        let (_, mut open) = answers(inside, SERVICE).expect("the far server");
        carries_much(&mut open);
    }
    // Policies about requests tell callers apart.
    for (account, _) in callers {
        east.mesh.write("shut.yaml", &shut_to(account));
        for (one, inside) in callers {
            let expected = if one == account { 403 } else { 200 };
            wait_until(&format!("{one} where it is shut to {account}"), || {
                asked(inside, PAGES.into()).0 == expected
            });
            assert!(
                name(inside, SERVICE).is_some(),
                "it is about requests alone"
            );
        }
    }
    east.mesh.remove("shut.yaml");
    // Policies about connections take hold of those that are open, too.
    for (account, inside) in callers {
        let (_, mut open) = answers(inside, SERVICE).expect("the far server");
        east.mesh.write("deny.yaml", &denied(account));
        open.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("open");
        let cut = open.read(&mut [0; 16]);
        let reset = cut.expect_err("the open connection is cut, and does not look finished");
        assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
        wait_until("nor a new one", || name(inside, SERVICE).is_none());
        east.mesh.remove("deny.yaml");
        wait_until("the policy is gone", || {
            name(inside, SERVICE).as_deref() == Some("first")
        });
    }
    // A workload that declares no tunnels gets no connection from other networks.
    let without = sided_words().replace(TAKES, "");
    east.mesh.write("mesh.yaml", &without);
    wait_until("nobody is there for other networks", || {
        let mut all = callers.iter();
        all.all(|(_, inside)| name(inside, SERVICE).is_none())
    });
    east.mesh.write("mesh.yaml", &sided_words());
    wait_until("and again", || {
        let mut all = callers.iter();
        all.all(|(_, inside)| name(inside, SERVICE).as_deref() == Some("first"))
    });
}

/// The east as [`East::start_sided`] has it, with the service of requests.
fn sided_words() -> String {
    exported(&(sided() + &web(GLOBAL, "server")))
}

#[test]
fn a_waypoint_calls_a_sidecar_of_another_network_for_whom_it_lets_through() {
    let Some(east) = East::start_sided(&web(GLOBAL, "server")) else {
        return;
    };
    let behind = [WEST, &web(BEHIND_WAY, "server"), &way()].concat();
    let Some((east, mut west, sided)) = west_of(east, &behind) else {
        return;
    };
    start_way(&mut west.mesh);
    let _calling = west.node();
    wait_until("the client is let through", || {
        asked(&west.client.inside, PAGES.into()).0 == 200
    });
    assert_eq!(asked(&sided.inside, PAGES.into()).0, 403, "and nobody else");
    wait_until("the sidecar tells of it by the waypoint's identity", || {
        is_counted_by(&east.first, "istio_requests_total{", "way")
    });
    assert!(!is_counted_by(
        &east.first,
        "istio_requests_total{",
        "client"
    ));
}

#[test]
fn a_ztunnel_calls_a_sidecar_of_another_network_as_our_node_proxy_does() {
    let Some(program) = program() else {
        return;
    };
    let Some(east) = East::start_sided("") else {
        return;
    };
    let Some(mut west) = West::start(&east, Mesh::pod) else {
        return;
    };
    let mut agent = shared(&mut west.mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&west.client, "client");
    agent.complete();
    wait_until("a ztunnel calls our sidecar", || {
        name(&west.client.inside, SERVICE).as_deref() == Some("first")
    });
    wait_until("which tells of its identity", || {
        is_counted_by(&east.first, "istio_tcp_connections_opened_total{", "client")
    });
}

/// Services before the server of which its sidecar's own ports are the target, and one that is another's.
const TRAPS: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: trap, namespace: shop}
spec:
  clusterIP: 10.96.0.13
  selector: {app: server}
  ports: [{name: tcp-own, port: 80, targetPort: 15001}, {name: tcp-tunnels, port: 81, targetPort: 15008}]
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {clusterIP: 10.96.0.14, selector: {app: client}, ports: [{name: tcp, port: 80, targetPort: 8080}]}
"#;

#[test]
fn a_sidecar_takes_tunnels_for_the_names_of_its_own_services_and_for_nothing_else() {
    let Some(east) = East::start_sided(&(web(GLOBAL, "server") + TRAPS)) else {
        return;
    };
    let asked = [
        ("server.shop.svc.cluster.local:80", 200),
        ("SERVER.shop.svc.cluster.local:80", 200),
        ("web.shop.svc.cluster.local:80", 200),
        ("10.244.0.3:8080", 200),
        // Another port, ports of the sidecar itself, another workload's service, no service, names without a port or with
        // nonsense.
        ("server.shop.svc.cluster.local:8080", 503),
        ("server.shop.svc.cluster.local:15008", 503),
        ("trap.shop.svc.cluster.local:80", 503),
        ("trap.shop.svc.cluster.local:81", 503),
        ("other.shop.svc.cluster.local:80", 503),
        ("server:80", 503),
        ("example.com:443", 503),
        ("server.shop.svc.cluster.local:0", 503),
        ("server.shop.svc.cluster.local", 400),
        ("10.96.0.10:80", 400),
        ("10.244.0.2:8080", 400),
        ("127.0.0.1:15000", 400),
    ];
    wait_until("it knows of what it is behind", || {
        let first = ("server.shop.svc.cluster.local:80", 200);
        answered_there(&east, &[first]) == [200]
    });
    let expected: Vec<u16> = asked.iter().map(|(_, status)| *status).collect();
    assert_eq!(answered_there(&east, &asked), expected);
}

/// The statuses of tunnels that a client of the mesh asks the sidecar for by hand.
fn answered_there(east: &East, asked: &[(&str, u16)]) -> Vec<u16> {
    calls_at(&east.mesh, "client", FIRST, async |mut caller: Caller| {
        let mut found = Vec::new();
        for (target, _) in asked {
            let status = status(&mut caller, Method::CONNECT, target).await;
            found.push(status.as_u16());
        }
        found
    })
}

#[test]
fn whoever_asks_a_sidecar_by_name_is_who_its_certificate_says_and_nobody_else() {
    let allowed = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: one, namespace: shop}\nspec:\n  \
                   selector: {matchLabels: {app: server}}\n  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]\n";
    let Some(east) = East::start_sided(&(web(GLOBAL, "server") + allowed)) else {
        return;
    };
    reflect(&east.first);
    let forged = [
        ("baggage", "k8s.namespace.name=shop,service.name=client"),
        ("forwarded", "for=\"10.244.0.2:4000\";host=web"),
    ];
    let claims = "GET /open HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\
                  x-forwarded-client-cert: By=x;URI=spiffe://cluster.local/ns/shop/sa/client\r\n\r\n";
    let by = |account: &str| {
        calls_at(
            &east.mesh,
            account,
            FIRST,
            async move |caller: SendRequest<Bytes>| {
                through(&caller, "web.shop.svc.cluster.local:80", &forged, claims).await
            },
        )
    };
    wait_until("who is meant is let in", || {
        by("client").starts_with("HTTP/1.1 200 ")
    });
    let refused = by("server");
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
}

/// A server in the gateway's place, with the gateway's own certificate. It forwards to the sidecar, keeps the forwarded bytes,
/// and changes them if a test wants it.
struct Eavesdropper {
    heard: Arc<Mutex<Vec<u8>>>,
    spoils: Arc<AtomicBool>,
}

/// Its address, in the east.
const THERE: (Ipv4Addr, u16) = (WORLD, 15008);

impl Eavesdropper {
    fn start(east: &East) -> Self {
        let (heard, spoils) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let settings = ClientSettings {
            control: vec![format!("https://{WORLD}:{XDS}")],
            root_cert: east.mesh.folder.path().join("state/root-cert.pem"),
            token_file: Some(east.mesh.token("istio-system/gate", "gate")),
            join_token_file: None,
            ttl: None,
        };
        let listener = listen(&east.mesh.world, THERE);
        listener.set_nonblocking(true).expect("ours");
        let (world, own) = (
            east.mesh.world.clone(),
            (Arc::clone(&heard), Arc::clone(&spoils)),
        );
        std::thread::spawn(move || {
            let inside = || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime.expect("a runtime"), async {
                    let store = Arc::new(CertificateStore::new());
                    let certificates = CertificateClient::new(settings, Arc::clone(&store));
                    certificates
                        .obtain()
                        .await
                        .expect("the gateway's certificate");
                    let listener = tokio::net::TcpListener::from_std(listener).expect("ours");
                    loop {
                        let (stream, _) = listener.accept().await.expect("a caller");
                        tokio::task::spawn_local(serve_gate(
                            Arc::clone(&store),
                            stream,
                            own.clone(),
                        ));
                    }
                })
            };
            world.run(inside).expect("entered")
        });
        Self { heard, spoils }
    }

    fn heard(&self) -> Vec<u8> {
        let heard = self.heard.lock();
        heard.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type Kept = (Arc<Mutex<Vec<u8>>>, Arc<AtomicBool>);

/// One connection to the gateway.
async fn serve_gate(store: Arc<CertificateStore>, stream: tokio::net::TcpStream, kept: Kept) {
    let config = mesh_server_config(&store, &[b"h2"]).expect("TLS");
    let Ok(stream) = accept_tls(config, TcpIo::from(stream), TLS_HANDSHAKE_TIMEOUT).await else {
        return;
    };
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.method(), Method::CONNECT);
        let Ok(sending) = respond.send_response(Response::new(()), false) else {
            continue;
        };
        tokio::task::spawn_local(lead_on(request, sending, kept.clone()));
    }
}

/// One tunnel to the sidecar.
async fn lead_on(
    request: Request<h2::RecvStream>,
    mut sending: h2::SendStream<Bytes>,
    (heard, spoils): Kept,
) {
    let there = tokio::net::TcpStream::connect((FIRST, 15008)).await;
    let (mut reading, mut writing) = there.expect("the sidecar").into_split();
    let back = Arc::clone(&heard);
    tokio::task::spawn_local(async move {
        let mut bytes = vec![0; 16_384];
        while let Ok(read @ 1..) = reading.read(&mut bytes).await {
            keep(&back, &bytes[..read]);
            let chunk = Bytes::copy_from_slice(&bytes[..read]);
            if sending.send_data(chunk, false).is_err() {
                return;
            }
        }
        // It may be over already.
        let _ = sending.send_data(Bytes::new(), true);
    });
    let mut body = request.into_body();
    while let Some(Ok(chunk)) = body.data().await {
        // It may be over already.
        let _ = body.flow_control().release_capacity(chunk.len());
        let mut chunk = chunk.to_vec();
        keep(&heard, &chunk);
        if spoils.load(Ordering::Relaxed)
            && let Some(last) = chunk.last_mut()
        {
            *last ^= 1;
        }
        if writing.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

fn keep(heard: &Mutex<Vec<u8>>, bytes: &[u8]) {
    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    heard.extend_from_slice(bytes);
}

#[test]
fn a_gateway_reads_nothing_of_what_it_leads_to_a_sidecar_and_changes_nothing_unnoticed() {
    let Some(east) = East::start_sided(&web(GLOBAL, "server")) else {
        return;
    };
    let words = [WEST, &web("", "server")].concat();
    let Some((east, mut west, sided)) = west_of(east, &words) else {
        return;
    };
    let _calling = west.node();
    let eavesdropper = Eavesdropper::start(&east);
    west.lead_to(THERE.into());
    let callers = [&west.client.inside, &sided.inside];
    let secret = |from: &Namespace| {
        let answer = from
            .run(|| get(PAGES.into(), "/a-very-secret-page"))
            .expect("entered");
        answer.map_or(String::new(), |answer| {
            String::from_utf8_lossy(&answer.body).into_owned()
        })
    };
    for from in callers {
        let before = eavesdropper.heard().len();
        wait_until("it leads on", || {
            secret(from).contains("a-very-secret-page")
        });
        let heard = eavesdropper.heard();
        assert!(heard.len() > before + 1000, "it went by there");
        assert_eq!(heard[0], 22, "a handshake of TLS");
        for word in [
            "a-very-secret-page",
            "HTTP/1.1",
            "PRI * HTTP",
            ":authority",
            "sa/client",
        ] {
            let found = heard
                .windows(word.len())
                .any(|part| part == word.as_bytes());
            assert!(!found, "{word} is read by nobody on the way");
        }
    }
    eavesdropper.spoils.store(true, Ordering::Relaxed);
    for from in callers {
        for _ in 0..3 {
            let heard = secret(from);
            assert!(
                !heard.contains("a-very-secret-page"),
                "it is changed on the way: {heard}"
            );
        }
    }
    eavesdropper.spoils.store(false, Ordering::Relaxed);
    for from in callers {
        wait_until("untouched it goes on", || {
            secret(from).contains("a-very-secret-page")
        });
    }
}
