//! Names through a sidecar: endpoints that only DNS knows, and the DNS proxy's answers to an application.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mesh::resolver::{Resolver, ask};
use crate::mesh::{Client, Mesh, application, free_port, get, local, series, wait_until};

/// Ports of the client's listeners: every address of a name, only the first, a name that does not exist.
const ALL: u16 = 8181;
const FIRST: u16 = 8182;
const LOST: u16 = 8183;
/// Port of the applications outside the mesh.
const OUTSIDE: u16 = 18181;

/// A ServiceEntry whose endpoint is a name, and a listener of the client's for it.
fn entry(host: &str, port: u16, resolution: &str, endpoint: &str) -> String {
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: port-{port}, namespace: shop}}\n\
         spec:\n  hosts: [{host}]\n  location: MESH_EXTERNAL\n  resolution: {resolution}\n\
         \x20 ports: [{{number: {port}, name: http, protocol: HTTP, targetPort: {OUTSIDE}}}]\n  endpoints: [{endpoint}]\n"
    )
}

fn add_entries(mesh: &Mesh) {
    let path = mesh.config().join("mesh.yaml");
    let mut text = std::fs::read_to_string(&path).expect("the resources");
    // The client's Sidecar is the last resource.
    for (port, host) in [(ALL, "all"), (FIRST, "first"), (LOST, "lost")] {
        text += &format!(
            "  - port: {{number: {port}, protocol: HTTP, name: out-{port}}}\n    bind: {}\n    captureMode: NONE\n    hosts: [shop/{host}.example.com]\n",
            mesh.http().ip()
        );
    }
    text += &entry("all.example.com", ALL, "DNS", "{address: app.test}");
    text += &entry(
        "first.example.com",
        FIRST,
        "DNS_ROUND_ROBIN",
        "{address: app.test}",
    );
    // Without endpoints the host itself is the name.
    text += &entry("lost.example.com", LOST, "DNS", "");
    text += "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: wild, namespace: shop}\n\
             spec: {hosts: [\"*.wild.example.com\"], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 192.0.2.1}]}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: secret, namespace: other}\n\
             spec: {hosts: [secret.example.com], exportTo: [\".\"], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 192.0.2.1}]}\n";
    std::fs::write(&path, text).expect("written");
}

/// An application outside the mesh that answers with its name. Once it is to leave, each answer is its connection's last.
fn outside(mesh: &Mesh, last: u8, name: &'static str, leaves: &Arc<AtomicBool>) -> Ipv4Addr {
    let IpAddr::V4(address) = mesh.client_pod() else {
        panic!("the mesh has IPv4 addresses");
    };
    let [a, b, c, _] = address.octets();
    let address = Ipv4Addr::new(a, b, c, last);
    let listener = TcpListener::bind((address, OUTSIDE)).expect("the application's address");
    let leaves = Arc::clone(leaves);
    application::serve(listener, move |stream| {
        let mut reader = std::io::BufReader::new(stream);
        while application::read_request(&mut reader).is_some() {
            let last = leaves.load(Ordering::Relaxed);
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}\r\n{name}",
                name.len(),
                if last { "Connection: close\r\n" } else { "" }
            );
            let sent = reader.get_mut().write_all(answer.as_bytes());
            if last || sent.is_err() {
                return;
            }
        }
    });
    address
}

/// Name of the application that answers; else the status or the error.
fn called(address: SocketAddr) -> String {
    match get(address, "/") {
        Ok(answer) if answer.status == 200 => String::from_utf8_lossy(&answer.body).into_owned(),
        Ok(answer) => answer.status.to_string(),
        Err(error) => error.kind().to_string(),
    }
}

#[test]
fn endpoints_known_by_a_name_are_resolved_and_the_last_good_addresses_outlive_the_resolver() {
    let resolver = Resolver::start(BTreeMap::new());
    let how = Client {
        arguments: vec!["--resolver".to_owned(), resolver.address.to_string()],
        ..Client::default()
    };
    let mesh = Mesh::start_as("STRICT", &how);
    let (leaves, stays) = (Arc::default(), Arc::default());
    let one = outside(&mesh, 11, "one", &leaves);
    let two = outside(&mesh, 12, "two", &stays);
    resolver.set(Some(BTreeMap::from([("app.test", vec![one, two])])));
    add_entries(&mesh);
    let at = |port| SocketAddr::new(mesh.http().ip(), port);
    wait_until("the listeners are there", || called(at(LOST)) == "503");
    let page = mesh.client_metrics();
    let labels = ["response_flags=\"UH\"", "response_code=\"503\""];
    let unhealthy = series(&page, "istio_requests_total", &labels);
    assert!(unhealthy >= Some(1.0), "{page}");
    wait_until("it is said why", || {
        mesh.client.log().contains("no such name (NXDOMAIN)")
    });

    let mut answered = BTreeSet::new();
    wait_until("every address of the name is called", || {
        answered.insert(called(at(ALL)));
        answered.len() >= 2
    });
    assert_eq!(answered, ["one", "two"].map(str::to_owned).into());
    for _ in 0..20 {
        assert_eq!(called(at(FIRST)), "one");
    }
    // The answers expire, and the resolver is broken.
    resolver.set(None);
    wait_until("it is asked anew, in vain", || {
        assert!(["one", "two"].contains(&&*called(at(ALL))));
        mesh.client
            .log()
            .contains("the last good addresses stay in use")
    });
    assert_eq!(called(at(FIRST)), "one");
    resolver.set(Some(BTreeMap::from([("app.test", vec![two])])));
    wait_until("calls follow the name", || {
        (0..10).all(|_| called(at(ALL)) == "two")
    });
    // "Connections made to hosts will be retained even if DNS records change frequently" (Istio on DNS_ROUND_ROBIN): the open
    // ones serve on, and once the server ends them new ones go where the name leads now.
    for _ in 0..10 {
        assert_eq!(called(at(FIRST)), "one");
    }
    leaves.store(true, Ordering::Relaxed);
    wait_until("new connections go to the new address", || {
        let answers: Vec<String> = (0..10).map(|_| called(at(FIRST))).collect();
        assert!(
            answers.iter().all(|name| ["one", "two"].contains(&&**name)),
            "{answers:?}"
        );
        answers.iter().all(|name| name == "two")
    });
}

