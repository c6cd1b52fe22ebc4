//! The tutorial and the guides of `docs` on a real cluster: their commands, read from the pages, in their order. The guide for Istio
//! runs in `beside_istio`.

use voile_testkit::cluster::Cluster;

use crate::kubernetes::kit::{define_gateways, tag_image, voile};
use crate::kubernetes::nothing_is_left;
use crate::mesh::page_commands::End::{Eventually, Failure, NotHere, Success};
use crate::mesh::page_commands::{End, Page};

const IMAGE: &str = "images.example.com/voile:v1";
/// Servers and callers that restart.
const RESTART: [(&str, End); 2] = [
    ("kubectl -n shop rollout restart ", Success("restarted")),
    (
        "kubectl -n shop rollout status ",
        Success("\"client\" successfully rolled out"),
    ),
];
const ISSUED: &str = "a request for each certificate";

fn tutorial(cluster: &Cluster) {
    let mut page = Page::open("docs/tutorials/cluster.md", cluster);
    page.run(&[
        (
            "deploy/image/build ",
            Success("voile.tar: images.example.com/voile:v1"),
        ),
        (
            "skopeo copy ",
            NotHere("there is no registry; the nodes import the archive, as the page says"),
        ),
    ]);
    cluster.import_image(&page.file("voile.tar"));
    page.run(&[
        ("voile check", Success("cure: voile install")),
        (
            "voile install ",
            Success("istiod is available: 2 of 2 pods"),
        ),
        (
            "voile check",
            Success("control plane: 2 of 2 pods are available"),
        ),
        (
            "kubectl apply -f docs/tutorials/shop.yaml",
            Success("deployment.apps/client created"),
        ),
        RESTART[1],
        (
            // Replicas are of one version a moment after pods have come.
            "voile status --kubernetes",
            Eventually("spiffe://cluster.local/ns/shop/sa/client"),
        ),
        ("kubectl apply -f - <<EOF", Success("default created")),
        ("voile explain ", Success("ALLOWED by Pod shop/server-")),
        ("kubectl apply -f - <<EOF", Success("server created")),
        (
            "voile who-can ",
            Success("spiffe://cluster.local/ns/shop/sa/client"),
        ),
        ("voile explain ", Failure("DENIED by Pod shop/server-")),
        ("kubectl apply -f - <<EOF", Failure("field spec.mtls.mode")),
        ("voile analyze ", Success("0 errors, 0 warnings")),
        ("voile config ", Success("configuration  shop/server-")),
        ("kubectl delete namespace shop", Success("deleted")),
        (
            "voile uninstall ",
            Success("namespaces/istio-system removed"),
        ),
    ]);
    page.ends();
}

/// The tutorial's mesh and application, from which guides begin.
fn begin(cluster: &Cluster) {
    let image = "image.repository=images.example.com/voile,image.tag=v1";
    voile(cluster, &["install", "--timeout", "90s", "--set", image]);
    let shop = include_str!("../../../../../docs/tutorials/shop.yaml");
    cluster.apply(shop).expect("the shop");
    for deployment in ["deploy/server", "deploy/client"] {
        let status = [
            "-n",
            "shop",
            "rollout",
            "status",
            deployment,
            "--timeout=90s",
        ];
        cluster.kubectl(&status).expect("it is available");
    }
}

fn troubleshooting(cluster: &Cluster) {
    let mut page = Page::open("docs/guides/troubleshooting.md", cluster);
    page.run(&[
        ("voile check", Eventually("proxies: 3 are connected")),
        (
            "voile status ",
            Eventually("spiffe://cluster.local/ns/shop/sa/client"),
        ),
        ("kubectl -n shop get pods ", Success("istio")),
        ("kubectl apply -f - <<EOF", Success("server created")),
        ("voile analyze ", Failure("V0401")),
        (
            "kubectl -n shop get virtualservice server ",
            Eventually("sever"),
        ),
        ("kubectl -n shop get events ", Eventually("sever")),
        ("kubectl -n shop delete virtualservice ", Success("deleted")),
        ("voile explain ", Success("ALLOWED by Pod shop/server-")),
        (
            "voile who-can ",
            Success("spiffe://cluster.local/ns/shop/sa/client"),
        ),
        ("voile config ", Success("shop/client-")),
        ("kubectl -n shop logs deploy/server ", Success("")),
        ("kubectl -n istio-system logs ", Success("")),
        ("voile events ", Success("published")),
        ("voile bug-report ", Success("report.tar.gz")),
    ]);
    page.ends();
}

