//! Lists of revoked certificates on their way to proxies: told at once, and wrong ones leave the last good in force.

use std::time::SystemTime;

use voile_control::{Control, ControlOptions};
use voile_identity::revocation::local;
use voile_proto::type_url::{REVOCATION_LISTS, REVOCATIONS};

use crate::harness::{Mesh, SHOP};

/// A control plane with a wrong list does not start: it could not tell which certificates are revoked.
async fn does_not_start(options: ControlOptions) {
    let options = ControlOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        plaintext: None,
        monitoring: "127.0.0.1:0".parse().unwrap(),
        ..options
    };
    let refused = Control::start(options, Box::new(|_| {})).await;
    let refused = refused
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(refused.contains("ca-crl.pem"), "{refused}");
}

#[tokio::test]
async fn lists_are_told_at_once_and_wrong_ones_leave_the_last_good_in_force() {
    let mut mesh = Mesh::start(SHOP).await;
    let state = mesh.folder.path().join("state");
    let file = state.join("ca-crl.pem");
    let begun = mesh.report(|seen| !seen.version.is_empty()).await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(REVOCATION_LISTS, &[REVOCATIONS]);
    client.until(|told| told.removed == [REVOCATIONS]).await;

    local::revoke(&state, &[vec![0x42]], SystemTime::now()).unwrap();
    let told = client
        .until(|told| told.body(REVOCATION_LISTS, REVOCATIONS).is_some())
        .await;
    let first = told.body(REVOCATION_LISTS, REVOCATIONS).unwrap().to_vec();
    // Readings between two reports are reported together: the good lists' own report must have come before a wrong one's.
    let begun = begun.version;
    let good_one = mesh.report(|seen| seen.version != begun).await;
    assert!(good_one.changed, "{good_one:?}");
    let good = std::fs::read_to_string(&file).unwrap();

    let other = Mesh::start(SHOP).await;
    let foreign = other.folder.path().join("state");
    local::revoke(&foreign, &[vec![7]], SystemTime::now()).unwrap();
    let foreign = std::fs::read_to_string(foreign.join("ca-crl.pem")).unwrap();
    let root = std::fs::read_to_string(state.join("root-cert.pem")).unwrap();
    for (wrong, why) in [
        ("not a list".to_owned(), "not a certificate revocation list"),
        (root, "not a certificate revocation list"),
        (foreign.clone(), "not signed by the key"),
        (format!("{good}{foreign}"), "list 2: not signed by the key"),
        (good.repeat(17), "17 lists"),
        ("\n".repeat(2 * 1024 * 1024), "at most 1048576 are read"),
    ] {
        std::fs::write(&file, wrong).unwrap();
        let seen = mesh.next_report(|seen| seen.text.contains(why)).await;
        assert!(seen.text.contains("ca-crl.pem"), "{}", seen.text);
        assert!(!seen.changed, "{why}");
        assert_eq!(seen.version, good_one.version, "{why}");
    }
    let held = client
        .told
        .borrow()
        .body(REVOCATION_LISTS, REVOCATIONS)
        .map(<[u8]>::to_vec);
    assert_eq!(held, Some(first.clone()));

    mesh.stop().await;
    does_not_start(ControlOptions::new(vec![mesh.config()], state.clone())).await;

    std::fs::write(&file, good).unwrap();
    mesh.restart().await;
    local::revoke(&state, &[vec![0x43]], SystemTime::now()).unwrap();
    let both = client
        .until(|told| {
            told.body(REVOCATION_LISTS, REVOCATIONS)
                .is_some_and(|body| body != first)
        })
        .await;
    assert!(both.body(REVOCATION_LISTS, REVOCATIONS).is_some());
    std::fs::remove_file(&file).unwrap();
    client
        .until(|told| told.body(REVOCATION_LISTS, REVOCATIONS).is_none())
        .await;
}
