//! Causes and what follows from them: diagnostics about one missing resource, folded below the one that says why it is
//! missing. Called by what prints problems to people; no diagnostic is dropped.

use std::collections::BTreeMap;
use std::fmt;

use super::Diagnostic;
use crate::codes;
use crate::source::{Source, SourceFile};
use crate::yaml::{self, Document, SourcePosition, Value, YamlNode};

/// Kinds whose labels, or whose template's, are those of workloads.
const WORKLOAD_KINDS: [&str; 8] = [
    "Pod",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "Job",
    "WorkloadEntry",
    "WorkloadGroup",
];

/// A diagnostic, and those that would not be there without it.
#[derive(Debug)]
pub struct FoldedDiagnostic {
    /// The cause.
    pub cause: Diagnostic,
    /// What follows, in the order in which it was given.
    pub following: Vec<Diagnostic>,
}

impl fmt::Display for FoldedDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)?;
        match self.following.len() {
            0 => Ok(()),
            1 => f.write_str("\n  and 1 more that follows (voile analyze --all)"),
            more => write!(f, "\n  and {more} more that follow (voile analyze --all)"),
        }
    }
}

/// Folds diagnostics that are in the order of their places. The cause is an error in the document that declares the missing
/// resource; without one, the gravest diagnostic about the same missing resource.
#[must_use]
pub fn fold(diagnostics: Vec<Diagnostic>, files: &[SourceFile]) -> Vec<FoldedDiagnostic> {
    let diagnostics = outcomes_last(diagnostics, files);
    let wanting = diagnostics.iter().any(|one| one.lacks.is_some());
    let refused = match wanting {
        true => refused_documents(&diagnostics, files),
        false => Vec::new(),
    };
    let mut heads: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, one) in diagnostics.iter().enumerate() {
        let Some(lacks) = &one.lacks else { continue };
        let declared = refused
            .iter()
            .find(|(_, document)| document.declares(lacks));
        match (declared, heads.get(&**lacks)) {
            (Some((cause, _)), _) => drop(heads.insert(lacks, *cause)),
            (None, Some(head)) if diagnostics[*head].severity <= one.severity => {}
            (None, _) => drop(heads.insert(lacks, index)),
        }
    }
    let head_of = |(index, one): (usize, &Diagnostic)| {
        let lacks = one.lacks.as_deref();
        lacks.map_or(index, |lacks| heads[lacks])
    };
    let head_of: Vec<usize> = diagnostics.iter().enumerate().map(head_of).collect();
    let mut followers: BTreeMap<usize, Vec<Diagnostic>> = BTreeMap::new();
    let mut causes = Vec::new();
    for (index, (one, head)) in diagnostics.into_iter().zip(head_of).enumerate() {
        match head == index {
            true => causes.push((index, one)),
            false => followers.entry(head).or_default().push(one),
        }
    }
    let mut folded = |(index, cause)| FoldedDiagnostic {
        cause,
        following: followers.remove(&index).unwrap_or_default(),
    };
    causes.into_iter().map(&mut folded).collect()
}

/// Moves what became of a resource (`is not in force`) behind the errors in its document.
fn outcomes_last(diagnostics: Vec<Diagnostic>, files: &[SourceFile]) -> Vec<Diagnostic> {
    let is_outcome = |one: &Diagnostic| [codes::LAST_GOOD, codes::NOT_ENFORCED].contains(&one.code);
    if !diagnostics.iter().any(is_outcome) {
        return diagnostics;
    }
    let place = |one: &Diagnostic| {
        let document = document_of(&one.source, files)?;
        Some((one.source.file.clone(), document.first_line))
    };
    let places: Vec<_> = diagnostics.iter().map(place).collect();
    let rank = |(index, one): (usize, &Diagnostic)| match is_outcome(one) {
        true => places.iter().rposition(|place| *place == places[index]),
        false => Some(index),
    };
    let ranks: Vec<_> = diagnostics.iter().enumerate().map(rank).collect();
    let mut ranked: Vec<_> = ranks.into_iter().zip(diagnostics).collect();
    ranked.sort_by_key(|(rank, one)| (*rank, is_outcome(one)));
    ranked.into_iter().map(|(_, one)| one).collect()
}

/// The document of a file that a place is in.
fn document_of<'a>(source: &Source, files: &'a [SourceFile]) -> Option<Document<'a>> {
    let file = files.iter().find(|file| file.name == source.file)?;
    let text = file.text.as_ref().ok()?;
    let documents = yaml::split(text, file.first_line).into_iter();
    documents
        .take_while(|document| document.first_line <= source.line)
        .last()
}

