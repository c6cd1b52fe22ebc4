//! TLS origination by a gateway for plaintext requests, towards stock servers outside: openssl's and
//! nghttp2's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use voile_testkit::prerequisites::{Prerequisite, program};

use super::streams::{entry, tls_server};
use super::{Edge, NETWORKING, body, http_server, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{Process, wait_until};

/// End of validity, after all tests.
pub(super) const LATER: &str = "20400101000000Z";
/// Before all tests.
pub(super) const EARLIER: &str = "20200201000000Z";

pub(super) fn rule(name: &str, tls: &str) -> String {
    format!(
        "{NETWORKING}DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  host: {name}.test\n  trafficPolicy: {{portLevelSettings: [{{port: {{number: 443}}, tls: {{{tls}}}}}]}}\n---\n"
    )
}

/// Each host to the server of its name.
fn routes(names: &[&str]) -> String {
    let one = |name: &&str| {
        format!(
            "{NETWORKING}VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  hosts: [{name}.test]\n  gateways: [edge]\n  http: [{{route: [{{destination: {{host: {name}.test}}}}]}}]\n---\n"
        )
    };
    names.iter().map(one).collect()
}

/// A route to a missing service. It shows a test that the resources written with it are in force.
fn marker(name: &str) -> String {
    routes(&[name])
}

/// A mesh with a gateway, and servers of TLS by these names at addresses of their own, each with a ServiceEntry.
fn outside(keys: &Keys, resources: &str, all: &[(&str, &[&str])]) -> (Edge, Vec<Process>) {
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let resources = servers(&http_server("\"*.test\"")) + &routes(&names) + resources;
    let edge = Edge::start("", &resources);
    let mut entries = String::new();
    let mut processes = Vec::new();
    for (index, (name, more)) in (20..).zip(all) {
        let at: SocketAddr = edge.mesh.address(index, 14_443);
        entries += &entry(name, at, "HTTP");
        processes.push(tls_server(keys, name, at, more));
    }
    say(&edge.mesh, "entries.yaml", &entries);
    (edge, processes)
}

#[test]
fn requests_go_out_in_tls_to_who_has_the_right_certificate_and_to_nobody_else() {
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.own("others", "others");
    keys.server("foreign", "foreign.test", "others", LATER);
    for (name, host, end) in [
        ("good", "good.test", LATER),
        ("expired", "expired.test", EARLIER),
        ("misnamed", "elsewhere.test", LATER),
        ("alternative", "elsewhere.test", LATER),
        ("careless", "elsewhere.test", EARLIER),
    ] {
        keys.server(name, host, "authority", end);
    }
    let authority = keys.secret("shop", "authority", &[("ca.crt", "authority.crt")]);
    let simple = |name: &str| rule(name, "mode: SIMPLE, credentialName: authority");
    let rules = [
        authority,
        simple("good"),
        simple("expired"),
        simple("misnamed"),
        simple("foreign"),
        rule(
            "alternative",
            "mode: SIMPLE, credentialName: authority, subjectAltNames: [elsewhere.test]",
        ),
        rule("careless", "mode: SIMPLE, insecureSkipVerify: true"),
        rule("keyless", "mode: SIMPLE, credentialName: nowhere"),
    ];
    let plain = [
        "good",
        "expired",
        "misnamed",
        "foreign",
        "alternative",
        "careless",
    ];
    let all: Vec<(&str, &[&str])> = plain.iter().map(|name| (*name, &[][..])).collect();
    let (edge, _servers) = outside(&keys, &(rules.concat() + &routes(&["keyless"])), &all);
    let at = edge.mesh.address(20, 14_443);
    say(&edge.mesh, "keyless.yaml", &entry("keyless", at, "HTTP"));
    wait_until("a good server", || edge.status("good.test", "/") == 200);
    for (name, status, why) in [
        ("good", 200, ""),
        ("expired", 503, "its certificate has expired"),
        ("misnamed", 503, "its certificate is for another name"),
        (
            "foreign",
            503,
            "its certificate is from an unknown authority",
        ),
        ("alternative", 200, ""),
        ("careless", 200, ""),
        (
            "keyless",
            503,
            "the TLS settings of the DestinationRule are invalid",
        ),
    ] {
        let host = format!("{name}.test");
        wait_until(name, || edge.status(&host, "/") == status);
        let answer = edge.ask("GET", &host, "/", "");
        assert_eq!(answer.status, status, "{name}");
        assert!(body(&answer).contains(why), "{name}: {}", body(&answer));
    }
    follows(&edge, &keys, &plain, &rules[1..].concat());
}

/// A change of the Secret with the trusted authorities holds from the next connection on.
fn follows(edge: &Edge, keys: &Keys, plain: &[&str], rules: &str) {
    // A Secret that is written anew and cannot be used leaves the one before.
    let resources = servers(&http_server("\"*.test\"")) + &routes(plain) + rules;
    let spoilt = keys.secret("shop", "authority", &[("ca.crt", "authority.crt")]);
    let spoilt = spoilt.replace("-----BEGIN CERTIFICATE-----", "-----BEGIN SURPRISE-----");
    say(
        &edge.mesh,
        "edge.yaml",
        &(spoilt + &resources + &marker("first")),
    );
    wait_until("the spoilt Secret", || {
        edge.status("first.test", "/") == 503
    });
    assert_eq!(edge.status("good.test", "/"), 200);
    // A Secret that is written anew is believed from the next connection on, and one that is gone no more.
    let renewed = keys.secret("shop", "authority", &[("ca.crt", "others.crt")]);
    say(&edge.mesh, "edge.yaml", &(renewed + &resources));
    wait_until("another authority", || {
        edge.status("foreign.test", "/") == 200
    });
    wait_until("the one before", || edge.status("good.test", "/") == 503);
    say(&edge.mesh, "edge.yaml", &resources);
    wait_until("no authority", || edge.status("foreign.test", "/") == 503);
}

#[test]
fn a_gateway_shows_its_certificate_where_a_server_demands_one() {
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.server("strict", "strict.test", "authority", LATER);
    keys.client("client", "authority");
    let authority = keys.path("authority.crt");
    let demands = [
        "-Verify",
        "1",
        "-verify_return_error",
        "-CAfile",
        authority.to_str().expect("a path"),
    ];
    let credential = keys.secret(
        "shop",
        "client",
        &[
            ("tls.crt", "client.crt"),
            ("tls.key", "client.key"),
            ("ca.crt", "authority.crt"),
        ],
    );
    // A gateway is a client that can be selected.
    let mutual = rule("strict", "mode: MUTUAL, credentialName: client").replace(
        "spec:\n",
        "spec:\n  workloadSelector: {matchLabels: {app: gateway}}\n",
    );
    let mutual = credential.clone() + &mutual;
    let (edge, _servers) = outside(&keys, &mutual, &[("strict", &demands)]);
    wait_until("a proof", || edge.status("strict.test", "/") == 200);
    let base = servers(&http_server("\"*.test\"")) + &routes(&["strict"]) + &credential;
    let simple = base + &rule("strict", "mode: SIMPLE, credentialName: client");
    say(&edge.mesh, "edge.yaml", &simple);
    wait_until("no proof", || edge.status("strict.test", "/") != 200);
}

#[test]
fn requests_of_the_mesh_leave_by_an_egress_gateway_which_makes_their_tls() {
    const PORT: u16 = 8443;
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.server("good", "good.test", "authority", LATER);
    let door = format!(
        "{{port: {{number: {PORT}, name: https, protocol: HTTPS}}, hosts: [server.shop.svc.cluster.local], tls: {{mode: ISTIO_MUTUAL}}}}"
    );
    let way = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: edge, namespace: shop}}\nspec:\n  selector: {{app: gateway}}\n  ports: [{{name: http, port: {PORT}}}]\n---\n\
         {NETWORKING}DestinationRule\nmetadata: {{name: edge, namespace: shop}}\nspec:\n  host: edge\n  trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL, sni: server.shop.svc.cluster.local}}}}\n---\n\
         {NETWORKING}VirtualService\nmetadata: {{name: way, namespace: shop}}\nspec:\n  hosts: [server]\n  gateways: [mesh, edge]\n  http:\n\
         \x20 - {{match: [{{gateways: [mesh]}}], route: [{{destination: {{host: edge, port: {{number: {PORT}}}}}}}]}}\n\
         \x20 - {{match: [{{gateways: [edge]}}], route: [{{destination: {{host: good.test, port: {{number: 443}}}}}}]}}\n---\n"
    );
    let authority = keys.secret("shop", "authority", &[("ca.crt", "authority.crt")]);
    let rest = servers(&door) + &way + &authority;
    let named = rule("good", "mode: SIMPLE, credentialName: authority");
    let edge = Edge::start("", &(rest.clone() + &named));
    let at = edge.mesh.address(20, 14_443);
    let _server = tls_server(&keys, "good", at, &[]);
    say(&edge.mesh, "entries.yaml", &entry("good", at, "HTTP"));
    let ask = || {
        let request =
            b"GET / HTTP/1.1\r\nHost: server.shop.svc.cluster.local\r\nConnection: close\r\n\r\n";
        crate::mesh::exchange(edge.mesh.http(), request).expect("an answer")
    };
    wait_until("a way out", || ask().status == 200);
    // The page of the server tells of the session that the gateway made.
    assert!(body(&ask()).contains("TLSv1.3"), "{}", body(&ask()));
    let other = rule(
        "good",
        "mode: SIMPLE, credentialName: authority, sni: bad.test",
    );
    say(&edge.mesh, "edge.yaml", &(rest + &other));
    wait_until("a name that is not its own", || ask().status == 503);
}

