//! Upgrades by revision on a real API server.

use voile_kubernetes::install::{InstallError, Upgrade};
use voile_testkit::cluster::wait_for;

use crate::harness::PATIENCE;
use crate::stage::{Stage, release};
use crate::tags::serve;

/// A pod of a Deployment with a proxy of the revision `old`, one by itself, and one with a proxy of `new`. No control plane answers
/// their webhooks, so they refuse.
const PODS: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-1
  namespace: shop
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: "1", controller: true}]
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: app}]}}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-1-a
  namespace: shop
  labels: {app: web, istio.io/rev: old, sidecar.istio.io/inject: "false"}
  annotations: {sidecar.istio.io/status: '{"revision": "old"}'}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: "2", controller: true}]
spec: {containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: alone
  namespace: shop
  labels: {istio.io/rev: prod, sidecar.istio.io/inject: "false"}
  annotations: {sidecar.istio.io/status: '{"revision": "old"}'}
spec: {containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: newer
  namespace: shop
  labels: {istio.io/rev: new, sidecar.istio.io/inject: "false"}
  annotations: {sidecar.istio.io/status: '{"revision": "new"}'}
spec: {containers: [{name: app, image: app}]}
"#;

async fn plan(
    stage: &Stage,
    from: Option<&str>,
    to: Option<&str>,
    assignments: &[&str],
) -> Result<Upgrade, InstallError> {
    let assignments: Vec<String> = assignments.iter().map(|one| (*one).to_owned()).collect();
    Upgrade::plan(
        &stage.client,
        "istio-system",
        (from, to),
        &[],
        &assignments.into(),
    )
    .await
}

async fn refused(stage: &Stage, from: Option<&str>, to: Option<&str>) -> String {
    let error = plan(stage, from, to, &[]).await;
    error.expect_err("refused").to_string()
}

#[tokio::test]
async fn a_revision_beside_takes_values_definitions_and_tags() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    let nothing = refused(&stage, None, Some("new")).await;
    let expected = "no revision default is installed in the namespace istio-system\ncure: ";
    assert!(nothing.starts_with(expected), "{nothing}");
    let values = [
        "revision=old",
        "revisionTags={prod}",
        "image.repository=example.test/mesh",
        "image.tag=v1",
        "resources.requests=null",
    ];
    stage.install(&release(&values)).await.unwrap();
    let new = plan(&stage, None, Some("new"), &["image.tag=v2"]).await;
    let new = new.unwrap();
    assert_eq!((&*new.from, new.to()), ("old", "new"));
    assert_eq!(new.image, "example.test/mesh:v2");
    assert_eq!(
        new.release.given()["resources"]["requests"],
        serde_json::Value::Null
    );
    // The tag of the old revision does not collide, and the definitions are the new one's.
    new.take_definitions(&stage.client).await.unwrap();
    stage.install(&new.release).await.unwrap();
    let owner = "get crd healthchecks.voile.dev -o";
    let path = r"jsonpath={.metadata.labels.app\.kubernetes\.io/instance}";
    assert_eq!(stage.kubectl(owner, &[path]), "voile-new");
    // A call that goes on keeps what the first one said.
    let again = plan(&stage, None, Some("new"), &[]).await.unwrap();
    assert_eq!(again.image, "example.test/mesh:v2");
    serve(&stage, "new");
    stage.kubectl("create namespace shop", &[]);
    stage.kubectl("label namespace shop istio.io/rev=old", &[]);
    // The API server learns of the ServiceAccount a moment later.
    wait_for("the pods", PATIENCE, || stage.server.apply(PODS));
    let remaining = new.remaining(&stage.client).await.unwrap();
    assert_eq!(
        new.next_steps(&remaining),
        [
            "voile tag set prod --revision new --overwrite",
            "kubectl label namespace shop istio.io/rev=new --overwrite",
            "kubectl rollout restart deployment/web -n shop",
            "kubectl delete pod/alone -n shop",
            "voile uninstall --revision old",
        ]
    );
    new.move_tags(&stage.client, &|_| {}).await.unwrap();
    let tag =
        "get mutatingwebhookconfiguration,validatingwebhookconfiguration -l istio.io/tag=prod -o";
    let path = r"jsonpath={range .items[*]}{.metadata.labels.istio\.io/rev} {.webhooks[0].clientConfig.service.name},{end}";
    assert_eq!(
        stage.kubectl(tag, &[path]),
        "new istiod-new,new istiod-new,"
    );
    let several = refused(&stage, None, Some("newest")).await;
    let expected = "there are several revisions in the namespace istio-system: new, old\ncure: name the old one: --from NAME";
    assert_eq!(several, expected);
    // The tag survives the old revision.
    stage.remove("old", false).await.unwrap();
    let remaining = new.remaining(&stage.client).await.unwrap();
    assert!(remaining.tags.is_empty(), "{remaining:?}");
    assert!(stage.kubectl(tag, &[path]).starts_with("new "));
}

#[tokio::test]
async fn what_cannot_be_upgraded_is_refused_with_its_cure() {
    let Some(stage) = Stage::start("").await else {
        return;
    };
    let ambient = release(&["ambient.enabled=true"]);
    stage.install(&ambient).await.unwrap();
    let beside = refused(&stage, None, Some("new")).await;
    assert!(
        beside.contains("\ncure: voile upgrade --from default without --revision"),
        "{beside}"
    );
    let in_place = plan(&stage, None, None, &["logLevel=debug"]).await;
    let in_place = in_place.unwrap();
    assert!(in_place.is_in_place());
    assert_eq!(in_place.release.given()["ambient"]["enabled"], true);
    stage.kubectl("delete configmap -n istio-system voile-values", &[]);
    let unknown = refused(&stage, None, None).await;
    let expected = "the values of the revision default are not known: configmaps/voile-values is missing in the namespace istio-system\ncure: ";
    assert!(unknown.starts_with(expected), "{unknown}");
    let label =
        "label deployment -n istio-system istiod app.kubernetes.io/managed-by=Helm --overwrite";
    stage.kubectl(label, &[]);
    let foreign = refused(&stage, Some("default"), None).await;
    assert!(foreign.contains("belongs to Helm"), "{foreign}");
}
