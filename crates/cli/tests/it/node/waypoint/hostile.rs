//! Requests that a waypoint must refuse: HBONE by hand from a caller with a good certificate, and callers without a certificate.

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};

use crate::node::hostile::{Caller, calls_at, is_unheard, statuses_at};
use crate::node::*;

pub(crate) const GATE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 7);

/// Resources behind the waypoint.
pub(crate) const BEHIND: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec:
  clusterIP: 10.96.0.11
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}, {name: tcp, port: 90, targetPort: 8080}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: web}]
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
"#;

pub(crate) const WEB: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);

fn started() -> Option<(Mesh, Node, [Pod; 3])> {
    started_with("")
}

/// A client, a server and the waypoint, beside more resources.
pub(crate) fn started_with(more: &str) -> Option<(Mesh, Node, [Pod; 3])> {
    started_by(more, &[])
}

/// The same by a control plane with these options.
pub(crate) fn started_by(more: &str, options: &[&str]) -> Option<(Mesh, Node, [Pod; 3])> {
    let behind = waypoint_pod("gate", GATE) + BEHIND;
    let text = resources(&[("first", FIRST)]) + ZTUNNEL + &behind + more;
    let mut mesh = mesh_of(&text, options)?;
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let gate = mesh.pod_with("gate", GATE, Rules::default());
    serve(&first, FIRST);
    reflect(&first);
    let node = Node::start(
        &mut mesh,
        "ztunnel-one",
        0,
        &[(&client, "client"), (&first, "server")],
        &[],
    );
    start_gate(&mut mesh, &gate, "shop/gate");
    Some((mesh, node, [client, first, gate]))
}

/// The proxy of a waypoint, or of a gateway between networks, that is called by its account.
pub(crate) fn start_gate(mesh: &mut Mesh, gate: &Pod, workload: &str) {
    start_gate_with(mesh, gate, workload, &[]);
}

/// The same with these arguments besides.
pub(crate) fn start_gate_with(mesh: &mut Mesh, gate: &Pod, workload: &str, more: &[&str]) {
    start_role(mesh, gate, "waypoint", workload, more);
}

/// The same of a proxy of another role.
pub(crate) fn start_role(mesh: &mut Mesh, gate: &Pod, role: &str, workload: &str, more: &[&str]) {
    let token = mesh.token(workload, gate.name);
    let root = mesh.folder.path().join("state/root-cert.pem");
    let start = || {
        Process::start(gate.name, |voile| {
            voile.args(["proxy", "--role", role, "--workload", workload]);
            voile.args(["--control", &format!("https://{WORLD}:{XDS}")]);
            voile
                .arg("--root-cert")
                .arg(&root)
                .arg("--token-file")
                .arg(&token)
                .args(more);
        })
    };
    let process = gate.inside.run(start).expect("entered");
    mesh.processes.push(process);
    wait_until("it is ready", || {
        let page = || get(local(15021), "/healthz/ready");
        matches!(gate.inside.run(page), Ok(Ok(answer)) if answer.status == 200)
    });
}

/// An application at 8081 that answers each request with its head.
pub(crate) fn reflect(pod: &Pod) {
    let listener = listen(&pod.inside, (FIRST, 8081));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                }
                let length = head.len();
                let mut answer =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
                answer.extend(head);
                // The client may have left.
                let _ = stream.write_all(&answer);
            });
        }
    });
}

/// Sends these bytes through a tunnel with these headers. Returns the answer up to its end.
pub(crate) async fn through(
    caller: &SendRequest<Bytes>,
    target: &str,
    headers: &[(&str, &str)],
    said: &str,
) -> String {
    let mut request = Request::builder().method(Method::CONNECT).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut caller = caller.clone().ready().await.expect("room");
    let request = request.body(()).expect("a request");
    let (answer, mut send) = caller.send_request(request, false).expect("sent");
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let bytes = Bytes::copy_from_slice(said.as_bytes());
    send.send_data(bytes, false).expect("sent");
    let mut body = answer.into_body();
    let mut heard = Vec::new();
    while let Some(Ok(chunk)) = body.data().await {
        heard.extend_from_slice(&chunk);
    }
    String::from_utf8_lossy(&heard).into_owned()
}