/// Page of a TLS server, for a client that speaks plaintext to a proxy; empty for a connection that is reset.
pub(super) fn page(at: SocketAddr) -> String {
    let mut text = String::new();
    let Ok(mut stream) = TcpStream::connect(at) else {
        return text;
    };
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    // A reset tells nothing more.
    let _ = stream
        .write_all(b"GET / HTTP/1.0\r\n\r\n")
        .and_then(|()| stream.read_to_string(&mut text));
    text
}

/// Servers of bytes, what a rule says of each, and whether it is reached.
fn byte_cases() -> Vec<(&'static str, String, bool)> {
    let believed = "credentialName: authority";
    vec![
        ("good", format!("mode: SIMPLE, {believed}"), true),
        ("misnamed", format!("mode: SIMPLE, {believed}"), false),
        ("foreign", format!("mode: SIMPLE, {believed}"), false),
        (
            "named",
            format!("mode: SIMPLE, {believed}, sni: elsewhere.test"),
            true,
        ),
        (
            "other-name",
            format!("mode: SIMPLE, {believed}, subjectAltNames: [nobody.test]"),
            false,
        ),
        (
            "careless",
            "mode: SIMPLE, insecureSkipVerify: true".to_owned(),
            true,
        ),
        (
            "strict",
            "mode: MUTUAL, credentialName: client".to_owned(),
            true,
        ),
        ("stricter", format!("mode: SIMPLE, {believed}"), false),
    ]
}

