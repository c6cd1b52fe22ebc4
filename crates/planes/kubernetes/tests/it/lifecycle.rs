//! Installations are changed and removed, and objects of others stay.

use std::time::Duration;

use voile_kubernetes::install::{InstallError, wait};
use voile_testkit::cluster::wait_for;

use crate::stage::{Stage, release};

/// Controllers that end a namespace.
const CONTROLLERS: &str = "namespace,serviceaccount-token,clusterrole-aggregation";

#[tokio::test]
async fn an_installation_is_removed_without_a_trace() {
    let Some(stage) = Stage::start(CONTROLLERS).await else {
        return;
    };
    let before = stage.everything();
    let first = stage.install(&release(&[])).await.unwrap();
    assert_eq!(first[0], "namespaces/istio-system created");
    // What a control plane writes.
    let written = "[{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-ca-root-cert, namespace: default}},\n\
        {apiVersion: v1, kind: Secret, metadata: {name: istio-ca-secret, namespace: istio-system}},\n\
        {apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: voile-leader, namespace: istio-system}}]";
    let list = format!("{{apiVersion: v1, kind: List, items: {written}}}");
    stage.server.apply(&list).unwrap();
    // By its field manager the control plane's own root differs from that of another authority.
    let annotate =
        "annotate configmap istio-ca-root-cert -n default --field-manager=voile written-by=voile";
    stage.kubectl(annotate, &[]);
    let kept = stage.remove("", false).await.unwrap();
    let definitions =
        "14 customresourcedefinitions stay, with 0 resources; --purge-crds removes them";
    assert!(kept.iter().any(|line| line == definitions), "{kept:#?}");
    stage.install(&release(&[])).await.unwrap();
    stage.remove("", true).await.unwrap();
    wait_for("nothing left", Duration::from_secs(30), || {
        let everything = stage.everything();
        let mut different = everything.symmetric_difference(&before);
        different
            .next()
            .map_or(Ok(()), |object| Err(object.clone()))
    });
    let nothing = stage.remove("", false).await.unwrap_err().to_string();
    let expected = "no control plane istiod is installed in the namespace istio-system\ncure: ";
    assert!(nothing.starts_with(expected), "{nothing}");
}

#[tokio::test]
async fn a_namespace_with_objects_of_others_stays() {
    let Some(stage) = Stage::start(CONTROLLERS).await else {
        return;
    };
    stage.install(&release(&[])).await.unwrap();
    stage.kubectl("create configmap -n istio-system notes", &[]);
    let removed = stage.remove("", true).await.unwrap();
    let stays = "namespaces/istio-system stays: it has configmaps/notes";
    assert!(removed.iter().any(|line| line == stays), "{removed:#?}");
}

#[tokio::test]
async fn a_second_installation_changes_what_differs() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    let tagged = release(&["revisionTags={prod}"]);
    let first = stage.install(&tagged).await.unwrap();
    let all = |lines: &[String], end: &str| lines.iter().all(|line| line.ends_with(end));
    assert!(all(&first, " created"), "{first:#?}");
    let again = stage.install(&tagged).await.unwrap();
    assert!(all(&again, " unchanged"), "{again:#?}");
    // A field of the control plane.
    let bundle = r#"[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "LS0tLS1CRUdJTg=="}]"#;
    let patch = "patch mutatingwebhookconfiguration istio-sidecar-injector --type=json -p";
    stage.kubectl(patch, &[bundle]);
    let changed = stage.install(&release(&["replicaCount=3"])).await.unwrap();
    for line in [
        "deployments.apps/istiod changed",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io/istio-revision-tag-prod removed",
    ] {
        assert!(changed.iter().any(|one| one == line), "{changed:#?}");
    }
    let query = "get mutatingwebhookconfiguration istio-sidecar-injector -o";
    let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
    assert_eq!(stage.kubectl(query, &[path]), "LS0tLS1CRUdJTg==");
}

#[tokio::test]
async fn objects_of_others_are_not_changed() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    stage.kubectl("create namespace istio-system", &[]);
    let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: istiod, namespace: istio-system, \
        labels: {app.kubernetes.io/managed-by: Helm, release: istiod}}}";
    stage.server.apply(account).unwrap();
    let before = stage.everything();
    let error = stage.install(&release(&[])).await.unwrap_err();
    assert!(matches!(error, InstallError::Foreign(_)), "{error}");
    let expected = "serviceaccounts/istiod belongs to Helm (release istiod)\ncure: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(stage.everything(), before);
}

