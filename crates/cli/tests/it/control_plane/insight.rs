//! An operator's questions to a running control plane: is every proxy in sync, which resources does it hold and
//! why, which events occur.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::gateway::say;
use crate::mesh::{Mesh, Process, get, wait_until};

pub(crate) fn asked(mesh: &Mesh, words: &[&str]) -> (Option<i32>, String) {
    let monitoring = mesh.monitoring().to_string();
    let output = Process::output(|voile| {
        voile.args(words).args(["--monitoring", &monitoring]);
    });
    let text = String::from_utf8(output.stdout).expect("text");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text + &said)
}

/// Status of the server's sidecar.
fn server(mesh: &Mesh) -> Value {
    let (_, page) = asked(mesh, &["status", "--json"]);
    let page: Value = serde_json::from_str(&page).expect("JSON");
    let proxies = page["proxies"].as_array().expect("a list");
    let server = proxies.iter().find(|proxy| {
        let identity = proxy["identity"].as_str();
        identity.is_some_and(|identity| identity.ends_with("/sa/server"))
    });
    server.expect("the server").clone()
}

#[test]
fn status_config_and_events_say_what_each_proxy_has_and_why() {
    let mesh = Mesh::start("STRICT");
    let mut text = String::new();
    wait_until("both proxies are in sync", || {
        let (code, said) = asked(&mesh, &["status"]);
        text = said;
        code == Some(0) && text.contains("2 proxies, 2 in sync")
    });
    assert!(
        text.contains("/sa/client") && text.contains("/sa/server"),
        "{text}"
    );
    // Certificates are of a day, just begun.
    let lasts = text.lines().filter(|line| line.contains("/sa/"));
    let lasts: Vec<_> = lasts
        .map(|line| {
            line.ends_with(" 24h0m left") || line.contains(" 23h5") && line.ends_with(" left")
        })
        .collect();
    assert_eq!(lasts, [true, true], "{text}");

    let server = || server(&mesh);
    let before = server();
    let identity = before["identity"].as_str().expect("text");
    let until = before["certificate_until"].as_u64().expect("a time");
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let left = until.saturating_sub(now.expect("after 1970").as_secs());
    assert!((86_000..=86_400).contains(&left), "{before:#}");
    let (code, held) = asked(&mesh, &["config", identity]);
    assert_eq!(code, Some(0), "{held}");
    for part in [
        "ProxyConfiguration",
        "PeerAuthentication",
        ".yaml:",
        "workload",
    ] {
        assert!(held.contains(part), "{part}: {held}");
    }
    let (code, nobody) = asked(&mesh, &["config", "shop/nobody"]);
    assert_eq!(code, Some(2), "{nobody}");

    // A change is followed, and how long it took stands with the proxy that it is of, and in the metrics.
    let changed = Instant::now();
    mesh.set_peer_authentication("PERMISSIVE");
    let changes = |of: &Value| of["propagation"]["changes"].as_u64().expect("a number");
    let mut after = Value::Null;
    wait_until("the server's way is measured", || {
        after = server();
        changes(&after) > changes(&before)
    });
    let most = changed.elapsed().as_secs_f64() * 1e3;
    let took = ["last_ms", "slowest_ms"].map(|key| after["propagation"][key].as_f64());
    let [last, slowest] = took.map(|took| took.expect("a time"));
    assert!(
        0.0 < last && last <= slowest && last <= most,
        "{most} {after:#}"
    );
    wait_until("the change's way is measured", || {
        let metrics = get(mesh.monitoring(), "/metrics").expect("metrics");
        let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
        let mut lines = metrics.lines();
        lines.any(|line| {
            let count = line.strip_prefix("voile_control_propagation_seconds_count ");
            count.is_some_and(|count| count != "0")
        })
    });
    let (code, events) = asked(&mesh, &["events", "--past", "--for", "1ms"]);
    assert_eq!(code, Some(0), "{events}");
    for part in ["published", "connected", "certified", "in sync"] {
        assert!(events.contains(part), "{part}: {events}");
    }
}

#[test]
fn status_says_which_documents_are_refused_where_and_what_serves_instead() {
    let mesh = Mesh::start("STRICT");
    let told = || asked(&mesh, &["status"]).1;
    let entry = |port: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: out, namespace: shop}}\n\
             spec: {{hosts: [out.example], resolution: NONE, ports: [{{number: {port}, name: http, protocol: HTTP}}]}}\n"
        )
    };
    // At once: a file that is empty for a moment would take its entry along.
    let write = |name: &str, text: &str| say(&mesh, name, text);
    let page = || -> Value {
        let page = get(mesh.monitoring(), "/debug/status").expect("a page");
        serde_json::from_slice(&page.body).expect("JSON")
    };
    let before = page()["version"].clone();
    assert!(before.is_string(), "{before}");
    write("out.yaml", &entry("80"));
    wait_until("it is in force", || page()["version"] != before);
    assert_eq!(page().get("documents"), None);
    assert!(!told().contains("DOCUMENT"), "{}", told());
    write("out.yaml", &entry("eighty"));
    write("torn.yaml", "apiVersion: v1\nkind: [Service\n");
    let mut text = String::new();
    wait_until("both are told", || {
        text = told();
        text.contains("torn.yaml:") && text.contains("out.yaml:4:")
    });
    let line = |file: &str, word: &str| {
        let found = text
            .lines()
            .find(|line| line.contains(file) && line.contains(word));
        found
            .unwrap_or_else(|| panic!("{file} {word}: {text}"))
            .to_owned()
    };
    line("/torn.yaml:", " refused ");
    assert!(
        line("/out.yaml:4:", " refused ").contains("a whole number is expected"),
        "{text}"
    );
    let serves = line("/out.yaml:", " serves ");
    assert!(
        serves.contains("last good version of ServiceEntry shop/out"),
        "{serves}"
    );
    let (_, page) = asked(&mesh, &["status", "--json"]);
    let page: Value = serde_json::from_str(&page).expect("JSON");
    let refused = page["documents"]["refused"].as_array().expect("a list");
    assert!(refused.iter().any(|one| one["code"] == "V0110"), "{page:#}");
    std::fs::remove_file(mesh.config().join("torn.yaml")).expect("removed");
    write("out.yaml", &entry("81"));
    wait_until("nothing is wrong any more", || !told().contains("DOCUMENT"));
    // Nothing can be read at all.
    let moved = mesh.config().with_extension("gone");
    std::fs::rename(mesh.config(), &moved).expect("moved");
    wait_until("that is told", || {
        told().contains("the documents cannot be read")
    });
    std::fs::rename(&moved, mesh.config()).expect("moved back");
    wait_until("and no longer", || !told().contains("cannot be read"));
}
