//! What the control plane takes from an external authority, and what it does not.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use tonic::Code;
use voile_model::{Identity, TrustDomain};

use super::{ExternalSigner, IDENTITY_METADATA, SignerFuture, issue};
use crate::authority::Authority;
use crate::keys::Keys;

const HOUR: Duration = Duration::from_secs(3600);

/// A signer with one answer.
#[derive(Debug)]
struct Answer {
    chain: String,
    roots: Vec<CertificateDer<'static>>,
}

impl ExternalSigner for Answer {
    fn sign<'a>(&'a self, _: &'a str, _: &'a str, ttl: Duration) -> SignerFuture<'a> {
        assert_eq!(ttl, HOUR);
        Box::pin(async { Ok(self.chain.clone()) })
    }

    fn roots(&self) -> Vec<CertificateDer<'static>> {
        self.roots.clone()
    }

    fn lifetimes(&self) -> (Duration, Duration) {
        (HOUR / 6, HOUR)
    }
}

fn authority() -> Authority {
    let domain = TrustDomain::new("cluster.local").expect("a domain");
    let files = Authority::generate(&domain, SystemTime::now()).expect("files");
    Authority::from_files(&files, SystemTime::now()).expect("an authority")
}

fn web(account: &str) -> Identity {
    let text = format!("spiffe://cluster.local/ns/shop/sa/{account}");
    text.parse().expect("an identity")
}

fn request(keys: &Keys, account: &str) -> String {
    keys.request(Some(&web(account))).expect("a request")
}

#[tokio::test]
async fn a_certificate_is_the_callers_or_there_is_none() {
    let (root, other) = (authority(), authority());
    let (own, others) = (Keys::generate(), Keys::generate());
    let (own, others) = (own.expect("keys"), others.expect("keys"));
    let sign = |by: &Authority, keys: &Keys, account: &str, life: Duration| {
        let csr = request(keys, account);
        let issued = by.issue(&csr, &web(account), Some(life), SystemTime::now());
        issued.expect("signed").chain.remove(0)
    };
    let server = root.issue_server(&["web"], SystemTime::now());
    let cases = [
        (sign(&root, &own, "web", HOUR), ""),
        (sign(&root, &others, "web", HOUR), "it is for another key"),
        (
            sign(&root, &own, "cart", HOUR),
            "it is for spiffe://cluster.local/ns/shop/sa/cart",
        ),
        (sign(&other, &own, "web", HOUR), "not trusted"),
        (
            sign(&root, &own, "web", HOUR * 3),
            "it lives longer than was asked for",
        ),
        (root.root_pem().to_owned(), "it is a root"),
        (server.expect("signed").chain_pem, "it is for another key"),
        ("junk".to_owned(), "no PEM block"),
    ];
    for (chain, why) in cases {
        let signer = Answer {
            chain: chain.clone(),
            roots: root.roots().to_vec(),
        };
        let csr = request(&own, "web");
        let issued = issue(&signer, "web", &csr, &web("web"), None, "BUNDLE").await;
        match (why, issued) {
            ("", issued) => {
                let issued = issued.expect("certified");
                assert_eq!(issued.chain.len(), 2);
                assert_eq!(issued.chain[1], "BUNDLE");
            }
            (why, issued) => {
                let refused = issued.expect_err(why);
                assert_eq!(refused.code(), Code::Internal);
                assert!(refused.message().contains(why), "{why}: {refused}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_that_names_nobody_is_told_whom_to_name() {
    let signer = Answer {
        chain: String::new(),
        roots: authority().roots().to_vec(),
    };
    let keys = Keys::generate().expect("keys");
    let csr = keys.request(None).expect("a request");
    let refused = issue(&signer, "web", &csr, &web("web"), None, "").await;
    let refused = refused.expect_err("no name");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let told = refused.metadata().get(IDENTITY_METADATA).expect("a name");
    assert_eq!(told, &web("web").to_string());
    // Another's name is no way to its certificate.
    let csr = request(&keys, "cart");
    let refused = issue(&signer, "web", &csr, &web("web"), None, "").await;
    assert_eq!(refused.expect_err("another").code(), Code::PermissionDenied);
}
