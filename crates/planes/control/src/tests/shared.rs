//! A resource is encoded once for all that are told it: whoever asks is given the same bytes, in the same place.

use std::fmt::Write as _;
use std::sync::Arc;

use voile_envoy::SIDECAR_NODE;
use voile_model::mesh::Mesh;
use voile_model::{Identity, SourceFile};
use voile_proto::type_url;
use voile_xds::server::{Resolution, Resource, Snapshot};

use super::envoy;
use crate::keys::Texts;
use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use crate::translate::translate;

/// Pods of one service, and what holds for all of them.
const PODS: [&str; 3] = ["one", "two", "three"];
const RULES: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: all, namespace: shop}\nspec: {selector: {app: all}, ports: [{name: http, port: 80}]}\n\
     ---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: some, namespace: shop}\nspec: {rules: [{from: [{source: {namespaces: [shop]}}]}]}\n\
     ---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: tokens, namespace: shop}\nspec: {jwtRules: [{issuer: a, jwks: '{\"keys\": []}'}]}\n\
     ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: all, namespace: shop}\nspec: {hosts: [all], http: [{route: [{destination: {host: all}}]}]}\n";

/// The mesh, one pod of which has this version, and the snapshot of it that follows another.
fn snapshot(version: &str, before: Option<&MeshSnapshot>) -> (Arc<Mesh>, MeshSnapshot) {
    let mut text = RULES.to_owned();
    for (number, pod) in PODS.iter().enumerate() {
        let version = if number == 0 { version } else { "v0" };
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: shop, labels: {{app: all, version: {version}, sidecar.istio.io/inject: \"true\"}}}}\n\
             spec: {{serviceAccountName: {pod}, containers: [{{name: app, image: none}}]}}\nstatus: {{podIP: 127.1.0.{}, phase: Running}}\n",
            number + 1
        );
    }
    let mesh = Arc::new(voile_model::check(&[SourceFile::new("mesh.yaml", text)], None).0);
    let mut snapshot = translate(&mesh, before).0;
    if let Some(before) = before {
        snapshot.envoys = before.envoys.clone();
    }
    let envoys = &snapshot.envoys;
    envoys.stand_on(Some(&mesh), None, &Texts::default(), None);
    (mesh, snapshot)
}

fn identity(pod: &str) -> Identity {
    let identity = format!("spiffe://cluster.local/ns/shop/sa/{pod}").parse();
    identity.expect("an identity")
}

fn caller(pod: &str) -> SnapshotCaller {
    super::caller(identity(pod), pod)
}

fn found(resolution: Resolution, what: &str) -> Vec<Arc<Resource>> {
    match resolution {
        Resolution::Found(found) if !found.is_empty() => found,
        other => panic!("{what}: {other:?}"),
    }
}

/// Names of those that both hold, in the same place or not.
fn shared(one: &[Arc<Resource>], other: &[Arc<Resource>]) -> [Vec<String>; 2] {
    let mut names = [Vec::new(), Vec::new()];
    for resource in one {
        if let Some(other) = other.iter().find(|other| other.name == resource.name) {
            let apart = !Arc::ptr_eq(&resource.body, &other.body);
            names[usize::from(apart)].push(resource.name.to_string());
        }
    }
    names
}

/// Requests of our own proxies and of stock gRPCs, and the number of resources in the answers.
const ASKED: [(&str, &str, usize); 7] = [
    (type_url::ADDRESS, "shop/all.shop.svc.cluster.local", 4),
    (
        type_url::SERVICE_POLICY,
        "shop/all.shop.svc.cluster.local",
        1,
    ),
    (
        type_url::SERVICE_ROUTES,
        "shop/all.shop.svc.cluster.local",
        1,
    ),
    (type_url::AUTHORIZATION_POLICY, "shop/some", 1),
    (type_url::REQUEST_AUTHENTICATION, "shop/tokens", 1),
    (type_url::CLUSTER, "grpc|80||all.shop.svc.cluster.local", 1),
    (
        type_url::ENDPOINTS,
        "grpc|80||all.shop.svc.cluster.local",
        1,
    ),
];

#[test]
fn whoever_asks_for_a_resource_is_given_the_same_encoding() {
    let (_first, before) = snapshot("v1", None);
    let (_second, after) = snapshot("v2", Some(&before));
    for (of, name, number) in ASKED {
        let told = |pod| found(after.resolve(&caller(pod), of, name), name);
        let [same, apart] = shared(&told("one"), &told("two"));
        assert_eq!((same.len(), apart.len()), (number, 0), "{of} {name}");
    }
    for (of, least) in [
        (type_url::CLUSTER, 2),
        (type_url::ENDPOINTS, 1),
        (type_url::LISTENER, 2),
        (type_url::ROUTES, 1),
    ] {
        let told = |pod| {
            found(
                after.everything(&envoy(&after, SIDECAR_NODE, identity(pod), pod), of),
                of,
            )
        };
        let [same, apart] = shared(&told("one"), &told("two"));
        assert!(same.len() >= least, "{of}: {same:?} {apart:?}");
        // Resources of one workload alone are made for it alone.
        let inbound = |name: &String| name.to_lowercase().contains("inbound");
        assert!(apart.iter().all(inbound), "{of}: {apart:?}");
        assert!(!same.iter().any(inbound), "{of}: {same:?}");
    }
}

#[test]
fn an_edit_encodes_nothing_that_it_does_not_change() {
    let (_first, before) = snapshot("v1", None);
    let told = |snapshot: &MeshSnapshot, name| {
        let (of, name, _): &(&str, &str, usize) = name;
        found(snapshot.resolve(&caller("two"), of, name), name)
    };
    let (_second, after) = snapshot("v2", Some(&before));
    let mut again = Vec::new();
    for asked in &ASKED[..5] {
        let [same, apart] = shared(&told(&before, asked), &told(&after, asked));
        assert_eq!(same.len() + apart.len(), asked.2, "{asked:?}");
        again.extend(apart);
    }
    assert_eq!(again, ["Kubernetes//Pod/shop/one"]);
}
