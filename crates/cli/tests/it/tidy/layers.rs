//! The arrows of the house: which crate may, through normal dependencies, reach which. Dev dependencies do not count.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Data and decisions: no runtime, no sockets.
const PURE: &[&str] = &[
    "voile-model",
    "voile-proto",
    "voile-policy",
    "voile-traffic",
    "voile-analysis",
    "voile-http1",
    "voile-http2",
    "voile-http3",
    "voile-pages",
    "voile-report",
    "voile-graph",
];
const RUNTIME_AND_SOCKETS: &[&str] = &[
    "tokio", "mio", "socket2", "hyper", "tonic", "rustls", "rustix",
];

/// Names of packages and their normal dependencies, by package name.
pub(super) fn normal_edges(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let name_of = |id: &Value| {
        metadata["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|package| &package["id"] == id)
            .and_then(|package| package["name"].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let mut edges = BTreeMap::new();
    for node in metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let normal = node["deps"].as_array().into_iter().flatten().filter(|dep| {
            dep["dep_kinds"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|kind| kind["kind"].is_null())
        });
        edges.insert(
            name_of(&node["id"]),
            normal.map(|dep| name_of(&dep["pkg"])).collect(),
        );
    }
    edges
}

fn reachable(edges: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(package) = next.pop() {
        for dependency in edges.get(&package).into_iter().flatten() {
            if seen.insert(dependency.clone()) {
                next.push(dependency.clone());
            }
        }
    }
    seen
}

/// (who, what it must never reach)
fn forbidden(ours: &[String]) -> Vec<(String, Vec<String>)> {
    let owned = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let mut rules = Vec::new();
    for pure in PURE {
        rules.push(((*pure).to_owned(), owned(RUNTIME_AND_SOCKETS)));
    }
    rules.push(("voile-proxy".into(), owned(&["voile-control"])));
    rules.push(("voile-control".into(), owned(&["voile-proxy"])));
    rules.push((
        "voile-lab".into(),
        owned(&["voile-proxy", "voile-control", "voile-local"]),
    ));
    rules.push((
        "voile-synthetic".into(),
        owned(&[
            "voile-proxy",
            "voile-control",
            "voile-local",
            "voile-http1",
            "voile-http2",
            "voile-transport",
        ]),
    ));
    let but_report = ours
        .iter()
        .filter(|name| !["voile-report", "voile-load"].contains(&name.as_str()));
    rules.push(("voile-load".into(), but_report.cloned().collect()));
    for name in ours
        .iter()
        .filter(|name| *name != "voile-kubernetes" && *name != "voile")
    {
        rules.push((
            name.clone(),
            owned(&["kube", "kube-core", "kube-client", "k8s-openapi"]),
        ));
    }
    rules
}

#[test]
fn no_arrow_points_where_the_house_forbids() {
    let metadata = super::metadata();
    let edges = normal_edges(&metadata);
    let ours: Vec<String> = edges
        .keys()
        .filter(|name| name.starts_with("voile"))
        .cloned()
        .collect();
    assert!(ours.len() > 10, "the workspace was found: {ours:?}");
    let mut broken = Vec::new();
    for (who, never) in forbidden(&ours) {
        let reached = reachable(&edges, &who);
        broken.extend(
            never
                .iter()
                .filter(|name| reached.contains(*name))
                .map(|name| format!("{who} reaches {name}")),
        );
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
