//! The part of Go's template language that the chart is written in. `chart` renders the chart with it, as Helm does. Any
//! construct or function that is not evaluated as Helm evaluates it is an error, never a guess.

mod evaluate;
mod functions;
mod lex;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::Value;

use evaluate::Evaluation;
use parse::TemplateBlock;

/// Error of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct TemplateError {
    /// File of the chart.
    pub file: String,
    /// Line of the action, from 1.
    pub line: usize,
    /// The problem.
    pub reason: String,
}

/// The chart's surroundings, which templates ask for.
pub(crate) trait Surroundings {
    /// `.Files.Get`: a file of the chart, or empty.
    fn file(&self, path: &str) -> String;
    /// `lookup`: an object of the cluster.
    fn object(&self, version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value>;
}

/// Templates of one chart.
#[derive(Debug, Default)]
pub(crate) struct TemplateSet {
    /// Bodies by name: files, and what they define.
    blocks: BTreeMap<String, TemplateBlock>,
}

impl TemplateSet {
    /// Adds a file and its definitions.
    ///
    /// # Errors
    /// The file has a construct that is not known.
    pub(crate) fn add(&mut self, file: &str, source: &str) -> Result<(), TemplateError> {
        let failed = |(line, reason)| TemplateError {
            file: file.to_owned(),
            line,
            reason,
        };
        let parsed = parse::parse(source).map_err(failed)?;
        for (name, body) in parsed.defined {
            let block = TemplateBlock {
                file: file.to_owned(),
                ..body
            };
            self.blocks.insert(name, block);
        }
        let body = TemplateBlock {
            file: file.to_owned(),
            ..parsed.body
        };
        self.blocks.insert(file.to_owned(), body);
        Ok(())
    }

    /// Renders a file with `data` as its dot.
    ///
    /// # Errors
    /// An expression cannot be evaluated.
    pub(crate) fn render(
        &self,
        file: &str,
        data: &Value,
        surroundings: &dyn Surroundings,
    ) -> Result<String, TemplateError> {
        Evaluation {
            blocks: &self.blocks,
            surroundings,
        }
        .render(file, data)
    }
}
