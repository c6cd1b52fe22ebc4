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
