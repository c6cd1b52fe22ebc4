//! Actions of a route other than forwarding, compiled: redirects and direct responses, rewrites, headers, faults, CORS. Pure;
//! chance is an argument. The order is that of Istio's proxies: fault (delay, then abort), CORS, then the route's own response or
//! changes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::action::{
    Abort, AbortStatus, Cors, Delay, DirectResponse, HeaderEdits, HeaderRules, PathRewrite,
    RequestShare, Rewrite,
};
use voile_traffic::route::{CorsDecision, CorsField, HeaderEdit, RouteInput};
use voile_xds::wire::WireRoute;

use crate::http::{ExternalReply, FieldPlacement, HeadAmendment, ResponseFlag};

/// See the module. Most routes have none.
#[derive(Debug, Clone)]
pub(crate) struct Actions {
    answer: Option<DirectResponse>,
    rewrite: Option<Rewrite>,
    delay: Option<Delay>,
    abort: Option<Abort>,
    cors: Option<Arc<Cors>>,
    /// Header edits by the number of the destination's share; a route with a direct response has one entry.
    edits: Vec<HeadEdits>,
    /// Destinations of mirrored copies, as numbers of targets.
    pub(crate) mirrors: Vec<(RequestShare, usize)>,
}

/// Header edits of one destination: the destination's, then the route's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HeadEdits {
    /// Names of the request's that do not go on.
    pub(crate) leaves_out: Vec<Cow<'static, str>>,
    /// Complete lines that go on.
    pub(crate) lines: Vec<u8>,
    authority: Option<Box<str>>,
    /// Amendments of the response's headers, in order.
    pub(crate) amends: Vec<HeadAmendment>,
}

/// Parts of the forwarded request that differ from the received one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadChanges {
    /// Path and query.
    pub(crate) path: Option<Box<str>>,
    /// The authority.
    pub(crate) authority: Option<Box<str>>,
    /// CORS fields that are added to the response.
    pub(crate) cors: Vec<CorsField>,
}

/// Response that the proxy gives itself, without an upstream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LocalResponse {
    pub(crate) status: u16,
    pub(crate) flag: ResponseFlag,
    pub(crate) details: &'static str,
    pub(crate) told: ExternalReply,
}

impl LocalResponse {
    fn new(status: u16, details: &'static str, told: ExternalReply) -> Self {
        Self {
            status,
            flag: ResponseFlag::None,
            details,
            told,
        }
    }
}

impl HeadEdits {
    /// The edits of several, one after the other.
    fn of(rules: &[&HeaderRules]) -> Self {
        let mut made = Self::default();
        let mut lines: Vec<(String, &str)> = Vec::new();
        for rules in rules {
            made.amend(&rules.response);
            if let Some(authority) = rules.request.authority() {
                made.authority = Some(authority.into());
            }
            for step in rules.request.steps() {
                let (HeaderEdit::Remove(name)
                | HeaderEdit::Set(name, _)
                | HeaderEdit::Add(name, _)) = step;
                let name = name.to_ascii_lowercase();
                if !matches!(step, HeaderEdit::Add(..)) {
                    lines.retain(|(known, _)| *known != name);
                    made.leaves_out.push(name.clone().into());
                }
                if let HeaderEdit::Set(_, value) | HeaderEdit::Add(_, value) = step {
                    lines.push((name, value));
                }
            }
        }
        for (name, value) in lines {
            for part in [&*name, ": ", value, "\r\n"] {
                made.lines.extend_from_slice(part.as_bytes());
            }
        }
        made
    }

    fn amend(&mut self, edits: &HeaderEdits) {
        let amendment = |step: HeaderEdit<'_>| {
            let (name, value, manner) = match step {
                HeaderEdit::Remove(name) => (name, "", FieldPlacement::Remove),
                HeaderEdit::Set(name, value) => (name, value, FieldPlacement::Overwrite),
                HeaderEdit::Add(name, value) => (name, value, FieldPlacement::Append),
            };
            HeadAmendment {
                name: name.to_ascii_lowercase().into(),
                value: value.as_bytes().into(),
                manner,
            }
        };
        self.amends.extend(edits.steps().map(amendment));
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// CORS fields as amendments of a response's head. They replace the upstream's own fields, except `vary`, to which they are
/// added.
pub(crate) fn cors_amendments(fields: &[CorsField]) -> impl Iterator<Item = HeadAmendment> + '_ {
    fields.iter().map(|(name, value)| HeadAmendment {
        name: (*name).into(),
        value: value.as_bytes().into(),
        manner: match *name {
            "vary" => FieldPlacement::Append,
            _ => FieldPlacement::Overwrite,
        },
    })
}

impl Actions {
    /// Actions of a route; `None` if it has none.
    pub(crate) fn of(route: &WireRoute, mirrors: Vec<(RequestShare, usize)>) -> Option<Self> {
        let weighted = route.destinations.iter().filter(|to| to.weight > 0);
        let mut edits: Vec<HeadEdits> = weighted
            .map(|to| HeadEdits::of(&[&to.headers, &route.headers]))
            .collect();
        if edits.is_empty() {
            edits.push(HeadEdits::of(&[&route.headers]));
        }
        let fault = route.fault.unwrap_or_default();
        let made = Self {
            answer: route.answer.clone(),
            rewrite: route.rewrite.clone(),
            delay: fault.delay,
            abort: fault.abort,
            cors: route.cors.clone(),
            edits,
            mirrors,
        };
        let nothing = made.answer.is_none()
            && made.rewrite.is_none()
            && made.delay.is_none()
            && made.abort.is_none()
            && made.cors.is_none()
            && made.mirrors.is_empty()
            && made.edits.iter().all(HeadEdits::is_empty);
        (!nothing).then_some(made)
    }

