//! The chart as Helm renders it and as this program does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use voile_kubernetes::install::{ClusterFacts, Release};
use voile_testkit::prerequisites::{self, Prerequisite};

/// Values files and assignments.
const CASES: [(&str, &[&str]); 16] = [
    ("", &[]),
    ("", &["revision=canary", "revisionTags={prod,default}"]),
    (
        "revisionTags: [stable]\nimage: {repository: example.test/mesh/voile, tag: v1}",
        &["replicaCount=1"],
    ),
    (
        "meshConfig:\n  trustDomain: example.test\n  defaultConfig:\n    tracing: {sampling: 0.5}\n  extensionProviders:\n  - name: auth\n    envoyExtAuthzGrpc: {service: auth.shop, port: 9000}\n",
        &["logLevel=debug"],
    ),
    (
        "autoscaleEnabled: true\npodAnnotations: {a: \"true\", b: 'x: y'}\npodLabels: {team: mesh}\nserviceAnnotations: {c: \"1\"}",
        &["autoscaleMax=9", "cpu.targetAverageUtilization=60"],
    ),
    (
        "nodeSelector: {kubernetes.io/os: linux}\ntolerations: [{key: dedicated, operator: Exists}]\naffinity: {nodeAffinity: {}}\ntopologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]\npriorityClassName: system-cluster-critical\nimagePullSecrets: [one, two]\nextraArgs: [--connection-age=10m]",
        &["resources.limits.memory=1Gi", "resources.requests=null"],
    ),
    (
        "crds: {istio: never}",
        &[
            "crds.voile=never",
            "sidecarInjectorWebhook.enableNamespacesByDefault=true",
        ],
    ),
    (
        "image:\n  digest: sha256:0123456789012345678901234567890123456789012345678901234567890123\nlistenAddress: '[::]'",
        &[
            "sidecarInjectorWebhook.reinvocationPolicy=IfNeeded",
            "certificateTtl=12h",
            "pdb.minAvailable=50%",
        ],
    ),
    ("", &["ambient.enabled=true"]),
    (
        "revision: canary\nmeshConfig: {trustDomain: example.test}\nimagePullSecrets: [one]\nambient: {nodeSelector: {a: b}, dnsCapture: false}",
        &["ambient.enabled=true", "cni.enabled=false"],
    ),
    ("", &["monitoring.podMonitors.enabled=true"]),
    (
        "revision: canary\nrevisionTags: [prod]\nmonitoring: {podMonitors: {labels: {release: prometheus}, interval: 1m}}",
        &[
            "monitoring.podMonitors.enabled=true",
            "ambient.enabled=true",
        ],
    ),
    ("", &["pilot.cni.enabled=true"]),
    ("", &["pilot.cni.enabled=true", "cni.enabled=false"]),
    (
        "pilot: {env: {ENABLE_CLUSTER_TRUST_BUNDLE_API: 'true'}}",
        &["ambient.enabled=true"],
    ),
    (
        "global: {caAddress: 'cert-manager-istio-csr.cert-manager.svc:443'}",
        &["ambient.enabled=true", "pilot.env.ENABLE_CA_SERVER=false"],
    ),
];

/// Objects by kind and name.
type Objects = BTreeMap<String, Value>;

fn keyed(objects: impl IntoIterator<Item = Value>) -> Objects {
    let name = |object: &Value| format!("{}/{}", object["kind"], object["metadata"]["name"]);
    objects
        .into_iter()
        .map(|object| (name(&object), object))
        .collect()
}

/// Helm and this program call themselves differently.
fn without_manager(text: &str) -> String {
    text.replace("managed-by: Helm", "managed-by: voile")
}

#[test]
fn helm_and_voile_render_the_same_objects() {
    let helm = std::env::var("HELM").unwrap_or_else(|_| "helm".to_owned());
    if Command::new(&helm).arg("version").output().is_err() {
        prerequisites::skip(Prerequisite::Helm, format!("`{helm}` does not run"));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/helm/voile");
    for (number, (file, assignments)) in CASES.iter().enumerate() {
        let assignments: Vec<String> = assignments.iter().map(|one| (*one).to_owned()).collect();
        let namespace = if number % 2 == 0 {
            "istio-system"
        } else {
            "mesh"
        };
        let files = [("values".to_owned(), (*file).to_owned())];
        let release = Release::new(namespace, &files, &assignments.clone().into()).unwrap();
        let ours = release.render(&ClusterFacts::default()).unwrap();
        let ours = keyed(ours.into_iter().map(|manifest| manifest.object));

        let values = folder.path().join("values.yaml");
        std::fs::write(&values, file).unwrap();
        let mut command = Command::new(&helm);
        command
            .args(["template", release.name()])
            .arg(&chart)
            .args(["-n", namespace, "-f"])
            .arg(&values);
        for one in &assignments {
            command.args(["--set", one]);
        }
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{number}: {errors}");
        let text = without_manager(&String::from_utf8_lossy(&output.stdout));
        let theirs: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let theirs = keyed(theirs.into_iter().filter(|object| !object.is_null()));

        let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&ours), names(&theirs), "case {number}");
        for (name, object) in &ours {
            assert_eq!(object, &theirs[name], "case {number}: {name}");
        }
    }
}
