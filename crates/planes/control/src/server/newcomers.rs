//! Connections of which no call has succeeded. They pass through lanes, each with a bounded number of places that are shared by
//! source: the waiting room, newcomers, members (who showed a certificate). A full lane makes room; accepting never stops.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo, TlsConnectInfo};

use super::socket::Socket;
use voile_memory::shares::{Decision, LaneLimits, LanePermits, Source};

/// Those that still wait for a place, of one source, before those that gave up are looked for.
const PRUNE_AT: usize = 64;

/// A lane. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Lane(Arc<NewcomersShared>);

#[derive(Debug)]
struct NewcomersShared {
    state: Mutex<NewcomersState>,
    changed: Notify,
}

#[derive(Debug)]
struct NewcomersState {
    places: LanePermits,
    /// By place: who may be told to go.
    dismissals: HashMap<u64, oneshot::Sender<()>>,
    /// Connections that wait for a place, by source, the newest last.
    waiting: HashMap<Source, Vec<oneshot::Sender<NewcomerDeadline>>>,
}

impl Lane {
    pub(super) fn new(limits: &'static LaneLimits) -> Self {
        Self(Arc::new(NewcomersShared {
            state: Mutex::new(NewcomersState {
                places: LanePermits::new(limits),
                dismissals: HashMap::new(),
                waiting: HashMap::new(),
            }),
            changed: Notify::new(),
        }))
    }

    /// A place for one more; waits for it if there is none. Of a source, the newest is served first: under a flood the oldest have
    /// given up.
    pub(super) async fn place(&self, source: Source) -> Option<NewcomerDeadline> {
        let (give, given) = oneshot::channel();
        {
            let mut state = self.state();
            let waiting = state.waiting.entry(source).or_default();
            if waiting.len() >= PRUNE_AT {
                waiting.retain(|one| !one.is_closed());
            }
            waiting.push(give);
        }
        self.0.changed.notify_one();
        given.await.ok()
    }

    /// A place at once: whoever must go for it goes meanwhile.
    pub(super) fn place_now(&self, source: Source) -> NewcomerDeadline {
        let mut state = self.state();
        let largest = state.places.largest().cloned();
        let now = Instant::now();
        if let Decision::Evict(id) = state.places.decide(&source, largest.as_ref(), now) {
            state.dismiss(id);
        }
        let id = state.places.give(source, now);
        self.probation(&mut state, id, now)
    }

    /// Has the oldest of the source with most places go; false where there is nobody.
    pub(super) fn evict_one(&self) -> bool {
        let mut state = self.state();
        let places = &state.places;
        let oldest = places.largest().and_then(|source| places.oldest_of(source));
        oldest.inspect(|id| state.dismiss(*id)).is_some()
    }

    /// Gives out places, for as long as it is polled.
    pub(super) async fn keep(&self) {
        loop {
            let next = self.give_out();
            let changed = self.0.changed.notified();
            match next {
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
                None => changed.await,
            }
        }
    }

    /// Gives out the places that there are now, and says when to look again though nothing changes.
    fn give_out(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        loop {
            let mut granted = Vec::new();
            {
                let mut state = self.state();
                for (give, id) in state.grant(now, &mut next) {
                    granted.push((give, self.probation(&mut state, id, now)));
                }
            }
            if granted.is_empty() {
                return next;
            }
            for (give, probation) in granted {
                // A connection that has gone meanwhile gives its place back.
                drop(give.send(probation));
            }
        }
    }

    fn probation(&self, state: &mut NewcomersState, id: u64, now: Instant) -> NewcomerDeadline {
        let (dismiss, dismissed) = oneshot::channel();
        state.dismissals.insert(id, dismiss);
        NewcomerDeadline {
            standing: Arc::new(LaneMembership {
                lane: self.clone(),
                id,
                settled: AtomicBool::new(false),
            }),
            dismissed: Some(dismissed),
            deadline: now + state.places.limits.deadline,
            timer: None,
        }
    }

    fn state(&self) -> MutexGuard<'_, NewcomersState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state().places.len()
    }
}

