//! TLS with clients outside of the mesh: what can be spoken, what is refused with which words, and what is never shown.

use std::sync::Arc;

use voile_identity::OutsideTls;
use voile_testkit::TestAuthority;

/// TLS settings with a certificate of a test's authority.
fn good(mesh: &TestAuthority) -> OutsideTls {
    let certificate = mesh.certificate("shop", "web");
    OutsideTls {
        certificates: certificate.chain_pem().into(),
        private_key: certificate.private_key_pem().into(),
        more: Vec::new(),
        authorities: Vec::new(),
        revocations: Vec::new(),
        anonymous: false,
        unverified: false,
        tls12: true,
        tls13: true,
        suites: Vec::new(),
    }
}

#[test]
fn what_cannot_be_spoken_is_refused_with_the_reason() {
    let mesh = TestAuthority::new();
    let other = good(&mesh);
    let many = other.certificates.repeat(17);
    let root: Vec<u8> = mesh.authority().root_pem().into();
    let (listing, broken) = (root.clone(), root.clone());
    type Change = Box<dyn Fn(&mut OutsideTls)>;
    let table: Vec<(&str, Change)> = vec![
        ("", Box::new(|_| {})),
        ("", Box::new(move |tls| tls.authorities.clone_from(&root))),
        (
            "",
            Box::new(|tls| tls.suites = vec![Arc::from("ECDHE-RSA-AES128-GCM-SHA256")]),
        ),
        (
            "the certificate cannot be read: it has no such PEM block",
            Box::new(|tls| tls.certificates = b"junk".to_vec()),
        ),
        (
            "the certificate cannot be read: it has more than 16 PEM blocks",
            Box::new(move |tls| tls.certificates.clone_from(&many)),
        ),
        (
            "the private key cannot be read",
            Box::new(|tls| tls.private_key = b"junk".to_vec()),
        ),
        (
            "the private key is not the certificate's",
            Box::new(move |tls| tls.private_key.clone_from(&other.private_key)),
        ),
        (
            "the certificate authorities cannot be read",
            Box::new(|tls| tls.authorities = b"junk".to_vec()),
        ),
        (
            "the certificate revocation lists cannot be read: it has no such PEM block",
            Box::new(move |tls| {
                tls.authorities.clone_from(&listing);
                tls.revocations = b"junk".to_vec();
            }),
        ),
        (
            "the certificate revocation lists cannot be read",
            Box::new(move |tls| {
                tls.authorities.clone_from(&broken);
                let list = "-----BEGIN X509 CRL-----\nanVuaw==\n-----END X509 CRL-----\n";
                tls.revocations = list.into();
            }),
        ),
        (
            "unknown cipher suite `RC4-MD5`",
            Box::new(|tls| tls.suites = vec![Arc::from("RC4-MD5")]),
        ),
        (
            "the TLS settings are not supported",
            Box::new(|tls| (tls.tls12, tls.tls13) = (false, false)),
        ),
    ];
    for (expected, change) in table {
        let mut tls = good(&mesh);
        change(&mut tls);
        let found = tls.server(&[b"h2"]);
        let found = found.map_or_else(|error| error.to_string(), |_| String::new());
        assert!(
            found.starts_with(expected) && found.is_empty() == expected.is_empty(),
            "{found:?}, not {expected:?}"
        );
    }
}

#[test]
fn a_key_is_not_shown() {
    let tls = good(&TestAuthority::new());
    let shown = format!("{tls:?}");
    assert!(!shown.contains("private") && shown.len() < 200, "{shown}");
}
