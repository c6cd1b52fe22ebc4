//! The chart, which is part of this program, and its rendering. `voile install` and `helm install` get the same manifests
//! because both read the same files.

use serde_json::{Value, json};

use super::InstallError;
use super::template::{Surroundings, TemplateSet};
use super::{Assignments, schema, values, yaml};
use crate::revision::{REVISION, label_of, of_revision};

macro_rules! chart_files {
    ($($path:literal),* $(,)?) => {
        /// Files of the chart by their path in it.
        pub(super) const FILES: &[(&str, &str)] =
            &[$(($path, include_str!(concat!("../../../../../deploy/helm/voile/", $path)))),*];
    };
}

chart_files![
    "Chart.yaml",
    "files/healthchecks.voile.dev.yaml",
    "files/istio-kinds.yaml",
    "files/ratelimits.voile.dev.yaml",
    "templates/NOTES.txt",
    "templates/_helpers.tpl",
    "templates/clusterrole.yaml",
    "templates/configmap.yaml",
    "templates/crds.yaml",
    "templates/daemonset.yaml",
    "templates/deployment.yaml",
    "templates/horizontalpodautoscaler.yaml",
    "templates/mutatingwebhookconfiguration.yaml",
    "templates/validatingwebhookconfiguration.yaml",
    "templates/poddisruptionbudget.yaml",
    "templates/podmonitors.yaml",
    "templates/role.yaml",
    "templates/service.yaml",
    "templates/serviceaccount.yaml",
    "values.schema.json",
    "values.yaml",
];

/// The notes for people, which are no manifest.
const NOTES: &str = "templates/NOTES.txt";

/// The template whose text names values that contradict each other. Helm fails with it, too.
const CONTRADICTIONS: &str = "voile.contradictions";

/// ConfigMap with the values that a person gave, and its key.
pub(super) const RECORD: &str = "voile-values";
pub(super) const VALUES: &str = "values.yaml";

/// `managed-by` of the objects that this program installs.
pub const MANAGER: &str = "voile";

/// A release of the chart: an installation with its values.
#[derive(Debug, Clone)]
pub struct Release {
    /// Namespace of the control plane.
    pub namespace: String,
    /// Its name: the value of `app.kubernetes.io/instance`.
    name: String,
    /// Its values, checked.
    values: Value,
    /// Those that a person gave.
    given: Value,
}

/// One object to install.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// File of the chart.
    pub source: String,
    /// Its YAML, with the chart's comments.
    pub text: String,
    /// The object.
    pub object: Value,
}

impl Manifest {
    /// A text field of the object, by JSON pointer.
    pub(super) fn field(&self, pointer: &str) -> &str {
        let value = self.object.pointer(pointer);
        value.and_then(Value::as_str).unwrap_or_default()
    }
}

/// Facts about a cluster that the chart depends on.
#[derive(Debug, Default)]
pub struct ClusterFacts {
    /// Objects that the chart looks up: definitions.
    pub objects: Vec<Value>,
}

impl Surroundings for ClusterFacts {
    fn file(&self, path: &str) -> String {
        file(path).to_owned()
    }

    fn object(&self, version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let is = |object: &&Value, pointer: &str, value: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                == value
        };
        let mut objects = self.objects.iter();
        let found = objects.find(|object| {
            is(object, "/apiVersion", version)
                && is(object, "/kind", kind)
                && is(object, "/metadata/namespace", namespace)
                && is(object, "/metadata/name", name)
        });
        found.cloned()
    }
}

fn file(path: &str) -> &'static str {
    let found = FILES.iter().find(|(name, _)| *name == path);
    found.map_or("", |(_, text)| text)
}

impl Release {
    /// Lays files and assignments over the chart's values, in this order, and checks them by its schema and against each other.
    ///
    /// # Errors
    /// A value cannot be read, the schema refuses it, or two contradict each other.
    pub fn new(
        namespace: &str,
        files: &[(String, String)],
        assignments: &Assignments,
    ) -> Result<Self, InstallError> {
        let failed =
            |place: &str, reason: String| InstallError::Values(format!("{place}: {reason}"));
        let own = |path: &str| yaml::read(file(path)).map_err(|reason| failed(path, reason));
        let mut given = json!({});
        for (name, text) in files {
            match yaml::read(text).map_err(|reason| failed(name, reason))? {
                Value::Null => {}
                map @ Value::Object(_) => values::merge(&mut given, map),
                _ => return Err(failed(name, "a map of values is wanted".to_owned())),
            }
        }
        let merged = assignments.merge_into(&mut given);
        merged.map_err(InstallError::Values)?;
        let mut values = own("values.yaml")?;
        values::overlay(&mut values, given.clone());
        let schema = own("values.schema.json")?;
        let violations = schema::violations(&schema, &values);
        let violations = violations.map_err(|reason| failed("values.schema.json", reason))?;
        if !violations.is_empty() {
            return Err(InstallError::Values(violations.join("\n")));
        }
        let release = Self {
            namespace: namespace.to_owned(),
            name: release_name(values["revision"].as_str().unwrap_or_default()),
            values,
            given,
        };
        let (templates, data) = release.templates()?;
        let contradictions = templates.render(CONTRADICTIONS, &data, &ClusterFacts::default())?;
        match contradictions.is_empty() {
            true => Ok(release),
            false => Err(InstallError::Values(contradictions)),
        }
    }

