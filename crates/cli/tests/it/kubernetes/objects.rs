//! `voile analyze`, `explain` and `who-can` about the objects of a real API server.

use std::path::Path;

use serde_json::{Value, json};
use voile_testkit::cluster::ApiServer;

use crate::mesh::Process;

/// Two namespaces with a mistake each, a service with a policy, and its caller.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: books}
---
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: books}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: books}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: books}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-1
  namespace: books
  labels: {app: web, pod-template-hash: "1"}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: "1", controller: true}]
spec:
  serviceAccountName: web
  initContainers: [{name: istio-proxy, image: none, restartPolicy: Always}]
  containers: [{name: app, image: none, ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: books, labels: {app: web}}
spec:
  serviceAccountName: web
  initContainers: [{name: istio-proxy, image: none, restartPolicy: Always}]
  containers: [{name: app, image: none, ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: reader, namespace: books}
spec:
  serviceAccountName: reader
  initContainers: [{name: istio-proxy, image: none, restartPolicy: Always}]
  containers: [{name: app, image: none}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: books}
spec:
  rules: [{from: [{source: {principals: ["cluster.local/ns/books/sa/reader"]}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: books}
spec: {host: web, trafficPolicy: {loadBalancer: {simple: ROUND_ROBBIN}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: other}
spec: {host: web.books.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: ROUND_ROBBIN}}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: lua, namespace: other}
spec: {configPatches: []}
"#;

/// The corrected object of `books`, and a new object with a mistake.
const ON_TOP: &str = r#"
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: books}
spec: {host: web, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: books}
spec: {action: DENY, rules: [{}]}
"#;

struct Outcome {
    code: Option<i32>,
    output: String,
    errors: String,
}

/// Finds no mesh of `voile up` that others run on this machine: those are in the temporary folder.
fn voile(kubeconfig: &Path, arguments: &str) -> Outcome {
    let output = Process::output(|voile| {
        let folder = kubeconfig.parent().expect("its folder");
        voile.env("TMPDIR", folder).env("KUBECONFIG", kubeconfig);
        voile.args(arguments.split(' '));
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome {
        code: output.status.code(),
        output: text(&output.stdout),
        errors: text(&output.stderr),
    }
}

/// The API server with the definitions of kinds and the objects.
fn cluster() -> Option<&'static ApiServer> {
    let server = ApiServer::shared()?;
    let manifests = voile(&server.kubeconfig(), "install --dry-run -o json").output;
    let mut manifests: Value = serde_json::from_str(&manifests).expect("JSON");
    let items = manifests["items"].as_array_mut().expect("items");
    items.retain(|item| item["kind"] == "CustomResourceDefinition");
    // Istio is installed, too, with a kind that we do not support.
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    items.push(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "envoyfilters.networking.istio.io"},
        "spec": {
            "group": "networking.istio.io", "scope": "Namespaced",
            "names": {"plural": "envoyfilters", "kind": "EnvoyFilter"},
            "versions": [{
                "name": "v1alpha3", "served": true, "storage": true, "schema": {"openAPIV3Schema": anything},
            }],
        },
    }));
    let wait = "wait --for=condition=Established crd --all --timeout=30s";
    server
        .apply(&manifests.to_string())
        .and_then(|_| server.kubectl(&wait.split(' ').collect::<Vec<_>>()))
        .and_then(|_| server.apply(OBJECTS))
        .expect("the objects");
    Some(server)
}

#[test]
fn tools_answer_about_the_objects_of_a_cluster() {
    let Some(server) = cluster() else {
        return;
    };
    let kubeconfig = server.kubeconfig();
    let folder = tempfile::tempdir().expect("a folder");
    let on_top = folder.path().join("on-top.yaml");
    std::fs::write(&on_top, ON_TOP).expect("written");
    let on_top = on_top.to_str().expect("a path");
    analyzed(&kubeconfig, on_top);
    explained(&kubeconfig, on_top);
    listed(&kubeconfig);
}

fn analyzed(kubeconfig: &Path, on_top: &str) {
    let one = voile(kubeconfig, "analyze --kubernetes -n books");
    let (place, other) = (
        "destinationrules.networking.istio.io/books/web",
        "destinationrules.networking.istio.io/other/web",
    );
    assert_eq!(one.code, Some(1), "{}", one.errors);
    let line = format!("{place}: error[V0104]: `ROUND_ROBBIN` is not allowed (field spec.");
    assert!(one.output.contains(&line), "{}", one.output);
    assert!(!one.output.contains(other), "{}", one.output);
    assert!(one.errors.contains("in other namespaces"), "{}", one.errors);
    // The context has no namespace, and so `default`.
    let nothing = voile(kubeconfig, "analyze --kubernetes");
    assert_eq!(nothing.code, Some(0), "{}", nothing.output);

    let all = voile(kubeconfig, "analyze --kubernetes -A -o json");
    assert_eq!(all.code, Some(1));
    let all: Value = serde_json::from_str(&all.output).expect("JSON");
    let found = all.as_array().expect("a list").iter();
    let found: Vec<_> = found
        .map(|one| (one["file"].as_str(), one["code"].as_str()))
        .collect();
    let filter = "envoyfilters.networking.istio.io/other/lua";
    for told in [(place, "V0104"), (other, "V0104"), (filter, "V0106")] {
        assert!(
            found.contains(&(Some(told.0), Some(told.1))),
            "{told:?}: {found:?}"
        );
    }
    assert!(all[0]["line"].is_null());

    let fixed = voile(
        kubeconfig,
        &format!("analyze --kubernetes -n books -f {on_top}"),
    );
    assert_eq!(fixed.code, Some(0), "{}", fixed.output);
    assert!(!fixed.output.contains("ROUND_ROBBIN"), "{}", fixed.output);

    let gone = voile(Path::new("/nonexistent"), "analyze --kubernetes");
    assert_eq!(gone.code, Some(2));
    assert!(gone.errors.contains("no cluster"), "{}", gone.errors);
}

fn explained(kubeconfig: &Path, on_top: &str) {
    let policy = "AuthorizationPolicy books/readers, rule 0, in authorizationpolicies.security.istio.io/books/readers\n";
    for service in ["svc/web.books", "web.books:80", "books/web"] {
        let asked = format!("explain --kubernetes --from pod/reader.books --to {service}");
        let allowed = voile(kubeconfig, &asked);
        assert_eq!(allowed.code, Some(0), "{}", allowed.errors);
        assert_eq!(
            allowed.output.matches("ALLOWED by Pod books/web-").count(),
            2
        );
        assert!(allowed.output.contains(policy), "{}", allowed.output);
    }
    // The Pods of a Deployment, and no others of the service.
    let denied = voile(
        kubeconfig,
        "explain --kubernetes -n books --from deploy/web --to deploy/web -o json",
    );
    assert_eq!(denied.code, Some(1), "{}", denied.errors);
    let denied: Value = serde_json::from_str(&denied.output).expect("JSON");
    let workloads = denied.as_array().expect("a list").iter();
    let workloads: Vec<_> = workloads.map(|one| &one["workload"]).collect();
    assert_eq!(workloads, ["Pod books/web-1"]);
    let asked = format!("explain {on_top} --kubernetes --from books/reader --to web.books");
    let denied = voile(kubeconfig, &asked);
    assert!(
        denied.output.contains("books/nobody, rule 0, in /"),
        "{}",
        denied.output
    );
    let unknown = voile(kubeconfig, "explain --kubernetes --to deploy/nobody.books");
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.errors.contains("no workload `deploy/nobody.books`"));
}

fn listed(kubeconfig: &Path) {
    let rows = voile(kubeconfig, "who-can --kubernetes svc/web -n books -o json");
    assert_eq!(rows.code, Some(0), "{}", rows.errors);
    let rows: Value = serde_json::from_str(&rows.output).expect("JSON");
    let rows = rows.as_array().expect("a list").iter();
    let may = rows.filter(|row| row["access"] == "everything");
    let may: Vec<_> = may.map(|row| [&row["caller"], &row["workload"]]).collect();
    let reader = "spiffe://cluster.local/ns/books/sa/reader";
    assert_eq!(
        may,
        [[reader, "Pod books/web-1"], [reader, "Pod books/web-2"]]
    );
    let neither = voile(kubeconfig, "who-can svc/web");
    assert_eq!(neither.code, Some(2));
    assert!(
        neither.errors.contains("--kubernetes"),
        "{}",
        neither.errors
    );
}
