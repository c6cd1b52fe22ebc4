//! The mesh's root in a ClusterTrustBundle.

use voile_testkit::cluster::{ApiServer, wait_for};

use crate::harness::{PATIENCE, Replica, SYSTEM, cluster};
use crate::trust::rotation::{ACCOUNT, web};

const BUNDLE: &str = "istio.io:istiod-ca:root-cert";

fn bundle(server: &ApiServer) -> Result<String, String> {
    let get = ["get", "clustertrustbundle", BUNDLE, "-o"];
    let text = server.kubectl(&[&get[..], &["jsonpath={.spec.trustBundle}"]].concat())?;
    let signer = server.kubectl(&[&get[..], &["jsonpath={.spec.signerName}"]].concat())?;
    assert_eq!(signer, "istio.io/istiod-ca");
    Ok(text)
}

#[test]
fn the_root_is_in_a_cluster_trust_bundle_in_place_of_config_maps() {
    let Some(server) = cluster() else {
        return;
    };
    server.apply(ACCOUNT).expect("an account");
    let replica = Replica::with_trust_bundle(&server, "one");
    let root = wait_for("the bundle", PATIENCE, || bundle(&server));
    replica.certify(&root, &web(&server)).expect("certified");
    let maps = ["get", "configmaps", "-A", "-o", "name"];
    let maps = server.kubectl(&maps).expect("a list");
    assert!(!maps.contains("istio-ca-root-cert"), "{maps}");
    let delete = ["delete", "clustertrustbundle", BUNDLE];
    server.kubectl(&delete).expect("deleted");
    let again = wait_for("the bundle", PATIENCE, || bundle(&server));
    assert_eq!(again, root, "it comes back");
    assert!(
        root.starts_with("-----BEGIN CERTIFICATE-----"),
        "{SYSTEM}: {root}"
    );
    replica.stop();
}
