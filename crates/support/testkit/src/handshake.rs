//! A TLS handshake in memory, and peers that show whatever they like and believe everything.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct, DistinguishedName,
    Error, ServerConfig, ServerConnection, SideData, SignatureScheme,
};
use voile_identity::TowardsOutside;

use crate::ShownCertificate;

/// Who refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The connecting side.
    Client,
    /// The accepting side.
    Server,
}

/// A refused handshake.
#[derive(Debug)]
pub struct HandshakeError {
    /// Side that refused first.
    pub by: Side,
    /// Why.
    pub error: Error,
}

/// A finished handshake.
#[derive(Debug)]
pub struct Handshake {
    /// The connecting side.
    pub client: ClientConnection,
    /// The accepting side.
    pub server: ServerConnection,
}

/// Flights of a handshake; more means that it hangs.
const MAX_ROUNDS: usize = 10;

/// Shakes hands in memory.
///
/// # Errors
/// One side refuses.
pub fn handshake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
) -> Result<Handshake, HandshakeError> {
    let by = |by| move |error| HandshakeError { by, error };
    let name = ServerName::try_from("peer.invalid").expect("a DNS name");
    let mut client = ClientConnection::new(client, name).map_err(by(Side::Client))?;
    let mut server = ServerConnection::new(server).map_err(by(Side::Server))?;
    for _ in 0..MAX_ROUNDS {
        carry(&mut client, &mut server).map_err(by(Side::Server))?;
        carry(&mut server, &mut client).map_err(by(Side::Client))?;
        let busy = client.is_handshaking() || server.is_handshaking();
        if !busy && !client.wants_write() && !server.wants_write() {
            return Ok(Handshake { client, server });
        }
    }
    let error = Error::General(format!("no end after {MAX_ROUNDS} rounds"));
    Err(HandshakeError {
        by: Side::Server,
        error,
    })
}

/// Carries all that `from` has to say to `to`; the error is `to`'s.
fn carry<F: SideData, T: SideData>(
    from: &mut ConnectionCommon<F>,
    to: &mut ConnectionCommon<T>,
) -> Result<(), Error> {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).expect("memory takes everything");
    }
    let mut unread = wire.as_slice();
    while !unread.is_empty() {
        to.read_tls(&mut unread).expect("memory gives everything");
        to.process_new_packets()?;
    }
    Ok(())
}

/// A client that shows `certificate` (or none) and believes any server.
pub fn hostile_client_config(certificate: Option<&ShownCertificate>) -> Arc<ClientConfig> {
    let mut config = TowardsOutside::unverified()
        .client()
        .expect("the provider knows its versions");
    if let Some(shown) = certificate {
        let shown = SingleCertAndKey::from(Arc::clone(&shown.certified));
        config.client_auth_cert_resolver = Arc::new(shown);
    }
    Arc::new(config)
}

/// A server that shows `certificate` and believes any client, one without certificate too.
pub fn hostile_server_config(certificate: &ShownCertificate) -> Arc<ServerConfig> {
    let shown = SingleCertAndKey::from(Arc::clone(&certificate.certified));
    Arc::new(
        ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider knows its versions")
            .with_client_cert_verifier(Arc::new(Gullible))
            .with_cert_resolver(Arc::new(shown)),
    )
}

#[derive(Debug)]
struct Gullible;

impl ClientCertVerifier for Gullible {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
