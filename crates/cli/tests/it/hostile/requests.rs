//! Requests that try to get around a policy, against running sidecars: paths, hosts and headers in every spelling, and
//! clients' addresses by header and by the PROXY protocol, forged and true.

use std::net::SocketAddr;

use crate::mesh::{HTTP_PORT, Mesh, application, put, read_to_end};
use crate::policies::authorization::{in_force, policy, set};

/// Status of the answer to the raw bytes: 0 when the connection just ends.
fn answered(to: SocketAddr, bytes: &[u8]) -> u16 {
    let answer = read_to_end(to, bytes).unwrap_or_default();
    let status = answer
        .get(9..12)
        .and_then(|digits| std::str::from_utf8(digits).ok());
    let is_http = answer.starts_with(b"HTTP/1.1 ");
    status
        .filter(|_| is_http)
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

fn with_path(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").into_bytes()
}

fn with_lines(lines: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\n{lines}\r\nConnection: close\r\n\r\n").into_bytes()
}

fn mesh_config(mesh: &Mesh, text: &str) {
    let lines: String = text.lines().map(|line| format!("    {line}\n")).collect();
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n{lines}"
    );
    let new = mesh.config().join(".mesh-config.new");
    std::fs::write(&new, config).expect("the mesh's configuration");
    std::fs::rename(new, mesh.config().join("mesh-config.yaml")).expect("in place");
}

/// Path, and the status with slashes kept as they came, and with slashes decoded and merged.
const PATHS: [(&str, u16, u16); 26] = [
    ("/", 200, 200),
    ("/admin", 403, 403),
    ("/admin/", 403, 403),
    ("/admin/users", 403, 403),
    ("/admin?x=/../y", 403, 403),
    ("/administrator", 200, 200),
    ("/ADMIN", 200, 200),
    ("/x/../admin", 403, 403),
    ("/./admin", 403, 403),
    ("/x/%2e%2e/admin", 403, 403),
    ("/x/%2E./admin", 403, 403),
    ("/%2e/admin", 403, 403),
    ("/%61dmin", 403, 403),
    ("/admin/%2e%2e/open", 200, 200),
    ("/admin/..", 200, 200),
    ("/x/..%2fadmin", 200, 403),
    ("/x%2f..%2fadmin", 200, 403),
    ("/admin%2fusers", 200, 403),
    ("//admin", 200, 403),
    ("/x//../admin", 200, 200),
    ("/\\admin", 200, 403),
    ("/x\\..\\admin", 403, 403),
    ("/admin%5cusers", 200, 403),
    ("/%2561dmin", 200, 200),
    ("http://server/x/../admin", 403, 403),
    ("/admin%00", 400, 400),
];

#[test]
fn a_path_is_denied_in_every_spelling() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let to = mesh.inbound(HTTP_PORT);
    let deny = "action: DENY, rules: [{to: [{operation: {paths: [\"/admin\", \"/admin/*\"]}}]}]";
    set(&mesh, &policy("deny", deny));
    in_force("the policy is in force", || {
        answered(to, &with_path("/admin")) == 403
    });
    for (path, expected, _) in PATHS {
        assert_eq!(answered(to, &with_path(path)), expected, "{path}");
    }
    mesh_config(
        &mesh,
        "pathNormalization: {normalization: DECODE_AND_MERGE_SLASHES}",
    );
    in_force("slashes are merged", || {
        answered(to, &with_path("//admin")) == 403
    });
    for (path, _, expected) in PATHS {
        assert_eq!(answered(to, &with_path(path)), expected, "merged: {path}");
    }
}

#[test]
fn a_host_and_a_header_are_denied_in_every_spelling() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let to = mesh.inbound(HTTP_PORT);
    let deny = "action: DENY, rules: [{to: [{operation: {hosts: [secret.example, \"secret.example:*\"]}}]}, \
                {when: [{key: \"request.headers[x-role]\", values: [admin]}]}]";
    set(&mesh, &policy("deny", deny));
    in_force("the policy is in force", || {
        answered(to, &with_lines("Host: secret.example")) == 403
    });
    for (lines, expected) in [
        ("Host: server", 200),
        ("Host: secret.example", 403),
        ("host: SECRET.Example", 403),
        ("Host: secret.example:8080", 403),
        ("Host:secret.example", 403),
        ("Host: \tsecret.example \t", 403),
        // Another name, as for Envoy: list both where the application takes both.
        ("Host: secret.example.", 200),
        ("Host: secret.example.:80", 200),
        ("Host: xsecret.example", 200),
        ("Host: server\r\nX-Forwarded-Host: secret.example", 200),
        ("Host: server\r\nHost: secret.example", 400),
        ("Host: secret.example\r\nHost: server", 400),
        ("Host: server, secret.example", 400),
        ("Host: user@secret.example", 400),
        ("Host : secret.example", 400),
        (" Host: secret.example", 400),
        ("Host: server\r\nX-Role: admin", 403),
        ("Host: server\r\nx-ROLE:admin", 403),
        ("Host: server\r\nX-Role: user\r\nX-Role: admin", 403),
        ("Host: server\r\nX-Role: admin\r\nX-Role: user", 403),
        // One value with a comma, as for Envoy.
        ("Host: server\r\nX-Role: user, admin", 200),
        ("Host: server\r\nX-Role: ADMIN", 200),
        ("Host: server\r\nX_Role: admin", 200),
        ("Host: server\r\nX-Role : admin", 400),
        ("Host: server\r\nX-Role:\r\n admin", 400),
        ("Host: server\r\nX-Role\u{0}: admin", 400),
    ] {
        assert_eq!(answered(to, &with_lines(lines)), expected, "{lines:?}");
    }
}

