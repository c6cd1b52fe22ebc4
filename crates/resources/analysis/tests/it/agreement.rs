//! `who-can` and `explain` answer alike about every service of every example.

use std::path::Path;

use voile_analysis::explain::{AccessQuestion, CallerAccess, CallerGroup, explain, who_can};
use voile_model::mesh::{Mesh, MeshService, ServicePort};
use voile_model::{SourceFile, check};

const REQUESTS: [(&str, &str); 6] = [
    ("GET", "/"),
    ("GET", "/books/1"),
    ("GET", "/drafts/1"),
    ("GET", "/admin"),
    ("POST", "/"),
    ("DELETE", "/reviews/1"),
];

fn mesh_of(folder: &Path) -> Mesh {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("an example's folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "yaml") {
            let text = std::fs::read_to_string(&path).expect("a file of the example");
            files.push(SourceFile::new(path.display().to_string(), text));
        }
    }
    check(&files, None).0
}

/// The answer of each workload behind a service's port to each request, according to `explain`.
fn explained(
    mesh: &Mesh,
    service: &MeshService,
    port: &ServicePort,
    caller: &CallerGroup,
) -> Vec<(String, bool)> {
    let from = match caller {
        CallerGroup::Identity(identity) => Some(identity),
        CallerGroup::Plaintext => None,
    };
    let ask = |(method, path)| {
        let question = AccessQuestion {
            from,
            source_ip: None,
            method,
            path,
            host: None,
            headers: &[],
            server_name: None,
            token: None,
        };
        explain(mesh, service, port, &question)
    };
    let all = REQUESTS.into_iter().flat_map(ask);
    all.map(|one| (one.workload, one.allowed)).collect()
}

/// A service whose RequestAuthentication has this rule about presence.
fn demanding(presence: &str) -> Mesh {
    let text = format!(
        r#"
{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{istio-injection: enabled}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: shop, labels: {{app: web}}}}
spec: {{containers: [{{name: app, image: none, command: [web]}}]}}
status: {{phase: Running, podIPs: [{{ip: 127.1.0.3}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, name: http}}]}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: tokens, namespace: shop}}
spec: {{jwtRules: [{{issuer: "https://a.example", {presence}}}]}}
"#
    );
    let (mesh, diagnostics) = check(&[SourceFile::new("mesh.yaml", text)], None);
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    mesh
}

#[test]
fn who_can_and_explain_know_the_token_that_must_be_there() {
    for (presence, required) in [("presence: OPTIONAL", false), ("presence: REQUIRED", true)] {
        let mesh = demanding(presence);
        let service = mesh.services.values().next().expect("a service");
        let port = &service.ports[0];
        let access = who_can(&mesh, service);
        assert!(!access.is_empty());
        for one in access {
            let wanted = match required {
                true => {
                    CallerAccess::Some(vec!["a token of https://a.example is there".to_owned()])
                }
                false => CallerAccess::Everything,
            };
            assert_eq!(one.answer, wanted, "{presence}");
            for (_, allowed) in explained(&mesh, service, port, &one.caller) {
                assert_eq!(allowed, !required, "{presence}");
            }
        }
    }
}

#[test]
fn who_can_says_what_explain_says_for_every_example() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples");
    let mut compared = 0;
    for entry in std::fs::read_dir(examples).expect("the examples") {
        let folder = entry.expect("an entry").path();
        if !folder.is_dir() {
            continue;
        }
        let mesh = mesh_of(&folder);
        for service in mesh.services.values() {
            for access in who_can(&mesh, service) {
                let mut ports = service.ports.iter();
                let port = ports
                    .find(|port| port.number == access.port)
                    .expect("a port");
                let said: Vec<bool> = explained(&mesh, service, port, &access.caller)
                    .into_iter()
                    .filter(|(workload, _)| *workload == access.workload)
                    .map(|(_, allowed)| allowed)
                    .collect();
                let agrees = match access.answer {
                    CallerAccess::Everything => said.iter().all(|allowed| *allowed),
                    CallerAccess::Nothing(_) => said.iter().all(|allowed| !allowed),
                    CallerAccess::Some(_) => true,
                };
                let place = folder.display();
                assert!(agrees, "{place}: {access:?}, explain says {said:?}");
                assert_eq!(said.len(), REQUESTS.len(), "{place}: {access:?}");
                compared += said.len();
            }
        }
    }
    assert!(compared > 500, "only {compared} answers were compared");
}
