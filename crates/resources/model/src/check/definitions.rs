//! Tests of the definitions of kinds (CRDs) that the Helm chart installs: they have the fields, kinds and versions that the
//! model reads, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::health_check::health_check;
use super::kinds::KINDS;
use super::rate_limit::rate_limit;
use super::values::{self, Meta};
use crate::check::header::Header;
use crate::decode::{Cursor, FieldPath, Fields, Report};
use crate::names::{Namespace, ResourceName};
use crate::yaml::{SourcePosition, Value, YamlNode, parse_document};

/// Names of fields by the path of their mapping; `[]` is any element of a list and any key of a map.
type FieldTable = BTreeMap<String, BTreeSet<String>>;

const ORIGIN: SourcePosition = SourcePosition { line: 1, column: 1 };

fn parse(text: &str) -> YamlNode {
    parse_document(text, ORIGIN).unwrap().unwrap()
}

fn words(node: &YamlNode) -> Vec<&str> {
    let Value::List(items) = &node.value else {
        return Vec::new();
    };
    items.iter().map(word).collect()
}

fn word(node: &YamlNode) -> &str {
    match &node.value {
        Value::Scalar(scalar) => &scalar.text,
        _ => panic!("a word is wanted"),
    }
}

fn entries(node: &YamlNode) -> impl Iterator<Item = (&str, &YamlNode)> {
    let Value::Map(entries) = &node.value else {
        panic!("a mapping is wanted");
    };
    entries.iter().map(|(key, value)| (&*key.text, value))
}

/// Adds the fields of a schema to the table, and returns a value that has all of them.
fn fill(schema: &YamlNode, path: &str, table: &mut FieldTable) -> String {
    let join = |name: &str| match path {
        "" => name.to_owned(),
        parent => format!("{parent}.{name}"),
    };
    match schema.get("type").map(word) {
        Some("string") => "\"x\"".to_owned(),
        Some("integer") => "1".to_owned(),
        Some("boolean") => "true".to_owned(),
        Some("array") => {
            let item = fill(schema.get("items").unwrap(), &format!("{path}[]"), table);
            format!("[{item}]")
        }
        Some("object") => match (schema.get("properties"), schema.get("additionalProperties")) {
            (Some(properties), _) => {
                let names = entries(properties).map(|(name, _)| name.to_owned());
                table.insert(path.to_owned(), names.collect());
                let fields = entries(properties)
                    .map(|(name, schema)| format!("{name}: {}", fill(schema, &join(name), table)));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
            (None, Some(schema)) => {
                let value = fill(schema, &format!("{path}[]"), table);
                format!("{{x: {value}}}")
            }
            (None, None) => {
                table.insert(path.to_owned(), BTreeSet::new());
                "{}".to_owned()
            }
        },
        other => panic!("{path}: type {other:?}"),
    }
}

/// Reads a document that has every field of the schema, and compares the fields that the reader knows with the schema's.
#[track_caller]
fn compare(definition: &str, read: impl Fn(Meta, &mut Fields<'_>, &Report)) {
    let definition = parse(definition);
    let Value::List(versions) = &definition.get("versions").unwrap().value else {
        panic!("versions is a list");
    };
    let schema = versions[0]
        .get("schema")
        .unwrap()
        .get("openAPIV3Schema")
        .unwrap();
    let spec = schema.get("properties").unwrap().get("spec").unwrap();
    let mut expected = FieldTable::new();
    let document = format!("spec: {}", fill(spec, "spec", &mut expected));
    let node = parse(&document);
    let report = Report::new("document".into());
    let at = FieldPath {
        place: ORIGIN,
        path: "".into(),
    };
    let cursor = Cursor {
        node: &node,
        at,
        report: &report,
    };
    let mut fields = cursor.fields().unwrap();
    let name = ResourceName::new(Namespace::new("shop").unwrap(), Arc::from("a"));
    let header = Header::read(&mut fields);
    let meta = values::meta_of(&header, name, cursor.at().clone(), &report);
    read(meta, &mut fields, &report);
    let mut known = FieldTable::new();
    for (path, names) in report.mappings.borrow().iter() {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        known.insert(without_indexes(path), names);
    }
    assert_eq!(known, expected, "{document}");
}

/// `a[0].b[x]` as `a[].b[]`.
fn without_indexes(path: &str) -> String {
    let mut parts = path.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |path, part| {
        let after = part.split_once(']').map_or("", |(_, after)| after);
        format!("{path}[]{after}")
    })
}

#[test]
fn the_schema_of_health_checks_has_the_fields_that_are_read() {
    let definition =
        include_str!("../../../../../deploy/helm/voile/files/healthchecks.voile.dev.yaml");
    compare(definition, |meta, fields, report| {
        drop(health_check(meta, fields, report));
    });
}

#[test]
fn the_schema_of_rate_limits_has_the_fields_that_are_read() {
    let definition =
        include_str!("../../../../../deploy/helm/voile/files/ratelimits.voile.dev.yaml");
    compare(definition, |meta, fields, report| {
        drop(rate_limit(meta, fields, report));
    });
}

#[test]
fn every_kind_of_istio_has_a_definition_with_the_versions_that_are_read() {
    let file = include_str!("../../../../../deploy/helm/voile/files/istio-kinds.yaml");
    let file = parse(file);
    let Value::List(kinds) = &file.get("kinds").unwrap().value else {
        panic!("kinds is a list");
    };
    let mut defined = BTreeMap::new();
    for kind in kinds {
        let field = |name: &str| word(kind.get(name).unwrap());
        let versions = words(kind.get("versions").unwrap());
        let stored = kind.get("stored").map_or("v1", word);
        assert!(versions.contains(&stored), "{}", field("kind"));
        assert_eq!(field("plural"), plural(field("singular")));
        assert_eq!(field("singular"), field("kind").to_ascii_lowercase());
        let versions = versions
            .iter()
            .map(|version| format!("{}/{version}", field("group")));
        defined.insert(field("kind"), versions.collect::<BTreeSet<_>>());
    }
    let istio = KINDS
        .iter()
        .filter(|kind| kind.group().ends_with(".istio.io"));
    let read: BTreeMap<_, BTreeSet<_>> = istio
        .map(|kind| {
            (
                kind.name,
                kind.api_versions
                    .iter()
                    .map(|one| (*one).to_owned())
                    .collect(),
            )
        })
        .collect();
    assert_eq!(defined, read);
}

fn plural(singular: &str) -> String {
    match singular.strip_suffix('y') {
        Some(stem) if !singular.ends_with("ay") => format!("{stem}ies"),
        _ => format!("{singular}s"),
    }
}
