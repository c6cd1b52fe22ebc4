//! Resources at admission: faults of their own refuse them, problems with others are warnings.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use voile_model::SourceFile;
use voile_testkit::cluster::wait_for;

use crate::control_plane::VIRTUAL_SERVICES;
use crate::harness::cluster;
use crate::webhooks::{PATIENCE, Server};

const WEB: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                   spec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n";

fn server() -> Server {
    Server::beside(&[SourceFile::new("services/shop/web", WEB)])
}

fn object(version: &str, kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "one", "namespace": "shop", "uid": "1", "finalizers": ["a.example/b"]},
        "spec": spec,
    })
}

fn route(host: &str) -> Value {
    let route = json!([{"route": [{"destination": {"host": host}}]}]);
    object(
        "networking.istio.io/v1",
        "VirtualService",
        &json!({"hosts": ["web"], "http": route}),
    )
}

fn broken() -> Value {
    let mut broken = route("web");
    broken["spec"]["http"][0]["route"][0]["destination"] = json!({"hots": "web"});
    broken
}

fn review(operation: &str, object: &Value, before: &Value) -> Value {
    let version = object["apiVersion"]
        .as_str()
        .or(before["apiVersion"].as_str());
    let (group, version) = version
        .and_then(|one| one.split_once('/'))
        .expect("a group");
    let kind = object["kind"].as_str().or(before["kind"].as_str());
    let plural = kind.expect("a kind").to_lowercase() + "s";
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5",
            "resource": {"group": group, "version": version, "resource": plural},
            "namespace": "shop",
            "operation": operation,
            "object": object,
            "oldObject": before,
        },
    })
}

/// The reason of a refusal, or the warnings.
fn answer(
    server: &Server,
    operation: &str,
    object: &Value,
    before: &Value,
) -> Result<String, String> {
    let response = server.review("/validate", &review(operation, object, before));
    assert_eq!(response["uid"], "705ab4f5");
    match response["allowed"].as_bool() {
        Some(true) => {
            let warnings = response["warnings"].as_array().into_iter().flatten();
            let warnings: Vec<&str> = warnings.filter_map(Value::as_str).collect();
            Ok(warnings.join("\n"))
        }
        _ => Err(response["status"]["message"].to_string()),
    }
}

#[test]
fn faults_of_a_resource_refuse_it_and_problems_with_others_are_warnings() {
    let server = server();
    let created = |object: &Value| answer(&server, "CREATE", object, &Value::Null);
    assert_eq!(created(&route("web")).as_deref(), Ok(""));
    let warned = created(&route("wbe")).expect("admitted");
    assert!(warned.starts_with("V0401: "), "{warned}");
    let mut hidden = route("wbe");
    hidden["metadata"]["annotations"] = json!({"voile.dev/ignore": "V0401"});
    assert_eq!(created(&hidden).as_deref(), Ok(""));
    let refused = created(&broken()).expect_err("refused");
    for part in [
        "V0101",
        "hots",
        "field spec.http[0].route[0].destination",
        "did you mean `host`",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    // Another mesh has it.
    let filter = object(
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
        &json!({"configPatches": []}),
    );
    let warned = created(&filter).expect("admitted");
    assert!(warned.starts_with("V0106: "), "{warned}");
    server.stop();
}

#[test]
fn a_resource_and_what_it_names_may_come_in_one_command() {
    let server = Server::beside(&[]);
    let warned = std::thread::scope(|scope| {
        let asked = scope.spawn(|| answer(&server, "CREATE", &route("web"), &Value::Null));
        server.configure(&[SourceFile::new("services/shop/web", WEB)]);
        asked.join().expect("no panic")
    });
    assert_eq!(warned.as_deref(), Ok(""));
    server.stop();
}

#[test]
fn what_does_not_change_a_spec_passes() {
    let server = server();
    let broken = broken();
    let mut touched = broken.clone();
    touched["metadata"]["finalizers"] = json!([]);
    touched["status"] = json!({"observedGeneration": 2});
    assert_eq!(
        answer(&server, "UPDATE", &touched, &broken).as_deref(),
        Ok("")
    );
    assert_eq!(
        answer(&server, "DELETE", &Value::Null, &broken).as_deref(),
        Ok("")
    );
    let mut ending = broken.clone();
    ending["metadata"]["deletionTimestamp"] = "2026-11-28T12:00:00Z".into();
    assert_eq!(
        answer(&server, "UPDATE", &ending, &route("web")).as_deref(),
        Ok("")
    );
    answer(&server, "UPDATE", &broken, &route("web")).expect_err("refused");
    // The status of the refused one stays writable.
    assert_eq!(
        answer(&server, "UPDATE", &route("web"), &broken).as_deref(),
        Ok("")
    );
    server.stop();
}

#[test]
fn gateways_of_others_are_not_judged() {
    let server = server();
    let gateway = |class: &str| {
        let listener = json!({"name": "a", "port": 80, "protocol": "example.com/own"});
        let spec = json!({"gatewayClassName": class, "listeners": [listener]});
        object("gateway.networking.k8s.io/v1", "Gateway", &spec)
    };
    let created = |class: &str| answer(&server, "CREATE", &gateway(class), &Value::Null);
    assert_eq!(created("others").as_deref(), Ok(""));
    let ours = created("voile").expect("admitted");
    assert!(ours.contains("example.com/own"), "{ours}");
    server.stop();
}

#[test]
fn what_is_no_review_is_an_error_by_which_nothing_is_refused() {
    let server = server();
    for body in [
        "7",
        "{}",
        "{\"kind\": \"AdmissionReview\", \"apiVersion\": \"admission.k8s.io/v1\"}",
    ] {
        let (status, text) = server.ask("POST", "/validate", "application/json", body.as_bytes());
        assert_eq!(status, 400, "{body}: {text}");
    }
    server.stop();
}

/// The webhook at a real API server.
#[test]
fn an_api_server_refuses_and_warns_with_the_words_of_analysis() {
    let Some(cluster) = cluster() else {
        return;
    };
    let server = server();
    cluster.apply(VIRTUAL_SERVICES).expect("a definition");
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator"},
        "webhooks": [{
            "name": "validation.istio.io",
            "clientConfig": {
                "url": format!("https://localhost:{}/validate", server.address.port()),
                "caBundle": STANDARD.encode(&server.root_pem),
            },
            "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["networking.istio.io"], "apiVersions": ["*"], "resources": ["*"]}],
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    cluster.apply(&configuration.to_string()).expect("created");
    let plain = |mut object: Value| {
        let name = json!({"name": "one", "namespace": "istio-system"});
        object["metadata"] = name;
        object.to_string()
    };
    let refused = wait_for("the webhook is obeyed", PATIENCE, || {
        match cluster.apply(&plain(broken())) {
            Err(refused) if refused.contains("validation.istio.io") => Ok(refused),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(refused.contains("did you mean `host`"), "{refused}");
    cluster
        .apply(&plain(route("elsewhere.example")))
        .expect("admitted");
    // Without a webhook the broken one is stored, and may be deleted after the webhook is back.
    cluster
        .kubectl(&["-n", "istio-system", "delete", "virtualservice", "one"])
        .expect("deleted");
    server.stop();
    wait_for("an unreachable webhook is ignored", PATIENCE, || {
        cluster.apply(&plain(broken()))
    });
}
