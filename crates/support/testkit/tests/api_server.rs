//! The API server of tests stores what kubectl writes, and two of them are apart.

use std::time::Duration;

use voile_testkit::cluster::{ApiServer, wait_for};

#[test]
fn kubectl_reads_back_a_namespace_that_it_created() {
    let Some(server) = ApiServer::start() else {
        return;
    };
    let created = server.kubectl(&["create", "namespace", "shop"]);
    assert_eq!(created.as_deref(), Ok("namespace/shop created\n"));
    let read = server.kubectl(&["get", "namespace", "shop", "-o", "name"]);
    assert_eq!(read.as_deref(), Ok("namespace/shop\n"));
    let again = server
        .kubectl(&["create", "namespace", "shop"])
        .unwrap_err();
    assert!(again.contains("AlreadyExists"), "{again}");
}

#[test]
fn controllers_run_where_a_test_asks_for_them() {
    let Some(server) = ApiServer::with_controllers("serviceaccount,namespace") else {
        return;
    };
    let manifest = "{apiVersion: v1, kind: Namespace, metadata: {name: stock}}";
    server.apply(manifest).expect("a namespace");
    let account = ["-n", "stock", "get", "serviceaccount", "default"];
    wait_for("its account", Duration::from_secs(30), || {
        server.kubectl(&account)
    });
    let shop = server.kubectl(&["get", "namespace", "shop"]).unwrap_err();
    assert!(shop.contains("NotFound"), "of another test: {shop}");
}
