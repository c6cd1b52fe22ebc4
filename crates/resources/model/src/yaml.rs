//! Parses YAML text into a tree whose every node knows its line and column.
//!
//! The text is first split at `---` lines (no YAML construct may contain one), so that one broken document never hides
//! the others. Each document is then parsed from the events of `granit-parser`, under limits that make bombs harmless.
//! Values mean what they mean to Kubernetes' own decoder (`sigs.k8s.io/yaml`); a duplicate key is refused. `lenient` has the
//! forms that only that decoder reads.

mod build;
mod lenient;
mod node;
mod split;

pub(crate) use build::{TEMPLATE, YamlError, parse_document};
pub(crate) use node::{MappingKey, ResolvedScalar, Scalar, SourcePosition, Value, YamlNode};
pub(crate) use split::{Document, split};

/// Largest document, in bytes: what a Kubernetes API server takes in one request.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 3 * 1024 * 1024;
/// Deepest nesting, in levels: real resources stay below 20; keeps every recursion over the tree small.
pub(crate) const MAX_DEPTH: usize = 64;
/// Most nodes of one document after aliases are expanded: stops the bomb of aliases to aliases.
pub(crate) const MAX_NODES: usize = 250_000;

#[cfg(test)]
mod tests;
