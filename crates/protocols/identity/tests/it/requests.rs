//! Certificate requests from hostile hands.

use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, CertificateSigningRequest, DistinguishedName, DnType, KeyPair, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use voile_identity::authority::{CLOCK_SKEW, MAX_TTL};
use voile_identity::{CsrError, IssueError, IssuedCertificate, Keys, identity_of};
use voile_testkit::TestAuthority;
use x509_parser::prelude::{FromDer, X509Certificate};

fn request(
    names: Vec<SanType>,
    algorithm: &'static rcgen::SignatureAlgorithm,
) -> CertificateSigningRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "admin");
    params.subject_alt_names = names;
    params
        .serialize_request(&KeyPair::generate_for(algorithm).unwrap())
        .unwrap()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

#[test]
fn a_request_may_name_nobody_but_its_caller() {
    let mesh = TestAuthority::new();
    let caller = mesh.identity("shop", "cart");
    let own = "spiffe://cluster.local/ns/shop/sa/cart";
    let till = "spiffe://cluster.local/ns/shop/sa/till";
    for (what, names, good) in [
        ("no name", vec![], true),
        ("its own name", vec![uri(own)], true),
        ("somebody else", vec![uri(till)], false),
        ("itself and somebody else", vec![uri(own), uri(till)], false),
        ("itself twice", vec![uri(own), uri(own)], false),
        ("itself and a host", vec![uri(own), dns("cart.shop")], false),
        ("a host", vec![dns("istiod.istio-system.svc")], false),
        (
            "an address",
            vec![SanType::IpAddress([127, 0, 0, 1].into())],
            false,
        ),
        (
            "a mail address",
            vec![SanType::Rfc822Name("a@b.c".try_into().unwrap())],
            false,
        ),
        (
            "itself in another domain",
            vec![uri("spiffe://other/ns/shop/sa/cart")],
            false,
        ),
        ("a longer path", vec![uri(&format!("{own}/x"))], false),
    ] {
        let csr = request(names, &rcgen::PKCS_ECDSA_P256_SHA256)
            .pem()
            .unwrap();
        let issued = mesh
            .authority()
            .issue(&csr, &caller, None, SystemTime::now());
        match issued {
            Ok(_) => assert!(good, "{what} was certified"),
            Err(IssueError::Csr(CsrError::ForeignName { caller: named, .. })) => {
                assert!(!good, "{what}");
                assert_eq!(named, caller);
            }
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

#[test]
fn only_p256_keys_are_certified_and_others_are_named() {
    let mesh = TestAuthority::new();
    let caller = mesh.identity("shop", "cart");
    let rsa = include_str!("rsa-request.pem").to_owned();
    let of = |algorithm| request(vec![], algorithm).pem().unwrap();
    for (csr, name) in [
        (of(&rcgen::PKCS_ECDSA_P384_SHA384), "P-384"),
        (of(&rcgen::PKCS_ECDSA_P521_SHA512), "P-521"),
        (of(&rcgen::PKCS_ED25519), "Ed25519"),
        (rsa, "RSA"),
    ] {
        let refused = mesh
            .authority()
            .issue(&csr, &caller, None, SystemTime::now())
            .unwrap_err();
        assert!(
            matches!(refused, IssueError::Csr(CsrError::KeyType(_))),
            "{name}: {refused}"
        );
        assert!(refused.to_string().contains(name), "{name}: {refused}");
    }
}

fn pem(der: &[u8]) -> String {
    use base64::Engine;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
}

#[test]
fn garbage_is_refused() {
    let mesh = TestAuthority::new();
    let caller = mesh.identity("shop", "cart");
    let good = request(vec![], &rcgen::PKCS_ECDSA_P256_SHA256)
        .der()
        .to_vec();
    let mut badly_signed = good.clone();
    *badly_signed.last_mut().unwrap() ^= 1;
    let mut trailing = good.clone();
    trailing.extend_from_slice(b"more");
    let certificate = mesh.authority().root_pem().to_owned();
    for (what, csr) in [
        ("nothing", String::new()),
        ("words", "please".to_owned()),
        ("an empty block", pem(b"")),
        ("zeros", pem(&[0; 300])),
        ("half a request", pem(&good[..good.len() / 2])),
        ("bytes behind", pem(&trailing)),
        ("a bad signature", pem(&badly_signed)),
        ("a certificate", certificate),
        ("a huge text", "A".repeat(16 * 1024 + 1)),
        (
            "a huge request",
            format!("{}{}", pem(&good), " ".repeat(16 * 1024)),
        ),
    ] {
        let refused = mesh
            .authority()
            .issue(&csr, &caller, None, SystemTime::now());
        assert!(
            matches!(refused, Err(IssueError::Csr(_))),
            "{what}: {refused:?}"
        );
    }
    // The bytes themselves were good, so each refusal above has its own cause.
    assert!(
        mesh.authority()
            .issue(&pem(&good), &caller, None, SystemTime::now())
            .is_ok()
    );
}

#[test]
fn every_cut_and_every_flipped_bit_of_a_request_is_survived() {
    const ECDSA_WITH_SHA256: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
    let mesh = TestAuthority::new();
    let caller = mesh.identity("shop", "cart");
    let good = request(
        vec![uri(&caller.to_string())],
        &rcgen::PKCS_ECDSA_P256_SHA256,
    );
    let good = good.der().to_vec();
    let issue = |der: &[u8]| {
        mesh.authority()
            .issue(&pem(der), &caller, None, SystemTime::now())
    };
    let signed_until = good
        .windows(10)
        .position(|bytes| bytes == ECDSA_WITH_SHA256)
        .unwrap();
    let key_of = |issued: &IssuedCertificate| {
        let leaf = CertificateDer::from_pem_slice(issued.chain[0].as_bytes()).unwrap();
        assert_eq!(identity_of(&leaf).unwrap(), caller);
        X509Certificate::from_der(&leaf)
            .unwrap()
            .1
            .public_key()
            .raw
            .to_vec()
    };
    let wanted = key_of(&issue(&good).unwrap());
    for at in 0..good.len() {
        assert!(issue(&good[..at]).is_err(), "cut at {at}");
        let mut flipped = good.clone();
        flipped[at] ^= 0x04;
        // Outside the signed part the parser forgives a wrong tag; what is certified must not change by it.
        match issue(&flipped) {
            Ok(issued) => {
                assert!(at >= signed_until, "flipped at {at}");
                assert_eq!(key_of(&issued), wanted, "flipped at {at}");
            }
            Err(error) => assert!(
                matches!(error, IssueError::Csr(_)),
                "flipped at {at}: {error}"
            ),
        }
    }
}

#[test]
fn a_certificate_says_who_and_how_long_and_nothing_else() {
    let mesh = TestAuthority::new();
    let caller = mesh.identity("shop", "cart");
    let now = SystemTime::UNIX_EPOCH
        + Duration::from_secs(
            SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap()
                .as_secs(),
        );
    let hour = Duration::from_secs(3600);
    let day = hour * 24;
    let csr = request(vec![], &rcgen::PKCS_ECDSA_P256_SHA256)
        .pem()
        .unwrap();
    let mut serials = std::collections::BTreeSet::new();
    for (asked, granted) in [
        (None, day),
        (Some(hour), hour),
        (Some(day * 30), MAX_TTL),
        (Some(Duration::MAX), MAX_TTL),
    ] {
        let issued = mesh.authority().issue(&csr, &caller, asked, now).unwrap();
        assert_eq!(issued.chain.len(), 2);
        assert_eq!(issued.chain[1], mesh.authority().root_pem());
        let der = CertificateDer::from_pem_slice(issued.chain[0].as_bytes()).unwrap();
        assert_eq!(identity_of(&der).unwrap(), caller);
        let (_, leaf) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(
            leaf.subject().as_raw(),
            [0x30, 0x00],
            "the CN asked for is dropped"
        );
        assert!(leaf.subject_alternative_name().unwrap().unwrap().critical);
        assert!(!leaf.is_ca());
        let usage = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && usage.server_auth);
        let life = leaf.validity();
        assert_eq!(
            SystemTime::from(life.not_before.to_datetime()),
            now - CLOCK_SKEW
        );
        assert_eq!(
            SystemTime::from(life.not_after.to_datetime()),
            now + granted
        );
        assert_eq!(issued.not_after, now + granted);
        assert!(
            serials.insert(leaf.raw_serial().to_vec()),
            "serials differ for one key"
        );
        assert!(leaf.raw_serial().len() >= 16);
    }
    let refused = mesh
        .authority()
        .issue(&csr, &caller, Some(Duration::from_secs(1)), now);
    assert!(matches!(refused, Err(IssueError::Ttl(_))));
}

#[test]
fn a_chain_for_other_keys_is_refused_by_the_workload() {
    let mesh = TestAuthority::new();
    let caller = mesh.identity("shop", "cart");
    let csr = Keys::generate().unwrap().request(Some(&caller)).unwrap();
    let issued = mesh
        .authority()
        .issue(&csr, &caller, None, SystemTime::now())
        .unwrap();
    let refused = Keys::generate()
        .unwrap()
        .certify(&issued.chain)
        .unwrap_err();
    assert!(refused.to_string().contains("for another key"), "{refused}");
    assert!(Keys::generate().unwrap().certify(&[]).is_err());
    assert!(
        Keys::generate()
            .unwrap()
            .certify(&["x".into(), "y".into()])
            .is_err()
    );
}
