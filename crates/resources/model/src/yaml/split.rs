//! Cuts a file into its documents, by lines.

use super::build::parse_document;
use super::node::SourcePosition;

/// One document: its text and the line of the file it begins on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Document<'a> {
    pub(crate) text: &'a str,
    pub(crate) first_line: u32,
}

/// The documents of a file that say anything, in order. `---` stays with the document it opens, and so do directives (`%TAG`) before
/// it; `...` ends one. `first_line` is the number of the first line.
pub(crate) fn split(text: &str, first_line: u32) -> Vec<Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let (mut start, mut start_line) = (0, first_line);
    let mut offset = 0;
    for (line, number) in text.split_inclusive('\n').zip(first_line..) {
        let next = offset + line.len();
        if is_marker(line, "---") {
            let before = &text[start..offset];
            // The parser takes a document's directives together with it.
            if !has_directives(before) || says_something(before) {
                documents.push(Document {
                    text: before,
                    first_line: start_line,
                });
                (start, start_line) = (offset, number);
            }
        } else if is_marker(line, "...") {
            documents.push(Document {
                text: &text[start..offset],
                first_line: start_line,
            });
            (start, start_line) = (next, number + 1);
        }
        offset = next;
    }
    documents.push(Document {
        text: &text[start..],
        first_line: start_line,
    });
    documents.retain(|document| says_something(document.text));
    documents
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

/// Returns true if it begins with directives, and the parser takes all that stands before the document. Others do not take the next
/// document along, and neither do those in a document that is open: they need `...` before them.
fn has_directives(text: &str) -> bool {
    let mut head: String = lines(text)
        .take_while(|line| is_head(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    if !head.lines().any(|line| line.starts_with('%')) {
        return false;
    }
    head.push_str("---\n");
    parse_document(&head, SourcePosition { line: 1, column: 1 }).is_ok()
}

/// Not only blank lines, comments, well-formed directives and the marker itself.
fn says_something(text: &str) -> bool {
    let rest = text.strip_prefix("---").unwrap_or(text);
    let directives = lines(rest).any(|line| line.starts_with('%'));
    !lines(rest).all(is_head) || directives && !has_directives(text)
}

/// Lines as the parser sees them: a carriage return ends one, too.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', '\r'])
}

/// Returns true for a line that may stand before a document: blank, a comment, a directive.
fn is_head(line: &str) -> bool {
    let words = line.trim_matches([' ', '\t']);
    words.is_empty() || words.starts_with('#') || line.starts_with('%')
}
