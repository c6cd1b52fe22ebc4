//! Destinations of captured connections: services, pods, the world, the sidecar itself, and
//! addresses without a server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use voile_host::netns::Namespace;

use super::{CLIENT, Captured, FAR, SERVER, VIP, WORLD, beside, connect, hear, listen};
use crate::mesh::{application, series, wait_until};

const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nHost: 192.0.2.1\r\nConnection: close\r\n\r\n";

fn ask(inside: &Namespace, to: impl Into<SocketAddr>) -> String {
    ask_for(inside, to, REQUEST)
}

fn ask_for(inside: &Namespace, to: impl Into<SocketAddr>, request: &[u8]) -> String {
    let mut stream = connect(inside, to);
    let mut answer = String::new();
    // A reset is an answer as well, however early: an empty one.
    let _ = stream
        .write_all(request)
        .and_then(|()| stream.read_to_string(&mut answer));
    answer
}

#[test]
fn services_pods_and_the_world_are_reached_by_their_addresses() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: ALLOW_ANY}") else {
        return;
    };
    application::reflect(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)));
    application::reflect(listen(&mesh.world, (WORLD, 8088)));
    application::reflect(listen(&mesh.client, (CLIENT, 8099)));
    let mut cases: Vec<(&str, SocketAddr)> = vec![
        ("the service", (VIP, 80).into()),
        ("the pod", (SERVER, 8080).into()),
        ("a stranger", (WORLD, 8088).into()),
        ("a port of our own", (CLIENT, 8099).into()),
    ];
    if mesh.v6 {
        application::reflect(listen(&mesh.world, (beside(WORLD), 8088)));
        application::reflect(listen(&mesh.server, (beside(SERVER), 8080)));
        cases.push(("a stranger by IPv6", (beside(WORLD), 8088).into()));
        cases.push(("the pod by IPv6", (beside(SERVER), 8080).into()));
    }
    for (name, to) in cases {
        let answer = ask(&mesh.client, to);
        assert!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer:?}");
        assert!(answer.contains("GET /hello"), "{name}: {answer:?}");
    }
    let passed = [
        "reporter=\"source\"",
        "destination_service_name=\"PassthroughCluster\"",
    ];
    let metrics = mesh.metrics(&mesh.client);
    let counted = series(&metrics, "istio_requests_total", &passed);
    assert!(counted.is_some(), "{metrics}");
    let secured = [
        "connection_security_policy=\"mutual_tls\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
        "destination_service_name=\"server\"",
    ];
    let metrics = mesh.metrics(&mesh.server);
    let counted = series(&metrics, "istio_requests_total", &secured);
    assert!(counted >= Some(2.0), "{metrics}");
    // From the world, without a sidecar, STRICT refuses all connections: on declared ports and on
    // others.
    for port in [8080, 9000, 7777] {
        assert_eq!(ask(&mesh.world, (SERVER, port)), "", "{port}");
    }
    wait_until("the log tells where the stranger's request went", || {
        let log = mesh.client_log();
        let mut lines = log
            .lines()
            .filter(|line| line.contains("PassthroughCluster"));
        lines.any(|line| line.contains(" 10.244.0.1:8088 "))
    });
}

#[test]
fn who_calls_where_nobody_is_hears_so_at_once_and_the_log_says_why() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: ALLOW_ANY}") else {
        return;
    };
    let nobody = Ipv4Addr::new(10, 244, 9, 9);
    for (to, why) in [
        ((nobody, 8080), "no_route_to_host"),
        ((WORLD, 8099), "connection_refused"),
    ] {
        let answer = ask(&mesh.client, to);
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer:?}");
        let told = format!(" 503 UF upstream_connection_failure{{{why}}} - \"{why}\" ");
        wait_until("the log tells why", || mesh.client_log().contains(&told));
    }
    let mut opaque = connect(&mesh.client, (nobody, 7777));
    opaque.write_all(&[0, 1, 2, 3]).expect("sent");
    assert!(opaque.read(&mut [0]).is_err(), "a reset, not an end");
    wait_until("the log tells why", || {
        mesh.client_log().contains("no route to host")
    });
}

