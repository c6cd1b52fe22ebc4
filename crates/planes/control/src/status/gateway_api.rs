//! Status of the Gateway API's resources: for the status page, and as documents with `status` in a file of the state
//! directory, since there is no cluster to write it back to.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};
use voile_model::mesh::Mesh;
use voile_model::mesh::gateway_api::{
    CONTROLLERS, GROUP, PartConditions, ResourceConditions, StatusCondition,
};

use crate::state_file::StateFile;

/// The file in the state directory.
const FILE: &str = "gateway-api-status.yaml";

/// Keeps the file as the mesh is.
#[derive(Debug)]
pub(crate) struct Written {
    file: StateFile,
    /// Content of the file.
    text: String,
}

impl Written {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            file: StateFile::new(state, FILE),
            text: String::new(),
        }
    }

    /// Writes what is said of a mesh, where that is not what was said before.
    pub(crate) fn keep(&mut self, mesh: &Mesh) {
        let text = text(&documents(mesh));
        if text == self.text {
            return;
        }
        if let Err(error) = self.file.update(|_| text.clone().into_bytes()) {
            let path = self.file.path().display();
            tracing::warn!(%path, %error, "cannot write the status of Gateway API resources");
            return;
        }
        self.text = text;
    }
}

/// One resource, as the page shows it.
#[derive(Debug, Serialize)]
pub(super) struct ResourceStatus {
    kind: &'static str,
    name: String,
    conditions: Vec<Value>,
    parts: Vec<ShownPart>,
}

/// A listener, or what a route attaches to.
#[derive(Debug, Serialize)]
struct ShownPart {
    name: String,
    attached_routes: usize,
    conditions: Vec<Value>,
}

/// All of them.
pub(super) fn shown(mesh: &Mesh) -> Vec<ResourceStatus> {
    let part = |part: &PartConditions| ShownPart {
        name: part.name.to_string(),
        attached_routes: part.attached,
        conditions: conditions(&part.conditions),
    };
    let one = |said: &ResourceConditions| ResourceStatus {
        kind: said.kind,
        name: name(said),
        conditions: conditions(&said.conditions),
        parts: said.parts.iter().map(part).collect(),
    };
    mesh.gateway_api.said.iter().map(one).collect()
}

fn name(said: &ResourceConditions) -> String {
    match said.kind {
        "GatewayClass" => said.name.name.to_string(),
        _ => said.name.to_string(),
    }
}

fn conditions(all: &[StatusCondition]) -> Vec<Value> {
    let one = |one: &StatusCondition| {
        json!({
            "type": one.kind,
            "status": if one.holds { "True" } else { "False" },
            "reason": one.reason,
            "message": one.message,
        })
    };
    all.iter().map(one).collect()
}

/// The documents, each on a line of its own; empty where nothing of Gateway API is written.
fn text(documents: &[Value]) -> String {
    let lines = documents.iter().map(|one| format!("---\n{one}\n"));
    lines.collect()
}

/// Each resource of Gateway API as a document with `status`. A Gateway whose class nobody declares has no conditions and is
/// left out.
pub fn documents(mesh: &Mesh) -> Vec<Value> {
    let said = mesh.gateway_api.said.iter();
    let told = said.filter(|said| !(said.conditions.is_empty() && said.parts.is_empty()));
    told.map(document).collect()
}

fn document(said: &ResourceConditions) -> Value {
    let mut metadata = json!({ "name": &*said.name.name });
    if said.kind != "GatewayClass" {
        metadata["namespace"] = json!(said.name.namespace.as_str());
    }
    let is_route = said.kind.ends_with("Route");
    let mut status = Map::new();
    if is_route {
        let parents = said.parts.iter();
        let parents = parents.map(|part| pointed("parentRef", part));
        status.insert("parents".to_owned(), parents.collect());
    } else if said.kind == "BackendTLSPolicy" {
        let ancestors = said.parts.iter();
        let ancestors = ancestors.map(|part| pointed("ancestorRef", part));
        status.insert("ancestors".to_owned(), ancestors.collect());
    } else {
        let all = conditions(&said.conditions);
        status.insert("conditions".to_owned(), json!(all));
        if let Some(address) = &said.address {
            let address = json!([{ "type": "Hostname", "value": &**address }]);
            status.insert("addresses".to_owned(), address);
        }
        if said.kind == "Gateway" {
            let sets = json!(said.listener_sets);
            status.insert("attachedListenerSets".to_owned(), sets);
        }
        if said.kind != "GatewayClass" {
            let listeners = said.parts.iter().map(listener);
            status.insert("listeners".to_owned(), listeners.collect());
        }
    }
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": said.kind,
        "metadata": metadata,
        "status": status,
    })
}

/// Status entry for one object that a resource points at.
fn pointed(reference: &str, part: &PartConditions) -> Value {
    let mut fields = Map::new();
    for (name, value) in &part.written {
        let number = value.parse::<u16>().ok().filter(|_| *name == "port");
        let value = number.map_or_else(|| json!(&**value), |number| json!(number));
        fields.insert((*name).to_owned(), value);
    }
    json!({
        reference: fields,
        "controllerName": CONTROLLERS[0],
        "conditions": conditions(&part.conditions),
    })
}

fn listener(part: &PartConditions) -> Value {
    let name = part.written.first().map(|(_, name)| &**name);
    let kinds = part.kinds.iter();
    let kinds = kinds.map(|kind| json!({ "group": GROUP, "kind": kind }));
    json!({
        "name": name,
        "supportedKinds": kinds.collect::<Vec<_>>(),
        "attachedRoutes": part.attached,
        "conditions": conditions(&part.conditions),
    })
}
