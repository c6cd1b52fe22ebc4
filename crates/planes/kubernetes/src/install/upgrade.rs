//! Upgrades: a release with the values of an installed one, in its place or beside it under another revision, and what is left to
//! do until the old revision can go. All of it is read from the cluster, so an upgrade goes on where it was.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::chart::{MANAGER, RECORD, Release, VALUES, release_name};
use super::kinds::{self, DEFINITION};
use super::tags::{self, RevisionTag, TagChange, set_tag, tag_release};
use super::wait::deployment_name;
use super::workloads::{Workload, with_proxies_of};
use super::{
    Assignments, INSTANCE, InstallError, MANAGED_BY, Progress, objects, owner, release_selector,
};
use crate::error::ClusterError;
use crate::revision::{DEFAULT_REVISION, REVISION, label_of, of_revision};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(300);
/// Field manager of labels that an upgrade changes.
const WRITER: &str = "voile-upgrade";

/// An upgrade from a revision to another one, or to newer manifests of the same.
#[derive(Debug, Clone)]
pub struct Upgrade {
    /// The revision that runs.
    pub from: String,
    /// The release that it leads to.
    pub release: Release,
    /// The image of that.
    pub image: String,
}

/// What keeps an old revision from being removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Tags that stand for it.
    pub tags: Vec<String>,
    /// Namespaces whose labels name it.
    pub namespaces: Vec<String>,
    /// Workloads with its proxies, and the number of their pods.
    pub workloads: BTreeMap<Workload, usize>,
}

