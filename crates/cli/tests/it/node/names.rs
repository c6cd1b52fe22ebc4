//! DNS of pods without a sidecar. The node proxy answers from inside each pod, by the names that are visible in the pod's
//! namespace. It forwards names that the mesh does not know.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

use super::everything::ALL;
use super::*;
use crate::mesh::resolver::{Resolver, question, read};

/// Address of the name server in the pods' configuration. No server has it.
pub(super) const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 53);
/// The resolver, in the world.
pub(super) const RESOLVER: (Ipv4Addr, u16) = (WORLD, 53);
/// That it is asked.
pub(super) const ASKS: [&str; 2] = ["--resolver", "10.244.0.1"];
/// Address in the resolver's answers.
pub(super) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

/// A namespace of its own with a pod, and entries: one for everybody, one that its namespace keeps to itself.
const ENTRIES: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: blog\n  labels:\n    istio.io/dataplane-mode: ambient\n\
    ---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: reader, namespace: blog}\n\
    ---\napiVersion: v1\nkind: Pod\nmetadata: {name: reader, namespace: blog}\n\
    spec: {serviceAccountName: reader, nodeName: one, containers: [{name: app}]}\n\
    status: {phase: Running, podIP: 10.244.0.4}\n\
    ---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: outer, namespace: shop}\n\
    spec: {hosts: [outer.example.com], location: MESH_EXTERNAL, ports: [{number: 80, name: tcp, targetPort: 8080}],\n  \
    resolution: STATIC, endpoints: [{address: 10.244.0.1}]}\n\
    ---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: secret, namespace: blog}\n\
    spec: {hosts: [secret.example.com], exportTo: [\".\"], location: MESH_EXTERNAL, ports: [{number: 80, name: tcp, targetPort: 8080}],\n  \
    resolution: STATIC, endpoints: [{address: 10.244.0.1}]}\n\
    ---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: named, namespace: shop}\n\
    spec: {hosts: [named.example.com], location: MESH_EXTERNAL, ports: [{number: 80, name: tcp}], resolution: DNS}\n\
    ---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
    metadata: {name: gated, namespace: shop, labels: {istio.io/use-waypoint: gate}}\n\
    spec: {hosts: [gated.example.com], location: MESH_EXTERNAL, ports: [{number: 80, name: tcp}], resolution: DNS}\n\
    ---\napiVersion: v1\nkind: Service\nmetadata: {name: heads, namespace: shop}\n\
    spec: {clusterIP: None, selector: {app: server}, ports: [{name: tcp, port: 8080}]}\n\
    ---\napiVersion: v1\nkind: Service\nmetadata: {name: alias, namespace: shop}\n\
    spec: {type: ExternalName, externalName: www.elsewhere.test, ports: [{name: tcp, port: 80}]}\n";

/// Sends a DNS query from inside, in a datagram; None without an answer.
fn ask(from: &Pod, name: &str, kind: &str) -> Option<String> {
    let packet = question(name, kind);
    let asked = from.inside.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.send_to(&packet, (NAME_SERVER, 53))?;
        let mut answer = [0; 1500];
        let (length, server) = socket.recv_from(&mut answer)?;
        assert_eq!(server.ip(), NAME_SERVER, "whoever was asked answers");
        std::io::Result::Ok(read(&answer[..length]))
    });
    asked.expect("entered").ok()
}

/// The same on a connection.
fn ask_by_tcp(from: &Pod, name: &str) -> Option<String> {
    let packet = question(name, "A");
    let asked = from.inside.run(|| {
        let mut stream = TcpStream::connect((NAME_SERVER, 53))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(&[&(packet.len() as u16).to_be_bytes()[..], &packet].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok(read(&answer))
    });
    asked.expect("entered").ok()
}

pub(super) fn answered(from: &Pod, name: &str, kind: &str) -> String {
    ask(from, name, kind).unwrap_or_else(|| format!("{name}: no answer"))
}

/// A mesh, its pods of the shop and of the blog, and who answers in the world.
pub(super) fn town() -> Option<(Mesh, [Pod; 3], Resolver)> {
    let mesh = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL + ENTRIES))?;
    let pods = [
        pod(&mesh, "client", CLIENT),
        pod(&mesh, "first", FIRST),
        pod(&mesh, "reader", SECOND),
    ];
    let socket = mesh.world.run(|| UdpSocket::bind(RESOLVER));
    let socket = socket.expect("entered").expect("a socket");
    let known = [
        "www.elsewhere.test",
        "secret.example.com",
        "named.example.com",
        "gated.example.com",
        "kept.shop",
    ];
    let zone = known.map(|name| (name, vec![OUTSIDE]));
    let resolver = Resolver::start_on(socket, BTreeMap::from(zone));
    Some((mesh, pods, resolver))
}

