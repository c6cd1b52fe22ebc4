//! The cases at a gateway, replayed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use super::{Expectation, Heard, backends};
use crate::mesh::wait_until;
use crate::up::Up;

/// The first port of the cases' listeners; each case has its own.
const FIRST_PORT: u16 = 20_001;

const CASES: [&str; 4] = [
    include_str!("cases/matching.txt"),
    include_str!("cases/filters.txt"),
    include_str!("cases/references.txt"),
    include_str!("cases/grpc.txt"),
];

/// One case: the suite's name of it, listeners, resources, and lines of what is asked.
struct Case<'a> {
    name: &'a str,
    port: u16,
    /// Name, host (`-` is any) and whose routes (`same`, `all`, or the label `part` of their namespace).
    listeners: Vec<[&'a str; 3]>,
    resources: String,
    lines: Vec<String>,
}

fn cases() -> Vec<Case<'static>> {
    let texts = CASES.iter().flat_map(|text| text.split("=== ").skip(1));
    let case = |(port, text): (u16, &'static str)| {
        let (name, rest) = text.split_once('\n').expect("a name");
        let (said, lines) = rest.split_once(">>>\n").expect("resources and lines");
        let listens = said.lines().filter_map(|line| line.strip_prefix("listen "));
        let words = listens.map(|line| {
            let mut words = line.split_whitespace();
            [0; 3].map(|_| words.next().expect("name, host and whose"))
        });
        let mut listeners: Vec<_> = words.collect();
        if listeners.is_empty() {
            listeners.push(["http", "-", "same"]);
        }
        let yaml = said.lines().filter(|line| !line.starts_with("listen "));
        let yaml: String = yaml.map(|line| format!("{line}\n")).collect();
        let lines = lines.lines();
        let lines = lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        Case {
            name: name.trim(),
            port,
            listeners,
            resources: yaml
                .replace(
                    "@PARENT",
                    &format!("{{name: edge, namespace: infra, port: {port}}}"),
                )
                .replace("@PORT", &port.to_string()),
            lines: lines
                .map(|line| line.replace("@PORT", &port.to_string()))
                .collect(),
        }
    };
    (FIRST_PORT..).zip(texts).map(case).collect()
}

/// The Gateway of all cases.
fn gateway(cases: &[Case<'_>]) -> String {
    let mut yaml = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: infra}\n\
                    spec:\n  gatewayClassName: voile\n  listeners:\n"
        .to_owned();
    for case in cases {
        for [name, host, whose] in &case.listeners {
            let host = match *host {
                "-" => String::new(),
                host => format!(", hostname: \"{host}\""),
            };
            let from = match *whose {
                "same" => "from: Same".to_owned(),
                "all" => "from: All".to_owned(),
                part => format!("from: Selector, selector: {{matchLabels: {{part: {part}}}}}"),
            };
            let port = case.port;
            writeln!(
                yaml,
                "  - {{name: p{port}-{name}, port: {port}, protocol: HTTP{host}, allowedRoutes: {{namespaces: {{{from}}}}}}}"
            )
            .expect("written");
        }
    }
    yaml
}

#[test]
fn what_the_conformance_suite_asks_of_a_gateway_is_answered_as_it_wants() {
    let cases = cases();
    assert!(cases.len() >= 20, "the cases are missing");
    let heard = Heard::default();
    let mut resources = backends(&heard);
    for namespace in ["infra", "apps", "web"] {
        write!(
            resources,
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{part: {namespace}}}}}\n---\n"
        )
        .expect("written");
    }
    resources += &gateway(&cases);
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &resources).expect("written");
    };
    let mut up = Up::start(write, &["--quiet"]);
    let published = up.ready();
    // What is wrong in them keeps `voile up` from starting, and not what is right from being in force once it runs.
    let routes = cases.iter().map(|case| format!("---\n{}", case.resources));
    std::fs::write(up.file("routes.new"), routes.collect::<String>()).expect("written");
    std::fs::rename(up.file("routes.new"), up.file("routes.yaml")).expect("renamed");
    let first = published[&format!("infra/edge-voile:{FIRST_PORT}")];
    wait_until("the routes", || {
        replay(&cases[0].lines[0], first, &heard).is_ok()
    });
    let mut wrong = String::new();
    let mut asked = 0;
    for case in &cases {
        let at = published.get(&format!("infra/edge-voile:{}", case.port));
        let at = *at.unwrap_or_else(|| panic!("{} is not published: {published:?}", case.name));
        for line in &case.lines {
            asked += 1;
            if let Err(why) = replay(line, at, &heard) {
                writeln!(wrong, "{}: {line}\n    {why}", case.name).expect("written");
            }
        }
    }
    assert!(asked > 100, "{asked}");
    assert!(wrong.is_empty(), "of {asked}:\n{wrong}");
}

fn replay(line: &str, at: SocketAddr, heard: &Heard) -> Result<(), String> {
    if let Some(rest) = line.strip_prefix("share ") {
        return shares(rest, at);
    }
    let mirrors: Vec<&str> = line.split_whitespace().collect();
    let mirrors = mirrors
        .iter()
        .filter_map(|word| word.strip_prefix("mirror:"));
    let mirrors: Vec<&str> = mirrors.collect();
    let asked = line.split_whitespace();
    let asked: Vec<&str> = asked.filter(|word| !word.starts_with("mirror:")).collect();
    let asked = asked.join(" ");
    let expectation = Expectation::read(&asked);
    let answer = expectation.ask(at).map_err(|error| error.to_string())?;
    if let Some(why) = expectation.wrong(&answer) {
        return Err(why);
    }
    for backend in mirrors {
        let path = expectation.path;
        wait_until(&format!("a copy of {path} at {backend}"), || {
            let heard = heard.lock().expect("whole");
            let paths = heard.get(backend).into_iter().flatten();
            paths.into_iter().any(|one| one == path)
        });
    }
    Ok(())
}

/// `COUNT METHOD HOST PATH => NAME=PERCENT …`: how many of so many came to each.
fn shares(line: &str, at: SocketAddr) -> Result<(), String> {
    let (count, rest) = line.split_once(' ').expect("a count");
    let count: u32 = count.parse().expect("a count");
    let (asked, wanted) = rest.split_once(" => ").expect("=>");
    let asked = format!("{asked} => 200");
    let expectation = Expectation::read(&asked);
    let mut found: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..count {
        let answer = expectation.ask(at).map_err(|error| error.to_string())?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        let by = match answer.status {
            200 => body.lines().next().unwrap_or_default().to_owned(),
            status => status.to_string(),
        };
        *found.entry(by).or_default() += 1;
    }
    for one in wanted.split_whitespace() {
        let (name, percent) = one.split_once('=').expect("NAME=PERCENT");
        let percent: f64 = percent.parse().expect("a number");
        let took = f64::from(found.remove(name).unwrap_or(0)) * 100.0 / f64::from(count);
        // Of 300 requests a share of 50 % has a deviation of 2.9 %: this is four of them.
        let off = (took - percent).abs();
        if off > 12.0 || (percent == 0.0 && took > 0.0) {
            return Err(format!("{name} took {took} %"));
        }
    }
    match found.is_empty() {
        true => Ok(()),
        false => Err(format!("nobody meant took some: {found:?}")),
    }
}
