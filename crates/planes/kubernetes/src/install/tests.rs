//! The chart as this program renders it.

use std::collections::BTreeSet;
use std::path::Path;

use super::chart::FILES;
use super::{ClusterFacts, Release};

fn chart() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/helm/voile")
}

fn files_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_in(&path, found);
        } else {
            found.insert(
                path.strip_prefix(chart())
                    .unwrap()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }
}

#[test]
fn every_file_of_the_chart_is_part_of_the_program() {
    let mut there = BTreeSet::new();
    files_in(&chart(), &mut there);
    there.remove(".helmignore");
    let known: BTreeSet<String> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(known, there);
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let text = FILES
        .iter()
        .find(|(path, _)| *path == "Chart.yaml")
        .unwrap()
        .1;
    for key in ["version", "appVersion"] {
        let line = format!("{key}: {}", env!("CARGO_PKG_VERSION"));
        assert!(text.lines().any(|one| one == line), "{line}");
    }
}

#[test]
fn values_that_the_schema_refuses_are_named() {
    for (assignment, reason) in [
        ("replicas=2", "replicas: the key is unknown"),
        (
            "image.tga=x",
            "image.tga: the key is unknown: did you mean `tag`?",
        ),
        ("replicaCount=0", "replicaCount: 0 is less than 1"),
        (
            "replicaCount=many",
            "replicaCount: expected \"integer\", not \"many\"",
        ),
        ("revision=default", "revision: \"default\" is not allowed"),
        ("revision=A_b", "revision: \"A_b\" does not match"),
        ("crds.istio=yes", "crds.istio: \"yes\" is none of"),
        (
            "image.digest=sha256:1",
            "image.digest: \"sha256:1\" does not match",
        ),
        (
            "pilot.env.ENABLE_CA_SERVER=false",
            "pilot.env.ENABLE_CA_SERVER: nobody would sign the certificates of workloads; set global.caAddress",
        ),
        (
            "pilot.env.ENABLE_CA_SERVER=false,global.caAddress=ca:443,pilot.env.EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API,pilot.env.K8S_SIGNER=a/b",
            "pilot.env.ENABLE_CA_SERVER: a control plane that signs nothing asks no signer",
        ),
        (
            "pilot.env.ENABLE_CA_SERVER=false,global.caAddress=ca:443,pilot.env.ENABLE_CLUSTER_TRUST_BUNDLE_API=true",
            "pilot.env.ENABLE_CA_SERVER: a control plane that signs nothing writes no roots",
        ),
        (
            "pilot.env.EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API",
            "pilot.env.K8S_SIGNER: the signer of pilot.env.EXTERNAL_CA has no name",
        ),
    ] {
        let error = Release::new("istio-system", &[], &vec![assignment.to_owned()].into());
        let error = error.expect_err(assignment).to_string();
        assert!(error.starts_with(reason), "{assignment}: {error}");
    }
}

/// Paths of the values that have no values within them.
fn leaves(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        None => found.push(path.to_owned()),
        Some(map) => {
            for (key, value) in map {
                let path = match path {
                    "" => key.clone(),
                    parent => format!("{parent}.{key}"),
                };
                leaves(value, &path, found);
            }
        }
    }
}

#[test]
fn the_page_on_installation_has_every_value_and_permission() {
    let page = chart().join("../../../docs/reference/installation.md");
    let page = std::fs::read_to_string(page).unwrap();
    let values = FILES.iter().find(|(path, _)| *path == "values.yaml");
    let values = super::yaml::read(values.unwrap().1).unwrap();
    let mut named = Vec::new();
    leaves(&values, "", &mut named);
    let ambient = vec!["ambient.enabled=true".to_owned()];
    let release = Release::new("istio-system", &[], &ambient.into()).unwrap();
    for manifest in release.render(&ClusterFacts::default()).unwrap() {
        for rule in manifest.object["rules"].as_array().into_iter().flatten() {
            let words = ["resources", "nonResourceURLs"].map(|key| rule[key].as_array());
            let words = words.into_iter().flatten().flatten();
            let words = words.filter_map(|word| word.as_str());
            let words = words.filter(|word| !word.ends_with("/status") && *word != "*");
            named.extend(words.map(str::to_owned));
        }
    }
    assert!(named.len() > 40, "{named:?}");
    for name in named {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn definitions_of_others_are_left_alone_and_ours_stay() {
    let definition = |name: &str, manager: &str| {
        serde_json::json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name, "labels": {
                "app.kubernetes.io/instance": "voile", "app.kubernetes.io/managed-by": manager}},
        })
    };
    let facts = ClusterFacts {
        objects: vec![
            definition("virtualservices.networking.istio.io", "istio"),
            definition("healthchecks.voile.dev", "voile"),
        ],
    };
    let rendered = |assignments: &[String], facts: &ClusterFacts| {
        let release = Release::new("istio-system", &[], &assignments.to_vec().into()).unwrap();
        let manifests = release.render(facts).unwrap();
        let names = manifests
            .iter()
            .map(|one| one.field("/metadata/name").to_owned());
        names.collect::<BTreeSet<_>>()
    };
    let auto = rendered(&[], &facts);
    assert!(!auto.contains("virtualservices.networking.istio.io"));
    assert!(auto.contains("healthchecks.voile.dev"));
    assert!(auto.contains("sidecars.networking.istio.io"));
    let always = rendered(&["crds.istio=always".to_owned()], &facts);
    assert!(always.contains("virtualservices.networking.istio.io"));
    let never = rendered(&["crds.istio=never,crds.voile=never".to_owned()], &facts);
    assert!(
        !never
            .iter()
            .any(|name| name.ends_with(".istio.io") || name.ends_with("voile.dev"))
    );
}

#[test]
fn the_notes_name_the_label_of_the_revision() {
    let release = Release::new("mesh", &[], &vec!["revision=canary".to_owned()].into()).unwrap();
    let notes = release.notes(&ClusterFacts::default()).unwrap();
    assert!(notes.contains("istio.io/rev=canary"), "{notes}");
    assert!(
        notes.contains("--namespace mesh --revision canary"),
        "{notes}"
    );
}
