//! PeerAuthentication on the wire: who may call in plaintext, and that an edit takes effect without a restart.

use crate::mesh::{HTTP_PORT, Mesh, application, get, read_to_end, series, wait_until};

const PLAIN: &[u8] = b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

fn plaintext_passes(mesh: &Mesh) -> bool {
    read_to_end(mesh.inbound(HTTP_PORT), PLAIN)
        .is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200 "))
}

#[test]
fn strict_refuses_plaintext_and_takes_mutual_tls() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    assert_eq!(
        get(mesh.http(), "/").expect("through the sidecars").status,
        200
    );
    let answer = read_to_end(mesh.inbound(HTTP_PORT), PLAIN).expect("closed in good order");
    assert!(
        !answer.starts_with(b"HTTP"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[test]
fn permissive_takes_both() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    assert!(plaintext_passes(&mesh));
    assert_eq!(
        get(mesh.http(), "/").expect("through the sidecars").status,
        200
    );
    let metrics = mesh.server_metrics();
    for policy in ["mutual_tls", "none"] {
        let label = format!("connection_security_policy=\"{policy}\"");
        assert_eq!(
            series(&metrics, "istio_requests_total", &[&label]),
            Some(1.0),
            "{metrics}"
        );
    }
}

#[test]
fn disable_makes_the_client_speak_plaintext() {
    let mesh = Mesh::start("DISABLE");
    application::reflect(mesh.http_app());
    assert_eq!(
        get(mesh.http(), "/").expect("through the sidecars").status,
        200
    );
    let metrics = mesh.server_metrics();
    assert_eq!(
        series(
            &metrics,
            "istio_requests_total",
            &["connection_security_policy=\"none\""]
        ),
        Some(1.0),
        "{metrics}"
    );
}

#[test]
fn an_edit_takes_effect_without_restart_and_a_broken_one_changes_nothing() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    assert!(plaintext_passes(&mesh));
    mesh.set_peer_authentication("STRICT");
    wait_until("STRICT is enforced", || !plaintext_passes(&mesh));
    assert_eq!(
        get(mesh.http(), "/").expect("mutual TLS goes on").status,
        200
    );

    mesh.set_peer_authentication("STRICTEST");
    wait_until("the broken edit is reported", || {
        mesh.control.log().contains("policy.yaml:8:11")
    });
    assert!(
        !plaintext_passes(&mesh),
        "the last good policy stays in force"
    );
    std::fs::write(
        mesh.config().join("policy.yaml"),
        "apiVersion: security.istio.io/v1\nkind: PeerAuth",
    )
    .expect("truncated");
    wait_until("the truncated edit is reported", || {
        mesh.control.log().contains("PeerAuth`") || mesh.control.log().contains("`PeerAuth")
    });
    assert!(
        !plaintext_passes(&mesh),
        "the last good policy stays in force"
    );

    mesh.set_peer_authentication("PERMISSIVE");
    wait_until("PERMISSIVE is enforced again", || plaintext_passes(&mesh));
}