/// A server of the gateway for each case, and the resources of all.
fn byte_doors(keys: &Keys, first: u16, cases: &[(&str, String, bool)]) -> (String, String) {
    let mut doors = Vec::new();
    let mut rest = keys.secret("shop", "authority", &[("ca.crt", "authority.crt")])
        + &keys.secret(
            "shop",
            "client",
            &[
                ("tls.crt", "client.crt"),
                ("tls.key", "client.key"),
                ("ca.crt", "authority.crt"),
            ],
        );
    for (port, (name, tls, _)) in (first..).zip(cases) {
        doors.push(format!(
            "{{port: {{number: {port}, name: tcp-{port}, protocol: TCP}}, hosts: [{name}.test]}}"
        ));
        rest += &rule(name, tls);
        rest += &format!(
            "{NETWORKING}VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  hosts: [{name}.test]\n  gateways: [edge]\n  tcp: [{{match: [{{port: {port}}}], route: [{{destination: {{host: {name}.test}}}}]}}]\n---\n"
        );
    }
    (doors.join(", "), rest)
}

#[test]
fn bytes_go_out_in_tls_to_who_has_the_right_certificate_and_are_reset_otherwise() {
    const FIRST: u16 = 9101;
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.own("others", "others");
    keys.client("client", "authority");
    for (name, host, by) in [
        ("good", "good.test", "authority"),
        ("misnamed", "elsewhere.test", "authority"),
        ("foreign", "foreign.test", "others"),
        ("named", "elsewhere.test", "authority"),
        ("other-name", "elsewhere.test", "authority"),
        ("careless", "elsewhere.test", "others"),
        ("strict", "strict.test", "authority"),
        ("stricter", "stricter.test", "authority"),
    ] {
        keys.server(name, host, by, LATER);
    }
    let cases = byte_cases();
    let authority = keys.path("authority.crt");
    let demands = [
        "-Verify",
        "1",
        "-verify_return_error",
        "-CAfile",
        authority.to_str().expect("a path"),
    ];
    let (doors, rest) = byte_doors(&keys, FIRST, &cases);
    let edge = Edge::start("", &(servers(&doors) + &rest));
    let mut entries = String::new();
    let mut running = Vec::new();
    for (last, (name, ..)) in (20..).zip(&cases) {
        let at = edge.mesh.address(last, 14_443);
        entries += &entry(name, at, "TCP");
        let more: &[&str] = if name.starts_with("strict") {
            &demands
        } else {
            &[]
        };
        running.push(tls_server(&keys, name, at, more));
    }
    say(&edge.mesh, "entries.yaml", &entries);
    wait_until("a good server", || page(edge.at(FIRST)).contains("TLSv1.3"));
    for (port, (name, _, reached)) in (FIRST..).zip(&cases) {
        let told = page(edge.at(port));
        assert_eq!(told.contains("TLSv1.3"), *reached, "{name}: {told}");
        assert!(*reached || told.is_empty(), "{name}: {told}");
    }
}

