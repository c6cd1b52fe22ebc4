//! Types between the engines and a role for a request that waits for an external service: the part of the body that the
//! question needs, the response that replaces an upstream's, and amendments of response heads.

use std::borrow::Cow;

use bytes::Bytes;
use voile_http2::Fields;

/// A question that must be answered before the role can decide.
pub struct Pending<Q> {
    /// Question of the role.
    pub question: Q,
    /// Limit of the body that the question needs; `None` is nothing.
    pub body: Option<BodyWanted>,
}

/// Limit of the body that is held for a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyWanted {
    /// Most bytes.
    pub max: usize,
    /// True if the beginning of a longer body is enough; otherwise such a request is answered 413.
    pub partial: bool,
}

/// A body as far as a question shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BodyPrefix {
    /// Its bytes, without framing.
    pub bytes: Vec<u8>,
    /// True if that is all of the body.
    pub whole: bool,
}

/// Parts of a body that were taken, and whose sender has its window back.
#[derive(Debug, Default)]
pub(crate) struct TakenBody {
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) bytes: usize,
    /// There is no more.
    pub(crate) whole: bool,
}

/// Response that another service chose for the client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExternalReply {
    /// Complete field lines (`name: value\r\n` each), without any that frame or route.
    pub lines: Vec<u8>,
    /// The body, where it is not our reason.
    pub body: Option<Vec<u8>>,
    /// gRPC status for the caller, in place of the one that follows from the HTTP status.
    pub grpc_status: Option<u16>,
    /// Amendments of this response's head, by a service that approved the request before.
    pub amends: Vec<HeadAmendment>,
}

impl ExternalReply {
    /// An answer of which the head is all.
    pub(crate) fn without_body() -> Self {
        Self {
            body: Some(Vec::new()),
            ..Self::default()
        }
    }
}

impl ExternalReply {
    /// Every field line.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        lines(&self.lines)
    }

    /// Returns true if a field has that name, in lower case.
    pub(crate) fn says(&self, wanted: &str) -> bool {
        let mut fields = self.fields();
        fields.any(|(name, _)| name.eq_ignore_ascii_case(wanted.as_bytes()))
    }
}

impl ExternalReply {
    /// Removes every field of that name, in lower case.
    pub(crate) fn remove(&mut self, unwanted: &str) {
        let mut kept = Vec::with_capacity(self.lines.len());
        for (name, value) in self.fields() {
            if !name.eq_ignore_ascii_case(unwanted.as_bytes()) {
                for part in [name, b": ", value, b"\r\n"] {
                    kept.extend_from_slice(part);
                }
            }
        }
        self.lines = kept;
    }
}

/// Name and value of complete field lines.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

/// One change of the head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadAmendment {
    /// Lower case.
    pub name: Box<str>,
    /// Its value.
    pub value: Box<[u8]>,
    /// Treatment of the response's own fields of that name.
    pub manner: FieldPlacement,
}

/// Placement of a field beside others of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldPlacement {
    /// It is one more.
    Append,
    /// It is there only where none is.
    IfAbsent,
    /// It is there in their place.
    Overwrite,
    /// The same, where there are any.
    IfPresent,
    /// They are taken out, and nothing is put in.
    Remove,
}

impl HeadAmendment {
    /// (take out those that are there, add this one).
    fn wishes(&self, present: bool) -> (bool, bool) {
        match self.manner {
            FieldPlacement::Append => (false, true),
            FieldPlacement::IfAbsent => (false, !present),
            FieldPlacement::Overwrite => (present, true),
            FieldPlacement::IfPresent => (present, present),
            FieldPlacement::Remove => (present, false),
        }
    }
}

/// Changes a head of HTTP/1.1 that begins at `from` and is complete.
pub(crate) fn amend_lines(out: &mut Vec<u8>, from: usize, amendments: &[HeadAmendment]) {
    for change in amendments {
        let mut head = out.split_off(from);
        let same = |line: &[u8]| {
            let colon = line.iter().position(|byte| *byte == b':');
            colon.is_some_and(|colon| line[..colon].eq_ignore_ascii_case(change.name.as_bytes()))
        };
        // The first line is the status, which has no name; the last one is empty.
        let kept: Vec<&[u8]> = head.split_inclusive(|byte| *byte == b'\n').collect();
        let present = kept.iter().skip(1).any(|line| same(line));
        let (take_out, add) = change.wishes(present);
        if take_out {
            let first = kept.first().copied().unwrap_or_default().to_vec();
            let rest = kept.iter().skip(1).filter(|line| !same(line));
            head = rest.fold(first, |mut head, line| {
                head.extend_from_slice(line);
                head
            });
        }
        if add {
            head.truncate(head.len().saturating_sub(2));
            head.extend_from_slice(change.name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(&change.value);
            head.extend_from_slice(b"\r\n\r\n");
        }
        out.extend_from_slice(&head);
    }
}

/// The same for a head of HTTP/2.
pub(crate) fn amend_fields(head: &mut Fields, amendments: &[HeadAmendment]) {
    for change in amendments {
        let (take_out, add) = change.wishes(head.contains(&change.name));
        if take_out {
            head.remove(&change.name);
        }
        if add {
            head.push_checked(change.name.as_bytes(), &change.value);
        }
    }
}

/// Fields that are left out, by name in lower case.
pub type Names = [Cow<'static, str>];

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, value: &str, manner: FieldPlacement) -> HeadAmendment {
        HeadAmendment {
            name: name.into(),
            value: value.as_bytes().into(),
            manner,
        }
    }

    #[test]
    fn both_versions_of_a_head_are_amended_alike() {
        let manners = [
            (FieldPlacement::Append, "a: 1|a: 2|b: 3|a: x|n: y"),
            (FieldPlacement::IfAbsent, "a: 1|a: 2|b: 3|n: y"),
            (FieldPlacement::Overwrite, "b: 3|a: x|n: y"),
            (FieldPlacement::IfPresent, "b: 3|a: x"),
            (FieldPlacement::Remove, "b: 3"),
        ];
        for (manner, expected) in manners {
            let changes = [change("a", "x", manner), change("n", "y", manner)];
            let mut out = b"before".to_vec();
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\nb: 3\r\n\r\n");
            amend_lines(&mut out, 6, &changes);
            let wanted: String = expected
                .split('|')
                .map(|line| format!("{line}\r\n"))
                .collect();
            let got = String::from_utf8(out).unwrap().replace("A: 1", "a: 1");
            assert_eq!(
                got,
                format!("beforeHTTP/1.1 200 OK\r\n{wanted}\r\n"),
                "{manner:?}"
            );
            let mut fields = Fields::response(200);
            for (name, value) in [("a", "1"), ("a", "2"), ("b", "3")] {
                fields.push(name, value.as_bytes());
            }
            amend_fields(&mut fields, &changes);
            let got: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
                .collect();
            assert_eq!(got.join("|"), expected, "{manner:?}");
        }
    }
}
