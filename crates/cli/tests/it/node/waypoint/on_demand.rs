//! Resolution DYNAMIC_DNS at a waypoint: pods behind a node proxy, which sees no names, call a pattern's address, and the waypoint asks
//! DNS for the host that each request names.

use std::net::UdpSocket;

use crate::mesh::resolver::Resolver;
use crate::mesh::{application, exchange};
use crate::node::waypoint::hostile::{GATE, start_gate_with};
use crate::node::*;

/// Address at which clients call the pattern.
const DYNAMIC: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 88);
/// A server of the world's, far from the mesh's own ranges.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 244, 200, 1);
const RESOLVER: &str = "10.244.0.1:5300";
const PATTERN: &str = r#"---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: dynamic, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec:
  hosts: ["*.dyn.test"]
  addresses: [10.96.0.88]
  location: MESH_EXTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DYNAMIC_DNS
"#;

#[test]
fn a_waypoint_asks_for_the_host_that_a_request_names() {
    let text = resources(&[("first", FIRST)]) + ZTUNNEL + &waypoint_pod("gate", GATE) + PATTERN;
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let client = pod(&mesh, "client", CLIENT);
    let gate = mesh.pod_with("gate", GATE, Rules::default());
    let far = mesh.pod_with("far", FAR, Rules::default());
    application::reflect(listen(&far.inside, (FAR, 80)));
    application::reflect(listen(&gate.inside, (Ipv4Addr::LOCALHOST, 80)));
    let socket = mesh.world.run(|| UdpSocket::bind(RESOLVER));
    let zone = [
        ("a.dyn.test", vec![FAR]),
        ("loop.dyn.test", vec![Ipv4Addr::LOCALHOST]),
        ("gate.dyn.test", vec![GATE]),
        ("other.test", vec![FAR]),
    ];
    let _resolver = Resolver::start_on(socket.expect("entered").expect("a socket"), zone.into());
    let _node = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    start_gate_with(&mut mesh, &gate, "shop/gate", &["--resolver", RESOLVER]);
    let status = |host: &str| {
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let ask = || exchange((DYNAMIC, 80).into(), request.as_bytes());
        let answer = client.inside.run(ask).expect("entered");
        answer.map_or(0, |answer| answer.status)
    };
    wait_until("the host is called", || status("a.dyn.test") == 200);
    for (host, expected) in [
        ("loop.dyn.test", 503),
        ("gate.dyn.test", 503),
        ("missing.dyn.test", 503),
        ("other.test", 503),
        ("a.dyn.test", 200),
    ] {
        assert_eq!(status(host), expected, "{host}");
    }
}
