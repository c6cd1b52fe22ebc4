//! Effects of a route on one request, other than forwarding. `crate::actions` decides them; this module applies them. Header
//! edits use the same observer interface as the notes of a request, so that the engines know one way only.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::actions::{Actions, LocalResponse, cors_amendments};
use crate::http::{HeadAmendment, HeadObserver, HttpHead, HttpRole, Names, RoleRefusal};
use crate::worker::Worker;
use crate::worker::records::request_notes::RequestNotes;
use crate::worker::routing::mirror::Mirrors;
use crate::worker::routing::routes::{AtEdge, RequestAttributes, RouteActs};
use crate::worker::upstream::service_state::ServiceState;

/// Parts of the forwarded request that differ from the received one.
pub(crate) struct RouteEffects {
    pub(crate) path: Option<Box<str>>,
    pub(crate) authority: Option<Rc<str>>,
    /// Observer that replaces the notes' own; `None` if headers stay.
    pub(crate) observer: Option<Rc<dyn HeadObserver>>,
}

impl RouteActs {
    /// Applies the route's actions to a request to a port.
    pub(crate) fn on(
        &self,
        worker: &Worker,
        head: &HttpHead<'_>,
        edge: Option<&AtEdge<'_>>,
        port: u16,
        notes: Option<&Rc<RequestNotes>>,
        mirrors: impl FnOnce(Vec<Rc<ServiceState>>) -> Mirrors,
    ) -> Result<RouteEffects, Box<LocalResponse>> {
        let way = (self.share, self.matched);
        let random = || worker.random();
        let changes =
            self.actions
                .decide(&RequestAttributes::new(head, edge), way, port, random)?;
        let edits = self.actions.edits(self.share);
        let edited = edits.is_some() || !changes.cors.is_empty() || !self.mirrors.is_empty();
        let observer = edited.then(|| {
            let beside = cors_amendments(&changes.cors).collect();
            let mut edited = EditedHead::new(self, notes, beside);
            if !self.mirrors.is_empty() {
                edited.mirrors = Cell::new(Some(Box::new(mirrors(self.mirrors.clone()))));
                edited.copying = Cell::new(true);
            }
            Rc::new(edited) as Rc<dyn HeadObserver>
        });
        Ok(RouteEffects {
            path: changes.path,
            authority: changes.authority.map(Into::into),
            observer,
        })
    }
}

/// Response that the proxy gives itself, without an upstream.
pub(crate) fn refused<R: HttpRole>(answered: LocalResponse) -> RoleRefusal<R> {
    let mut refusal = RoleRefusal::new(answered.status, answered.flag, answered.details);
    refusal.details = answered.details;
    refusal.told = Some(Box::new(answered.told));
    refusal
}

/// Edits one request's head and its answer's as the route says, beside what notes do.
struct EditedHead {
    notes: Option<Rc<RequestNotes>>,
    actions: Rc<Actions>,
    share: usize,
    /// Names and lines of both, where both have any.
    both: Option<(Vec<Cow<'static, str>>, Vec<u8>)>,
    /// Changes of the answer's head, where some are of this request alone.
    amends: Option<Vec<HeadAmendment>>,
    /// Destinations of mirrored copies; taken when the copies are sent, which is once, even if the request is
    /// retried.
    mirrors: Cell<Option<Box<Mirrors>>>,
    copying: Cell<bool>,
}

impl EditedHead {
    fn new(acts: &RouteActs, notes: Option<&Rc<RequestNotes>>, beside: Vec<HeadAmendment>) -> Self {
        let edits = acts.actions.edits(acts.share);
        let both = edits.zip(notes).map(|(edits, notes)| {
            let names = edits.leaves_out.iter().chain(notes.leaves_out());
            (
                names.cloned().collect(),
                [&edits.lines, notes.adds()].concat(),
            )
        });
        let amends = (!beside.is_empty()).then(|| {
            let own = edits.map_or(&[][..], |edits| &edits.amends);
            own.iter().cloned().chain(beside).collect()
        });
        Self {
            notes: notes.cloned(),
            actions: Rc::clone(&acts.actions),
            share: acts.share,
            both,
            amends,
            mirrors: Cell::default(),
            copying: Cell::default(),
        }
    }
}

impl HeadObserver for EditedHead {
    fn leaves_out(&self) -> &Names {
        match (&self.both, self.actions.edits(self.share), &self.notes) {
            (Some((names, _)), ..) => names,
            (None, Some(edits), _) => &edits.leaves_out,
            (None, None, Some(notes)) => notes.leaves_out(),
            (None, None, None) => &[],
        }
    }

    fn adds(&self) -> &[u8] {
        match (&self.both, self.actions.edits(self.share), &self.notes) {
            (Some((_, lines)), ..) => lines,
            (None, Some(edits), _) => &edits.lines,
            (None, None, Some(notes)) => notes.adds(),
            (None, None, None) => &[],
        }
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
        self.copying.get()
    }

    fn copy(&self, request: Option<Vec<u8>>) {
        self.copying.set(false);
        if let Some(mirrors) = self.mirrors.take() {
            mirrors.send(request);
        }
    }

    fn response(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>) {
        if let Some(notes) = &self.notes {
            notes.response(fields);
        }
    }

    fn amends(&self) -> &[HeadAmendment] {
        match (&self.amends, self.actions.edits(self.share)) {
            (Some(amends), _) => amends,
            (None, Some(edits)) => &edits.amends,
            (None, None) => &[],
        }
    }

    fn trailers(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>) {
        if let Some(notes) = &self.notes {
            notes.trailers(fields);
        }
    }
}
