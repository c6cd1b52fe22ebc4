//! One reading of a cluster's objects, for commands that answer once. Reads what the control plane watches, by lists.

use futures_util::future::try_join_all;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;
use voile_model::SourceFile;

use super::store::ObjectStore;
use super::watches::{Selection, is_unsupported, served, take};
use crate::error::ClusterError;
use crate::revision::of_revision;

/// Objects of one answer of the API server.
const PAGE_SIZE: u32 = 500;

/// The objects of a cluster that configure the mesh, as source files with the names `PLURAL.GROUP/NAMESPACE/NAME`.
#[derive(Debug)]
pub struct ClusterObjects {
    store: ObjectStore,
    /// Group, kind, and first part of the names of files.
    kinds: Vec<(String, String, String)>,
    /// Why Secrets and ConfigMaps that objects name, and kinds that are not supported, could not be read.
    pub unread: Vec<String>,
}

impl ClusterObjects {
    /// Reads the objects, with the mesh's settings of a revision in the namespace of the control plane.
    ///
    /// # Errors
    /// The API server does not answer, or does not let this user list a kind. Secrets, ConfigMaps and kinds that
    /// are not supported are no error: they are in `unread`.
    pub async fn read(
        client: &Client,
        namespace: &str,
        revision: &str,
    ) -> Result<Self, ClusterError> {
        let settings = Selection::mesh_config(namespace, &of_revision("istio", revision));
        let store = ObjectStore::new(settings.scope.to_string());
        let served = served(client, true).await?.into_iter();
        let selections: Vec<_> = served.map(Selection::of_kind).collect();
        let (unsupported, read): (Vec<_>, Vec<_>) = selections
            .iter()
            .partition(|one| is_unsupported(&one.resource));
        let listed = read.into_iter().map(|one| list(client, one, &store));
        try_join_all(listed).await?;
        let mut unread = Vec::new();
        for kind in unsupported {
            if let Err(error) = list(client, kind, &store).await {
                unread.push(error.to_string());
            }
        }
        if let Err(error) = list(client, &settings, &store).await {
            unread.push(error.to_string());
        }
        for scope in store.named() {
            if let Err(error) = list(client, &Selection::named(scope), &store).await {
                unread.push(error.to_string());
            }
        }
        let kind = |one: &Selection| {
            let (group, kind) = (one.resource.group.clone(), one.resource.kind.clone());
            (group, kind, one.scope.kind.to_string())
        };
        let kinds = selections.iter().map(kind).collect();
        Ok(Self {
            store,
            kinds,
            unread,
        })
    }

    /// The files, in the order of their names.
    #[must_use]
    pub fn files(&self) -> Vec<SourceFile> {
        let files = self.store.files();
        files.iter().map(|file| (**file).clone()).collect()
    }

    /// Removes the objects that a manifest would replace. A text that is no YAML replaces none.
    pub fn replace_by(&self, manifest: &str) {
        let documents = crate::inject::read_manifest(manifest).unwrap_or_default();
        for document in &documents {
            match document["items"].as_array() {
                Some(items) => items.iter().for_each(|item| self.replace(item)),
                None => self.replace(document),
            }
        }
    }

    fn replace(&self, object: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let api_version = text(&object["apiVersion"]);
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kind = text(&object["kind"]);
        let mut kinds = self.kinds.iter();
        let Some((_, _, folder)) = kinds.find(|one| one.0 == group && one.1 == kind) else {
            return;
        };
        let name = text(&object["metadata"]["name"]);
        let namespace = object["metadata"]["namespace"].as_str();
        let namespace = namespace.unwrap_or("default");
        // An object of the whole cluster has no namespace, whatever its manifest says.
        self.store.remove(&format!("{folder}/{namespace}/{name}"));
        self.store.remove(&format!("{folder}/{name}"));
    }
}

/// Namespace of an object's file; none of one that belongs to the whole cluster.
#[must_use]
pub fn namespace_of(file: &str) -> Option<&str> {
    let mut parts = file.splitn(3, '/').skip(1);
    let (namespace, name) = (parts.next(), parts.next());
    namespace.filter(|_| name.is_some())
}

async fn list(
    client: &Client,
    selection: &Selection,
    store: &ObjectStore,
) -> Result<(), ClusterError> {
    let api: Api<DynamicObject> = selection.api(client.clone());
    let mut parameters = ListParams {
        field_selector: selection.fields.clone(),
        label_selector: selection.labels.map(str::to_owned),
        ..ListParams::default().limit(PAGE_SIZE)
    };
    loop {
        let page = api.list(&parameters).await;
        let page =
            page.map_err(|error| ClusterError::api(format!("list {}", selection.scope), &error))?;
        for object in page.items {
            take(selection, object, store);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_manifest_replaces_the_objects_of_its_names() {
        let store = ObjectStore::default();
        let names = [
            "services/shop/web",
            "services/default/web",
            "namespaces/shop",
        ];
        for name in names {
            store.put(&name.into(), "{}".to_owned(), BTreeSet::new(), None);
        }
        let kind = |kind: &str, folder: &str| (String::new(), kind.to_owned(), folder.to_owned());
        let objects = ClusterObjects {
            store,
            kinds: vec![kind("Service", "services"), kind("Namespace", "namespaces")],
            unread: Vec::new(),
        };
        objects.replace_by("{");
        assert_eq!(objects.files().len(), 3);
        objects.replace_by(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n---\n\
             apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n\
             - {apiVersion: v1, kind: Pod, metadata: {name: web}}\n",
        );
        let left: Vec<_> = objects.files().into_iter().map(|file| file.name).collect();
        assert_eq!(left, ["services/shop/web".into()]);
        let namespaces = names.map(namespace_of);
        assert_eq!(namespaces, [Some("shop"), Some("default"), None]);
    }
}
