//! The authority changes while replicas run, and no certificate is refused.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use voile_identity::authority::ROOT_LIFE;
use voile_identity::{Authority, AuthorityFiles, TrustBundle, TrustDomain, WorkloadCertificate};
use voile_testkit::cluster::{ApiServer, wait_for};

use crate::harness::{PATIENCE, Replica, SYSTEM, cluster, root_of, token};

pub(crate) const ACCOUNT: &str =
    "{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: istio-system}}";

pub(crate) fn domain() -> TrustDomain {
    TrustDomain::new("cluster.local").expect("a domain")
}

pub(crate) fn authority(begun: SystemTime) -> AuthorityFiles {
    Authority::generate(&domain(), begun).expect("an authority")
}

/// Writes a Secret with an authority.
fn write(server: &ApiServer, name: &str, files: &AuthorityFiles) {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": SYSTEM},
        "data": {
            "ca-cert.pem": STANDARD.encode(&files.certificate),
            "ca-key.pem": STANDARD.encode(&files.key),
            "root-cert.pem": STANDARD.encode(&files.roots),
            "cert-chain.pem": STANDARD.encode(&files.chain),
        },
    });
    server.apply(&secret.to_string()).expect("a secret");
}

pub(crate) fn web(server: &ApiServer) -> String {
    token(server, SYSTEM, "web", &["--audience", "istio-ca"])
}

/// Waits until the ConfigMap of the namespace holds this text.
pub(crate) fn until_root(
    server: &ApiServer,
    what: &str,
    is_right: impl Fn(&str) -> bool,
) -> String {
    wait_for(what, PATIENCE, || {
        let found = root_of(server, SYSTEM);
        is_right(&found).then_some(found.clone()).ok_or(found)
    })
}

/// Returns true if a peer with these roots alone believes a certificate.
pub(crate) fn is_believed(certificate: &WorkloadCertificate, roots: &str) -> bool {
    let trust = TrustBundle::from_pem(domain(), Vec::new(), roots).expect("roots");
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = rustls::pki_types::UnixTime::since_unix_epoch(since.expect("a clock"));
    let chain = &certificate.certified_key().cert;
    voile_identity::verify_client_chain(&trust, chain, now).is_ok()
}

fn events(server: &ApiServer, reason: &str) -> Vec<String> {
    let get = ["-n", SYSTEM, "get", "events.events.k8s.io", "-o", "json"];
    let all: Value = serde_json::from_str(&server.kubectl(&get).expect("events")).expect("JSON");
    let items = all["items"].as_array().into_iter().flatten();
    let ours = items.filter(|one| one["reason"] == reason);
    ours.map(|one| one["note"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn another_authority_is_trusted_before_it_signs() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(ACCOUNT).expect("an account");
    let replicas = ["one", "two"].map(|name| Replica::start(&server, name));
    let old = root_of(&server, SYSTEM);
    let before = replicas[0]
        .certificate(&old, &web(&server))
        .expect("certified");
    // The key is another one's: nothing changes.
    let new = authority(SystemTime::now());
    let broken = AuthorityFiles {
        key: authority(SystemTime::now()).key,
        ..new.clone()
    };
    write(&server, "cacerts", &broken);
    wait_for("an event", PATIENCE, || {
        let notes = events(&server, "AuthorityRefused").join("\n");
        let told = notes.contains("ca-key.pem is not the key of ca-cert.pem")
            && notes.contains("the authority before it stays in force");
        told.then_some(()).ok_or(notes)
    });
    assert_eq!(root_of(&server, SYSTEM), old);
    // One edit, of everything.
    write(&server, "cacerts", &new);
    let both = until_root(&server, "both roots", |root| {
        root.contains(new.roots.trim()) && root.contains(old.trim())
    });
    for replica in &replicas {
        wait_for("the new key signs", PATIENCE, || {
            // A proxy that knows the old root alone is served until then.
            let certificate = replica.certificate(&both, &web(&server))?;
            assert_eq!(certificate.roots().len(), 2);
            assert!(is_believed(&before, &both) && is_believed(&certificate, &both));
            let signs = is_believed(&certificate, &new.roots);
            assert!(signs || is_believed(&certificate, &old));
            signs.then_some(()).ok_or("the old key signs".to_owned())
        });
        // Its own certificate is below the new root, too, and it believes certificates of the old one.
        replica
            .certify(&new.roots, &web(&server))
            .expect("certified");
        replica
            .certify(&old, &web(&server))
            .expect_err("another root");
    }
    let notes = events(&server, "AuthorityChanged").join("\n");
    assert!(notes.contains("its key signs in"), "{notes}");
    // A root of the Secret that goes too early stays: certificates below it are alive.
    assert_eq!(root_of(&server, SYSTEM), both);
    for replica in replicas {
        replica.stop();
    }
    // A start takes the Secret as it is.
    let replica = Replica::start(&server, "three");
    until_root(&server, "the new root", |root| root == new.roots);
    replica.stop();
}

#[test]
fn a_root_of_ours_is_renewed_before_it_ends() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(ACCOUNT).expect("an account");
    let old = authority(SystemTime::now() - ROOT_LIFE * 9 / 10);
    write(&server, "istio-ca-secret", &old);
    let replica = Replica::start(&server, "one");
    let renewed = until_root(&server, "the renewed root", |root| {
        root.contains(old.roots.trim()) && root.len() > old.roots.len() + 100
    });
    let certificate = replica.certificate(&renewed, &web(&server));
    let certificate = certificate.expect("certified");
    let (new, _) = renewed.split_at(renewed.len() - old.roots.len());
    for roots in [new, &*old.roots] {
        assert!(is_believed(&certificate, roots), "one key: {roots}");
    }
    replica
        .certify(&old.roots, &web(&server))
        .expect("certified");
    replica.stop();
}