/// The proxy of the town's node.
pub(super) fn start(mesh: &mut Mesh, [client, first, reader]: &[Pod; 3], more: &[&str]) -> Node {
    let pods = [(client, "client"), (first, "server")];
    let node = Node::start(mesh, "ztunnel-one", 0, &pods, more);
    node.agent.add_of(reader, "blog", "reader");
    node
}

#[test]
fn names_mean_what_the_mesh_tells_a_pods_namespace_and_the_rest_is_the_resolvers() {
    names_mean_what_the_mesh_tells(&ASKS);
}

#[test]
fn names_mean_the_same_to_a_node_proxy_that_is_told_all() {
    names_mean_what_the_mesh_tells(&[ASKS, ALL].concat());
}

/// The node proxy has these options.
fn names_mean_what_the_mesh_tells(options: &[&str]) {
    let Some((mut mesh, pods, resolver)) = town() else {
        return;
    };
    let node = start(&mut mesh, &pods, options);
    let [client, _, reader] = &pods;
    let (server, outside) = (format!("NOERROR {VIP}"), format!("NOERROR {OUTSIDE}"));
    let heads = format!("NOERROR {FIRST}");
    for (from, name, kind, expected) in [
        (client, "server", "A", &*server),
        (client, "server.shop", "A", &server),
        (client, "SERVER.shop.svc.cluster.local", "A", &server),
        (client, "server.shop.svc.cluster.local", "AAAA", "NOERROR"),
        // A short name is of the pod's own namespace.
        (reader, "server", "A", "NXDOMAIN"),
        (reader, "server.shop", "A", &server),
        (client, "heads", "A", &heads),
        (client, "first.heads.shop.svc.cluster.local", "A", &heads),
        (
            client,
            "nobody.heads.shop.svc.cluster.local",
            "A",
            "NXDOMAIN",
        ),
        (
            client,
            "alias.shop",
            "A",
            "NOERROR www.elsewhere.test 192.0.2.7",
        ),
        (client, "localhost", "A", "NOERROR 127.0.0.1"),
        // The resolver answers for names that the mesh does not know.
        (client, "www.elsewhere.test", "A", &outside),
        (client, "kept.shop", "A", &outside),
        (client, "nobody.shop.svc.cluster.local", "A", "NXDOMAIN"),
        // The resolver also answers for a name that the mesh hides from the shop.
        (client, "secret.example.com", "A", &outside),
    ] {
        let who = from.name;
        assert_eq!(answered(from, name, kind), expected, "{who}: {name} {kind}");
    }
    assert_eq!(ask_by_tcp(client, "server").as_deref(), Some(&*server));
    let by_tcp = ask_by_tcp(client, "www.elsewhere.test");
    assert_eq!(by_tcp.as_deref(), Some(&*outside));
    let (asked, passed) = (
        node.counter(&mesh, "istio_dns_requests_total"),
        node.counter(&mesh, "istio_dns_upstream_requests_total"),
    );
    assert!(asked > passed && passed >= 7, "{passed} of {asked}");

    // Without a resolver the node proxy answers SERVFAIL at once.
    resolver.set(None);
    assert_eq!(answered(client, "www.elsewhere.test", "A"), "SERVFAIL");
    assert_eq!(answered(client, "server", "A"), server);
}

#[test]
fn addresses_that_the_control_plane_gives_lead_to_whom_they_stand_for_and_names_follow_the_mesh() {
    addresses_and_names_follow_the_mesh(&ASKS);
}

#[test]
fn addresses_and_names_lead_the_same_way_where_all_is_told() {
    addresses_and_names_follow_the_mesh(&[ASKS, ALL].concat());
}

