//! Byte streams through a gateway: plain TCP, TLS that the gateway terminates, and TLS that it passes through; by openssl and
//! plain sockets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Edge, NETWORKING, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{Mesh, Process, TCP_PORT, application, wait_until};

/// Port of the gateway's listener in these tests.
const PORT: u16 = 8443;
/// No read or write of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A VirtualService at the gateway for these hosts, with this layer's routes.
fn routes(hosts: &str, layer: &str, list: &str) -> String {
    format!(
        "{NETWORKING}VirtualService\nmetadata: {{name: streams, namespace: shop}}\nspec:\n  hosts: [{hosts}]\n  gateways: [edge]\n  {layer}: [{list}]\n---\n"
    )
}

/// A server outside at one of the mesh's own addresses.
pub(super) fn entry(name: &str, at: SocketAddr, protocol: &str) -> String {
    format!(
        "{NETWORKING}ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  hosts: [{name}.test]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n  \
         ports: [{{number: 443, name: out, protocol: {protocol}, targetPort: {}}}]\n  endpoints: [{{address: {}}}]\n---\n",
        at.port(),
        at.ip()
    )
}

/// Sends a word to each client, and closes.
pub(crate) fn greet(listener: TcpListener, word: &'static str) {
    application::serve(listener, move |mut stream| {
        // A client that is gone reads nothing.
        let _ = stream.write_all(word.as_bytes());
    });
}

/// Bytes that a client hears up to the end of its connection; none of a connection that is reset.
pub(crate) fn heard(at: SocketAddr) -> String {
    let mut text = String::new();
    let Ok(mut stream) = TcpStream::connect(at) else {
        return text;
    };
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    // A reset tells nothing more.
    let _ = stream.read_to_string(&mut text);
    text
}

/// openssl's server, which says in its page with which cipher it was asked.
pub(crate) fn tls_server(keys: &Keys, name: &str, at: SocketAddr, more: &[&str]) -> Process {
    let openssl = std::path::Path::new("openssl");
    let process = Process::start_other(name, openssl, |command| {
        command.args(["s_server", "-www", "-accept", &at.to_string()]);
        command.arg("-cert").arg(keys.path(&format!("{name}.crt")));
        command.arg("-key").arg(keys.path(&format!("{name}.key")));
        command.args(more);
    });
    wait_until("a server of TLS", || TcpStream::connect(at).is_ok());
    process
}

