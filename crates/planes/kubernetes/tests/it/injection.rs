//! Injected Pods as data. Each file `NAME.yaml` in `tests/it/injection` has a case: the settings of the injector and the Pod, or
//! the Pod alone. `NAME.out.yaml` has what becomes of it: the Pod and the warnings, or why it is skipped or refused.
//! `VOILE_BLESS=1 cargo test -p voile-kubernetes injection` writes the results anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use voile_kubernetes::inject::{
    InjectionOutcome, InjectionRequest, InjectorOptions, LabelSelector, PathSettings, inject,
};
use voile_model::mesh::MeshConfig;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/injection")
}

/// The settings that a case may have.
fn options(settings: &Value) -> InjectorOptions {
    let text = |field: &str| settings[field].as_str().map(str::to_owned);
    let texts = |field: &str| -> Vec<String> {
        let list = settings[field].as_array().into_iter().flatten();
        list.filter_map(|one| one.as_str().map(str::to_owned))
            .collect()
    };
    let default = InjectorOptions::default();
    let never = settings["neverInjectSelector"].as_array();
    let never = never.into_iter().flatten();
    InjectorOptions {
        image: text("image").unwrap_or(default.image),
        image_pull_policy: text("imagePullPolicy"),
        image_pull_secrets: texts("imagePullSecrets"),
        revision: text("revision").unwrap_or(default.revision),
        tags: texts("tags"),
        network: text("network").unwrap_or_default(),
        ca_address: text("caAddress"),
        trust_bundle: settings["trustBundle"] == true,
        cni: settings["cni"] == true,
        never_inject: never.filter_map(LabelSelector::read).collect(),
        ..InjectorOptions::default()
    }
}

/// What becomes of the Pod of a case.
fn outcome(documents: &[Value]) -> Value {
    let (settings, pod) = match documents {
        [pod] => (&Value::Null, pod),
        [settings, pod] => (settings, pod),
        _ => panic!("a case has one or two documents"),
    };
    let labels = settings["namespaceLabels"].as_object();
    let labels: Option<BTreeMap<String, String>> = labels.map(|labels| {
        let text = |value: &Value| value.as_str().expect("a label").to_owned();
        let pairs = labels.iter();
        pairs
            .map(|(key, value)| (key.clone(), text(value)))
            .collect()
    });
    let path = settings["path"].as_str().unwrap_or("/inject");
    let request = InjectionRequest {
        pod,
        namespace: settings["namespace"].as_str().unwrap_or("shop"),
        namespace_labels: labels.as_ref(),
        workload: None,
        path_settings: &PathSettings::parse(path),
    };
    match inject(&request, &options(settings), &MeshConfig::default()) {
        Ok(InjectionOutcome::Skipped(reason)) => json!({"skipped": reason.to_string()}),
        Err(error) => json!({"refused": error.0}),
        Ok(InjectionOutcome::Injected(injected)) => {
            let mut patched = pod.clone();
            json_patch::patch(&mut patched, &injected.patch).expect("a patch that fits");
            assert_eq!(patched, injected.pod, "the patch makes the Pod");
            let again = InjectionRequest {
                pod: &patched,
                ..request
            };
            let again = inject(&again, &options(settings), &MeshConfig::default());
            assert!(
                matches!(again, Ok(InjectionOutcome::Skipped(_))),
                "a second injection changes nothing: {again:?}"
            );
            json!({"pod": injected.pod, "warnings": injected.warnings})
        }
    }
}

#[test]
fn pods_are_injected_as_the_files_say() {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("the cases")
        .map(|entry| entry.expect("a case").path())
        .filter(|path| !path.to_string_lossy().ends_with(".out.yaml"))
        .collect();
    cases.sort();
    let mut differences = Vec::new();
    for case in cases {
        let name = case
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read_to_string(&case).expect("the case");
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        let found = outcome(&documents);
        let result = case.with_file_name(format!("{name}.out.yaml"));
        if std::env::var_os("VOILE_BLESS").is_some() {
            let text = serde_saphyr::to_string(&found).expect("YAML");
            std::fs::write(&result, text).expect("written");
            continue;
        }
        let expected = std::fs::read_to_string(&result).unwrap_or_default();
        let expected: Value = serde_saphyr::from_str(&expected).unwrap_or_default();
        if found != expected {
            let found = serde_saphyr::to_string(&found).expect("YAML");
            differences.push(format!("{name}:\n{found}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
