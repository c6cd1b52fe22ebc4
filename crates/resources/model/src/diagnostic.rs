//! Diagnostics: a problem, its location and the correction. Every check reports in this form, to people and programs.

pub mod folding;

use std::fmt;
use std::sync::Arc;

use crate::source::Source;

/// Severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The resource is not in force.
    Error,
    /// In force, but probably not what was meant.
    Warning,
    /// In force, and perhaps just what was meant.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// One problem. Shown as `file:line:col: error[V0101]: message (field spec.x)` and an indented help line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable code such as `V0101`; the tables are in `codes`.
    pub code: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// Its location.
    pub source: Source,
    /// Path of the field inside its document such as `spec.ports[0].number`; empty for the whole document.
    pub field: String,
    /// The problem.
    pub message: String,
    /// The correction; may be empty.
    pub help: String,
    /// The missing thing that it is about: `KIND NAMESPACE/NAME`, `host NAME`, `subset HOST/NAME`, or `workloads NAMESPACE
    /// LABELS`. [`folding`] finds the cause by it.
    pub lacks: Option<Arc<str>>,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(code: &'static str, source: Source, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: Severity::Error,
            source,
            field: String::new(),
            message: message.into(),
            help: String::new(),
            lacks: None,
        }
    }

    /// A warning at a place.
    pub fn warning(code: &'static str, source: Source, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(code, source, message)
        }
    }

    /// A note at a place.
    pub fn note(code: &'static str, source: Source, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Note,
            ..Self::error(code, source, message)
        }
    }

    /// Names the field.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    /// Says what would be right.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Names what is missing.
    #[must_use]
    pub fn lacks(mut self, missing: impl Into<Arc<str>>) -> Self {
        self.lacks = Some(missing.into());
        self
    }

    /// Returns true if the resource is refused because of this.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// The problem, its field and its correction in one line, where the object itself is the place.
    #[must_use]
    pub fn words(&self) -> String {
        let mut text = format!("{}: {}", self.code, self.message);
        if !self.field.is_empty() {
            text += &format!(" (field {})", self.field);
        }
        if !self.help.is_empty() {
            text += &format!("; {}", self.help);
        }
        text
    }

    /// The order in which people want to read problems: by place, then code.
    pub fn sort(diagnostics: &mut [Diagnostic]) {
        diagnostics.sort_by(|a, b| {
            (&a.source, a.code, &a.field, &a.message)
                .cmp(&(&b.source, b.code, &b.field, &b.message))
        });
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}[{}]: {}",
            self.source, self.severity, self.code, self.message
        )?;
        if !self.field.is_empty() {
            write!(f, " (field {})", self.field)?;
        }
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}
