//! `voile export envoy`: what Envoy's own checker says of it, and traffic through an Envoy that was started from it.

use std::io::{Read as _, Write as _};

use super::process::Envoy;
use super::stage::{AUTO, HTTP, OURS, Stage, TCP, THEIRS};
use crate::mesh::{application, get, read_to_end, series, wait_until};

/// Each of the two pods may request `/a` from the other, and `/secret` is forbidden to all.
const RULES: &str = r#"apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: each-other, namespace: shop}
spec:
  rules:
  - from: [{source: {principals: ["cluster.local/ns/shop/sa/theirs"]}}, {source: {principals: ["cluster.local/ns/shop/sa/ours"]}}]
    to: [{operation: {paths: ["/a", "/secret"]}}]
  - from: [{source: {namespaces: ["shop"]}}]
    to: [{operation: {ports: ["9000"]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secrets, namespace: shop}
spec:
  action: DENY
  rules:
  - to: [{operation: {paths: ["/secret"], ports: ["7000"]}}]
"#;

fn body(answer: Option<crate::mesh::Answer>) -> String {
    let body = answer.map(|answer| answer.body).unwrap_or_default();
    String::from_utf8_lossy(&body).to_lowercase()
}

#[test]
fn envoy_accepts_what_is_exported_for_either_kind_of_capture() {
    let Some(program) = super::found() else {
        return;
    };
    for mode in ["STRICT", "PERMISSIVE", "DISABLE"] {
        let stage = Stage::new(mode);
        for capture in ["none", "redirect"] {
            let file = stage.exported(&["--capture", capture]);
            let output = Envoy::validate(&program, &file);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{mode} {capture}: {said}");
        }
    }
}

#[test]
fn an_exported_envoy_and_a_sidecar_of_ours_call_each_other_over_mutual_tls() {
    let Some(program) = super::found() else {
        return;
    };
    let stage = Stage::new("STRICT");
    stage.set("rules.yaml", RULES);
    for pod in [OURS, THEIRS] {
        for port in [HTTP, AUTO] {
            application::reflect(stage.application(pod, port));
        }
        application::serve(stage.application(pod, TCP), |mut stream| {
            let mut word = [0; 4];
            if stream.read_exact(&mut word).is_ok() {
                word.reverse();
                let _ = stream.write_all(&word);
            }
        });
    }
    let envoy = stage.envoy(&program, &stage.exported(&["--capture", "none"]));
    for pod in [OURS, THEIRS] {
        for port in [HTTP, AUTO] {
            wait_until("HTTP gets through", || {
                stage.status(pod, port, "GET /a") == 200
            });
        }
        let answer = read_to_end(stage.calls(pod, TCP), b"abcd").expect("an answer");
        assert_eq!(answer, b"dcba", "bytes from pod {pod}");
    }
    // Each pod allows the other one by its identity, and only what the rules name.
    for pod in [OURS, THEIRS] {
        wait_until("the rules are in force", || {
            stage.status(pod, HTTP, "GET /b") == 403
        });
        assert_eq!(
            stage.status(pod, HTTP, "GET /x/../a"),
            200,
            "from pod {pod}"
        );
        assert_eq!(
            stage.status(pod, AUTO, "GET /secret"),
            403,
            "from pod {pod}"
        );
    }
    // Envoy tells the application whose certificate it saw.
    let seen = body(stage.request(OURS, HTTP, "GET /a"));
    assert!(
        seen.contains("uri=spiffe://cluster.local/ns/shop/sa/ours"),
        "{seen}"
    );
    // Our sidecar counts requests by the caller's identity.
    let metrics = stage.our_metrics();
    let by_envoy = [
        "reporter=\"destination\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/theirs\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    assert!(
        series(&metrics, "istio_requests_total", &by_envoy).is_some(),
        "{metrics}"
    );
    assert!(envoy.counted("ssl.handshake") > 0);
    // STRICT refuses plaintext.
    assert!(
        get(stage.inbound(THEIRS, HTTP), "/a").is_err(),
        "plaintext under STRICT"
    );
}

#[test]
fn what_envoy_cannot_do_is_said_by_name_and_nothing_is_printed() {
    let stage = Stage::new("STRICT");
    let custom = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: ask, namespace: shop}\n\
         spec: {action: CUSTOM, provider: {name: opa}, rules: [{}]}\n";
    stage.set("custom.yaml", custom);
    let (code, text, said) = stage.export(&["--capture", "none"]);
    assert_eq!((code, text.as_str()), (Some(1), ""), "{said}");
    assert!(
        said.contains("unknown-provider: workload shop/theirs"),
        "{said}"
    );
    assert!(
        said.contains("custom-over-tcp: AuthorizationPolicy shop/ask"),
        "{said}"
    );
    let (code, text, said) = stage.export(&["--capture", "none", "--partial"]);
    assert_eq!(code, Some(1), "{said}");
    let bootstrap: serde_json::Value = serde_json::from_str(&text).expect("JSON and nothing else");
    // A rule that would ask an external service becomes a DENY.
    assert!(
        bootstrap.to_string().contains("\"action\":\"DENY\""),
        "{text}"
    );
}

#[test]
fn what_every_mesh_meets_is_said_by_name_and_everything_is_printed() {
    let stage = Stage::new("STRICT");
    let (code, text, said) = stage.export(&["--capture", "redirect"]);
    assert_eq!(code, Some(0), "{said}");
    let words = "voile export envoy: workload-address: outboundTrafficPolicy ALLOW_ANY: calls to a workload's own address";
    assert!(said.lines().all(|line| line.starts_with(words)), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let bootstrap: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(bootstrap.is_object(), "{text}");
}