    /// The value at a path of keys, such as `revision`.
    pub(super) fn value(&self, pointer: &str) -> &str {
        self.values
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The values that a person gave.
    #[must_use]
    pub fn given(&self) -> &Value {
        &self.given
    }

    /// The image of the control plane and of its proxies.
    ///
    /// # Errors
    /// The chart has an error.
    pub(super) fn image(&self) -> Result<String, InstallError> {
        let manifests = self.render(&ClusterFacts::default())?;
        let mut all = manifests.iter();
        let deployment = all.find(|one| one.field("/kind") == "Deployment");
        let image = deployment.map(|one| one.field("/spec/template/spec/containers/0/image"));
        Ok(image.unwrap_or_default().to_owned())
    }

    /// The revision, or nothing.
    pub fn revision(&self) -> &str {
        self.value("/revision")
    }

    /// Returns true if the release has a node agent.
    pub(super) fn has_node_agent(&self) -> bool {
        self.values["ambient"]["enabled"] == true
            || (self.has_cni_sidecars() && self.values["cni"]["enabled"] == true)
    }

    /// Returns true if a CNI plugin redirects the connections of sidecars.
    pub(super) fn has_cni_sidecars(&self) -> bool {
        self.values["pilot"]["cni"]["enabled"] == true
    }

    /// Its name: the value of `app.kubernetes.io/instance`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same under another name, for objects beside those of the chart.
    pub(super) fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Renders the chart, in the order in which its objects are installed.
    ///
    /// # Errors
    /// The chart has an error.
    pub fn render(&self, facts: &ClusterFacts) -> Result<Vec<Manifest>, InstallError> {
        let (templates, data) = self.templates()?;
        let mut manifests = Vec::new();
        let sources = FILES.iter().map(|(path, _)| *path);
        for source in sources.filter(|path| is_template(path) && path.ends_with(".yaml")) {
            let text = templates.render(source, &data, facts)?;
            for text in documents(&text) {
                let object = yaml::read(&text);
                let object =
                    object.map_err(|reason| InstallError::Values(format!("{source}: {reason}")))?;
                if !object.is_null() {
                    let source = source.to_owned();
                    manifests.push(Manifest {
                        source,
                        text,
                        object,
                    });
                }
            }
        }
        manifests.sort_by_key(|manifest| super::kinds::rank(manifest.field("/kind")));
        Ok(manifests)
    }

    /// The objects of `render`, and the ConfigMap with the values that a person gave: an upgrade begins with them.
    ///
    /// # Errors
    /// The chart has an error.
    pub fn manifests(&self, facts: &ClusterFacts) -> Result<Vec<Manifest>, InstallError> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": of_revision(RECORD, self.revision()),
                "namespace": self.namespace,
                "labels": {
                    super::INSTANCE: self.name,
                    super::MANAGED_BY: MANAGER,
                    REVISION: label_of(self.revision()),
                },
            },
            "data": {VALUES: yaml::write(&self.given)},
        });
        let mut manifests = self.render(facts)?;
        manifests.push(Manifest {
            source: "values".to_owned(),
            text: yaml::write(&object),
            object,
        });
        manifests.sort_by_key(|manifest| super::kinds::rank(manifest.field("/kind")));
        Ok(manifests)
    }

    /// The next steps of a person.
    ///
    /// # Errors
    /// The chart has an error.
    pub fn notes(&self, facts: &ClusterFacts) -> Result<String, InstallError> {
        let (templates, data) = self.templates()?;
        Ok(templates.render(NOTES, &data, facts)?)
    }

    /// The templates and their dot.
    fn templates(&self) -> Result<(TemplateSet, Value), InstallError> {
        let mut templates = TemplateSet::default();
        for (path, source) in FILES.iter().filter(|(path, _)| is_template(path)) {
            templates.add(path, source)?;
        }
        let chart = yaml::read(file("Chart.yaml")).map_err(InstallError::Values)?;
        let data = json!({
            "Values": self.values,
            "Release": {"Name": self.name(), "Namespace": self.namespace, "Service": MANAGER},
            "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
        });
        Ok((templates, data))
    }
}

/// Name of a revision's release.
pub(super) fn release_name(revision: &str) -> String {
    of_revision("voile", revision)
}

fn is_template(path: &str) -> bool {
    path.starts_with("templates/")
}

/// Splits a rendered file at the lines `---`.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        match documents.last_mut() {
            Some(last) if line.trim_end() != "---" => {
                last.push_str(line);
                last.push('\n');
            }
            _ => documents.push(String::new()),
        }
    }
    let trimmed = documents
        .iter()
        .map(|text| format!("{}\n", text.trim_matches('\n')));
    trimmed.collect()
}
