//! The cases at a gateway, replayed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use super::{Expectation, Heard, backends_with_first, protocols};
use crate::mesh::wait_until;
use crate::up::Up;

/// The first port of the cases' listeners, and how many each case has.
const FIRST_PORT: u16 = 20_001;
const PORTS: u16 = 3;

const CASES: [&str; 5] = [
    include_str!("cases/matching.txt"),
    include_str!("cases/filters.txt"),
    include_str!("cases/references.txt"),
    include_str!("cases/grpc.txt"),
    include_str!("cases/listeners.txt"),
];

/// One case: its name in the suite, listeners, resources, and lines of requests.
struct Case<'a> {
    name: &'a str,
    port: u16,
    listeners: Vec<Listens<'a>>,
    resources: String,
    lines: Vec<String>,
}

/// `listen NAME HOST WHOSE [2|3|side]`.
struct Listens<'a> {
    name: &'a str,
    /// `-` is any.
    host: &'a str,
    /// Whose routes: `same`, `all`, or the label `part` of their namespace.
    whose: &'a str,
    port: u16,
    gateway: &'static str,
}

impl<'a> Listens<'a> {
    fn read(line: &'a str, port: u16) -> Self {
        let mut words = line.split_whitespace();
        let [name, host, whose] = [0; 3].map(|_| words.next().expect("name, host and whose"));
        let (offset, gateway) = match words.next() {
            None => (0, "edge"),
            Some("side") => (1, "side"),
            Some(number) => (number.parse::<u16>().expect("a number") - 1, "edge"),
        };
        Self {
            name,
            host,
            whose,
            port: port + offset,
            gateway,
        }
    }
}

fn cases() -> Vec<Case<'static>> {
    let texts = CASES.iter().flat_map(|text| text.split("=== ").skip(1));
    let ports = (FIRST_PORT..).step_by(PORTS.into());
    ports.zip(texts).map(case).collect()
}

fn case((port, text): (u16, &'static str)) -> Case<'static> {
    let (name, rest) = text.split_once('\n').expect("a name");
    let (said, lines) = rest.split_once(">>>\n").expect("resources and lines");
    let listens = said.lines().filter_map(|line| line.strip_prefix("listen "));
    let mut listeners: Vec<_> = listens.map(|line| Listens::read(line, port)).collect();
    if listeners.is_empty() {
        listeners.push(Listens::read("http - same", port));
    }
    let yaml = said.lines().filter(|line| !line.starts_with("listen "));
    let yaml: String = yaml.map(|line| format!("{line}\n")).collect();
    let lines = lines.lines();
    let lines = lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let numbered = |text: &str| {
        text.replace("@PORT2", &(port + 1).to_string())
            .replace("@PORT3", &(port + 2).to_string())
            .replace("@PORT", &port.to_string())
    };
    let parent = format!("{{name: edge, namespace: infra, port: {port}}}");
    Case {
        name: name.trim(),
        port,
        listeners,
        resources: numbered(&yaml.replace("@PARENT", &parent)),
        lines: lines.map(numbered).collect(),
    }
}

/// A Gateway of all cases.
fn gateway(name: &str, cases: &[Case<'_>]) -> String {
    let mut yaml = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec:\n  gatewayClassName: voile\n  allowedListeners: {{namespaces: {{from: All}}}}\n  listeners:\n"
    );
    let all = cases.iter().flat_map(|case| &case.listeners);
    for one in all.filter(|one| one.gateway == name) {
        let Listens {
            name, host, port, ..
        } = one;
        let host = match *host {
            "-" => String::new(),
            host => format!(", hostname: \"{host}\""),
        };
        let from = match one.whose {
            "same" => "from: Same".to_owned(),
            "all" => "from: All".to_owned(),
            part => format!("from: Selector, selector: {{matchLabels: {{part: {part}}}}}"),
        };
        writeln!(
            yaml,
            "  - {{name: p{port}-{name}, port: {port}, protocol: HTTP{host}, allowedRoutes: {{namespaces: {{{from}}}}}}}"
        )
        .expect("written");
    }
    yaml + "---\n"
}

/// Address that a line's request goes to, and the rest of the line.
fn placed<'l>(
    case: &Case<'_>,
    line: &'l str,
    published: &BTreeMap<String, SocketAddr>,
) -> (SocketAddr, &'l str) {
    let (port, line) = match line.split_once(' ') {
        Some(("2", rest)) => (case.port + 1, rest),
        Some(("3", rest)) => (case.port + 2, rest),
        _ => (case.port, line),
    };
    let mut own = case.listeners.iter().filter(|one| one.port == port);
    let gateway = own.next().map_or("edge", |one| one.gateway);
    let service = format!("infra/{gateway}-voile");
    let found = published.get(&format!("{service}:{port}"));
    let found = found.or_else(|| published.get(&service));
    let at = found.unwrap_or_else(|| panic!("{} is not published: {published:?}", case.name));
    (*at, line)
}

#[test]
fn what_the_conformance_suite_asks_of_a_gateway_is_answered_as_it_wants() {
    let cases = cases();
    assert!(cases.len() >= 20, "the cases are missing");
    let heard = Heard::default();
    let (mut resources, first) = backends_with_first(&heard);
    for namespace in ["infra", "apps", "web"] {
        write!(
            resources,
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{part: {namespace}}}}}\n---\n"
        )
        .expect("written");
    }
    resources += &(gateway("edge", &cases) + &gateway("side", &cases));
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &resources).expect("written");
    };
    let state = tempfile::tempdir().expect("a folder");
    let state = state.path().join("state");
    let state_argument = state.to_string_lossy().into_owned();
    let mut up = Up::start(write, &["--quiet", "--state", &state_argument]);
    let published = up.ready();
    // Errors in the routes keep `voile up` from starting. Once it runs, they do not keep correct routes from being
    // in force.
    let routes = cases.iter().map(|case| format!("---\n{}", case.resources));
    let routes = routes.collect::<String>();
    let routes = routes
        .replace("@V1ADDRESS", &first.ip().to_string())
        .replace("@V1PORT", &first.port().to_string());
    std::fs::write(up.file("routes.new"), routes).expect("written");
    std::fs::rename(up.file("routes.new"), up.file("routes.yaml")).expect("renamed");
    let (first, line) = placed(&cases[0], &cases[0].lines[0], &published);
    wait_until("the routes", || replay(line, first, &heard).is_ok());
    let mut wrong = String::new();
    let mut asked = 0;
    for case in &cases {
        for line in &case.lines {
            asked += 1;
            let (at, line) = placed(case, line, &published);
            if let Err(why) = replay(line, at, &heard) {
                writeln!(wrong, "{}: {line}\n    {why}", case.name).expect("written");
            }
        }
    }
    let resources = cases.iter().map(|case| &case.resources);
    let sets = resources.map(|text| text.matches("kind: ListenerSet\n").count());
    let sets = format!("\"attachedListenerSets\":{}", sets.sum::<usize>());
    wait_until(&format!("the status to say {sets}"), || {
        let said = std::fs::read_to_string(state.join("gateway-api-status.yaml"));
        said.is_ok_and(|said| said.contains(&sets))
    });
    assert!(asked > 200, "{asked}");
    assert!(wrong.is_empty(), "of {asked}:\n{wrong}");
}

