//! TLS handshakes with a deadline, at both ends. The verifier in the configuration decides which peers are allowed.
//! This module only makes sure that a handshake ends, and says why it failed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::stream::{ServerTls, TcpIo, TransportStream};

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer took too long.
    #[error("TLS handshake not finished within {0:?}")]
    Timeout(Duration),
    /// One side refused the other: certificate, version, ALPN, or no TLS at all.
    #[error("TLS handshake refused: {0}")]
    Refused(rustls::Error),
    /// The connection broke.
    #[error("connection closed during the TLS handshake: {0}")]
    Broken(io::Error),
}

impl HandshakeError {
    /// Returns true if one side refused the other because its certificate is revoked.
    #[must_use]
    pub fn is_for_revocation(&self) -> bool {
        let Self::Refused(error) = self else {
            return false;
        };
        matches!(
            error,
            rustls::Error::InvalidCertificate(CertificateError::Revoked)
                | rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)
        )
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        {
            Some(refused) => Self::Refused(refused.clone()),
            None => Self::Broken(error),
        }
    }
}

/// Answers a client's handshake.
///
/// # Errors
/// When it fails or takes longer than `limit`.
pub async fn accept_tls(
    config: Arc<ServerConfig>,
    io: TcpIo,
    limit: Duration,
) -> Result<TransportStream, HandshakeError> {
    match tokio::time::timeout(limit, TlsAcceptor::from(config).accept(io)).await {
        Ok(Ok(tls)) => Ok(TransportStream::ServerTls(Box::new(ServerTls::new(tls)))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(HandshakeError::Timeout(limit)),
    }
}

/// Begins a handshake with a server.
///
/// # Errors
/// When it fails or takes longer than `limit`.
pub async fn connect_tls(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    io: TcpIo,
    limit: Duration,
) -> Result<TransportStream, HandshakeError> {
    match tokio::time::timeout(limit, TlsConnector::from(config).connect(name, io)).await {
        Ok(Ok(tls)) => Ok(TransportStream::ClientTls(Box::new(tls))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(HandshakeError::Timeout(limit)),
    }
}