    /// Header edits of one destination, if any.
    pub(crate) fn edits(&self, share: usize) -> Option<&HeadEdits> {
        self.edits.get(share).filter(|edits| !edits.is_empty())
    }

    /// Delay of a request; `random` is uniform.
    pub(crate) fn delay(&self, random: impl FnOnce() -> u64) -> Option<Duration> {
        let delay = self.delay.filter(|delay| delay.share.takes(random()))?;
        Some(delay.fixed)
    }

    /// Decides on a request after its delay. `matched` is the length of the matched path prefix, `listener` the called port.
    pub(crate) fn decide(
        &self,
        request: &(impl RouteInput + ?Sized),
        (share, matched): (usize, Option<usize>),
        listener: u16,
        random: impl FnOnce() -> u64,
    ) -> Result<HeadChanges, Box<LocalResponse>> {
        if let Some(abort) = self.abort.filter(|abort| abort.share.takes(random())) {
            let mut answered = aborted(abort.with);
            tell(&mut answered.told, self.amends(share));
            return Err(Box::new(answered));
        }
        let mut changes = HeadChanges::default();
        match self.cors.as_ref().map(|cors| cors.decide(request)) {
            None | Some(CorsDecision::Pass) => {}
            Some(CorsDecision::Allow(fields)) => changes.cors = fields,
            Some(CorsDecision::Answer(fields)) => {
                let mut told = ExternalReply::without_body();
                tell(&mut told, &cors_amendments(&fields).collect::<Vec<_>>());
                return Err(Box::new(LocalResponse::new(200, "cors_preflight", told)));
            }
        }
        if let Some(answer) = &self.answer {
            return Err(Box::new(self.answered(
                answer,
                request,
                (matched, &changes.cors),
                listener,
            )));
        }
        let named = self.edits(share).and_then(|edits| edits.authority.clone());
        let rewrite = self.rewrite.as_ref();
        let renamed = rewrite.and_then(|rewrite| rewrite.authority.as_deref());
        changes.authority = renamed.map(Into::into).or(named);
        if let Some(path) = rewrite.and_then(|rewrite| rewrite.path.as_ref())
            && !request.path().is_empty()
        {
            let path = rewritten(path, request, matched);
            let none = || LocalResponse::new(500, "path_rewrite", ExternalReply::without_body());
            changes.path = Some(path.ok_or_else(|| Box::new(none()))?);
        }
        Ok(changes)
    }

    /// Amendments of a response's headers for one destination; local replies get them, too.
    fn amends(&self, share: usize) -> &[HeadAmendment] {
        self.edits(share).map_or(&[][..], |edits| &edits.amends)
    }

    fn answered(
        &self,
        answer: &DirectResponse,
        request: &(impl RouteInput + ?Sized),
        (matched, cors): (Option<usize>, &[CorsField]),
        listener: u16,
    ) -> LocalResponse {
        let mut told = ExternalReply::without_body();
        let status = match answer {
            DirectResponse::Direct { status, body } => {
                told.body = Some(body.to_vec());
                *status
            }
            DirectResponse::Redirect { to, status } => {
                let Some(location) = to.location(request, matched, listener) else {
                    return LocalResponse::new(500, "path_rewrite", told);
                };
                line(&mut told, "location", &location);
                *status
            }
        };
        tell(&mut told, self.amends(0));
        tell(&mut told, &cors_amendments(cors).collect::<Vec<_>>());
        LocalResponse::new(status, "direct_response", told)
    }
}

fn aborted(with: AbortStatus) -> LocalResponse {
    let mut told = ExternalReply {
        body: Some(b"fault filter abort".to_vec()),
        ..ExternalReply::default()
    };
    let status = match with {
        AbortStatus::Http(status) => status,
        AbortStatus::Grpc(status) => {
            told.grpc_status = Some(status);
            200
        }
    };
    LocalResponse {
        flag: ResponseFlag::FaultInjected,
        ..LocalResponse::new(status, "fault_filter_abort", told)
    }
}

fn line(told: &mut ExternalReply, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        told.lines.extend_from_slice(part);
    }
}

/// Changes of an answer that has no head of its own yet.
fn tell(told: &mut ExternalReply, amendments: &[HeadAmendment]) {
    for change in amendments {
        let known = told.says(&change.name);
        match change.manner {
            FieldPlacement::Append => line(told, &change.name, &change.value),
            FieldPlacement::IfAbsent if known => {}
            FieldPlacement::IfPresent | FieldPlacement::Remove if !known => {}
            FieldPlacement::IfAbsent => line(told, &change.name, &change.value),
            FieldPlacement::Overwrite | FieldPlacement::IfPresent | FieldPlacement::Remove => {
                told.remove(&change.name);
                if change.manner != FieldPlacement::Remove {
                    line(told, &change.name, &change.value);
                }
            }
        }
    }
}

/// Path and query as they go on; none where that would be no path.
fn rewritten(
    path: &PathRewrite,
    request: &(impl RouteInput + ?Sized),
    matched: Option<usize>,
) -> Option<Box<str>> {
    let mut out = Vec::with_capacity(64 + request.path().len() + request.query().len());
    if !path.apply(request.path(), matched, &mut out) {
        return None;
    }
    if !request.query().is_empty() {
        // A path that brings a query of its own keeps it.
        out.push(if out.contains(&b'?') { b'&' } else { b'?' });
        out.extend_from_slice(request.query());
    }
    let plain = out.iter().all(u8::is_ascii_graphic);
    let text = String::from_utf8(out).ok().filter(|_| plain)?;
    Some(text.into())
}

#[cfg(test)]
#[path = "actions/tests.rs"]
mod tests;
