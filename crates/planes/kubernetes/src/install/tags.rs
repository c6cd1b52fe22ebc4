//! Tags of revisions: names such as `prod` that namespaces use instead of a revision, so that an upgrade moves the name and not
//! the namespaces. A tag is a MutatingWebhookConfiguration, as Istio's, and a ValidatingWebhookConfiguration of the same name. The
//! chart makes those of its value `revisionTags`; here are those that a person sets without a change of the release.

use std::collections::BTreeMap;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::apply::{ApplyMode, apply};
use super::chart::{ClusterFacts, MANAGER, Manifest, Release};
use super::uninstall::remove_objects;
use super::{INSTANCE, InstallError, Progress, is_ours, owner};
use crate::error::ClusterError;
use crate::revision::{DEFAULT_REVISION, REVISION, TAG, label_of, of_revision};

/// Label with the project that an object is of, however it was installed.
const PART_OF: &str = "app.kubernetes.io/part-of";
/// Kinds of a tag.
pub(super) const WEBHOOKS: [&str; 2] = [
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// A tag of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionTag {
    /// Its name.
    pub name: String,
    /// The revision that it stands for.
    pub revision: String,
    /// Namespaces that use it.
    pub namespaces: Vec<String>,
    /// Namespace of the control plane.
    pub(super) control_plane: String,
    /// Name of the release that it belongs to.
    pub(super) release: String,
}

/// A tag that is to stand for a revision.
#[derive(Debug, Clone, Copy)]
pub struct TagChange<'a> {
    /// Namespace of the control plane.
    pub namespace: &'a str,
    /// Its revision.
    pub revision: &'a str,
    /// Name of the tag.
    pub tag: &'a str,
    /// Move a tag that stands for another revision.
    pub overwrite: bool,
}

/// Lists the tags of a cluster, those of other programs too.
///
/// # Errors
/// The API server refuses or does not answer.
pub fn list_tags<'a>(client: &'a Client) -> BoxFuture<'a, Result<Vec<RevisionTag>, InstallError>> {
    Box::pin(async move {
        let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let tagged = all.list(&ListParams::default().labels(TAG)).await;
        let tagged = tagged.map_err(|error| {
            ClusterError::api("the list of mutatingwebhookconfigurations", &error)
        })?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespaces = namespaces.list_metadata(&ListParams::default()).await;
        let namespaces =
            namespaces.map_err(|error| ClusterError::api("the list of namespaces", &error))?;
        let tag = |one: &MutatingWebhookConfiguration| {
            let label = |name: &str| one.labels().get(name).cloned().unwrap_or_default();
            let name = label(TAG);
            let uses = |labels: &BTreeMap<String, String>| match labels.get("istio-injection") {
                Some(word) => name == DEFAULT_REVISION && word == "enabled",
                None => labels.get(REVISION) == Some(&name),
            };
            let using = namespaces.iter().filter(|one| uses(one.labels()));
            let mut hooks = one.webhooks.iter().flatten();
            let service = hooks.find_map(|hook| hook.client_config.service.as_ref());
            RevisionTag {
                namespaces: using.map(ResourceExt::name_any).collect(),
                control_plane: service.map_or_else(String::new, |one| one.namespace.clone()),
                revision: label(REVISION),
                release: label(INSTANCE),
                name,
            }
        };
        Ok(tagged.iter().map(tag).collect())
    })
}

