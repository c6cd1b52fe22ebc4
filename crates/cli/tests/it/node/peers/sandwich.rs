//! A waypoint of another program, which takes no tunnels. The node proxy of its pod takes them for it, and passes their bytes on
//! with a header of the PROXY protocol that names caller and target, or without one. A ztunnel in its place does the same.

use http::{Method, Request};

use crate::captured::connect;
use crate::node::hostile::{Caller, calls_at};
use crate::node::*;
use crate::ztunnel::node::shared;
use crate::ztunnel::program;

const GATE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 7);
const WEB: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 11), 80);
/// Port of the waypoint for connections with a PROXY header, which names the caller.
const DOOR: u16 = 15088;

const WORDS: &str = r#"---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: gate
  namespace: shop
  annotations: {ambient.istio.io/waypoint-inbound-binding: PROXY/15088}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: gate, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: gate, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: gate}}
spec: {serviceAccountName: gate, nodeName: one, containers: [{name: other}]}
status: {phase: Running, podIP: 10.244.0.7}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec: {clusterIP: 10.96.0.11, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8081}]}
"#;

/// Reads a header of version 2 over IPv4. Returns its source, its destination, and the field with the caller's
/// identity.
fn told(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed)?;
    assert_eq!(&fixed[..12], b"\r\n\r\n\0\r\nQUIT\n");
    assert_eq!(fixed[12..14], [0x21, 0x11], "a connection of TCP over IPv4");
    let mut rest = vec![0; u16::from_be_bytes([fixed[14], fixed[15]]).into()];
    stream.read_exact(&mut rest)?;
    let address = |at: usize| Ipv4Addr::new(rest[at], rest[at + 1], rest[at + 2], rest[at + 3]);
    let port = u16::from_be_bytes([rest[10], rest[11]]);
    let (field, identity) = rest[12..].split_at(3);
    assert_eq!(field[0], 0xd0);
    let identity = String::from_utf8_lossy(identity);
    Ok(format!("{} {}:{port} {identity}", address(0), address(4)))
}

/// A waypoint that trusts the header, sends its contents to the client, and echoes.
fn believe(pod: &Pod) {
    let listener = listen(&pod.inside, (Ipv4Addr::UNSPECIFIED, DOOR));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let Ok(said) = told(&mut stream) else { return };
                // The client may have left.
                let _ = stream.write_all(format!("{said}\n").as_bytes());
                let mut bytes = [0; 1024];
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..read]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

fn town(make: fn(&Mesh, &'static str, Ipv4Addr) -> Pod) -> Option<(Mesh, [Pod; 2])> {
    let mesh = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL + WORDS))?;
    let pods = [make(&mesh, "client", CLIENT), make(&mesh, "gate", GATE)];
    believe(&pods[1]);
    Some((mesh, pods))
}

/// Header that the waypoint gets for a call of the service by the client.
const EXPECTED: &str = "10.244.0.2 10.96.0.11:80 spiffe://cluster.local/ns/shop/sa/client";

fn is_told(client: &Pod) {
    let mut open = None;
    wait_until("the waypoint is called", || {
        open = answers(&client.inside, WEB);
        open.is_some()
    });
    let (said, mut open) = open.expect("waited for");
    assert_eq!(said, EXPECTED);
    open.write_all(b"hello\n").expect("open");
    let mut echo = [0; 6];
    open.read_exact(&mut echo).expect("repeated");
    assert_eq!(&echo, b"hello\n");
}

