//! Refuses a peer after a good handshake: its identity is checked only afterwards. A fatal alert (RFC 8446 section
//! 6.2) tells the peer. Without one the connection would just end, and look like a fault of the network.

use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use rustls::{
    AlertDescription, CommonState, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets,
    ProtocolVersion, SupportedCipherSuite,
};
use tokio::io::AsyncWriteExt;

use crate::close::linger;
use crate::stream::TransportStream;

/// The level byte of an alert that ends the connection.
const FATAL: u8 = 2;

/// Ends a connection over which nothing was said yet with a fatal alert. rustls has no call for that, so the one record
/// is made with the connection's own keys by rustls' own cipher; a configuration that does not hand out its keys, and
/// plain TCP, end without a word.
pub async fn refuse(stream: TransportStream, alert: AlertDescription) {
    let (mut io, record) = match stream {
        TransportStream::Tcp(io) => (io, None),
        // The connection around the tunnel goes on.
        TransportStream::Tunnel(io) => return io.reset(),
        TransportStream::ServerTls(accepted) => {
            let (io, connection) = accepted.tls.into_inner();
            let suite = suite(&connection);
            (
                io,
                record(suite, connection.dangerous_extract_secrets(), alert),
            )
        }
        TransportStream::ClientTls(tls) => {
            let (io, connection) = tls.into_inner();
            let suite = suite(&connection);
            (
                io,
                record(suite, connection.dangerous_extract_secrets(), alert),
            )
        }
    };
    if let Some(record) = record {
        // A peer that has gone needs no reason.
        let _ = io.write_all(&record).await;
    }
    linger(TransportStream::Tcp(io)).await;
}

fn suite(connection: &CommonState) -> Option<SupportedCipherSuite> {
    connection.negotiated_cipher_suite()
}

/// The one record, as it goes out. Only for TLS 1.3, which is all that the mesh speaks.
fn record(
    suite: Option<SupportedCipherSuite>,
    secrets: Result<ExtractedSecrets, Error>,
    alert: AlertDescription,
) -> Option<Vec<u8>> {
    let SupportedCipherSuite::Tls13(suite) = suite? else {
        return None;
    };
    let (sequence, secrets) = secrets.ok()?.tx;
    let (key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
        _ => return None,
    };
    let payload = [FATAL, alert.into()];
    let message = OutboundPlainMessage {
        typ: ContentType::Alert,
        version: ProtocolVersion::TLSv1_2,
        payload: OutboundChunks::Single(&payload),
    };
    let mut encrypter = suite.aead_alg.encrypter(key, iv);
    let sealed = encrypter.encrypt(message, sequence).ok()?;
    Some(sealed.encode())
}