/// Sets a tag. Namespaces that use it get sidecars of the revision from then on; running pods keep theirs.
///
/// # Errors
/// There is no such revision, the tag stands for another one, or the API server refuses or does not answer.
pub fn set_tag<'a>(
    client: &'a Client,
    change: TagChange<'a>,
    progress: Progress<'a>,
) -> LocalBoxFuture<'a, Result<(), InstallError>> {
    Box::pin(async move {
        let TagChange { revision, tag, .. } = change;
        let release = release(change)?;
        let manifests = release.render(&ClusterFacts::default())?;
        let find = |kind: &str| {
            let mut all = manifests.iter();
            let found = all.find(|one| one.field("/kind") == kind && is_tag(&one.object));
            let reason = format!("the chart has no {kind} of the tag {tag}");
            found.ok_or(InstallError::Values(reason))
        };
        let (webhooks, validators) = (find(WEBHOOKS[0])?, find(WEBHOOKS[1])?);
        let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        no_revision_is_called(&all, tag).await?;
        let bundle = bundle(client, change).await?;
        may_change(&all, webhooks.field("/metadata/name"), change).await?;
        let [webhooks, validators] = [webhooks, validators].map(|one| {
            let mut webhooks = one.object.clone();
            webhooks["metadata"]["labels"][INSTANCE] = tag_release(tag).into();
            for hook in webhooks["webhooks"].as_array_mut().into_iter().flatten() {
                // Without it no pod could be created until the control plane has seen the webhooks.
                hook["clientConfig"]["caBundle"] = bundle.clone();
            }
            webhooks
        });
        let [role, binding] = permission(&webhooks, tag);
        let manifests = [role, binding, webhooks, validators].map(|object| Manifest {
            source: String::new(),
            text: String::new(),
            object,
        });
        let release = release.named(tag_release(tag));
        apply(client, &release, &manifests, ApplyMode::Store, progress).await?;
        progress(&format!(
            "the tag {tag} stands for the revision {revision}; pods that run keep their sidecars: kubectl rollout restart deployment -n NAMESPACE"
        ));
        Ok(())
    })
}

/// Removes a tag that `set_tag` made. A person confirms it if namespaces use the tag.
///
/// # Errors
/// There is no such tag, it belongs to others, or the API server refuses or does not answer.
pub fn remove_tag<'a>(
    client: &'a Client,
    tag: &'a str,
    confirm: &'a dyn Fn(&str) -> bool,
    progress: Progress<'a>,
) -> LocalBoxFuture<'a, Result<(), InstallError>> {
    Box::pin(async move {
        let mut tags = list_tags(client).await?.into_iter();
        let Some(found) = tags.find(|one| one.name == tag) else {
            return Err(InstallError::Values(format!(
                "there is no tag {tag}; `voile tag list` lists them"
            )));
        };
        if found.release != tag_release(tag) {
            return Err(InstallError::Foreign(format!(
                "the tag {tag} belongs to the release {}\ncure: change the value revisionTags of that release, or remove it by the program that set it",
                found.release
            )));
        }
        let used = found.namespaces.join(", ");
        let question = format!(
            "Namespaces use the tag {tag}: {used}. New pods there get no sidecar. Remove it?"
        );
        if !used.is_empty() && !confirm(&question) {
            return Err(InstallError::Foreign(format!("the tag {tag} stays")));
        }
        remove_objects(client, &found.control_plane, &found.release, progress).await?;
        Ok(())
    })
}

/// Removes the tags that stand for a revision which goes: their webhooks would refuse every pod.
pub(super) async fn remove_tags_of(
    client: &Client,
    namespace: &str,
    revision: &str,
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    let revision = label_of(revision);
    for tag in list_tags(client).await? {
        let own = tag.control_plane == namespace && tag.revision == revision;
        if own && tag.release == tag_release(&tag.name) {
            remove_objects(client, namespace, &tag.release, progress).await?;
        }
    }
    Ok(())
}

/// Name of the release that a tag's objects are of, so that those of the revision's release can change without it.
pub(super) fn tag_release(tag: &str) -> String {
    format!("voile-tag-{tag}")
}

fn is_tag(object: &Value) -> bool {
    !object["metadata"]["labels"][TAG].is_null()
}

/// The release of the revision as it would be with the tag.
fn release(change: TagChange<'_>) -> Result<Release, InstallError> {
    let mut assignments = vec![format!("revisionTags={{{}}}", change.tag)];
    if change.revision != DEFAULT_REVISION {
        assignments.push(format!("revision={}", change.revision));
    }
    Release::new(change.namespace, &[], &assignments.into())
}

