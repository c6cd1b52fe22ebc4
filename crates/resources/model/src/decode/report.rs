//! Collects the problems of one document, and defines the locations that values carry into checks.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::names::Port;
use crate::source::Source;
use crate::text::{clip, parse_duration, suggest};
use crate::yaml::SourcePosition;

/// Most problems kept for one document: a hostile one could make a million.
const MAX_DIAGNOSTICS_PER_DOCUMENT: usize = 100;

/// Place and field path of a value.
#[derive(Debug, Clone)]
pub struct FieldPath {
    pub(crate) place: SourcePosition,
    /// The way through the document, such as `services[2].script`.
    pub path: Arc<str>,
}

/// A value and where it was written.
#[derive(Debug, Clone)]
pub struct SpannedValue<T> {
    /// The value.
    pub value: T,
    /// File and line of its definition.
    pub at: FieldPath,
}

/// Problems of one document. Shared by all cursors over it.
pub struct Report {
    file: Arc<str>,
    diagnostics: RefCell<Vec<Diagnostic>>,
    failed: RefCell<bool>,
    /// True if the text is JSON of protocol buffers.
    protobuf: Cell<bool>,
    /// The mappings that were read, each with its path and the names of its known fields.
    #[cfg(test)]
    pub(crate) mappings: RefCell<Vec<(Arc<str>, Vec<&'static str>)>>,
}

impl Report {
    pub(crate) fn new(file: Arc<str>) -> Self {
        Self {
            file,
            diagnostics: RefCell::default(),
            failed: RefCell::new(false),
            protobuf: Cell::new(false),
            #[cfg(test)]
            mappings: RefCell::default(),
        }
    }

    /// From here on fields may be spelt as protocol buffers define them (`jwks_uri`).
    pub(crate) fn read_protobuf(&self) {
        self.protobuf.set(true);
    }

    /// Returns true if field names of protocol buffers are accepted.
    pub(crate) fn is_protobuf(&self) -> bool {
        self.protobuf.get()
    }

    /// Adds an error.
    pub fn error(
        &self,
        code: &'static str,
        at: &FieldPath,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        *self.failed.borrow_mut() = true;
        self.push(Diagnostic::error(code, self.source(at), message), at, help);
    }

    /// Adds a warning.
    pub fn warning(
        &self,
        code: &'static str,
        at: &FieldPath,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(
            Diagnostic::warning(code, self.source(at), message),
            at,
            help,
        );
    }

    /// Adds a note.
    pub fn note(
        &self,
        code: &'static str,
        at: &FieldPath,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Diagnostic::note(code, self.source(at), message), at, help);
    }

    /// A full report takes an error in the place of a warning or note: a refused resource always has an error.
    fn push(&self, diagnostic: Diagnostic, at: &FieldPath, help: impl Into<String>) {
        let mut all = self.diagnostics.borrow_mut();
        let diagnostic = diagnostic.field(&*at.path).help(help);
        if all.len() < MAX_DIAGNOSTICS_PER_DOCUMENT {
            all.push(diagnostic);
        } else if diagnostic.is_error()
            && let Some(lesser) = all.iter_mut().rfind(|one| !one.is_error())
        {
            *lesser = diagnostic;
        }
    }

    /// The place as others see it.
    pub fn source(&self, at: &FieldPath) -> Source {
        Source {
            file: self.file.clone(),
            line: at.place.line,
            column: at.place.column,
        }
    }

    /// Returns true if any error was added.
    pub(crate) fn failed(&self) -> bool {
        *self.failed.borrow()
    }

    /// Returns true if a field that satisfies `holds` has an error. If the report is full, every field may have one.
    pub(crate) fn failed_where(&self, holds: impl Fn(&str) -> bool) -> bool {
        let all = self.diagnostics.borrow();
        let in_field = all.iter().any(|one| one.is_error() && holds(&one.field));
        in_field || self.failed() && all.len() >= MAX_DIAGNOSTICS_PER_DOCUMENT
    }

    /// Returns true if the field or one below it has an error.
    pub(crate) fn failed_within(&self, path: &str) -> bool {
        self.failed_where(|field| is_within(field, path))
    }

    /// All of it.
    pub(crate) fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics.into_inner()
    }

    /// One of the words allowed.
    pub fn one_of<T: Copy>(
        &self,
        text: &SpannedValue<Arc<str>>,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let found = words
            .iter()
            .find(|(word, _)| *word == &*text.value)
            .map(|(_, value)| *value);
        if found.is_none() {
            let help = suggest(&text.value, words.iter().map(|(word, _)| *word));
            self.bad(text, "", help);
        }
        found
    }

    /// A port number.
    pub fn port(&self, number: &SpannedValue<i64>) -> Option<Port> {
        let port = u16::try_from(number.value).ok().and_then(Port::new);
        if port.is_none() {
            let message = format!("{} is not a port", number.value);
            self.error(
                codes::BAD_VALUE,
                &number.at,
                message,
                "a port is a number from 1 to 65535",
            );
        }
        port
    }

    /// A duration with its unit.
    pub fn duration(&self, text: &SpannedValue<Arc<str>>) -> Option<std::time::Duration> {
        let duration = parse_duration(&text.value);
        if duration.is_none() {
            self.bad(
                text,
                " for a duration",
                "write a number and a unit such as 10s, 250ms or 1h30m, at most a year",
            );
        }
        duration
    }

    /// A value parsed by `parse`.
    pub fn parsed<T>(
        &self,
        text: &SpannedValue<Arc<str>>,
        what: &str,
        parse: impl Fn(&str) -> Option<T>,
        help: &str,
    ) -> Option<T> {
        let value = parse(&text.value);
        if value.is_none() {
            self.bad(text, &format!(" for {what}"), help);
        }
        value
    }

    /// Says that the text is not allowed here.
    pub fn bad(&self, text: &SpannedValue<Arc<str>>, what: &str, help: impl Into<String>) {
        self.error(
            codes::BAD_VALUE,
            &text.at,
            format!("`{}` is not allowed{what}", clip(&text.value)),
            help,
        );
    }

    /// A field that must be there: reports at its parent when it is not.
    pub fn required<T>(&self, value: Option<T>, parent: &FieldPath, name: &str) -> Option<T> {
        if value.is_none() && !self.failed_below(parent, name) {
            let path: Arc<str> = if parent.path.is_empty() {
                name.into()
            } else {
                format!("{}.{name}", parent.path).into()
            };
            let at = FieldPath {
                place: parent.place,
                path,
            };
            self.error(codes::MISSING, &at, format!("`{name}` is missing"), "");
        }
        value
    }

    /// Returns true if the field exists but already has an error.
    fn failed_below(&self, parent: &FieldPath, name: &str) -> bool {
        let path = if parent.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", parent.path)
        };
        self.diagnostics
            .borrow()
            .iter()
            .any(|d| d.is_error() && d.field == path)
    }
}

/// Returns true if a field is `parent` or below it.
pub(crate) fn is_within(field: &str, parent: &str) -> bool {
    let rest = field.strip_prefix(parent);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