impl NewcomersState {
    fn dismiss(&mut self, id: u64) {
        self.places.dismiss(id);
        if let Some(dismiss) = self.dismissals.remove(&id) {
            // It may have gone in between.
            let _ = dismiss.send(());
        }
    }

    /// Grants places to the newest connection of each source, sources with the smallest share first. Tells evicted connections to
    /// go.
    fn grant(
        &mut self,
        now: Instant,
        next: &mut Option<Instant>,
    ) -> Vec<(oneshot::Sender<NewcomerDeadline>, u64)> {
        self.waiting.retain(|_, waiting| {
            while waiting.pop_if(|newest| newest.is_closed()).is_some() {}
            !waiting.is_empty()
        });
        let mut sources: Vec<(usize, Source)> = self
            .waiting
            .keys()
            .map(|source| (self.places.held_by(source), source.clone()))
            .collect();
        sources.sort_unstable();
        *next = None;
        // For so many others somebody is going already.
        let mut going = self.places.leaving();
        let mut granted = Vec::new();
        for (_, source) in sources {
            let largest = self.places.largest().cloned();
            match self.places.decide(&source, largest.as_ref(), now) {
                Decision::Admit => {
                    if let Some(give) = self.waiting.get_mut(&source).and_then(Vec::pop) {
                        granted.push((give, self.places.give(source, now)));
                    }
                }
                _ if going > 0 => going -= 1,
                Decision::Evict(id) => self.dismiss(id),
                Decision::Wait(at) => *next = Some(next.map_or(at, |next| next.min(at))),
                Decision::Busy => break,
            }
        }
        granted
    }
}

/// Place of a connection in a lane, until the connection settles.
#[derive(Debug)]
pub(super) struct LaneMembership {
    lane: Lane,
    id: u64,
    settled: AtomicBool,
}

impl LaneMembership {
    /// A call has succeeded, or the connection is gone.
    pub(super) fn settle(&self) {
        if self.settled.swap(true, Ordering::Relaxed) {
            return;
        }
        {
            let mut state = self.lane.state();
            state.places.release(self.id);
            state.dismissals.remove(&self.id);
        }
        self.lane.0.changed.notify_one();
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }
}

/// A newcomer's time. As a future it ends when the newcomer must go, and says why.
#[derive(Debug)]
pub(super) struct NewcomerDeadline {
    standing: Arc<LaneMembership>,
    /// None once nobody can say it any more.
    dismissed: Option<oneshot::Receiver<()>>,
    deadline: Instant,
    /// Of the thread that polls it.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Drop for NewcomerDeadline {
    fn drop(&mut self) {
        self.standing.settle();
    }
}

impl Future for NewcomerDeadline {
    type Output = &'static str;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<&'static str> {
        let deadline = self.deadline;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.as_mut().poll(context).is_ready() {
            return Poll::Ready("no authenticated call within the time limit");
        }
        let Some(dismissed) = &mut self.dismissed else {
            return Poll::Pending;
        };
        match Pin::new(dismissed).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready("evicted for a newer connection"),
            // The lane is closed altogether; connections end by themselves then.
            Poll::Ready(Err(_)) => {
                self.dismissed = None;
                Poll::Pending
            }
        }
    }
}

/// Lane and source that count a proven caller's connection while it carries no discovery stream.
#[derive(Debug, Clone)]
pub(super) struct RestingConnection {
    pub(super) lane: Lane,
    pub(super) source: Source,
}

/// A connection that is cut when its probation ends badly.
#[derive(Debug)]
pub(super) struct GuardedConnection<S> {
    stream: S,
    standing: Arc<LaneMembership>,
    probation: Option<NewcomerDeadline>,
    resting: RestingConnection,
}

impl<S> GuardedConnection<S> {
    /// Its place may have been given on another thread.
    pub(super) fn new(
        stream: S,
        mut probation: NewcomerDeadline,
        resting: RestingConnection,
    ) -> Self {
        probation.timer = None;
        Self {
            stream,
            standing: Arc::clone(&probation.standing),
            probation: Some(probation),
            resting,
        }
    }
}
impl<S: AsyncRead + Unpin> AsyncRead for GuardedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(probation) = &mut this.probation {
            if this.standing.is_settled() {
                this.probation = None;
            } else if let Poll::Ready(reason) = Pin::new(probation).poll(context) {
                tracing::debug!(reason, "an unauthenticated connection is closed");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, reason)));
            }
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Facts about a request's connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionInfo {
    pub(super) standing: Arc<LaneMembership>,
    pub(super) resting: RestingConnection,
    pub(super) tcp: TcpConnectInfo,
    pub(super) tls: Option<TlsConnectInfo<TcpConnectInfo>>,
}

