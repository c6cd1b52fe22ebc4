//! How the client reaches the control plane and proves who it is: TLS verified against the mesh's root, and a token or
//! certificate read anew for each connection, so that rotation needs nothing but a rewritten file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use voile_proto::discovery::Node;

/// TCP and TLS together; a control plane slower than this is as good as gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// When the kernel asks whether the other end of a quiet connection is there, so that a control plane that vanished is
/// noticed. HTTP/2 pings (ztunnel has them every 30 s) would do the same, and wake two processes each time: an idle proxy
/// must not wake. A control plane that is there and says nothing is the driver's to notice, when it asks for something.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// How long its question may stay unanswered before it asks again.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Questions unanswered after which the connection is lost.
const KEEPALIVE_RETRIES: u32 = 2;
/// Largest token file: Kubernetes' tokens are about 1 KB.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// Where the control plane is and how it is known.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `https://host:port`; `http://` only for a plaintext control plane on this machine.
    pub address: String,
    /// PEM file of the roots that the control plane's certificate is verified against; needed for `https`.
    pub root_certificate: Option<PathBuf>,
    /// Who we say we are (not trusted by anybody; for the control plane's status page).
    pub node: Node,
}

/// By what the client proves who it is, for one connection.
#[derive(Clone)]
pub enum Credential {
    /// `authorization: Bearer`.
    Token(String),
    /// A client certificate: chain and key as PEM.
    Certificate {
        /// Leaf first.
        chain_pem: String,
        /// PKCS#8.
        key_pem: String,
    },
    /// Nothing; enough for Addresses on the plaintext port.
    Anonymous,
}

/// Where credentials come from; asked before each connection. May block briefly (a small file).
pub trait CredentialSource: Send + Sync + 'static {
    /// The credential to use now.
    fn credential(&self) -> std::io::Result<Credential>;
}

/// A bearer token in a file that somebody else renews.
#[derive(Debug, Clone)]
pub struct TokenFile(pub PathBuf);

impl CredentialSource for TokenFile {
    fn credential(&self) -> std::io::Result<Credential> {
        let named = |error: std::io::Error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", self.0.display()))
        };
        let token = read_limited(&self.0, MAX_TOKEN_BYTES).map_err(named)?;
        match token.trim() {
            "" => Err(named(std::io::Error::other("the token file is empty"))),
            token => Ok(Credential::Token(token.to_owned())),
        }
    }
}

fn read_limited(path: &Path, limit: u64) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path)?
        .take(limit + 1)
        .read_to_string(&mut text)?;
    match read as u64 > limit {
        true => Err(std::io::Error::other(format!("larger than {limit} bytes"))),
        false => Ok(text),
    }
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address, root or token cannot be used; a person must change something.
    #[error("control plane {address}: {reason}")]
    Setup {
        /// The control plane.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// Nobody answers, or TLS failed.
    #[error("control plane {address}: cannot connect: {reason}")]
    Connect {
        /// The control plane.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The stream has ended because it was open for long enough, or longer than what proved us was good for.
    #[error("control plane {address}: {reason}")]
    Again {
        /// The control plane.
        address: String,
        /// What it said.
        reason: String,
    },
    /// The stream was refused or broke.
    #[error("control plane {address}: {status}")]
    Stream {
        /// The control plane.
        address: String,
        /// What it said.
        status: String,
    },
}

/// Opens a connection; the metadata to send along with it.
pub(super) async fn connect(
    config: &ClientConfig,
    credentials: &Arc<dyn CredentialSource>,
) -> Result<(Channel, Option<MetadataValue<tonic::metadata::Ascii>>), ClientError> {
    let setup = |reason: String| ClientError::Setup {
        address: config.address.clone(),
        reason,
    };
    let credential = credentials
        .credential()
        .map_err(|error| setup(format!("no credential: {error}")))?;
    let mut endpoint = Endpoint::from_shared(config.address.clone())
        .map_err(|error| setup(error.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Some(KEEPALIVE_AFTER))
        .tcp_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .tcp_keepalive_retries(Some(KEEPALIVE_RETRIES))
        .tcp_nodelay(true);
    let encrypted = endpoint.uri().scheme_str() == Some("https");
    if encrypted {
        let tls = tls(config, &credential).map_err(setup)?;
        endpoint = endpoint
            .tls_config(tls)
            .map_err(|error| setup(chain(&error)))?;
    }
    let bearer = match &credential {
        // A token in clear text belongs to whoever listens.
        Credential::Token(_) if !encrypted && !loopback(endpoint.uri()) => {
            return Err(setup("a token is sent over https only".to_owned()));
        }
        Credential::Token(token) => {
            let mut value = MetadataValue::try_from(format!("Bearer {token}"))
                .map_err(|_| setup("the token has characters no header can hold".to_owned()))?;
            value.set_sensitive(true);
            Some(value)
        }
        Credential::Certificate { .. } | Credential::Anonymous => None,
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
    let failed = |reason: String| ClientError::Connect {
        address: config.address.clone(),
        reason,
    };
    match connected {
        Ok(Ok(channel)) => Ok((channel, bearer)),
        Ok(Err(error)) => Err(failed(chain(&error))),
        Err(_) => Err(failed(format!("no answer in {CONNECT_TIMEOUT:?}"))),
    }
}

fn loopback(uri: &tonic::codegen::http::Uri) -> bool {
    uri.host().is_some_and(|host| {
        host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}

fn tls(config: &ClientConfig, credential: &Credential) -> Result<ClientTlsConfig, String> {
    let path = config
        .root_certificate
        .as_ref()
        .ok_or("https needs the mesh's root certificate")?;
    let root = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root));
    if let Credential::Certificate { chain_pem, key_pem } = credential {
        tls = tls.identity(Identity::from_pem(chain_pem, key_pem));
    }
    Ok(tls)
}

/// An error with its causes: tonic's own text ("transport error") says nothing.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
