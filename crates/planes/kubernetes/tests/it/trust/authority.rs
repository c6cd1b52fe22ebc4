//! The authority of a cluster: one that a person brings, with an intermediate certificate and RSA keys as Istio's documents make
//! them, and one that cannot be used.

use std::fs;

use voile_testkit::prerequisites::{Prerequisite, require};

use crate::harness::{Replica, SYSTEM, cluster, openssl, root_of, token};

#[test]
fn an_authority_below_a_root_of_ones_own_signs_with_its_chain() {
    let installed = std::process::Command::new("openssl")
        .arg("version")
        .output();
    if require(Prerequisite::Openssl, installed).is_none() {
        return;
    }
    let Some(server) = cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    fs::write(at.join("ca.cnf"), "basicConstraints=critical,CA:true,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectAltName=DNS:istiod\n").expect("written");
    openssl(at, "genrsa -traditional -out root-key.pem 2048");
    openssl(
        at,
        "req -x509 -new -key root-key.pem -subj /O=Acme/CN=Root -days 100 -out root-cert.pem",
    );
    openssl(at, "genrsa -traditional -out ca-key.pem 2048");
    openssl(
        at,
        "req -new -key ca-key.pem -subj /O=Acme/CN=Intermediate -out ca.csr",
    );
    openssl(
        at,
        "x509 -req -in ca.csr -CA root-cert.pem -CAkey root-key.pem -CAcreateserial -days 50 -extfile ca.cnf -out ca-cert.pem",
    );
    let read = |name: &str| fs::read_to_string(at.join(name)).expect("a file");
    fs::write(
        at.join("cert-chain.pem"),
        read("ca-cert.pem") + &read("root-cert.pem"),
    )
    .expect("written");
    let files = [
        "ca-cert.pem",
        "ca-key.pem",
        "root-cert.pem",
        "cert-chain.pem",
    ]
    .map(|name| format!("--from-file={}", at.join(name).display()));
    let mut create = vec!["-n", SYSTEM, "create", "secret", "generic", "cacerts"];
    create.extend(files.iter().map(String::as_str));
    server.kubectl(&create).expect("a secret");
    server.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: istio-system}}").expect("an account");
    let replica = Replica::start(&server, "one");
    let root = root_of(&server, SYSTEM);
    assert_eq!(root, read("root-cert.pem"));
    // The client verifies the control plane's own chain by the root alone, and its own certificate's too.
    let right = token(&server, SYSTEM, "web", &["--audience", "istio-ca"]);
    let identity = replica.certify(&root, &right);
    assert_eq!(
        identity.as_deref(),
        Ok("spiffe://cluster.local/ns/istio-system/sa/web")
    );
    // No second root was made beside it.
    server
        .kubectl(&["-n", SYSTEM, "get", "secret", "istio-ca-secret"])
        .expect_err("only one authority");
    replica.stop();
}