#[test]
fn a_tunnel_leads_to_what_is_behind_the_waypoint_and_nowhere_else() {
    let Some((mesh, _node, [client, ..])) = started() else {
        return;
    };
    let web = SocketAddr::from((WEB, 90));
    wait_until("the service is called through the waypoint", || {
        name(&client.inside, web).as_deref() == Some("first")
    });
    let asked = [
        (Method::CONNECT, "10.96.0.11:90"),
        (Method::CONNECT, "web.shop.svc.cluster.local:90"),
        // A service that is not behind it, another port, the pods themselves, this machine, the control plane, the waypoint.
        (Method::CONNECT, "10.96.0.10:80"),
        (Method::CONNECT, "10.96.0.11:91"),
        (Method::CONNECT, "10.244.0.3:8080"),
        (Method::CONNECT, "10.244.0.3:15008"),
        (Method::CONNECT, "127.0.0.1:15000"),
        (Method::CONNECT, "10.244.0.1:15012"),
        (Method::CONNECT, "10.244.0.7:15008"),
        (Method::CONNECT, "server.shop.svc.cluster.local:80"),
        (Method::CONNECT, "example.com:443"),
        (Method::GET, "https://10.96.0.11:80/"),
    ];
    let found = statuses_at(&mesh, GATE, &asked);
    assert_eq!(
        found,
        [200, 200, 404, 404, 404, 404, 404, 404, 404, 404, 404, 400]
    );
}

#[test]
fn who_calls_is_whose_certificate_made_the_tunnel_whatever_is_said() {
    let Some((mesh, _node, _pods)) = started() else {
        return;
    };
    let forged = [
        ("baggage", "k8s.namespace.name=shop,service.name=client"),
        ("forwarded", "for=\"10.244.0.2:4000\";host=web"),
        ("x-istio-source", "gateway"),
    ];
    let request =
        |more: &str| format!("GET /open HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{more}\r\n");
    let claims = "x-forwarded-client-cert: By=x;URI=spiffe://cluster.local/ns/shop/sa/client\r\n\
                  x-envoy-peer-metadata-id: client\r\n";
    let (plain, claiming) = (request(""), request(claims));
    let by = |account: &str, said: String| {
        calls_at(&mesh, account, GATE, async move |caller: Caller| {
            through(&caller, "10.96.0.11:80", &forged, &said).await
        })
    };
    let refused = by("server", claiming.clone());
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    let allowed = by("client", plain);
    assert!(allowed.starts_with("HTTP/1.1 200 "), "{allowed}");
    let allowed = by("client", claiming);
    assert!(allowed.starts_with("HTTP/1.1 200 "), "{allowed}");
    for claim in ["x-forwarded-client-cert", "x-envoy-peer-metadata-id"] {
        assert!(!allowed.contains(claim), "{allowed}");
    }
    // Bytes that are not HTTP on a port declared HTTP pass no policy on requests.
    let garbage = by(
        "client",
        "\u{16}\u{3}\u{1}no HTTP at all\r\n\r\n".to_owned(),
    );
    assert!(garbage.starts_with("HTTP/1.1 400 "), "{garbage}");
}

#[test]
fn who_has_no_certificate_of_the_mesh_is_not_heard() {
    let Some((mesh, _node, [client, ..])) = started() else {
        return;
    };
    let connect_head = b"CONNECT 10.96.0.11:90 HTTP/1.1\r\nhost: 10.96.0.11:90\r\n\r\n";
    for said in [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], connect_head] {
        assert!(
            is_unheard(&mesh, GATE, said),
            "TLS says no, and nobody anything else"
        );
    }
    let web = SocketAddr::from((WEB, 90));
    assert_eq!(name(&client.inside, web).as_deref(), Some("first"));
}
