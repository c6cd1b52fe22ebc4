//! Policies that target a Gateway (`targetRefs`) hold at its proxies, and nowhere else.

use std::fmt::Write as _;

use super::{Heard, backends};
use crate::mesh::{exchange, wait_until};
use crate::up::Up;

/// Those of another namespace mean nothing by the name of this Gateway.
const POLICIES: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secret, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: guarded}]
  action: DENY
  rules: [{to: [{operation: {paths: [/secret]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: unreadable, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: guarded}]
  action: DENY
  rules: [{to: [{operation: {paths: [/unreadable]}}], when: [{key: request.nonsense, values: [a]}]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: guarded}]
  jwtRules: [{issuer: "https://a.example", jwks: '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: elsewhere, namespace: apps}
spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: open}], action: DENY, rules: [{}]}
"#;

/// A Gateway of one listener, with a route to a server outside.
fn gateway(name: &str, port: u16) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec: {{gatewayClassName: istio, listeners: [{{name: http, port: {port}, protocol: HTTP}}]}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec: {{parentRefs: [{{name: {name}}}], rules: [{{backendRefs: [{{name: v1, port: 8080}}]}}]}}\n---\n"
    )
}

#[test]
fn a_policy_holds_at_the_gateway_that_it_targets_and_at_no_other() {
    let all = backends(&Heard::default()) + &gateway("guarded", 8080) + &gateway("open", 8180);
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &all).expect("written");
    };
    let mut up = Up::start(write, &["--quiet"]);
    let published = up.ready();
    let status = |gateway: &str, path: &str, fields: &str| {
        let (_, at) = published
            .iter()
            .find(|(name, _)| name.starts_with(&format!("infra/{gateway}-")))
            .expect("published");
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{fields}Connection: close\r\n\r\n");
        exchange(*at, head.as_bytes()).map(|answer| answer.status)
    };
    let is = |gateway, path, fields, wanted| {
        status(gateway, path, fields).is_ok_and(|one| one == wanted)
    };
    wait_until("both gateways", || {
        is("guarded", "/secret", "", 200) && is("open", "/secret", "", 200)
    });
    std::fs::write(up.file("policies.new"), POLICIES).expect("written");
    std::fs::rename(up.file("policies.new"), up.file("policies.yaml")).expect("renamed");
    wait_until("the policy to be in force", || {
        is("guarded", "/secret", "", 403)
    });
    let token = "Authorization: Bearer x.y.z\r\n";
    let mut wrong = String::new();
    for (gateway, path, fields, wanted) in [
        ("guarded", "/", "", 200),
        ("guarded", "/unreadable", "", 403),
        ("guarded", "/", token, 401),
        ("open", "/secret", "", 200),
        ("open", "/unreadable", "", 200),
        ("open", "/", token, 200),
    ] {
        let found = status(gateway, path, fields);
        if found.as_ref().ok() != Some(&wanted) {
            writeln!(
                wrong,
                "{gateway} {path} {fields:?}: {found:?}, not {wanted}"
            )
            .expect("written");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    // Only the one that no proxy obeys is told so.
    wait_until("the report", || up.text("err").contains("V0324"));
    let told = up.text("err");
    let told: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("not enforced for Gateway"))
        .collect();
    assert!(
        !told.is_empty() && told.iter().all(|line| line.contains("apps/elsewhere")),
        "{told:?}"
    );
    std::fs::remove_file(up.file("policies.yaml")).expect("removed");
    wait_until("the policy to be gone", || {
        is("guarded", "/secret", "", 200)
    });
}
