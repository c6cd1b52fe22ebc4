//! Two control planes beside each other, several sidecars, traffic: one of them is killed, and only its own log shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::mesh::{
    Client, Mesh, Process, application, free_port, get, local, series, start_control, start_proxy,
    wait_until,
};
use crate::policies::live_connections::serial;

/// Sidecars besides the client's and the server's.
const FURTHER: usize = 3;

fn pods() -> String {
    let pod = |number| {
        format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: extra{number}, namespace: shop}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: extra{number}, namespace: shop, labels: {{app: extra}}}}\n\
             spec: {{serviceAccountName: extra{number}, containers: [{{name: app}}]}}\n\
             status: {{phase: Running, podIP: 127.9.9.{}}}\n",
            number + 1
        )
    };
    (0..FURTHER).map(pod).collect()
}

fn status(monitoring: u16) -> Value {
    let page = get(local(monitoring), "/debug/status");
    let page = page.map(|page| serde_json::from_slice(&page.body).expect("JSON"));
    page.unwrap_or_default()
}

/// Number of proxies connected there, and number of those in sync with this version.
fn proxies(monitoring: u16, version: &Value) -> (usize, usize) {
    let page = status(monitoring);
    let proxies = page["proxies"].as_array().cloned().unwrap_or_default();
    let in_sync = |proxy: &&Value| proxy["synced"] == true && page["version"] == *version;
    (proxies.len(), proxies.iter().filter(in_sync).count())
}

fn revoked(monitoring: u16) -> Option<f64> {
    let page = get(local(monitoring), "/metrics").ok()?;
    let metrics = String::from_utf8_lossy(&page.body).into_owned();
    series(&metrics, "voile_control_revoked_certificates", &[])
}

/// Calls that go on until they are asked for.
struct Traffic {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

impl Traffic {
    fn begin(mesh: &Mesh) -> Self {
        let (over, answered) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (ends, counts): (_, Arc<AtomicUsize>) = (over.clone(), Arc::clone(&answered));
        let server = mesh.http();
        let thread = std::thread::spawn(move || {
            let mut failed = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                match get(server, "/") {
                    Ok(answer) if answer.status == 200 => {
                        counts.fetch_add(1, Ordering::Relaxed);
                    }
                    other => failed.push(format!("{:?}", other.map(|answer| answer.status))),
                }
            }
            failed
        });
        Self {
            over,
            answered,
            thread,
        }
    }

    fn some_more(&self, what: &str) {
        let before = self.answered.load(Ordering::Relaxed);
        wait_until(what, || self.answered.load(Ordering::Relaxed) > before + 20);
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        let failed = self.thread.join().expect("the callers end");
        assert_eq!(failed, Vec::<String>::new());
    }
}

#[test]
fn one_of_two_control_planes_is_killed_and_nothing_fails() {
    let other = [free_port(), free_port(), free_port()];
    // Both in the list of every sidecar; an age of a second, so that they are drawn anew while we look.
    let how = Client {
        certificate_ttl: Some("12s"),
        control: vec!["--connection-age".to_owned(), "1s".to_owned()],
        everywhere: vec![
            "--control".to_owned(),
            format!("https://127.0.0.1:{}", other[0]),
        ],
        ..Client::default()
    };
    let mut mesh = Mesh::start_as("STRICT", &how);
    application::reflect(mesh.http_app());
    let folder = mesh
        .config()
        .parent()
        .expect("the mesh's folder")
        .to_owned();
    let second = start_control(&folder, other, how.certificate_ttl, &how.control);
    std::fs::write(mesh.config().join("extra.yaml"), pods()).expect("more pods");
    let first = mesh.monitoring().port();
    let further: Vec<Process> = (0..FURTHER)
        .map(|number| {
            let ports = [free_port(), free_port(), free_port()];
            let xds = mesh.management()[0].port();
            start_proxy(&folder, xds, &format!("extra{number}"), ports, &how)
        })
        .collect();
    let all = FURTHER + 2;
    let version = || status(other[2])["version"].clone();
    wait_until("both have sidecars, and all are in sync", || {
        let version = version();
        let (one, other) = (proxies(first, &version), proxies(other[2], &version));
        one.0 > 0 && other.0 > 0 && one.1 + other.1 == all
    });
    shown_together([first, other[2]], all);
    let traffic = Traffic::begin(&mesh);
    traffic.some_more("traffic runs");

    mesh.kill_control();
    traffic.some_more("traffic runs on");
    wait_until("all are with the other", || {
        proxies(other[2], &version()).0 == all
    });
    shown_without([first, other[2]]);
    let before = version();
    mesh.set_peer_authentication("PERMISSIVE");
    wait_until("an edit is in force everywhere", || {
        let now = version();
        now != before && proxies(other[2], &now) == (all, all)
    });
    let admins = [mesh.client_admin(), mesh.server_admin()];
    let held = admins.map(serial);
    wait_until("certificates are renewed", || {
        admins
            .map(serial)
            .iter()
            .zip(&held)
            .all(|(now, then)| now != then)
    });
    traffic.some_more("traffic runs with them");
    traffic.end();

    revoked_at_both(&mut mesh, first, other[2]);
    wait_until("some are with the one that is back", || {
        proxies(first, &version()).1 > 0
    });
    drop((second, further));
}