/// Output of openssl's client: its report on the connection, and the bytes that it received.
pub(crate) fn tls_client(at: SocketAddr, arguments: &[&str]) -> String {
    let ran = Command::new("openssl")
        .args(["s_client", "-connect", &at.to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("openssl");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Common name of the certificate that a client sees; None if the connection is reset.
pub(crate) fn shown(at: SocketAddr, arguments: &[&str]) -> Option<String> {
    let text = tls_client(at, arguments);
    let line = text.lines().find(|line| line.starts_with("subject="))?;
    Some(line.split("CN").nth(1)?.trim_matches([' ', '=']).to_owned())
}

fn second_version(mesh: &Mesh) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: server-v2\n  namespace: shop\n  labels: {{app: server, version: v2, sidecar.istio.io/inject: \"false\"}}\n\
         spec:\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n---\n\
         {NETWORKING}DestinationRule\nmetadata: {{name: server, namespace: shop}}\nspec:\n  host: server\n  subsets: [{{name: old, labels: {{version: v1}}}}, {{name: new, labels: {{version: v2}}}}]\n",
        mesh.address(3, 0).ip()
    )
}

#[test]
fn connections_of_plain_tcp_go_by_weight_to_the_parts_of_a_service() {
    let tcp = format!("{{port: {{number: {PORT}, name: tcp, protocol: TCP}}, hosts: [\"*\"]}}");
    let to = |port: u16, shares: [u32; 2]| {
        let [old, new] = shares;
        routes(
            "\"*\"",
            "tcp",
            &format!(
                "{{match: [{{port: {port}}}], route: [{{destination: {{host: server, port: {{number: {TCP_PORT}}}, subset: old}}, weight: {old}}}, \
                 {{destination: {{host: server, port: {{number: {TCP_PORT}}}, subset: new}}, weight: {new}}}]}}"
            ),
        )
    };
    let edge = Edge::start("", &(servers(&tcp) + &to(PORT, [3, 1])));
    say(&edge.mesh, "v2.yaml", &second_version(&edge.mesh));
    greet(edge.mesh.tcp_app(), "v1");
    let second = TcpListener::bind(edge.mesh.address(3, TCP_PORT)).expect("an address");
    greet(second, "v2");
    wait_until("both versions", || {
        heard(edge.at(PORT)) == "v2" && heard(edge.at(PORT)) == "v1"
    });
    const CONNECTIONS: u32 = 600;
    let mut shares: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        *shares.entry(heard(edge.at(PORT))).or_default() += 1;
    }
    let both = shares["v1"] + shares["v2"];
    assert_eq!(both, CONNECTIONS, "{shares:?}");
    // A quarter, to five standard deviations.
    assert!((97..=203).contains(&shares["v2"]), "{shares:?}");
    // The route is of another port: this port has no route.
    say(
        &edge.mesh,
        "edge.yaml",
        &(servers(&tcp) + &to(PORT + 1, [3, 1])),
    );
    wait_until("no route", || heard(edge.at(PORT)).is_empty());
    say(
        &edge.mesh,
        "edge.yaml",
        &(servers(&tcp) + &to(PORT, [0, 1])),
    );
    wait_until("one version", || heard(edge.at(PORT)) == "v2");
    let others = (0..50).filter(|_| heard(edge.at(PORT)) != "v2").count();
    assert_eq!(others, 0);
    // Connections are let in by policies, and no longer when those change.
    let deny = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: door, namespace: shop}\nspec:\n  selector: {matchLabels: {app: gateway}}\n  action: DENY\n  rules: [{to: [{operation: {ports: [\"8443\"]}}]}]\n";
    say(&edge.mesh, "policy-door.yaml", deny);
    wait_until("a denial", || heard(edge.at(PORT)).is_empty());
}

#[test]
fn a_connection_is_cut_when_the_policies_of_a_gateway_no_longer_let_it_in() {
    let tcp = format!("{{port: {{number: {PORT}, name: tcp, protocol: TCP}}, hosts: [\"*\"]}}");
    let all =
        format!("{{route: [{{destination: {{host: server, port: {{number: {TCP_PORT}}}}}}}]}}");
    let edge = Edge::start("", &(servers(&tcp) + &routes("\"*\"", "tcp", &all)));
    application::serve(edge.mesh.tcp_app(), |mut stream| {
        let mut bytes = [0; 64];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&bytes[..read]).is_err() {
                return;
            }
        }
    });
    let echoed = |stream: &mut TcpStream| {
        let mut byte = [0];
        stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
    };
    let open = || {
        let stream = TcpStream::connect(edge.at(PORT)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        Some(stream)
    };
    wait_until("an echo", || {
        open().is_some_and(|mut stream| echoed(&mut stream))
    });
    let mut stream = open().expect("a connection");
    assert!(echoed(&mut stream));
    let deny = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: door, namespace: shop}\nspec:\n  selector: {matchLabels: {app: gateway}}\n  action: DENY\n  rules: [{}]\n";
    say(&edge.mesh, "policy-door.yaml", deny);
    let mut byte = [0];
    let ended = stream.read(&mut byte);
    assert!(
        matches!(ended, Ok(0))
            || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
    );
}

/// Carries one connection after the other to `to`, each byte of the client's first words in a segment of its own.
fn drip(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let at = listener.local_addr().expect("an address");
    application::serve(listener, move |mut client| {
        let Ok(mut server) = TcpStream::connect(to) else {
            return;
        };
        server.set_nodelay(true).expect("set");
        let (mut back, mut answers) = (
            client.try_clone().expect("a copy"),
            server.try_clone().expect("a copy"),
        );
        std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = client.read(&mut bytes) {
            for byte in &bytes[..read] {
                if server.write_all(&[*byte]).is_err() {
                    return;
                }
            }
        }
        // The other half goes on.
        let _ = server.shutdown(std::net::Shutdown::Write);
    });
    at
}

#[test]
fn tls_that_ends_behind_a_gateway_goes_where_its_name_leads() {
    let keys = Keys::new();
    keys.own("one", "one.example");
    keys.own("two", "two.example");
    let tls = format!(
        "{{port: {{number: {PORT}, name: tls, protocol: TLS}}, hosts: [\"*.example\"], tls: {{mode: PASSTHROUGH}}}}"
    );
    let route = |names: &str, host: &str| {
        format!(
            "{{match: [{{sniHosts: [{names}]}}], route: [{{destination: {{host: {host}.test}}}}]}}"
        )
    };
    let mesh_routes = routes(
        "\"*.example\"",
        "tls",
        &[
            // The closest name counts, not the first.
            route("\"*.deep.example\"", "two"),
            route("one.example, www.deep.example", "one"),
            route("two.example", "two"),
            route("gone.example", "gone"),
        ]
        .join(", "),
    );
    let edge = Edge::start("", &(servers(&tls) + &mesh_routes));
    let at = |last: u8| edge.mesh.address(last, 14_443);
    let entries = entry("one", at(11), "TLS") + &entry("two", at(12), "TLS");
    let _servers =
        [("one", 11), ("two", 12)].map(|(name, last)| tls_server(&keys, name, at(last), &[]));
    say(&edge.mesh, "entries.yaml", &entries);
    let gateway = edge.at(PORT);
    let asked = |name: &str| shown(gateway, &["-servername", name]);
    wait_until("both servers", || {
        asked("one.example").as_deref() == Some("one")
            && asked("two.example").as_deref() == Some("two")
    });
    for (name, server) in [
        ("ONE.example", Some("one")),
        ("www.deep.example", Some("one")),
        ("other.deep.example", Some("two")),
        // A host of the Gateway, without a route.
        ("nobody.example", None),
        // A host routed to a missing service.
        ("gone.example", None),
        // A host that the Gateway does not serve.
        ("one.test", None),
    ] {
        assert_eq!(asked(name).as_deref(), server, "{name}");
    }
    assert_eq!(shown(gateway, &["-noservername"]), None);
    // A ClientHello in as many pieces as it has bytes is the same one.
    let dripped = shown(drip(gateway), &["-servername", "two.example"]);
    assert_eq!(dripped.as_deref(), Some("two"));
    let mut plain = TcpStream::connect(gateway).expect("a connection");
    plain.set_read_timeout(Some(PATIENCE)).expect("set");
    plain
        .write_all(b"GET / HTTP/1.1\r\nHost: one.example\r\n\r\n")
        .expect("sent");
    let mut text = Vec::new();
    // A reset says as much.
    let _ = plain.read_to_end(&mut text);
    assert!(text.is_empty(), "{}", String::from_utf8_lossy(&text));
    // TLS is that of the server: the gateway has no key.
    let told = tls_client(
        gateway,
        &[
            "-servername",
            "one.example",
            "-CAfile",
            keys.path("one.crt").to_str().expect("a path"),
            "-verify_return_error",
        ],
    );
    assert!(told.contains("Verify return code: 0 (ok)"), "{told}");
}

#[test]
fn tls_ends_at_a_gateway_and_what_was_in_it_goes_on_as_bytes() {
    let keys = Keys::new();
    keys.own("edge", "in.example");
    let tls = format!(
        "{{port: {{number: {PORT}, name: tls, protocol: TLS}}, hosts: [in.example, other.example], tls: {{mode: SIMPLE, credentialName: edge}}}}"
    );
    let all =
        format!("{{route: [{{destination: {{host: server, port: {{number: {TCP_PORT}}}}}}}]}}");
    let edge = Edge::start(
        "",
        &(keys.pair("edge") + &servers(&tls) + &routes("in.example", "tcp", &all)),
    );
    greet(edge.mesh.tcp_app(), "from within");
    let hears = |name: &str| tls_client(edge.at(PORT), &["-quiet", "-servername", name]);
    wait_until("a greeting", || hears("in.example") == "from within");
    // The server serves this name too, and no VirtualService that has it routes there.
    assert_eq!(hears("other.example"), "");
    assert_eq!(hears("nobody.example"), "");
}

/// A Service for the gateway, and the client's way to it: what it calls as `server` goes to the gateway in the mesh's own TLS, which
/// asks for a name.
fn through_the_gateway(layer: &str, own_port: u16, kind: &str) -> String {
    let there = match layer {
        "http" => String::new(),
        _ => format!(", port: {own_port}"),
    };
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: edge, namespace: shop}}\nspec:\n  selector: {{app: gateway}}\n  ports: [{{name: {kind}-out, port: {PORT}}}]\n---\n\
         {NETWORKING}DestinationRule\nmetadata: {{name: edge, namespace: shop}}\nspec:\n  host: edge\n  trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL, sni: way.example}}}}\n---\n\
         {NETWORKING}VirtualService\nmetadata: {{name: way, namespace: shop}}\nspec:\n  hosts: [server, way.example]\n  gateways: [mesh, edge]\n  {layer}:\n\
         \x20 - {{match: [{{gateways: [mesh]{there}}}], route: [{{destination: {{host: edge, port: {{number: {PORT}}}}}}}]}}\n\
         \x20 - {{match: [{{gateways: [edge]}}], route: [{{destination: {{host: server, port: {{number: {own_port}}}}}}}]}}\n---\n"
    )
}

