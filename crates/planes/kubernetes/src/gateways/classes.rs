//! The GatewayClasses `voile` and `voile-waypoint`, and the status of every GatewayClass of our controllers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use voile_model::mesh::gateway_api::{CONTROLLERS, GROUP};
use voile_model::mesh::waypoint::WAYPOINT_CONTROLLER;

use super::CLASSES;
use super::features::{GATEWAY_FEATURES, MESH_FEATURES};
use crate::error::{ClusterError, explain};
use crate::install::{CLASS_LABEL, MANAGER};
use crate::source::{ObjectStore, Scope};
use crate::status::{Observed, changes, now};

/// Time after which a refused write is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Annotation of Gateway API's definitions with their version.
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// Our classes: name, controller and description.
const OURS: [(&str, &str, &str); 2] = [
    ("voile", CONTROLLERS[0], "Gateways of Voile"),
    ("voile-waypoint", WAYPOINT_CONTROLLER, "Waypoints of Voile"),
];

/// Keeps the classes and their status, for ever.
pub(crate) async fn keep_classes(client: Client, store: Arc<ObjectStore>) {
    let mut changes = store.changes();
    let mut classes = Classes {
        client,
        store,
        written: BTreeMap::new(),
        problem: None,
    };
    loop {
        changes.mark_unchanged();
        let wrote = classes.write().await;
        let failed = wrote.is_err();
        let problem = wrote.err().map(|error| error.to_string());
        if problem != classes.problem
            && let Some(problem) = &problem
        {
            tracing::warn!("{problem}; it is tried again");
        }
        classes.problem = problem;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if failed => {}
        }
    }
}

struct Classes {
    client: Client,
    store: Arc<ObjectStore>,
    /// UID and generation of each class whose status is written.
    written: BTreeMap<String, (String, i64)>,
    /// The last error.
    problem: Option<String>,
}

impl Classes {
    async fn write(&mut self) -> Result<(), ClusterError> {
        if !self.store.is_complete(&Scope::kind(CLASSES)) {
            // Gateway API is not installed, or not all is known.
            return Ok(());
        }
        for (name, controller, description) in OURS {
            if self.store.text(&format!("{CLASSES}/{name}")).is_none() {
                let class = json!({
                    "apiVersion": format!("{GROUP}/v1"),
                    "kind": "GatewayClass",
                    "metadata": {"name": name, "labels": {CLASS_LABEL.0: CLASS_LABEL.1}},
                    "spec": {"controllerName": controller, "description": description},
                });
                self.create(name, &class).await?;
            }
        }
        let files = self.store.of_kinds(&[CLASSES]);
        for file in files {
            let text = file.text.as_deref().unwrap_or_default();
            // The text is our own: an object of the API server.
            let class: Value = serde_json::from_str(text).unwrap_or_default();
            let Some(features) = features(&class) else {
                continue;
            };
            let metadata = &class["metadata"];
            let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
            let (name, uid) = (text("name"), text("uid"));
            let state = (uid, metadata["generation"].as_i64().unwrap_or_default());
            if self.written.get(&name) != Some(&state) {
                self.write_status(&name, state.1, features).await?;
                self.written.insert(name, state);
            }
        }
        Ok(())
    }

    fn api(&self) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{GROUP}/v1"),
            kind: "GatewayClass".to_owned(),
            plural: "gatewayclasses".to_owned(),
        };
        Api::all_with(self.client.clone(), &resource)
    }

    async fn create(&self, name: &str, class: &Value) -> Result<(), ClusterError> {
        let parameters = PatchParams::apply(MANAGER).force();
        let api = self.api();
        let applied = api.patch(name, &parameters, &Patch::Apply(class)).await;
        written(name, applied)
    }

    async fn write_status(
        &self,
        name: &str,
        generation: i64,
        features: &[&str],
    ) -> Result<(), ClusterError> {
        let what = format!("{CLASSES}/{name}");
        let found = self.api().get_opt(name).await;
        let found = found.map_err(|error| ClusterError::api(&what, &error))?;
        let Some(found) = found else {
            return Ok(());
        };
        let version = self.bundle_version().await;
        let is_supported = version
            .as_deref()
            .is_some_and(|text| text.starts_with("v1."));
        let version = version.as_deref().unwrap_or("unknown");
        let supported = match is_supported {
            true => json!({
                "type": "SupportedVersion", "status": "True", "reason": "SupportedVersion",
                "message": format!("Gateway API {version}"),
            }),
            false => json!({
                "type": "SupportedVersion", "status": "False", "reason": "UnsupportedVersion",
                "message": format!("the version of Gateway API's definitions is {version}; install v1"),
            }),
        };
        let accepted = json!({
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": "the class is served",
        });
        let features: Vec<Value> = features.iter().map(|name| json!({"name": name})).collect();
        let desired = [
            ("conditions", json!([accepted, supported])),
            ("supportedFeatures", features.into()),
        ];
        let desired = desired.map(|(field, value)| (field.to_owned(), value));
        let observed = Observed {
            status: &found.data["status"],
            generation: Some(generation),
            now: &now(),
        };
        let changed = changes(&desired.into_iter().collect(), observed);
        if changed.is_empty() {
            return Ok(());
        }
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"status": changed}));
        let api = self.api();
        let patched = api.patch_status(name, &parameters, &patch).await;
        written(name, patched)
    }

    /// The version of Gateway API's definitions.
    async fn bundle_version(&self) -> Option<String> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        match definitions.get_metadata_opt(CLASSES).await {
            Ok(found) => found?.metadata.annotations?.remove(BUNDLE_VERSION),
            Err(error) => {
                tracing::debug!("customresourcedefinitions/{CLASSES}: {}", explain(&error));
                None
            }
        }
    }
}

fn written(name: &str, answer: kube::Result<DynamicObject>) -> Result<(), ClusterError> {
    let what = format!("{CLASSES}/{name} cannot be written");
    answer
        .map(drop)
        .map_err(|error| ClusterError::api(what, &error))
}

/// The features of a class, if its controller is ours.
fn features(class: &Value) -> Option<&'static [&'static str]> {
    match class["spec"]["controllerName"].as_str()? {
        controller if controller == CONTROLLERS[0] => Some(GATEWAY_FEATURES),
        WAYPOINT_CONTROLLER => Some(MESH_FEATURES),
        _ => None,
    }
}