/// Output of a command that asks both control planes.
fn asked(words: &[&str], monitoring: [u16; 2]) -> (Option<i32>, String) {
    let output = Process::output(|voile| {
        voile.args(words);
        for port in monitoring {
            voile.args(["--monitoring", &local(port).to_string()]);
        }
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

/// One page shows the proxies of both, and a proxy's resources are found at each.
fn shown_together(monitoring: [u16; 2], all: usize) {
    wait_until("all are shown together", || {
        let (code, text) = asked(&["status"], monitoring);
        let lines = |port: u16| {
            let ends = format!("  {}", local(port));
            text.lines().filter(|line| line.ends_with(&ends)).count()
        };
        let [one, other] = monitoring.map(lines);
        code == Some(0) && one > 0 && other > 0 && one + other == all
    });
    let (_, pages) = asked(&["status", "--json"], monitoring);
    let pages: Value = serde_json::from_str(&pages).expect("JSON");
    for port in monitoring {
        let page = &pages[local(port).to_string()];
        assert!(page["proxies"].is_array(), "{pages}");
    }
    for number in 0..FURTHER {
        let name = format!("shop/extra{number}");
        // It may be moving from one to the other.
        wait_until("what it has is shown", || {
            asked(&["config", &name], monitoring).0 == Some(0)
        });
    }
}

/// One command follows the events of both control planes; each line names its control plane. A control plane that is gone is
/// asked again, and its events since then follow.
#[test]
fn events_of_several_control_planes_are_followed_together_past_the_end_of_one() {
    let mut mesh = Mesh::start("STRICT");
    let folder = mesh.config().parent().expect("a parent").to_path_buf();
    let first = mesh.monitoring().port();
    let other = [free_port(), free_port(), free_port()];
    let _second = start_control(&folder, other, None, &[]);
    let following = Process::start("events", |voile| {
        voile.args(["events", "--past", "--json"]);
        for port in [first, other[2]] {
            voile.args(["--monitoring", &local(port).to_string()]);
        }
    });
    let told = |port: u16, event: &str| {
        let name = local(port).to_string();
        let text = following.log();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let by = lines.filter(|one| one["control_plane"] == *name && one["event"] == *event);
        by.count()
    };
    let both = || [first, other[2]].map(|port| told(port, "published"));
    wait_until("both tell what they published", || {
        both().iter().all(|count| *count > 0)
    });
    let before = both();
    mesh.kill_control();
    mesh.set_peer_authentication("PERMISSIVE");
    wait_until("the other goes on", || both()[1] > before[1]);
    mesh.restart_control();
    wait_until("what it does in its new life is told", || {
        both()[0] > before[0]
    });
}

/// The first cannot be asked: the command reports it, and shows the other's page all the same.
fn shown_without([first, other]: [u16; 2]) {
    let (code, text) = asked(&["status"], [first, other]);
    assert_eq!(code, Some(2), "one cannot be asked: {text}");
    let line = format!("{}: version", local(other));
    assert!(text.contains(&line), "{text}");
    // It comes again every second.
    wait_until("the other one has it", || {
        asked(&["config", "shop/extra0"], [first, other]).0 == Some(0)
    });
}

/// Both control planes report a revocation, even the one that was away when it happened.
fn revoked_at_both(mesh: &mut Mesh, first: u16, other: u16) {
    let before = serial(mesh.client_admin());
    let printed = Process::output(|voile| {
        voile.arg("revoke").arg("--state").arg(mesh.state());
        voile.args(["--serial", &before]);
    });
    assert!(printed.status.success());
    mesh.restart_control();
    for monitoring in [first, other] {
        wait_until("the control plane knows what is revoked", || {
            revoked(monitoring) == Some(1.0)
        });
    }
    wait_until(
        "the sidecar has another certificate, and is taken by it",
        || {
            serial(mesh.client_admin()) != before
                && get(mesh.http(), "/").is_ok_and(|answer| answer.status == 200)
        },
    );
}