/// A policy that allows clients of these addresses.
fn allow_from(blocks: &str) -> String {
    let rule = format!("rules: [{{from: [{{source: {{remoteIpBlocks: [{blocks}]}}}}]}}]");
    policy("allow", &rule)
}

#[test]
fn a_forged_forwarded_for_moves_nobody_nearer() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let to = mesh.inbound(HTTP_PORT);
    let asked = |lines: &str| answered(to, &with_lines(&format!("Host: server{lines}")));
    set(&mesh, &allow_from("\"203.0.113.0/24\", \"2001:db8::/32\""));
    in_force("the policy is in force", || asked("") == 403);
    let forged = "\r\nX-Forwarded-For: 203.0.113.9";
    assert_eq!(
        asked(forged),
        403,
        "nobody is believed unless the mesh says so"
    );

    mesh_config(
        &mesh,
        "defaultConfig: {gatewayTopology: {numTrustedProxies: 1}}",
    );
    in_force("one proxy is believed", || asked(forged) == 200);
    for (lines, expected) in [
        ("", 403),
        ("\r\nX-Forwarded-For: 203.0.113.9", 200),
        ("\r\nx-forwarded-FOR:203.0.113.9", 200),
        ("\r\nX-Forwarded-For: 192.0.2.1, 203.0.113.9", 200),
        // The client's own entries come before the entry that the proxy added.
        ("\r\nX-Forwarded-For: 203.0.113.9, 192.0.2.1", 403),
        (
            "\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 192.0.2.1",
            403,
        ),
        (
            "\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 203.0.113.9",
            200,
        ),
        ("\r\nX-Forwarded-For: 2001:db8::1", 200),
        ("\r\nX-Forwarded-For: ::ffff:203.0.113.9", 200),
        ("\r\nX-Forwarded-For: ::ffff:192.0.2.1", 403),
        // A value that is no address matches no address.
        ("\r\nX-Forwarded-For: 203.0.113.9:80", 403),
        ("\r\nX-Forwarded-For: [2001:db8::1]", 403),
        ("\r\nX-Forwarded-For: 203.0.113.9,", 403),
        ("\r\nX-Forwarded-For: 203.0.113.009", 403),
        ("\r\nX-Forwarded-For: 203.0.113", 403),
        ("\r\nX-Forwarded-For: 0xcb007109", 403),
        ("\r\nX-Forwarded-For: unknown", 403),
        ("\r\nX-Real-IP: 203.0.113.9", 403),
        ("\r\nForwarded: for=203.0.113.9", 403),
        ("\r\nX_Forwarded_For: 203.0.113.9", 403),
    ] {
        assert_eq!(asked(lines), expected, "{lines:?}");
    }

    mesh_config(
        &mesh,
        "defaultConfig: {gatewayTopology: {numTrustedProxies: 2}}",
    );
    in_force("two proxies are believed", || asked(forged) == 403);
    for (lines, expected) in [
        ("\r\nX-Forwarded-For: 203.0.113.9, 192.0.2.1", 200),
        (
            "\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 192.0.2.1",
            200,
        ),
        (
            "\r\nX-Forwarded-For: 203.0.113.9, 192.0.2.1, 192.0.2.2",
            403,
        ),
        // Fewer entries than proxies: the client went around a proxy.
        ("\r\nX-Forwarded-For: 203.0.113.9", 403),
    ] {
        assert_eq!(asked(lines), expected, "{lines:?}");
    }
}

/// The PROXY protocol's second version, for a client over IPv4.
fn proxied(client: [u8; 4]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend_from_slice(&client);
    header.extend_from_slice(&[198, 51, 100, 2, 0x30, 0x39, 0, 80]);
    header
}

