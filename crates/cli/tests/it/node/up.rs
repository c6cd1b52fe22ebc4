//! `voile up --dataplane node`: the same folder with one node proxy in place of sidecars.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::mesh::{get, wait_until};
use crate::up::Up;
use crate::up::netns::{COURT, client, start_with};

/// The server's pod by its name.
const HEADS: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: heads, namespace: court}\n\
    spec: {clusterIP: None, selector: {app: server}, ports: [{name: http, port: 8080}]}\n";

/// The court without what only a sidecar obeys.
fn court(folder: &Path) {
    let excluded = "traffic.sidecar.istio.io/excludeInboundPorts: \"8081\"";
    assert!(COURT.contains(excluded));
    let off = "sidecar.istio.io/inject: \"false\"";
    let text = [
        COURT.replace(excluded, ""),
        // By a name that only the node proxy knows, and only through the resolv.conf that Kubernetes
        // writes.
        client("served", "", 80).replace("$(SERVER_SERVICE_HOST):80", "server-0.heads:8080"),
        HEADS.to_owned(),
        client("plain", off, 80),
    ];
    fs::write(folder.join("court.yaml"), text.concat()).expect("written");
}

/// `voile tap` shows connections of the pods that it is asked for, of the node proxy that serves them.
fn connections_are_shown(up: &Up, published: &BTreeMap<String, SocketAddr>) {
    let watched = |client: &str, words: &[&str]| {
        let words = [words, &["--count", "1", "--for", "60s"]].concat();
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| up.command(&words));
            while !watching.is_finished() {
                let _ = get(published[client], "/");
            }
            let (code, said) = watching.join().expect("it ended");
            assert_eq!(code, Some(0), "{words:?}: {said}");
            said
        })
    };
    // The call of the test; that of the application stays open.
    let said = watched("court/served", &["tap", "court/served", "-o", "json"]);
    let json = said.lines().find(|line| line.starts_with('{'));
    let record: Value = serde_json::from_str(json.expect("a record")).expect("JSON");
    for (field, expected) in [
        ("proxy", "istio-system/node-proxy"),
        ("workload", "court/served-0"),
        ("side", "inbound"),
    ] {
        assert_eq!(record[field], expected, "{field}: {record}");
    }
    assert!(record["bytes_sent"].as_u64() > Some(0), "{record}");
    let said = watched("court/plain", &["tap", "court/server", "--denied"]);
    for part in [" court/server-0 in  TCP ", " flags=DENY", "termination="] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn one_node_proxy_takes_the_place_of_every_sidecar() {
    let Some((mut up, published)) = start_with(court, None, &["--dataplane", "node"]) else {
        return;
    };
    let status = |name: &str| {
        get(published[&format!("court/{name}")], "/").map_or(0, |answer| answer.status)
    };
    // The server wants mutual TLS: a served pod has an identity, and an unserved one has none.
    for (name, expected) in [("served", 200), ("plain", 502)] {
        wait_until(&format!("{name} is answered {expected}"), || {
            status(name) == expected
        });
    }
    let family = up.family().concat();
    assert!(
        !family.contains("--workload court/"),
        "no sidecar: {family}"
    );
    let told = |log: &str, words: &[&str]| {
        log.lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    };
    wait_until("the node proxy tells of it", || {
        let log = up.log("node-proxy");
        told(
            &log,
            &[
                "connection complete",
                "inbound",
                "sa/default",
                "dst.workload=\"server",
            ],
        ) && told(&log, &["response_flags=\"DENY\""])
    });
    connections_are_shown(&up, &published);
    // The node proxy serves a new pod, too, and lets a removed pod go.
    up.edit(
        "court.yaml",
        "name: served, namespace: court, labels",
        "name: again, namespace: court, labels",
    );
    wait_until("the new pod is served", || {
        let log = up.log("node-proxy");
        told(&log, &["a pod is served ", "again-0"])
            && told(&log, &["no longer served", "served-0"])
    });
    up.signal(Signal::TERM);
    assert!(up.wait().success());
    assert!(up.left_behind().is_empty());
}

#[test]
fn a_node_proxy_needs_namespaces() {
    let mut up = Up::start(court, &["--dataplane", "node"]);
    assert!(!up.wait().success());
    assert!(
        up.text("err")
            .contains("--dataplane node needs --isolation netns"),
        "{}",
        up.text("err")
    );
}
