//! Removes a release, and what its control plane wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, PartialObjectMeta};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use super::chart::{MANAGER, release_name};
use super::kinds::{self, DEFINITION, KINDS};
use super::tags::remove_tags_of;
use super::wait::deployment_name;
use super::{CLASS_LABEL, InstallError, MANAGED_BY, Progress, objects, owner, release_selector};
use crate::error::ClusterError;
use crate::revision::{label_of, of_revision};
use crate::trust::trust_bundle::BUNDLE;

/// The ConfigMap with the root certificate, in every namespace.
const ROOT_CERTIFICATE: &str = "istio-ca-root-cert";

/// The Secret with the key of the certificate authority.
const AUTHORITY: &str = "istio-ca-secret";

/// The Lease of the elected replica of the default revision.
const LEASE: &str = "voile-leader";

/// The longest time that pods of the control plane have to end.
const PODS_END: Duration = Duration::from_secs(60);

/// The longest time that the namespace has to end.
const NAMESPACE_ENDS: Duration = Duration::from_secs(60);

/// Time between two looks at them.
const INTERVAL: Duration = Duration::from_millis(300);

/// Objects that every namespace has, or that follow others; by plural and name.
const USUAL: [(&str, &str); 2] = [
    ("configmaps", "kube-root-ca.crt"),
    ("serviceaccounts", "default"),
];

/// Kinds that follow others, or that nobody keeps.
const FOLLOWING: [&str; 5] = [
    "events",
    "endpoints",
    "endpointslices",
    "replicasets",
    "controllerrevisions",
];

/// A control plane that is removed.
#[derive(Clone, Copy)]
pub struct Removal<'a> {
    /// Namespace of the control plane.
    pub namespace: &'a str,
    /// Its revision, or nothing.
    pub revision: &'a str,
    /// Remove the definitions of kinds, and all resources of these kinds.
    pub purge_definitions: bool,
    /// Asks a person.
    pub confirm: &'a dyn Fn(&str) -> bool,
}

/// Removes a release that this program installed: webhooks first, so that pods can be created without it.
///
/// # Errors
/// There is none, it belongs to others, or the API server refuses or does not answer.
pub fn uninstall<'a>(
    client: &'a Client,
    removal: Removal<'a>,
    progress: Progress<'a>,
) -> LocalBoxFuture<'a, Result<(), InstallError>> {
    Box::pin(async move {
        remove_tags_of(client, removal.namespace, removal.revision, progress).await?;
        let release = release_name(removal.revision);
        let removed = remove_objects(client, removal.namespace, &release, progress).await?;
        if removed == 0 && !has_definitions(client, &release).await? {
            return Err(nothing(client, removal).await?);
        }
        pods_end(client, removal, progress).await?;
        remove_written(client, removal, progress).await?;
        remove_definitions(client, removal, &release, progress).await?;
        remove_namespace(client, removal.namespace, progress).await
    })
}

