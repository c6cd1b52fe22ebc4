//! A request as policies and tokens read it: as it came, or with the changes of the external service.

use crate::http::is_grpc;
use voile_policy::authorization::Headers;

use crate::http::{HeadAmendment, HttpHead};
use crate::worker::policy::denial::Denied;
use crate::worker::policy::request_changes::PlanChanges;

/// Progress of a request with the external service.
#[derive(Clone, Copy)]
pub(in crate::worker) enum RequestStage<'a> {
    /// No external service was asked yet.
    Fresh,
    /// This external service said yes, and made this of it.
    Answered(u32, &'a AmendedRequest),
}

/// Request in its present form: as it came, or with the changes of the external service.
#[derive(Clone, Copy)]
pub(crate) struct RequestView<'a> {
    pub(crate) head: &'a HttpHead<'a>,
    pub(in crate::worker) came: RequestStage<'a>,
}

impl<'a> RequestView<'a> {
    pub(in crate::worker) fn new(head: &'a HttpHead<'a>, came: RequestStage<'a>) -> Self {
        Self { head, came }
    }

    pub(in crate::worker) fn amended(&self) -> Option<&'a AmendedRequest> {
        match self.came {
            RequestStage::Fresh => None,
            RequestStage::Answered(_, amended) => Some(amended),
        }
    }

    /// Path and query.
    pub(crate) fn path(&self) -> &'a str {
        let amended = self.amended().and_then(|amended| amended.path.as_deref());
        amended.unwrap_or_else(|| self.head.path_and_query())
    }

    /// The lines of one field.
    pub(crate) fn lines(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let (came, amended) = match self.amended() {
            None => (Some(self.head.headers()), None),
            Some(amended) => (None, Some(amended.changes.seen(self.head))),
        };
        let all = came.into_iter().flatten();
        all.chain(amended.into_iter().flatten())
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

impl Headers for RequestView<'_> {
    fn each<'a>(&'a self, show: &mut dyn FnMut(&'a [u8], &'a [u8])) {
        let changes = self.amended().map(|amended| &amended.changes);
        let head = self.head;
        Lines { head, changes }.show(show);
    }
}

/// The field lines of a head with changes.
pub(in crate::worker) struct Lines<'a> {
    pub(in crate::worker) head: &'a HttpHead<'a>,
    pub(in crate::worker) changes: Option<&'a PlanChanges>,
}

impl<'a> Lines<'a> {
    fn show(&self, show: &mut dyn FnMut(&'a [u8], &'a [u8])) {
        match self.changes {
            None => {
                for (name, value) in self.head.headers() {
                    show(name.as_bytes(), value);
                }
            }
            Some(changes) => {
                for (name, value) in changes.seen(self.head) {
                    show(name.as_bytes(), value);
                }
            }
        }
    }
}

impl Headers for Lines<'_> {
    fn each<'a>(&'a self, show: &mut dyn FnMut(&'a [u8], &'a [u8])) {
        self.show(show);
    }
}

/// Request with the changes of the external service.
#[derive(Debug, Default)]
pub(crate) struct AmendedRequest {
    pub(in crate::worker) changes: PlanChanges,
    /// None where it is as it came.
    pub(in crate::worker) path: Option<Box<str>>,
}

impl AmendedRequest {
    /// Adds the external service's amendments to a later judge's denial: they may hold a session's new cookie. A gRPC caller's
    /// answer stays one.
    pub(in crate::worker) fn told(&self, mut denied: Denied, head: &HttpHead<'_>) -> Denied {
        let kind = head.header("content-type");
        let grpc = kind.is_some_and(is_grpc);
        let amends = self.changes.amends().iter();
        let kept = amends.filter(|change| !(grpc && *change.name == *"content-type"));
        let kept: Vec<HeadAmendment> = kept.cloned().collect();
        if !kept.is_empty() {
            denied.told.get_or_insert_default().amends = kept;
        }
        denied
    }
}
