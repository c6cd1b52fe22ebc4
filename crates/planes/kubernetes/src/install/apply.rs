//! Applies the manifests to a cluster.

use std::collections::BTreeSet;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt as _};
use serde_json::json;

use super::chart::{ClusterFacts, MANAGER, Manifest, Release};
use super::kinds::{self, DEFINITION, KINDS};
use super::{InstallError, Progress, is_ours, objects, owner, release_selector};
use crate::error::ClusterError;

/// The effect of an apply: a check, or a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyMode {
    /// The API server checks the objects and stores nothing.
    DryRun,
    /// The API server stores them.
    Store,
}

/// Asks the cluster what the chart depends on.
///
/// # Errors
/// The API server refuses or does not answer.
pub fn cluster_facts(client: &Client) -> BoxFuture<'_, Result<ClusterFacts, InstallError>> {
    Box::pin(async move {
        let what = "the list of customresourcedefinitions";
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let definitions = definitions.list_metadata(&ListParams::default()).await;
        let definitions = definitions.map_err(|error| ClusterError::api(what, &error))?;
        let object = |one: PartialObjectMeta<CustomResourceDefinition>| {
            let (name, labels) = (one.name_any(), one.labels());
            json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": DEFINITION,
                "metadata": {"name": name, "labels": labels},
            })
        };
        let objects = definitions.into_iter().map(object).collect();
        Ok(ClusterFacts { objects })
    })
}

/// Applies the manifests in their order by server-side apply, and then removes what an earlier installation of the release
/// left. Nothing is changed if an object of one of the names belongs to others.
///
/// # Errors
/// An object belongs to others, or the API server refuses or does not answer.
pub fn apply<'a>(
    client: &'a Client,
    release: &'a Release,
    manifests: &'a [Manifest],
    mode: ApplyMode,
    progress: Progress<'a>,
) -> LocalBoxFuture<'a, Result<(), InstallError>> {
    Box::pin(async move {
        let before = versions_before(client, release, manifests).await?;
        create_namespace(client, release, mode, progress).await?;
        let parameters = PatchParams {
            dry_run: mode == ApplyMode::DryRun,
            field_manager: Some(MANAGER.to_owned()),
            // The release owns these objects; fields of others, such as caBundle, are not in the manifests.
            force: true,
            ..PatchParams::default()
        };
        for (manifest, before) in manifests.iter().zip(before) {
            let (kind, name) = identify(manifest)?;
            let api = objects(client, kind, &release.namespace);
            let stored = api
                .patch(name, &parameters, &Patch::Apply(&manifest.object))
                .await;
            let what = format!("{}/{name}", kind.name());
            let stored = stored.map_err(|error| ClusterError::api(&what, &error))?;
            let change = match before {
                None => "created",
                Some(version) if Some(&version) == stored.metadata.resource_version.as_ref() => {
                    "unchanged"
                }
                Some(_) => "changed",
            };
            let change = if mode == ApplyMode::DryRun {
                "accepted"
            } else {
                change
            };
            progress(&format!("{what} {change}"));
        }
        match mode {
            ApplyMode::DryRun => Ok(()),
            ApplyMode::Store => prune(client, release, manifests, progress).await,
        }
    })
}

fn identify(manifest: &Manifest) -> Result<(&'static kinds::InstalledKind, &str), InstallError> {
    let kind = manifest.field("/kind");
    let found = kinds::find(kind);
    let unknown =
        || InstallError::Values(format!("{}: the kind {kind} is not known", manifest.source));
    Ok((found.ok_or_else(unknown)?, manifest.field("/metadata/name")))
}

/// The versions of the objects before the installation.
async fn versions_before(
    client: &Client,
    release: &Release,
    manifests: &[Manifest],
) -> Result<Vec<Option<String>>, InstallError> {
    let (mut versions, mut foreign) = (Vec::new(), Vec::new());
    for manifest in manifests {
        let (kind, name) = identify(manifest)?;
        let what = format!("{}/{name}", kind.name());
        let there = objects(client, kind, &release.namespace)
            .get_metadata_opt(name)
            .await;
        if matches!(&there, Err(kube::Error::Api(status)) if status.code == 404) {
            return Err(InstallError::Unavailable(format!(
                "{what}: the cluster does not have this kind\ncure: install the program that defines it first, or leave out the value"
            )));
        }
        let there = there.map_err(|error| ClusterError::api(&what, &error))?;
        versions.push(
            there
                .as_ref()
                .and_then(|object| object.metadata.resource_version.clone()),
        );
        if let Some(object) = there.filter(|object| !is_ours(object, release.name())) {
            foreign.push(format!("{what} belongs to {}", owner(&object)));
        }
    }
    match foreign.is_empty() {
        true => Ok(versions),
        false => Err(InstallError::Foreign(format!(
            "{}\ncure: install a revision of its own beside it (--revision NAME), or remove it by the program that installed it",
            foreign.join("\n")
        ))),
    }
}

/// Creates the namespace if it is missing. It is ours then, and goes with the last release in it. A dry run cannot create it,
/// and no object is accepted without it.
async fn create_namespace(
    client: &Client,
    release: &Release,
    mode: ApplyMode,
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let name = &release.namespace;
    let what = format!("namespaces/{name}");
    let there = namespaces.get_metadata_opt(name).await;
    if there
        .map_err(|error| ClusterError::api(&what, &error))?
        .is_some()
    {
        return Ok(());
    }
    if mode == ApplyMode::DryRun {
        return Err(InstallError::Unavailable(format!(
            "{what} is missing, and a dry run creates none\ncure: kubectl create namespace {name}"
        )));
    }
    let labels = [(super::MANAGED_BY.to_owned(), MANAGER.to_owned())];
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.clone());
    namespace.metadata.labels = Some(labels.into());
    let created = namespaces.create(&PostParams::default(), &namespace).await;
    created.map_err(|error| ClusterError::api(&what, &error))?;
    progress(&format!("{what} created"));
    Ok(())
}

/// Removes objects of the release that the chart no longer has. Definitions stay: their resources would go with them.
async fn prune(
    client: &Client,
    release: &Release,
    manifests: &[Manifest],
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    let wanted: BTreeSet<(&str, &str)> = manifests
        .iter()
        .map(|one| (one.field("/kind"), one.field("/metadata/name")))
        .collect();
    let selector = ListParams::default().labels(&release_selector(release.name()));
    for kind in KINDS.iter().filter(|kind| kind.kind != DEFINITION) {
        let api = objects(client, kind, &release.namespace);
        let listed = match api.list_metadata(&selector).await {
            Ok(listed) => listed,
            Err(kube::Error::Api(status)) if kind.is_absent(status.code) => continue,
            Err(error) => return Err(ClusterError::api(kind.name(), &error).into()),
        };
        for object in listed {
            let name = object.name_any();
            if wanted.contains(&(kind.kind, &*name)) {
                continue;
            }
            let what = format!("{}/{name}", kind.name());
            let deleted = api.delete(&name, &DeleteParams::default()).await;
            deleted.map_err(|error| ClusterError::api(&what, &error))?;
            progress(&format!("{what} removed"));
        }
    }
    Ok(())
}
