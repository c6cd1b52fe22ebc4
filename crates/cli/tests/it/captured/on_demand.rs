//! Resolution DYNAMIC_DNS: the proxy that sees the name resolves hosts of a pattern, as clients name them. A DNS answer must
//! never lead into the mesh, or to the proxy's own machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};

use super::lockdown::{answer, ask, entry, hello};
use super::{Captured, FAR, SERVER, VIP, WORLD, listen, local};
use crate::mesh::resolver::Resolver;
use crate::mesh::{Process, get, wait_until};

/// An unused address, to which clients resolve the hosts.
const BELIEVED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const RESOLVER: &str = "10.244.0.1:5300";

/// The mesh with a resolver in the world, and the pattern with a port of HTTP and one of TLS.
fn start() -> Option<(Captured, Resolver)> {
    let locked = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}";
    let mesh = Captured::start_with(("redirect", RESOLVER), "STRICT", locked)?;
    let socket = mesh.world.run(|| UdpSocket::bind(RESOLVER));
    let socket = socket.expect("entered").expect("a socket");
    let far = vec![FAR];
    let zone = [
        ("a.dyn.test", far.clone()),
        ("b.c.dyn.test", far.clone()),
        ("half.dyn.test", vec![SERVER, FAR]),
        ("dyn.test", far.clone()),
        ("other.test", far),
        ("loop.dyn.test", vec![Ipv4Addr::LOCALHOST]),
        ("any.dyn.test", vec![Ipv4Addr::UNSPECIFIED]),
        ("machine.dyn.test", vec![Ipv4Addr::new(169, 254, 169, 254)]),
        ("pod.dyn.test", vec![SERVER]),
        ("service.dyn.test", vec![VIP]),
    ];
    let resolver = Resolver::start_on(socket, zone.into());
    answer(listen(&mesh.world, (FAR, 80)), "far");
    answer(listen(&mesh.world, (FAR, 443)), "far");
    // Servers that must not be reached.
    answer(listen(&mesh.client, (Ipv4Addr::LOCALHOST, 80)), "secret");
    answer(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 80)), "secret");
    answer(
        listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)),
        "secret",
    );
    let said = "hosts: [\"*.dyn.test\"], location: MESH_EXTERNAL, resolution: DYNAMIC_DNS, \
                ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]";
    mesh.write("dynamic.yaml", &entry("dynamic", said));
    Some((mesh, resolver))
}

/// Hosts, and the result of a request to each.
const HOSTS: [(&str, &str); 12] = [
    ("a.dyn.test", "far"),
    ("A.dyn.TEST.:80", "far"),
    ("b.c.dyn.test", "far"),
    ("half.dyn.test", "far"),
    ("loop.dyn.test", "503"),
    ("any.dyn.test", "503"),
    ("machine.dyn.test", "503"),
    ("pod.dyn.test", "503"),
    ("service.dyn.test", "503"),
    ("missing.dyn.test", "503"),
    ("dyn.test", "502"),
    ("other.test", "502"),
];

#[test]
fn hosts_of_a_pattern_are_where_dns_says_and_never_in_the_mesh() {
    let Some((mesh, resolver)) = start() else {
        return;
    };
    wait_until("the pattern", || {
        ask(&mesh, (BELIEVED, 80), "a.dyn.test") == "far"
    });
    for (host, heard) in HOSTS {
        assert_eq!(ask(&mesh, (BELIEVED, 80), host), heard, "{host}");
    }
    // The address that the client connects to makes no difference.
    assert_eq!(ask(&mesh, (FAR, 80), "loop.dyn.test"), "503");
    assert_eq!(ask(&mesh, (FAR, 80), "other.test"), "502");
    // TLS is known by the name that it asks for; bytes are not.
    wait_until("TLS", || {
        hello(&mesh, (BELIEVED, 443), "a.dyn.test") == "heard"
    });
    for name in ["loop.dyn.test", "missing.dyn.test", "other.test"] {
        assert_eq!(hello(&mesh, (BELIEVED, 443), name), "", "{name}");
    }
    // Known addresses go on serving after the resolver fails.
    resolver.set(None);
    assert_eq!(ask(&mesh, (BELIEVED, 80), "a.dyn.test"), "far");
}

/// Starts a gateway in the world, with a route for all hosts.
fn gateway(mesh: &Captured) -> Process {
    let said = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: gateway, namespace: shop}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata:\n  name: gateway\n  namespace: shop\n  labels: {{istio: edge}}\n\
         \x20 annotations: {{inject.istio.io/templates: gateway}}\n\
         spec:\n  serviceAccountName: gateway\n  containers: [{{name: istio-proxy, image: auto}}]\n\
         status: {{phase: Running, podIP: {WORLD}}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: shop}}\n\
         spec:\n  selector: {{istio: edge}}\n  servers: [{{port: {{number: 8088, name: http, protocol: HTTP}}, hosts: [\"*\"]}}]\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: out, namespace: shop}}\n\
         spec:\n  hosts: [\"*\"]\n  gateways: [edge]\n  http: [{{route: [{{destination: {{host: \"*.dyn.test\", port: {{number: 80}}}}}}]}}]\n"
    );
    mesh.write("gateway.yaml", &said);
    let process = mesh.proxy(
        "gateway",
        &mesh.world,
        &["--role", "gateway", "--resolver", RESOLVER],
    );
    wait_until("the gateway is ready", || {
        let ready = mesh.world.run(|| get(local(15021), "/healthz/ready"));
        matches!(ready, Ok(Ok(answer)) if answer.status == 200)
    });
    process
}

#[test]
fn a_gateway_asks_for_the_host_that_a_request_names() {
    let Some((mesh, _resolver)) = start() else {
        return;
    };
    let _gateway = gateway(&mesh);
    answer(listen(&mesh.world, (Ipv4Addr::LOCALHOST, 80)), "secret");
    let asked = |host: &str| {
        let to = SocketAddr::from((WORLD, 8088));
        let stream = mesh.world.run(|| TcpStream::connect(to)).expect("entered");
        let mut stream = stream.expect("connected");
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        let _ = stream
            .write_all(request.as_bytes())
            .and_then(|()| stream.read_to_string(&mut answer));
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => body.to_owned(),
            _ => answer.split(' ').nth(1).unwrap_or_default().to_owned(),
        }
    };
    wait_until("the pattern", || asked("a.dyn.test") == "far");
    for (host, heard) in HOSTS {
        // Every host has the route, and the pattern does not cover all.
        let heard = if heard == "502" { "503" } else { heard };
        assert_eq!(asked(host), heard, "{host}");
    }
}
