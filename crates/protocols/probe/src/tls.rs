//! TLS of a probe: the certificate is not verified, as in the kubelet, which asks a pod's own address and knows no
//! authority for it. Nothing secret is sent, and only a status is taken from the answer.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use voile_identity::TowardsOutside;

use super::{DeadlineStream, ProbeServer};

/// ALPN name of HTTP/2.
pub(super) const HTTP2: &[u8] = b"h2";

/// One configuration for all questions: it holds no state of a server.
fn config() -> io::Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let mut config = TowardsOutside::unverified()
        .client()
        .map_err(io::Error::other)?;
    // As a kubelet, whose client is Go's: of the two the server chooses, by its own order.
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}

/// Shakes hands. No server name is sent, as none is an address (RFC 6066).
pub(super) fn client(
    server: &ProbeServer,
    mut stream: DeadlineStream,
) -> io::Result<StreamOwned<ClientConnection, DeadlineStream>> {
    let name = ServerName::from(server.address.ip());
    let mut connection = ClientConnection::new(config()?, name).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(connection, stream))
}
