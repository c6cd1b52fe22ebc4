//! `voile inject` on files of objects.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const OBJECTS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  template:
    metadata: {labels: {app: cart}}
    spec:
      containers:
      - {name: app, image: "cart:1", env: [{name: SWITCH, value: "on"}, {name: NUMBER, value: "010"}]}
      volumes:
      - {name: files, configMap: {name: files, defaultMode: 0644}}
---
# A comment, and nothing else.
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: job, image: job}]}}}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: cart}, spec: {ports: [{port: 80}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: agent}, spec: {hostNetwork: true, containers: [{name: a, image: a}]}}
"#;

fn inject(arguments: &[&str], objects: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_voile"))
        .args(["inject", "-f", "-"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("voile starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(objects.as_bytes()).expect("read");
    drop(stdin);
    child.wait_with_output().expect("ended")
}

#[test]
fn pods_in_all_objects_get_proxies_and_everything_else_stays() {
    let options = "-o json --image voile:test --ca-address ca.shop.svc:443";
    let options: Vec<&str> = options.split(' ').collect();
    let output = inject(&options, OBJECTS);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said,
        "Pod default/agent is not injected: the Pod has its node's network (hostNetwork: true)\n"
    );
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(list["kind"], "List");
    let items = list["items"].as_array().expect("objects");
    assert_eq!(items.len(), 3);
    let template = &items[0]["spec"]["template"];
    let spec = &template["spec"];
    assert_eq!(spec["initContainers"][1]["image"], "voile:test");
    let arguments = spec["initContainers"][1]["args"].as_array();
    let authority = "--ca-address=https://ca.shop.svc:443";
    let asks = arguments.is_some_and(|all| all.iter().any(|one| one == authority));
    assert!(asks, "{arguments:?}");
    assert_eq!(spec["volumes"][0]["configMap"]["defaultMode"], 0o644);
    let labels = &template["metadata"]["labels"];
    assert_eq!(labels["service.istio.io/canonical-name"], "cart");
    let job = &items[1]["spec"]["jobTemplate"]["spec"]["template"];
    assert_eq!(job["spec"]["initContainers"][1]["name"], "istio-proxy");
    let labels = &job["metadata"]["labels"];
    assert_eq!(labels["service.istio.io/canonical-name"], "nightly");
    let rest = &items[2]["items"];
    assert_eq!(rest[0]["spec"]["ports"][0]["port"], 80);
    assert_eq!(rest[1]["spec"]["initContainers"], Value::Null);
}

#[test]
fn yaml_that_is_written_is_read_as_the_same_objects() {
    let yaml = inject(&[], OBJECTS).stdout;
    let yaml = String::from_utf8(yaml).expect("text");
    for quoted in ["value: \"on\"", "value: \"010\""] {
        assert!(yaml.contains(quoted), "{yaml}");
    }
    let again = inject(&["-o", "json"], &yaml);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert_eq!(said.matches("has a proxy already").count(), 2, "{said}");
    assert_eq!(again.stdout, inject(&["-o", "json"], OBJECTS).stdout);
}

#[test]
fn warnings_and_faults_name_the_object() {
    let object = |annotation: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{{annotation}}}}}\nspec: {{containers: [{{name: a}}]}}\n"
        )
    };
    let warned = inject(&["-n", "shop"], &object("sidecar.istio.io/proxyCpu: 1m"));
    let said = String::from_utf8_lossy(&warned.stderr);
    assert!(warned.status.success(), "{said}");
    assert!(said.starts_with("Pod shop/a: annotation"), "{said}");
    let refused = inject(&[], &object("sidecar.istio.io/logLevel: loud"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("voile inject: Pod default/a: annotation"),
        "{said}"
    );
    assert!(refused.stdout.is_empty());
    let unreadable = inject(&[], "a: [");
    assert_eq!(unreadable.status.code(), Some(2));
}
