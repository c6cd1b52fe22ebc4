//! Reading YAML that is no resource of a mesh (a service graph, say) with the manners of resources: every complaint has its
//! place, its field and what would be right; unknown fields are errors; hostile documents meet the same limits.

pub use crate::decode::{Cursor, FieldPath, Fields, IntegerOrText, NodeForm, Report, SpannedValue};
pub use crate::text::{clip, suggest};

use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::source::{Source, SourceFile};
use crate::yaml::{self, SourcePosition};

/// Reads a file of exactly one document with `read`. The answer is none when there was any error; all complaints come sorted.
pub fn one_document<T>(
    file: &SourceFile,
    read: impl FnOnce(&Cursor<'_>) -> Option<T>,
) -> (Option<T>, Vec<Diagnostic>) {
    let at = |place: SourcePosition| Source {
        file: file.name.clone(),
        line: place.line,
        column: place.column,
    };
    let first = SourcePosition { line: 1, column: 1 };
    let refuse = |code, place, message: String, help: &str| {
        let problem = Diagnostic::error(code, at(place), message).help(help);
        (None, vec![problem])
    };
    let text = match &file.text {
        Ok(text) => text,
        Err(reason) => {
            let message = format!("the file cannot be read: {reason}");
            return refuse(codes::UNREADABLE, first, message, "");
        }
    };
    let documents = yaml::split(text, file.first_line);
    if let Some(second) = documents.get(1) {
        let place = SourcePosition {
            line: second.first_line,
            column: 1,
        };
        let message = "a second document begins here".to_owned();
        return refuse(
            codes::LIMIT,
            place,
            message,
            "put it into a file of its own",
        );
    }
    let Some(document) = documents.first() else {
        return refuse(codes::MISSING, first, "the file is empty".to_owned(), "");
    };
    let origin = SourcePosition {
        line: document.first_line,
        column: 1,
    };
    let root = match yaml::parse_document(document.text, origin) {
        Ok(Some(root)) => root,
        Ok(None) => return refuse(codes::MISSING, first, "the file is empty".to_owned(), ""),
        Err(error) => return refuse(error.code, error.place, error.message, error.help),
    };
    let report = Report::new(file.name.clone());
    let cursor = Cursor {
        node: &root,
        at: FieldPath {
            place: root.place,
            path: "".into(),
        },
        report: &report,
    };
    let value = read(&cursor);
    let value = value.filter(|_| !report.failed());
    let mut problems = report.into_diagnostics();
    Diagnostic::sort(&mut problems);
    (value, problems)
}