impl Connected for GuardedConnection<Socket> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo {
            standing: Arc::clone(&self.standing),
            resting: self.resting.clone(),
            tcp: self.stream.connect_info(),
            tls: None,
        }
    }
}

impl Connected for GuardedConnection<Box<TlsStream<Socket>>> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo {
            standing: Arc::clone(&self.standing),
            resting: self.resting.clone(),
            tcp: self.stream.get_ref().0.connect_info(),
            tls: Some(self.stream.connect_info()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    static LIMITS: LaneLimits = LaneLimits {
        places: 4,
        per_source: 2,
        min_stay: Duration::from_millis(250),
        deadline: Duration::from_secs(15),
    };

    fn source(number: u8) -> Source {
        IpAddr::from([127, 0, 0, number]).into()
    }

    fn resting(lane: &Lane) -> RestingConnection {
        RestingConnection {
            lane: lane.clone(),
            source: source(1),
        }
    }

    /// A lane that gives out places, and is awaited nowhere else.
    fn lane() -> Lane {
        let lane = Lane::new(&LIMITS);
        let keeper = lane.clone();
        tokio::spawn(async move { keeper.keep().await });
        lane
    }

    /// Holds a place until it is told to go.
    async fn hold(lane: &Lane, number: u8) -> tokio::task::JoinHandle<&'static str> {
        let held = lane.place(source(number)).await.expect("a place");
        tokio::spawn(held)
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_has_its_time_and_one_that_is_known_has_no_end() {
        let lane = lane();
        let (_far, near) = duplex(64);
        let stranger = lane.place(source(1)).await.expect("a place");
        let mut stranger = GuardedConnection::new(near, stranger, resting(&lane));
        let (far, near) = duplex(64);
        let mut known = GuardedConnection::new(near, lane.place_now(source(1)), resting(&lane));
        known.standing.settle();
        assert_eq!(lane.len(), 1, "who is known holds no place");
        let begin = Instant::now();
        let error = stranger.read_u8().await.expect_err("it said nothing");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed(), LIMITS.deadline);
        let read = tokio::time::timeout(LIMITS.deadline * 10, known.read_u8()).await;
        assert!(read.is_err(), "it may be silent as long as it likes");
        drop(far);
        let end = known.read_u8().await.expect_err("its own end");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_lane_makes_room_at_once_for_a_smaller_share_and_after_a_while_for_an_equal_one()
    {
        let lane = lane();
        let begin = Instant::now();
        let crowd = [
            hold(&lane, 1).await,
            hold(&lane, 1).await,
            hold(&lane, 2).await,
            hold(&lane, 2).await,
        ];
        hold(&lane, 3).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert_eq!(lane.len(), LIMITS.places);
        assert!(crowd[0].is_finished(), "the oldest of a largest share");
        hold(&lane, 2).await;
        assert_eq!(begin.elapsed(), LIMITS.min_stay, "within its own share");
        assert!(crowd[2].is_finished() && !crowd[1].is_finished());
        assert_eq!(lane.len(), LIMITS.places);
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_flood_from_one_source_the_newest_is_served_first_and_others_do_not_wait() {
        let lane = lane();
        hold(&lane, 1).await;
        let between = LIMITS.min_stay / 2;
        tokio::time::advance(between).await;
        hold(&lane, 1).await;
        let wait = |lane: Lane| tokio::spawn(async move { lane.place(source(1)).await });
        let old = wait(lane.clone());
        tokio::task::yield_now().await;
        let new = wait(lane.clone());
        let begin = Instant::now();
        hold(&lane, 2).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        let _held = new.await.expect("no panic").expect("a place");
        assert_eq!(begin.elapsed(), LIMITS.min_stay - between);
        assert!(!old.is_finished());
    }
}
