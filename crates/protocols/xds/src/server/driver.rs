//! Serves one stream: bytes of its caller in, bytes for its caller out, and between them what the conversation decides. A stream is no
//! task of its own: whoever serves its connection polls it when the caller has said something, and is woken when something that it
//! depends on changes, or when the caller has been silent for too long. Tasks that tell each other what one of them could do cost more
//! than a push has to say.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep_until};
use tonic::{Code, Status};
use voile_proto::discovery::Node;
use voile_proto::type_url;

use super::budget::{Allowance, BYTES_OF_WORK, MESSAGE_WORK, REFUSAL_WORK, StreamBudget};
use super::conversation::Conversation;
use super::frame::{self, HEAD_BYTES};
use super::sotw::Absent;
use super::stream::RequestEvent;
use super::subscription_index::{CALLER, Membership, StreamNews};
use crate::server::end_reason::StreamEndReason;
use crate::server::snapshot::Snapshot;
use crate::server::subscription_index::StreamId;

/// When to look at the clock where nothing ends: never so late that it cannot be reckoned with.
const SOMETIME: Duration = Duration::from_secs(24 * 3600);

/// Lifetime of a stream. Without it the stream has no end.
#[derive(Debug, Clone, Copy)]
pub struct BoundedLife {
    /// Its last moment.
    pub until: Instant,
    /// Reason given to the caller at the end (`UNAUTHENTICATED`). The caller may always come back and prove itself anew.
    pub reason: &'static str,
}

/// A message of so many bytes is read without its fields being counted before.
const FEW_BYTES: usize = 64 * 1024;
/// Work that is done before it is counted, in names.
const UNCOUNTED: usize = 4096;
/// Why a stream ended of which nobody said why.
const GONE: &str = "the client disconnected";

/// Result that a joining stream waits for; or the reason of a refusal.
pub type Admission = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Hears what happens on streams, for metrics and status pages. Must not block.
pub trait Observer<C>: Send + Sync + 'static {
    /// A stream was opened.
    fn opened(&self, id: StreamId, caller: &C);
    /// The caller named itself (it may say anything).
    fn named(&self, id: StreamId, node: &str);
    /// The caller says who it is, from this address: perhaps somebody who is to be taken into the mesh.
    fn admit(
        &self,
        _id: StreamId,
        _caller: &C,
        _peer: Option<IpAddr>,
        _node: &Node,
    ) -> Option<Admission> {
        None
    }
    /// The caller says that its application is well, or what it complains of (Istio's HealthInformation).
    fn health(&self, _id: StreamId, _complaint: Option<&str>) {}
    /// The caller tells what its HealthChecks found (a `HealthFindings`): all of it, each time.
    fn findings(&self, _id: StreamId, _details: &[u8]) {}
    /// A request arrived.
    fn event(&self, id: StreamId, type_url: &str, event: &RequestEvent);
    /// A response was sent.
    fn sent(&self, id: StreamId, type_url: &str, resources: usize, removed: usize);
    /// Every stream has looked at what was published last, and said what there was to say of it.
    fn settled(&self) {}
    /// Names of a type that the caller asks for and may not have, or that cannot be expressed, with the reasons; the full set
    /// each time.
    fn refused(&self, _id: StreamId, _type_url: &str, _absent: &Absent) {}
    /// The stream ended.
    fn closed(&self, id: StreamId, reason: &str);
}