#[test]
fn a_waypoint_of_another_program_is_told_by_our_node_proxy_who_calls_whom_and_by_nobody_else() {
    let Some((mut mesh, [client, gate])) = town(pod) else {
        return;
    };
    let pods = [(&client, "client"), (&gate, "gate")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    is_told(&client);
    // A client cannot write its own identity: neither in plaintext nor through the node proxy.
    let forged =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f\x0a\xf4\0\x02\x0a\x60\0\x0b\x30\x39\0\x50\xd0\0\0";
    for from in [&mesh.world, &client.inside] {
        let mut stream = connect(from, (GATE, DOOR));
        // It may be closed already.
        let _ = stream.write_all(forged);
        let heard = stream.read(&mut [0; 1]);
        assert!(!matches!(heard, Ok(1..)), "{heard:?}");
    }
    wait_until("it says why", || {
        node.log(&mesh)
            .contains("port 15088 of this waypoint may only be called by the node proxy")
    });
    // Other ports of its pod are as those of others.
    serve(&gate, GATE);
    let direct = SocketAddr::from((GATE, APPLICATION));
    assert_eq!(name(&mesh.world, direct).as_deref(), Some("gate"));
}

#[test]
fn a_ztunnel_tells_it_the_same() {
    let Some(program) = program() else {
        return;
    };
    let Some((mut mesh, [client, gate])) = town(Mesh::pod) else {
        return;
    };
    let mut agent = shared(&mut mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&client, "client");
    agent.add(&gate, "gate");
    agent.complete();
    is_told(&client);
}

/// A waypoint without PROXY headers, before a service and before the pod `first`.
fn plain_words() -> String {
    let of_pods = "  annotations: {ambient.istio.io/waypoint-inbound-binding: NONE}\n  labels: {istio.io/waypoint-for: all}\n";
    let gate = WORDS.replace(
        "  annotations: {ambient.istio.io/waypoint-inbound-binding: PROXY/15088}\n",
        of_pods,
    );
    let servers = resources(&[("first", FIRST)]).replace(
        "    app: server\nspec",
        "    app: server\n    istio.io/use-waypoint: gate\nspec",
    );
    assert!(gate.contains(of_pods) && servers.contains("use-waypoint"));
    servers + ZTUNNEL + &gate
}

/// A waypoint that calls the pod `first` for each client of these ports, and adds a note.
fn pass_on(gate: &Pod, ports: &[u16]) {
    for port in ports {
        let listener = listen(&gate.inside, (Ipv4Addr::UNSPECIFIED, *port));
        let inside = gate.inside.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let inside = inside.clone();
                std::thread::spawn(move || {
                    let Some((said, mut behind)) = answers(&inside, (FIRST, APPLICATION)) else {
                        return;
                    };
                    // The client may have left.
                    let _ = stream.write_all(format!("{said} through the gate\n").as_bytes());
                    let mut word = [0; 6];
                    while stream.read_exact(&mut word).is_ok() {
                        let passed = behind.write_all(&word);
                        let heard = passed.and_then(|()| behind.read_exact(&mut word));
                        if heard.and_then(|()| stream.write_all(&word)).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }
}

fn plain_town(make: fn(&Mesh, &'static str, Ipv4Addr) -> Pod) -> Option<(Mesh, [Pod; 3])> {
    let mesh = mesh(&plain_words())?;
    // The server sees the waypoint's identity, and not its client's.
    mesh.write("deny.yaml", DENIED);
    let pods = [
        make(&mesh, "client", CLIENT),
        make(&mesh, "gate", GATE),
        make(&mesh, "first", FIRST),
    ];
    pass_on(&pods[1], &[WEB.1, APPLICATION]);
    serve(&pods[2], FIRST);
    Some((mesh, pods))
}

/// Calls reach the same port of the waypoint's pod, and the waypoint's own calls reach their destinations.
fn is_passed_on(client: &Pod) {
    for to in [WEB, (FIRST, APPLICATION)] {
        let mut open = None;
        wait_until("the waypoint calls on", || {
            open = answers(&client.inside, to);
            open.is_some()
        });
        let (said, mut open) = open.expect("waited for");
        assert_eq!(said, "first through the gate");
        open.write_all(b"hello\n").expect("open");
        let mut echo = [0; 6];
        open.read_exact(&mut echo).expect("repeated");
        assert_eq!(&echo, b"hello\n");
    }
}

#[test]
fn a_waypoint_that_is_told_nothing_is_called_at_the_port_that_is_meant_and_calls_on_without_itself()
{
    let Some((mut mesh, [client, gate, first])) = plain_town(pod) else {
        return;
    };
    let pods = [(&client, "client"), (&gate, "gate"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    is_passed_on(&client);
    let through = node.metrics(&mesh).lines().any(|line| {
        line.starts_with("istio_tcp_connections_opened_total{")
            && line.contains("reporter=\"destination\"")
            && line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/gate\"")
            && line.contains("destination_workload=\"first\"")
            && line.contains("connection_security_policy=\"mutual_tls\"")
    });
    assert!(through, "{}", node.metrics(&mesh));
    // By its service, which has no waypoint, the pod is called by the client itself, who may not.
    assert_eq!(name(&client.inside, (VIP, 80)), None);
}

#[test]
fn a_ztunnel_does_the_same_where_nothing_is_told() {
    let Some(program) = program() else {
        return;
    };
    let Some((mut mesh, [client, gate, first])) = plain_town(Mesh::pod) else {
        return;
    };
    let mut agent = shared(&mut mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&client, "client");
    agent.add(&gate, "gate");
    agent.add(&first, "server");
    agent.complete();
    is_passed_on(&client);
}

/// A service behind the waypoint that has no address.
const HEADLESS: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: bare, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec: {clusterIP: None, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8081}]}
"#;

/// Header that the waypoint gets for a tunnel that the client opens by hand; or the status that refused it.
fn told_of(mesh: &Mesh, target: &'static str) -> Result<String, u16> {
    calls_at(mesh, "client", GATE, async move |caller: Caller| {
        let request = Request::builder().method(Method::CONNECT).uri(target);
        let mut caller = caller.ready().await.expect("room");
        let request = request.body(()).expect("a request");
        let (answer, _open) = caller.send_request(request, false).expect("sent");
        let answer = answer.await.expect("an answer");
        if answer.status() != 200 {
            return Err(answer.status().as_u16());
        }
        let mut body = answer.into_body();
        let mut heard = Vec::new();
        while !heard.ends_with(b"\n") {
            let chunk = body.data().await.expect("a line").expect("open");
            heard.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8_lossy(&heard).trim_end().to_owned())
    })
}

/// Checks the header for a service named by its host name, as callers from another network name it.
fn is_told_of_names(mesh: &Mesh, node: &str) {
    let of_client = "spiffe://cluster.local/ns/shop/sa/client";
    let web = format!("{WORLD} 10.96.0.11:80 {of_client}");
    wait_until(&format!("{node} tells of a service by its address"), || {
        told_of(mesh, "web.shop.svc.cluster.local:80") == Ok(web.clone())
    });
    assert_eq!(told_of(mesh, "10.96.0.11:80"), Ok(web), "as of the address");
}

#[test]
fn a_waypoint_of_another_program_that_is_asked_for_by_name_is_told_the_services_address() {
    let Some((mut mesh, [client, gate])) = town(pod) else {
        return;
    };
    mesh.write("headless.yaml", HEADLESS);
    let pods = [(&client, "client"), (&gate, "gate")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    is_told_of_names(&mesh, "our node proxy");
    for (target, why) in [
        ("web.shop.svc.cluster.local:81", "no such port"),
        (
            "bare.shop.svc.cluster.local:80",
            "no address to put into the PROXY header",
        ),
        (
            "nobody.shop.svc.cluster.local:80",
            "the service does not exist",
        ),
    ] {
        assert_eq!(told_of(&mesh, target), Err(503), "{target}");
        wait_until("it says why", || node.log(&mesh).contains(why));
    }
}

#[test]
fn a_ztunnel_tells_a_waypoint_that_is_asked_for_by_name_the_same() {
    let Some(program) = program() else {
        return;
    };
    let Some((mut mesh, [client, gate])) = town(Mesh::pod) else {
        return;
    };
    let mut agent = shared(&mut mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&client, "client");
    agent.add(&gate, "gate");
    agent.complete();
    // It asks no server for a name, and still knows the earlier ones.
    is_told(&client);
    is_told_of_names(&mesh, "a ztunnel");
}
