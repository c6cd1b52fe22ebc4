//! The files of deploy/monitoring with Prometheus' own programs: promtool on rules and pages, the strict parser of its client for Python,
//! and a server that scrapes a running mesh as the guide says.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use voile_testkit::prerequisites::{Prerequisite, peer, program, require};

use crate::mesh::{Process, exchange, free_port, get, local, wait_until};
use crate::tidy::monitoring::expressions;
use crate::up::netns::start_with;
use crate::up::{Up, bookstore, example, web};

/// A complaint of promtool's lint about a name that is Istio's.
const ISTIO_NAME: &str = "istio_request_duration_milliseconds use base unit";

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/monitoring")
}

/// Runs promtool with an input. Returns what it says.
fn promtool(promtool: &Path, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(promtool)
        .args(arguments)
        .current_dir(monitoring())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn promtool_accepts_the_rules_and_every_alert_fires_and_stays_silent() {
    let Some(tool) = program(Prerequisite::Prometheus, "promtool") else {
        return;
    };
    for arguments in [
        &["check", "rules", "rules.yaml"][..],
        &["check", "config", "prometheus.yaml"],
        &["test", "rules", "rules.test.yaml"],
    ] {
        let said = promtool(&tool, arguments, "");
        assert!(
            said.contains("SUCCESS") && !said.contains("FAILED"),
            "{said}"
        );
    }
    let read = |name| std::fs::read_to_string(monitoring().join(name)).expect("a file");
    let (rules, tests) = (read("rules.yaml"), read("rules.test.yaml"));
    let alerts: Vec<_> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        let silent = format!("{{alertname: {alert}, ");
        let fires = format!("- alertname: {alert}\n");
        assert!(tests.contains(&silent) && tests.contains(&fires), "{alert}");
    }
}

/// A mesh with sidecars and one with a node proxy and a waypoint, with pages at `voile up --web`.
struct Meshes {
    sidecars: Up,
    nodes: Up,
    /// Services of the second one that call others when they are called: one may, one may not.
    callers: [SocketAddr; 2],
}

impl Meshes {
    /// None where namespaces are not possible.
    fn start() -> Option<Self> {
        let ambient = |folder: &Path| example("ambient", folder);
        let (nodes, published) = start_with(ambient, None, &["--web=127.0.0.1:0"])?;
        let callers = ["library/reader", "library/browser"].map(|name| published[name]);
        let mut sidecars = Up::start(bookstore, &["--web=127.0.0.1:0"]);
        sidecars.ready();
        Some(Self {
            sidecars,
            nodes,
            callers,
        })
    }

    fn pages(&self) -> [SocketAddr; 2] {
        [&self.sidecars, &self.nodes].map(|up| web(up).address)
    }

    /// The bookstore calls itself.
    fn call(&self) {
        for caller in self.callers {
            get(caller, "/").expect("an answer");
        }
    }
}

/// A Prometheus with the configuration of the guide, for these meshes.
struct Prometheus {
    _process: Process,
    _folder: tempfile::TempDir,
    address: SocketAddr,
}

impl Prometheus {
    fn start(program: &Path, meshes: &[SocketAddr]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = std::fs::read_to_string(monitoring().join("prometheus.yaml"))
            .expect("the configuration");
        let (head, discovery) = config.split_once("  - url: ").expect("a mesh");
        let each = meshes.iter().map(|mesh| {
            format!(
                "  - url: {}",
                discovery.replace("127.0.0.1:15040", &mesh.to_string())
            )
        });
        let config = head.to_owned() + &each.collect::<String>();
        let config = config.replace(
            "rules.yaml",
            &monitoring().join("rules.yaml").display().to_string(),
        );
        let config = config.replace(": 5s", ": 1s");
        let file = folder.path().join("prometheus.yaml");
        std::fs::write(&file, config).expect("written");
        let address = local(free_port());
        let process = Process::start_other("prometheus", program, |command| {
            command
                .arg(format!("--config.file={}", file.display()))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    folder.path().join("data").display()
                ))
                .arg(format!("--web.listen-address={address}"));
        });
        wait_until("Prometheus is ready", || {
            get(address, "/-/ready").is_ok_and(|answer| answer.status == 200)
        });
        Self {
            _process: process,
            _folder: folder,
            address,
        }
    }

    /// What its API answers.
    fn api(&self, path: &str) -> Value {
        let answer = get(self.address, &format!("/api/v1/{path}")).expect("an answer");
        let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The values of an expression that are numbers.
    fn values(&self, expression: &str) -> Vec<f64> {
        let bytes = expression.bytes().map(|byte| format!("%{byte:02X}"));
        let data = self.api(&format!("query?query={}", bytes.collect::<String>()));
        let result = data["result"].as_array().expect("a vector").iter();
        let values = result.filter_map(|sample| sample["value"][1].as_str()?.parse::<f64>().ok());
        values.filter(|value| !value.is_nan()).collect()
    }
}