fn gateways(cluster: &Cluster) {
    let mut page = Page::open("docs/guides/gateways.md", cluster);
    page.run(&[(
        "kubectl apply --server-side -f https://",
        NotHere("there is no Internet; the test defines the kinds"),
    )]);
    define_gateways(cluster);
    let call = "node=$(kubectl get nodes ";
    page.run(&[
        ("kubectl get gatewayclass", Eventually("voile-waypoint")),
        ("kubectl apply -f - <<EOF", Eventually("door")),
        ("kubectl -n shop wait ", Success("condition met")),
        (
            "kubectl -n shop get deployment,service ",
            Success("door-voile"),
        ),
        (call, Eventually("200")),
        ("openssl req ", Success("")),
        ("kubectl -n shop create secret tls ", Success("created")),
        ("kubectl -n shop patch ", Success("patched")),
        (call, Eventually("200")),
        ("kubectl apply -f - <<EOF", Success("door created")),
        (call, Eventually("403")),
        (
            "kubectl -n shop delete authorizationpolicies ",
            Success("deleted"),
        ),
        ("kubectl apply -f - <<EOF", Success("door created")),
        ("kubectl -n shop patch ", Success("patched")),
        ("kubectl -n shop get poddisruptionbudget ", Eventually("1")),
        ("kubectl -n shop get deployment ", Eventually("2")),
        ("kubectl apply -f - <<EOF", Success("virtualservice")),
        ("kubectl -n shop rollout status ", Success("rolled out")),
        (call, Eventually("200")),
        ("kubectl -n shop delete ", Success("deleted")),
        ("kubectl -n shop delete ", Success("deleted")),
    ]);
    page.ends();
}

fn pod_security(cluster: &Cluster) {
    let mut page = Page::open("docs/guides/pod-security.md", cluster);
    page.run(&[
        ("voile upgrade ", Success("voile-node is available")),
        ("voile check", Eventually("node agent: 1 of 1 pods")),
        ("kubectl label namespace shop ", Success("labeled")),
    ]);
    page.run(&RESTART);
    let names = "istio-proxy istio-proxy";
    page.run(&[
        ("kubectl -n shop get pods ", Eventually(names)),
        ("kubectl label namespace shop ", Success("unlabeled")),
        ("voile upgrade ", Success("revision default runs")),
    ]);
    page.run(&RESTART);
    page.ends();
}

fn certificate_authority(cluster: &Cluster) {
    let mut page = Page::open("docs/guides/certificate-authority.md", cluster);
    page.run(&[
        ("openssl req ", Success("")),
        ("openssl req ", Success("")),
        ("cat ", Success("")),
        (
            "kubectl -n istio-system create secret generic cacerts ",
            Success("secret/cacerts created"),
        ),
        (
            "kubectl -n istio-system get events ",
            Eventually("its key signs in"),
        ),
        (
            "kubectl -n istio-system rollout restart ",
            Success("restarted"),
        ),
        ("kubectl -n shop rollout restart ", Success("restarted")),
        (
            "kubectl -n istio-system create secret generic external-ca-cert ",
            Success("created"),
        ),
        (
            "voile upgrade ",
            NotHere("there is no signer; `-p voile-kubernetes external_ca::` has one"),
        ),
        ("kubectl get certificatesigningrequests", NotHere(ISSUED)),
        (
            "voile install ",
            NotHere("there is no istio-csr; `-p voile-kubernetes ca_elsewhere::` stands in"),
        ),
        ("voile upgrade ", Success("revision default runs")),
        (
            "kubectl get clustertrustbundle ",
            Eventually("istio.io:istiod-ca:root-cert"),
        ),
    ]);
    page.run(&RESTART);
    page.ends();
}

