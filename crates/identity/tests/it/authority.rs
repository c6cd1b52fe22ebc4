//! The authority's certificates as foreigners see them: openssl, and a client that checks host names.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use voile_identity::{Authority, IssueError, TrustDomain, control_server_config};
use voile_testkit::{TestAuthority, handshake};

#[test]
fn openssl_reads_our_identity_and_verifies_our_chain() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: openssl is not on PATH");
        return;
    }
    let mesh = TestAuthority::new();
    let leaf = mesh.folder().join("leaf.pem");
    std::fs::write(&leaf, mesh.certificate("shop", "cart").chain_pem()).unwrap();
    let openssl = |arguments: &[&str]| {
        let out = Command::new("openssl")
            .args(arguments)
            .arg(&leaf)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{}{}", text(&out.stdout), text(&out.stderr))
    };
    let shown = openssl(&["x509", "-noout", "-text", "-in"]);
    for wanted in [
        "URI:spiffe://cluster.local/ns/shop/sa/cart",
        "Subject Alternative Name: critical",
        "TLS Web Server Authentication, TLS Web Client Authentication",
        "NIST CURVE: P-256",
        "CA:FALSE",
    ] {
        assert!(shown.contains(wanted), "{wanted} is not in {shown}");
    }
    let root = mesh.state().join("root-cert.pem");
    let verified = openssl(&["verify", "-x509_strict", "-CAfile", root.to_str().unwrap()]);
    assert!(verified.trim_end().ends_with(": OK"), "{verified}");
}

#[test]
fn the_control_planes_certificate_is_good_for_its_names_only() {
    let mesh = TestAuthority::new();
    let names = ["localhost", "127.0.0.1", "::1", "istiod.istio-system.svc"];
    let issued = mesh
        .authority()
        .issue_server(&names, SystemTime::now())
        .unwrap();
    let server =
        control_server_config(issued.certified, &[mesh.authority().root().clone()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(mesh.authority().root().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Arc::new(client);
    // The testkit's handshake asks for `peer.invalid`, which this certificate is not for.
    let refused = handshake(Arc::clone(&client), Arc::clone(&server)).unwrap_err();
    assert!(
        format!("{:?}", refused.error).contains("NotValidForName"),
        "{refused:?}"
    );
    for bad in ["", "a b", "http://x", "*"] {
        let refused = mesh.authority().issue_server(&[bad], SystemTime::now());
        assert!(matches!(refused, Err(IssueError::ServerName(_))), "{bad}");
    }
}

#[test]
fn an_expired_root_certifies_nobody_and_a_dying_one_not_beyond_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let domain = TrustDomain::new("cluster.local").unwrap();
    let year = Duration::from_secs(365 * 24 * 3600);
    let born = SystemTime::now() - 10 * year;
    let authority = Authority::open(&folder.path().join("state"), &domain, born).unwrap();
    let caller = "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap();
    let csr = voile_identity::Keys::generate()
        .unwrap()
        .request(None)
        .unwrap();
    let refused = authority.issue(&csr, &caller, None, born + 10 * year + year);
    assert!(
        matches!(refused, Err(IssueError::RootExpired)),
        "{refused:?}"
    );
    let end = born + voile_identity::authority::ROOT_LIFE;
    let late = authority
        .issue(&csr, &caller, None, end - Duration::from_secs(3600))
        .unwrap();
    assert!(late.not_after <= end);
}