fn only(account: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: door, namespace: shop}}\nspec:\n  selector: {{matchLabels: {{app: gateway}}}}\n  rules: [{{from: [{{source: {{principals: [cluster.local/ns/shop/sa/{account}]}}}}]}}]\n---\n"
    )
}

#[test]
fn peers_of_the_mesh_prove_who_they_are_at_a_gateway_of_connections() {
    let tls = format!(
        "{{port: {{number: {PORT}, name: tls, protocol: TLS}}, hosts: [way.example, server.shop.svc.cluster.local], tls: {{mode: ISTIO_MUTUAL}}}}"
    );
    let way = through_the_gateway("tcp", TCP_PORT, "tls");
    let edge = Edge::start("", &(servers(&tls) + &way + &only("client")));
    greet(edge.mesh.tcp_app(), "by the gateway");
    wait_until("a greeting", || heard(edge.mesh.tcp()) == "by the gateway");
    let counted = edge.metrics();
    assert!(
        counted.contains("istio_tcp_connections_opened_total"),
        "{counted}"
    );
    // A client without a certificate of the mesh is not allowed.
    assert_eq!(
        tls_client(edge.at(PORT), &["-quiet", "-servername", "way.example"]),
        ""
    );
    say(&edge.mesh, "door.yaml", &only("client"));
    say(&edge.mesh, "edge.yaml", &(servers(&tls) + &way));
    wait_until("a greeting", || heard(edge.mesh.tcp()) == "by the gateway");
    say(&edge.mesh, "door.yaml", &only("somebody-else"));
    wait_until("nobody else", || heard(edge.mesh.tcp()).is_empty());
}

