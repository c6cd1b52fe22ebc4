//! Connections that were accepted, each served by one task with all its calls: what comes is read, heard, answered and written in one
//! turn. Thousands of them wait for hours, and what each holds is what the control plane holds: buffers belong to the thread.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{mpsc, watch};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::server::Connected;
use voile_http2::{Connection as Http2, ErrorCode, Link, Pool};
use voile_memory::give_back;

use super::budget::{
    MAX_NEWCOMER_SAYS, MAX_REFUSALS, MAX_UNWRITTEN, NEWCOMER_HTTP2, PROVEN_HTTP2, ROOM,
};
use super::calls::{ServerCall, begin};
use super::newcomers::{ConnectionInfo, GuardedConnection, NewcomerDeadline};
use super::over;
use super::routes::{Discovery, GrpcService, Routes};

/// Time in which a connection must end after it has reached its age: streams end a little earlier, other calls are short.
const AGE_GRACE: Duration = Duration::from_secs(5);
/// Time in which the end of TLS must be written.
const LINGER: Duration = Duration::from_secs(1);
/// Reads in a row before others get their turn.
const MAX_READS: usize = 16;
/// Output buffer that a thread keeps between two turns, in bytes.
const KEPT_ROOM: usize = 64 * 1024;

/// So many connections that ended are worth the search for memory that the kernel may have back: a renewal of certificates is a
/// connection, and a mesh renews at once.
const MANY: u32 = 100;
/// Delay between the first of them and the search, so that a storm is over.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(5);

/// State that the connections of a thread share.
pub(super) struct ConnectionsState<D, C> {
    pub(super) routes: Routes<D, C>,
    pool: Pool,
    /// To read into.
    room: RefCell<Box<[u8]>>,
    /// Output of one turn.
    said: RefCell<Vec<u8>>,
    /// Connections that ended since somebody began to count.
    left: Cell<u32>,
}

impl<D: 'static, C: 'static> ConnectionsState<D, C> {
    fn new(routes: Routes<D, C>) -> Rc<Self> {
        Rc::new(Self {
            routes,
            pool: Pool::new(),
            room: RefCell::new(vec![0; ROOM].into()),
            said: RefCell::default(),
            left: Cell::new(0),
        })
    }

    /// A connection ended.
    fn left(self: &Rc<Self>) {
        self.left.set(self.left.get() + 1);
        if self.left.get() > 1 {
            return;
        }
        let shared = self.clone();
        spawn_local(async move {
            sleep(GIVE_BACK_AFTER).await;
            if shared.left.replace(0) >= MANY {
                // Nobody waits for it.
                drop(spawn_blocking(give_back));
            }
        });
    }
}

/// Serves what is accepted until `ended`, and then until the last connection is gone. Inside a `LocalSet`.
pub(super) fn serve<S, D, C>(
    mut incoming: mpsc::Receiver<GuardedConnection<S>>,
    routes: Routes<D, C>,
    age: Duration,
    ended: watch::Receiver<bool>,
) -> impl Future<Output = ()> + 'static
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    GuardedConnection<S>: Connected<ConnectInfo = ConnectionInfo>,
    D: Discovery,
    C: GrpcService,
{
    let shared = ConnectionsState::new(routes);
    let (end, ending) = watch::channel(());
    async move {
        let mut over = pin!(over(ended));
        loop {
            let stream = tokio::select! {
                () = &mut over => break,
                stream = incoming.recv() => stream,
            };
            let Some(stream) = stream else {
                break;
            };
            let entrance = stream.connect_info();
            let connection = DiscoveryConnection::new(stream, entrance, shared.clone());
            spawn_local(connection.serve(age + AGE_GRACE, ending.clone()));
        }
        drop((incoming, ending));
        end.send_replace(());
        end.closed().await;
    }
}

struct DiscoveryConnection<S, D, C> {
    stream: GuardedConnection<S>,
    entrance: ConnectionInfo,
    link: Link,
    shared: Rc<ConnectionsState<D, C>>,
    calls: Vec<ServerCall>,
    /// TLS may hold what was written.
    unflushed: bool,
    /// Of a newcomer: what it may still say, and have refused. None once a call of it has succeeded.
    allowance: Option<Allowance>,
    /// Of a proven caller that follows no stream: its place among those.
    resting: Option<NewcomerDeadline>,
}

struct Allowance {
    bytes: usize,
    refusals: usize,
}

