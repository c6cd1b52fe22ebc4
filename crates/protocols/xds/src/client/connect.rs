//! Connects the client to the control plane and proves its identity: TLS verified against the mesh's root, and a token or
//! certificate read anew for each connection. So rotation needs nothing but a rewritten file.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tonic::codegen::http::Uri;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use voile_model::with_causes;
use voile_proto::discovery::Node;

use super::attempts::ConnectAttempts;
use super::replicas::ControlPlaneReplica;

/// TCP and TLS together; a control plane slower than this is as good as gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same while there is somebody else to try.
const IMPATIENT_TIMEOUT: Duration = Duration::from_secs(3);
/// Ways that are looked at, of all control planes together: a name that stands for more is read to here.
const MAX_WAYS: usize = 256;
/// Largest token file: Kubernetes' tokens are about 1 KB.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// Addresses of the control planes, and the root that verifies them.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `https://host:port` of each; `http://` only for a plaintext control plane on this machine. They are equals, and so is
    /// every address that a name stands for: one is asked, by chance, and another when it fails.
    pub addresses: Vec<String>,
    /// PEM file of the roots that the control plane's certificate is verified against; needed for `https`.
    pub root_certificate: Option<PathBuf>,
    /// Our own node description (trusted by no server; for the control plane's status page).
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

/// Source of credentials; read before each connection. May block briefly (a small file).
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
        /// The error.
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
        /// Error text of the connection.
        reason: String,
    },
    /// The stream was refused or broke.
    #[error("control plane {address}: {status}")]
    Stream {
        /// The control plane.
        address: String,
        /// Status text of the control plane.
        status: String,
    },
}

/// Every way to a control plane there is now. A name that stands for nothing is a way all the same: trying it says why.
pub(super) async fn ways(addresses: &[String]) -> Vec<ControlPlaneReplica> {
    let mut ways = Vec::new();
    for address in addresses {
        let resolved = match place(address) {
            Some((host, port)) => lookup(&host, port).await,
            None => Vec::new(),
        };
        let way = |resolved: Option<SocketAddr>| ControlPlaneReplica {
            address: address.clone(),
            resolved,
        };
        match resolved.is_empty() {
            true => ways.push(way(None)),
            false => ways.extend(resolved.into_iter().map(|one| way(Some(one)))),
        }
    }
    ways.truncate(MAX_WAYS);
    ways
}

/// The name and port of an address; none where it is no name.
fn place(address: &str) -> Option<(String, u16)> {
    let place = host_and_port(&address.parse().ok()?)?;
    place.0.parse::<IpAddr>().is_err().then_some(place)
}

/// The host and port of an address.
pub(super) fn host_and_port(uri: &Uri) -> Option<(String, u16)> {
    let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    });
    Some((bare(uri.host()?).to_owned(), port))
}

/// A host without the brackets that a URI has about an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

async fn lookup(host: &str, port: u16) -> Vec<SocketAddr> {
    let found = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((host, port))).await;
    let mut found: Vec<SocketAddr> = match found {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    found.sort_unstable();
    found.dedup();
    found
}

/// An open connection.
pub(super) struct Connected {
    pub(super) channel: Channel,
    /// Metadata to send along with a call.
    pub(super) bearer: Option<MetadataValue<tonic::metadata::Ascii>>,
    /// Whose address answered: the one that was drawn, or another of the same name.
    pub(super) way: ControlPlaneReplica,
}

/// Opens a connection to `way`, or to another of `ways` with its name if that answers first. Less patience is had where there
/// are `others` to try.
pub(super) async fn connect(
    config: &ClientConfig,
    way: &ControlPlaneReplica,
    ways: &[ControlPlaneReplica],
    others: bool,
    credentials: &Arc<dyn CredentialSource>,
) -> Result<Connected, ClientError> {
    let setup = |reason: String| ClientError::Setup {
        address: way.address.clone(),
        reason,
    };
    let timeout = match others {
        true => IMPATIENT_TIMEOUT,
        false => CONNECT_TIMEOUT,
    };
    let credential = credentials
        .credential()
        .map_err(|error| setup(format!("no credential: {error}")))?;
    let written: Uri = way
        .address
        .parse()
        .map_err(|error| setup(format!("{error}")))?;
    let mut endpoint = Endpoint::from_shared(way.address.clone())
        .map_err(|error| setup(error.to_string()))?
        .connect_timeout(timeout);
    let encrypted = endpoint.uri().scheme_str() == Some("https");
    if encrypted {
        let host = written.host().map(bare).unwrap_or_default();
        let tls = tls(config, host, &credential).map_err(setup)?;
        endpoint = endpoint
            .tls_config(tls)
            .map_err(|error| setup(with_causes(&error)))?;
    }
    let bearer = match &credential {
        // A token in clear text belongs to whoever listens.
        Credential::Token(_) if !encrypted && !loopback(&written) => {
            return Err(setup("tokens are sent over https only".to_owned()));
        }
        Credential::Token(token) => {
            let mut value = MetadataValue::try_from(format!("Bearer {token}")).map_err(|_| {
                setup("the token has characters that are invalid in a header".to_owned())
            })?;
            value.set_sensitive(true);
            Some(value)
        }
        Credential::Certificate { .. } | Credential::Anonymous => None,
    };
    let answered = Arc::new(OnceLock::new());
    let attempts = ConnectAttempts {
        addresses: way.addresses(ways),
        answered: Arc::clone(&answered),
    };
    let connecting = endpoint
        .connect_with_connector(tower::service_fn(move |uri| attempts.clone().connect(uri)));
    let connected = tokio::time::timeout(timeout, connecting).await;
    let failed = |reason: String| ClientError::Connect {
        address: way.to_string(),
        reason,
    };
    match connected {
        Ok(Ok(channel)) => Ok(Connected {
            channel,
            bearer,
            way: ControlPlaneReplica {
                resolved: way.resolved.and(answered.get().copied()),
                ..way.clone()
            },
        }),
        Ok(Err(error)) => Err(failed(with_causes(&error))),
        Err(_) => Err(failed(format!("no answer in {timeout:?}"))),
    }
}

fn loopback(uri: &Uri) -> bool {
    uri.host().is_some_and(|host| {
        host == "localhost"
            || bare(host)
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}

fn tls(
    config: &ClientConfig,
    host: &str,
    credential: &Credential,
) -> Result<ClientTlsConfig, String> {
    let path = config
        .root_certificate
        .as_ref()
        .ok_or("https needs the mesh's root certificate")?;
    let root = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(root))
        .domain_name(host);
    if let Credential::Certificate { chain_pem, key_pem } = credential {
        tls = tls.identity(Identity::from_pem(chain_pem, key_pem));
    }
    Ok(tls)
}
