//! Tags of revisions on a real API server.

use std::cell::RefCell;

use voile_kubernetes::install::{
    InstallError, Release, RevisionTag, TagChange, list_tags, remove_tag, set_tag,
};

use crate::stage::{Stage, release};

/// What a control plane writes into the webhooks of its revision.
const BUNDLE: &str = "cm9vdA==";

async fn set(
    stage: &Stage,
    tag: &str,
    revision: &str,
    overwrite: bool,
) -> Result<(), InstallError> {
    let change = TagChange {
        namespace: "istio-system",
        revision,
        tag,
        overwrite,
    };
    set_tag(&stage.client, change, &|_| {}).await
}

async fn refused(stage: &Stage, tag: &str, revision: &str) -> String {
    let error = set(stage, tag, revision, false).await;
    error.expect_err("refused").to_string()
}

/// `NAME REVISION NAMESPACES` of each tag.
async fn tags(stage: &Stage) -> Vec<String> {
    let tags = list_tags(&stage.client).await.expect("tags").into_iter();
    let line = |tag: RevisionTag| {
        let namespaces = tag.namespaces.join(",");
        format!("{} {} {namespaces}", tag.name, tag.revision)
    };
    tags.map(line).collect()
}

/// Writes the authority into the webhooks of a revision, as its control plane does.
pub(crate) fn serve(stage: &Stage, revision: &str) {
    let name = format!("istio-sidecar-injector-{revision}");
    let patch = (0..2).map(|number| {
        format!(
            r#"{{"op":"add","path":"/webhooks/{number}/clientConfig/caBundle","value":"{BUNDLE}"}}"#
        )
    });
    let patch = format!("[{}]", patch.collect::<Vec<_>>().join(","));
    let line = format!("patch mutatingwebhookconfigurations {name} --type=json -p");
    stage.kubectl(&line, &[&patch]);
}

/// A revision without definitions of kinds.
fn revision(assignments: &[&str]) -> Release {
    release(&[assignments, &["crds.istio=never", "crds.voile=never"]].concat())
}

/// The webhooks of the tag `prod`, one a line.
fn hooks(stage: &Stage) -> String {
    let path = "jsonpath={range .webhooks[*]}{.name} {.clientConfig.service.name} {.clientConfig.caBundle} \
                {.namespaceSelector.matchExpressions[0].values}{\"\\n\"}{end}";
    let line = "get mutatingwebhookconfigurations istio-revision-tag-prod -o";
    stage.kubectl(line, &[path])
}

/// Returns true if a control plane may write into webhooks of this name.
fn may_write(stage: &Stage, account: &str, name: &str) -> bool {
    let line = format!(
        "auth can-i patch mutatingwebhookconfigurations/{name} --as=system:serviceaccount:istio-system:{account}"
    );
    let answer = stage.try_kubectl(&line, &[]);
    answer.is_ok_and(|answer| answer.trim() == "yes")
}

#[tokio::test]
async fn a_tag_moves_between_revisions_and_goes_with_the_last() {
    let Some(stage) = Stage::start("clusterrole-aggregation").await else {
        return;
    };
    stage.kubectl("create namespace shop", &[]);
    stage.kubectl("label namespace shop istio.io/rev=prod", &[]);
    let missing = refused(&stage, "prod", "old").await;
    assert!(missing.starts_with("there is no revision old in the namespace istio-system\ncure: "));
    let old = revision(&["revision=old"]);
    stage.install(&old).await.unwrap();
    let before = stage.everything();
    let early = refused(&stage, "prod", "old").await;
    assert!(early.contains("has no caBundle"), "{early}");
    serve(&stage, "old");
    set(&stage, "prod", "old", false).await.unwrap();
    assert_eq!(tags(&stage).await, ["prod old shop"]);
    let first = format!("rev.namespace.sidecar-injector.istio.io istiod-old {BUNDLE} [\"prod\"]\n");
    let found = hooks(&stage);
    assert!(found.starts_with(&first), "{found}");
    assert!(may_write(&stage, "istiod-old", "istio-revision-tag-prod"));
    let checked = "get validatingwebhookconfigurations istio-revision-tag-prod -o";
    let path = "jsonpath={range .webhooks[*]}{.name} {.clientConfig.caBundle},{end}";
    let hooks =
        format!("rev.validation.istio.io {BUNDLE},rev.namespace.validation.istio.io {BUNDLE},");
    assert_eq!(stage.kubectl(checked, &[path]), hooks);
    assert!(!may_write(&stage, "istiod-old", "istio-revision-tag-other"));
    // The next installation of the revision keeps the tag.
    stage.install(&old).await.unwrap();
    serve(&stage, "old");
    moved(&stage).await;
    removal_is_confirmed(&stage).await;
    // A tag of a revision that goes would refuse every pod of its namespaces.
    stage.remove("new", false).await.unwrap();
    assert!(tags(&stage).await.is_empty());
    assert_eq!(stage.everything(), before);
    set(&stage, "prod", "old", false).await.unwrap();
    let removed = remove_tag(&stage.client, "prod", &|_| true, &|_| {}).await;
    removed.unwrap();
    assert_eq!(stage.everything(), before);
}

async fn moved(stage: &Stage) {
    let new = revision(&["revision=new", "revisionTags={chart}"]);
    stage.install(&new).await.expect("installed");
    serve(stage, "new");
    let kept = refused(stage, "prod", "new").await;
    let cure = "the tag prod stands for the revision old\ncure: --overwrite moves it";
    assert_eq!(kept, cure);
    set(stage, "prod", "new", true).await.expect("moved");
    let found = hooks(stage);
    assert!(found.contains(" istiod-new "), "{found}");
    assert!(may_write(stage, "istiod-new", "istio-revision-tag-prod"));
    assert!(!may_write(stage, "istiod-old", "istio-revision-tag-prod"));
    for (tag, reason) in [
        (
            "old",
            "there is a revision old: mutatingwebhookconfigurations/istio-sidecar-injector-old ",
        ),
        (
            "chart",
            "the tag chart belongs to voile (release voile-new)",
        ),
    ] {
        let error = refused(stage, tag, "new").await;
        assert!(error.starts_with(reason), "{error}");
    }
}

async fn removal_is_confirmed(stage: &Stage) {
    let asked = RefCell::new(String::new());
    let no = |question: &str| {
        question.clone_into(&mut asked.borrow_mut());
        false
    };
    let stays = remove_tag(&stage.client, "prod", &no, &|_| {}).await;
    assert_eq!(stays.expect_err("no").to_string(), "the tag prod stays");
    let asked = asked.borrow();
    assert!(
        asked.contains("Namespaces use the tag prod: shop."),
        "{asked}"
    );
}
