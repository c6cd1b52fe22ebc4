//! Peers that a proxy accepts in handshakes, in both directions.

use std::sync::Arc;

use rustls::ProtocolVersion;
use voile_identity::{
    CertificateStore, Revocations, TrustBundle, mesh_client_config, mesh_server_config,
    peer_identity, verify_expected,
};
use voile_testkit::{
    ShownCertificate, Side, TestAuthority, handshake, hostile_client_config, hostile_server_config,
};

const ALPN: &[&[u8]] = &[b"voile-test"];

#[test]
fn two_proxies_learn_each_others_identity() {
    let mesh = TestAuthority::new();
    let client = mesh_client_config(&mesh.store("shop", "cart"), ALPN).unwrap();
    let server = mesh_server_config(&mesh.store("shop", "till"), ALPN).unwrap();
    let done = handshake(client, server).unwrap();
    assert_eq!(
        peer_identity(&done.client).unwrap(),
        mesh.identity("shop", "till")
    );
    assert_eq!(
        peer_identity(&done.server).unwrap(),
        mesh.identity("shop", "cart")
    );
    assert_eq!(
        done.client.protocol_version(),
        Some(ProtocolVersion::TLSv1_3)
    );
    assert_eq!(done.server.alpn_protocol(), Some(ALPN[0]));
}

/// Every wrong certificate, and a word that the refusal must contain.
fn wrong_certificates(
    mesh: &TestAuthority,
    foreign: &TestAuthority,
    twin: &TestAuthority,
) -> Vec<(&'static str, ShownCertificate, &'static str)> {
    let good = "spiffe://cluster.local/ns/shop/sa/cart";
    let other = "spiffe://cluster.local/ns/shop/sa/till";
    vec![
        ("expired", (&mesh.expired("shop", "cart")).into(), "Expired"),
        (
            "not yet valid",
            (&mesh.not_yet_valid("shop", "cart")).into(),
            "NotValidYet",
        ),
        (
            "of another root",
            (&foreign.certificate("shop", "cart")).into(),
            "UnknownIssuer",
        ),
        // Names are cheap: a root called as ours is not ours.
        (
            "of a root of the same name",
            (&twin.certificate("shop", "cart")).into(),
            "BadSignature",
        ),
        ("without names", mesh.with_names(&[], &[]), "UriNames(0)"),
        (
            "with a DNS name only",
            mesh.with_names(&[], &["cart.shop"]),
            "UriNames(0)",
        ),
        (
            "with two identities",
            mesh.with_names(&[good, other], &[]),
            "UriNames(2)",
        ),
        (
            "with one identity twice",
            mesh.with_names(&[good, good], &[]),
            "UriNames(2)",
        ),
        (
            "with a URI of no workload",
            mesh.with_names(&["https://shop/cart"], &[]),
            "NotSpiffe",
        ),
        (
            "with an identity that goes on",
            mesh.with_names(&["spiffe://cluster.local/ns/shop/sa/cart/x"], &[]),
            "NotSpiffe",
        ),
        (
            "of another trust domain under our root",
            mesh.with_names(&["spiffe://elsewhere.example/ns/shop/sa/cart"], &[]),
            "UntrustedDomain",
        ),
    ]
}

#[test]
fn a_wrong_client_certificate_is_refused() {
    let [mesh, foreign, twin] =
        ["cluster.local", "foreign.example", "cluster.local"].map(TestAuthority::for_trust_domain);
    let server = mesh_server_config(&mesh.store("shop", "till"), &[]).unwrap();
    for (what, shown, reason) in wrong_certificates(&mesh, &foreign, &twin) {
        let refused = handshake(hostile_client_config(Some(&shown)), Arc::clone(&server));
        let refused = refused.expect_err(what);
        assert_eq!(refused.by, Side::Server, "{what}");
        assert!(
            format!("{:?}", refused.error).contains(reason),
            "{what}: {:?}",
            refused.error
        );
    }
}

#[test]
fn a_wrong_server_certificate_is_refused() {
    let [mesh, foreign, twin] =
        ["cluster.local", "foreign.example", "cluster.local"].map(TestAuthority::for_trust_domain);
    let client = mesh_client_config(&mesh.store("shop", "till"), &[]).unwrap();
    for (what, shown, reason) in wrong_certificates(&mesh, &foreign, &twin) {
        let refused = handshake(Arc::clone(&client), hostile_server_config(&shown));
        let refused = refused.expect_err(what);
        assert_eq!(refused.by, Side::Client, "{what}");
        assert!(
            format!("{:?}", refused.error).contains(reason),
            "{what}: {:?}",
            refused.error
        );
    }
}

#[test]
fn revocations_that_came_before_the_first_certificate_hold_with_it() {
    let mesh = TestAuthority::new();
    let store = Arc::new(CertificateStore::new());
    store.tell_revocations(&Arc::new(Revocations::closed()));
    store.publish(mesh.certificate("shop", "till")).unwrap();
    let client = mesh_client_config(&mesh.store("shop", "cart"), ALPN).unwrap();
    let server = mesh_server_config(&store, ALPN).unwrap();
    let refused = handshake(Arc::clone(&client), Arc::clone(&server)).unwrap_err();
    assert_eq!(refused.by, Side::Server);
    store.tell_revocations(&Arc::default());
    assert!(handshake(client, server).is_ok());
}