#[tokio::test]
async fn pod_monitors_need_their_kind_and_go_with_their_value() {
    const KIND: &str = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, \
        metadata: {name: podmonitors.monitoring.coreos.com}, spec: {group: monitoring.coreos.com, scope: Namespaced, \
        names: {kind: PodMonitor, listKind: PodMonitorList, plural: podmonitors, singular: podmonitor}, \
        versions: [{name: v1, served: true, storage: true, \
        schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}";
    let Some(stage) = Stage::start("").await else {
        return;
    };
    let wanted = release(&["monitoring.podMonitors.enabled=true"]);
    let error = stage.install(&wanted).await.unwrap_err().to_string();
    let expected =
        "podmonitors.monitoring.coreos.com/istiod: the cluster does not have this kind\ncure: ";
    assert!(error.starts_with(expected), "{error}");
    stage.server.apply(KIND).unwrap();
    wait_for("the kind is served", Duration::from_secs(30), || {
        stage.try_kubectl("get podmonitors -A", &[])
    });
    let monitor = "podmonitors.monitoring.coreos.com/voile-proxies";
    let has = |lines: &[String], change: &str| lines.contains(&format!("{monitor} {change}"));
    let lines = stage.install(&wanted).await.unwrap();
    assert!(has(&lines, "created"), "{lines:#?}");
    let lines = stage.install(&release(&[])).await.unwrap();
    assert!(has(&lines, "removed"), "{lines:#?}");
}

#[tokio::test]
async fn revisions_share_definitions_and_the_authority() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    stage.kubectl("create namespace istio-system", &[]);
    stage.install(&release(&["revision=one"])).await.unwrap();
    let two = stage.install(&release(&["revision=two"])).await.unwrap();
    let is_definition = |line: &String| line.starts_with("customresourcedefinitions");
    assert!(!two.iter().any(is_definition), "{two:#?}");
    let removed = stage.remove("two", true).await.unwrap();
    let stays = "secrets/istio-ca-secret stays: the control plane istiod-one shares it";
    assert!(removed.iter().any(|line| line == stays), "{removed:#?}");
    stage.kubectl("get deployment -n istio-system istiod-one", &[]);
    stage.kubectl("get crd healthchecks.voile.dev", &[]);
    stage.remove("one", true).await.unwrap();
    // A person created the namespace.
    stage.kubectl("get namespace istio-system", &[]);
    let gone = stage.try_kubectl("get crd healthchecks.voile.dev", &[]);
    assert!(gone.is_err_and(|error| error.contains("NotFound")));
}

#[tokio::test]
async fn a_control_plane_that_is_not_available_says_the_cure() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    let release = release(&[]);
    stage.install(&release).await.unwrap();
    let limit = Duration::from_millis(100);
    let wait = async || wait(&stage.client, &release, limit, &|_| {}).await;
    let error = wait().await.unwrap_err().to_string();
    let expected = "0 of 2 pods are available\nno pod was created\ncure: ";
    assert!(error.contains(expected), "{error}");

    let account = "create serviceaccount -n istio-system default";
    stage.kubectl(account, &[]);
    // The pod of the template meets the level `restricted`.
    let label = "label namespace istio-system pod-security.kubernetes.io/enforce=restricted";
    stage.kubectl(label, &[]);
    let query = "get deployment -n istio-system istiod -o jsonpath={.spec.template}";
    let template = stage.kubectl(query, &[]);
    let mut pod: serde_json::Value = serde_json::from_str(&template).unwrap();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "istiod-a".into();
    pod["metadata"]["namespace"] = "istio-system".into();
    stage.server.apply(&pod.to_string()).unwrap();
    let waiting = r#"{"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}"#;
    let container = r#""name": "discovery", "image": "voile:0.1.0", "imageID": "", "ready": false, "restartCount": 0"#;
    let status = format!("{{\"containerStatuses\": [{{{container}, \"state\": {waiting}}}]}}");
    stage.set_status("pod istiod-a", &status);
    let error = wait().await.unwrap_err().to_string();
    let expected = "pod istiod-a: ImagePullBackOff: not found\ncure: push the image voile:0.1.0";
    assert!(error.contains(expected), "{error}");

    let counts = r#"{"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "readyReplicas": 2}"#;
    stage.set_status("deployment istiod", counts);
    wait().await.unwrap();
}

#[tokio::test]
async fn roots_that_another_authority_wrote_stay() {
    let Some(stage) = Stage::start(CONTROLLERS).await else {
        return;
    };
    stage.install(&release(&[])).await.unwrap();
    // As istio-csr writes it.
    let others = "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-ca-root-cert, namespace: default, \
        labels: {istio.io/config: \"true\"}}, data: {root-cert.pem: theirs}}";
    stage.server.apply(others).unwrap();
    let removed = stage.remove("", true).await.unwrap();
    let stays = "configmaps/istio-ca-root-cert stay in 1 namespaces: others wrote them";
    assert!(removed.iter().any(|line| line == stays), "{removed:#?}");
    let root = "get configmap istio-ca-root-cert -n default -o jsonpath={.data}";
    assert!(stage.kubectl(root, &[]).contains("theirs"));
}
