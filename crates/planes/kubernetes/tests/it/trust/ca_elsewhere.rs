//! A control plane that signs nothing, beside an authority of others, as cert-manager's istio-csr.

use std::time::SystemTime;

use serde_json::json;
use voile_identity::{Authority, AuthorityFiles, Keys};
use voile_testkit::cluster::{ApiServer, wait_for};

use crate::harness::{PATIENCE, Replica, SYSTEM, cluster, openssl};
use crate::trust::rotation::{ACCOUNT, authority, web};

/// Words of the refusal, which only a proven caller reads.
const REFUSAL: &str = "another authority signs";

/// Writes the Secret `istiod-tls` with a key of this command of openssl. cert-manager makes keys of RSA and ECDSA, encoded
/// traditionally or as PKCS#8.
fn write_certificate(server: &ApiServer, files: &AuthorityFiles, key: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("ca.pem"), &files.certificate).expect("written");
    std::fs::write(path("ca-key.pem"), &files.key).expect("written");
    std::fs::write(path("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").expect("written");
    openssl(folder.path(), key);
    openssl(
        folder.path(),
        "req -new -key tls.key -subj / -out request.pem",
    );
    openssl(
        folder.path(),
        "x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 1 -extfile names -out tls.crt",
    );
    let text = |name: &str| std::fs::read_to_string(path(name)).expect("a file");
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "istiod-tls", "namespace": SYSTEM},
        "stringData": {"tls.crt": text("tls.crt"), "tls.key": text("tls.key")},
    });
    server.apply(&secret.to_string()).expect("a secret");
}

/// Writes the ConfigMap with the roots, as istio-csr does.
fn write_roots(server: &ApiServer, roots: &str) {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "istio-ca-root-cert", "namespace": SYSTEM},
        "data": {"root-cert.pem": roots},
    });
    server.apply(&map.to_string()).expect("a map");
}

#[test]
fn a_control_plane_that_signs_nothing_serves_with_the_certificate_of_others() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(ACCOUNT).expect("an account");
    let (first, second) = (authority(SystemTime::now()), authority(SystemTime::now()));
    let replica = std::thread::scope(|scope| {
        let starting = scope.spawn(|| Replica::signing_nothing(&server, "one"));
        // The roots of another mesh, which was here before, do not fit.
        write_roots(&server, &second.roots);
        write_certificate(&server, &first, "genrsa -traditional -out tls.key 2048");
        write_roots(&server, &first.roots);
        starting.join().expect("it starts")
    });
    let refused = replica.certificate(&first.roots, &web(&server));
    let refused = refused.expect_err("it signs nothing");
    assert!(refused.contains(REFUSAL), "{refused}");

    // A certificate of the other authority proves its owner.
    let owner = "spiffe://cluster.local/ns/istio-system/sa/web";
    let owner = owner.parse().expect("an identity");
    let keys = Keys::generate().expect("keys");
    let csr = keys.request(Some(&owner)).expect("a request");
    let signer = Authority::from_files(&first, SystemTime::now()).expect("an authority");
    let issued = signer.issue(&csr, &owner, None, SystemTime::now());
    let certificate = keys.certify(&issued.expect("issued").chain);
    let certificate = certificate.expect("a certificate");
    let refused = replica.renew(&first.roots, &certificate);
    let refused = refused.expect_err("it signs nothing");
    assert!(refused.contains(REFUSAL), "{refused}");

    // The other authority changes its root.
    let both = [&*first.roots, &*second.roots].concat();
    write_roots(&server, &both);
    write_certificate(
        &server,
        &second,
        "ecparam -name prime256v1 -genkey -noout -out tls.key",
    );
    wait_for("the new certificate", PATIENCE, || {
        match replica.certificate(&second.roots, &web(&server)) {
            Err(refused) if refused.contains(REFUSAL) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let made = ["-n", SYSTEM, "get", "secrets", "-o", "name"];
    let made = server.kubectl(&made).expect("a list");
    assert_eq!(made.trim(), "secret/istiod-tls", "it makes no authority");
    let maps = ["get", "configmaps", "-A", "-o", "name"];
    let maps = server.kubectl(&maps).expect("a list");
    let roots = maps
        .lines()
        .filter(|one| one.ends_with("/istio-ca-root-cert"));
    assert_eq!(roots.count(), 1, "it writes no roots: {maps}");
    replica.stop();
}
