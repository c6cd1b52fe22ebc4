//! One question to `explain`, to `who-can` and to the running mesh: every identity of an example asks every service for every path and
//! method that its policies tell apart, on every data plane that the example supports. The answers must agree (invariant 8).

mod ask;

use std::collections::BTreeSet;
use std::path::Path;

use voile_analysis::explain::{
    AccessQuestion, CallerAccess, CallerGroup, Explanation, explain, who_can,
};
use voile_model::mesh::{AuthorizationPolicy, Mesh, MeshService, Protocol, ServicePort, Transport};
use voile_model::{Identity, check, files};

use crate::mesh::{put, wait_until};
use crate::up::{Up, example};
use crate::up_netns::start_with;
use ask::{Mode, Running, Seen};

/// Examples on loopback addresses. The others: `ambient` needs a node proxy; `http3` a certificate that its page makes; `egress` has
/// nothing that a policy protects; `machine` and `graphs` start no pods.
const SIDECARS: [&str; 10] = [
    "policies",
    "ingress",
    "bookstore",
    "gateway-api",
    "canary",
    "locality",
    "rate-limits",
    "resilience",
    "routing",
    "sticky",
];
/// Examples in namespaces, served as their labels say: those that refuse some requests.
const LABELS: [&str; 5] = ["ambient", "policies", "ingress", "bookstore", "gateway-api"];
/// The example that a node proxy alone can serve. The others' applications listen where a Sidecar says, and the rules of `policies` are about
/// requests, so `voile up` refuses it.
const NODE: [&str; 1] = ["ambient"];

/// Paths that every service is asked for, besides those of policies.
const PATHS: [&str; 2] = ["/", "/nowhere/at/all"];
const METHODS: [&str; 2] = ["GET", "POST"];

/// The mesh as the tools read it.
fn mesh_of(folder: &Path, mode: Mode) -> Mesh {
    let read = files::read_directory(folder).expect("the folder");
    let (mut mesh, _) = check(&read, None);
    if mode == Mode::Node {
        voile_local::serve_by_node(&mut mesh);
    }
    mesh
}

/// Something that fits a pattern of a policy.
fn sample(pattern: &str) -> String {
    let filled = pattern.replace("{**}", "a/b").replace("{*}", "a");
    filled.replace('*', "x")
}

