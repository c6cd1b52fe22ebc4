//! Forms that YAML 1.2 forbids and Kubernetes' decoder reads: `[-]`, `{a: b:, c: d}`, `a: |#comment`, `"\'"`, and tabs before
//! the lines of a flow collection. The parser follows YAML 1.2, so it gets a text in which one character stands for another;
//! lines and columns stay the same.

use granit_parser::{ErrorKind, ScanError};

/// Stands for a `-` that is a text of its own in a flow collection.
const DASH: char = '\u{f8fe}';
/// Stands for a `:` at the end of a plain text in a flow collection.
const COLON: char = '\u{f8ff}';
/// Stands for the backslash of `\'`.
const NOTHING: char = '\u{f8fd}';

/// The text for the parser, if it differs from the text as written.
pub(super) fn substitute(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let stands = |at: usize| {
        let next = bytes.get(at + 1).copied().unwrap_or(b'\n');
        let before = at.checked_sub(1).map_or(b'\n', |before| bytes[before]);
        match bytes[at] {
            b'-' if b",[]{}".contains(&next) && b" \t\r\n[{,".contains(&before) => Some(DASH),
            b':' if b",]}".contains(&next) && !b" \t\r\n[{,:'\"".contains(&before) => Some(COLON),
            _ => None,
        }
    };
    let mut found = (0..bytes.len()).filter_map(|at| Some((at, stands(at)?)));
    let mut next = found.next()?;
    let mut all = String::with_capacity(text.len() + 64);
    let mut copied = 0;
    loop {
        all.push_str(&text[copied..next.0]);
        all.push(next.1);
        copied = next.0 + 1;
        match found.next() {
            Some(one) => next = one,
            None => break,
        }
    }
    all.push_str(&text[copied..]);
    Some(all)
}

/// Returns true if the text as written has a character that stands for another. It is left alone.
pub(super) fn has_stand_ins(text: &str) -> bool {
    text.contains([DASH, COLON, NOTHING])
}

/// A scalar of a substituted text, as written.
pub(super) fn restore(scalar: &str) -> String {
    let scalar = scalar.replace(DASH, "-").replace(COLON, ":");
    scalar.replace(NOTHING, "")
}

/// The text without the cause of an error, if the cause is one of these forms.
pub(super) fn repair(text: &str, error: &ScanError, is_in_flow: bool) -> Option<String> {
    let mark = error.marker();
    let start = match mark.line().checked_sub(2) {
        None => 0,
        Some(before) => text.match_indices('\n').nth(before)?.0 + 1,
    };
    match error.kind() {
        ErrorKind::CommentNotSeparated => {
            let line = text[start..].lines().next()?;
            let (column, _) = line.char_indices().nth(mark.col())?;
            let comment = line[column..].strip_prefix('#')?;
            let blank = " ".repeat(comment.chars().count() + 1);
            let (kept, rest) = text.split_at(start + column);
            Some(format!("{kept}{blank}{}", &rest[comment.len() + 1..]))
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            let (column, _) = text[start..].char_indices().nth(mark.col())?;
            let from = start + column;
            let escape = escaped_quote(&text.as_bytes()[from..])? + from;
            let (kept, rest) = text.split_at(escape);
            Some(format!("{kept}{NOTHING}{}", &rest[1..]))
        }
        // The parser may say later that a collection begins than that a tab is in it.
        ErrorKind::TabInBlockIndentation
            if is_in_flow || text[..start].trim_end().ends_with(['[', '{', ',']) =>
        {
            let mut changed = text[..start].to_owned();
            let mut rest = &text[start..];
            loop {
                let content = rest.trim_start_matches([' ', '\t']);
                let blank = rest.len() - content.len();
                if !rest[..blank].contains('\t') {
                    break;
                }
                changed.push_str(&" ".repeat(blank));
                let line = content.find('\n').map_or(content.len(), |end| end + 1);
                changed.push_str(&content[..line]);
                rest = &content[line..];
            }
            changed.push_str(rest);
            (changed.len() == text.len() && changed != text).then_some(changed)
        }
        _ => None,
    }
}

/// Position of the first `\'`.
fn escaped_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + 1 < text.len() {
        match (text[at], text[at + 1]) {
            (b'\\', b'\'') => return Some(at),
            (b'\\', _) => at += 2,
            _ => at += 1,
        }
    }
    None
}
