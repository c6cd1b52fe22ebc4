//! Stock gRPC in the mesh, by `voile agent` and no other part of Voile in its process. It resolves, balances, speaks mutual TLS
//! with its like and with sidecars, follows changes, obeys policies, and trusts no other peer. In each language that this machine
//! has.
//!
//! `grpc_xds/peer.py` needs a Python that can `import grpc` (`GRPC_PYTHON`, else `python3`); `tests/peers/build` builds
//! `grpc_xds/peer.go` (`GRPC_GO_PEER`, else `grpc-go-xds-peer` on the path).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use voile_testkit::prerequisites::{Prerequisite, skip};

use crate::mesh::{
    Mesh, Process, free_port, get, local, own_net, series, start_control, wait_until,
};

/// A language's program.
#[derive(Clone)]
struct Language {
    name: &'static str,
    command: Vec<OsString>,
}

/// gRPC languages on this machine. The test is skipped for the missing ones.
fn languages() -> Vec<Language> {
    let python = std::env::var_os("GRPC_PYTHON").unwrap_or_else(|| "python3".into());
    let go = std::env::var_os("GRPC_GO_PEER").unwrap_or_else(|| "grpc-go-xds-peer".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/grpc_xds/peer.py");
    let quiet = |command: &mut Command| {
        let ran = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        ran.ok().and_then(|status| status.code())
    };
    let mut found = Vec::new();
    match quiet(Command::new(&python).args(["-c", "import grpc"])) {
        Some(0) => found.push(Language {
            name: "python",
            command: vec![python, script.into()],
        }),
        _ => skip(Prerequisite::GrpcPython, "there is no Python with grpcio"),
    }
    // Without arguments it ends with 1.
    match quiet(&mut Command::new(&go)) {
        Some(1) => found.push(Language {
            name: "go",
            command: vec![go],
        }),
        _ => skip(Prerequisite::GrpcGo, "there is no grpc-go-xds-peer on PATH"),
    }
    found
}

/// Address of the agents' control plane, and the folder of their files.
struct Stage<'a> {
    folder: &'a Path,
    xds: SocketAddr,
}

impl Stage<'_> {
    /// The command line of an agent for a pod, with the program that it is to start.
    fn agent(&self, command: &mut Command, (pod, account): (&str, &str), program: &[OsString]) {
        // Two agents that write into one folder would leave the key of one beside the certificate of the other.
        static AGENTS: AtomicUsize = AtomicUsize::new(0);
        let number = AGENTS.fetch_add(1, Ordering::Relaxed);
        let out = self.folder.join(format!("{pod}.certificates-{number}"));
        let token = self.folder.join(format!("{pod}.agent-token"));
        let state = self.folder.join("state");
        if !token.exists() {
            let made = Process::output(|voile| {
                let account = format!("shop/{account}");
                voile.args(["token", "create", "--service-account", &account, "--state"]);
                voile.arg(&state);
            });
            assert!(made.status.success());
            std::fs::write(&token, made.stdout).expect("the token");
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&token, mode).expect("its mode");
        }
        command.args(["agent", "--workload", &format!("shop/{pod}")]);
        command.args(["--control", &format!("https://{}", self.xds)]);
        command.arg("--token-file").arg(token);
        command.arg("--root-cert").arg(state.join("root-cert.pem"));
        command.arg("--out").arg(out).arg("--");
        command.args(program);
        command.env("PEER_DEADLINE", "4");
    }

    fn serve(&self, language: &Language, who: (&str, &str), address: SocketAddr) -> Process {
        let mut program = language.command.clone();
        let name = format!("{}-{}", language.name, who.0);
        program.extend(["serve".into(), address.to_string().into(), name.into()]);
        Process::start(who.0, |voile| self.agent(voile, who, &program))
    }

    fn client(&self, language: &Language, who: (&str, &str), target: &str) -> Client {
        let mut program = language.command.clone();
        program.extend(["call".into(), target.into()]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_voile"));
        self.agent(&mut command, who, &program);
        Client::start(command)
    }

    /// One that calls the service in each language.
    fn clients(&self, languages: &[Language]) -> Vec<Client> {
        let client = |language| self.client(language, ("client", "client"), "xds:///echo:7070");
        languages.iter().map(client).collect()
    }
}

/// A program that sends calls on command.
struct Client {
    child: Child,
    says: ChildStdin,
    hears: BufReader<ChildStdout>,
}

