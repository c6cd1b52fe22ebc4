//! Locations in source files. A `SourceFile` is a text that the caller has read, or could not read. A `Source` is a
//! place in it. Everything made from the text carries its `Source`, so that a later diagnostic can name file, line and
//! column.

use std::fmt;
use std::sync::Arc;

/// One file of a configuration folder: its name as shown to people, and its text or why it could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path as it should appear in diagnostics.
    pub name: Arc<str>,
    /// The text, or the reason there is none (permission, not UTF-8, too large).
    pub text: Result<String, String>,
}

impl SourceFile {
    /// A file that was read.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: Ok(text.into()),
        }
    }

    /// A file that exists but could not be read; its last good contents stay in force.
    pub fn unreadable(name: impl Into<Arc<str>>, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: Err(reason.into()),
        }
    }
}

/// A place in a file. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Name of the file.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
