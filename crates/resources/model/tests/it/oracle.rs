//! Compatibility with Istio and Gateway API. Every field of their kinds is known here, enforced or named, and documents
//! that they accept are accepted. The tables are facts about the two interfaces, in our own words.

use std::collections::{BTreeMap, BTreeSet};

use voile_model::{Diagnostic, Mesh, SourceFile, check};

use crate::{check_text, render};

/// A field and its type, by the way to it.
type Leaf = (Vec<String>, String);

/// Kinds with their apiVersions, each with its fields.
fn kinds() -> Vec<(String, String, Vec<Leaf>)> {
    let lines: Vec<(usize, &str)> = include_str!("oracle_fields.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| ((line.len() - line.trim_start().len()) / 2, line.trim()))
        .collect();
    let mut named: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    let mut kinds = Vec::new();
    let tops = lines
        .iter()
        .enumerate()
        .filter(|(_, (depth, _))| *depth == 0);
    for (index, (_, head)) in tops {
        let below = lines[index + 1..]
            .iter()
            .take_while(|(depth, _)| *depth > 0);
        let below = below.copied().collect();
        match head.strip_prefix('@') {
            Some(name) => drop(named.insert(name, below)),
            None => kinds.push((head, below)),
        }
    }
    let read = |(head, below): (&&str, Vec<(usize, &str)>)| {
        let (kind, version) = head.split_once(' ').unwrap();
        let mut leaves = Vec::new();
        expand(&below, &named, &[], &mut leaves);
        (kind.to_owned(), version.to_owned(), leaves)
    };
    kinds
        .iter()
        .map(|(head, below)| read((head, below.clone())))
        .collect()
}

fn expand(
    lines: &[(usize, &str)],
    named: &BTreeMap<&str, Vec<(usize, &str)>>,
    above: &[String],
    leaves: &mut Vec<Leaf>,
) {
    let mut way: Vec<String> = above.to_vec();
    for (depth, line) in lines {
        way.truncate(above.len() + depth - 1);
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        way.push(name.to_owned());
        match value.strip_prefix('@') {
            Some(of) => expand(&named[of], named, &way, leaves),
            None if value.is_empty() => {}
            None => leaves.push((way.clone(), value.to_owned())),
        }
    }
}

/// The least text that has a field: `{spec: {hosts: [a]}}`.
fn least((way, value): &Leaf, spell: impl Fn(&str) -> String) -> String {
    let value = match value.as_str() {
        "text" => "a",
        "int" => "1",
        "number" => "1.5",
        "bool" => "true",
        "{}" => "{}",
        word => word.trim_start_matches('='),
    };
    way.iter().rev().fold(value.to_owned(), |inner, name| {
        let (name, list) = match name.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (name.as_str(), false),
        };
        let name = if name == "<a>" { "a" } else { name };
        match list {
            true => format!("{{{}: [{inner}]}}", spell(name)),
            false => format!("{{{}: {inner}}}", spell(name)),
        }
    })
}

fn document(kind: &str, version: &str, inner: &str) -> String {
    if kind == "MeshConfig" {
        return format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    {inner}\n"
        );
    }
    let inner = inner
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    format!(
        "{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}, {}}}\n",
        inner.unwrap()
    )
}

/// Fields that a diagnostic reports as unknown, with the diagnostic.
fn unknown(spell: impl Fn(&str, &str) -> String) -> Vec<String> {
    let mut found = Vec::new();
    for (kind, version, leaves) in kinds() {
        for leaf in &leaves {
            let inner = least(leaf, |name| spell(&kind, name));
            let (_, problems) = check_text(&document(&kind, &version, &inner));
            let strange = problems
                .iter()
                .find(|one| matches!(one.code, "V0101" | "V0102" | "V0108" | "V0002" | "V0005"));
            if let Some(problem) = strange {
                found.push(format!("{kind} {}: {problem}", leaf.0.join(".")));
            }
        }
    }
    found
}

#[test]
fn every_field_of_istio_and_of_gateway_api_is_known() {
    let count: usize = kinds().iter().map(|(_, _, leaves)| leaves.len()).sum();
    assert!(count > 1300, "{count} fields");
    let found = unknown(|_, name| name.to_owned());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn fields_of_istio_may_be_spelt_as_protocol_buffers_define_them() {
    let gateway_api = [
        "GRPCRoute",
        "HTTPRoute",
        "TLSRoute",
        "TCPRoute",
        "GatewayClass",
    ];
    let more = ["BackendTLSPolicy", "ListenerSet", "ReferenceGrant"];
    let found = unknown(|kind, name| {
        if gateway_api.contains(&kind) || more.contains(&kind) || kind == "Gateway" {
            return name.to_owned();
        }
        let mut snake = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase()
                && !snake.is_empty()
                && !snake.ends_with(|one: char| one.is_ascii_uppercase())
            {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
        }
        // Defined so.
        match name {
            "meshMTLS" | "verifyCertificateAtClient" => name.to_owned(),
            _ => snake,
        }
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Fields of MeshConfig that, in their least form, request the behaviour that Voile has already.
const SO_ANYWAY: [&str; 9] = [
    "defaultConfig.proxyHeaders.envoyDebugHeaders.disabled",
    "defaultConfig.proxyHeaders.metadataExchangeHeaders.mode",
    "defaultConfig.proxyHeaders.preserveHttp1HeaderCase",
    "defaultConfig.proxyHeaders.server.disabled",
    "defaultConfig.terminationDrainDuration",
    "enableAutoMtls",
    "enablePrometheusMerge",
    "enableTracing",
    "meshMTLS.minProtocolVersion",
];

#[test]
fn no_field_of_the_meshs_configuration_is_silent() {
    let default = Mesh::default();
    let mut silent = BTreeSet::new();
    for (kind, version, leaves) in kinds() {
        for leaf in leaves.iter().filter(|_| kind == "MeshConfig") {
            let inner = least(leaf, str::to_owned);
            let (mesh, problems) = check_text(&document(&kind, &version, &inner));
            let mut config = mesh.config.clone();
            std::sync::Arc::make_mut(&mut config).source = None;
            if problems.is_empty() && config == default.config {
                silent.insert(leaf.0.join("."));
            }
        }
    }
    let expected: BTreeSet<String> = SO_ANYWAY.map(str::to_owned).into();
    assert_eq!(silent, expected);
}

#[test]
fn documents_have_the_codes_that_the_table_gives() {
    let mut wrong = Vec::new();
    for block in include_str!("oracle_documents.txt").split("\n=== ").skip(1) {
        let (head, text) = block.split_once('\n').unwrap();
        let (title, codes) = head.split_once('|').unwrap_or((head, ""));
        let expected: BTreeSet<&str> = codes.split_whitespace().collect();
        let (_, problems) = check_text(text);
        let told: BTreeSet<&str> = problems.iter().map(|one| one.code).collect();
        if told != expected {
            wrong.push(format!(
                "{title}: wanted {expected:?}\n{}",
                render(&problems)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_example_is_refused() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples");
    let mut folders = vec![std::path::PathBuf::from(root)];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "yaml") {
                // Service graphs and experiments are no resources of a mesh.
                let text = std::fs::read_to_string(&path).unwrap();
                if !text.contains("\nkind: ") && !text.starts_with("kind: ") {
                    continue;
                }
                files += 1;
                let name = path.display().to_string();
                let (_, problems) = check(&[SourceFile::new(name, &text)], None);
                let refused: Vec<_> = problems.into_iter().filter(Diagnostic::is_error).collect();
                assert!(refused.is_empty(), "{}", render(&refused));
            }
        }
    }
    assert!(files > 30, "{files} files");
}
