//! Serves one stream: a small task, which sleeps until the caller speaks, something that it depends on changes, or the caller has been
//! silent for too long.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tonic::{Code, Status, Streaming};

use super::Snapshot;
use super::conversation::Conversation;
use super::frame::Frames;
use super::interest::{CALLER, Membership};
use super::service::Frame;
use super::sotw::Absent;
use super::stream::{Ended, Event};

/// When to look at the clock where nothing ends: never so late that it cannot be reckoned with.
const SOMETIME: Duration = Duration::from_secs(24 * 3600);

/// How long a stream may last, put into the request's extensions by whoever checked who calls. Without it: for ever.
#[derive(Debug, Clone, Copy)]
pub struct BoundedLife {
    /// Its last moment.
    pub until: Instant,
    /// What the caller is told then (`UNAUTHENTICATED`): whatever it is, it may come back and prove itself anew.
    pub reason: &'static str,
}

/// What a caller that left the mesh is told.
pub const DEPARTED: &str = "this workload is no longer in the mesh";

/// Number of a stream, unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Hears what happens on streams, for metrics and status pages. Must not block.
pub trait Observer<C>: Send + Sync + 'static {
    /// A stream was opened.
    fn opened(&self, id: StreamId, caller: &C);
    /// The caller named itself (it may say anything).
    fn named(&self, id: StreamId, node: &str);
    /// A request arrived.
    fn event(&self, id: StreamId, type_url: &str, event: &Event);
    /// A response was sent.
    fn sent(&self, id: StreamId, type_url: &str, resources: usize, removed: usize);
    /// What the caller asks for of a type and may not have, or cannot be said to it, with the reasons; all of it, each time.
    fn refused(&self, _id: StreamId, _type_url: &str, _absent: &Absent) {}
    /// The stream ended.
    fn closed(&self, id: StreamId, reason: &str);
}

pub(super) type Snapshots<C> = watch::Receiver<Arc<dyn Snapshot<C>>>;

/// One stream, served.
pub(super) struct Session<C, S: Conversation<C>> {
    pub(super) id: StreamId,
    pub(super) member: Membership,
    pub(super) stream: S,
    pub(super) snapshots: Snapshots<C>,
    pub(super) observer: Arc<dyn Observer<C>>,
    pub(super) responses: mpsc::Sender<Frame>,
    pub(super) life: Option<BoundedLife>,
    /// When it ends because the caller left the mesh.
    pub(super) farewell: Option<Instant>,
    /// The caller has said its name.
    pub(super) named: bool,
    /// Whether `member` knows who calls.
    pub(super) introduced: bool,
}