#[test]
fn requests_of_the_mesh_pass_a_gateway_in_mutual_tls() {
    let tls = format!(
        "{{port: {{number: {PORT}, name: https, protocol: HTTPS}}, hosts: [way.example, server.shop.svc.cluster.local], tls: {{mode: ISTIO_MUTUAL}}}}"
    );
    // Requests name the server's own authority, on any path.
    let way = through_the_gateway("http", crate::mesh::HTTP_PORT, "http")
        .replace("hosts: [server, way.example]", "hosts: [server]");
    let edge = Edge::start("", &(servers(&tls) + &way + &only("client")));
    application::reflect(edge.mesh.http_app());
    let ask = || {
        let request =
            b"GET /a HTTP/1.1\r\nHost: server.shop.svc.cluster.local\r\nConnection: close\r\n\r\n";
        crate::mesh::exchange(edge.mesh.http(), request).expect("an answer")
    };
    wait_until("a way through the gateway", || {
        let answer = ask();
        let body = String::from_utf8_lossy(&answer.body).to_ascii_lowercase();
        answer.status == 200 && body.contains("x-envoy-external-address")
    });
    say(
        &edge.mesh,
        "edge.yaml",
        &(servers(&tls) + &way + &only("somebody-else")),
    );
    wait_until("nobody else", || ask().status == 403);
}

/// One more pod with a sidecar of its own, which listens for TLS to `a.test` and calls nothing else.
fn caller(mesh: &Mesh) -> String {
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: caller, namespace: shop}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata: {{name: caller, namespace: shop, labels: {{app: caller}}}}\nspec:\n  serviceAccountName: caller\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n---\n\
         {NETWORKING}Sidecar\nmetadata: {{name: caller, namespace: shop}}\nspec:\n  workloadSelector: {{labels: {{app: caller}}}}\n\
         \x20 egress: [{{port: {{number: {PORT}, protocol: TLS, name: tls}}, bind: {}, captureMode: NONE, hosts: [shop/a.test]}}]\n---\n",
        mesh.address(5, 0).ip(),
        mesh.address(105, 0).ip()
    )
}