/// A client whose sidecar answers DNS there and passes on to `resolver`.
fn asking(dns: SocketAddr, resolver: SocketAddr) -> Client {
    let (dns, resolver) = (dns.to_string(), resolver.to_string());
    Client {
        arguments: ["--dns", &dns, "--resolver", &resolver]
            .map(str::to_owned)
            .to_vec(),
        ..Client::default()
    }
}

#[test]
fn a_silent_resolver_does_not_cost_the_mesh_its_names() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let dns = local(free_port());
    let mesh = Mesh::start_as(
        "STRICT",
        &asking(dns, silent.local_addr().expect("an address")),
    );
    let server = format!("NOERROR {}", mesh.inbound(0).ip());
    let is_known = || ask(dns, "server.shop", "A") == server;
    wait_until("the service is known", is_known);
    // More than are answered at once.
    let crawler = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    for number in 0..2200_u16 {
        let mut question = number.to_be_bytes().to_vec();
        question.extend(
            b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05outer\x04test\x00\x00\x01\x00\x01",
        );
        crawler.send_to(&question, dns).expect("sent");
        if number % 50 == 0 {
            // Any answer proves that earlier packets were taken from the socket, which holds some two hundred.
            ask(dns, "localhost", "A");
        }
    }
    assert!(is_known());
}

#[test]
fn the_dns_proxy_answers_for_the_mesh_and_passes_the_rest_on() {
    let resolver = Resolver::start(BTreeMap::from([(
        "www.elsewhere.test",
        vec![Ipv4Addr::new(192, 0, 2, 7)],
    )]));
    let dns = local(free_port());
    let mesh = Mesh::start_as("STRICT", &asking(dns, resolver.address));
    add_entries(&mesh);
    let server = format!("NOERROR {}", mesh.inbound(0).ip());
    let is_virtual = |answer: &str| answer.starts_with("NOERROR 240.240.");
    wait_until("the entries are there", || {
        is_virtual(&ask(dns, "all.example.com", "A"))
    });
    for (name, kind, expected) in [
        ("server", "A", &*server),
        ("server.shop", "A", &server),
        ("server.shop.svc", "A", &server),
        ("SERVER.shop.svc.cluster.local", "A", &server),
        ("server.shop.svc.cluster.local", "AAAA", "NOERROR"),
        ("server.server.shop.svc.cluster.local", "A", &server),
        ("nobody.shop.svc.cluster.local", "A", "NXDOMAIN"),
        (
            "server.shop.svc.cluster.local.shop.svc.cluster.local",
            "A",
            "NXDOMAIN",
        ),
        ("localhost", "A", "NOERROR 127.0.0.1"),
        ("www.elsewhere.test", "A", "NOERROR 192.0.2.7"),
        ("www.elsewhere.test", "AAAA", "NOERROR"),
        ("elsewhere.test", "A", "NXDOMAIN"),
        ("secret.example.com", "A", "NXDOMAIN"),
        ("wild.example.com", "A", "NXDOMAIN"),
        ("1.0.240.240.in-addr.arpa", "PTR", "NXDOMAIN"),
        ("1.0.0.127.in-addr.arpa", "PTR", "NOERROR localhost"),
    ] {
        assert_eq!(ask(dns, name, kind), expected, "{name} {kind}");
    }
    assert!(is_virtual(&ask(dns, "deep.in.wild.example.com", "A")));
    let sixth = ask(dns, "all.example.com", "AAAA");
    assert!(sixth.starts_with("NOERROR 2001:2:"), "{sixth}");
    let all = ask(dns, "all.example.com", "A");
    let mut octets: Vec<&str> = all.trim_start_matches("NOERROR ").split('.').collect();
    octets.reverse();
    let reverse = format!("{}.in-addr.arpa", octets.join("."));
    assert_eq!(ask(dns, &reverse, "PTR"), "NOERROR all.example.com");
    // Without a resolver the DNS proxy answers SERVFAIL at once.
    resolver.set(None);
    assert_eq!(ask(dns, "www.elsewhere.test", "A"), "SERVFAIL");
}
