//! The folders of `examples` on a real cluster by `kubectl apply -f`: they answer as their pages say of `voile up`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use voile_testkit::cluster::{Cluster, wait_for};

use crate::examples::policies::rows_of;
use crate::examples::traffic::{ROUTED, command_for};
use crate::gateway::http3::example::make_certificate;
use crate::kubernetes::kit::{PATIENCE, VOILE, define_gateways, voile};

/// Folders that make sense on a cluster, with their namespaces. Graphs are no resources, and a machine has no Pod.
const EXAMPLES: [(&str, &[&str]); 13] = [
    ("ambient", &["library"]),
    ("bookstore", &["bookstore"]),
    ("canary", &["canary"]),
    ("egress", &["egress", "world"]),
    ("gateway-api", &["gateway-api"]),
    ("http3", &["http3"]),
    ("ingress", &["ingress"]),
    ("locality", &["locality"]),
    ("policies", &["policies"]),
    ("rate-limits", &["limits"]),
    ("resilience", &["resilience"]),
    ("routing", &["routing"]),
    ("sticky", &["sticky"]),
];
/// Statuses of the first curl commands in the blocks of a page.
const ANSWERS: [(&str, &[&str]); 5] = [
    ("ambient", &["200", "502"]),
    ("bookstore", &["200"]),
    ("gateway-api", &["200", "200", "301", "404"]),
    ("ingress", &["200", "200", "200", "404", "403"]),
    ("sticky", &["200", "200"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A person outside the cluster, who reaches the nodes.
struct Visitor<'a> {
    cluster: &'a Cluster,
    /// The address of a node, in the place of this machine.
    node: String,
    /// The port of the Gateway of Gateway API on the node, in the place of 8080.
    gateway: String,
    folder: tempfile::TempDir,
}

impl<'a> Visitor<'a> {
    fn new(cluster: &'a Cluster, folder: tempfile::TempDir) -> Self {
        let link = folder.path().join("examples");
        std::os::unix::fs::symlink(root().join("examples"), link).expect("a link");
        let field = |arguments: &[&str]| cluster.kubectl(arguments).expect("a field");
        let address = r#"jsonpath={.status.addresses[?(@.type=="InternalIP")].address}"#;
        let port = "jsonpath={.spec.ports[?(@.port==8080)].nodePort}";
        let service = "service/public-voile";
        Self {
            cluster,
            node: field(&["get", "node", "node-1", "-o", address]),
            gateway: field(&["-n", "gateway-api", "get", service, "-o", port]),
            folder,
        }
    }

    /// Runs a command of a page. Returns its output.
    fn shell(&self, command: &str) -> String {
        let here = command
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.gateway))
            .replace("127.0.0.1", &self.node)
            .replace("/tmp/shop.", "shop.")
            .replacen("curl ", "curl -s --max-time 20 ", 1);
        let mut shell = self.cluster.control_plane_command("sh");
        let shell = shell.args(["-c", &here]).current_dir(self.folder.path());
        let output = shell.output().expect("a shell");
        String::from_utf8_lossy(&output.stdout).replace('\r', "")
    }

    /// The status that a curl command of a page gets, and the head and body of the answer.
    fn answer(&self, command: &str) -> (String, String) {
        let text = self.shell(&command.replacen("curl ", "curl -i ", 1));
        let status = match text.starts_with("HTTP/") {
            true => text.split(' ').nth(1).unwrap_or_default(),
            false => text.trim(),
        };
        (status.to_owned(), text)
    }

    fn until_answered(&self, command: &str, status: &str) {
        wait_for(command, PATIENCE, || match self.answer(command) {
            (found, _) if found == status => Ok(()),
            (_, text) => Err(text),
        });
    }

    /// Sends so many requests. Returns their statuses.
    fn statuses(&self, port: u16, count: usize) -> Vec<String> {
        let ask = "curl -o /dev/null -w '%{http_code}\\n'";
        let text = self.shell(&format!("{ask} 'http://127.0.0.1:{port}/?[1-{count}]'"));
        text.lines().map(str::to_owned).collect()
    }

    /// The metrics of the sidecars of a workload.
    fn metrics(&self, namespace: &str, workload: &str) -> String {
        let path = "jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{\"\\n\"}{end}";
        let get = ["-n", namespace, "get", "pods", "-o", path];
        let pods = self.cluster.kubectl(&get).expect("pods");
        let addresses = pods
            .lines()
            .filter(|line| line.starts_with(workload))
            .filter_map(|line| line.split_once(' '));
        let page = |(_, address): (&str, &str)| {
            self.shell(&format!("curl http://{address}:15020/stats/prometheus"))
        };
        addresses.map(page).collect()
    }

    /// Requests that the sidecars of a workload took.
    fn taken(&self, namespace: &str, workload: &str) -> u32 {
        let page = self.metrics(namespace, workload);
        let lines = page.lines().filter(|line| {
            line.starts_with("istio_requests_total{") && line.contains("reporter=\"destination\"")
        });
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u32
    }
}

