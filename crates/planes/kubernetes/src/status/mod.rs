//! The status of objects, written by the elected replica.
//!
//! ```text
//! configuration at rest ─desired─▶ fields ─merge with what the watches saw─▶ changes ─▶ API server
//! ```
//! An object is written if its status differs from what it should be, and if the configuration has seen its newest version. Entries
//! of other controllers stay. Writes are paced, and a status that somebody else changes back is written ever more rarely.

mod addresses;
mod desired;
mod merge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersion;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use voile_control::RestedConfiguration;
use voile_model::SourceFile;
use voile_model::mesh::gateway_api::CONTROLLERS;

use crate::error::explain;
use crate::install::MANAGER;
use crate::revision::{CurrentNames, REVISION};
use crate::source::{ObjectStore, ReportedObject};
use merge::failures;
pub(crate) use merge::{Observed, changes};

/// Changes within this time are answered together.
const BATCH: Duration = Duration::from_millis(200);
/// Pause after a write: 40 a second at most.
const PACE: Duration = Duration::from_millis(25);
/// Pause before the same status of an object is written again. It doubles with each write.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause, as a number of doublings: 64 s.
const MAX_DOUBLINGS: u32 = 6;
/// Longest text of an event.
const MAX_NOTE_BYTES: usize = 1000;

/// Writes statuses.
#[derive(Clone)]
pub(crate) struct StatusWriter {
    pub(crate) client: Client,
    pub(crate) store: Arc<ObjectStore>,
    /// The configuration whenever it rests.
    pub(crate) configurations: watch::Receiver<Arc<RestedConfiguration>>,
    /// Objects of other revisions are not ours.
    pub(crate) names: CurrentNames,
    /// Name of this replica, in events.
    pub(crate) replica: String,
}

/// The last write of an object's status.
#[derive(Debug)]
struct LastWrite {
    fields: Map<String, Value>,
    at: Instant,
    /// Writes of the same fields before this one.
    again: u32,
    /// Fields that the API server did not keep: its definition of the kind lacks them.
    dropped: BTreeSet<String>,
}

/// An object and the status that it should have.
struct Work {
    file: Arc<SourceFile>,
    fields: Map<String, Value>,
    /// The label `istio.io/rev` of its namespace.
    namespace_revision: Option<Arc<str>>,
}

impl StatusWriter {
    /// Keeps the statuses, for ever.
    pub(crate) async fn keep(mut self) {
        let recorder = Recorder::new(
            self.client.clone(),
            Reporter {
                controller: CONTROLLERS[0].to_owned(),
                instance: Some(self.replica.clone()),
            },
        );
        let mut reported = self.store.reports();
        let mut written = BTreeMap::new();
        let mut works: Vec<Work> = Vec::new();
        self.configurations.mark_changed();
        loop {
            reported.mark_unchanged();
            if self.configurations.has_changed().unwrap_or_default() {
                let configuration = self.configurations.borrow_and_update().clone();
                works = work_of(&configuration);
                written.retain(|file: &Arc<str>, _| self.store.text(file).is_some());
            }
            let due = self.round(&works, &mut written, &recorder).await;
            tokio::select! {
                changed = self.configurations.changed() => match changed {
                    Ok(()) => self.configurations.mark_changed(),
                    Err(_) => return,
                },
                _ = reported.changed() => {}
                changed = self.names.changed() => if changed.is_err() {
                    return;
                },
                () = tokio::time::sleep_until(due.into()) => {}
            }
            tokio::time::sleep(BATCH).await;
        }
    }

    /// Writes what differs. Returns when to look again at the latest.
    async fn round(
        &self,
        works: &[Work],
        written: &mut BTreeMap<Arc<str>, LastWrite>,
        recorder: &Recorder,
    ) -> Instant {
        let mut due = Instant::now() + FIRST_PAUSE * 2_u32.pow(MAX_DOUBLINGS);
        let names = self.names.borrow().clone();
        let Some(names) = names else {
            return due;
        };
        for work in works {
            let Work { file, fields, .. } = work;
            // What was decided meanwhile goes first.
            if self.configurations.has_changed().unwrap_or_default() {
                break;
            }
            let Some(object) = self.store.reported(file) else {
                continue;
            };
            if !names.own(
                object.revision.as_deref(),
                work.namespace_revision.as_deref(),
            ) {
                continue;
            }
            let fields = self.completed(file, fields);
            let now = now();
            let observed = Observed {
                status: &object.status,
                generation: object.generation,
                now: &now,
            };
            let mut changed = changes(&fields, observed);
            let last = written.get(&file.name).filter(|last| last.fields == fields);
            if let Some(last) = last {
                changed.retain(|field, _| !last.dropped.contains(field));
                let pause = FIRST_PAUSE * 2_u32.pow(last.again.min(MAX_DOUBLINGS));
                if !changed.is_empty() && last.at.elapsed() < pause {
                    due = due.min(last.at + pause);
                    continue;
                }
            }
            if changed.is_empty() {
                continue;
            }
            let again = last.map_or(0, |last| last.again + 1);
            let dropped = self.write(file, &object, &fields, changed, recorder).await;
            let last = LastWrite {
                fields,
                at: Instant::now(),
                again,
                dropped,
            };
            written.insert(file.name.clone(), last);
            tokio::time::sleep(PACE).await;
        }
        due
    }

