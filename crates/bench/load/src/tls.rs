//! TLS between a wire and its socket: trusted authorities, our certificate, and the agreed parameters. Handshakes are full by
//! default, because resumed ones cost a fraction and hide the cost of a new client.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::options::{LoadProtocol, LoadTarget};

/// Files in which systems keep the authorities that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// TLS options of the user.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    /// PEM file of the authorities to trust; the system's otherwise.
    pub cacert: Option<PathBuf>,
    /// PEM file of our certificate, and the chain to its authority.
    pub cert: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
    /// Trust any certificate.
    pub insecure: bool,
    /// The name to ask for and to verify, instead of the URL's.
    pub server_name: Option<String>,
    /// Resume earlier sessions.
    pub resume: bool,
}

/// TLS configuration that every connection of a run offers.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsOptions {
    /// Reads the files and checks that they belong together.
    ///
    /// # Errors
    /// Says which file or name is wrong.
    pub fn load(&self, protocol: LoadProtocol, target: &LoadTarget) -> Result<Tls, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = if self.insecure {
            builder
                .dangerous()
                .with_custom_certificate_verifier(UnverifiedServer::by(provider))
        } else {
            builder.with_root_certificates(self.roots()?)
        };
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let chain = certificates(cert)?;
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| format!("key {}: {error}", key.display()))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| format!("cert {}: {error}", cert.display()))?
            }
            _ => return Err("a certificate needs its key, and a key its certificate".to_owned()),
        };
        config.alpn_protocols = match protocol {
            LoadProtocol::Http1 | LoadProtocol::WebSocket => vec![b"http/1.1".to_vec()],
            LoadProtocol::Http2 | LoadProtocol::Grpc => vec![b"h2".to_vec()],
            LoadProtocol::TcpRr | LoadProtocol::TcpBulk | LoadProtocol::Udp => Vec::new(),
        };
        if !self.resume {
            config.resumption = Resumption::disabled();
        }
        let name = self.server_name.as_deref().unwrap_or_else(|| target.host());
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("`{name}` is not a name that a certificate can have"))?;
        Ok(Tls {
            config: Arc::new(config),
            name,
        })
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let path = match &self.cacert {
            Some(path) => path.clone(),
            None => system_roots()
                .ok_or("no certificate authorities found on this system: use --cacert")?,
        };
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certificates(&path)?);
        if added == 0 {
            return Err(format!("{}: no authority in it", path.display()));
        }
        Ok(roots)
    }
}

fn system_roots() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = SYSTEM_ROOTS.iter().map(PathBuf::from);
    named.into_iter().chain(known).find(|path| path.is_file())
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let told = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let all = CertificateDer::pem_file_iter(path).map_err(|error| told(&error))?;
    let all: Vec<_> = all
        .collect::<Result<_, _>>()
        .map_err(|error| told(&error))?;
    if all.is_empty() {
        return Err(told(&"no certificate in it"));
    }
    Ok(all)
}

impl Tls {
    /// A new connection's end.
    pub(crate) fn connect(&self) -> Result<Box<ClientConnection>, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map(Box::new)
    }
}

/// Returns the certificate (DER) that the listener shows to a client which trusts any certificate, offers these protocols and has
/// no certificate of its own. The server may then hang up on this client; that does not matter.
///
/// # Errors
/// Nothing listens there, or no certificate is shown within the bound.
pub fn shown_certificate(
    address: SocketAddr,
    protocols: &[&str],
    bound: Duration,
) -> Result<Vec<u8>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(UnverifiedServer::by(provider))
        .with_no_client_auth();
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    config.resumption = Resumption::disabled();
    let name = ServerName::IpAddress(address.ip().into());
    let mut connection =
        ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    let told = |error: std::io::Error| format!("{address}: {error}");
    let mut stream = TcpStream::connect_timeout(&address, bound).map_err(told)?;
    stream.set_read_timeout(Some(bound)).map_err(told)?;
    stream.set_write_timeout(Some(bound)).map_err(told)?;
    let deadline = Instant::now() + bound;
    while connection.peer_certificates().is_none() && Instant::now() < deadline {
        let (read, written) = connection.complete_io(&mut stream).map_err(told)?;
        if (read, written) == (0, 0) {
            break;
        }
    }
    let shown = connection.peer_certificates().and_then(<[_]>::first);
    shown
        .map(|leaf| leaf.to_vec())
        .ok_or_else(|| format!("{address} sent no certificate"))
}

/// Version, suite, key exchange and ALPN of a connection that has shaken hands.
pub(crate) fn agreed(connection: &ClientConnection) -> String {
    let mut words = Vec::new();
    if let Some(version) = connection.protocol_version() {
        words.push(format!("{version:?}"));
    }
    if let Some(suite) = connection.negotiated_cipher_suite() {
        words.push(format!("{:?}", suite.suite()));
    }
    if let Some(group) = connection.negotiated_key_exchange_group() {
        words.push(format!("{:?}", group.name()));
    }
    if let Some(alpn) = connection.alpn_protocol() {
        words.push(String::from_utf8_lossy(alpn).into_owned());
    }
    words.join(" ")
}

/// Accepts any certificate, but only from a peer that holds its key. For measurements, and for callers that learn the peer's
/// identity by other means.
#[derive(Debug)]
pub struct UnverifiedServer(Arc<CryptoProvider>);

impl UnverifiedServer {
    /// A verifier that checks signatures by the algorithms of this provider.
    #[must_use]
    pub fn by(provider: Arc<CryptoProvider>) -> Arc<Self> {
        Arc::new(Self(provider))
    }
}

impl ServerCertVerifier for UnverifiedServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
