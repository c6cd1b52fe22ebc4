//! `voile status`, `edges`, `tap`, `config` and `voile bug-report` on a real cluster: pages and logs of pods. `kubernetes` calls it.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use voile_testkit::cluster::{Cluster, wait_for};

use crate::kubernetes::kit::run;

/// Longest wait for proxies that are in sync.
const PATIENCE: Duration = Duration::from_secs(30);
/// A user who may read all pods and forward no port.
const LOOKER: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: look, namespace: shop}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: look, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: look}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: looker}]
"#;

/// Exit code, stdout, and stderr.
fn voile(cluster: &Cluster, arguments: &str) -> (Option<i32>, String, String) {
    let output = run(cluster, &arguments.split(' ').collect::<Vec<_>>());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The namespace `shop` has two pods of a Deployment `web` and a pod `client` in the mesh; `outside` has a pod without a proxy.
pub(crate) fn are_read(cluster: &Cluster) {
    every_replica_is_asked(cluster);
    a_pods_proxy_is_asked(cluster);
    metrics_of_all_proxies_are_read(cluster);
    requests_are_shown_as_they_end(cluster);
    errors_name_pod_reason_and_cure(cluster);
}

fn every_replica_is_asked(cluster: &Cluster) {
    let pages = wait_for("proxies in sync", PATIENCE, || {
        match voile(cluster, "status --kubernetes -o json") {
            (Some(0), pages, _) => Ok(pages),
            other => Err(format!("{other:?}")),
        }
    });
    let pages: Value = serde_json::from_str(&pages).expect("JSON");
    let pages = pages.as_object().expect("a page for each pod");
    assert_eq!(pages.len(), 2);
    assert!(
        pages
            .keys()
            .all(|name| name.starts_with("istio-system/istiod-"))
    );
    let proxies = pages.values().filter_map(|page| page["proxies"].as_array());
    // Each proxy is connected to one of them.
    assert_eq!(proxies.map(Vec::len).sum::<usize>(), 3);
    let (_, text, _) = voile(cluster, "status --kubernetes");
    assert_eq!(text.matches("\nistio-system/istiod-").count(), 1, "{text}");
    assert!(text.contains("\nshop/client "), "{text}");
}

fn a_pods_proxy_is_asked(cluster: &Cluster) {
    for name in ["deploy/web -n shop", "svc/web.shop"] {
        let (code, text, errors) = voile(cluster, &format!("config {name} --kubernetes"));
        assert_eq!(code, Some(0), "{errors}");
        assert!(text.starts_with("connected to https://istiod.istio-system.svc:15012"));
        assert!(text.contains("\nconfiguration  shop/web-"), "{text}");
    }
    for name in ["client.shop", "shop/client", "pod/client -n shop"] {
        let asked = format!("config {name} --kubernetes -o json");
        let (code, page, errors) = voile(cluster, &asked);
        assert_eq!(code, Some(0), "{errors}");
        let page: Value = serde_json::from_str(&page).expect("JSON");
        assert_eq!(page["configuration"]["resource"], "shop/client");
    }
}

fn metrics_of_all_proxies_are_read(cluster: &Cluster) {
    let edge = wait_for("the edge from client to web", PATIENCE, || {
        let (code, page, errors) = voile(cluster, "edges --kubernetes --total -n shop -o json");
        let page: Value = serde_json::from_str(&page).map_err(|_| format!("{code:?} {errors}"))?;
        let rows = page["rows"].as_array().cloned().unwrap_or_default();
        let mut rows = rows.into_iter();
        let meant = |row: &Value| {
            (&row["source"], &row["destination"]) == (&"shop/client".into(), &"shop/web".into())
        };
        rows.find(meant).ok_or_else(|| page.to_string())
    });
    assert_eq!(edge["mutual_tls"], 1.0, "{edge}");
}

fn requests_are_shown_as_they_end(cluster: &Cluster) {
    let call = "-n shop exec client -c app -- curl -sS -m 5 http://web/tapped";
    let call: Vec<&str> = call.split(' ').collect();
    let (code, record, errors) = std::thread::scope(|scope| {
        let asked = "tap --kubernetes shop/web --path /tapped --count 1 -o json";
        let watching = scope.spawn(|| voile(cluster, asked));
        while !watching.is_finished() {
            cluster.kubectl(&call).expect("an answer");
        }
        watching.join().expect("it ended")
    });
    assert_eq!(code, Some(0), "{errors}");
    let record: Value = serde_json::from_str(&record).expect("JSON");
    let from = record["from"].as_str().expect("an identity");
    assert!(
        from.starts_with("spiffe://cluster.local/ns/shop/sa/"),
        "{record}"
    );
    let proxy = record["proxy"].as_str().expect("a name");
    assert!(proxy.starts_with("shop/web-"), "{record}");
    assert_eq!(
        (&record["side"], &record["status"]),
        (&"inbound".into(), &200.into()),
        "{record}"
    );
}

fn errors_name_pod_reason_and_cure(cluster: &Cluster) {
    cluster.apply(LOOKER).expect("a role");
    let own = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
    let looker = cluster.folder().join("looker");
    let of_looker = own.replace(r#""user": {"#, r#""user": {"as": "looker", "#);
    std::fs::write(&looker, of_looker).expect("written");
    let as_looker = format!(
        "config client.shop --kubernetes --kubeconfig {}",
        looker.display()
    );
    for (asked, parts) in [
        (
            "config client.outside --kubernetes",
            [
                "pod outside/client, container istio-proxy, port 15000: ",
                "no such container",
                "istio-injection=enabled",
            ],
        ),
        (
            "config nobody.shop --kubernetes",
            [
                "pod shop/nobody, ",
                "not found",
                "cure: kubectl -n shop get pods",
            ],
        ),
        (
            &as_looker,
            [
                "pod shop/client, ",
                r#"cannot get resource "pods/portforward""#,
                "cure: a Role in shop",
            ],
        ),
        (
            "status --kubernetes -i shop",
            [
                "control plane in the namespace shop: ",
                "there is no pod of it",
                "--istio-namespace",
            ],
        ),
    ] {
        let (code, _, errors) = voile(cluster, asked);
        assert_eq!(code, Some(2), "{asked}");
        for part in parts {
            assert!(errors.contains(part), "{asked}: {errors}");
        }
    }
}

/// A report of a fault has logs and configuration of proxies, and neither Secrets nor logs of applications.
pub(crate) fn a_bug_report_is_written(cluster: &Cluster) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.tar.gz");
    let file = file.to_str().expect("text");
    let arguments = ["bug-report", "deploy/web.shop", "--out", file];
    let written = run(cluster, &arguments);
    assert!(written.status.success(), "{written:?}");
    let tar = |arguments: &[&str]| {
        let output = Command::new("tar")
            .args(arguments)
            .output()
            .expect("tar runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let names = tar(&["-tzf", file]);
    for (folder, file) in [
        ("", "voile.txt"),
        ("", "checks.txt"),
        ("", "events.json"),
        ("resources/services/shop/", "web.json"),
        ("pods/istio-system/istiod-", "/discovery.log"),
        ("pods/istio-system/istiod-", "/status.json"),
        ("pods/shop/web-", "/istio-proxy.log"),
        ("pods/shop/web-", "/config_dump.json"),
    ] {
        let folder = format!("voile-bug-report/{folder}");
        let is_it = |name: &str| name.starts_with(&folder) && name.ends_with(file);
        assert!(names.lines().any(is_it), "{folder}{file}: {names}");
    }
    assert!(
        !names.contains("app.log") && !names.contains("secrets"),
        "{names}"
    );
    let text = tar(&["-xzOf", file]);
    assert!(!text.contains("PRIVATE KEY"));
    let again = run(cluster, &arguments);
    let error = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2), "{error}");
    assert!(error.contains("name another file: --out FILE"), "{error}");
}
