//! Certificates: issued, refused, and the answers that a client without a certificate gets.

use tonic::Code;
use voile_linkerd::messages::identity::CertifyRequest;

use crate::asked::{CERTIFY, CLIENT, Control, SERVER, request};

fn certify(name: &str, token: &str, csr: Vec<u8>) -> CertifyRequest {
    CertifyRequest {
        identity: name.to_owned(),
        token: token.as_bytes().to_vec(),
        certificate_signing_request: csr,
    }
}

#[tokio::test]
async fn only_a_proxy_with_its_own_token_and_its_own_name_is_certified() {
    let control = Control::start().await;
    let anonymous = control
        .connect(None)
        .await
        .expect("TLS without certificate");
    let (csr, _) = request(CLIENT);
    let mut spoiled = csr.clone();
    let last = spoiled.len() - 3;
    spoiled[last] ^= 1;
    for (name, token, csr, words) in [
        (
            "nobody.mesh",
            "client-token",
            csr.clone(),
            "unknown identity",
        ),
        (CLIENT, "server-token", csr.clone(), "the token is not"),
        (CLIENT, "", csr.clone(), "the token is not"),
        (
            CLIENT,
            "client-token",
            request(SERVER).0,
            "the request names",
        ),
        (
            CLIENT,
            "client-token",
            Vec::new(),
            "not a certificate request",
        ),
        (
            CLIENT,
            "client-token",
            vec![0x30; 20],
            "not a certificate request",
        ),
        (CLIENT, "client-token", vec![0; 1 << 20], "larger than"),
        (CLIENT, "client-token", spoiled, "not a certificate request"),
    ] {
        let refused = anonymous.once(CERTIFY, certify(name, token, csr)).await;
        let refused: tonic::Status = refused.map(drop_answer).expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    assert!(
        control
            .said()
            .contains("refused Certify of \"nobody.mesh\"")
    );
    // As the file of a token has it, with its line's end.
    let made = anonymous
        .once(CERTIFY, certify(CLIENT, "client-token\n", csr))
        .await;
    let made: voile_linkerd::messages::identity::CertifyResponse = made.expect("certified");
    assert!(made.leaf_certificate.len() > 200 && made.intermediate_certificates.is_empty());
    let until = made.valid_until.expect("an end").seconds;
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    assert!(until > now.as_secs().cast_signed() + 3600);
    assert!(control.said().contains(&format!("certified {CLIENT}")));
}

fn drop_answer(_: voile_linkerd::messages::identity::CertifyResponse) {}

/// A proxy opens its watches before it is certified, and keeps that connection.
#[tokio::test]
async fn who_has_no_certificate_yet_is_told_and_who_shows_another_anchors_is_not() {
    let control = Control::start().await;
    control.tried(None).await.expect("told");
    let own = control.certified(CLIENT).await;
    control.tried(Some(own)).await.expect("told");
    let stranger = Control::start().await.certified(CLIENT).await;
    assert!(
        control.tried(Some(stranger)).await.is_err(),
        "a certificate of another anchor"
    );
}
