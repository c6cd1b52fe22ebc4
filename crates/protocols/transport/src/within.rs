//! TLS inside a shared connection, such as a tunnel that a gateway forwards without reading. The holder of the stream
//! uses it like the tunnel alone. The peer's identity is checked before it becomes a stream.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::detect::Readable;
use crate::handshake::HandshakeError;
use crate::stream::{SocketEvents, TransportStream, TunnelledStream};

/// See the module.
#[derive(Debug)]
pub struct NestedTls(TlsStream<Box<dyn TunnelledStream>>);

/// Begins a handshake with a server at the end of the carried stream.
///
/// # Errors
/// When it fails or takes longer than `limit`.
pub async fn connect_tls_within(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    io: Box<dyn TunnelledStream>,
    limit: Duration,
) -> Result<NestedTls, HandshakeError> {
    match tokio::time::timeout(limit, TlsConnector::from(config).connect(name, io)).await {
        Ok(Ok(tls)) => Ok(NestedTls(tls)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(HandshakeError::Timeout(limit)),
    }
}

impl NestedTls {
    /// The protocol that ALPN settled on.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.0.get_ref().1.alpn_protocol()
    }

    /// The verified certificates of the peer, its own first.
    #[must_use]
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.0.get_ref().1.peer_certificates().unwrap_or_default()
    }

    fn io(&self) -> &dyn TunnelledStream {
        &**self.0.get_ref().0
    }

    /// A session that does not want to read holds plaintext, or has seen the end.
    fn is_told(&self) -> bool {
        !self.0.get_ref().1.wants_read()
    }
}

impl From<NestedTls> for TransportStream {
    fn from(within: NestedTls) -> Self {
        Self::Tunnel(Box::new(within))
    }
}

impl Readable for NestedTls {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.is_told() {
            true => Poll::Ready(Ok(())),
            false => self.io().poll_readable(cx),
        }
    }
}

impl TunnelledStream for NestedTls {
    fn is_readable(&self) -> bool {
        self.is_told() || self.io().is_readable()
    }

    fn news(&self) -> SocketEvents {
        match self.is_told() {
            true => SocketEvents::Bytes,
            false => self.io().news(),
        }
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.io().poll_failed(cx)
    }

    fn reset(&self) {
        self.io().reset();
    }

    fn peer(&self) -> SocketAddr {
        self.io().peer()
    }

    fn local(&self) -> Option<SocketAddr> {
        self.io().local()
    }
}

impl AsyncRead for NestedTls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for NestedTls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