fn page(example: &str) -> String {
    let page = root().join("examples").join(example).join("README.md");
    std::fs::read_to_string(page).expect("a page")
}

/// Applies every example, and waits until its Pods are ready.
fn apply_all(cluster: &Cluster, folder: &Path) {
    for (example, namespaces) in EXAMPLES {
        let apply = |what: PathBuf| {
            let applied = cluster.kubectl(&["apply", "-f", &what.to_string_lossy()]);
            applied.unwrap_or_else(|error| panic!("{example}: {error}"));
        };
        apply(root().join("examples").join(example));
        if example == "http3" {
            let pair = folder.join("shop");
            make_certificate(folder, &pair.to_string_lossy());
            apply(folder.join("secret.yaml"));
        }
        for namespace in namespaces {
            wait_for(example, PATIENCE, || {
                let all = ["-n", namespace, "wait", "pods", "--all"];
                cluster.kubectl(&[&all[..], &["--for=condition=Ready", "--timeout=1s"]].concat())
            });
        }
    }
}

fn pages_tell_the_answers(visitor: &Visitor<'_>) {
    for (example, statuses) in ANSWERS {
        let page = page(example);
        let curls: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("curl "))
            .collect();
        assert!(curls.len() >= statuses.len(), "{curls:?}");
        for (command, status) in curls.iter().zip(statuses) {
            visitor.until_answered(command, status);
        }
    }
    for example in ["policies", "http3", "egress"] {
        for (command, promised) in rows_of(example, "curl ") {
            // They need another curl, and an edit.
            let is_later = command.contains("bank") && promised == "200";
            if command.contains("--http3-only") || is_later {
                continue;
            }
            let status = promised.split(' ').next().expect("a status");
            visitor.until_answered(&command, status);
        }
    }
    for (path, status, has, has_not) in ROUTED {
        let command = command_for("routing", path);
        visitor.until_answered(&command, status);
        let answer = visitor.answer(&command).1.to_lowercase();
        for text in has {
            assert!(answer.contains(&text.to_lowercase()), "{text}: {answer}");
        }
        for text in has_not {
            assert!(!answer.contains(text), "{text}: {answer}");
        }
    }
}

