//! The namespaces that belong to the mesh: `discoverySelectors` of MeshConfig. As in Istio no namespace is exempt, not even that
//! of the control plane, and a namespace that is left out is itself unknown to the mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde::Deserialize;
use voile_model::SourceFile;

/// First part of the names of the files of namespaces.
const NAMESPACES: &str = "namespaces";

#[derive(Deserialize)]
struct SettingsMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DiscoverySettings {
    discovery_selectors: Vec<LabelSelector>,
}

#[derive(Deserialize)]
struct Labelled {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Selectors of namespaces; none selects all.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DiscoverySelectors(Vec<Selector>);

impl DiscoverySelectors {
    /// Reads the ConfigMap with the mesh's settings.
    ///
    /// # Errors
    /// Says why the selectors cannot be used.
    pub(super) fn read(settings: &SourceFile) -> Result<Self, String> {
        let text = settings.text.as_ref().map_err(Clone::clone)?;
        let map: SettingsMap = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mesh = map.data.get("mesh").map_or("", String::as_str);
        if !mesh.contains("discoverySelectors") {
            return Ok(Self::default());
        }
        let settings: DiscoverySettings =
            serde_saphyr::from_str(mesh).map_err(|error| error.to_string())?;
        let selectors = settings.discovery_selectors.into_iter();
        let selectors =
            selectors.map(|one| Selector::try_from(one).map_err(|error| error.to_string()));
        selectors.collect::<Result<_, _>>().map(Self)
    }

    /// The files of the mesh among all files of a cluster. Its settings are always one of them.
    pub(super) fn select<'a>(
        &self,
        files: impl Iterator<Item = &'a Arc<SourceFile>> + Clone,
        settings: &str,
    ) -> Vec<Arc<SourceFile>> {
        if self.0.is_empty() {
            return files.cloned().collect();
        }
        let namespaces = files.clone().filter_map(|file| self.namespace(file));
        let selected: BTreeSet<&str> = namespaces.collect();
        let takes = |file: &str| {
            let namespace = namespace_of(file);
            file == settings || namespace.is_none_or(|one| selected.contains(one))
        };
        files.filter(|file| takes(&file.name)).cloned().collect()
    }

    /// The name of a namespace that is selected, by its file.
    fn namespace<'a>(&self, file: &'a SourceFile) -> Option<&'a str> {
        let name = file.name.strip_prefix(NAMESPACES)?.strip_prefix('/')?;
        let object: Labelled = serde_json::from_str(file.text.as_ref().ok()?).ok()?;
        let labels = &object.metadata.labels;
        let selects = self.0.iter().any(|selector| selector.matches(labels));
        selects.then_some(name)
    }
}

/// The namespace that an object is in, or that it is.
fn namespace_of(file: &str) -> Option<&str> {
    match file.split_once('/') {
        Some((NAMESPACES, name)) => Some(name),
        _ => super::namespace_of(file),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::store::ObjectStore;
    use super::*;

    const SETTINGS: &str = "configmaps/istio-system/istio";

    fn settings(mesh: &str) -> SourceFile {
        let map = json!({"data": {"mesh": mesh}});
        SourceFile::object(SETTINGS, map.to_string())
    }

    #[test]
    fn a_namespace_that_no_selector_selects_is_left_out_with_its_objects() {
        let file = |name: &str, labels: serde_json::Value| {
            let text = json!({"metadata": {"labels": labels}}).to_string();
            Arc::new(SourceFile::object(name, text))
        };
        let files = [
            file(SETTINGS, json!({})),
            file("configmaps/istio-system/ca", json!({})),
            file("gatewayclasses.gateway.networking.k8s.io/voile", json!({})),
            file("namespaces/a", json!({"mesh": "yes"})),
            file("namespaces/b", json!({"team": "b"})),
            file("namespaces/c", json!({})),
            file("services/a/web", json!({})),
            file("services/b/web", json!({"mesh": "yes"})),
            file("services/c/web", json!({"mesh": "yes"})),
        ];
        for (mesh, left_out) in [
            ("", ""),
            ("rootNamespace: x", ""),
            ("discoverySelectors: []", ""),
            (
                "discoverySelectors: [{matchLabels: {mesh: \"yes\"}}]",
                "configmaps/istio-system/ca namespaces/b namespaces/c services/b/web services/c/web",
            ),
            (
                "discoverySelectors: [{matchLabels: {mesh: \"yes\"}}, {matchExpressions: [{key: team, operator: Exists}]}]",
                "configmaps/istio-system/ca namespaces/c services/c/web",
            ),
        ] {
            let selectors = DiscoverySelectors::read(&settings(mesh)).expect("selectors");
            let kept = selectors.select(files.iter(), SETTINGS);
            let gone = files.iter().filter(|file| !kept.contains(file));
            let gone: Vec<&str> = gone.map(|file| &*file.name).collect();
            assert_eq!(gone.join(" "), left_out, "{mesh}");
        }
        for mesh in [
            "discoverySelectors: 1",
            "discoverySelectors: [{matchExpressions: [{key: team, operator: Is}]}]",
        ] {
            assert!(DiscoverySelectors::read(&settings(mesh)).is_err(), "{mesh}");
        }
    }

    #[test]
    fn selectors_that_cannot_be_used_leave_the_last_ones_in_force() {
        let store = ObjectStore::new(SETTINGS.to_owned());
        let put = |name: &str, text: String| store.put(&name.into(), text, BTreeSet::new(), None);
        let set = |mesh: &str| put(SETTINGS, json!({"data": {"mesh": mesh}}).to_string());
        for (name, mesh) in [("a", "yes"), ("b", "no")] {
            let namespace = json!({"metadata": {"labels": {"mesh": mesh}}});
            put(&format!("{NAMESPACES}/{name}"), namespace.to_string());
        }
        let known = || store.files().len();
        set("discoverySelectors: 1");
        assert_eq!(known(), 3, "there are none yet");
        set("discoverySelectors: [{matchLabels: {mesh: \"yes\"}}]");
        assert_eq!(known(), 2);
        set("discoverySelectors: 1");
        assert_eq!(known(), 2);
        set("");
        assert_eq!(known(), 3);
    }
}
