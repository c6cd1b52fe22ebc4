//! Interface common to both protocol variants, so that one driver serves both.

use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use tonic::Status;
use voile_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest, Node};

use super::denied_names::RefusedNames;
use super::driver::status_of;
use super::frame::{DueResponse, Nonce, ResponseEntry, TailoredResource};
use super::names::Names;
use super::sotw::{Absent, SotwStream};
use super::stream::{DiscoveryStream, MAX_NAME_BYTES, RequestEvent, SentResource, unspeakable};
use super::subscription_index::Membership;
use crate::server::end_reason::StreamEndReason;
use crate::server::snapshot::{Resource, Snapshot};

/// One caller's stream, by whichever protocol.
pub(super) trait Conversation<C>: Send + 'static {
    type Request: Message + Default + 'static;
    /// Form of a resource in a response.
    type Entry: ResponseEntry;

    fn caller(&self) -> &C;
    fn caller_mut(&mut self) -> &mut C;
    /// Node description in a request.
    fn node(request: &Self::Request) -> Option<&Node>;
    /// The type that a request asks for.
    fn asked(request: &Self::Request) -> &str;
    /// Error text in a request.
    fn complaint(request: &Self::Request) -> Option<&str>;
    /// Error details in a request, for programs.
    fn details(request: &Self::Request) -> Option<&[u8]>;
    fn changed(&mut self);
    fn touched(&mut self, type_url: &str, names: Option<Names>);
    /// The sources changed then.
    fn changed_at(&mut self, at: Instant);
    /// Resources that the caller holds.
    fn held(&self) -> Vec<SentResource>;
    /// Says by what the stream is to be woken; whether there is anything new among it.
    fn become_known(&mut self, member: &mut Membership) -> bool;
    /// When the caller's silence becomes too long.
    fn deadline(&mut self) -> Option<Instant>;
    /// Not after that, and cheap.
    fn soonest(&self) -> Option<Instant>;
    /// When something is to be said that waits for an answer until then.
    fn resumes(&self) -> Option<Instant>;
    fn receive(
        &mut self,
        request: Self::Request,
        now: Instant,
    ) -> Result<RequestEvent, StreamEndReason>;
    fn due(&mut self, snapshot: &dyn Snapshot<C>, now: Instant)
    -> Option<DueResponse<Self::Entry>>;
    /// Returns true if something must be looked at: the caller's state may be out of date.
    fn is_due(&self) -> bool;
    /// Bytes that are kept for what the caller said, and for what it was told.
    fn kept_bytes(&self) -> usize;
    /// Returns true if the last request asked for something, or changed its names.
    fn asks(&self) -> bool;
    /// Returns the number of names looked at for the caller since the last call.
    fn take_looked(&mut self) -> usize;
    /// Returns the names refused since the last call, for the log.
    fn take_refused(&mut self) -> Option<RefusedNames>;
    /// Answer to a request of a type without resources: it says that there are none. A later ACK of it gets
    /// no answer.
    fn unserved(
        request: &Self::Request,
        version: Arc<str>,
    ) -> Result<Option<DueResponse<Self::Entry>>, Status>;
    /// Types of which what is refused is not what it was, and what it is now.
    fn refusals(&mut self) -> Vec<(Arc<str>, Absent)>;
}

impl<C: Send + 'static> Conversation<C> for DiscoveryStream<C> {
    type Request = DeltaDiscoveryRequest;
    type Entry = TailoredResource;

    fn caller(&self) -> &C {
        self.caller()
    }

    fn caller_mut(&mut self) -> &mut C {
        self.caller_mut()
    }

    fn node(request: &Self::Request) -> Option<&Node> {
        request.node.as_ref()
    }

    fn asked(request: &Self::Request) -> &str {
        &request.type_url
    }

    fn complaint(request: &Self::Request) -> Option<&str> {
        Some(&request.error_detail.as_ref()?.message)
    }

    fn details(request: &Self::Request) -> Option<&[u8]> {
        Some(&request.error_detail.as_ref()?.details.first()?.value)
    }

    fn changed(&mut self) {
        self.changed();
    }

    fn touched(&mut self, type_url: &str, names: Option<Names>) {
        self.touched(type_url, names);
    }

    fn changed_at(&mut self, at: Instant) {
        self.changed_at(at);
    }

    fn held(&self) -> Vec<SentResource> {
        self.held()
    }

    fn become_known(&mut self, member: &mut Membership) -> bool {
        let mut more = false;
        for (type_url, names) in self.depends_anew_on() {
            more |= member.know(type_url, names);
        }
        more
    }

    fn deadline(&mut self) -> Option<Instant> {
        self.look_up_deadline()
    }

    fn soonest(&self) -> Option<Instant> {
        self.soonest()
    }

    fn resumes(&self) -> Option<Instant> {
        self.resumes()
    }

    fn receive(
        &mut self,
        request: Self::Request,
        now: Instant,
    ) -> Result<RequestEvent, StreamEndReason> {
        self.receive(request, now)
    }

    fn due(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        now: Instant,
    ) -> Option<DueResponse<Self::Entry>> {
        self.due(snapshot, now)
    }

    fn is_due(&self) -> bool {
        self.is_due()
    }

    fn kept_bytes(&self) -> usize {
        self.kept_bytes()
    }

    fn asks(&self) -> bool {
        self.asks()
    }

    fn take_looked(&mut self) -> usize {
        self.take_looked()
    }

    fn take_refused(&mut self) -> Option<RefusedNames> {
        self.take_refused()
    }

    fn unserved(
        request: &Self::Request,
        version: Arc<str>,
    ) -> Result<Option<DueResponse<Self::Entry>>, Status> {
        let asks = request.response_nonce.is_empty();
        let removed = &request.resource_names_subscribe;
        unserved(&request.type_url, asks, version, removed)
    }

    fn refusals(&mut self) -> Vec<(Arc<str>, Absent)> {
        Vec::new()
    }
}