/// A stream as its connection serves it. With an error, or when `poll` is ready, it is over, and the status is its last word.
/// Dropping it ends it.
pub trait ServedStream {
    /// Takes what the caller said next, in whatever pieces it comes; adds to `out` what is to be said then.
    ///
    /// # Errors
    /// The stream ends, and why.
    fn hear(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Status>;

    /// Adds to `out` what is to be said now. Wakes when there may be more.
    fn poll(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<Status>;

    /// So many bytes of what was said wait because the caller does not read.
    ///
    /// # Errors
    /// Its identity has too many of these; the stream ends.
    fn unread(&mut self, bytes: usize) -> Result<(), Status>;

    /// Notes why it ends, for logs.
    fn part(&mut self, reason: &str);
}

/// State that a stream begins with.
pub(super) struct StreamStart {
    /// Its share of its identity's budget.
    pub(super) share: StreamBudget,
    /// The address that its caller connects from.
    pub(super) peer: Option<IpAddr>,
    /// Lifetime of the stream.
    pub(super) life: Option<BoundedLife>,
}

pub(super) type Snapshots<C> = watch::Receiver<Arc<dyn Snapshot<C>>>;

/// One stream, served.
pub(super) struct StreamSession<C: 'static, S: Conversation<C>> {
    id: StreamId,
    member: Membership,
    stream: S,
    snapshots: Snapshots<C>,
    observer: Arc<dyn Observer<C>>,
    begun: StreamStart,
    /// Work for what its caller said that is not counted yet: answers alone are little, and thousands come at once.
    uncounted: usize,
    /// When it ends because the caller left the mesh.
    farewell: Option<Instant>,
    /// That may be another moment by now.
    unsure: bool,
    /// The caller has said its name.
    named: bool,
    /// Pending decision on the caller's admission to the mesh.
    admission: Option<Admission>,
    /// True if `member` knows the caller's names.
    introduced: bool,
    /// The beginning of a message.
    partial: Vec<u8>,
    /// Made when it is needed.
    alarm: Option<Pin<Box<Sleep>>>,
    /// When it rings, and whom it wakes: it is not asked before, since it lies cold.
    rings: Option<(Instant, Waker)>,
    /// `member` counts as one that has not said all.
    busy: bool,
    /// Why it ended.
    reason: Option<String>,
}

impl<C: Clone + Send + Sync + 'static, S: Conversation<C>> StreamSession<C, S> {
    pub(super) fn new(
        id: StreamId,
        member: Membership,
        stream: S,
        snapshots: Snapshots<C>,
        observer: Arc<dyn Observer<C>>,
        begun: StreamStart,
    ) -> Self {
        observer.opened(id, stream.caller());
        Self {
            id,
            member,
            stream,
            snapshots,
            observer,
            begun,
            uncounted: 0,
            farewell: None,
            unsure: true,
            named: false,
            admission: None,
            introduced: false,
            partial: Vec::new(),
            alarm: None,
            rings: None,
            busy: false,
            reason: None,
        }
    }

