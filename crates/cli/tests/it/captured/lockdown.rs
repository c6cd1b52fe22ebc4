//! A mesh that is locked down (REGISTRY_ONLY). Calls to unlisted hosts fail, by address, by name, by request or ClientHello.
//! Listed hosts are reached at the listed endpoints, whatever address the client resolved.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use super::{Captured, FAR, WORLD, connect, listen};
use crate::mesh::{application, wait_until};

/// An unused address, which a list may give to a host.
const LISTED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const ALSO_LISTED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);

/// Answers any first bytes with a word, as an HTTP answer, so that proxies carry it.
pub(super) fn answer(listener: TcpListener, word: &'static str) {
    application::serve(listener, move |mut stream| {
        let mut bytes = [0; 2048];
        if !matches!(stream.read(&mut bytes), Ok(1..)) {
            return;
        }
        let length = word.len();
        // A client that is gone reads nothing.
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{word}"
        );
    });
}

/// One entry: name, hosts, addresses, resolution, number and protocol of its port, its endpoint's, and whether it is in the mesh.
pub(super) fn entry(name: &str, said: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{{said}}}\n---\n"
    )
}

/// Answer to a plaintext request: empty for a reset connection, the status for a refused request.
pub(super) fn ask(mesh: &Captured, to: (Ipv4Addr, u16), host: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    said(mesh, to, request.as_bytes())
}

fn said(mesh: &Captured, to: (Ipv4Addr, u16), request: &[u8]) -> String {
    let mut stream = connect(&mesh.client, to);
    let mut answer = String::new();
    // A reset is an answer as well: an empty one.
    let _ = stream
        .write_all(request)
        .and_then(|()| stream.read_to_string(&mut answer));
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => body.to_owned(),
        Some((head, _)) => head.split(' ').nth(1).unwrap_or_default().to_owned(),
        None => answer,
    }
}

/// Sends a ClientHello for a name by openssl within the client's namespace. Returns the server that took it, known by its first
/// bytes.
pub(super) fn hello(mesh: &Captured, to: (Ipv4Addr, u16), name: &'static str) -> String {
    let to = SocketAddr::from(to).to_string();
    let ran = mesh.client.run(move || {
        Command::new("openssl")
            .args(["s_client", "-msg", "-connect", &to, "-servername", name])
            .stdin(Stdio::null())
            .output()
    });
    let ran = ran.expect("entered").expect("openssl");
    let text =
        String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    // The client reads bytes that are no TLS, the server's word, and not a reset.
    match text.contains("wrong version number") || text.contains("packet length too long") {
        true => "heard".to_owned(),
        false => String::new(),
    }
}

/// The listed hosts: one for requests, and another for TLS.
fn list() -> [String; 2] {
    let plain = format!(
        "hosts: [listed.test, \"*.listed.test\"], addresses: [{LISTED}], location: MESH_EXTERNAL, resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], endpoints: [{{address: {WORLD}, ports: {{http: 8091}}}}]"
    );
    let secure = format!(
        "hosts: [secure.test], addresses: [{ALSO_LISTED}], location: MESH_EXTERNAL, resolution: STATIC, ports: [{{number: 443, name: tls, protocol: TLS}}], endpoints: [{{address: {WORLD}, ports: {{tls: 8092}}}}]"
    );
    [plain, secure]
}

#[test]
fn who_is_not_on_the_list_is_reached_by_no_address_name_or_claim() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
    else {
        return;
    };
    answer(listen(&mesh.world, (WORLD, 8091)), "listed");
    answer(listen(&mesh.world, (WORLD, 8092)), "tls");
    for port in [80, 443, 8080, 9999] {
        answer(listen(&mesh.world, (FAR, port)), "secret");
    }
    let [plain, secure] = list();
    mesh.write(
        "list.yaml",
        &(entry("plain", &plain) + &entry("secure", &secure)),
    );
    wait_until("the list", || {
        ask(&mesh, (LISTED, 80), "listed.test") == "listed"
    });
    for (to, host, heard) in [
        ((LISTED, 80), "listed.test", "listed"),
        ((LISTED, 80), "www.listed.test", "listed"),
        // The client has its own idea of where the host is: it is where the list says, and not there.
        ((FAR, 80), "listed.test", "listed"),
        ((FAR, 80), "www.listed.test", "listed"),
        // A host that is not listed, at an address that is and at one that is not.
        ((FAR, 80), "secret.test", "502"),
        ((FAR, 80), "192.0.2.77", "502"),
        ((FAR, 80), "listed.test.secret.test", "502"),
        ((FAR, 80), "secure.test", "502"),
        // A host that is listed, on a port that is not.
        ((FAR, 8080), "listed.test", "502"),
        ((FAR, 443), "listed.test", "502"),
        ((LISTED, 8080), "listed.test", "502"),
    ] {
        let told = ask(&mesh, to, host);
        assert_eq!(told, heard, "{host} at {to:?}");
        assert_ne!(told, "secret");
    }
    // Opaque bytes name no host: only a listed address takes them.
    for (to, heard) in [
        ((FAR, 9999), ""),
        ((FAR, 443), ""),
        ((ALSO_LISTED, 9999), ""),
    ] {
        assert_eq!(said(&mesh, to, &[0, 1, 2, 3, 4, 5, 6, 7]), heard, "{to:?}");
    }
    // TLS is known by the name that it asks for.
    wait_until("the list", || {
        hello(&mesh, (ALSO_LISTED, 443), "secure.test") == "heard"
    });
    for (to, name) in [
        ((FAR, 443), "secret.test"),
        ((FAR, 443), "listed.test"),
        ((FAR, 8080), "secure.test"),
        ((FAR, 9999), "secure.test"),
    ] {
        assert_eq!(hello(&mesh, to, name), "", "{name} at {to:?}");
    }
    // New connections no longer reach a host that was removed from the list.
    mesh.write("list.yaml", &entry("secure", &secure));
    wait_until("a shorter list", || {
        ask(&mesh, (LISTED, 80), "listed.test") == "502"
    });
    assert_eq!(ask(&mesh, (FAR, 80), "listed.test"), "502");
}