#[test]
fn a_registry_only_mesh_reaches_what_it_knows_and_nothing_else() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
    else {
        return;
    };
    application::reflect(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)));
    application::reflect(listen(&mesh.world, (WORLD, 8088)));
    for to in [(VIP, 80), (SERVER, 8080)] {
        assert!(ask(&mesh.client, to).starts_with("HTTP/1.1 200"), "{to:?}");
    }
    let refused = ask(&mesh.client, (WORLD, 8088));
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused:?}");
    let mut opaque = connect(&mesh.client, (WORLD, 8088));
    opaque.write_all(&[0, 1, 2, 3]).expect("sent");
    assert!(opaque.read(&mut [0]).is_err(), "a reset, not an end");
    let metrics = mesh.metrics(&mesh.client);
    for (name, flag) in [
        ("istio_requests_total", "NR"),
        ("istio_tcp_connections_closed_total", "UH"),
    ] {
        let flag = format!("response_flags=\"{flag}\"");
        let labels = ["destination_service_name=\"BlackHoleCluster\"", &flag];
        assert_eq!(series(&metrics, name, &labels), Some(1.0), "{metrics}");
    }
    // The mesh opens up: the next connection hears of it, and nothing is restarted.
    mesh.write(
        "sidecar.yaml",
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata:\n  name: open\n  namespace: shop\nspec:\n  \
         outboundTrafficPolicy:\n    mode: ALLOW_ANY\n  egress:\n  - hosts:\n    - '*/*'\n",
    );
    wait_until("the stranger is reached", || {
        ask(&mesh.client, (WORLD, 8088)).starts_with("HTTP/1.1 200")
    });
}

#[test]
fn what_is_known_is_reached_without_the_control_plane_and_the_proxy_never_calls_itself() {
    let Some(mut mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: ALLOW_ANY}")
    else {
        return;
    };
    application::reflect(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)));
    application::reflect(listen(&mesh.world, (WORLD, 8088)));
    application::reflect(listen(&mesh.world, (FAR, 8089)));
    assert!(ask(&mesh.client, (VIP, 80)).starts_with("HTTP/1.1 200"));
    // Direct connections to the capture listeners, by any address: they were not redirected, and forwarding
    // them would loop.
    for to in [
        (Ipv4Addr::LOCALHOST, 15001),
        (Ipv4Addr::LOCALHOST, 15006),
        (CLIENT, 15001),
        (CLIENT, 15006),
    ] {
        assert_eq!(ask(&mesh.client, to), "", "{to:?}");
    }
    assert_eq!(ask(&mesh.world, (SERVER, 15006)), "");
    mesh.control.take().expect("running").kill();
    wait_until("the sidecar noticed", || {
        super::config_dump(&mesh.client).contains("\"connected\": false")
    });
    assert!(ask(&mesh.client, (VIP, 80)).starts_with("HTTP/1.1 200"));
    // The control plane cannot answer questions about unknown addresses. The last policy allows them, but an address
    // next to the pods may be a pod that needs mutual TLS.
    assert!(ask(&mesh.client, (FAR, 8089)).starts_with("HTTP/1.1 200"));
    let refused = ask(&mesh.client, (WORLD, 8088));
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused:?}");
    mesh.start_control();
    wait_until("the stranger is known for what it is", || {
        ask(&mesh.client, (WORLD, 8088)).starts_with("HTTP/1.1 200")
    });
    let mut late = connect(&mesh.client, (VIP, 80));
    late.write_all(REQUEST).expect("sent");
    hear(&mut late, b"HTTP/1.1 200", "the service");
}

