//! Voile beside Istio on a real cluster, under one root: a namespace moves from one mesh to the other and back by its label, while
//! sidecars of both call its service, and no request fails.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use voile_identity::{Authority, TrustDomain};
use voile_testkit::cluster::{Cluster, istio, wait_for};

use crate::kubernetes::caller::ClusterCaller;
use crate::kubernetes::kit::{
    IMAGE, PATIENCE, VOILE, client, server_deployment, server_pod, service, tag_image,
    until_answered, until_ready, until_refused, voile, write_authority,
};
use crate::mesh::page_commands::End::Success;
use crate::mesh::page_commands::Page;

/// The image of the guide.
const GUIDE_IMAGE: &str = "images.example.com/voile:v1";

/// Istio as its own tools install it, with the images of the test. Its filters for telemetry and ALPN are left out, because only its
/// own build of Envoy has them.
const OPTIONS: [&str; 10] = [
    "profile=minimal",
    "hub=localhost/istio",
    "tag=1",
    "values.global.imagePullPolicy=Never",
    "values.global.nativeNftables=true",
    "values.telemetry.enabled=false",
    "values.pilot.env.PILOT_ENABLE_METADATA_EXCHANGE=false",
    "values.pilot.env.PILOT_ENABLE_TELEMETRY_LABEL=false",
    "values.pilot.env.PILOT_ENABLE_ALPN_FILTER=false",
    // Istio's sidecars call Pods in ambient mode by tunnels.
    "values.pilot.env.PILOT_ENABLE_AMBIENT=true",
];
/// Only callers with an identity of these namespaces are let in.
const POLICY: &str = "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, \
    metadata: {name: callers, namespace: shop}, \
    spec: {rules: [{from: [{source: {namespaces: [shop, grove]}}]}]}}";
const AFTER: (&str, &str) = ("shop", "after");
/// Pods in ambient mode, and pods with sidecars of both meshes.
const AMBIENT: (&str, &str) = ("grove", "client");
const ISTIO: (&str, &str) = ("shop", "istio-client");
const VOILE_CLIENT: (&str, &str) = ("shop", "voile-client");
const STRANGER: (&str, &str) = ("elsewhere", "stranger");

/// Installs Istio as its default revision. Returns false if it cannot be had.
fn install_istio(cluster: &Cluster) -> bool {
    let Some(folder) = istio() else {
        return false;
    };
    for image in ["pilot.tar", "proxyv2.tar"] {
        cluster.import_image(&folder.join(image));
    }
    let mut istioctl = Command::new(folder.join("bin/istioctl"));
    istioctl.args(["manifest", "generate"]);
    for option in OPTIONS {
        istioctl.args(["--set", option]);
    }
    let manifest = istioctl.output().expect("istioctl runs");
    assert!(manifest.status.success(), "{manifest:?}");
    let manifest = String::from_utf8(manifest.stdout).expect("text");
    cluster.apply(&manifest).expect("Istio");
    until_ready(cluster, "istio-system", "deployment/istiod", "Available");
    true
}

/// Gives the namespace to a mesh by the next commands of the guide, and its servers the sidecars of that mesh, which have this image.
fn move_to(cluster: &Cluster, guide: &mut Page<'_>, image: &str) {
    guide.run(&[
        ("kubectl label namespace shop ", Success("modified")),
        (
            "kubectl -n shop rollout restart deployment/web",
            Success("restarted"),
        ),
        (
            "kubectl -n shop rollout status deployment/web",
            Success("successfully rolled out"),
        ),
    ]);
    wait_for(&format!("sidecars {image}"), PATIENCE, || {
        let found = sidecars(cluster);
        (found == [image, image])
            .then_some(())
            .ok_or(found.join(" "))
    });
}

/// The images of the sidecars of the servers.
fn sidecars(cluster: &Cluster) -> Vec<String> {
    let path =
        r#"jsonpath={range .items[*]}{.spec.initContainers[?(@.name=="istio-proxy")].image} {end}"#;
    let get = ["-n", "shop", "get", "pods", "-l", "app=web", "-o", path];
    let found = cluster.kubectl(&get).expect("pods");
    found.split_whitespace().map(str::to_owned).collect()
}