    /// The fields with what follows from other objects' statuses.
    fn completed(&self, file: &SourceFile, fields: &Map<String, Value>) -> Map<String, Value> {
        match place(&file.name) {
            Some(("gateways.gateway.networking.k8s.io", namespace, name)) => {
                let text = file.text.as_deref().unwrap_or_default();
                // The text is our own: an object of the API server.
                let gateway = serde_json::from_str(text).unwrap_or_default();
                addresses::with_addresses(fields, &self.store, (namespace, name), &gateway)
            }
            _ => fields.clone(),
        }
    }

    /// Writes the changed fields of one object. Returns the fields that the API server did not keep.
    async fn write(
        &self,
        file: &SourceFile,
        object: &ReportedObject,
        fields: &Map<String, Value>,
        changed: Map<String, Value>,
        recorder: &Recorder,
    ) -> BTreeSet<String> {
        let none = BTreeSet::new();
        let (Some((_, namespace, name)), Some((resource, uid))) =
            (place(&file.name), resource_of(file))
        else {
            return none;
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        // The version makes a write fail that others have overtaken.
        let patch = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"resourceVersion": object.resource_version},
            "status": changed,
        });
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let answer = match api
            .patch_status(name, &parameters, &Patch::Merge(patch))
            .await
        {
            Ok(answer) => answer,
            // It changed, or it is gone: the watch tells.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return none,
            Err(error) => {
                let error = explain(&error);
                tracing::warn!("the status of {} cannot be written: {error}", file.name);
                return none;
            }
        };
        tracing::debug!(object = %file.name, "status written");
        let reference = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        for (kind, reason, message) in failures(&changed, &object.status) {
            tell(recorder, &reference, &kind, reason, &message).await;
        }
        let kept = Observed {
            status: &answer.data["status"],
            generation: object.generation,
            now: "",
        };
        changes(fields, kept)
            .into_iter()
            .map(|(field, _)| field)
            .collect()
    }
}

/// Records an event at an object. The recorder counts an event that comes again.
async fn tell(
    recorder: &Recorder,
    reference: &ObjectReference,
    condition: &str,
    reason: String,
    message: &str,
) {
    let end = message.floor_char_boundary(MAX_NOTE_BYTES);
    let event = Event {
        type_: EventType::Warning,
        reason,
        note: Some(message[..end].to_owned()),
        action: condition.to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, reference).await {
        tracing::debug!("an event cannot be written: {}", explain(&error));
    }
}

/// The statuses that the objects of a configuration should have.
fn work_of(configuration: &RestedConfiguration) -> Vec<Work> {
    let mut desired = desired::desired(configuration);
    let files = configuration.files.iter().flat_map(|files| files.iter());
    let namespaces = &configuration.mesh.namespaces;
    let works = files.filter_map(|file| {
        let fields = desired.remove(&file.name)?;
        let (_, namespace, _) = place(&file.name)?;
        let namespace = namespaces.get(namespace);
        Some(Work {
            file: file.clone(),
            fields,
            namespace_revision: namespace
                .and_then(|one| one.labels.get(REVISION))
                .map(Into::into),
        })
    });
    works.collect()
}

/// The time, as conditions have it.
pub(crate) fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

/// Kind, namespace and name of a file.
fn place(file: &str) -> Option<(&str, &str, &str)> {
    let (kind, rest) = file.split_once('/')?;
    let (namespace, name) = rest.split_once('/')?;
    Some((kind, namespace, name))
}

/// The resource of an object's API, and its UID.
fn resource_of(file: &SourceFile) -> Option<(ApiResource, String)> {
    let object: Value = serde_json::from_str(file.text.as_ref().ok()?).ok()?;
    let version: GroupVersion = object["apiVersion"].as_str()?.parse().ok()?;
    let kind = version.with_kind(object["kind"].as_str()?);
    let plural = file.name.split(['.', '/']).next()?;
    let uid = object["metadata"]["uid"].as_str()?.to_owned();
    Some((ApiResource::from_gvk_with_plural(&kind, plural), uid))
}