pub(super) fn replay(line: &str, at: SocketAddr, heard: &Heard) -> Result<(), String> {
    match line.split_once(' ') {
        Some(("share", rest)) => return shares(rest, at),
        Some(("copies", rest)) => return copies(rest, at, heard),
        Some(("upgrade", rest)) => return protocols::upgraded(rest, at),
        Some(("times", rest)) => {
            let (count, rest) = rest.split_once(' ').expect("a count");
            let mut all = 0..count.parse::<u32>().expect("a count");
            return all.try_for_each(|_| replay(rest, at, heard));
        }
        _ => {}
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

/// `COUNT METHOD HOST PATH => NAME=PERCENT`: of how many of so many a copy came there.
fn copies(line: &str, at: SocketAddr, heard: &Heard) -> Result<(), String> {
    let (count, rest) = line.split_once(' ').expect("a count");
    let count: u32 = count.parse().expect("a count");
    let (asked, wanted) = rest.split_once(" => ").expect("=>");
    let (name, percent) = wanted.split_once('=').expect("NAME=PERCENT");
    let percent: f64 = percent.parse().expect("a number");
    let asked = format!("{asked} => 200");
    let expectation = Expectation::read(&asked);
    for _ in 0..count {
        let answer = expectation.ask(at).map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(answer.status.to_string());
        }
    }
    let share = || {
        let heard = heard.lock().expect("whole");
        let paths = heard.get(name).into_iter().flatten();
        let own = paths.filter(|one| **one == expectation.path).count();
        own as f64 * 100.0 / f64::from(count)
    };
    // Four deviations, as of shares; what never comes cannot be waited for.
    wait_until(&format!("copies of {} at {name}", expectation.path), || {
        share() >= percent - 12.0
    });
    let found = share();
    let much = found > percent + 12.0 || (percent == 0.0 && found > 0.0);
    (!much).then_some(()).ok_or(format!("{found} %"))
}
