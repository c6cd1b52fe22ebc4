//! The end that is called: moves a connection's bytes, hands on each tunnel that its peer wants, and ends it when the peer only
//! makes work.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use voile_http2::{
    ErrorCode, Failure, Fields, Http2End, Link, RecvStream, SendResponse, SendStream,
};

use crate::http2_link::Wire;

/// Fruitless tunnels of one connection, beyond which it is ended if they are most. A peer that opens and resets, or
/// is refused again and again, makes work without wanting its results.
const MAX_FRUITLESS: u32 = 500;

/// Counters by which the tunnels of a connection inform its driver.
#[derive(Default)]
struct TunnelSession {
    begun: Cell<u32>,
    fruitless: Cell<u32>,
}

impl TunnelSession {
    fn count(cell: &Cell<u32>, more: u32) {
        cell.set(cell.get().saturating_add(more));
    }

    fn is_abused(&self) -> bool {
        let fruitless = self.fruitless.get();
        fruitless >= MAX_FRUITLESS && fruitless > self.begun.get() / 2
    }
}

/// A tunnel that its peer wants, and that waits for an answer.
pub struct TunnelRequest {
    head: Fields,
    receive: RecvStream,
    respond: SendResponse,
}

impl TunnelRequest {
    /// Returns the head of the request.
    #[must_use]
    pub fn head(&self) -> &Fields {
        &self.head
    }

    /// No, for this reason.
    pub fn refuse(mut self, status: u16) {
        let mut head = self.respond.block();
        head.push_status(status);
        // A peer that is gone hears nothing.
        let _ = self.respond.send_response(head, true);
    }

    /// Yes; none when its peer took it back meanwhile.
    #[must_use]
    pub fn accept(mut self) -> Option<(RecvStream, SendStream)> {
        let mut head = self.respond.block();
        head.push_status(200);
        let send = self.respond.send_response(head, false).ok()?;
        Some((self.receive, send))
    }

    /// Ready when its peer takes it back.
    pub async fn taken_back(&mut self) -> Failure {
        poll_fn(|cx| self.respond.poll_failed(cx)).await
    }
}

/// Moves bytes until the connection is over, or takes no more once `leaving` is ready. Each tunnel is a task of its own, which
/// says at its end whether it came to anything.
pub async fn serve<T>(
    wire: &mut Wire,
    link: &Link,
    leaving: impl Future<Output = ()>,
    mut tunnel: impl FnMut(TunnelRequest) -> T,
) -> Http2End
where
    T: Future<Output = bool> + 'static,
{
    let session = Rc::new(TunnelSession::default());
    let leaving = async {
        leaving.await;
        link.borrow().leave();
        std::future::pending::<()>().await;
    };
    let moving = poll_fn(|cx| {
        // A socket that failed has ended the connection.
        let _ = wire.poll(cx);
        while let Some((head, receive, respond)) = link.accept() {
            TunnelSession::count(&session.begun, 1);
            let work = tunnel(TunnelRequest {
                head,
                receive,
                respond,
            });
            let (session, link) = (Rc::clone(&session), link.clone());
            tokio::task::spawn_local(async move {
                if !work.await {
                    TunnelSession::count(&session.fruitless, 1);
                    link.borrow().wake_driver();
                }
            });
        }
        let mut connection = link.borrow();
        let unseen = connection.take_unseen();
        TunnelSession::count(&session.begun, unseen);
        TunnelSession::count(&session.fruitless, unseen);
        if session.is_abused() {
            connection.abort(ErrorCode::ENHANCE_YOUR_CALM);
        }
        match connection.end() {
            Some(end) => Poll::Ready(end),
            None => Poll::Pending,
        }
    });
    tokio::select! {
        end = moving => end,
        () = leaving => Http2End::Closed,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;
    use voile_http2::Connection;
    use voile_transport::{TcpIo, TransportStream};

    use super::*;
    use crate::pool::tests::TestKey;
    use crate::{CONFIG, Pool, TunnelOpenError, open};

    /// More than any connection of these tests may have.
    const MANY: u32 = 1200;

    /// Opens one tunnel after another on a connection; `comes_to_something` decides by its number if a tunnel
    /// succeeds. Returns the number of requested tunnels when the connection ended.
    fn tunnels_until_it_ends(comes_to_something: fn(u32) -> bool) -> u32 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        LocalSet::new().block_on(&runtime, async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let at: SocketAddr = listener.local_addr().expect("an address");
            let asked = Rc::new(Cell::new(0));
            let counted = Rc::clone(&asked);
            let server = tokio::task::spawn_local(async move {
                let (tcp, _) = listener.accept().await.expect("a caller");
                let link = Link::new(Connection::server(&CONFIG, voile_http2::Pool::default()));
                let mut wire = Wire::new(TransportStream::Tcp(TcpIo::from(tcp)), link.clone());
                let end = serve(&mut wire, &link, std::future::pending(), move |request| {
                    counted.set(counted.get() + 1);
                    let good = comes_to_something(counted.get());
                    async move {
                        match good {
                            true => drop(request.accept()),
                            false => request.refuse(400),
                        }
                        good
                    }
                });
                let end = end.await;
                wire.close().await;
                end
            });
            let pool: Rc<Pool<(), String>> = Rc::default();
            let dial = || async move {
                let tcp = TcpStream::connect(at).await.expect("a listener");
                Ok(TransportStream::Tcp(TcpIo::from(tcp)))
            };
            let lease = pool.lease(TestKey, (), dial).await.expect("a connection");
            for _ in 0..MANY {
                let mut head = pool.blocks().block();
                head.push(":method", b"CONNECT");
                head.push(":authority", b"10.0.0.1:80");
                match open(&lease, head).await {
                    Ok(_) | Err(TunnelOpenError::Status(_)) => {}
                    Err(_) => {
                        let end = server.await.expect("it ended by itself");
                        assert_eq!(end, Http2End::Error(ErrorCode::ENHANCE_YOUR_CALM));
                        break;
                    }
                }
            }
            asked.get()
        })
    }

    #[test]
    fn who_makes_nothing_but_work_is_disconnected_after_so_many_and_who_also_works_is_not() {
        for (what, good, expected) in [
            ("nothing", (|_| false) as fn(u32) -> bool, 500),
            ("every third", |number| number % 3 == 0, 749),
            ("every other", |number| number % 2 == 1, MANY),
            ("all but 499", |number| number > 499, MANY),
        ] {
            assert_eq!(tunnels_until_it_ends(good), expected, "{what}");
        }
    }
}
