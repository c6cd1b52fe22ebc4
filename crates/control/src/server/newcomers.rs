//! Strangers at the door. Whoever connects is a newcomer until one of its calls has succeeded: newcomers have a deadline
//! and a bound, and when the bound is reached the one that has had its chance for longest makes room. So a crowd that
//! connects and says nothing, or nothing true, costs a bounded amount and keeps nobody out.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo, TlsConnectInfo};

/// Newcomers at once: each costs about 30 KB, and its handshake a fraction of a millisecond of a core; more wait in the kernel.
pub(super) const MAX_NEWCOMERS: usize = 256;
/// How long a newcomer may take until a call of it has succeeded, handshake included.
pub(super) const NEWCOMER_DEADLINE: Duration = Duration::from_secs(15);
/// How long a newcomer may stay when others wait for its place. A proxy needs milliseconds; when many come at once on a
/// loaded machine, not more than this.
pub(super) const NEWCOMER_PATIENCE: Duration = Duration::from_secs(1);

/// Gives out places.
#[derive(Debug)]
pub(super) struct Newcomers {
    places: Arc<Semaphore>,
    /// Who may be told to go, the oldest first; some of them are none any more.
    present: VecDeque<(Instant, oneshot::Sender<()>)>,
}

impl Newcomers {
    pub(super) fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_NEWCOMERS)),
            present: VecDeque::new(),
        }
    }

    /// A place for one more; waits for it if there is none.
    pub(super) async fn admit(&mut self) -> Probation {
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
                break permit;
            }
            self.present.retain(|(_, leave)| !leave.is_closed());
            let patience = match self.present.front() {
                Some((since, _)) => *since + NEWCOMER_PATIENCE,
                None => Instant::now() + NEWCOMER_PATIENCE,
            };
            tokio::select! {
                Ok(permit) = Arc::clone(&self.places).acquire_owned() => break permit,
                () = sleep_until(patience) => {}
            }
            if let Some((_, leave)) = self.present.pop_front() {
                // It may have left, or made itself known, in between.
                let _ = leave.send(());
            }
        };
        if self.present.len() >= MAX_NEWCOMERS {
            self.present.retain(|(_, leave)| !leave.is_closed());
        }
        let (leave, dismissed) = oneshot::channel();
        self.present.push_back((Instant::now(), leave));
        Probation {
            standing: Arc::new(Standing(Mutex::new(Some(permit)))),
            dismissed: Some(dismissed),
            deadline: Box::pin(sleep(NEWCOMER_DEADLINE)),
        }
    }
}

/// Whether a connection is a newcomer's: it holds a newcomer's place.
#[derive(Debug)]
pub(super) struct Standing(Mutex<Option<OwnedSemaphorePermit>>);

impl Standing {
    /// A call has succeeded, or the connection is gone.
    pub(super) fn settle(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn is_settled(&self) -> bool {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        place.is_none()
    }
}

/// A newcomer's time. As a future it ends when the newcomer must go, and says why.
#[derive(Debug)]
pub(super) struct Probation {
    standing: Arc<Standing>,
    /// None once nobody can say it any more.
    dismissed: Option<oneshot::Receiver<()>>,
    deadline: Pin<Box<Sleep>>,
}

impl Drop for Probation {
    fn drop(&mut self) {
        self.standing.settle();
    }
}

impl Future for Probation {
    type Output = &'static str;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<&'static str> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready("no call succeeded in time");
        }
        let Some(dismissed) = &mut self.dismissed else {
            return Poll::Pending;
        };
        match Pin::new(dismissed).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready("others waited for its place"),
            // The door is closed altogether; connections end by themselves then.
            Poll::Ready(Err(_)) => {
                self.dismissed = None;
                Poll::Pending
            }
        }
    }
}

/// A connection that is cut when its probation ends badly.
#[derive(Debug)]
pub(super) struct Guarded<S> {
    stream: S,
    standing: Arc<Standing>,
    probation: Option<Probation>,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, probation: Probation) -> Self {
        Self {
            stream,
            standing: Arc::clone(&probation.standing),
            probation: Some(probation),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
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
                tracing::debug!(reason, "a newcomer's connection is closed");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, reason)));
            }
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
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

/// What a request knows of its connection.
#[derive(Debug, Clone)]
pub(super) struct Entrance {
    pub(super) standing: Arc<Standing>,
    pub(super) tcp: TcpConnectInfo,
    pub(super) tls: Option<TlsConnectInfo<TcpConnectInfo>>,
}

impl Connected for Guarded<TcpStream> {
    type ConnectInfo = Entrance;

    fn connect_info(&self) -> Entrance {
        Entrance {
            standing: Arc::clone(&self.standing),
            tcp: self.stream.connect_info(),
            tls: None,
        }
    }
}

impl Connected for Guarded<Box<TlsStream<TcpStream>>> {
    type ConnectInfo = Entrance;

    fn connect_info(&self) -> Entrance {
        Entrance {
            standing: Arc::clone(&self.standing),
            tcp: self.stream.get_ref().0.connect_info(),
            tls: Some(self.stream.connect_info()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_has_its_time_and_one_that_is_known_has_no_end() {
        let mut newcomers = Newcomers::new();
        let (_far, near) = duplex(64);
        let mut stranger = Guarded::new(near, newcomers.admit().await);
        let (far, near) = duplex(64);
        let mut known = Guarded::new(near, newcomers.admit().await);
        known.standing.settle();
        let begin = Instant::now();
        let error = stranger.read_u8().await.expect_err("it said nothing");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed(), NEWCOMER_DEADLINE);
        let read = tokio::time::timeout(NEWCOMER_DEADLINE * 10, known.read_u8()).await;
        assert!(read.is_err(), "it may be silent as long as it likes");
        drop(far);
        let end = known.read_u8().await.expect_err("its own end");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_makes_room_but_not_at_once() {
        let mut newcomers = Newcomers::new();
        let mut crowd = Vec::new();
        for _ in 0..MAX_NEWCOMERS {
            crowd.push(newcomers.admit().await);
        }
        let begin = Instant::now();
        let mut oldest = crowd.swap_remove(0);
        let leaving = tokio::spawn(async move {
            let reason = (&mut oldest).await;
            drop(oldest);
            reason
        });
        let last = newcomers.admit().await;
        assert_eq!(begin.elapsed(), NEWCOMER_PATIENCE);
        assert_eq!(leaving.await.unwrap(), "others waited for its place");
        drop(last);
        newcomers.admit().await;
        assert_eq!(
            begin.elapsed(),
            NEWCOMER_PATIENCE,
            "a free place is taken at once"
        );
    }
}