impl Upgrade {
    /// Finds the revision that runs, and lays values over those that it was installed with, or the new one if it is there. `from` names it where there are several;
    /// without `to` it is changed in its place.
    ///
    /// # Errors
    /// There is no such revision or several, it belongs to others, its values are not known or cannot be used, or the API server
    /// refuses or does not answer.
    pub fn plan<'a>(
        client: &'a Client,
        namespace: &'a str,
        (from, to): (Option<&'a str>, Option<&'a str>),
        files: &'a [(String, String)],
        assignments: &'a Assignments,
    ) -> BoxFuture<'a, Result<Self, InstallError>> {
        Box::pin(async move {
            let from = old_revision(client, namespace, from, to).await?;
            let to = to.unwrap_or(&from);
            let mut values = Vec::new();
            match recorded(client, namespace, to).await? {
                // An upgrade that goes on keeps what it began with.
                Some(own) => values.push(own),
                None => {
                    let old = recorded(client, namespace, &from).await?;
                    values.push(old.ok_or_else(|| unknown_values(namespace, &from))?);
                    // The tags of the old revision are moved by themselves.
                    let none = "revisionTags: []".to_owned();
                    values.push(("tags".to_owned(), none));
                }
            }
            values.extend_from_slice(files);
            let mut assignments = assignments.clone();
            if to != DEFAULT_REVISION {
                assignments.values.push(format!("revision={to}"));
            }
            let release = Release::new(namespace, &values, &assignments)?;
            if to != from && release.has_node_agent() {
                return Err(InstallError::Values(format!(
                    "a node has one node agent, so the revision {from} with ambient.enabled or pilot.cni.enabled is changed in its place\ncure: voile upgrade --from {from} without --revision"
                )));
            }
            let image = release.image()?;
            Ok(Self {
                from,
                release,
                image,
            })
        })
    }

    /// The revision that it leads to.
    #[must_use]
    pub fn to(&self) -> &str {
        label_of(self.release.revision())
    }

    /// Returns true if the revision stays the same.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.from == self.to()
    }

    /// Gives the definitions of kinds to the new release, so that it keeps them current. Call it before the objects are applied.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub fn take_definitions<'a>(
        &'a self,
        client: &'a Client,
    ) -> BoxFuture<'a, Result<(), InstallError>> {
        Box::pin(async move {
            let Some(kind) = kinds::find(DEFINITION).filter(|_| !self.is_in_place()) else {
                return Ok(());
            };
            let selector = release_selector(&release_name(&self.from));
            let selector = ListParams::default().labels(&selector);
            let api = objects(client, kind, "");
            let listed = api.list_metadata(&selector).await;
            let listed = listed.map_err(|error| ClusterError::api(kind.name(), &error))?;
            for object in listed {
                give(client, kind, &object.name_any(), self.release.name()).await?;
            }
            Ok(())
        })
    }

    /// Waits until the control plane has written its authority into its webhooks: pods can be created then.
    ///
    /// # Errors
    /// It has not within `limit`.
    pub fn until_serving<'a>(
        &'a self,
        client: &'a Client,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), InstallError>> {
        Box::pin(async move {
            let deadline = Instant::now() + limit;
            loop {
                match tags::bundle(client, self.change("", false)).await {
                    Ok(_) => return Ok(()),
                    Err(error @ InstallError::Unavailable(_)) if Instant::now() >= deadline => {
                        return Err(error);
                    }
                    Err(InstallError::Unavailable(_)) => tokio::time::sleep(INTERVAL).await,
                    Err(error) => return Err(error),
                }
            }
        })
    }

    fn change<'a>(&'a self, tag: &'a str, overwrite: bool) -> TagChange<'a> {
        TagChange {
            namespace: &self.release.namespace,
            revision: self.to(),
            tag,
            overwrite,
        }
    }

    /// Lets the tags of the old revision stand for the new one. New pods of their namespaces get its proxies.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub fn move_tags<'a>(
        &'a self,
        client: &'a Client,
        progress: Progress<'a>,
    ) -> LocalBoxFuture<'a, Result<(), InstallError>> {
        Box::pin(async move {
            for tag in self.tags(client).await? {
                if tag.release == release_name(&self.from) {
                    // A tag of the values stays when the release goes.
                    for kind in tags::WEBHOOKS {
                        if let Some(kind) = kinds::find(kind) {
                            let name = tags::webhooks_of(&self.release.namespace, &tag.name);
                            give(client, kind, &name, &tag_release(&tag.name)).await?;
                        }
                    }
                }
                set_tag(client, self.change(&tag.name, true), progress).await?;
            }
            Ok(())
        })
    }

    async fn tags(&self, client: &Client) -> Result<Vec<RevisionTag>, InstallError> {
        let mut found = tags::list_tags(client).await?;
        found
            .retain(|one| one.revision == self.from && one.control_plane == self.release.namespace);
        Ok(found)
    }

    /// What keeps the old revision.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub fn remaining<'a>(
        &'a self,
        client: &'a Client,
    ) -> BoxFuture<'a, Result<Remaining, InstallError>> {
        Box::pin(async move {
            if self.is_in_place() {
                return Ok(Remaining {
                    workloads: with_proxies_of(client, &self.from).await?,
                    ..Remaining::default()
                });
            }
            let tags = self.tags(client).await?;
            let all: Api<Namespace> = Api::all(client.clone());
            let all = all.list_metadata(&ListParams::default()).await;
            let all = all.map_err(|error| ClusterError::api("the list of namespaces", &error))?;
            let names_old = |labels: &BTreeMap<String, String>| match labels.get("istio-injection")
            {
                Some(word) => self.from == DEFAULT_REVISION && word == "enabled",
                None => labels.get(REVISION) == Some(&self.from),
            };
            let namespaces = all.iter().filter(|one| names_old(one.labels()));
            Ok(Remaining {
                tags: tags.into_iter().map(|one| one.name).collect(),
                namespaces: namespaces.map(ResourceExt::name_any).collect(),
                workloads: with_proxies_of(client, &self.from).await?,
            })
        })
    }

    /// The commands that are left, in their order.
    #[must_use]
    pub fn next_steps(&self, remaining: &Remaining) -> Vec<String> {
        let place = match &*self.release.namespace {
            "istio-system" => String::new(),
            other => format!(" --namespace {other}"),
        };
        let (from, to) = (&self.from, self.to());
        let mut steps = Vec::new();
        for tag in &remaining.tags {
            steps.push(format!(
                "voile tag set {tag} --revision {to} --overwrite{place}"
            ));
        }
        for namespace in &remaining.namespaces {
            let label = match &**from {
                DEFAULT_REVISION => format!("istio-injection- {REVISION}={to}"),
                _ => format!("{REVISION}={to}"),
            };
            steps.push(format!(
                "kubectl label namespace {namespace} {label} --overwrite"
            ));
        }
        for workload in remaining.workloads.keys() {
            let verb = if workload.is_restartable() {
                "rollout restart"
            } else {
                // It ends, or somebody creates it anew.
                "delete"
            };
            steps.push(format!("kubectl {verb} {workload}"));
        }
        if !self.is_in_place() {
            let old = match &**from {
                DEFAULT_REVISION => String::new(),
                other => format!(" --revision {other}"),
            };
            steps.push(format!("voile uninstall{old}{place}"));
        }
        steps
    }
}