impl Client {
    fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Self {
            says: child.stdin.take().expect("a pipe"),
            hears: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        }
    }

    fn call(&mut self, text: &str) -> String {
        writeln!(self.says, "{text}").expect("it listens");
        let mut line = String::new();
        self.hears.read_line(&mut line).expect("it answers");
        line.trim_end().to_owned()
    }

    /// Calls until an answer fits.
    fn until(&mut self, what: &str, mut fits: impl FnMut(&str) -> bool) {
        let mut last = String::new();
        let mut calls = 0;
        wait_until(&format!("{what}: {last}"), || {
            last = self.call("x");
            calls += 1;
            assert!(calls < 2_000, "{what}: {last}");
            fits(&last)
        });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // An agent passes it on; what has ended needs none.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

const PORT: u16 = 7171;

/// A client and so many backends of one service.
fn resources(net: [u8; 3], backends: &[usize]) -> String {
    let [a, b, c] = net;
    let pod = |name: &str, account: &str, last: usize| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {account}, pod: {name}}}}}\n\
             spec: {{serviceAccountName: {account}, containers: [{{name: app}}]}}\n\
             status: {{phase: Running, podIP: {a}.{b}.{c}.{last}}}\n"
        )
    };
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n\
         ---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\n\
         spec: {mtls: {mode: STRICT}}\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {name: echo, namespace: shop}\n\
         spec: {selector: {app: echo}, ports: [{name: grpc, port: 7070, targetPort: 7171}]}\n"
        .to_owned();
    text += &pod("client", "client", 1);
    for backend in backends {
        text += &pod(&format!("echo-{backend}"), "echo", 10 + backend);
    }
    text
}

fn policy(action: &str, rule: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: who, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: echo}}}}\n  action: {action}\n  rules: [{rule}]\n"
    )
}

/// A control plane, and where its configuration is.
struct Plane {
    _folder: tempfile::TempDir,
    _control: Process,
    folder: PathBuf,
    net: [u8; 3],
    xds: SocketAddr,
    monitoring: SocketAddr,
}

impl Plane {
    fn start(backends: &[usize]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let net = own_net();
        std::fs::create_dir(folder.path().join("config")).expect("the config folder");
        let ports = [free_port(), free_port(), free_port()];
        let path = folder.path().to_path_buf();
        std::fs::write(path.join("config/mesh.yaml"), resources(net, backends)).expect("resources");
        Self {
            _control: start_control(&path, ports, None, &[]),
            _folder: folder,
            folder: path,
            net,
            xds: local(ports[0]),
            monitoring: local(ports[2]),
        }
    }

    fn write(&self, name: &str, text: &str) {
        let draft = self.folder.join(name);
        std::fs::write(&draft, text).expect("a file");
        std::fs::rename(draft, self.folder.join("config").join(name)).expect("in its place");
    }

    fn stage(&self) -> Stage<'_> {
        Stage {
            folder: &self.folder,
            xds: self.xds,
        }
    }

    fn backend(&self, number: usize) -> SocketAddr {
        let [a, b, c] = self.net;
        SocketAddr::from(([a, b, c, 10 + number as u8], PORT))
    }

    /// A backend; in each language in its turn.
    fn serve(&self, languages: &[Language], number: usize) -> Process {
        let language = &languages[number % languages.len()];
        let name = format!("echo-{number}");
        self.stage()
            .serve(language, (&name, "echo"), self.backend(number))
    }

    fn status(&self) -> String {
        let answer = get(self.monitoring, "/debug/status").expect("the page");
        String::from_utf8(answer.body).expect("text")
    }
}

#[test]
fn clients_resolve_balance_follow_changes_and_servers_obey_policies() {
    let languages = languages();
    if languages.is_empty() {
        return;
    }
    let plane = Plane::start(&[0, 1, 2]);
    let stage = plane.stage();
    let serve = |number| plane.serve(&languages, number);
    let servers: Vec<Process> = (0..3).map(serve).collect();
    let mut clients = stage.clients(&languages);
    let caller = "to spiffe://cluster.local/ns/shop/sa/client";
    for client in &mut clients {
        for number in 0..3 {
            client.until("each backend in its turn", |answer| {
                answer.contains(&format!("echo-{number} {caller}"))
            });
        }
    }
    plane.write("mesh.yaml", &resources(plane.net, &[2]));
    for client in &mut clients {
        let mut in_a_row = 0;
        client.until("the one that is left", |answer| {
            in_a_row = if answer.contains("echo-2 ") {
                in_a_row + 1
            } else {
                0
            };
            in_a_row == 10
        });
    }
    let allowed = "{from: [{source: {serviceAccounts: [client]}}], to: [{operation: {paths: [/voile.test.Echo/Say]}}]}";
    plane.write("policy.yaml", &policy("ALLOW", allowed));
    for client in &mut clients {
        wait_until("another method is denied", || {
            let answer = client.call("/voile.test.Other/Say").to_lowercase();
            answer.contains("permission")
        });
        client.until("this one is not", |answer| answer.contains(caller));
    }
    // A rule that gRPC cannot evaluate closes the server, and the status page gives the reason.
    plane.write(
        "policy.yaml",
        &policy(
            "DENY",
            "{from: [{source: {notRequestPrincipals: [\"*\"]}}]}",
        ),
    );
    wait_until("the reason on the status page", || {
        plane.status().contains("gRPC verifies no tokens")
    });
    clients[0].until("nobody is let in", |answer| answer.starts_with("error"));
    std::fs::remove_file(plane.folder.join("config/policy.yaml")).expect("removed");
    clients[0].until("all is well again", |answer| answer.contains(caller));
    for mut server in servers {
        server.terminate();
        assert_ne!(server.wait().code(), Some(1), "{}", server.log());
    }
}