fn ambient(cluster: &Cluster) {
    let mut page = Page::open("docs/guides/ambient.md", cluster);
    page.run(&[
        ("voile upgrade ", Success("voile-node is available")),
        ("voile check", Eventually("node agent: 1 of 1 pods")),
        ("kubectl label namespace shop ", Success("modified")),
    ]);
    page.run(&RESTART);
    page.run(&[
        ("kubectl -n shop get pods ", Eventually("enabled")),
        ("kubectl -n shop label pod ", Success("labeled")),
        ("kubectl -n shop label pod ", Success("unlabeled")),
        ("kubectl apply -f - <<EOF", Success("server created")),
        ("voile explain ", Success("ALLOWED")),
        ("voile explain ", Failure("DENIED")),
        ("kubectl -n shop delete ", Success("deleted")),
        ("kubectl apply -f - <<EOF", Success("gate created")),
        ("kubectl -n shop wait ", Success("condition met")),
        ("kubectl label namespace shop ", Success("labeled")),
        (
            "kubectl -n shop get service server ",
            Eventually("attached to waypoint shop/gate"),
        ),
        ("kubectl apply -f - <<EOF", Success("server created")),
        ("voile explain ", Success("ALLOWED")),
        ("voile explain ", Failure("DENIED")),
        ("kubectl label namespace shop ", Success("unlabeled")),
        ("kubectl -n shop delete ", Success("deleted")),
        ("kubectl label namespace shop ", Success("unlabeled")),
        ("voile upgrade ", Success("revision default runs")),
    ]);
    page.ends();
}

fn upgrade(cluster: &Cluster) {
    tag_image(cluster, 1, IMAGE, "images.example.com/voile:v2");
    let mut page = Page::open("docs/guides/upgrade.md", cluster);
    page.run(&[
        (
            "voile install ",
            Success("istiod-1-0 is available: 2 of 2 pods"),
        ),
        ("voile tag set prod ", Success("prod")),
        ("kubectl apply ", Success("deployment.apps/client created")),
        ("kubectl label namespace shop ", Success("modified")),
    ]);
    page.run(&RESTART);
    page.run(&[
        (
            "voile upgrade --revision 1-1 --set image.tag=v2 --dry-run",
            Success("revision 1-1 would run images.example.com/voile:v2"),
        ),
        ("voile upgrade ", Success("pods with proxies of 1-0: 3")),
        (
            "voile check ",
            Success("control plane: 2 of 2 pods are available"),
        ),
        (
            "voile upgrade --revision 1-1 --move-tags",
            Success("pods with proxies of 1-0: 3"),
        ),
        (
            "voile upgrade --revision 1-1 --restart",
            Success("pods with proxies of 1-0: 0"),
        ),
        ("voile tag list", Success("prod  1-1       shop")),
        ("voile upgrade --revision 1-1 --remove", Success("removed")),
        (
            "voile upgrade --set logLevel=debug",
            Success("revision 1-1 runs"),
        ),
    ]);
    page.ends();
}

/// Removes the application and the mesh, as the tutorial does.
fn end(cluster: &Cluster, revision: &[&str]) {
    let delete = ["delete", "namespace", "shop"];
    cluster.kubectl(&delete).expect("deleted");
    let uninstall = ["uninstall", "--purge-crds", "--yes"];
    voile(cluster, &[&uninstall[..], revision].concat());
}

#[test]
fn the_tutorial_and_the_guides_work_from_top_to_bottom() {
    // A cluster of its own: another test installs the mesh in the shared one.
    let Some(cluster) = &Cluster::start(1) else {
        return;
    };
    tutorial(cluster);
    nothing_is_left(cluster, &[]);
    begin(cluster);
    troubleshooting(cluster);
    gateways(cluster);
    pod_security(cluster);
    ambient(cluster);
    end(cluster, &[]);
    // An authority of its own would outlive its page.
    begin(cluster);
    certificate_authority(cluster);
    end(cluster, &[]);
    upgrade(cluster);
    end(cluster, &["--revision", "1-1"]);
}
