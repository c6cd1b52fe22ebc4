//! Why a definition cannot be run, and where.

use std::fmt;

/// A definition that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionError {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) what: String,
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.file, self.line, self.column, self.what
        )
    }
}

impl std::error::Error for DefinitionError {}
