//! Answers to node proxies, and the certificates that a node proxy may ask for.

use std::time::SystemTime;

use voile_model::SourceFile;

use super::*;

const MESH: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: cart-1, namespace: shop}
spec: {serviceAccountName: cart, nodeName: one, containers: [{name: app}]}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: far-1, namespace: shop}
spec: {serviceAccountName: far, nodeName: two, containers: [{name: app}]}
status: {podIP: 10.0.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: mixed-1, namespace: shop}
spec: {serviceAccountName: mixed, nodeName: one, containers: [{name: app}]}
status: {podIP: 10.0.0.3}
---
apiVersion: v1
kind: Pod
metadata: {name: mixed-2, namespace: shop, labels: {sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: mixed, nodeName: one, containers: [{name: app}]}
status: {podIP: 10.0.0.4}
---
apiVersion: v1
kind: Pod
metadata: {name: sided, namespace: shop, labels: {sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: sided, nodeName: one, containers: [{name: app}]}
status: {podIP: 10.0.0.5}
---
apiVersion: v1
kind: Pod
metadata: {name: ztunnel-one, namespace: istio-system}
spec: {serviceAccountName: ztunnel, nodeName: one, containers: [{name: ztunnel}]}
status: {podIP: 10.0.1.1}
---
apiVersion: v1
kind: Pod
metadata: {name: ztunnel-lost, namespace: istio-system}
spec: {serviceAccountName: ztunnel, containers: [{name: ztunnel}]}
status: {podIP: 10.0.1.2}
"#;

fn staff(accounts: &[&str]) -> AmbientWorkloads {
    let (mesh, found) = voile_model::check(&[SourceFile::new("mesh.yaml", MESH)], None);
    assert!(found.iter().all(|one| !one.is_error()), "{found:?}");
    let accounts = accounts
        .iter()
        .map(|text| text.parse().expect("an account"));
    AmbientWorkloads::of(&mesh, &Arc::new(accounts.collect()))
}

fn caller(account: &str, pod: Option<&str>, proof: CallerProof) -> AuthenticatedCaller {
    AuthenticatedCaller {
        certificates: Box::default(),
        identity: identity(account),
        pod: pod.map(str::to_owned),
        proof,
        until: SystemTime::UNIX_EPOCH,
    }
}

fn identity(account: &str) -> Identity {
    let (namespace, name) = account.split_once('/').expect("NAMESPACE/NAME");
    let text = format!("spiffe://cluster.local/ns/{namespace}/sa/{name}");
    text.parse().expect("an identity")
}

#[test]
fn a_node_proxy_may_stand_for_the_ambient_workloads_of_its_node_only() {
    let staff = staff(&["istio-system/ztunnel"]);
    let node = |pod| caller("istio-system/ztunnel", pod, CallerProof::Token);
    let one = node(Some("ztunnel-one"));
    for (who, asked, part) in [
        (&one, "shop/cart", None),
        (&one, "istio-system/ztunnel", None),
        (&one, "shop/mixed", None),
        (&one, "shop/far", Some("no workload")),
        (&one, "shop/sided", Some("no workload")),
        (&one, "shop/nobody", Some("no workload")),
        (&node(None), "shop/cart", Some("bound to its pod")),
        (
            &node(Some("ztunnel-two")),
            "shop/cart",
            Some("not in the mesh"),
        ),
        (
            &node(Some("ztunnel-lost")),
            "shop/cart",
            Some("no nodeName"),
        ),
        (
            &caller(
                "istio-system/ztunnel",
                Some("ztunnel-one"),
                CallerProof::Certificate,
            ),
            "shop/cart",
            Some("bound to its pod"),
        ),
        (
            &caller("shop/far", Some("far-1"), CallerProof::Token),
            "shop/cart",
            Some("not a `--node-account`"),
        ),
        (
            &caller("shop/far", Some("ztunnel-one"), CallerProof::Token),
            "shop/cart",
            Some("not a `--node-account`"),
        ),
    ] {
        match (staff.may_stand_for(who, &identity(asked)), part) {
            (Ok(()), None) => {}
            (Err(reason), Some(part)) => assert!(reason.contains(part), "{asked}: {reason}"),
            (found, _) => panic!("{who:?} for {asked}: {found:?}"),
        }
    }
    let foreign = "spiffe://elsewhere/ns/shop/sa/cart"
        .parse()
        .expect("an identity");
    assert!(
        staff.may_stand_for(&one, &foreign).is_err(),
        "another trust domain"
    );
}

#[test]
fn without_a_declared_account_nobody_stands_for_anybody() {
    let staff = staff(&[]);
    let one = caller(
        "istio-system/ztunnel",
        Some("ztunnel-one"),
        CallerProof::Token,
    );
    assert!(staff.may_stand_for(&one, &identity("shop/cart")).is_err());
    assert!(!staff.includes(&one));
}

#[test]
fn who_is_a_node_proxy_is_what_the_mesh_declares() {
    let staff = staff(&["istio-system/ztunnel"]);
    for (account, pod, is) in [
        ("shop/cart", Some("cart-1"), true),
        ("shop/cart", None, true),
        ("shop/sided", Some("sided"), false),
        ("shop/sided", None, false),
        ("shop/mixed", Some("mixed-1"), true),
        ("shop/mixed", Some("mixed-2"), false),
        // A sidecar that renews by its certificate shows no pod. To tell it that others have no tunnel would send plaintext.
        ("shop/mixed", None, false),
        ("istio-system/ztunnel", None, true),
    ] {
        let caller = caller(account, pod, CallerProof::Token);
        assert_eq!(staff.includes(&caller), is, "{account} {pod:?}");
    }
}

#[test]
fn a_nodes_proxy_asks_for_pods_of_every_namespace_and_is_told_what_each_may_see() {
    use voile_proto::type_url::ADDRESS;
    use voile_xds::server::{Resolution, Snapshot as _};

    const ENTRY: &str = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: vault, namespace: bank}\n\
        spec: {hosts: [vault.example.com], addresses: [10.96.0.9], exportTo: [\".\"], ports: [{number: 80, name: tcp}], resolution: STATIC}\n";
    let files = [
        SourceFile::new("mesh.yaml", MESH),
        SourceFile::new("entry.yaml", ENTRY),
    ];
    let (mesh, found) = voile_model::check(&files, None);
    assert!(found.iter().all(|one| !one.is_error()), "{found:?}");
    let (mut snapshot, _) = crate::translate::translate(&mesh, None);
    snapshot.staff = Arc::new(staff(&["istio-system/ztunnel"]));
    let node = ("istio-system/ztunnel", Some("ztunnel-one"));
    // One pod's own node proxy, a sidecar of the namespace that may see it, and one that may not.
    let (pod, banker, sidecar) = (
        ("shop/cart", Some("cart-1")),
        ("bank/teller", None),
        ("shop/sided", Some("sided")),
    );
    for ((account, bound), name, wanted) in [
        (node, "*bank/vault.example.com", "found"),
        (node, "*shop/vault.example.com", "unknown"),
        (node, "*/vault.example.com", "unknown"),
        (node, "/10.96.0.9", "found"),
        (pod, "*bank/vault.example.com", "refused"),
        (banker, "*bank/vault.example.com", "refused"),
        (banker, "*/vault.example.com", "found"),
        (banker, "/10.96.0.9", "found"),
        (sidecar, "*/vault.example.com", "unknown"),
        (sidecar, "/10.96.0.9", "unknown"),
    ] {
        let caller =
            crate::snapshot::SnapshotCaller::Known(caller(account, bound, CallerProof::Token));
        let found = match snapshot.resolve(&caller, ADDRESS, name) {
            Resolution::Found(_) => "found",
            Resolution::Unknown | Resolution::Lacking(_) => "unknown",
            Resolution::Refused(_) => "refused",
        };
        assert_eq!(found, wanted, "{account} asks for {name}");
    }
}