/// Labels an object as one of this release.
async fn give(
    client: &Client,
    kind: &kinds::InstalledKind,
    name: &str,
    release: &str,
) -> Result<(), InstallError> {
    let parameters = PatchParams {
        field_manager: Some(WRITER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"metadata": {"labels": {INSTANCE: release}}}));
    let api = objects(client, kind, "");
    let patched = api.patch(name, &parameters, &patch).await;
    let what = format!("{}/{name}", kind.name());
    patched.map_err(|error| ClusterError::api(what, &error))?;
    Ok(())
}

/// The revision that an upgrade begins with: the one that is named, or the only one beside the new one.
async fn old_revision(
    client: &Client,
    namespace: &str,
    from: Option<&str>,
    to: Option<&str>,
) -> Result<String, InstallError> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels(&format!("app=istiod,{MANAGED_BY}={MANAGER}"));
    let listed = deployments.list_metadata(&ours).await;
    let listed = listed.map_err(|error| ClusterError::api("the list of deployments", &error))?;
    let revisions = listed.iter().filter_map(|one| one.labels().get(REVISION));
    let revisions: Vec<&String> = revisions.collect();
    if let Some(from) = from {
        if revisions.iter().any(|one| **one == from) {
            return Ok(from.to_owned());
        }
        return Err(missing(client, namespace, from).await?);
    }
    let old = revisions.iter().filter(|one| Some(one.as_str()) != to);
    match old.collect::<Vec<_>>()[..] {
        [one] => Ok((*one).clone()),
        [] => Err(missing(client, namespace, DEFAULT_REVISION).await?),
        ref several => {
            let names: Vec<&str> = several.iter().map(|one| one.as_str()).collect();
            Err(InstallError::Values(format!(
                "there are several revisions in the namespace {namespace}: {}\ncure: name the old one: --from NAME",
                names.join(", ")
            )))
        }
    }
}

/// Why a revision cannot be upgraded.
async fn missing(
    client: &Client,
    namespace: &str,
    revision: &str,
) -> Result<InstallError, InstallError> {
    let name = deployment_name(revision);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let there = deployments.get_metadata_opt(&name).await;
    let there = there.map_err(|error| ClusterError::api(&name, &error))?;
    Ok(InstallError::Foreign(match there {
        Some(object) => format!(
            "deployments.apps/{name} in the namespace {namespace} belongs to {}\ncure: upgrade it by that program; with Helm, install a second release with another `revision`",
            owner(&object)
        ),
        None => format!(
            "no revision {revision} is installed in the namespace {namespace}\ncure: voile install, or name another one by --namespace and --from"
        ),
    }))
}

/// The values that a revision was installed with, as a file. None if it is not installed, or without a record.
async fn recorded(
    client: &Client,
    namespace: &str,
    revision: &str,
) -> Result<Option<(String, String)>, InstallError> {
    let name = of_revision(RECORD, revision);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let what = format!("configmaps/{name}");
    let found = maps.get_opt(&name).await;
    let found = found.map_err(|error| ClusterError::api(&what, &error))?;
    let values = found.and_then(|one| one.data?.remove(VALUES));
    Ok(values.map(|values| (what, values)))
}

fn unknown_values(namespace: &str, revision: &str) -> InstallError {
    let name = of_revision(RECORD, revision);
    InstallError::Values(format!(
        "the values of the revision {revision} are not known: configmaps/{name} is missing in the namespace {namespace}\ncure: voile install with all of its values (--set, -f), which records them"
    ))
}
