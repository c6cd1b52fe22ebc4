//! `voile check` names problems and cures.

use serde_json::{Value, json};
use voile_kubernetes::install::{CheckStatus, Checks};
use voile_kubernetes::{ClusterAddress, connect};

use crate::stage::{Stage, release};

fn found<'a>(checks: &'a Checks, name: &str) -> (CheckStatus, &'a str) {
    let mut results = checks.results.iter();
    let result = results.find(|one| one.name == name);
    let result = result.unwrap_or_else(|| panic!("{name}: {}", checks.to_text()));
    (result.status, &result.found)
}

#[tokio::test]
async fn an_empty_cluster_passes_and_lacks_gateway_api() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    let checks = stage.check(&release(&[]), true).await;
    let text = checks.to_text();
    assert!(checks.passed(), "{text}");
    let unwell = checks
        .results
        .iter()
        .filter(|one| one.status != CheckStatus::Ok);
    let names: Vec<&str> = unwell.map(|one| one.name).collect();
    assert_eq!(names, ["kinds of Gateway API"], "{text}");
    assert!(
        text.contains("cure: kubectl apply --server-side -f "),
        "{text}"
    );
    let kinds = "0 are installed, 14 will be by `voile install`";
    assert!(text.contains(kinds), "{text}");
}

#[tokio::test]
async fn an_installation_that_does_not_run_fails_with_numbers() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    stage.install(&release(&[])).await.unwrap();
    let labels = "istio-injection=enabled pod-security.kubernetes.io/enforce=baseline";
    stage.kubectl(&format!("label namespace default {labels}"), &[]);
    let checks = stage.check(&release(&[]), false).await;
    let text = checks.to_text();
    assert!(!checks.passed(), "{text}");
    for (name, status, words) in [
        (
            "names",
            CheckStatus::Ok,
            "all 25 are free or of this installation",
        ),
        (
            "webhooks",
            CheckStatus::Ok,
            "no other injector selects the same pods",
        ),
        (
            "control plane",
            CheckStatus::Error,
            "0 of 2 pods are available",
        ),
        (
            "certificate of the webhooks",
            CheckStatus::Error,
            "caBundle is missing in istio-sidecar-injector",
        ),
        (
            "root certificate",
            CheckStatus::Error,
            "such as default, istio-system",
        ),
        (
            "pod security of the mesh",
            CheckStatus::Warning,
            "default is baseline",
        ),
        (
            "proxies",
            CheckStatus::Ok,
            "0 are connected, and 0 running pods have a sidecar",
        ),
    ] {
        let (is, found) = found(&checks, name);
        assert_eq!(is, status, "{name}: {text}");
        assert!(found.contains(words), "{name}: {text}");
    }
    assert!(
        text.contains("\n 9 error    certificate of the webhooks"),
        "{text}"
    );
    let json = checks.to_json();
    assert_eq!(json["checks"][8]["number"], 9);
    assert_eq!(json["checks"][8]["status"], "error");
    assert_eq!(json["passed"], false);
    sidecars_without_a_node_agent_are_told(&stage).await;
}

/// Sidecars that a CNI plugin redirects need a node agent on every node, or another plugin.
async fn sidecars_without_a_node_agent_are_told(stage: &Stage) {
    let others = release(&["pilot.cni.enabled=true,cni.enabled=false"]);
    stage.install(&others).await.expect("installed");
    let checks = stage.check(&release(&[]), false).await;
    let (status, words) = found(&checks, "node agent");
    assert_eq!(status, CheckStatus::Warning);
    assert!(words.starts_with("none is installed"), "{words}");
    let (status, words) = found(&checks, "pod security of the mesh");
    assert_eq!(status, CheckStatus::Ok, "the level baseline allows it");
    assert!(words.ends_with("meet the level restricted"), "{words}");
    let ours = release(&["pilot.cni.enabled=true"]);
    stage.install(&ours).await.expect("installed");
    let node = "{apiVersion: v1, kind: Node, metadata: {name: node-7}}";
    stage.server.apply(node).expect("applied");
    let checks = stage.check(&release(&[]), false).await;
    let (status, words) = found(&checks, "node agent");
    assert_eq!(status, CheckStatus::Error);
    assert!(words.ends_with("not become ready on node-7"), "{words}");
    let cure = "kubectl -n istio-system describe pods -l app=voile-node";
    assert!(checks.to_text().contains(cure), "{}", checks.to_text());
}

#[tokio::test]
async fn an_injector_of_others_for_the_same_pods_is_an_error() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    stage.install(&release(&[])).await.unwrap();
    let query = "get mutatingwebhookconfiguration istio-sidecar-injector -o json";
    let mut other: Value = serde_json::from_str(&stage.kubectl(query, &[])).unwrap();
    let labels = json!({"release": "istio"});
    other["metadata"] = json!({"name": "istio-sidecar-injector-other", "labels": labels});
    for webhook in other["webhooks"].as_array_mut().unwrap() {
        webhook["clientConfig"]["service"]["namespace"] = "other".into();
    }
    stage.server.apply(&other.to_string()).unwrap();
    let checks = stage.check(&release(&[]), true).await;
    let (status, found) = found(&checks, "webhooks");
    assert_eq!(status, CheckStatus::Error);
    let words =
        "istio-sidecar-injector-other of the release istio selects istio.io/rev=default, too";
    assert!(found.ends_with(words), "{found}");
    let revision = stage.check(&release(&["revision=canary"]), true).await;
    assert!(revision.passed(), "{}", revision.to_text());
}

#[tokio::test]
async fn checks_that_a_person_may_not_ask_for_are_errors() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    stage.install(&release(&[])).await.unwrap();
    let text = std::fs::read_to_string(stage.server.kubeconfig()).unwrap();
    // Everybody may ask for the version.
    let user = "\"user\": {";
    let guest = format!("{user}\"as\": \"system:serviceaccount:default:guest\", ");
    let text = text.replace(user, &guest);
    assert!(text.contains(&guest), "{text}");
    let file = stage.server.folder().join("guest");
    std::fs::write(&file, text).unwrap();
    let address = ClusterAddress {
        kubeconfig: Some(file),
        context: None,
    };
    let client = connect(&address).await.unwrap();
    let checks = Checks::run(&client, &release(&[]), false).await;
    let text = checks.to_text();
    assert_eq!(found(&checks, "API server").0, CheckStatus::Ok, "{text}");
    let (status, missing) = found(&checks, "permissions");
    assert_eq!(status, CheckStatus::Error, "{text}");
    assert!(missing.contains("create deployments.apps"), "{text}");
    for name in ["namespace", "names", "webhooks"] {
        let (status, reason) = found(&checks, name);
        assert_eq!(status, CheckStatus::Error, "{text}");
        assert!(reason.contains("(403)"), "{text}");
    }
}
