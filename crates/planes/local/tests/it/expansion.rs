//! Expansion of a folder: pods with addresses, the documents for the control plane, and pods that cannot run here.

use std::collections::BTreeSet;
use std::path::Path;

use voile_local::addresses::{Addresses, PodIsolation};
use voile_local::documents::render;
use voile_local::expand::{ExpandContext, RunPlan, expand};
use voile_local::rollout::{EmptyEnvironment, PodRoster};
use voile_model::{Mesh, SourceFile};

const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec:
  type: NodePort
  selector: {app: front}
  ports: [{name: http, port: 80, targetPort: web, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  selector: {app: db}
  ports: [{name: tcp-db, port: 5432}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: front, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: front}}
  template:
    metadata: {labels: {app: front}}
    spec:
      serviceAccountName: front
      containers:
        - name: app
          command: [server]
          ports: [{name: web, containerPort: 8080}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: front, namespace: shop}
spec:
  workloadSelector: {labels: {app: front}}
  ingress:
    - {port: {number: 8080, protocol: HTTP, name: http}, captureMode: NONE, defaultEndpoint: "0.0.0.0:18080"}
  egress:
    - hosts: ["./db.shop.svc.cluster.local"]
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db, sidecar.istio.io/inject: "false"}}
spec:
  containers: [{name: db, command: [database]}]
"#;

fn mesh(texts: &[&str]) -> Mesh {
    let files: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(n, text)| SourceFile::new(format!("{n}.yaml"), *text))
        .collect();
    let (mesh, problems) = voile_model::check(&files, None);
    assert!(problems.is_empty(), "{problems:?}");
    mesh
}

fn plan(texts: &[&str]) -> RunPlan {
    expanded(&mesh(texts), &mut Addresses::new(PodIsolation::Loopback(1)))
}

fn expanded(mesh: &Mesh, addresses: &mut Addresses) -> RunPlan {
    let mut roster = PodRoster::default();
    roster.want(mesh);
    roster.step(&EmptyEnvironment);
    expand(mesh, &roster, ExpandContext::default(), addresses).expect("addresses suffice")
}

#[test]
fn replicas_become_pods_and_each_sees_what_its_sidecar_allows() {
    let plan = plan(&[SHOP]);
    assert_eq!(plan.problems, []);
    let pods: Vec<_> = plan
        .pods
        .iter()
        .map(|pod| {
            let sees: Vec<_> = pod
                .services
                .iter()
                .map(|s| format!("{}@{}", s.name, s.address))
                .collect();
            format!(
                "{} {} {:?} sees {} listens {:?}",
                pod.name,
                pod.address,
                pod.behind,
                sees.join(" "),
                pod.endpoints
            )
        })
        .collect();
    assert_eq!(
        pods,
        [
            r#"shop/db-0 127.1.0.4 ["db"] sees db@127.1.16.3 front@127.1.16.4 listens [(127.1.0.4, 5432)]"#,
            r#"shop/front-0 127.1.0.2 ["front"] sees db@127.1.16.1 listens [(127.1.0.2, 18080)]"#,
            r#"shop/front-1 127.1.0.3 ["front"] sees db@127.1.16.2 listens [(127.1.0.3, 18080)]"#,
        ]
    );
    assert_eq!(plan.published.len(), 1);
    let publication = &plan.published[0];
    assert_eq!(
        (publication.wish, publication.port, publication.http),
        (30080, 80, true)
    );
    let targets: Vec<_> = publication
        .targets
        .iter()
        .map(|(_, address, port)| format!("{address}:{port}"))
        .collect();
    assert_eq!(targets, ["127.1.0.2:8080", "127.1.0.3:8080"]);
}

#[test]
fn documents_carry_on_the_users_sidecar_and_add_a_listener_for_each_service() {
    let plan = plan(&[SHOP]);
    let ready = BTreeSet::from([plan.pods[1].name.clone()]);
    let text = render(
        &plan,
        PodIsolation::Loopback(1),
        &ready,
        &BTreeSet::new(),
        &[],
    );
    let documents: Vec<serde_json::Value> = text
        .split("---\n")
        .filter(|text| !text.is_empty())
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .collect();
    assert_eq!(documents.len(), 5, "three pods, two sidecars: {text}");
    assert_eq!(
        documents[1],
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "front-0",
                "namespace": "shop",
                "labels": {"app": "front", "sidecar.istio.io/inject": "true", "voile.dev/pod": "front-0"},
                "annotations": {"voile.dev/generated-from": "shop/front"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "front", "uid": "front", "controller": true}],
            },
            "spec": {
                "serviceAccountName": "front",
                "containers": [{"name": "app", "ports": [{"containerPort": 8080, "name": "web"}]}],
            },
            "status": {"phase": "Running", "podIP": "127.1.0.2"},
        })
    );
    assert_eq!(
        documents[2],
        serde_json::json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "Sidecar",
            "metadata": {"name": "pod-front-0", "namespace": "shop", "annotations": {"voile.dev/generated-from": "shop/front"}},
            "spec": {
                "workloadSelector": {"labels": {"voile.dev/pod": "front-0"}},
                "ingress": [{"port": {"number": 8080, "protocol": "HTTP", "name": "http"}, "captureMode": "NONE", "defaultEndpoint": "0.0.0.0:18080"}],
                "egress": [{
                    "port": {"number": 5432, "protocol": "TCP", "name": "db-tcp-db"},
                    "bind": "127.1.16.1",
                    "captureMode": "NONE",
                    "hosts": ["shop/db.shop.svc.cluster.local"],
                }],
            },
        })
    );
    assert_eq!(
        documents[3]["status"]["phase"], "Pending",
        "front-1 is not ready"
    );
}