/// Has the server's sidecar expect the header.
fn expect_balancer(mesh: &Mesh) {
    let resources = mesh.config().join("mesh.yaml");
    let text = std::fs::read_to_string(&resources).expect("resources");
    let pod = "kind: Pod\nmetadata:\n  name: server\n";
    assert!(text.contains(pod));
    let annotated = format!(
        "{pod}  annotations: {{proxy.istio.io/config: \"gatewayTopology: {{proxyProtocol: {{}}, numTrustedProxies: 1}}\"}}\n"
    );
    put(&resources, &text.replace(pod, &annotated));
}

/// Bytes before a request, and the status of the request after them.
fn balancers_words() -> [(&'static str, Vec<u8>, u16); 14] {
    let line = |text: &str| text.as_bytes().to_vec();
    let version_2 = |rest: &[u8]| [b"\r\n\r\n\0\r\nQUIT\n", rest].concat();
    let (near, far) = (proxied([203, 0, 113, 9]), proxied([192, 0, 2, 1]));
    [
        ("v2", near.clone(), 200),
        ("v2, somebody else", far, 403),
        ("v2, mapped", mapped([203, 0, 113, 9]), 200),
        (
            "v1",
            line("PROXY TCP4 203.0.113.9 198.51.100.2 1 80\r\n"),
            200,
        ),
        (
            "v1, somebody else",
            line("PROXY TCP4 192.0.2.1 198.51.100.2 1 80\r\n"),
            403,
        ),
        (
            "v1, IPv6",
            line("PROXY TCP6 2001:db8::1 2001:db8::2 1 80\r\n"),
            200,
        ),
        ("v1, unknown", line("PROXY UNKNOWN\r\n"), 403),
        ("v2, its own", version_2(b"\x20\0\0\0"), 403),
        ("none", Vec::new(), 0),
        ("not one", line("PROXY TCP4 203.0.113.9\r\n"), 0),
        (
            "too long",
            line(&format!("PROXY TCP4 {}\r\n", "1".repeat(200))),
            0,
        ),
        ("too large", version_2(b"\x21\x11\xff\xff"), 0),
        (
            "datagrams",
            version_2(b"\x21\x12\0\x0c\xcb\0\x71\x09\0\0\0\0\0\0\0\0"),
            0,
        ),
        ("twice", near.repeat(2), 400),
    ]
}

#[test]
fn a_balancer_says_for_whom_it_connects() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let to = mesh.inbound(HTTP_PORT);
    let plain = with_path("/");
    let after = |header: &[u8]| answered(to, &[header, &plain].concat());
    set(&mesh, &allow_from("\"203.0.113.0/24\", \"2001:db8::/32\""));
    in_force("the policy is in force", || answered(to, &plain) == 403);
    let near = proxied([203, 0, 113, 9]);
    assert_eq!(after(&near), 400, "no header is expected");
    expect_balancer(&mesh);
    in_force("the header is expected", || after(&near) == 200);
    for (what, header, expected) in balancers_words() {
        assert_eq!(after(&header), expected, "{what}");
    }
    // A header of the request comes after the balancer's word, and is that of the proxy before it.
    let forwarded = with_lines("Host: server\r\nX-Forwarded-For: 203.0.113.9");
    let far = [proxied([192, 0, 2, 1]), forwarded].concat();
    assert_eq!(answered(to, &far), 200);
    // Sidecars of the mesh need no header: they say who they are.
    set(
        &mesh,
        &policy("allow", "rules: [{from: [{source: {namespaces: [shop]}}]}]"),
    );
    in_force("sidecars come through", || {
        answered(mesh.http(), &plain) == 200
    });
}

fn mapped(client: [u8; 4]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24".to_vec();
    for _ in 0..2 {
        header.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        header.extend_from_slice(&client);
    }
    header.extend_from_slice(&[0x30, 0x39, 0, 80]);
    header
}

#[test]
fn headers_that_say_who_calls_reach_nobody() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let forged = "Host: server\r\nX-Forwarded-Client-Cert: By=a;URI=spiffe://cluster.local/ns/shop/sa/admin\r\n\
                  x-forwarded-client-CERT: URI=again\r\nX_Forwarded_Client_Cert: URI=spelt\r\n\
                  X-Envoy-Peer-Metadata: ZXZpbA==\r\nX-Envoy-Peer-Metadata-Id: sidecar~evil";
    for (what, to) in [
        ("a stranger", mesh.inbound(HTTP_PORT)),
        ("an application of the mesh", mesh.http()),
    ] {
        let answer = read_to_end(to, &with_lines(forged)).expect("an answer");
        let seen = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        assert!(seen.starts_with("http/1.1 200"), "{what}: {seen}");
        for forbidden in ["client", "spiffe", "evil", "zxzp", "uri="] {
            assert!(!seen.contains(forbidden), "{what}: {forbidden} in {seen}");
        }
    }
    let metrics = mesh.server_metrics();
    assert!(
        !metrics.contains("evil") && !metrics.contains("sa/admin"),
        "{metrics}"
    );
}