/// Methods and paths that the policies of a mesh tell apart.
fn requests(mesh: &Mesh) -> BTreeSet<(String, String)> {
    let policies = mesh.authorization_policies.values();
    let rules = policies.flat_map(|policy: &std::sync::Arc<AuthorizationPolicy>| &policy.rules);
    let (mut methods, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for operation in rules.flat_map(|rule| &rule.to) {
        methods.extend(
            operation
                .methods
                .values()
                .map(|one| sample(&one.to_string())),
        );
        paths.extend(operation.paths.values().map(|one| sample(&one.to_string())));
    }
    methods.extend(METHODS.map(str::to_owned));
    paths.extend(PATHS.map(str::to_owned));
    paths.retain(|path| path.starts_with('/'));
    let all = methods.iter().flat_map(|method| {
        let with = |path: &String| (method.clone(), path.clone());
        paths.iter().map(with)
    });
    all.collect()
}

/// The tools' explanations of a request.
fn said(
    mesh: &Mesh,
    (service, port): (&MeshService, &ServicePort),
    from: Option<&Identity>,
    (method, path): (&str, &str),
) -> Vec<Explanation> {
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
}

/// Compares all answers about a running mesh; how many, and where they differ.
fn compare(mesh: &Mesh, running: &Running<'_>) -> (usize, Vec<String>) {
    let (mut compared, mut differ) = (0, Vec::new());
    let requests = requests(mesh);
    for service in mesh.services.values() {
        let table = who_can(mesh, service);
        let spoken = |port: &&ServicePort| {
            let http = matches!(
                port.protocol,
                Protocol::Http | Protocol::Auto | Protocol::Http2
            );
            http && port.transport == Transport::Tcp
        };
        for port in service.ports.iter().filter(spoken) {
            for caller in running.callers(mesh, service) {
                let row = table.iter().find(|row| {
                    row.port == port.number
                        && match (&row.caller, caller.identity.as_ref()) {
                            (CallerGroup::Identity(one), Some(other)) => one == other,
                            (CallerGroup::Plaintext, None) => true,
                            _ => false,
                        }
                });
                for (method, path) in &requests {
                    let from = caller.identity.as_ref();
                    let all = said(mesh, (service, port), from, (method, path));
                    let Some(first) = all.first() else { continue };
                    // An external authorizer decides by itself, and workloads with different policies
                    // answer by chance.
                    let open = all
                        .iter()
                        .any(|one| one.asked.is_some() || one.allowed != first.allowed);
                    if open {
                        continue;
                    }
                    let seen = caller.ask(port.number.get(), (method, path), first.allowed);
                    compared += 1;
                    let table = row.map(|row| &row.answer);
                    let contradicts = match (table, &seen) {
                        (Some(CallerAccess::Everything), Seen::Denied(_)) => true,
                        (Some(CallerAccess::Nothing(_)), seen) => !seen.is_denial(),
                        _ => false,
                    };
                    if seen.is_denial() == first.allowed || contradicts {
                        differ.push(format!(
                            "{} -> {}:{} {method} {path}: explain says {} ({}), who-can {table:?}, the mesh {seen}",
                            caller.name(),
                            service.key,
                            port.number,
                            if first.allowed { "ALLOWED" } else { "DENIED" },
                            first.decided.why,
                        ));
                    }
                }
            }
        }
    }
    (compared, differ)
}

/// Starts an example so; nothing where this machine cannot.
fn start(fill: impl FnOnce(&Path), mode: Mode) -> Option<(Up, ask::Published)> {
    match mode {
        Mode::Loopback => {
            let mut up = Up::start(fill, &["--quiet"]);
            let published = up.ready();
            Some((up, published))
        }
        Mode::Labels => start_with(fill, None, &[]),
        Mode::Node => start_with(fill, None, &["--dataplane", "node"]),
    }
}

fn all_agree(examples: &[&str], mode: Mode, least: usize) {
    let (mut compared, mut differ) = (0, Vec::new());
    for name in examples {
        let Some((up, published)) = start(|folder| example(name, folder), mode) else {
            return;
        };
        let mesh = mesh_of(&up.file(""), mode);
        let running = Running::of(&up, published, mode);
        let (count, found) = compare(&mesh, &running);
        eprintln!(
            "{name} {mode:?}: {count} answers compared, {} differ",
            found.len()
        );
        compared += count;
        differ.extend(
            found
                .into_iter()
                .map(|one| format!("{name} {mode:?}: {one}")),
        );
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(compared >= least, "only {compared} answers were compared");
}

#[test]
fn explain_and_who_can_say_what_sidecars_on_loopback_addresses_do() {
    all_agree(&SIDECARS, Mode::Loopback, 150);
}

#[test]
fn explain_and_who_can_say_what_sidecars_and_node_proxies_in_namespaces_do() {
    all_agree(&LABELS, Mode::Labels, 150);
}

#[test]
fn explain_and_who_can_say_what_a_node_proxy_alone_does() {
    all_agree(&NODE, Mode::Node, 60);
}

/// Four services and a caller of all of them.
fn services(folder: &Path) {
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: broken, labels: {istio-injection: enabled}}\n".to_owned();
    for name in ["allow", "audit", "deny", "free"] {
        text += &format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: broken}}\nspec: {{type: LoadBalancer, selector: {{app: {name}}}, ports: [{{name: http, port: 8080}}]}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: broken, labels: {{app: {name}}}}}\n\
             spec: {{serviceAccountName: {name}, containers: [{{name: app, command: [\"$(VOILE)\", echo, --listen, \"0.0.0.0:8080\"]}}]}}\n"
        );
    }
    std::fs::write(folder.join("services.yaml"), text).expect("written");
}

#[test]
fn explain_and_who_can_say_what_security_resources_that_cannot_be_read_do() {
    let unknown = "{key: request.weather, values: [rain]}";
    let policy = |name: &str, action: &str| {
        format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: broken}}\n\
             spec: {{selector: {{matchLabels: {{app: {name}}}}}, action: {action}, rules: [{{to: [{{operation: {{paths: [/open]}}}}], when: [{unknown}]}}]}}\n"
        )
    };
    let broken = policy("allow", "ALLOW") + &policy("audit", "AUDIT") + &policy("deny", "DENY");
    for mode in [Mode::Labels, Mode::Node] {
        let Some((up, published)) = start(services, mode) else {
            return;
        };
        put(&up.file("broken.yaml"), &broken);
        wait_until("all three to be named", || {
            let said = up.text("err");
            let mut names = ["broken/allow", "broken/audit", "broken/deny"].iter();
            names.all(|name| said.contains(name))
        });
        let mesh = mesh_of(&up.file(""), mode);
        let running = Running::of(&up, published, mode);
        let (compared, differ) = compare(&mesh, &running);
        assert!(differ.is_empty(), "{mode:?}: {}", differ.join("\n"));
        assert!(compared > 60, "{mode:?}: only {compared}");
    }
}