impl<S, D, C> DiscoveryConnection<S, D, C>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    D: Discovery,
    C: GrpcService,
{
    fn new(
        stream: GuardedConnection<S>,
        entrance: ConnectionInfo,
        shared: Rc<ConnectionsState<D, C>>,
    ) -> Self {
        Self {
            stream,
            entrance,
            link: Link::new(Http2::server(&NEWCOMER_HTTP2, shared.pool.clone())),
            shared,
            calls: Vec::new(),
            unflushed: false,
            allowance: Some(Allowance {
                bytes: MAX_NEWCOMER_SAYS,
                refusals: MAX_REFUSALS,
            }),
            resting: None,
        }
    }

    async fn serve(mut self, longest: Duration, ending: watch::Receiver<()>) {
        let mut told = ending.clone();
        let mut leave = pin!(told.changed());
        let mut too_old = pin!(sleep(longest));
        let end = too_old.deadline();
        let mut left = false;
        // Waker that both the timer and the end signal hold. Neither is polled before its time, because their memory is cold.
        let mut wakes: Option<Waker> = None;
        poll_fn(|context| {
            let known = wakes.as_ref();
            let known = known.is_some_and(|known| known.will_wake(context.waker()));
            if !known {
                wakes = Some(context.waker().clone());
            }
            if (!known || Instant::now() >= end) && too_old.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let is_ending = || ending.has_changed().unwrap_or(true);
            if !left && (!known || is_ending()) && leave.as_mut().poll(context).is_ready() {
                left = true;
                self.calls.retain_mut(|call| !call.leave());
                self.link.borrow().leave();
            }
            self.poll(context)
        })
        .await;
        self.calls.clear();
        // Late is as good as never.
        let _ = timeout(LINGER, self.stream.shutdown()).await;
        self.shared.left();
        drop(ending);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let paused = self.read(context);
            self.accept();
            self.answer(context);
            self.widen();
            if self.rest(context).is_ready() {
                self.calls.clear();
                self.link.borrow().abort(ErrorCode::NO_ERROR);
            }
            match self.write(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "a connection failed");
                    return Poll::Ready(());
                }
            }
            let mut connection = self.link.borrow();
            let is_said = connection.output().is_empty();
            match connection.end() {
                // Its last word may just have been found.
                Some(_) if connection.output().is_empty() => return Poll::Ready(()),
                None if is_said && !paused => return Poll::Pending,
                _ => {}
            }
        }
    }

    /// Reads what there is; true when it stopped because too much waits to be written.
    fn read(&mut self, context: &mut Context<'_>) -> bool {
        let mut room = self.shared.room.borrow_mut();
        let mut connection = self.link.borrow();
        // Newcomers take turns with those who are served.
        let reads = self.allowance.as_ref().map_or(MAX_READS, |_| 1);
        for _ in 0..reads {
            if connection.output().len() > MAX_UNWRITTEN {
                return true;
            }
            if connection.is_over() {
                return false;
            }
            let mut buffer = ReadBuf::new(&mut room[..]);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let filled = buffer.filled();
                    if let Some(allowance) = &mut self.allowance {
                        let left = allowance.bytes.checked_sub(filled.len());
                        let Some(left) = left else {
                            connection.abort(ErrorCode::ENHANCE_YOUR_CALM);
                            return false;
                        };
                        allowance.bytes = left;
                    }
                    connection.receive(filled);
                }
                Poll::Ready(_) => connection.closed(),
            }
        }
        context.waker().wake_by_ref();
        false
    }

    fn accept(&mut self) {
        while let Some((head, body, respond)) = self.link.accept() {
            let begun = begin(&self.shared, &self.entrance, &head, body, respond);
            self.link.pool().give_block(head);
            let Ok(call) = begun else {
                self.count_refusal();
                continue;
            };
            self.calls.push(call);
        }
    }

    /// A caller with too many refused calls must connect again.
    fn count_refusal(&mut self) {
        let Some(allowance) = &mut self.allowance else {
            return;
        };
        match allowance.refusals.checked_sub(1) {
            Some(left) => allowance.refusals = left,
            None => self.link.borrow().abort(ErrorCode::ENHANCE_YOUR_CALM),
        }
    }

    /// Raises the limits of a connection after its caller has proven itself.
    fn widen(&mut self) {
        if self.allowance.is_some() && self.entrance.standing.is_settled() {
            self.allowance = None;
            self.link.borrow().widen(&PROVEN_HTTP2);
        }
    }

    /// Holds a place while no discovery stream accounts for the connection, or a question is asked beside one. Ready when others of the
    /// same caller, or of a caller with fewer, took it.
    fn rest(&mut self, context: &mut Context<'_>) -> Poll<&'static str> {
        if self.link.borrow().is_over() {
            return Poll::Pending;
        }
        let streams = self.calls.iter().filter(|call| call.is_stream()).count();
        let is_counted = self.allowance.is_some() || (streams > 0 && streams == self.calls.len());
        if is_counted {
            self.resting = None;
            return Poll::Pending;
        }
        let place = self.resting.get_or_insert_with(|| {
            let resting = &self.entrance.resting;
            resting.lane.place_now(resting.source.clone())
        });
        Pin::new(place).poll(context)
    }

    /// Lets every call say what it has to say now.
    fn answer(&mut self, context: &mut Context<'_>) {
        let mut said = self.shared.said.borrow_mut();
        self.calls
            .retain_mut(|call| call.poll(context, &mut said).is_pending());
        if said.capacity() > KEPT_ROOM {
            *said = Vec::new();
        }
    }

    /// Writes what is to be written.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut connection = self.link.borrow();
        loop {
            if connection.output().is_empty() {
                // Output that did not fit before may fit now.
                connection.replenish();
            }
            if connection.output().is_empty() {
                break;
            }
            let stream = Pin::new(&mut self.stream);
            let written = ready!(stream.poll_write(context, connection.output()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            connection.wrote(written);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
