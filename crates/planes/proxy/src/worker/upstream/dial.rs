//! TCP connections of a worker to an address, and the identities that a peer must prove. No pool, no policy.

use std::net::SocketAddr;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use voile_identity::{Identity, PeerError, identity_of, verify_expected};
use voile_transport::{self as transport, TransportStream};

use crate::worker::Worker;
use crate::worker::upstream::endpoint::Unreachable;

pub(in crate::worker) async fn connect_to(
    worker: &Worker,
    to: SocketAddr,
    limit: Duration,
) -> Result<TcpStream, Unreachable> {
    let connecting = transport::connect(to, worker.outward(), limit);
    connecting
        .await
        .map_err(|error| Unreachable::unconnected(&error))
}

/// Returns an error unless the peer's identity is one of the expected.
pub(crate) fn verify(stream: &TransportStream, expected: &[Identity]) -> Result<(), PeerError> {
    verify_chain(stream.peer_certificates(), expected)
}

/// The same by the certificates that were shown.
pub(in crate::worker) fn verify_chain(
    chain: &[CertificateDer<'_>],
    expected: &[Identity],
) -> Result<(), PeerError> {
    let leaf = chain.first().ok_or(PeerError::NoCertificate)?;
    verify_expected(&identity_of(leaf)?, expected)
}
