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
    /// Number of its first line: 1, or 0 for an object, whose text no person has written.
    pub(crate) first_line: u32,
}

impl SourceFile {
    /// A file that was read.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: Ok(text.into()),
            first_line: 1,
        }
    }

    /// An object of an API server, as one line of JSON. Places in it are shown by its name alone.
    pub fn object(name: impl Into<Arc<str>>, json: impl Into<String>) -> Self {
        Self {
            first_line: 0,
            ..Self::new(name, json)
        }
    }

    /// A file that exists but could not be read; its last good contents stay in force.
    pub fn unreadable(name: impl Into<Arc<str>>, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: Err(reason.into()),
            first_line: 1,
        }
    }
}

/// A place in a file. Lines and columns count from 1, columns in characters. Line 0 is an object as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Name of the file.
    pub file: Arc<str>,
    /// Line, from 1; 0 in an object of an API server.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Source {
    /// Line and column; none of an object of an API server.
    #[must_use]
    pub fn position(&self) -> Option<(u32, u32)> {
        (self.line > 0).then_some((self.line, self.column))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position() {
            None => f.write_str(&self.file),
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.file),
        }
    }
}