impl<C: Send + 'static> Conversation<C> for SotwStream<C> {
    type Request = DiscoveryRequest;
    type Entry = Arc<Resource>;

    fn caller(&self) -> &C {
        self.caller()
    }

    fn caller_mut(&mut self) -> &mut C {
        self.caller_mut()
    }

    fn node(request: &Self::Request) -> Option<&Node> {
        request.node.as_ref()
    }

    fn asked(request: &Self::Request) -> &str {
        &request.type_url
    }

    fn complaint(request: &Self::Request) -> Option<&str> {
        Some(&request.error_detail.as_ref()?.message)
    }

    fn details(request: &Self::Request) -> Option<&[u8]> {
        Some(&request.error_detail.as_ref()?.details.first()?.value)
    }

    fn changed(&mut self) {
        self.changed();
    }

    /// Answers depend on resources of other types: all names are looked at again, and unchanged resources
    /// are not sent.
    fn touched(&mut self, _: &str, _: Option<Names>) {
        self.changed();
    }

    fn changed_at(&mut self, at: Instant) {
        self.changed_at(at);
    }

    fn held(&self) -> Vec<SentResource> {
        self.held()
    }

    fn become_known(&mut self, member: &mut Membership) -> bool {
        let mut more = false;
        for (type_url, names) in &self.depends_on() {
            more |= member.know(type_url, names);
        }
        more
    }

    fn deadline(&mut self) -> Option<Instant> {
        Self::deadline(self)
    }

    fn soonest(&self) -> Option<Instant> {
        Self::deadline(self)
    }

    fn resumes(&self) -> Option<Instant> {
        self.resumes()
    }

    fn receive(
        &mut self,
        request: Self::Request,
        now: Instant,
    ) -> Result<RequestEvent, StreamEndReason> {
        self.receive(request, now)
    }

    fn due(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        now: Instant,
    ) -> Option<DueResponse<Self::Entry>> {
        self.due(snapshot, now)
    }

    fn is_due(&self) -> bool {
        self.is_due()
    }

    fn kept_bytes(&self) -> usize {
        self.kept_bytes()
    }

    fn asks(&self) -> bool {
        self.asks()
    }

    fn take_looked(&mut self) -> usize {
        self.take_looked()
    }

    fn take_refused(&mut self) -> Option<RefusedNames> {
        self.take_refused()
    }

    fn unserved(
        request: &Self::Request,
        version: Arc<str>,
    ) -> Result<Option<DueResponse<Self::Entry>>, Status> {
        let asks = request.response_nonce.is_empty();
        let removed = &[];
        unserved(&request.type_url, asks, version, removed)
    }

    fn refusals(&mut self) -> Vec<(Arc<str>, Absent)> {
        self.refusals()
    }
}

/// The answer to a question about a type that nobody serves; nothing to one that only answers.
fn unserved<E>(
    type_url: &str,
    asks: bool,
    version: Arc<str>,
    removed: &[String],
) -> Result<Option<DueResponse<E>>, Status> {
    if type_url.is_empty() {
        let violation = StreamEndReason::Violation("the request has no type_url".to_owned());
        return Err(status_of(&violation));
    }
    if type_url.len() > MAX_NAME_BYTES {
        return Err(status_of(&unspeakable(type_url)));
    }
    let named = removed.iter().filter(|name| *name != "*");
    Ok(asks.then(|| DueResponse {
        version,
        type_url: type_url.into(),
        // No response that is kept has this number.
        nonce: Nonce(0),
        resources: Vec::new(),
        removed: named.map(|name| name.as_str().into()).collect(),
    }))
}