    /// Takes whole messages; how many bytes they are.
    fn messages(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Status> {
        let mut taken = 0;
        while let Some(message) =
            frame::message(&bytes[taken..], || self.allowance().message_bytes())?
        {
            taken += HEAD_BYTES + message.len();
            self.uncounted += MESSAGE_WORK + message.len() / BYTES_OF_WORK;
            if message.len() > FEW_BYTES && frame::fields(message) > self.allowance().fields() {
                let reason = "the request names more resources than a stream may";
                return Err(Status::resource_exhausted(reason));
            }
            let request = S::Request::decode(message).map_err(|error| {
                Status::invalid_argument(format!("the request cannot be decoded: {error}"))
            })?;
            let asks = self.request(request, out)?;
            self.push(out)?;
            self.settle();
            self.uncounted += self.stream.take_looked();
            self.count(asks, 0)?;
        }
        Ok(taken)
    }

    fn collect(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Status> {
        if self.partial.is_empty() {
            // The usual case: what comes is whole, and is read where it lies.
            let taken = self.messages(bytes, out)?;
            self.partial.extend_from_slice(&bytes[taken..]);
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend_from_slice(bytes);
            let taken = self.messages(&all, out)?;
            // Room for a whole message is not kept for the beginning of the next.
            self.partial = match taken {
                0 => all,
                _ => all.split_off(taken),
            };
        }
        match self.partial.len() {
            0 => Ok(()),
            unfinished => self.count(true, unfinished),
        }
    }

    /// Allowance of the caller in the current mesh.
    fn allowance(&self) -> Allowance {
        let snapshot = self.snapshots.borrow().clone();
        snapshot.allowance(self.stream.caller())
    }

    /// Counts what the caller made us do and, where it may have changed, keep; and so many bytes of a message that is not whole.
    fn count(&mut self, keeps: bool, unfinished: usize) -> Result<(), Status> {
        if !keeps && self.uncounted < UNCOUNTED {
            return Ok(());
        }
        let allowance = self.allowance();
        let now = tokio::time::Instant::now().into_std();
        let work = std::mem::take(&mut self.uncounted);
        let counted = self.begun.share.work(work, &allowance, now);
        let kept = self.stream.kept_bytes();
        let held = counted.and_then(|()| self.begun.share.hold(kept, unfinished, &allowance));
        held.map_err(|ended| status_of(&ended))
    }

    fn turn(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        if let Some(admission) = &mut self.admission
            && let Poll::Ready(admitted) = admission.as_mut().poll(context)
        {
            self.admission = None;
            admitted?;
        }
        if let Some(news) = self.member.news(context) {
            self.take_news(news);
            self.push(out)?;
            self.busy = true;
            self.settle();
        }
        self.watch_the_clock(context, out)
    }

    /// Ends the stream when it is time, or says what waited until then, and wakes for either.
    fn watch_the_clock(
        &mut self,
        context: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        // By the alarm's own clock.
        let now = tokio::time::Instant::now().into_std();
        let until = self.until();
        // An end that is put off lets the alarm ring once too early, which costs less than to set it at each response.
        if let Some((rings, wakes)) = &self.rings
            && now < *rings
            && *rings <= until
            && wakes.will_wake(context.waker())
        {
            return Ok(());
        }
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(sleep_until(until.into())));
        if until < alarm.deadline().into_std() {
            alarm.as_mut().reset(until.into());
        }
        while let Some(alarm) = &mut self.alarm {
            let rings = alarm.deadline().into_std();
            if alarm.as_mut().poll(context).is_pending() {
                self.rings = Some((rings, context.waker().clone()));
                break;
            }
            if let Some(status) = self.end_of(rings) {
                return Err(status);
            }
            if self.stream.resumes().is_some_and(|at| at <= rings) {
                self.push(out)?;
            }
            let until = self.until();
            if let Some(alarm) = &mut self.alarm {
                alarm.as_mut().reset(until.into());
            }
        }
        Ok(())
    }

    /// When the first of what ends this stream does, or something is to be said.
    fn until(&self) -> Instant {
        let life = self.begun.life.map(|life| life.until);
        let all = [
            self.stream.soonest(),
            self.stream.resumes(),
            life,
            self.farewell,
        ];
        let first = all.into_iter().flatten().min();
        first.unwrap_or_else(|| Instant::now() + SOMETIME)
    }

    /// Status with which the stream ends now, if a deadline has passed.
    fn end_of(&mut self, now: Instant) -> Option<Status> {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        if is_over(self.stream.deadline()) {
            return Some(status_of(&StreamEndReason::Silent));
        }
        if let Some(life) = self.begun.life.filter(|life| life.until <= now) {
            return Some(Status::unauthenticated(life.reason));
        }
        is_over(self.farewell).then(|| {
            let snapshot = self.snapshots.borrow().clone();
            snapshot.parting(self.stream.caller())
        })
    }

    /// Takes a request; whether it asks for something, and does not only answer.
    fn request(&mut self, request: S::Request, out: &mut Vec<u8>) -> Result<bool, Status> {
        if let (false, Some(node)) = (self.named, S::node(&request)) {
            self.named = true;
            self.observer.named(self.id, &node.id);
            let snapshot = self.snapshots.borrow().clone();
            snapshot.introduce(self.stream.caller_mut(), node);
            self.unsure = true;
            let (caller, peer) = (self.stream.caller(), self.begun.peer);
            self.admission = self.observer.admit(self.id, caller, peer, node);
        }
        // It asks for nothing, and is answered by nothing.
        if S::asked(&request) == type_url::HEALTH {
            self.observer.health(self.id, S::complaint(&request));
            return Ok(true);
        }
        if S::asked(&request) == type_url::HEALTH_FINDINGS {
            let details = S::details(&request).unwrap_or_default();
            self.observer.findings(self.id, details);
            return Ok(true);
        }
        let snapshot = self.snapshots.borrow().clone();
        if !snapshot.serves(S::asked(&request)) {
            if let Some(due) = S::unserved(&request, snapshot.version())? {
                frame::put(&due, out);
            }
            return Ok(true);
        }
        drop(snapshot);
        let type_url = type_url::shared(S::asked(&request));
        let event = self
            .stream
            .receive(request, Instant::now())
            .map_err(|ended| status_of(&ended))?;
        if self.stream.is_due() {
            // The answer is not the end of it: what is due follows at once.
            self.busy = true;
            self.member.begin();
        }
        self.observer.event(self.id, &type_url, &event);
        if let RequestEvent::Refused { .. } = event {
            self.uncounted += REFUSAL_WORK;
        }
        // The request's work is counted before its names are looked at.
        let asks = self.stream.asks();
        self.count(asks, 0)?;
        Ok(asks)
    }

    /// Reports that everything due was sent.
    fn settle(&mut self) {
        if std::mem::take(&mut self.busy) && self.member.done() {
            self.observer.settled();
        }
    }

    fn push(&mut self, out: &mut Vec<u8>) -> Result<(), Status> {
        loop {
            let snapshot = self.snapshots.borrow_and_update().clone();
            if std::mem::take(&mut self.unsure) {
                self.farewell = snapshot.farewell(self.stream.caller());
            }
            self.say(&*snapshot, out);
            // A publication before this stream was registered for a name has not woken it.
            if !self.become_known(&*snapshot) || !self.snapshots.has_changed().unwrap_or(false) {
                return Ok(());
            }
            self.unsure = true;
            self.stream.changed();
        }
    }

    /// Notes what must be looked at again.
    fn take_news(&mut self, news: StreamNews) {
        if news.everything {
            self.unsure = true;
            self.stream.changed();
        }
        for (type_url, names) in news.types {
            self.unsure |= *type_url == *CALLER;
            self.stream.touched(&type_url, names);
        }
        if let Some(at) = news.at {
            self.stream.changed_at(at);
        }
        for question in news.questions {
            // The questioner may be gone.
            let _ = question.send(self.stream.held());
        }
    }

    /// Says by what this stream is to be woken; whether there is anything new among it.
    fn become_known(&mut self, snapshot: &dyn Snapshot<C>) -> bool {
        let mut more = self.stream.become_known(&mut self.member);
        if !self.introduced {
            self.introduced = true;
            let caller = snapshot
                .known_as(self.stream.caller())
                .into_iter()
                .collect();
            more |= self.member.know(&CALLER.into(), &caller);
        }
        more
    }

    fn say(&mut self, snapshot: &dyn Snapshot<C>, out: &mut Vec<u8>) {
        // By the alarm's own clock.
        let now = tokio::time::Instant::now().into_std();
        while let Some(due) = self.stream.due(snapshot, now) {
            let (added, removed) = (due.resources.len(), due.removed.len());
            self.observer.sent(self.id, &due.type_url, added, removed);
            frame::put(&due, out);
        }
        if let Some(refused) = self.stream.take_refused()
            && let Some(names) = self.begun.share.log_refused(refused.names, now)
        {
            let (name, reason) = (refused.name, refused.reason);
            tracing::warn!(stream = self.id.0, type_url = %refused.type_url, %name, names, "refused: {reason}");
        }
        for (type_url, absent) in self.stream.refusals() {
            self.observer.refused(self.id, &type_url, &absent);
        }
    }
}

impl<C: Clone + Send + Sync + 'static, S: Conversation<C>> ServedStream for StreamSession<C, S> {
    fn hear(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Status> {
        let heard = self.collect(bytes, out);
        heard.inspect_err(|status| self.part(status.message()))
    }

    fn poll(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<Status> {
        match self.turn(context, out) {
            Ok(()) => Poll::Pending,
            Err(status) => {
                self.part(status.message());
                Poll::Ready(status)
            }
        }
    }

    fn unread(&mut self, bytes: usize) -> Result<(), Status> {
        let counted = self.begun.share.leave_unread(bytes, &self.allowance());
        let counted = counted.map_err(|ended| status_of(&ended));
        counted.inspect_err(|status| self.part(status.message()))
    }

    fn part(&mut self, reason: &str) {
        self.reason = Some(reason.to_owned());
    }
}

impl<C: 'static, S: Conversation<C>> Drop for StreamSession<C, S> {
    fn drop(&mut self) {
        let reason = self.reason.as_deref().unwrap_or(GONE);
        self.observer.closed(self.id, reason);
    }
}

pub(super) fn status_of(ended: &StreamEndReason) -> Status {
    let code = match ended {
        StreamEndReason::TooMuch(_) => Code::ResourceExhausted,
        StreamEndReason::Violation(_) => Code::InvalidArgument,
        StreamEndReason::Silent => Code::DeadlineExceeded,
    };
    Status::new(code, ended.to_string())
}

#[cfg(test)]
mod tests;
