//! DestinationRules through a control plane and two sidecars with mutual TLS: which protocol HTTP/1.1 travels in between
//! them is seen by what the application is told, since names of fields are in lower case where they crossed HTTP/2.

use crate::mesh::{Mesh, application, exchange, wait_until};

const UPGRADE: &str = "  trafficPolicy:\n    connectionPool: {http: {h2UpgradePolicy: UPGRADE}}\n";

fn rule(policy: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: server, namespace: shop}}\n\
         spec:\n  host: server\n{policy}"
    )
}

/// Whether a request crosses HTTP/2 on its way.
fn crosses_http2(mesh: &Mesh) -> bool {
    let request = b"GET / HTTP/1.1\r\nHost: server\r\nX-Case: 1\r\nConnection: close\r\n\r\n";
    let answer = exchange(mesh.http(), request).expect("an answer");
    let head = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(head.to_lowercase().contains("x-case: 1"), "{head}");
    head.contains("x-case: 1")
}

#[test]
fn a_rule_decides_between_the_mesh_and_its_ports_what_http1_travels_as() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    assert!(!crosses_http2(&mesh), "as in Istio, unless somebody asks");
    let port = |number: u16, pool: &str| {
        format!("{UPGRADE}    portLevelSettings:\n    - port: {{number: {number}}}\n{pool}")
    };
    let keep = "      connectionPool: {http: {h2UpgradePolicy: DO_NOT_UPGRADE}}\n";
    let as_client = UPGRADE.replace("UPGRADE}", "UPGRADE, useClientProtocol: true}");
    let only_port = port(8080, &keep.replace("DO_NOT_UPGRADE", "UPGRADE"));
    let only_port = only_port.replacen("UPGRADE", "DO_NOT_UPGRADE", 1);
    // What each changes is seen, for each is the opposite of the one before.
    for (what, rule, expected) in [
        ("the whole service", rule(UPGRADE), true),
        ("a port against it", rule(&port(8080, keep)), false),
        ("another port", rule(&port(9000, keep)), true),
        ("a port that says nothing", rule(&port(8080, "")), false),
        ("a port alone", rule(&only_port), true),
        ("what the client speaks", rule(&as_client), false),
        ("the service again", rule(UPGRADE), true),
        ("nothing", String::new(), false),
    ] {
        std::fs::write(mesh.config().join("rule.yaml"), rule).expect("the rule");
        wait_until(what, || crosses_http2(&mesh) == expected);
    }
    let everywhere = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n\
                      data:\n  mesh: |\n    h2UpgradePolicy: UPGRADE\n";
    std::fs::write(mesh.config().join("istio.yaml"), everywhere).expect("the mesh's settings");
    wait_until("the mesh", || crosses_http2(&mesh));
    let against = rule(&UPGRADE.replace("UPGRADE}", "DO_NOT_UPGRADE}"));
    std::fs::write(mesh.config().join("rule.yaml"), against).expect("the rule");
    wait_until("a rule against the mesh", || !crosses_http2(&mesh));
}
