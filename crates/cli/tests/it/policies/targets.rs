//! Policies that aim at waypoints and gateways (`targetRefs`): sidecars do not obey them, and nothing else suffers by them.

use crate::mesh::{Mesh, Process, application, wait_until};
use crate::policies::authorization::{in_force, policy, set, status};

/// Each would shut the server if it held for it; the last cannot even be read.
const ASIDE: &str = r#"---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: service, namespace: shop}
spec: {targetRefs: [{kind: Service, name: server}], action: DENY, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: gateway, namespace: shop}
spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: door}], rules: []}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: service, namespace: shop}
spec: {targetRefs: [{kind: Service, name: server}], jwtRules: [{issuer: "https://a.example", jwksUri: "https://127.0.0.1:1/keys"}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: broken, namespace: shop}
spec: {targetRefs: [{kind: Service, name: server}], action: DENY, rules: [{when: [{key: "request.nonsense", values: [a]}]}]}
"#;

#[test]
fn a_policy_for_waypoints_and_gateways_holds_nothing_hostage() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let own = policy(
        "deny",
        "action: DENY, rules: [{to: [{operation: {paths: [/secret]}}]}]",
    );
    set(&mesh, &(ASIDE.to_owned() + &own));
    in_force("the sidecar's own policy is in force", || {
        status(&mesh, "GET /secret") == 403
    });
    for _ in 0..20 {
        assert_eq!(status(&mesh, "GET /open"), 200);
    }
    let bearer = "GET /open HTTP/1.1\r\nAuthorization: Bearer x.y.z";
    let bearer = bearer.replace(" HTTP/1.1\r\n", " HTTP/1.1\r\nConnection: close\r\n");
    let head = format!("{bearer}\r\nHost: server\r\n\r\n");
    let answer = crate::mesh::exchange(mesh.http(), head.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200, "nobody looks at its token");
    for wanted in [
        "warning[V0324]: AuthorizationPolicy shop/service is not enforced",
        "warning[V0324]: AuthorizationPolicy shop/gateway is not enforced",
        "warning[V0336]: RequestAuthentication shop/service is not enforced",
    ] {
        // The control plane reports problems once the folder is at rest.
        wait_until(wanted, || mesh.control.log().contains(wanted));
    }

    // Nor does it keep a mesh from starting: that it is not enforced is a warning.
    let folder = tempfile::tempdir().expect("a folder");
    let good = ASIDE.split("name: broken").next().expect("a part");
    let good = good.rsplit_once("---").expect("documents").0;
    std::fs::write(folder.path().join("mesh.yaml"), good).expect("written");
    let analyzed = Process::output(|voile| {
        voile.arg("analyze").arg(folder.path());
    });
    let said = String::from_utf8_lossy(&analyzed.stdout).into_owned();
    assert!(analyzed.status.success(), "{said}");
    assert!(said.contains("V0324") && said.contains("V0336"), "{said}");
}
