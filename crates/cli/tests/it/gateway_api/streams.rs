//! The suite's cases of TLSRoute and TCPRoute, replayed: openssl asks by name, and servers of plain TCP say who they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::gateway::streams::{greet, heard, shown, tls_client, tls_server};
use crate::mesh::certificates::Keys;
use crate::mesh::{Process, own_net, wait_until};
use crate::up::Up;

const CASES: &str = include_str!("cases/connections.txt");
/// The first port of the cases' listeners, and how many each case has.
const FIRST_PORT: u16 = 21_001;
const PORTS: u16 = 4;

/// Servers of plain TCP, each a Service of its namespace.
const PLAIN: [(&str, &str); 5] = [
    ("one", "infra"),
    ("two", "infra"),
    ("three", "infra"),
    ("web", "web"),
    ("far", "far"),
];
/// Servers of TLS that show a certificate of their name.
const SECURE: [&str; 2] = ["tls-one", "tls-two"];

/// A case: its name in the suite, lines of its resources, and lines of requests.
struct Case<'a> {
    name: &'a str,
    port: u16,
    said: String,
    lines: Vec<&'a str>,
}

fn cases() -> Vec<Case<'static>> {
    let texts = CASES.split("=== ").skip(1);
    let ports = (0..).map(|index| FIRST_PORT + PORTS * index);
    let case = |(port, text): (u16, &'static str)| {
        let (name, rest) = text.split_once('\n').expect("a name");
        let (said, lines) = rest.split_once(">>>\n").expect("resources and lines");
        let mut said = said.replace("@EDGE", &format!("edge-{port}"));
        for offset in 0..PORTS {
            said = said.replace(&format!("@{offset}"), &(port + offset).to_string());
        }
        let lines = lines.lines().filter(|line| !line.trim().is_empty());
        Case {
            name,
            port,
            said,
            lines: lines.collect(),
        }
    };
    ports.zip(texts).map(case).collect()
}

/// Starts the servers; gives the resources by which the mesh knows them.
fn servers(keys: &Keys) -> (String, Vec<Process>) {
    let [a, b, c] = own_net();
    let known = |name: &str, namespace: &str, at: SocketAddr, port: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{port}, targetPort: {}}}]}}\n---\n\
             apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{address: {}, labels: {{app: {name}}}}}\n---\n",
            at.port(),
            at.ip()
        )
    };
    let mut yaml = String::new();
    for (last, (name, namespace)) in (1..).zip(PLAIN) {
        let listener = TcpListener::bind((Ipv4Addr::new(a, b, c, last), 0)).expect("a port");
        let at = listener.local_addr().expect("bound");
        greet(listener, name);
        yaml += &known(name, namespace, at, "{name: tcp, port: 3000");
    }
    let mut processes = Vec::new();
    for (last, name) in (20..).zip(SECURE) {
        keys.own(name, "abc.example.com");
        let at = SocketAddr::from((Ipv4Addr::new(a, b, c, last), 14_443));
        processes.push(tls_server(keys, name, at, &[]));
        yaml += &known(name, "infra", at, "{name: tls, port: 443");
    }
    (yaml, processes)
}

/// `tls PORT NAME => WHO`: the certificate that a client sees for a name. `ends PORT NAME => WHO`: the server inside TLS that
/// ends at the gateway. `tcp PORT => WHO`. `share COUNT tcp PORT => WHO=PERCENT …`. `reset` stands for no server.
fn replay(line: &str, at: &dyn Fn(&str) -> SocketAddr) -> Result<(), String> {
    let (asked, wanted) = line.split_once(" => ").expect("=>");
    let words: Vec<&str> = asked.split_whitespace().collect();
    let who = |words: &[&str]| match words {
        ["tls", port, name] => shown(at(port), &["-servername", name]).unwrap_or_default(),
        ["ends", port, name] => tls_client(at(port), &["-quiet", "-servername", name]),
        ["tcp", port] => heard(at(port)),
        other => panic!("nothing is asked by {other:?}"),
    };
    let named = |who: String| match who.as_str() {
        "" => "reset".to_owned(),
        _ => who,
    };
    let ["share", count, rest @ ..] = words.as_slice() else {
        let found = named(who(&words));
        return (found == wanted).then_some(()).ok_or(found);
    };
    let count: u32 = count.parse().expect("a count");
    let mut found: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..count {
        *found.entry(named(who(rest))).or_default() += 1;
    }
    for one in wanted.split_whitespace() {
        let (name, percent) = one.split_once('=').expect("WHO=PERCENT");
        let share = percent.parse::<f64>().expect("a number") / 100.0;
        let took = f64::from(found.remove(name).unwrap_or(0)) / f64::from(count);
        let deviation = (share * (1.0 - share) / f64::from(count)).sqrt();
        // Twelve in a hundred are four deviations of 300 connections of which half go there.
        if (took - share).abs() > (5.0 * deviation).min(0.12) {
            return Err(format!("{name} took {:.1} %", 100.0 * took));
        }
    }
    found
        .is_empty()
        .then_some(())
        .ok_or(format!("{found:?} took some"))
}

#[test]
fn what_the_conformance_suite_asks_of_routes_of_connections_is_answered_as_it_wants() {
    let cases = cases();
    let keys = Keys::new();
    let (mut resources, _servers) = servers(&keys);
    keys.own("edge", "tls.example.com");
    resources += &keys.secret(
        "infra",
        "edge",
        &[("tls.crt", "edge.crt"), ("tls.key", "edge.key")],
    );
    // Errors in the cases keep `voile up` from starting. The Gateways come first, and the routes
    // once it runs.
    let (mut gateways, mut routes) = (String::new(), String::new());
    for case in &cases {
        for document in case.said.split("---\n") {
            match document.contains("kind: Gateway\n") {
                true => write!(gateways, "---\n{document}").expect("written"),
                false => write!(routes, "---\n{document}").expect("written"),
            }
        }
    }
    resources += &gateways;
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &resources).expect("written");
    };
    let mut up = Up::start(write, &["--quiet"]);
    let published = up.ready();
    std::fs::write(up.file("routes.new"), routes).expect("written");
    std::fs::rename(up.file("routes.new"), up.file("routes.yaml")).expect("renamed");
    let mut asked = 0;
    let mut wrong = String::new();
    for case in &cases {
        let at = |offset: &str| {
            let port = case.port + offset.parse::<u16>().expect("an offset");
            let service = format!("infra/edge-{}-voile", case.port);
            let found = published.get(&format!("{service}:{port}"));
            let found = found.or_else(|| published.get(&service));
            *found.unwrap_or_else(|| panic!("{service}:{port} is not published: {published:?}"))
        };
        // Each gateway gets its configuration by itself; before that it does not answer.
        let mut lines = case.lines.iter();
        let answered = lines.find(|line| !line.ends_with("=> reset"));
        let answered = answered.expect("somebody who answers");
        wait_until(case.name, || replay(answered, &at).is_ok());
        for line in &case.lines {
            asked += 1;
            if let Err(why) = replay(line, &at) {
                writeln!(wrong, "{}: {line}\n    {why}", case.name).expect("written");
            }
        }
    }
    assert!(asked >= 25, "{asked}");
    assert!(wrong.is_empty(), "of {asked}:\n{wrong}");
}
