//! Dependencies are a budget: one version of each, or an excuse that names who pulls in the second.

use std::collections::{BTreeMap, BTreeSet};

/// Packages that may be there twice, and why.
const EXCUSED: &[(&str, &str)] = &[
    ("base64", "pem, under rcgen, is one ahead of tonic"),
    (
        "cpufeatures",
        "rand, under quinn, is one ahead of the hashes of tokens and of the lab",
    ),
    ("foldhash", "comes with hashbrown"),
    (
        "getrandom",
        "jsonwebtoken names one behind quinn's, for WebAssembly alone",
    ),
    (
        "hashbrown",
        "hashlink, under the YAML parser, is one behind indexmap",
    ),
    (
        "miniz_oxide",
        "the PNG writer, under resvg, is one behind flate2",
    ),
    ("nom", "the X.509 parser is one behind hdrhistogram"),
    (
        "rand_core",
        "signature, under jsonwebtoken, is behind rand, under quinn",
    ),
    (
        "syn",
        "derive macros move at different speeds; build time only",
    ),
    (
        "untrusted",
        "aws-lc-rs still has the old one, webpki the new",
    ),
];

/// Licences that may be linked into the binary.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "OpenSSL",
    "0BSD",
    "MIT-0",
    // Of the font that PNG plots are lettered with: may be bundled with programs.
    "OFL-1.1",
    "Ubuntu-font-1.0",
];

#[test]
fn no_dependency_is_there_twice_without_an_excuse() {
    let metadata = super::metadata();
    let reached = linked(&metadata);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if reached.contains(package["id"].as_str().unwrap_or_default()) {
            let name = package["name"].as_str().unwrap_or_default();
            versions
                .entry(name)
                .or_default()
                .insert(package["version"].as_str().unwrap_or_default());
        }
    }
    let twice: Vec<String> = versions
        .iter()
        .filter(|(name, versions)| {
            versions.len() > 1 && !EXCUSED.iter().any(|(excused, _)| excused == *name)
        })
        .map(|(name, versions)| format!("{name}: {versions:?}"))
        .collect();
    assert!(twice.is_empty(), "\n{}", twice.join("\n"));
}

#[test]
fn every_linked_licence_is_on_the_list() {
    let metadata = super::metadata();
    let reached = linked(&metadata);
    let mut strange = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if !reached.contains(package["id"].as_str().unwrap_or_default()) {
            continue;
        }
        let licence = package["license"].as_str().unwrap_or("none");
        // An OR needs one known branch, an AND all of them; splitting on both and asking each alternative is enough here.
        let known = licence.replace(['(', ')'], "").split(" OR ").any(|branch| {
            branch
                .split(" AND ")
                .flat_map(|part| part.split('/'))
                .all(|part| {
                    LICENCES.contains(&part.trim().trim_end_matches(" WITH LLVM-exception"))
                })
        });
        if !known {
            strange.push(format!(
                "{}: {licence}",
                package["name"].as_str().unwrap_or_default()
            ));
        }
    }
    assert!(strange.is_empty(), "\n{}", strange.join("\n"));
}

/// Ids of the packages that end up in the binary: normal dependencies, transitively, on Linux (as cargo resolved them here).
fn linked(metadata: &serde_json::Value) -> BTreeSet<String> {
    let nodes: BTreeMap<&str, &serde_json::Value> = metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|node| (node["id"].as_str().unwrap_or_default(), node))
        .collect();
    let cli = nodes
        .keys()
        .find(|id| id.contains("/crates/cli#"))
        .expect("the binary's package is there");
    let mut seen = BTreeSet::from([(*cli).to_owned()]);
    let mut next = vec![*cli];
    while let Some(id) = next.pop() {
        for dep in nodes[id]["deps"].as_array().into_iter().flatten() {
            let normal = dep["dep_kinds"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|kind| {
                    kind["kind"].is_null()
                        && !kind["target"].as_str().is_some_and(|target| {
                            target.contains("windows") || target.contains("wasm")
                        })
                });
            let package = dep["pkg"].as_str().unwrap_or_default();
            if normal && nodes.contains_key(package) && seen.insert(package.to_owned()) {
                next.push(package);
            }
        }
    }
    seen
}