/// The node proxy has these options.
fn addresses_and_names_follow_the_mesh(options: &[&str]) {
    let Some((mut mesh, pods, _resolver)) = town() else {
        return;
    };
    let node = start(&mut mesh, &pods, options);
    let [client, first, reader] = &pods;
    let (server, outside) = (format!("NOERROR {VIP}"), format!("NOERROR {OUTSIDE}"));
    let of_world = Pod {
        name: "outer",
        inside: mesh.world.clone(),
    };
    serve(&of_world, WORLD);
    for (from, entry) in [
        (client, "outer.example.com"),
        (reader, "secret.example.com"),
    ] {
        let said = answered(from, entry, "A");
        assert!(said.starts_with("NOERROR 240.240."), "{entry}: {said}");
        let address: Ipv4Addr = said["NOERROR ".len()..].parse().expect("one address");
        let called = name(&from.inside, (address, 80));
        assert_eq!(called.as_deref(), Some("outer"), "{entry} at {address}");
    }
    for entry in ["outer.example.com", "named.example.com"] {
        let sixth = answered(client, entry, "AAAA");
        assert!(sixth.starts_with("NOERROR 2001:2:"), "{sixth}");
    }

    // A service behind a waypoint keeps its own address, so that no client goes past the waypoint. This
    // waypoint does not exist.
    let gated = answered(client, "gated.example.com", "A");
    assert!(gated.starts_with("NOERROR 240.240."), "{gated}");
    let address: Ipv4Addr = gated["NOERROR ".len()..].parse().expect("one address");
    assert_eq!(name(&client.inside, (address, 80)), None);
    wait_until("it says why", || {
        node.log(&mesh).contains("is behind the waypoint")
    });

    // A changed name gets another answer, and the agent may add the same network again at once.
    mesh.write(
        "late.yaml",
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: late, namespace: shop}\n\
         spec: {hosts: [kept.shop], addresses: [10.96.0.77], ports: [{number: 80, name: tcp}], resolution: STATIC}\n",
    );
    wait_until("a name that the mesh learned is the mesh's", || {
        answered(client, "kept.shop", "A") == "NOERROR 10.96.0.77"
    });
    mesh.remove("late.yaml");
    wait_until("and the resolver's again", || {
        answered(client, "kept.shop", "A") == outside
    });
    node.agent.add(client, "server");
    assert_eq!(answered(client, "server", "A"), server);
    assert_eq!(answered(first, "www.elsewhere.test", "A"), outside);
}

#[test]
fn a_pod_that_floods_a_silent_resolver_keeps_its_names_and_its_neighbours_theirs() {
    let Some((mut mesh, pods, _resolver)) = town() else {
        return;
    };
    // A resolver that never answers, without an ICMP error.
    let silent = mesh.world.run(|| UdpSocket::bind((WORLD, 5353)));
    let silent = silent.expect("entered").expect("a socket");
    let _node = start(&mut mesh, &pods, &["--resolver", "10.244.0.1:5353"]);
    let [client, first, _] = &pods;
    let server = format!("NOERROR {VIP}");
    assert_eq!(answered(client, "server", "A"), server);
    // No more than its socket's queue holds.
    const FLOOD: usize = 250;
    let flood = client
        .inside
        .run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let flood = flood.expect("entered").expect("a socket");
    flood
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    for number in 0..FLOOD {
        let packet = question(&format!("n{number}.elsewhere.test"), "A");
        flood.send_to(&packet, (NAME_SERVER, 53)).expect("sent");
    }
    assert_eq!(answered(first, "server", "A"), server, "a neighbour's");
    let mut answer = [0; 1500];
    for number in 0..FLOOD {
        let heard = flood.recv(&mut answer);
        let length = heard.unwrap_or_else(|error| panic!("{number} of {FLOOD}: {error}"));
        assert_eq!(read(&answer[..length]), "SERVFAIL");
    }
    assert_eq!(answered(client, "server", "A"), server, "its own");
    silent.set_nonblocking(true).expect("a socket");
    let asked = std::iter::from_fn(|| silent.recv_from(&mut answer).ok());
    let askers: Vec<IpAddr> = asked.map(|(_, from)| from.ip()).collect();
    let passed = askers.len();
    assert!((1..=40).contains(&passed), "{passed} were passed on");
    assert!(askers.iter().all(|from| *from == CLIENT), "{askers:?}");
}

#[test]
fn names_are_answered_while_one_process_takes_over_from_another() {
    let Some((mut mesh, pods, _resolver)) = town() else {
        return;
    };
    let path = mesh.folder.path().join("one.handover");
    let path = path.to_str().expect("text").to_owned();
    let words = [&ASKS[..], &["--handover", &*path]].concat();
    let mut node = start(&mut mesh, &pods, &words);
    let [client, first, reader] = &pods;
    let server = format!("NOERROR {VIP}");
    assert_eq!(answered(client, "server", "A"), server);
    let mut before = node.challenge(&mut mesh, &words);
    node.agent.greet();
    node.agent.add(client, "client");
    node.agent.add(first, "server");
    node.agent.add_of(reader, "blog", "reader");
    node.agent.complete();
    wait_until(
        "the new process serves, and every question is answered",
        || {
            assert_eq!(answered(client, "server", "A"), server);
            before.log().contains(handover::HANDED)
        },
    );
    assert!(before.wait().success(), "{}", before.log());
    assert_eq!(answered(client, "server", "A"), server);
    assert_eq!(ask_by_tcp(client, "server").as_deref(), Some(&*server));
}
