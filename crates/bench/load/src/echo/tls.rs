//! TLS of the echo server: a certificate from files, or a self-signed one made at start, and the authorities of client
//! certificates.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::tls::certificates;

/// TLS options of the server, from the user.
#[derive(Debug, Clone, Default)]
pub struct ServerTlsOptions {
    /// PEM files of the certificate with its chain, and of its key; without them a certificate is made that signs itself.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Names and addresses of a made certificate.
    pub names: Vec<String>,
    /// File to which the server writes a made certificate, for clients that shall trust it.
    pub write: Option<PathBuf>,
    /// PEM file of authorities; clients must show a certificate of theirs.
    pub clients: Option<PathBuf>,
}

/// A server's TLS, ready.
#[derive(Debug, Clone)]
pub struct ServerTls(pub(crate) Arc<ServerConfig>);

impl ServerTls {
    /// The same for bare bytes: the client's ALPN is ignored.
    pub(crate) fn bare(&self) -> Arc<ServerConfig> {
        let mut config = (*self.0).clone();
        config.alpn_protocols.clear();
        Arc::new(config)
    }
}

impl ServerTlsOptions {
    /// Reads or makes the certificate.
    ///
    /// # Errors
    /// Says which file is wrong and why.
    pub fn load(&self) -> Result<ServerTls, String> {
        let (chain, key) = match &self.files {
            Some((cert, key)) => {
                let read = PrivateKeyDer::from_pem_file(key);
                (
                    certificates(cert)?,
                    read.map_err(|error| format!("key {}: {error}", key.display()))?,
                )
            }
            None => self.made()?,
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates(path)?);
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| format!("{}: {error}", path.display()))?,
                )
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| format!("certificate and key: {error}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(ServerTls(Arc::new(config)))
    }

    fn made(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
        let failed = |error: rcgen::Error| format!("making a certificate: {error}");
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        for name in &self.names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into().map_err(failed)?),
            });
        }
        let certificate = params.self_signed(&key).map_err(failed)?;
        if let Some(path) = &self.write {
            write(path, &certificate.pem())?;
        }
        let key = PrivateKeyDer::try_from(key.serialize_der());
        Ok((
            vec![certificate.der().clone()],
            key.map_err(ToOwned::to_owned)?,
        ))
    }
}

fn write(path: &Path, pem: &str) -> Result<(), String> {
    std::fs::write(path, pem).map_err(|error| format!("write {}: {error}", path.display()))
}