#[test]
fn a_client_without_certificate_is_refused() {
    let mesh = TestAuthority::new();
    let server = mesh_server_config(&mesh.store("shop", "till"), &[]).unwrap();
    let refused = handshake(hostile_client_config(None), server).unwrap_err();
    assert_eq!(refused.by, Side::Server);
    assert_eq!(refused.error, rustls::Error::NoCertificatesPresented);
}

#[test]
fn the_hostile_peers_can_shake_hands_when_they_show_a_good_certificate() {
    // Else the refusals above would prove nothing.
    let mesh = TestAuthority::new();
    let store = mesh.store("shop", "till");
    let good: ShownCertificate = (&mesh.certificate("shop", "cart")).into();
    let server = mesh_server_config(&store, &[]).unwrap();
    handshake(hostile_client_config(Some(&good)), server).unwrap();
    let client = mesh_client_config(&store, &[]).unwrap();
    handshake(client, hostile_server_config(&good)).unwrap();
}

#[test]
fn nobody_is_believed_before_a_certificate_was_published() {
    let mesh = TestAuthority::new();
    let empty = Arc::new(CertificateStore::new());
    let server = mesh_server_config(&mesh.store("shop", "till"), &[]).unwrap();
    let client = mesh_client_config(&empty, &[]).unwrap();
    assert!(handshake(client, server).is_err());
    let server = mesh_server_config(&empty, &[]).unwrap();
    let client = mesh_client_config(&mesh.store("shop", "till"), &[]).unwrap();
    assert!(handshake(client, server).is_err());
}

#[test]
fn a_new_handshake_shows_the_newest_certificate_and_old_connections_stay() {
    let mesh = TestAuthority::new();
    let store = mesh.store("shop", "till");
    let server = mesh_server_config(&store, &[]).unwrap();
    let client = mesh_client_config(&mesh.store("shop", "cart"), &[]).unwrap();
    let before = handshake(Arc::clone(&client), Arc::clone(&server)).unwrap();
    let newer = store.publish(mesh.certificate("shop", "till")).unwrap();
    let after = handshake(client, server).unwrap();
    let shown =
        |connection: &rustls::ClientConnection| connection.peer_certificates().unwrap()[0].clone();
    assert_ne!(shown(&before.client), shown(&after.client));
    assert_eq!(shown(&after.client), newer.certified_key().cert[0]);
    assert!(!before.client.is_handshaking());
}

#[test]
fn connections_are_never_resumed() {
    let mesh = TestAuthority::new();
    let server = mesh_server_config(&mesh.store("shop", "till"), &[]).unwrap();
    let client = mesh_client_config(&mesh.store("shop", "cart"), &[]).unwrap();
    for _ in 0..3 {
        let done = handshake(Arc::clone(&client), Arc::clone(&server)).unwrap();
        assert_eq!(
            done.client.handshake_kind(),
            Some(rustls::HandshakeKind::Full)
        );
    }
}

#[test]
fn roots_and_aliases_can_be_added_while_running() {
    let (old, new) = (
        TestAuthority::new(),
        TestAuthority::for_trust_domain("new.example"),
    );
    let store = old.store("shop", "till");
    let server = mesh_server_config(&store, &[]).unwrap();
    let stranger: ShownCertificate = (&new.certificate("shop", "cart")).into();
    let try_it = || handshake(hostile_client_config(Some(&stranger)), Arc::clone(&server));
    assert!(format!("{:?}", try_it().unwrap_err().error).contains("UnknownIssuer"));
    let both = format!(
        "{}{}",
        old.authority().root_pem(),
        new.authority().root_pem()
    );
    let own = old.trust_domain().clone();
    store
        .trust()
        .set(TrustBundle::from_pem(own, vec![], &both).unwrap());
    assert!(format!("{:?}", try_it().unwrap_err().error).contains("UntrustedDomain"));
    store.trust().set_aliases(&[new.trust_domain().clone()]);
    try_it().unwrap();
}

#[test]
fn a_peer_must_be_one_of_the_expected() {
    let mesh = TestAuthority::new();
    let [cart, till, shelf] =
        ["cart", "till", "shelf"].map(|account| mesh.identity("shop", account));
    for (expected, good) in [
        (vec![cart.clone()], true),
        (vec![till.clone(), cart.clone()], true),
        (vec![till.clone()], false),
        (vec![till, shelf], false),
        (vec![], false),
    ] {
        let verdict = verify_expected(&cart, &expected);
        assert_eq!(verdict.is_ok(), good, "{expected:?}");
        if let Err(error) = verdict {
            assert!(error.to_string().contains("sa/cart"), "{error}");
        }
    }
}
