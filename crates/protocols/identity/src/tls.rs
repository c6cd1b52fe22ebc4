//! The rustls configurations of the mesh. Between proxies: TLS 1.3 only, both sides show certificates, no resumption
//! and no early data, so that every connection proves itself anew and rotation and expiry bite.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, CommonState, RootCertStore, ServerConfig};
use rustls_pki_types::CertificateDer;
use voile_model::Identity;

use crate::keys::KeyError;
use crate::spiffe::{PeerError, identity_of};
use crate::store::CertificateStore;
use crate::verifier::PeerVerifier;

/// The suites of the mesh, in order of preference: hardware does AES-GCM, and ztunnel offers the same two.
fn mesh_provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![
        // First what stock Envoy prefers too (and the cheaper one); ztunnel accepts both.
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    Arc::new(provider)
}

fn failed(error: impl std::fmt::Display) -> KeyError {
    KeyError::Crypto(error.to_string())
}

/// The accepting side between proxies; a client certificate is always required. Made once: certificates and trust
/// follow `store`.
///
/// # Errors
/// The TLS library refuses its own suites.
pub fn mesh_server_config(
    store: &Arc<CertificateStore>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, KeyError> {
    let provider = mesh_provider();
    let verifier = Arc::new(PeerVerifier::new(
        Arc::clone(store.trust()),
        Arc::clone(&provider),
    ));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::clone(store) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    forbid_resumption(&mut config);
    // For the alert of a peer that is refused after its handshake (`voile_transport::refuse`), and nothing else.
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

fn forbid_resumption(config: &mut ServerConfig) {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
}

/// The connecting side between proxies. The server name given to rustls is neither sent nor compared: identities
/// are, after the handshake, by [`verify_expected`]. Made once per ALPN: certificates and trust follow `store`.
///
/// # Errors
/// The TLS library refuses its own suites.
pub fn mesh_client_config(
    store: &Arc<CertificateStore>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, KeyError> {
    let provider = mesh_provider();
    let verifier = Arc::new(PeerVerifier::new(
        Arc::clone(store.trust()),
        Arc::clone(&provider),
    ));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::clone(store) as _);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    // As above.
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// The control plane's accepting side (15012): its own certificate, and a client certificate if the caller has one.
/// Callers without prove themselves by token. TLS 1.2 is spoken too, for foreign clients; ALPN is `h2`.
///
/// # Errors
/// A root cannot be used.
pub fn control_server_config(
    certificate: CertifiedKey,
    roots: &[CertificateDer<'static>],
) -> Result<Arc<ServerConfig>, KeyError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut anchors = RootCertStore::empty();
    for root in roots {
        anchors.add(root.clone()).map_err(failed)?;
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(failed)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(failed)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certificate)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    forbid_resumption(&mut config);
    Ok(Arc::new(config))
}

/// Identity of the other end of a finished mesh handshake.
///
/// # Errors
/// There is no certificate, or it names no workload (neither happens on our mesh configurations).
pub fn peer_identity(connection: &CommonState) -> Result<Identity, PeerError> {
    let chain = connection.peer_certificates().unwrap_or_default();
    identity_of(chain.first().ok_or(PeerError::NoCertificate)?)
}

/// Checks that `peer` is one of the expected identities. An empty list accepts no peer.
///
/// # Errors
/// The peer has another identity.
pub fn verify_expected(peer: &Identity, expected: &[Identity]) -> Result<(), PeerError> {
    if expected.contains(peer) {
        return Ok(());
    }
    const SHOWN: usize = 3; // an error line is for people
    let mut wanted: Vec<String> = expected
        .iter()
        .take(SHOWN)
        .map(Identity::to_string)
        .collect();
    match expected.len() {
        0 => wanted.push("nobody".to_owned()),
        all if all > SHOWN => wanted.push(format!("{} more", all - SHOWN)),
        _ => {}
    }
    Err(PeerError::Unexpected {
        found: peer.clone(),
        wanted: wanted.join(" or "),
    })
}