/// A row: the entry's name, its fields beside the host, the client's destination, the requested host, and the expected answer.
/// Words in capitals stand for text that [`rows`] inserts.
const ROWS: &str = "
static         | resolution: STATIC, EXTERNAL, HTTP, AT                   | FAR    | static.test         | listed
static-address | resolution: STATIC, EXTERNAL, HTTP, AT, ADDRESS          | LISTED | static-address.test | listed
inside         | resolution: STATIC, INTERNAL, HTTP, AT                   | FAR    | inside.test         | listed
dns-endpoint   | resolution: DNS, EXTERNAL, HTTP, AT                      | FAR    | dns-endpoint.test   | listed
robin          | resolution: DNS_ROUND_ROBIN, EXTERNAL, HTTP, AT          | FAR    | robin.test          | listed
robin-inside   | resolution: DNS_ROUND_ROBIN, INTERNAL, HTTP, AT, ADDRESS | LISTED | robin-inside.test   | listed
none           | resolution: NONE, EXTERNAL, HTTP                         | FAR    | none.test           | secret
none-inside    | resolution: NONE, INTERNAL, HTTP                         | FAR    | none-inside.test    | secret
none-range     | resolution: NONE, EXTERNAL, HTTP, addresses: [192.0.2.64/28]  | FAR | none-range.test    | secret
none-elsewhere | resolution: NONE, EXTERNAL, HTTP, addresses: [192.0.2.128/28] | FAR | none-elsewhere.test | 502
bytes          | resolution: STATIC, EXTERNAL, TCP, BYTES_THERE, ADDRESS  | LISTED | whoever.test        | listed
bytes-none     | resolution: NONE, EXTERNAL, TCP, addresses: [192.0.2.77] | FAR    | whoever.test        | secret
bytes-range    | resolution: NONE, EXTERNAL, TCP, addresses: [192.0.2.64/28]   | FAR | whoever.test       | secret
";

fn rows() -> Vec<[String; 5]> {
    let written = [
        ("EXTERNAL", "location: MESH_EXTERNAL".to_owned()),
        ("INTERNAL", "location: MESH_INTERNAL".to_owned()),
        (
            "HTTP",
            "ports: [{number: 80, name: http, protocol: H1}]".to_owned(),
        ),
        (
            "TCP",
            "ports: [{number: 80, name: tcp, protocol: BYTES}]".to_owned(),
        ),
        (
            "AT,",
            format!("endpoints: [{{address: {WORLD}, ports: {{http: 8091}}}}],"),
        ),
        (
            "BYTES_THERE",
            format!("endpoints: [{{address: {WORLD}, ports: {{tcp: 8091}}}}]"),
        ),
        ("ADDRESS", format!("addresses: [{LISTED}]")),
        ("H1", "HTTP".to_owned()),
        ("BYTES", "TCP".to_owned()),
    ];
    let row = |line: &str| {
        let mut cells = line.split('|').map(|cell| cell.trim().to_owned());
        let mut row = [0; 5].map(|_| cells.next().expect("five cells"));
        row[1] += ",";
        for (word, text) in &written {
            row[1] = row[1].replace(word, text);
        }
        row
    };
    ROWS.lines()
        .filter(|line| !line.is_empty())
        .map(row)
        .collect()
}

#[test]
fn each_resolution_leads_where_it_says_and_nowhere_else() {
    let Some(mesh) = Captured::start("STRICT", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
    else {
        return;
    };
    answer(listen(&mesh.world, (WORLD, 8091)), "listed");
    answer(listen(&mesh.world, (FAR, 80)), "secret");
    for [name, said, to, host, heard] in rows() {
        let to = match &*to {
            "FAR" => (FAR, 80),
            _ => (LISTED, 80),
        };
        let hosts = format!("hosts: [{name}.test], ");
        mesh.write("list.yaml", &entry(&name, &(hosts + &said)));
        wait_until(&format!("{name}: {heard} by {host}"), || {
            ask(&mesh, to, &host) == heard
        });
        // Other names do not lead there.
        if !name.starts_with("bytes") && !said.contains("addresses") {
            assert_eq!(ask(&mesh, to, "nobody.test"), "502", "{name}");
        }
    }
}
