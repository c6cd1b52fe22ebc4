//! The API server of tests stores what kubectl writes, and one server knows nothing of another.

use std::time::Duration;

use voile_testkit::cluster::{ApiServer, wait_for};

#[test]
fn kubectl_reads_back_a_namespace_that_it_created() {
    let Some(server) = ApiServer::shared() else {
        return;
    };
    let created = server.kubectl(&["create", "namespace", "shop"]);
    assert_eq!(created.as_deref(), Ok("namespace/shop created\n"));
    let read = server.kubectl(&["get", "namespace", "shop", "-o", "name"]);
    assert_eq!(read.as_deref(), Ok("namespace/shop\n"));
    let again = server.kubectl(&["create", "namespace", "shop"]);
    let again = again.expect_err("a second one");
    assert!(again.contains("AlreadyExists"), "{again}");
}

#[test]
fn controllers_run_if_a_test_wants_them() {
    let Some(server) = ApiServer::with_controllers("serviceaccount,namespace") else {
        return;
    };
    let manifest = "{apiVersion: v1, kind: Namespace, metadata: {name: stock}}";
    server.apply(manifest).expect("a namespace");
    let account = ["-n", "stock", "get", "serviceaccount", "default"];
    wait_for("a service account", Duration::from_secs(30), || {
        server.kubectl(&account)
    });
    let shop = server.kubectl(&["get", "namespace", "shop"]);
    let shop = shop.expect_err("a namespace of the other test");
    assert!(shop.contains("NotFound"), "{shop}");
    let folder = server.folder().to_owned();
    drop(server);
    assert!(!folder.exists(), "{}", folder.display());
}