/// Each expression of the dashboards as Grafana asks it.
fn panels() -> Vec<String> {
    let boards = std::fs::read_dir(monitoring().join("dashboards")).expect("dashboards");
    let boards = boards.map(|entry| entry.expect("a dashboard").path());
    let asked = boards.flat_map(|board| expressions(&board)).map(|asked| {
        let mut asked = asked.replace("$__rate_interval", "30s");
        for variable in ["$service", "$workload", "$namespace"] {
            asked = asked.replace(variable, ".+");
        }
        // The values of a variable.
        if let Some(series) = asked.strip_prefix("label_values(") {
            let (series, label) = series
                .trim_end_matches(')')
                .rsplit_once(',')
                .expect("a label");
            asked = format!("count by ({label}) ({series})");
        }
        assert!(!asked.contains('$'), "{asked}");
        asked
    });
    asked.collect()
}

#[test]
fn a_prometheus_by_the_guide_reads_meshes_and_every_panel_and_rule_has_what_it_asks() {
    let Some(prometheus) = program(Prerequisite::Prometheus, "prometheus") else {
        return;
    };
    let Some(meshes) = Meshes::start() else {
        return;
    };
    let prometheus = Prometheus::start(&prometheus, &meshes.pages());
    wait_until("every program of both meshes is scraped", || {
        let up = prometheus.values("up");
        // Seven sidecars and a control plane; a node proxy, a waypoint and a control plane.
        up.len() == 8 + 3 && up.iter().all(|up| *up == 1.0)
    });
    // A change for the panels about changes.
    meshes
        .sidecars
        .edit("security.yaml", "mode: STRICT", "mode: PERMISSIVE");
    let panels = panels();
    wait_until("every panel has data", || {
        meshes.call();
        let mut panels = panels.iter();
        let silent = panels.find(|panel| prometheus.values(panel).is_empty());
        silent.is_none()
    });

    let data = prometheus.api("rules");
    let groups = data["groups"].as_array().expect("groups").iter();
    let rules: Vec<_> = groups
        .flat_map(|group| group["rules"].as_array().expect("rules"))
        .collect();
    assert_eq!(rules.len(), 16);
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        assert_ne!(rule["state"], "firing", "{rule}");
    }
    let records = rules.iter().filter(|rule| rule["type"] == "recording");
    for rule in records.filter_map(|rule| rule["name"].as_str()) {
        wait_until(rule, || !prometheus.values(rule).is_empty());
    }
}

#[test]
fn pages_of_every_program_pass_promtool_and_the_strict_parser_of_open_metrics() {
    let Some(tool) = program(Prerequisite::Prometheus, "promtool") else {
        return;
    };
    let python = peer(
        Prerequisite::PrometheusPython,
        "PROMETHEUS_PYTHON",
        "python3",
    );
    let Some(python) = python else {
        return;
    };
    let client = parse(&python, b"# EOF\n");
    if require(Prerequisite::PrometheusPython, client).is_none() {
        return;
    }
    let Some(meshes) = Meshes::start() else {
        return;
    };
    meshes.call();
    for page in meshes.pages() {
        let targets = get(page, "/targets.json").expect("an answer");
        let targets: Value = serde_json::from_slice(&targets.body).expect("JSON");
        for target in targets.as_array().expect("targets") {
            let path = target["labels"]["__metrics_path__"].as_str();
            let path = path.expect("a path");
            let text = get(page, path).expect("an answer");
            let text = String::from_utf8(text.body).expect("text");
            let said = promtool(&tool, &["check", "metrics"], &text);
            let complaints = said.lines().filter(|line| !line.starts_with(ISTIO_NAME));
            let complaints: Vec<_> = complaints.collect();
            assert!(complaints.is_empty(), "{path}: {complaints:#?}");
            let accept = "application/openmetrics-text; version=1.0.0";
            let asked = format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
            );
            let open = exchange(page, asked.as_bytes()).expect("an answer");
            assert!(
                open.head.contains("application/openmetrics-text"),
                "{}",
                open.head
            );
            parse(&python, &open.body).unwrap_or_else(|reason| panic!("{path}: {reason}"));
        }
    }
}

/// Reads a page with the strict parser of Prometheus' client for Python.
fn parse(python: &Path, page: &[u8]) -> Result<(), String> {
    const PARSER: &str = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        list(parse(sys.stdin.read()))";
    let mut child = Command::new(python)
        .args(["-c", PARSER])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    // A program without the client reads nothing.
    let _ = child.stdin.take().expect("it is piped").write_all(page);
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default().to_owned();
    output.status.success().then_some(()).ok_or(last)
}