#[test]
fn the_control_plane_reads_the_documents_without_a_problem_and_takes_the_pods_own_sidecar() {
    let plan = plan(&[SHOP]);
    let text = render(
        &plan,
        PodIsolation::Loopback(1),
        &BTreeSet::new(),
        &BTreeSet::new(),
        &[],
    );
    let mesh = mesh(&[SHOP, &text]);
    let workload = mesh
        .workloads
        .values()
        .find(|workload| &*workload.key.name == "front-0")
        .expect("the pod is a workload");
    assert!(workload.has_sidecar && !workload.ready);
    assert_eq!(&*workload.workload_name, "front");
    let sidecar = mesh.sidecar_for(workload).expect("it has a Sidecar");
    assert_eq!(&*sidecar.name.name, "pod-front-0");
    let reached = mesh.egress_services(&workload.key.namespace, &sidecar.egress[0]);
    assert_eq!(reached.len(), 1);
    let db = mesh
        .workloads
        .values()
        .find(|workload| &*workload.key.name == "db-0")
        .expect("a workload");
    assert!(!db.has_sidecar);
}

#[test]
fn scaling_keeps_the_addresses_of_who_stays() {
    let mut addresses = Addresses::new(PodIsolation::Loopback(1));
    let before = expanded(&mesh(&[SHOP]), &mut addresses);
    let more = SHOP.replace("replicas: 2", "replicas: 3");
    let after = expanded(&mesh(&[&more]), &mut addresses);
    for pod in &before.pods {
        let kept = after
            .pods
            .iter()
            .find(|other| other.name == pod.name)
            .expect("it stays");
        assert!(pod.runs_as(kept), "{} must run on", pod.name);
    }
    assert_eq!(after.pods.len(), 4);
}

#[test]
fn what_cannot_run_here_is_said_with_what_would_be_right() {
    let no_ingress = SHOP.replace("number: 8080", "number: 8081");
    let no_command = SHOP.replace("command: [server]", "image: server");
    let shared = SHOP.replace(
        "    - hosts:",
        "    - {port: {number: 5432, protocol: TCP, name: db}, bind: 127.0.0.1, captureMode: NONE, hosts: [\"*/*\"]}\n    - hosts:",
    );
    let clash = format!(
        "{SHOP}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: front-1, namespace: shop}}\nspec: {{containers: [{{name: a, command: [b]}}]}}\nstatus: {{podIP: 10.0.0.1}}\n"
    );
    for (text, code, says) in [
        (&no_ingress, "V0601", "has targetPort 8080"),
        (&no_command, "V0602", "container `app` has no command"),
        (
            &shared,
            "V0604",
            "both shop/front-0 and shop/front-1 would listen on 127.0.0.1:5432",
        ),
        (
            &clash,
            "V0603",
            "`shop/front-1` is already the name of another",
        ),
    ] {
        let RunPlan {
            problems,
            pods,
            refused,
            ..
        } = plan(&[text]);
        // The others run.
        assert!(
            !refused.is_empty() && pods.iter().any(|pod| &*pod.name.name == "db-0"),
            "{code}"
        );
        let found = problems
            .iter()
            .find(|problem| problem.code == code)
            .unwrap_or_else(|| panic!("{code}: {problems:?}"));
        assert!(found.is_error() && found.message.contains(says), "{found}");
    }
}

#[test]
fn a_running_pod_that_is_refused_goes_on_as_it_was_at_its_addresses() {
    let mut addresses = Addresses::new(PodIsolation::Loopback(1));
    let good = mesh(&[SHOP]);
    let before = expanded(&good, &mut addresses);
    // Its Sidecar listens elsewhere, and it would see no service.
    let wrong = SHOP
        .replace("number: 8080", "number: 8081")
        .replace("./db.shop", "./none.shop");
    let mut roster = PodRoster::default();
    let mesh = mesh(&[&wrong]);
    roster.want(&mesh);
    roster.step(&EmptyEnvironment);
    let context = ExpandContext {
        running: &before.pods,
        by_node: false,
    };
    for _ in 0..2 {
        let after = expand(&mesh, &roster, context, &mut addresses).expect("addresses");
        assert_eq!((&after.pods, &after.refused), (&before.pods, &vec![]));
        assert!(after.problems.iter().any(|one| one.code == "V0601"));
    }
    let addresses_of = |plan: &RunPlan| plan.pods[1].services[0].address;
    assert_eq!(
        addresses_of(&expanded(&good, &mut addresses)),
        addresses_of(&before)
    );
}

#[test]
fn the_bookstore_has_no_problem() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/bookstore");
    let files = voile_model::files::read_directory(&folder).expect("the example is there");
    let (mesh, problems) = voile_model::check(&files, None);
    assert!(problems.is_empty(), "{problems:?}");
    let plan = expanded(&mesh, &mut Addresses::new(PodIsolation::Loopback(1)));
    assert_eq!(
        (
            plan.problems.as_slice(),
            plan.pods.len(),
            plan.published.len()
        ),
        (&[][..], 7, 1)
    );
}

#[test]
fn the_page_on_the_local_mesh_explains_every_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("the file is there");
    let page = read("../../../docs/reference/local-mesh.md");
    let source = read("src/expand/problems.rs");
    let codes: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split('"').nth(1))
        .collect();
    assert!(codes.len() >= 8, "{codes:?}");
    for code in codes {
        assert!(page.contains(&format!("| {code} | ")), "{code}");
    }
}