impl<C: Clone + Send + Sync + 'static, S: Conversation<C>> Session<C, S> {
    pub(super) async fn run(
        mut self,
        mut requests: Streaming<S::Request>,
        mut ending: watch::Receiver<bool>,
    ) {
        self.observer.opened(self.id, self.stream.caller());
        let status = self.serve(&mut requests, &mut ending).await;
        self.observer.closed(self.id, status.message());
        if status.code() != Code::Ok {
            // A caller that reads nothing will not read this either.
            let _ = self.responses.try_send(Err(status));
        }
    }

    /// What is waited for again and again is made once: a push must not pay for seven things that do not happen.
    async fn serve(
        &mut self,
        requests: &mut Streaming<S::Request>,
        ending: &mut watch::Receiver<bool>,
    ) -> Status {
        let responses = self.responses.clone();
        let mut gone = pin!(responses.closed());
        let mut over = pin!(async {
            // An error means that whoever could end us is gone, which is an end too.
            let _ = ending.wait_for(|ending| *ending).await;
        });
        let mut alarm = pin!(tokio::time::sleep_until(self.until().into()));
        loop {
            // An end that is put off lets the alarm ring once too early, which costs less than to set it at each response.
            let until = self.until();
            if until < alarm.deadline().into_std() {
                alarm.as_mut().reset(until.into());
            }
            tokio::select! {
                biased;
                () = &mut over => return Status::unavailable("the control plane is ending"),
                () = &mut gone => return Status::ok("the caller is gone"),
                () = &mut alarm => {
                    if let Some(status) = self.end_of(alarm.deadline().into_std()) {
                        return status;
                    }
                    alarm.as_mut().reset(self.until().into());
                    continue;
                }
                () = self.member.woken() => self.take_news(),
                request = requests.message() => match request {
                    Ok(Some(request)) => {
                        if let Err(status) = self.hear(request) {
                            return status;
                        }
                    }
                    Ok(None) => return Status::ok("the caller ended the stream"),
                    Err(status) => return Status::ok(format!("the connection broke: {}", status.message())),
                },
            }
            if let Err(status) = self.push() {
                return status;
            }
        }
    }

    /// When the first of what ends this stream does.
    fn until(&self) -> Instant {
        let life = self.life.map(|life| life.until);
        let all = [self.stream.deadline(), life, self.farewell];
        let first = all.into_iter().flatten().min();
        first.unwrap_or_else(|| Instant::now() + SOMETIME)
    }

    /// What of it has come by now.
    fn end_of(&self, now: Instant) -> Option<Status> {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        if is_over(self.stream.deadline()) {
            return Some(status_of(&Ended::Silent));
        }
        if let Some(life) = self.life.filter(|life| life.until <= now) {
            return Some(Status::unauthenticated(life.reason));
        }
        is_over(self.farewell).then(|| {
            let snapshot = self.snapshots.borrow().clone();
            snapshot.parting(self.stream.caller())
        })
    }

    fn hear(&mut self, request: S::Request) -> Result<(), Status> {
        if let (false, Some(node)) = (self.named, S::node(&request)) {
            self.named = true;
            self.observer.named(self.id, &node.id);
            let snapshot = self.snapshots.borrow().clone();
            snapshot.introduce(self.stream.caller_mut(), node);
        }
        self.receive(request)
    }

    fn receive(&mut self, request: S::Request) -> Result<(), Status> {
        let type_url = S::asked(&request).to_owned();
        let event = self
            .stream
            .receive(request, Instant::now())
            .map_err(|ended| status_of(&ended))?;
        self.observer.event(self.id, &type_url, &event);
        Ok(())
    }

    fn push(&mut self) -> Result<(), Status> {
        loop {
            let snapshot = self.snapshots.borrow_and_update().clone();
            self.farewell = snapshot.farewell(self.stream.caller());
            self.say(&*snapshot)?;
            // What was published while we were not yet known to depend on it has woken nobody.
            if !self.become_known(&*snapshot) || !self.snapshots.has_changed().unwrap_or(false) {
                return Ok(());
            }
            self.stream.changed();
        }
    }

    /// Notes what must be looked at again.
    fn take_news(&mut self) {
        let news = self.member.news();
        if news.everything {
            self.stream.changed();
        }
        for (type_url, names) in news.types {
            self.stream.touched(&type_url, names);
        }
        if let Some(at) = news.at {
            self.stream.changed_at(at);
        }
        for question in news.questions {
            // Whoever asked may be gone.
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

    fn say(&mut self, snapshot: &dyn Snapshot<C>) -> Result<(), Status> {
        let mut frames = Frames::default();
        while let Some(due) = self.stream.due(snapshot, Instant::now()) {
            let (added, removed) = (due.resources.len(), due.removed.len());
            self.observer.sent(self.id, &due.type_url, added, removed);
            frames.add(&due);
        }
        // Full means that the caller acknowledges what it has not read.
        if let Some(frames) = frames.finish()
            && self.responses.try_send(Ok(frames)).is_err()
        {
            return Err(Status::resource_exhausted("responses are not read"));
        }
        for (type_url, absent) in self.stream.refusals() {
            self.observer.refused(self.id, &type_url, &absent);
        }
        Ok(())
    }
}

fn status_of(ended: &Ended) -> Status {
    let code = match ended {
        Ended::TooMuch(_) => Code::ResourceExhausted,
        Ended::Violation(_) => Code::InvalidArgument,
        Ended::Silent => Code::DeadlineExceeded,
    };
    Status::new(code, ended.to_string())
}