#[test]
fn tls_of_the_mesh_goes_where_its_name_leads_and_what_is_routed_nowhere_is_reset() {
    let keys = Keys::new();
    for name in ["own", "one", "two"] {
        keys.own(name, "a.test");
    }
    let mesh = Mesh::start("STRICT");
    let at = |last: u8| mesh.address(last, 14_443);
    let _servers = [("own", 10), ("one", 11), ("two", 12)]
        .map(|(name, last)| tls_server(&keys, name, at(last), &[]));
    let own = entry("a", at(10), "TLS").replace("number: 443", &format!("number: {PORT}"));
    let entries = own + &entry("one", at(11), "TLS") + &entry("two", at(12), "TLS");
    let route = |names: &str, host: &str| {
        format!(
            "{{match: [{{sniHosts: [{names}], port: {PORT}}}], route: [{{destination: {{host: {host}.test, port: {{number: 443}}}}}}]}}"
        )
    };
    let routed = |list: &str| {
        format!(
            "{NETWORKING}VirtualService\nmetadata: {{name: a, namespace: shop}}\nspec:\n  hosts: [a.test, \"*.a.test\"]\n  tls: [{list}]\n---\n"
        )
    };
    let both = route("\"*.a.test\"", "two") + ", " + &route("a.test, x.a.test", "one");
    say(&mesh, "caller.yaml", &(caller(&mesh) + &entries));
    let (_caller, ports) = mesh.start_beside("caller", &crate::mesh::Client::default());
    wait_until("the caller's sidecar", || {
        let ready = crate::mesh::get(crate::mesh::local(ports[2]), "/healthz/ready");
        ready.is_ok_and(|answer| answer.status == 200)
    });
    let to = mesh.address(105, PORT);
    let asked = |name: &str| shown(to, &["-servername", name]);
    // Without routes its names mean nothing.
    wait_until("the service itself", || {
        asked("x.a.test").as_deref() == Some("own")
    });
    say(&mesh, "routes.yaml", &routed(&both));
    wait_until("the routes", || asked("a.test").as_deref() == Some("one"));
    for (name, server) in [
        ("x.a.test", Some("one")),
        ("y.a.test", Some("two")),
        ("b.test", None),
    ] {
        assert_eq!(asked(name).as_deref(), server, "{name}");
    }
    assert_eq!(shown(to, &["-noservername"]), None);
    // Routes of another port leave this one alone.
    say(
        &mesh,
        "routes.yaml",
        &routed(&both.replace(&format!("port: {PORT}"), "port: 9999")),
    );
    wait_until("the service itself", || {
        asked("b.test").as_deref() == Some("own")
    });
}

#[test]
fn connections_of_the_mesh_go_by_weight_and_its_requests_where_they_went() {
    let mesh = Mesh::start("STRICT");
    say(&mesh, "v2.yaml", &second_version(&mesh));
    greet(mesh.tcp_app(), "v1");
    greet(
        TcpListener::bind(mesh.address(3, TCP_PORT)).expect("an address"),
        "v2",
    );
    application::reflect(mesh.http_app());
    let to = |old: u32, new: u32| {
        format!(
            "{NETWORKING}VirtualService\nmetadata: {{name: server, namespace: shop}}\nspec:\n  hosts: [server]\n  tcp:\n\
             \x20 - match: [{{port: {TCP_PORT}, sourceLabels: {{app: client}}}}]\n    route: [{{destination: {{host: server, subset: old}}, weight: {old}}}, {{destination: {{host: server, subset: new}}, weight: {new}}}]\n"
        )
    };
    say(&mesh, "routes.yaml", &to(1, 3));
    wait_until("both versions", || {
        heard(mesh.tcp()) == "v1" && heard(mesh.tcp()) == "v2"
    });
    const CONNECTIONS: usize = 400;
    let new = (0..CONNECTIONS)
        .filter(|_| heard(mesh.tcp()) == "v2")
        .count();
    // Three quarters, to five standard deviations.
    assert!((257..=343).contains(&new), "{new}");
    // A VirtualService that speaks of connections alone leaves requests as they are.
    let answer = crate::mesh::get(mesh.http(), "/").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    // Ten in a row are of one version only where all are.
    let all = || [(); 10].map(|()| heard(mesh.tcp()));
    say(&mesh, "routes.yaml", &to(0, 1));
    wait_until("one version", || all().iter().all(|word| word == "v2"));
    let others = to(0, 1).replace("app: client", "app: somebody");
    say(&mesh, "routes.yaml", &others);
    wait_until("routes for others", || {
        all().iter().any(|word| word == "v1")
    });
}