/// Routes of the service, with a part for each of two backends.
fn routes(http: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{host: echo, subsets: [{{name: zero, labels: {{pod: echo-0}}}}, {{name: one, labels: {{pod: echo-1}}}}]}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{hosts: [echo], http: {http}}}\n"
    )
}

#[test]
fn calls_take_the_routes_that_they_match_and_none_where_grpc_cannot_ask() {
    let languages = languages();
    if languages.is_empty() {
        return;
    }
    let plane = Plane::start(&[0, 1]);
    let stage = plane.stage();
    let to = |subset: &str| format!("route: [{{destination: {{host: echo, subset: {subset}}}}}]");
    let other = "match: [{uri: {prefix: /voile.test.Other/}, method: {exact: POST}, withoutHeaders: {x: {exact: \"y\"}}}]";
    let never =
        "match: [{queryParams: {q: {}}}, {method: {exact: GET}}, {sourceLabels: {app: echo}}]";
    let gone = "match: [{uri: {exact: /voile.test.Gone/Say}}]";
    let by_path = format!(
        "[{{{never}, {}}}, {{{other}, {}}}, {{{gone}, {}}}, {{{}}}]",
        to("one"),
        to("one"),
        to("missing"),
        to("zero")
    );
    plane.write("routes.yaml", &routes(&by_path));
    let serve = |number| plane.serve(&languages, number);
    let servers: Vec<Process> = (0..2).map(serve).collect();
    let mut clients = stage.clients(&languages);
    for client in &mut clients {
        client.until("the part of all other calls", |answer| {
            answer.contains("echo-0 to")
        });
        for _ in 0..20 {
            assert!(client.call("x").contains("echo-0 to"));
            assert!(client.call("/voile.test.Other/Say").contains("echo-1 to"));
        }
        let answer = client.call("/voile.test.Gone/Say");
        assert!(answer.starts_with("error"), "{answer}");
    }
    // Weights.
    let shared = "[{route: [{destination: {host: echo, subset: zero}, weight: 1}, {destination: {host: echo, subset: one}, weight: 1}]}]";
    plane.write("routes.yaml", &routes(shared));
    for client in &mut clients {
        for number in 0..2 {
            client.until("each part in its turn", |answer| {
                answer.contains(&format!("echo-{number} to"))
            });
        }
    }
    // A match that gRPC does not evaluate.
    let unasked = format!(
        "[{{match: [{{scheme: {{exact: http}}}}], {}}}, {{{}}}]",
        to("one"),
        to("zero")
    );
    plane.write("routes.yaml", &routes(&unasked));
    wait_until("the reason on the status page", || {
        plane
            .status()
            .contains("`scheme`: gRPC routes cannot match this")
    });
    for client in &mut clients {
        client.until("nobody is called", |answer| answer.starts_with("error"));
    }
    plane.write("routes.yaml", &routes(&by_path));
    for client in &mut clients {
        client.until("all is well again", |answer| answer.contains("echo-0 to"));
    }
    for mut server in servers {
        server.terminate();
        assert_ne!(server.wait().code(), Some(1), "{}", server.log());
    }
}

/// A DestinationRule for calls of the service.
fn rule(policy: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{host: echo, trafficPolicy: {policy}}}\n"
    )
}