/// The version of the root's ConfigMap: it does not change while two control planes keep it.
fn root_version(cluster: &Cluster) -> String {
    let path = "jsonpath={.metadata.resourceVersion}";
    let get = [
        "-n",
        "shop",
        "get",
        "configmap",
        "istio-ca-root-cert",
        "-o",
        path,
    ];
    cluster.kubectl(&get).expect("the root")
}

/// Installs both meshes under one root, and the namespaces of the test: `shop` is Istio's. Returns false without Istio.
fn set_up(cluster: &Cluster, guide: &mut Page<'_>) -> bool {
    cluster
        .apply("{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
        .expect("a namespace");
    let domain = TrustDomain::new("cluster.local").expect("a domain");
    let authority = Authority::generate(&domain, SystemTime::now()).expect("an authority");
    write_authority(cluster, &authority);
    if !install_istio(cluster) {
        return false;
    }
    cluster.import_voile(Path::new(VOILE), IMAGE);
    tag_image(cluster, 2, IMAGE, GUIDE_IMAGE);
    guide.run(&[
        (
            "voile install --revision voile ",
            Success("istiod-voile is available"),
        ),
        (
            "voile check --revision voile",
            Success("control plane: 2 of 2 pods are available"),
        ),
    ]);
    // The guide leaves it open whose pods are in ambient mode.
    let ambient = ["upgrade", "--set", "ambient.enabled=true"];
    voile(cluster, &ambient);
    let grove = service("grove", "{istio.io/dataplane-mode: ambient}")
        + &server_pod("grove", "node-1")
        + &client(AMBIENT.0, AMBIENT.1, "", "");
    cluster.apply(&grove).expect("the grove");
    let shop = service("shop", "{istio-injection: enabled}")
        + &server_deployment("shop")
        + "---\n"
        + POLICY;
    cluster.apply(&shop).expect("the shop");
    cluster
        .apply("{apiVersion: v1, kind: Namespace, metadata: {name: elsewhere}}")
        .expect("a namespace");
    let stranger = client(STRANGER.0, STRANGER.1, "", "");
    cluster.apply(&stranger).expect("a stranger");
    until_ready(cluster, "shop", "deployment/web", "Available");
    true
}

#[test]
fn a_namespace_moves_between_istio_and_voile_and_back_without_a_failed_request() {
    // A cluster of its own: another test installs the mesh in the shared one.
    let Some(cluster) = &Cluster::start(2) else {
        return;
    };
    let guide = &mut Page::open("docs/guides/istio.md", cluster);
    if !set_up(cluster, guide) {
        return;
    }
    let istio_caller = ClusterCaller::start(cluster, "shop", "istio-caller", "");
    cluster
        .apply(&client(ISTIO.0, ISTIO.1, "", ""))
        .expect("a pod");
    until_answered(cluster, ISTIO, "http://web.grove/");
    let version = root_version(cluster);

    move_to(cluster, guide, GUIDE_IMAGE);
    let voile_caller = ClusterCaller::start(cluster, "shop", "voile-caller", "");
    until_refused(cluster, STRANGER, "http://web.shop/");
    let pod = client(VOILE_CLIENT.0, VOILE_CLIENT.1, "", "");
    cluster.apply(&pod).expect("a pod");
    for (caller, url) in [
        (ISTIO, "http://web.grove/"),
        (VOILE_CLIENT, "http://web.grove/"),
        (AMBIENT, "http://web.shop/"),
    ] {
        until_answered(cluster, caller, url);
    }
    until_refused(cluster, STRANGER, "http://web.grove/");
    voile(cluster, &["check", "--revision", "voile"]);

    move_to(cluster, guide, "localhost/istio/proxyv2:1");
    until_refused(cluster, STRANGER, "http://web.shop/");
    assert_eq!(
        root_version(cluster),
        version,
        "two control planes write the root"
    );
    let requests = [istio_caller, voile_caller].map(ClusterCaller::no_request_failed);
    println!("requests without a failure, of a caller in Istio and one in Voile: {requests:?}");

    guide.run(&[("voile uninstall --revision voile", Success("removed"))]);
    // Istio goes on alone: its webhook, its root, its definitions.
    cluster
        .apply(&client(AFTER.0, AFTER.1, "", ""))
        .expect("a pod");
    until_answered(cluster, AFTER, "http://web/");
    guide.ends();
}
