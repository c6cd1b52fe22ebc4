//! The authority's certificates as foreigners see them: openssl, and a client that checks host names.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use voile_identity::{Authority, IssueError, TrustDomain, control_server_config};
use voile_testkit::prerequisites::{Prerequisite, program};
use voile_testkit::{ShownCertificate, TestAuthority, handshake};

#[test]
fn openssl_reads_our_identity_and_verifies_our_chain() {
    let Some(program) = program(Prerequisite::Openssl, "openssl") else {
        return;
    };
    let mesh = TestAuthority::new();
    let leaf = mesh.folder().join("leaf.pem");
    std::fs::write(&leaf, mesh.certificate("shop", "cart").chain_pem()).unwrap();
    let openssl = |arguments: &[&str]| {
        let out = Command::new(&program)
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

/// The control plane's accepting side, with a certificate for `names`.
fn control(mesh: &TestAuthority, names: &[&str]) -> Arc<rustls::ServerConfig> {
    let issued = mesh
        .authority()
        .issue_server(names, SystemTime::now())
        .unwrap();
    control_server_config(issued.certified, mesh.authority().roots()).unwrap()
}

/// A client that trusts our root and checks names; with a client certificate if given.
fn client(mesh: &TestAuthority, shown: Option<ShownCertificate>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(mesh.authority().roots()[0].clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown.certified)))
        }
    })
}

#[test]
fn the_control_planes_certificate_is_good_for_its_names_only() {
    let mesh = TestAuthority::new();
    let anybody = client(&mesh, None);
    // The testkit's handshake asks for `peer.invalid`.
    let named = control(&mesh, &["localhost", "127.0.0.1", "::1", "peer.invalid"]);
    handshake(Arc::clone(&anybody), named).unwrap();
    let other = control(
        &mesh,
        &["localhost", "127.0.0.1", "::1", "istiod.istio-system.svc"],
    );
    let refused = handshake(anybody, other).unwrap_err();
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
fn the_control_plane_takes_callers_with_and_without_certificate_but_none_with_a_wrong_one() {
    let (mesh, foreign) = (TestAuthority::new(), TestAuthority::new());
    let control = control(&mesh, &["peer.invalid"]);
    for (what, shown, good) in [
        ("none", None, true),
        (
            "good",
            Some((&mesh.certificate("shop", "cart")).into()),
            true,
        ),
        (
            "expired",
            Some((&mesh.expired("shop", "cart")).into()),
            false,
        ),
        (
            "foreign",
            Some((&foreign.certificate("shop", "cart")).into()),
            false,
        ),
    ] {
        let shaken = handshake(client(&mesh, shown), Arc::clone(&control));
        assert_eq!(shaken.is_ok(), good, "{what}: {:?}", shaken.err());
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