#[test]
fn a_rule_says_who_takes_a_call_and_what_of_it_grpc_cannot_do_is_named() {
    let languages = languages();
    if languages.is_empty() {
        return;
    }
    let plane = Plane::start(&[0, 1, 2]);
    let stage = plane.stage();
    let serve = |number| plane.serve(&languages, number);
    let _servers: Vec<Process> = (0..3).map(serve).collect();
    let mut clients = stage.clients(&languages);
    let by = |answer: &str| answer.split(' ').next().unwrap_or_default().to_owned();
    let apart = |clients: &mut [Client], words: &str| {
        for client in clients {
            for number in 0..3 {
                client.until("each backend in its turn", |answer| {
                    answer.contains(&format!("echo-{number} to"))
                });
            }
        }
        wait_until(words, || plane.status().contains(words));
        let page = plane.status();
        let refused = page
            .lines()
            .find(|line| line.contains("last_nack\":") && !line.contains("null"));
        assert_eq!(refused, None, "{page}");
    };
    apart(&mut clients, "\"ready\": true");
    // Two calls with one user and two with another would do by chance once in a while; so many do not.
    let users: Vec<String> = (0..12).map(|number| format!("@user-{number}")).collect();
    let hash = |how: &str| rule(&format!("{{loadBalancer: {{consistentHash: {{{how}}}}}}}"));
    plane.write("rule.yaml", &hash("httpHeaderName: user"));
    for client in &mut clients {
        wait_until("calls of a user are kept together", || {
            let together = |user: &String| {
                let first = by(&client.call(user));
                (0..8).all(|_| by(&client.call(user)) == first)
            };
            users.iter().all(together)
        });
        let taking: BTreeSet<String> = users.iter().map(|user| by(&client.call(user))).collect();
        assert!(taking.len() > 1, "users are apart: {taking:?}");
    }
    plane.write("rule.yaml", &hash("useSourceIp: true"));
    for client in &mut clients {
        wait_until("all calls of a channel are kept together", || {
            let first = by(&client.call("x"));
            (0..20).all(|_| by(&client.call("x")) == first)
        });
    }
    wait_until("what is otherwise", || {
        plane
            .status()
            .contains("consistent-hash: port 7070: `useSourceIp`")
    });
    // Known in one language and not in the other: neither refuses it.
    let least = "{loadBalancer: {simple: LEAST_REQUEST}, outlierDetection: {}}";
    plane.write("rule.yaml", &rule(least));
    apart(
        &mut clients,
        "load-balancer: port 7070: gRPC supports LEAST_REQUEST",
    );
    assert!(plane.status().contains("outlier-detection: port 7070"));
}

#[test]
fn a_server_that_proves_to_be_somebody_else_is_not_called() {
    for language in languages() {
        let plane = Plane::start(&[0]);
        let stage = plane.stage();
        // It has what it takes to serve: its own listener, and a certificate of the mesh.
        let mut impostor = stage.serve(&language, ("client", "client"), plane.backend(0));
        let mut client = stage.client(&language, ("client", "client"), "xds:///echo.shop:7070");
        let answer = client.call("x");
        assert!(answer.starts_with("error"), "{answer}\n{}", impostor.log());
        impostor.terminate();
        impostor.wait();
        let _server = stage.serve(&language, ("echo-0", "echo"), plane.backend(0));
        client.until("the right one", |answer| {
            answer.contains("echo-0 to spiffe://")
        });
    }
}

#[test]
fn sidecars_and_grpc_speak_mutual_tls_with_each_other() {
    let languages = languages();
    if languages.is_empty() {
        return;
    }
    let mut mesh = Mesh::start("STRICT");
    let xds = mesh.management()[0];
    let config = mesh.config();
    let stage = Stage {
        folder: config.parent().expect("a folder above"),
        xds,
    };
    let plain = |language: &Language, words: [&str; 3]| {
        let mut command = Command::new(&language.command[0]);
        command.args(&language.command[1..]);
        command.args(words.into_iter().filter(|word| !word.is_empty()));
        Client::start(command)
    };
    for language in &languages {
        let behind = mesh.grpc_app().to_string();
        let _app = plain(language, ["plain", &behind, "app"]);
        let target = format!("xds:///server.shop:{}", crate::mesh::GRPC_PORT);
        let mut client = stage.client(language, ("client", "client"), &target);
        client.until("a sidecar's application", |answer| {
            answer == "app to nobody"
        });
        let labels = [
            "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
            "connection_security_policy=\"mutual_tls\"",
        ];
        wait_until("the sidecar knows who called", || {
            series(&mesh.server_metrics(), "istio_requests_total", &labels).is_some()
        });
    }
    mesh.server.terminate();
    mesh.server.wait();
    for language in &languages {
        let at = mesh.inbound(crate::mesh::GRPC_PORT);
        let mut server = stage.serve(language, ("server", "server"), at);
        let through = mesh.grpc().to_string();
        let mut client = plain(language, ["call", &through, ""]);
        let wanted = format!(
            "{}-server to spiffe://cluster.local/ns/shop/sa/client",
            language.name
        );
        client.until("a server through a sidecar", |answer| answer == wanted);
        server.terminate();
        server.wait();
    }
}