/// nginx, which speaks HTTP/2 in TLS and says what it was asked for; None, and the test is skipped, where there is none.
fn http2_server(keys: &Keys, at: SocketAddr) -> Option<Process> {
    let nginx = program(Prerequisite::Nginx, "nginx")?;
    let folder = keys.path("");
    let folder = folder.to_str().expect("a path").trim_end_matches('/');
    let said = format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;\nevents {{}}\nhttp {{\n  access_log off;\n  \
         client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};\n  \
         server {{\n    listen {at} ssl http2;\n    ssl_certificate {folder}/good.crt; ssl_certificate_key {folder}/good.key;\n    \
         ssl_client_certificate {folder}/authority.crt; ssl_verify_client optional;\n    \
         location / {{ default_type application/grpc; add_header grpc-status 0; return 200 \"$server_protocol $ssl_server_name $ssl_client_verify\"; }}\n  }}\n}}\n"
    );
    std::fs::write(keys.path("nginx.conf"), said).expect("written");
    let process = Process::start_other("nginx", &nginx, |command| {
        command
            .args(["-p", folder, "-c"])
            .arg(keys.path("nginx.conf"));
    });
    wait_until("nginx", || TcpStream::connect(at).is_ok());
    Some(process)
}

/// A listener for HTTP/2, and rules for each server behind it.
fn http2_resources(keys: &Keys, names: &[&str]) -> String {
    let believed = "credentialName: authority";
    servers(&http_server("\"*.test\"").replace("protocol: HTTP", "protocol: HTTP2"))
        + &routes(names)
        + &keys.secret("shop", "authority", &[("ca.crt", "authority.crt")])
        + &keys.secret("shop", "others", &[("ca.crt", "others.crt")])
        + &keys.secret(
            "shop",
            "client",
            &[
                ("tls.crt", "client.crt"),
                ("tls.key", "client.key"),
                ("ca.crt", "authority.crt"),
            ],
        )
        + &rule("good", &format!("mode: SIMPLE, {believed}"))
        + &rule("calls", &format!("mode: SIMPLE, {believed}"))
        + &rule("mutual", "mode: MUTUAL, credentialName: client")
        + &rule("misbelieved", "mode: SIMPLE, credentialName: others")
        + &rule("misnamed", &format!("mode: SIMPLE, {believed}"))
        + &rule(
            "other-name",
            &format!("mode: SIMPLE, {believed}, sni: good.test, subjectAltNames: [nobody.test]"),
        )
        + &rule("careless", "mode: SIMPLE, insecureSkipVerify: true")
}

#[test]
fn http2_and_grpc_go_out_in_tls_too_and_fail_closed() {
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.own("others", "others");
    keys.client("client", "authority");
    keys.server(
        "good",
        "good.test,DNS:calls.test,DNS:mutual.test,DNS:misbelieved.test",
        "authority",
        LATER,
    );
    let names = [
        "good",
        "calls",
        "mutual",
        "misbelieved",
        "misnamed",
        "other-name",
        "careless",
    ];
    let resources = http2_resources(&keys, &names);
    let edge = Edge::start("", &resources);
    let at = edge.mesh.address(20, 14_443);
    let Some(_server) = http2_server(&keys, at) else {
        return;
    };
    let all = names.iter().map(|name| {
        let protocol = if *name == "calls" { "GRPC" } else { "HTTP2" };
        entry(name, at, protocol)
    });
    say(&edge.mesh, "entries.yaml", &all.collect::<String>());
    wait_until("a good server", || edge.status("good.test", "/") == 200);
    for (name, status, told) in [
        ("good", 200, "HTTP/2.0 good.test NONE"),
        ("calls", 200, "HTTP/2.0 calls.test NONE"),
        ("mutual", 200, "HTTP/2.0 mutual.test SUCCESS"),
        (
            "misbelieved",
            503,
            "its certificate is from an unknown authority",
        ),
        ("misnamed", 503, "its certificate is for another name"),
        ("other-name", 503, "its certificate is for another name"),
        ("careless", 200, "HTTP/2.0 careless.test NONE"),
    ] {
        let host = format!("{name}.test");
        wait_until(name, || edge.status(&host, "/") == status);
        let answer = edge.ask("GET", &host, "/", "");
        assert!(body(&answer).contains(told), "{name}: {}", body(&answer));
    }
}