/// Refuses the name of a revision: both would select the same pods.
async fn no_revision_is_called(
    all: &Api<MutatingWebhookConfiguration>,
    tag: &str,
) -> Result<(), InstallError> {
    let revision = format!("app=sidecar-injector,{REVISION}={tag},!{TAG}");
    let found = all
        .list_metadata(&ListParams::default().labels(&revision))
        .await;
    let found = found
        .map_err(|error| ClusterError::api("the list of mutatingwebhookconfigurations", &error))?;
    match found.items.first() {
        None => Ok(()),
        Some(one) => Err(InstallError::Foreign(format!(
            "there is a revision {tag}: mutatingwebhookconfigurations/{} selects the same pods\ncure: choose another name, or remove that revision first",
            one.name_any()
        ))),
    }
}

/// Name of the webhooks of a tag, as the chart has it.
pub(super) fn webhooks_of(namespace: &str, tag: &str) -> String {
    format!("istio-revision-tag-{tag}{}", suffix(namespace))
}

/// Suffix of the names of webhooks, as the chart has it.
fn suffix(namespace: &str) -> String {
    match namespace {
        "istio-system" => String::new(),
        other => format!("-{other}"),
    }
}

/// The authority that the control plane has written into the webhooks of its revision.
pub(super) async fn bundle(client: &Client, change: TagChange<'_>) -> Result<Value, InstallError> {
    let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let injector = of_revision("istio-sidecar-injector", change.revision);
    let name = format!("{injector}{}", suffix(change.namespace));
    let what = format!("mutatingwebhookconfigurations/{name}");
    let injector = all.get_opt(&name).await;
    let injector = injector.map_err(|error| ClusterError::api(&what, &error))?;
    let TagChange {
        namespace,
        revision,
        ..
    } = change;
    let Some(injector) = injector else {
        return Err(InstallError::Values(format!(
            "there is no revision {revision} in the namespace {namespace}\ncure: voile install --revision {revision}, or name another one"
        )));
    };
    if injector
        .labels()
        .get(PART_OF)
        .is_none_or(|one| one != MANAGER)
    {
        return Err(InstallError::Foreign(format!(
            "the revision {revision} belongs to {}\ncure: set the tag by that program",
            owner(&injector)
        )));
    }
    let mut hooks = injector.webhooks.iter().flatten();
    let bundle = hooks.find_map(|hook| hook.client_config.ca_bundle.clone());
    let bundle = bundle.filter(|bundle| !bundle.0.is_empty());
    bundle.map(|bundle| json!(bundle)).ok_or_else(|| {
        InstallError::Unavailable(format!(
            "{what} has no caBundle: the control plane has not served yet\ncure: voile check --namespace {namespace} --revision {revision}"
        ))
    })
}

/// Refuses a tag of others, and one of another revision that is not to be moved.
async fn may_change(
    all: &Api<MutatingWebhookConfiguration>,
    name: &str,
    change: TagChange<'_>,
) -> Result<(), InstallError> {
    let TagChange { revision, tag, .. } = change;
    let there = all.get_metadata_opt(name).await;
    let there = there.map_err(|error| {
        ClusterError::api(format!("mutatingwebhookconfigurations/{name}"), &error)
    })?;
    let Some(there) = there else {
        return Ok(());
    };
    if !is_ours(&there, &tag_release(tag)) {
        return Err(InstallError::Foreign(format!(
            "the tag {tag} belongs to {}\ncure: change the value revisionTags of that release, or choose another name",
            owner(&there)
        )));
    }
    match there.labels().get(REVISION) {
        Some(other) if other != revision && !change.overwrite => Err(InstallError::Values(
            format!("the tag {tag} stands for the revision {other}\ncure: --overwrite moves it"),
        )),
        _ => Ok(()),
    }
}

/// The control plane may write its authority into the tag's webhooks: its own role names only those of its release.
fn permission(webhooks: &Value, tag: &str) -> [Value; 2] {
    let metadata = json!({"name": tag_release(tag), "labels": webhooks["metadata"]["labels"]});
    let service = &webhooks["webhooks"][0]["clientConfig"]["service"];
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": [{
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            // The two have one name.
            "resourceNames": [webhooks["metadata"]["name"]],
            "verbs": ["update", "patch"],
        }],
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": tag_release(tag)},
        // The chart names the account of a control plane as its Service.
        "subjects": [{"kind": "ServiceAccount", "name": service["name"], "namespace": service["namespace"]}],
    });
    [role, binding]
}
