//! Changes that a judge of a request (policy, token, external service) makes to it: fields removed and added, and
//! amendments of the response's head. The engine sees them as one more observer, in front of the notes.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::http::external_check::lines;
use crate::http::{HeadAmendment, HeadObserver, HttpHead, Names};
use crate::worker::records::request_notes::RequestNotes;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PlanChanges {
    leaves_out: Vec<Cow<'static, str>>,
    /// Complete field lines.
    lines: Vec<u8>,
    amends: Vec<HeadAmendment>,
}

impl PlanChanges {
    /// Returns true if nothing is changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.leaves_out.is_empty() && self.lines.is_empty() && self.amends.is_empty()
    }

    /// The request goes on without fields of this name, in lower case.
    pub(crate) fn leave_out(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = name.into();
        if !self.leaves_out.contains(&name) {
            self.leaves_out.push(name);
        }
    }

    /// Adds a field. The caller guarantees that the name is a token and the value has no control characters.
    pub(crate) fn add(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.lines.extend_from_slice(part);
        }
    }

    /// The head of its answer is changed.
    pub(crate) fn amend(&mut self, change: HeadAmendment) {
        self.amends.push(change);
    }

    /// Amendments of the response's head.
    pub(crate) fn amends(&self) -> &[HeadAmendment] {
        &self.amends
    }

    /// Adds the changes of a later judge, which win for fields that both write.
    pub(crate) fn then(mut self, later: Self) -> Self {
        if self.is_empty() {
            return later;
        }
        let kept = lines(&self.lines).filter(|(name, _)| !later.takes(name));
        let mut all = Self::default();
        for (name, value) in kept {
            for part in [name, b": ", value, b"\r\n"] {
                all.lines.extend_from_slice(part);
            }
        }
        all.lines.extend_from_slice(&later.lines);
        all.leaves_out = std::mem::take(&mut self.leaves_out);
        all.leaves_out.extend(later.leaves_out);
        all.amends = std::mem::take(&mut self.amends);
        all.amends.extend(later.amends);
        all
    }

    /// Returns true if fields of this name are removed or replaced.
    fn takes(&self, name: &[u8]) -> bool {
        let mut known = self.leaves_out.iter();
        known.any(|known| voile_http1::loosely_equal(name, known.as_bytes()))
    }

    /// The field lines of a head as they go on, so far.
    pub(crate) fn seen<'a>(
        &'a self,
        head: &HttpHead<'a>,
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let stay = head
            .headers()
            .filter(|(name, _)| !self.takes(name.as_bytes()));
        let come = lines(&self.lines);
        stay.chain(come.map(|(name, value)| (std::str::from_utf8(name).unwrap_or_default(), value)))
    }

    /// The observer of a request that is changed so.
    pub(crate) fn observed(self, notes: Option<Rc<RequestNotes>>) -> Option<Rc<dyn HeadObserver>> {
        self.before(notes.map(|notes| notes as Rc<dyn HeadObserver>))
    }

    /// Puts these changes before a later observer, which wins for fields that both write.
    pub(crate) fn before(
        self,
        notes: Option<Rc<dyn HeadObserver>>,
    ) -> Option<Rc<dyn HeadObserver>> {
        if self.is_empty() {
            return notes;
        }
        let mut all = self;
        let kept = all.leaves_out.len();
        if let Some(notes) = &notes {
            // Trace fields are written by the notes alone; other writers must not set them.
            let theirs = notes.leaves_out();
            let kept = |name: &[u8]| {
                let same = |known: &Cow<'static, str>| known.as_bytes().eq_ignore_ascii_case(name);
                !theirs.iter().any(same)
            };
            let mut written = notes.adds().to_vec();
            for (name, value) in lines(&all.lines) {
                if kept(name) {
                    for part in [name, b": ", value, b"\r\n"] {
                        written.extend_from_slice(part);
                    }
                }
            }
            all.lines = written;
            all.leaves_out.extend(theirs.iter().cloned());
            all.amends.splice(0..0, notes.amends().iter().cloned());
        }
        Some(Rc::new(ChangedField {
            changes: all,
            kept,
            notes,
        }))
    }
}

struct ChangedField {
    changes: PlanChanges,
    /// Number of removed names that only the judge may write.
    kept: usize,
    notes: Option<Rc<dyn HeadObserver>>,
}

impl HeadObserver for ChangedField {
    fn leaves_out(&self) -> &Names {
        &self.changes.leaves_out
    }

    fn adds(&self) -> &[u8] {
        &self.changes.lines
    }

    fn keeps(&self) -> &Names {
        &self.changes.leaves_out[..self.kept]
    }

    fn seeks_connection(&self) {
        if let Some(notes) = &self.notes {
            notes.seeks_connection();
        }
    }

    fn sends(&self, from: Option<SocketAddr>) {
        if let Some(notes) = &self.notes {
            notes.sends(from);
        }
    }

    fn received(&self) {
        if let Some(notes) = &self.notes {
            notes.received();
        }
    }

    fn wants_copy(&self) -> bool {
        self.notes.as_ref().is_some_and(|notes| notes.wants_copy())
    }

    fn copy(&self, request: Option<Vec<u8>>) {
        if let Some(notes) = &self.notes {
            notes.copy(request);
        }
    }

    fn response(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>) {
        if let Some(notes) = &self.notes {
            notes.response(fields);
        }
    }

    fn amends(&self) -> &[HeadAmendment] {
        &self.changes.amends
    }

    fn trailers(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>) {
        if let Some(notes) = &self.notes {
            notes.trailers(fields);
        }
    }
}