/// Removes the objects of the release but for definitions.
pub(super) async fn remove_objects(
    client: &Client,
    namespace: &str,
    release: &str,
    progress: Progress<'_>,
) -> Result<usize, InstallError> {
    let selector = ListParams::default().labels(&release_selector(release));
    let mut removed = 0;
    for kind in KINDS.iter().rev().filter(|kind| kind.kind != DEFINITION) {
        let api = objects(client, kind, namespace);
        let listed = match api.list_metadata(&selector).await {
            Ok(listed) => listed,
            Err(kube::Error::Api(status)) if kind.is_absent(status.code) => continue,
            Err(error) => return Err(ClusterError::api(kind.name(), &error).into()),
        };
        for object in listed {
            remove(&api, &kind.name(), &object.name_any(), progress).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

async fn remove<K>(
    api: &Api<K>,
    plural: &str,
    name: &str,
    progress: Progress<'_>,
) -> Result<(), InstallError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let what = format!("{plural}/{name}");
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => progress(&format!("{what} removed")),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(ClusterError::api(&what, &error).into()),
    }
    Ok(())
}

async fn has_definitions(client: &Client, release: &str) -> Result<bool, InstallError> {
    Ok(!definitions(client, release).await?.is_empty())
}

/// Why there is nothing to remove.
async fn nothing(client: &Client, removal: Removal<'_>) -> Result<InstallError, InstallError> {
    let name = deployment_name(removal.revision);
    let namespace = removal.namespace;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let there = deployments.get_metadata_opt(&name).await;
    let there = there.map_err(|error| ClusterError::api(&name, &error))?;
    Ok(InstallError::Foreign(match there {
        Some(object) => format!(
            "deployments.apps/{name} in the namespace {namespace} belongs to {}\ncure: remove it by that program, such as `helm uninstall RELEASE -n {namespace}`",
            owner(&object)
        ),
        None => format!(
            "no control plane {name} is installed in the namespace {namespace}\ncure: name another one by --namespace and --revision"
        ),
    }))
}

/// Waits until the pods of the control plane and of the node agent have ended: a control plane that runs would write the root
/// certificate again, and a node agent takes its plugin off the node.
async fn pods_end(
    client: &Client,
    removal: Removal<'_>,
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    let label = label_of(removal.revision);
    let selector = format!("app in (istiod,voile-node),istio.io/rev={label}");
    let selector = ListParams::default().labels(&selector);
    let pods: Api<Pod> = Api::namespaced(client.clone(), removal.namespace);
    let deadline = Instant::now() + PODS_END;
    let mut last = 0;
    loop {
        let listed = pods.list_metadata(&selector).await;
        let left = listed
            .map_err(|error| ClusterError::api("the list of pods", &error))?
            .items
            .len();
        match left {
            0 => return Ok(()),
            left if left != last => progress(&format!("waiting for the end of pods: {left}")),
            _ => {}
        }
        last = left;
        if Instant::now() >= deadline {
            progress("the pods have not ended; their last objects may stay");
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Removes what the control plane wrote: root certificates, GatewayClasses, the key of the authority, and the Lease of the
/// elected replica. Another control plane of the
/// cluster shares the root certificates, and one of the namespace shares the key.
async fn remove_written(
    client: &Client,
    removal: Removal<'_>,
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    let deployments: Api<Deployment> = Api::all(client.clone());
    let others = deployments
        .list_metadata(&ListParams::default().labels("app=istiod"))
        .await;
    let others = others
        .map_err(|error| ClusterError::api("the list of deployments", &error))?
        .items;
    let beside =
        |one: &PartialObjectMeta<Deployment>| one.namespace().as_deref() == Some(removal.namespace);
    match others.first() {
        Some(other) => progress(&format!(
            "configmaps/{ROOT_CERTIFICATE} stay: the control plane {}/{} shares them",
            other.namespace().unwrap_or_default(),
            other.name_any()
        )),
        None => {
            let all: Api<ConfigMap> = Api::all(client.clone());
            let selector =
                ListParams::default().fields(&format!("metadata.name={ROOT_CERTIFICATE}"));
            let listed = all.list_metadata(&selector).await;
            let listed =
                listed.map_err(|error| ClusterError::api("the list of configmaps", &error))?;
            // Another authority, such as istio-csr, writes them where it signs in place of the control plane.
            let (ours, others): (Vec<_>, Vec<_>) =
                listed.items.into_iter().partition(is_written_by_us);
            for namespace in ours.iter().filter_map(ResourceExt::namespace) {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
                remove(&api, "configmaps", ROOT_CERTIFICATE, &|_| {}).await?;
            }
            if !ours.is_empty() {
                progress(&format!(
                    "configmaps/{ROOT_CERTIFICATE} removed in {} namespaces",
                    ours.len()
                ));
            }
            if !others.is_empty() {
                progress(&format!(
                    "configmaps/{ROOT_CERTIFICATE} stay in {} namespaces: others wrote them",
                    others.len()
                ));
            }
            let bundles: Api<ClusterTrustBundle> = Api::all(client.clone());
            remove(&bundles, "clustertrustbundles", BUNDLE, progress).await?;
            remove_classes(client, progress).await?;
        }
    }
    let secrets: Api<Secret> = Api::namespaced(client.clone(), removal.namespace);
    match others.iter().find(|one| beside(one)) {
        Some(other) => progress(&format!(
            "secrets/{AUTHORITY} stays: the control plane {} shares it",
            other.name_any()
        )),
        None => remove(&secrets, "secrets", AUTHORITY, progress).await?,
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), removal.namespace);
    let lease = of_revision(LEASE, removal.revision);
    remove(&leases, "leases.coordination.k8s.io", &lease, progress).await
}

/// Returns true if a control plane of Voile has written a part of an object.
fn is_written_by_us<K>(object: &PartialObjectMeta<K>) -> bool {
    let managers = object.metadata.managed_fields.iter().flatten();
    let mut names = managers.filter_map(|one| one.manager.as_deref());
    names.any(|name| name == MANAGER)
}

/// Removes the GatewayClasses that control planes made.
async fn remove_classes(client: &Client, progress: Progress<'_>) -> Result<(), InstallError> {
    let Some(kind) = kinds::find("GatewayClass") else {
        return Ok(());
    };
    let api = objects(client, kind, "");
    let (label, value) = CLASS_LABEL;
    let selector = ListParams::default().labels(&format!("{label}={value}"));
    let listed = api.list_metadata(&selector).await;
    for class in or_gone(listed, &kind.name())?.into_iter().flatten() {
        remove(&api, &kind.name(), &class.name_any(), progress).await?;
    }
    Ok(())
}

/// The definitions of the release, with the kinds that they define.
async fn definitions(
    client: &Client,
    release: &str,
) -> Result<BTreeMap<String, ApiResource>, InstallError> {
    let Some(kind) = kinds::find(DEFINITION) else {
        return Ok(BTreeMap::new());
    };
    let selector = ListParams::default().labels(&release_selector(release));
    let listed = objects(client, kind, "").list(&selector).await;
    let listed = listed
        .map_err(|error| ClusterError::api("the list of customresourcedefinitions", &error))?;
    let defined = |object: &DynamicObject| {
        let spec = &object.data["spec"];
        let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let versions = spec["versions"].as_array().into_iter().flatten();
        let stored = versions.clone().find(|one| one["storage"] == true);
        let (group, version) = (word(&spec["group"]), word(&stored?["name"]));
        Some(ApiResource {
            api_version: format!("{group}/{version}"),
            group,
            version,
            kind: word(&spec["names"]["kind"]),
            plural: word(&spec["names"]["plural"]),
        })
    };
    Ok(listed
        .iter()
        .filter_map(|one| Some((one.name_any(), defined(one)?)))
        .collect())
}

/// Removes the definitions if a person wants that, since their resources go with them.
async fn remove_definitions(
    client: &Client,
    removal: Removal<'_>,
    release: &str,
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    let definitions = definitions(client, release).await?;
    if definitions.is_empty() {
        return Ok(());
    }
    let mut resources = 0;
    for (name, resource) in &definitions {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
        let listed = api.list_metadata(&ListParams::default()).await;
        resources += or_gone(listed, name)?.map_or(0, |listed| listed.items.len());
    }
    let what = format!("{} customresourcedefinitions", definitions.len());
    let question = format!("Remove {what} and their {resources} resources?");
    if !removal.purge_definitions || !(removal.confirm)(&question) {
        progress(&format!(
            "{what} stay, with {resources} resources; --purge-crds removes them"
        ));
        return Ok(());
    }
    let Some(kind) = kinds::find(DEFINITION) else {
        return Ok(());
    };
    let api = objects(client, kind, "");
    for name in definitions.keys() {
        remove(&api, &kind.name(), name, progress).await?;
    }
    Ok(())
}

/// Removes the namespace if this program created it and nothing of others is in it.
async fn remove_namespace(
    client: &Client,
    name: &str,
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let what = format!("namespaces/{name}");
    let there = namespaces.get_metadata_opt(name).await;
    let there = there.map_err(|error| ClusterError::api(&what, &error))?;
    let created =
        there.is_some_and(|one| one.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER));
    if !created {
        return Ok(());
    }
    if let Some(object) = first_object(client, name).await? {
        progress(&format!("{what} stays: it has {object}"));
        return Ok(());
    }
    remove(&namespaces, "namespaces", name, progress).await?;
    // An installation that follows at once would be refused.
    let deadline = Instant::now() + NAMESPACE_ENDS;
    while Instant::now() < deadline {
        let there = namespaces.get_metadata_opt(name).await;
        if there
            .map_err(|error| ClusterError::api(&what, &error))?
            .is_none()
        {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
    progress(&format!("{what} has not ended yet"));
    Ok(())
}

/// An object of a namespace that somebody may miss.
async fn first_object(client: &Client, namespace: &str) -> Result<Option<String>, InstallError> {
    for resource in namespaced_kinds(client).await? {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let listed = api.list_metadata(&ListParams::default()).await;
        let Some(listed) = or_gone(listed, &resource.plural)? else {
            continue;
        };
        let mut objects = listed.items.iter();
        let missed = objects.find(|one| {
            let usual = USUAL.contains(&(&*resource.plural, &*one.name_any()));
            one.metadata.deletion_timestamp.is_none() && !usual
        });
        if let Some(object) = missed {
            return Ok(Some(format!("{}/{}", resource.plural, object.name_any())));
        }
    }
    Ok(None)
}

/// The kinds of objects that a person may keep in a namespace.
async fn namespaced_kinds(client: &Client) -> Result<Vec<ApiResource>, InstallError> {
    let groups = client.list_api_groups().await;
    let groups = or_gone(groups, "the groups of the API")?.unwrap_or_default();
    let mut lists = vec![client.list_core_api_resources("v1").await];
    for version in groups
        .groups
        .iter()
        .filter_map(|one| one.preferred_version.as_ref())
    {
        lists.push(
            client
                .list_api_group_resources(&version.group_version)
                .await,
        );
    }
    let mut kinds = Vec::new();
    for list in lists {
        let Some(list) = or_gone(list, "the kinds of the cluster")? else {
            continue;
        };
        let (group, version) = match list.group_version.split_once('/') {
            Some((group, version)) => (group, version),
            None => ("", &*list.group_version),
        };
        let kept = list.resources.into_iter().filter(|one| {
            let listed = one.verbs.iter().any(|verb| verb == "list");
            one.namespaced && listed && !FOLLOWING.contains(&&*one.name)
        });
        kinds.extend(kept.map(|one| ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: list.group_version.clone(),
            kind: one.kind,
            plural: one.name,
        }));
    }
    Ok(kinds)
}

/// None if the kind is gone, such as one whose definition was just removed.
fn or_gone<T>(answer: kube::Result<T>, what: &str) -> Result<Option<T>, InstallError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => Ok(None),
        Err(error) => Err(ClusterError::api(what, &error).into()),
    }
}

impl std::fmt::Debug for Removal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            namespace,
            revision,
            purge_definitions,
            confirm: _,
        } = self;
        write!(f, "Removal({namespace}, {revision}, {purge_definitions})")
    }
}