/// What a document with an error would have declared.
#[derive(Debug, Default)]
struct RefusedDocument {
    /// `KIND NAMESPACE/NAME`, and other keys of [`Diagnostic::lacks`].
    keys: Vec<String>,
    /// Namespace and labels of its workloads.
    workloads: Vec<(String, BTreeMap<String, String>)>,
    /// Namespace and host of the subsets of its DestinationRules.
    subsets: Vec<(String, String)>,
    /// Text that is not YAML.
    unreadable: String,
}

/// The documents with errors of their own, each with the place of its first error among the diagnostics.
fn refused_documents(
    diagnostics: &[Diagnostic],
    files: &[SourceFile],
) -> Vec<(usize, RefusedDocument)> {
    let mut refused = Vec::new();
    let mut seen = Vec::new();
    for (index, one) in diagnostics.iter().enumerate() {
        if !one.is_error() || one.lacks.is_some() {
            continue;
        }
        let Some(document) = document_of(&one.source, files) else {
            continue;
        };
        let place = (&one.source.file, document.first_line);
        if !seen.contains(&place) {
            seen.push(place);
            refused.push((index, RefusedDocument::read(&document)));
        }
    }
    refused
}

impl RefusedDocument {
    fn read(document: &Document<'_>) -> Self {
        let origin = SourcePosition {
            line: document.first_line,
            column: 1,
        };
        let mut read = Self::default();
        match yaml::parse_document(document.text, origin) {
            Ok(Some(root)) => match root.get("items").map(|items| &items.value) {
                Some(Value::List(items)) => items.iter().for_each(|item| read.add(item)),
                _ => read.add(&root),
            },
            Ok(None) => {}
            Err(_) => read.unreadable = document.text.to_owned(),
        }
        read
    }

    fn add(&mut self, resource: &YamlNode) {
        let metadata = |key| text(resource.get("metadata")?.get(key)?);
        let (Some(kind), Some(name)) = (resource.get("kind").and_then(text), metadata("name"))
        else {
            return;
        };
        let namespace = metadata("namespace").unwrap_or("default");
        self.keys.push(format!("{kind} {namespace}/{name}"));
        let spec = resource.get("spec");
        if WORKLOAD_KINDS.contains(&kind) {
            let template = spec.and_then(|spec| spec.get("template"));
            let labelled = template.unwrap_or(resource).get("metadata");
            let labels = labelled.and_then(|metadata| metadata.get("labels"));
            let labels = labels.or_else(|| spec?.get("labels"));
            let workload = (namespace.to_owned(), labels.map(map).unwrap_or_default());
            self.workloads.push(workload);
        }
        let host = spec.and_then(|spec| text(spec.get("host")?));
        if let ("DestinationRule", Some(host)) = (kind, host) {
            self.subsets.push((namespace.to_owned(), host.to_owned()));
        }
        let hosts = spec.and_then(|spec| spec.get("hosts"));
        if let ("ServiceEntry", Some(Value::List(hosts))) = (kind, hosts.map(|hosts| &hosts.value))
        {
            let hosts = hosts.iter().filter_map(text);
            self.keys.extend(hosts.map(|host| format!("host {host}")));
        }
    }

    /// Returns true if the document would declare the missing resource.
    fn declares(&self, lacks: &str) -> bool {
        if self.keys.iter().any(|key| key == lacks) {
            return true;
        }
        match lacks.split_once(' ') {
            Some(("workloads", wanted)) => self.has_workload(wanted),
            Some(("subset", wanted)) => {
                let host = wanted.split_once('/').map_or(wanted, |(host, _)| host);
                let is_its = |(namespace, own): &(String, String)| {
                    own == host || host.starts_with(&format!("{own}.{namespace}.svc."))
                };
                self.subsets.iter().any(is_its)
            }
            Some((kind, wanted)) => {
                let name = wanted.rsplit('/').next().unwrap_or_default();
                let says = |key: &str, value: &str| {
                    let text = self.unreadable.split(['\n', ',', '{', '}']).map(str::trim);
                    let written = format!("{key}: {value}");
                    text.into_iter().any(|part| part == written)
                };
                says("kind", kind) && says("name", name)
            }
            None => false,
        }
    }

    /// `NAMESPACE key=value,key=value`.
    fn has_workload(&self, wanted: &str) -> bool {
        let (namespace, selector) = wanted.split_once(' ').unwrap_or((wanted, ""));
        self.workloads.iter().any(|(own, labels)| {
            let has = |pair: &str| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                labels.get(key).is_some_and(|own| own == value)
            };
            own == namespace && selector.split(',').all(has)
        })
    }
}

fn text(node: &YamlNode) -> Option<&str> {
    match &node.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        _ => None,
    }
}

fn map(node: &YamlNode) -> BTreeMap<String, String> {
    let Value::Map(entries) = &node.value else {
        return BTreeMap::new();
    };
    let entries = entries.iter();
    let pairs =
        entries.filter_map(|(key, value)| Some((key.text.to_string(), text(value)?.to_owned())));
    pairs.collect()
}
