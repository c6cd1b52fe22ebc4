//! `who-can` and `explain` answer alike about every service of every example, and as node proxies decide.

use std::path::Path;

use voile_analysis::explain::{
    AccessQuestion, CallerAccess, CallerGroup, Explanation, explain, who_can,
};
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

/// Explains each request to each workload behind a service's port.
fn explained(
    mesh: &Mesh,
    service: &MeshService,
    port: &ServicePort,
    caller: &CallerGroup,
) -> Vec<Explanation> {
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
    REQUESTS.into_iter().flat_map(ask).collect()
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
            for answer in explained(&mesh, service, port, &one.caller) {
                assert_eq!(answer.allowed, !required, "{presence}");
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
                    .filter(|one| one.workload == access.workload)
                    .map(|one| one.allowed)
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

/// `shop/web` under a policy with one rule, and `area/web`, both behind a node proxy.
fn ambient(action: &str, rule: &str) -> Mesh {
    let mut text = format!(
        r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: p, namespace: shop}}
spec: {{action: {action}, rules: [{rule}]}}
"#
    );
    for namespace in ["area", "shop"] {
        text += &format!(
            r#"
---
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {{istio.io/dataplane-mode: ambient}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: {namespace}, labels: {{app: web}}}}
spec: {{serviceAccountName: web, containers: [{{name: app, image: none}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {namespace}}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, name: tcp}}]}}
"#
        );
    }
    let (mesh, diagnostics) = check(&[SourceFile::new("mesh.yaml", text)], None);
    // V0116: a star inside a principal is itself.
    let others = diagnostics.iter().find(|one| one.code != "V0116");
    assert!(others.is_none(), "{others:?}");
    mesh
}

/// Action, field, value; whether `area/web`, `shop/web` and plaintext may connect; words of `analyze`.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    [bool; 3],
    &'static str,
);

const NOBODY: [bool; 3] = [false; 3];
const ALL: [bool; 3] = [true; 3];
const AUDITED: &str = "AUDIT needs HTTP requests";

#[rustfmt::skip]
const GLOBS: [Case; 27] = [
    ("ALLOW", "namespaces", "a*a", NOBODY, "source.namespace is one of a*a"),
    ("ALLOW", "namespaces", "*a", [true, false, false], ""),
    ("ALLOW", "namespaces", "a*", [true, false, false], ""),
    ("ALLOW", "namespaces", "*x", NOBODY, ""),
    ("ALLOW", "notNamespaces", "a*a", NOBODY, "source.namespace is none of a*a"),
    ("ALLOW", "notNamespaces", "*a", [false, true, true], ""),
    ("ALLOW", "notNamespaces", "a*", [false, true, true], ""),
    ("DENY", "namespaces", "a*a", NOBODY, "source.namespace is one of a*a"),
    ("DENY", "namespaces", "*a", [false, true, true], ""),
    ("DENY", "namespaces", "a*", [false, true, true], ""),
    ("DENY", "notNamespaces", "a*a", NOBODY, "source.namespace is none of a*a"),
    ("DENY", "notNamespaces", "*a", [true, false, false], ""),
    ("AUDIT", "namespaces", "a*a", ALL, AUDITED),
    ("AUDIT", "namespaces", "*a", ALL, AUDITED),
    ("ALLOW", "trustDomains", "*local", NOBODY, "source.trustDomain is one of *local"),
    ("ALLOW", "trustDomains", "cluster*", [true, true, false], ""),
    ("ALLOW", "notTrustDomains", "*x", NOBODY, "source.trustDomain is none of *x"),
    ("DENY", "trustDomains", "*x", NOBODY, "source.trustDomain is one of *x"),
    ("DENY", "notTrustDomains", "*local", NOBODY, "source.trustDomain is none of *local"),
    ("DENY", "notTrustDomains", "cluster*", [true, true, false], ""),
    ("AUDIT", "notTrustDomains", "*x", ALL, AUDITED),
    ("ALLOW", "principals", "*/sa/web", [true, true, false], ""),
    ("ALLOW", "principals", "cluster.local/ns/a*", [true, false, false], ""),
    ("ALLOW", "principals", "cluster.local/ns/a*a/sa/web", NOBODY, ""),
    ("DENY", "principals", "cluster.local/ns/a*a/sa/web", ALL, ""),
    ("DENY", "notPrincipals", "cluster.local/ns/a*", [true, false, false], ""),
    ("AUDIT", "principals", "*/sa/web", ALL, AUDITED),
];

#[test]
fn globs_mean_to_the_tools_what_they_mean_to_a_node_proxy() {
    for (action, field, value, allowed, unknown) in GLOBS {
        let (key, list) = match field {
            "namespaces" => ("source.namespace", "values"),
            "notNamespaces" => ("source.namespace", "notValues"),
            "trustDomains" => ("source.trustDomain", "values"),
            "notTrustDomains" => ("source.trustDomain", "notValues"),
            "principals" => ("source.principal", "values"),
            _ => ("source.principal", "notValues"),
        };
        for rule in [
            format!(r#"{{from: [{{source: {{{field}: ["{value}"]}}}}]}}"#),
            format!(r#"{{when: [{{key: {key}, {list}: ["{value}"]}}]}}"#),
        ] {
            let mesh = ambient(action, &rule);
            let mut services = mesh.services.values();
            let service = services.find(|one| one.key.namespace.as_str() == "shop");
            let service = service.expect("a service");
            let who_can: Vec<bool> = who_can(&mesh, service)
                .into_iter()
                .map(|row| {
                    let answer = match row.answer {
                        CallerAccess::Everything => true,
                        CallerAccess::Nothing(_) => false,
                        CallerAccess::Some(open) => panic!("{action} {rule}: {open:?}"),
                    };
                    for one in explained(&mesh, service, &service.ports[0], &row.caller) {
                        assert_eq!(one.allowed, answer, "{action} {rule}: {one:?}");
                        assert!(one.beside.is_empty(), "{action} {rule}: {one:?}");
                        let why = one.otherwise.concat();
                        let tells = why.contains("cannot tell") || why.contains("everything");
                        let is_unknown = !unknown.is_empty() && !answer;
                        assert_eq!(tells, is_unknown, "{action} {rule}: {one:?}");
                    }
                    answer
                })
                .collect();
            assert_eq!(who_can, allowed, "{action} {rule}");
            let found = voile_analysis::analyze(&mesh, super::now()).into_iter();
            let found: String = found
                .map(|one| one.to_string())
                .filter(|one| one.contains("[V0343]"))
                .collect();
            assert_eq!(found.is_empty(), unknown.is_empty(), "{rule}: {found}");
            assert!(found.contains(unknown), "{action} {rule}: {found}");
        }
    }
}
