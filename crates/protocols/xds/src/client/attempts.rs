//! Opens TCP to a control plane. An address that does not answer costs a quarter of a second: then another attempt begins
//! beside the first, as "happy eyeballs" does (RFC 8305, section 5). On Kubernetes a name stands for one virtual address with
//! many replicas behind it, and for a moment also for those that have just gone: a new attempt reaches another one.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::codegen::http::Uri;

/// Time without an answer after which another attempt begins (RFC 8305: Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Attempts that may be under way at once.
const MAX_ATTEMPTS: usize = 4;
/// When the kernel asks whether the other end of a quiet connection is there, so that a control plane that vanished is
/// noticed. HTTP/2 pings (ztunnel has them every 30 s) would do the same, and wake two processes each time: an idle proxy
/// must not wake. A control plane that is there and says nothing is the driver's to notice, when it asks for something.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// Time after which an unanswered keep-alive question is repeated.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Questions unanswered after which the connection is lost.
const KEEPALIVE_RETRIES: u32 = 2;

/// Opens the first connection that stands, for tonic.
#[derive(Clone)]
pub(super) struct ConnectAttempts {
    /// Addresses to try, in this order; those that the URI's host resolves to if there are none.
    pub(super) addresses: Vec<SocketAddr>,
    /// The address that answered.
    pub(super) answered: Arc<OnceLock<SocketAddr>>,
}

impl ConnectAttempts {
    pub(super) async fn connect(mut self, uri: Uri) -> io::Result<TokioIo<TcpStream>> {
        if self.addresses.is_empty() {
            let (host, port) = super::connect::host_and_port(&uri)
                .ok_or_else(|| io::Error::other("the address has no host"))?;
            self.addresses
                .extend(tokio::net::lookup_host((host, port)).await?);
        }
        let (stream, address) = first(&self.addresses).await?;
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        // tonic calls once.
        let _ = self.answered.set(address);
        Ok(TokioIo::new(stream))
    }
}

/// The first connection that stands. An address that refuses is not tried again; one that is silent may be.
async fn first(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    let most = addresses.len().max(MAX_ATTEMPTS);
    let mut queue: VecDeque<SocketAddr> = addresses.iter().copied().collect();
    let mut attempts = JoinSet::new();
    let mut last = io::Error::other("the name has no address");
    let (mut begun, mut begin) = (0, true);
    loop {
        if begin && let Some(address) = queue.pop_front() {
            queue.push_back(address);
            attempts.spawn(async move { (TcpStream::connect(address).await, address) });
            begun += 1;
        }
        let more = begun < most && attempts.len() < MAX_ATTEMPTS && !queue.is_empty();
        let delay = if more { ATTEMPT_DELAY } else { Duration::MAX };
        match tokio::time::timeout(delay, attempts.join_next()).await {
            Ok(None) => return Err(last),
            Ok(Some(Ok((Ok(stream), address)))) => return Ok((stream, address)),
            Ok(Some(Ok((Err(error), address)))) => {
                last = error;
                queue.retain(|queued| *queued != address);
                begin = begun < addresses.len();
            }
            Ok(Some(Err(error))) => (last, begin) = (error.into(), false),
            Err(_) => begin = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// A listener whose queue is full: the kernel does not answer whoever calls now.
    async fn silent() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(ANY_PORT).expect("a port");
        let listener = socket.listen(1).expect("it listens");
        let address = listener.local_addr().expect("its address");
        let mut queue = Vec::new();
        let patience = Duration::from_millis(200);
        while let Ok(queued) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            queue.push(queued.expect("it is queued"));
        }
        (listener, address, queue)
    }

    async fn answering() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind(ANY_PORT).await.expect("it listens");
        let address = listener.local_addr().expect("its address");
        (listener, address)
    }

    #[tokio::test]
    async fn an_address_that_is_silent_is_passed_over() {
        let (_full, silent, _queue) = silent().await;
        let (_listener, answering) = answering().await;
        let (_, address) = first(&[silent, answering]).await.expect("one answers");
        assert_eq!(address, answering);
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_tried_once_and_says_why() {
        let (listener, refusing) = answering().await;
        drop(listener);
        let error = first(&[refusing, refusing])
            .await
            .expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let (_listener, answering) = answering().await;
        let (_, address) = first(&[refusing, answering]).await.expect("one answers");
        assert_eq!(address, answering);
    }
}