fn requests_are_shared_as_rules_say(visitor: &Visitor<'_>) {
    let good = |port, count: usize| {
        let statuses = visitor.statuses(port, count);
        assert_eq!(statuses, vec!["200"; count], "port {port}");
    };
    let [v1, v2] = ["reviews-v1", "reviews-v2"];
    good(30082, 20);
    assert_eq!(visitor.taken("canary", v1), 0, "testers go to v2");
    good(30081, 40);
    let [old, new] = [v1, v2].map(|workload| visitor.taken("canary", workload));
    assert!(old >= 20 && (20..=40).contains(&new), "{old} and {new}");
    good(30084, 20);
    let [near, far] = [v1, v2].map(|workload| visitor.taken("locality", workload));
    assert_eq!((near, far), (20, 0), "calls stay in their zone");
    wait_for("an ejected endpoint", PATIENCE, || {
        visitor.statuses(30093, 20);
        let metrics = visitor.metrics("resilience", "storefront");
        let counted = metrics.contains("\nvoile_outliers_ejected_total ")
            && !metrics.contains("\nvoile_outliers_ejected_total 0\n");
        counted.then_some(()).ok_or(metrics)
    });
    good(30091, 5);
    let robot: BTreeSet<_> = visitor.statuses(30092, 200).into_iter().collect();
    assert_eq!(robot, ["200", "502"].map(str::to_owned).into());
    let session = |_| {
        let jar = "curl -i -b jar -H 'Host: cart.example' http://127.0.0.1:30088/";
        let text = visitor.shell(jar).to_lowercase();
        let mut lines = text.lines();
        lines
            .find(|line| line.starts_with("x-voile-echo: "))
            .map(str::to_owned)
    };
    let pods: BTreeSet<_> = (0..6).map(session).collect();
    assert!(pods.len() == 1 && !pods.contains(&None), "{pods:?}");
}

/// The questions of the pages, to the cluster in the place of the folder.
fn decisions_are_explained(visitor: &Visitor<'_>) {
    let program = Path::new(VOILE)
        .parent()
        .expect("a folder")
        .display()
        .to_string();
    let asked = |example: &str, command: &str| {
        let command = command.replacen(&format!("examples/{example}"), "--kubernetes", 1);
        visitor.shell(&format!("PATH={program}:$PATH; {command} 2>&1"))
    };
    for (command, promised) in rows_of("policies", "voile ") {
        let text = asked("policies", &command);
        for words in promised.split('`').skip(1).step_by(2) {
            assert!(text.contains(words), "{command}: {words}: {text}");
        }
    }
    let page = page("ambient");
    let lines = page
        .lines()
        .filter(|line| line.starts_with("voile explain "));
    let answers: Vec<_> = lines.map(|line| asked("ambient", line)).collect();
    assert!(answers[0].starts_with("ALLOWED"), "{answers:?}");
    assert!(answers[1].starts_with("DENIED"), "{answers:?}");
}

#[test]
fn every_example_is_applied_or_says_that_it_makes_no_sense() {
    let folders = std::fs::read_dir(root().join("examples")).expect("examples");
    let folders = folders.map(|entry| entry.expect("an entry").path());
    for folder in folders.filter(|folder| folder.is_dir()) {
        let name = folder.file_name().expect("a name").to_string_lossy();
        let is_applied = EXAMPLES.iter().any(|(example, _)| *example == name);
        let says_no = ["`kubectl apply` refuses", "This folder is for one machine"];
        let says_no = says_no.iter().any(|text| page(&name).contains(text));
        assert!(is_applied != says_no, "{name}");
    }
}

#[test]
fn every_example_works_by_kubectl_apply_from_the_folder_of_voile_up() {
    // A cluster of its own: another test installs the mesh in the shared one.
    let Some(cluster) = &Cluster::start(2) else {
        return;
    };
    cluster.import_voile(Path::new(VOILE), "docker.io/library/voile:latest");
    define_gateways(cluster);
    let settings = "image.tag=latest,ambient.enabled=true,pilot.cni.enabled=true";
    voile(cluster, &["install", "--timeout", "90s", "--set", settings]);
    let folder = tempfile::tempdir().expect("a folder");
    apply_all(cluster, folder.path());
    let visitor = Visitor::new(cluster, folder);
    pages_tell_the_answers(&visitor);
    requests_are_shared_as_rules_say(&visitor);
    decisions_are_explained(&visitor);
    let problems = voile(cluster, &["analyze", "--kubernetes", "-A"]);
    assert!(problems.contains("0 errors, 0 warnings"), "{problems}");
}
