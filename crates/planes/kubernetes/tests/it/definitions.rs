//! The definitions of kinds on a real API server.

use crate::stage::{Stage, release};

/// Kind, `spec`, and a part of the refusal.
const REFUSED: [(&str, &str, &str); 10] = [
    (
        "HealthCheck",
        "{host: a}",
        "a check needs one of http, grpc and tcp",
    ),
    (
        "HealthCheck",
        "{host: a, tcp: {}, grpc: {}}",
        "a check needs one of http, grpc and tcp",
    ),
    (
        "HealthCheck",
        "{host: a, tcp: {}, interval: soon}",
        "spec.interval",
    ),
    (
        "HealthCheck",
        "{host: a, http: {path: /, expectedStatuses: [{start: 300, end: 200}]}}",
        "start is less than end",
    ),
    (
        "HealthCheck",
        "{hots: a, tcp: {}}",
        "unknown field \"spec.hots\"",
    ),
    ("RateLimit", "{rules: []}", "spec.rules"),
    (
        "RateLimit",
        "{rules: [{}]}",
        "a rule has limits or descriptors",
    ),
    (
        "RateLimit",
        "{selector: {}, targetRefs: [{kind: Service, name: a}], rules: [{limits: []}]}",
        "exclude each other",
    ),
    (
        "RateLimit",
        "{rules: [{match: [{port: 80}], limits: []}]}",
        "does not match port",
    ),
    (
        "RateLimit",
        "{rules: [{limits: [{requests: 1, per: 1s, keys: 9}]}]}",
        "`keys` bounds nothing",
    ),
];

/// Kind and `spec`.
const ACCEPTED: [(&str, &str); 4] = [
    (
        "HealthCheck",
        "{host: a, http: {path: /healthz}, interval: 5s, unhealthyThreshold: 2}",
    ),
    ("HealthCheck", "{host: a, grpc: {}, timeout: 1.5s}"),
    (
        "RateLimit",
        "{rules: [{match: [{headers: {x: {}}}], limits: [{requests: 5, per: 1s, by: {identity: true}, keys: 9}]}]}",
    ),
    (
        "RateLimit",
        "{global: {service: a/b, port: 1, domain: c}, rules: [{descriptors: [{entries: [{key: k, path: true}]}]}]}",
    ),
];

fn object(kind: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: voile.dev/v1, kind: {kind}, metadata: {{name: one, namespace: default}}, spec: {spec}}}"
    )
}

#[tokio::test]
async fn the_api_server_refuses_resources_that_could_never_work() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    stage.install(&release(&[])).await.unwrap();
    for (kind, spec, reason) in REFUSED {
        let error = stage.server.apply(&object(kind, spec)).expect_err(spec);
        assert!(error.contains(reason), "{spec}: {error}");
    }
    for (kind, spec) in ACCEPTED {
        stage.server.apply(&object(kind, spec)).expect(spec);
    }
    // Istio's kinds accept any fields, in each version.
    let route = "{apiVersion: networking.istio.io/v1alpha3, kind: VirtualService, \
        metadata: {name: one, namespace: default}, spec: {hosts: [a], any: {thing: 1}}}";
    stage.server.apply(route).unwrap();
    let read = stage.kubectl(
        "get vs -n default one -o",
        &["jsonpath={.apiVersion} {.spec.any.thing}"],
    );
    assert_eq!(read, "networking.istio.io/v1 1");
}
