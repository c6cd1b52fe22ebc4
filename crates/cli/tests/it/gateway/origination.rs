//! TLS that a gateway makes of what came in plaintext, towards stock servers outside: openssl's and nghttp2's.

use std::net::SocketAddr;

use super::streams::{entry, tls_server};
use super::{Edge, NETWORKING, body, http_server, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{Process, wait_until};

/// Nobody here lives so long.
const LATER: &str = "20400101000000Z";
/// Before all tests.
const EARLIER: &str = "20200201000000Z";

fn rule(name: &str, tls: &str) -> String {
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
        ("foreign", 503, "nobody we believe certifies it"),
        ("alternative", 200, ""),
        ("careless", 200, ""),
        ("keyless", 503, "upstream TLS cannot be made"),
    ] {
        let host = format!("{name}.test");
        wait_until(name, || edge.status(&host, "/") == status);
        let answer = edge.ask("GET", &host, "/", "");
        assert_eq!(answer.status, status, "{name}");
        assert!(body(&answer).contains(why), "{name}: {}", body(&answer));
    }
    // A Secret that is written anew is believed from the next connection on, and one that is gone no more.
    let renewed = keys.secret("shop", "authority", &[("ca.crt", "others.crt")]);
    let resources = servers(&http_server("\"*.test\"")) + &routes(&plain) + &rules[1..].concat();
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
    let mutual = credential.clone() + &rule("strict", "mode: MUTUAL, credentialName: client");
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
