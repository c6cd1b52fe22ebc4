//! Relay between a TCP connection and a stream of HBONE, both ways, each at the pace of its receiver. A side that
//! fails makes the other end in a reset, so that cut data never looks finished.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use voile_http2::{ErrorCode, RecvStream, SendStream};
use voile_transport::TransportStream;
use voile_transport::buffers::{Buffer, Class};

/// Reason why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    /// Both sides said that they were done.
    Finished,
    /// The TCP side failed.
    TcpFailed,
    /// The tunnel's side failed.
    TunnelFailed,
    /// It was cut by us.
    Cut,
}

/// Bytes that were carried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TunnelBytes {
    /// Bytes from TCP into the tunnel.
    pub(crate) inward: u64,
    /// Bytes from the tunnel to TCP.
    pub(crate) outward: u64,
    pub(crate) end: TunnelEnd,
}

/// Turns in which one direction may move something before others get theirs.
const BURST: usize = 16;

struct Tunnel {
    tcp: TransportStream,
    receive: RecvStream,
    send: SendStream,
    class: Class,
    /// Taken from the tunnel, not yet written.
    chunk: Bytes,
    said: bool,
    heard: bool,
    /// The end of the tunnel's side is being told to TCP.
    closing: bool,
    carried: TunnelBytes,
}

/// Carries until both directions ended, one failed, or `cut` is ready.
///
/// No `async fn`, and `cut` is the caller's: the future of one holds each argument twice, and there are many tunnels.
pub(crate) fn carry<C: Future<Output = ()>>(
    tcp: TransportStream,
    (receive, send): (RecvStream, SendStream),
    mut cut: Pin<&mut C>,
) -> impl Future<Output = TunnelBytes> {
    let mut tunnel = Tunnel {
        tcp,
        receive,
        send,
        class: Class::default(),
        chunk: Bytes::new(),
        said: false,
        heard: false,
        closing: false,
        carried: TunnelBytes {
            inward: 0,
            outward: 0,
            end: TunnelEnd::Finished,
        },
    };
    async move {
        let end = std::future::poll_fn(|cx| {
            if let Poll::Ready(end) = tunnel.poll(cx) {
                return Poll::Ready(end);
            }
            cut.as_mut().poll(cx).map(|()| TunnelEnd::Cut)
        });
        let end = end.await;
        if end != TunnelEnd::Finished {
            tunnel.send.send_reset(ErrorCode::CANCEL);
            tunnel.tcp.reset();
        }
        TunnelBytes {
            end,
            ..tunnel.carried
        }
    }
}

impl Tunnel {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TunnelEnd> {
        let said = self.poll_inward(cx);
        let heard = self.poll_outward(cx);
        match (said, heard) {
            (Poll::Ready(Err(end)), _) | (_, Poll::Ready(Err(end))) => Poll::Ready(end),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(TunnelEnd::Finished),
            _ => {
                // A stream that was reset while its sender waits for TCP must not wait for TCP to speak.
                if self.send_failed(cx) {
                    return Poll::Ready(TunnelEnd::TunnelFailed);
                }
                Poll::Pending
            }
        }
    }

    fn send_failed(&mut self, cx: &mut Context<'_>) -> bool {
        !(self.said && self.heard) && self.send.poll_failed(cx).is_ready()
    }

    /// From TCP into the tunnel.
    fn poll_inward(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TunnelEnd>> {
        let mut turns = 0;
        while !self.said {
            turns += 1;
            if turns > BURST {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if ready!(self.tcp.poll_readable(cx)).is_err() {
                return Poll::Ready(Err(TunnelEnd::TcpFailed));
            }
            let room = ready!(self.send.poll_capacity(cx)).map_err(|_| TunnelEnd::TunnelFailed)?;
            let mut buffer = Buffer::take(self.class);
            let most = room.min(buffer.bytes().len());
            let mut read = ReadBuf::new(&mut buffer.bytes_mut()[..most]);
            if ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut read)).is_err() {
                return Poll::Ready(Err(TunnelEnd::TcpFailed));
            }
            let bytes = read.filled();
            let sent = match bytes.is_empty() {
                true => {
                    self.said = true;
                    self.send.send_data(Bytes::new(), true)
                }
                false => {
                    self.carried.inward += bytes.len() as u64;
                    self.class = self.class.after(bytes.len());
                    self.send.send_copy(bytes, false)
                }
            };
            sent.map_err(|_| TunnelEnd::TunnelFailed)?;
        }
        Poll::Ready(Ok(()))
    }

    /// From the tunnel to TCP.
    fn poll_outward(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TunnelEnd>> {
        let mut turns = 0;
        while !self.heard {
            turns += 1;
            if turns > BURST {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.closing {
                let closed = ready!(Pin::new(&mut self.tcp).poll_shutdown(cx));
                closed.map_err(|_| TunnelEnd::TcpFailed)?;
                self.heard = true;
                continue;
            }
            if self.chunk.is_empty() {
                match ready!(self.receive.poll_data(cx)) {
                    Some(Ok(chunk)) => self.chunk = chunk,
                    Some(Err(_)) => return Poll::Ready(Err(TunnelEnd::TunnelFailed)),
                    None => self.closing = true,
                }
                continue;
            }
            let written = ready!(Pin::new(&mut self.tcp).poll_write(cx, &self.chunk));
            let written = written.map_err(|_| TunnelEnd::TcpFailed)?;
            if written == 0 {
                return Poll::Ready(Err(TunnelEnd::TcpFailed));
            }
            drop(self.chunk.split_to(written));
            self.receive.release_capacity(written);
            self.carried.outward += written as u64;
        }
        Poll::Ready(Ok(()))
    }
}
