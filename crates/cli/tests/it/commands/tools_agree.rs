//! One question to `explain`, to `who-can` and to the running mesh: every identity of an example asks every service for every path and
//! method that its policies tell apart, on every data plane that the example supports. The answers must agree (invariant 8), and
//! `analyze` must name the policies that decide nothing.

mod ask;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use voile_analysis::analyze;
use voile_analysis::codes::NAMESPACES_ONLY;
use voile_analysis::explain::{
    AccessQuestion, CallerAccess, CallerGroup, Explanation, explain, who_can,
};
use voile_model::mesh::{AuthorizationPolicy, Mesh, MeshService, Protocol, ServicePort, Transport};
use voile_model::{Diagnostic, Identity, Severity, check, files};

use crate::mesh::{put, wait_until};
use crate::up::netns::start_with;
use crate::up::{Up, example};
use ask::{Mode, Running, Seen};
use voile_testkit::prerequisites::{Prerequisite, skip};

/// Paths that every service is asked for, besides those of policies.
const PATHS: [&str; 2] = ["/", "/nowhere/at/all"];
const METHODS: [&str; 2] = ["GET", "POST"];
/// Fewest answers that every example must give.
const LEAST: usize = 4;

/// The mesh as the tools read it, and what `analyze` says of it.
fn mesh_of(folder: &Path, mode: Mode) -> (Mesh, Vec<Diagnostic>) {
    let read = files::read_directory(folder).expect("the folder");
    let (mut mesh, mut problems) = check(&read, None);
    if mode == Mode::Node {
        voile_local::serve_by_node(&mut mesh);
    }
    problems.extend(analyze(&mesh, SystemTime::now()));
    problems.retain(|one| mode == Mode::Loopback || one.code != NAMESPACES_ONLY);
    problems.retain(|one| one.severity != Severity::Note);
    (mesh, problems)
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

/// Answers of the tools and of a running mesh.
#[derive(Default)]
struct Comparison {
    /// Number of answers.
    compared: usize,
    /// Where they differ.
    differ: Vec<String>,
    /// What the tools say of policies that decide, ask or would decide.
    deciding: BTreeSet<String>,
}

/// Compares all answers about a running mesh.
fn compare(mesh: &Mesh, running: &Running<'_>) -> Comparison {
    let mut comparison = Comparison::default();
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
                    for one in &all {
                        let decided = [Some(&one.decided), one.asked.as_ref()];
                        let policies = decided.into_iter().flatten();
                        let policies = policies.filter_map(|decided| decided.policy.clone());
                        comparison.deciding.extend(policies);
                        comparison.deciding.extend(one.beside.iter().cloned());
                    }
                    // An external authorizer decides by itself, and workloads with different policies
                    // answer by chance.
                    let open = all
                        .iter()
                        .any(|one| one.asked.is_some() || one.allowed != first.allowed);
                    if open {
                        continue;
                    }
                    let seen = caller.ask(port.number.get(), (method, path), first.allowed);
                    comparison.compared += 1;
                    let table = row.map(|row| &row.answer);
                    let contradicts = match (table, &seen) {
                        (Some(CallerAccess::Everything), Seen::Denied(_)) => true,
                        (Some(CallerAccess::Nothing(_)), seen) => !seen.is_denial(),
                        _ => false,
                    };
                    if seen.is_denial() == first.allowed || contradicts {
                        comparison.differ.push(format!(
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
    comparison
}

/// `analyze` names exactly the policies that decide nothing. A policy about tokens needs one, and no request here brings it.
fn unexplained(mesh: &Mesh, problems: &[Diagnostic], deciding: &BTreeSet<String>) -> Vec<String> {
    let about_tokens = |policy: &AuthorizationPolicy| {
        let from = policy.rules.iter().flat_map(|rule| &rule.from);
        let mut tokens = from.map(|source| &source.request_principals);
        tokens.any(|tokens| !tokens.any_of.is_empty() || !tokens.none_of.is_empty())
    };
    let policies = mesh.authorization_policies.values();
    let policies = policies.filter(|policy| !about_tokens(policy));
    let mut found = Vec::new();
    for policy in policies {
        let name = policy.name.to_string();
        let decides = deciding.iter().any(|one| one.ends_with(&name));
        let told = problems.iter().any(|one| one.message.contains(&name));
        if decides == told {
            found.push(format!(
                "AuthorizationPolicy {name}: decides {decides}, named by analyze {told}"
            ));
        }
    }
    found
}

/// Starts a mesh so, in which `analyze` may find no error; nothing where this machine cannot.
fn start(fill: impl FnOnce(&Path), mode: Mode) -> Option<(Up, ask::Published)> {
    let options = [mode.options(), &["--strict"]].concat();
    match mode {
        Mode::Loopback => {
            let mut up = Up::start(fill, &options);
            let published = up.ready();
            Some((up, published))
        }
        Mode::Labels | Mode::Mixed | Mode::Node => start_with(fill, None, &options),
    }
}

/// The tools and the running mesh answer alike.
fn agrees(name: &str, mode: Mode, fill: impl FnOnce(&Path)) {
    let Some((up, published)) = start(fill, mode) else {
        return;
    };
    let (mesh, problems) = mesh_of(&up.file(""), mode);
    assert!(!problems.iter().any(Diagnostic::is_error), "{problems:?}");
    let running = Running::of(&up, published, mode);
    let Comparison {
        compared,
        mut differ,
        deciding,
    } = compare(&mesh, &running);
    eprintln!("{name} {mode:?}: {compared} answers compared");
    differ.extend(unexplained(&mesh, &problems, &deciding));
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(compared >= LEAST, "only {compared} answers were compared");
}

/// `voile up --strict` ends with this error. An error of the analysis is one of `analyze`, too.
fn is_refused(name: &str, mode: Mode, code: &str) {
    let isolation = match mode {
        Mode::Loopback => "loopback",
        Mode::Labels | Mode::Mixed | Mode::Node => "netns",
    };
    let options = [&["--isolation", isolation, "--strict"], mode.options()].concat();
    let mut up = Up::start_as(|folder| example(name, folder), &options, None);
    let status = up.wait();
    let said = up.text("err");
    if said.contains("--isolation netns is not possible here") {
        return skip(Prerequisite::Netns, &said);
    }
    assert_eq!(status.code(), Some(1), "{said}");
    let told = said.contains(&format!("error[{code}]")) && said.contains("nothing was started");
    assert!(told, "{said}");
    let (_, problems) = mesh_of(&up.file(""), mode);
    let by_analysis = problems
        .iter()
        .any(|one| one.code == code && one.is_error());
    assert_eq!(by_analysis, !code.starts_with("V06"), "{problems:?}");
}

/// A test for each example and data plane: those that agree, and those that a data plane refuses with this error.
macro_rules! examples {
    ($($mode:ident as $module:ident: [$($agrees:ident)*] $($code:literal [$($refused:ident)*])*;)*) => {
        const TABLE: &[(Mode, &str)] = &[$(
            $((Mode::$mode, stringify!($agrees)),)*
            $($((Mode::$mode, stringify!($refused)),)*)*
        )*];
        $(mod $module {
            use super::*;
            $(#[test] fn $agrees() {
                let name = folder(stringify!($agrees));
                agrees(&name, Mode::$mode, |folder| example(&name, folder));
            })*
            $($(#[test] fn $refused() { is_refused(&folder(stringify!($refused)), Mode::$mode, $code); })*)*
        })*
    };
}

examples! {
    Loopback as sidecars_on_loopback_addresses:
        [bookstore canary gateway_api ingress locality policies rate_limits resilience routing sticky]
        "V0608" [ambient] "V0411" [http3];
    Labels as sidecars_and_node_proxies_in_namespaces:
        [ambient bookstore canary gateway_api ingress locality policies rate_limits resilience routing sticky]
        "V0411" [http3];
    Mixed as a_mixed_data_plane:
        [ambient bookstore canary gateway_api ingress locality policies rate_limits resilience routing sticky]
        "V0411" [http3];
    Node as a_node_proxy_alone:
        [ambient]
        "V0609" [bookstore canary gateway_api ingress locality resilience routing sticky]
        "V0343" [policies] "V0351" [rate_limits] "V0411" [http3];
}

fn folder(name: &str) -> String {
    name.replace('_', "-")
}

/// `egress` calls what is outside the mesh; `machine` and `graphs` start no pods; `tracing` has a program that is not ours.
#[test]
fn every_other_example_is_in_the_table_for_every_data_plane() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(root).expect("the examples").flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    for name in folders.filter_map(|entry| entry.file_name().into_string().ok()) {
        let modes = TABLE.iter().filter(|(_, one)| folder(one) == name).count();
        let exempt = ["egress", "machine", "graphs", "tracing"].contains(&name.as_str());
        assert_eq!(modes, if exempt { 0 } else { 4 }, "{name}");
    }
}

/// `analyze` warns of the policy that no waypoint enforces, and only of that.
#[test]
fn a_policy_without_its_waypoint_is_named_and_decides_nothing() {
    let without = |folder: &Path| {
        example("ambient", folder);
        let books = folder.join("books.yaml");
        let text = std::fs::read_to_string(&books).expect("books");
        put(
            &books,
            &text.replace("use-waypoint: gate", "use-waypoint: none"),
        );
    };
    agrees("ambient without a waypoint", Mode::Labels, without);
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
        let (mesh, _) = mesh_of(&up.file(""), mode);
        let running = Running::of(&up, published, mode);
        let Comparison {
            compared, differ, ..
        } = compare(&mesh, &running);
        assert!(differ.is_empty(), "{mode:?}: {}", differ.join("\n"));
        assert!(compared > 60, "{mode:?}: only {compared}");
    }
}