#[test]
fn a_registered_host_is_reached_at_whatever_address_the_client_found_for_it() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
    else {
        return;
    };
    application::reflect(listen(&mesh.world, (FAR, 8089)));
    application::reflect(listen(&mesh.world, (FAR, 8090)));
    mesh.write(
        "entry.yaml",
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: outside\n  namespace: shop\nspec:\n  \
         hosts:\n  - outside.test\n  - '*.wild.test'\n  location: MESH_EXTERNAL\n  resolution: NONE\n  ports:\n  \
         - number: 8089\n    name: http\n    protocol: HTTP\n",
    );
    let status = |host: &str, port: u16| {
        let request = format!("GET /hello HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = ask_for(&mesh.client, (FAR, port), request.as_bytes());
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    wait_until("the host is known", || {
        status("outside.test", 8089) == "200"
    });
    let cases = [
        ("OUTSIDE.test.:8089", 8089, "200"),
        ("a.wild.test", 8089, "200"),
        ("a.b.wild.test", 8089, "200"),
        ("wild.test", 8089, "502"),
        ("elsewhere.test", 8089, "502"),
        ("192.0.2.77", 8089, "502"),
        // Known, but not at this port.
        ("outside.test", 8090, "502"),
    ];
    for (host, port, expected) in cases {
        assert_eq!(status(host, port), expected, "{host} at {port}");
    }
    // On one connection each request is judged by its own name.
    let mut stream = connect(&mesh.client, (FAR, 8089));
    for (host, expected) in [
        ("outside.test", "HTTP/1.1 200"),
        ("elsewhere.test", "HTTP/1.1 502"),
    ] {
        let request = format!("GET /hello HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), expected, "{host}");
        if expected.ends_with("200") {
            let rest = format!("GET /hello HTTP/1.1\r\nHost: {host}\r\n");
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains(&rest) || !seen.ends_with(b"\r\n\r\n") {
                let mut more = [0; 1024];
                let count = stream.read(&mut more).expect("the rest");
                assert!(count > 0, "the answer ended early");
                seen.extend(&more[..count]);
            }
        }
    }
}

/// A ServiceEntry of the world by ranges of addresses.
fn entry(name: &str, ranges: &str, ports: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: {name}\n  namespace: shop\nspec:\n  \
         hosts: [{name}.test]\n  addresses: [{ranges}]\n  location: MESH_EXTERNAL\n  resolution: NONE\n  ports: [{ports}]\n---\n"
    )
}

#[test]
fn an_address_in_a_declared_range_belongs_to_the_narrowest_that_has_the_port() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
    else {
        return;
    };
    for port in [8089, 8090, 8091] {
        application::reflect(listen(&mesh.world, (FAR, port)));
    }
    application::reflect(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)));
    let http = |port: u16| format!("{{number: {port}, name: http-{port}, protocol: HTTP}}");
    let tcp = |port: u16| format!("{{number: {port}, name: tcp-{port}, protocol: TCP}}");
    let both = format!("{}, {}", http(8089), tcp(8090));
    let entries = [
        entry("wide", "192.0.2.0/24, 2001:db8::/32", &both),
        entry("narrow", "192.0.2.64/28", &http(8089)),
        // Pods lie in it, which no passing through may strip of mutual TLS.
        entry("pods", "10.244.0.0/16", &http(8080)),
    ];
    mesh.write("entries.yaml", &entries.concat());
    wait_until("the ranges are known", || {
        ask(&mesh.client, (FAR, 8089)).starts_with("HTTP/1.1 200")
    });
    let mut opaque = connect(&mesh.client, (FAR, 8090));
    opaque.write_all(REQUEST).expect("sent");
    hear(&mut opaque, b"HTTP/1.1 200", "the wide range");
    assert!(ask(&mesh.client, (SERVER, 8080)).starts_with("HTTP/1.1 200"));
    let refused = ask(&mesh.client, (FAR, 8091));
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused:?}");
    let counted = |metric: &str, service: &str| {
        let service = format!("destination_service_name=\"{service}\"");
        let labels = ["reporter=\"source\"", &service];
        series(&mesh.metrics(&mesh.client), metric, &labels)
    };
    let requests = "istio_requests_total";
    for (metric, service, expected) in [
        (requests, "narrow", Some(1.0)),
        (requests, "pods", Some(1.0)),
        (requests, "wide", None),
        ("istio_tcp_connections_opened_total", "wide", Some(1.0)),
    ] {
        assert_eq!(counted(metric, service), expected, "{metric} of {service}");
    }
    // Without the narrow one the wide one takes its place, with no connection in between refused.
    let left = [entry("wide", "192.0.2.0/24", &both)];
    mesh.write("entries.yaml", &left.concat());
    wait_until("the wide one has it", || {
        let answer = ask(&mesh.client, (FAR, 8089));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        counted(requests, "wide").is_some()
    });
    mesh.write("entries.yaml", "");
    wait_until("nobody has it", || {
        ask(&mesh.client, (FAR, 8089)).starts_with("HTTP/1.1 502")
    });
}
