//! One question to a key server: GET, over TLS where the URL says so, with redirects followed as far as they may lead. A
//! server that is slow, drips, sends without end or leads in circles ends at a bound; nothing of an answer but a key set is
//! ever shown to anybody.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use voile_model::mesh::AddressRange;

use super::key_set_url::{KeySetUrl, forbidden};

/// The largest document taken, in bytes: no larger key set is read.
const MAX_DOCUMENT_BYTES: usize = voile_policy::tokens::MAX_KEY_SET_BYTES;
/// The largest head of an answer, in bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Redirects followed for one document.
const MAX_REDIRECTS: usize = 5;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;

/// Settings of requests to key servers outside the mesh.
#[derive(Debug, Clone, Default)]
pub(super) struct FetchContext {
    /// Ranges that nobody is asked at, besides those that never are.
    pub(super) blocked: Vec<AddressRange>,
    /// Allows addresses of this machine.
    pub(super) loopback: bool,
    /// Authorities believed besides the system's, as PEM.
    pub(super) authorities: Option<PathBuf>,
}

/// A document and what the server called it.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) text: String,
    pub(super) content_type: String,
}

/// Gets a document within a time, redirects included.
pub(super) async fn get(
    outside: &FetchContext,
    url: &str,
    limit: Duration,
) -> Result<Document, String> {
    let place = KeySetUrl::parse(url)?;
    match tokio::time::timeout(limit, follow(outside, place)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no complete answer within {limit:?}")),
    }
}

enum KeySetResponse {
    Document(Document),
    Elsewhere(String),
}

async fn follow(outside: &FetchContext, mut place: KeySetUrl) -> Result<Document, String> {
    for _ in 0..=MAX_REDIRECTS {
        match ask(outside, &place).await? {
            KeySetResponse::Document(document) => return Ok(document),
            KeySetResponse::Elsewhere(location) => {
                place = place
                    .redirected(&location)
                    .map_err(|why| format!("redirect not followed: {why}"))?;
            }
        }
    }
    Err(format!("more than {MAX_REDIRECTS} redirects"))
}

async fn ask(outside: &FetchContext, place: &KeySetUrl) -> Result<KeySetResponse, String> {
    let stream = connect(outside, place).await?;
    if !place.tls {
        return exchange(stream, place).await;
    }
    let authorities = outside.authorities.clone();
    let config = tokio::task::spawn_blocking(move || config(authorities))
        .await
        .map_err(|error| error.to_string())??;
    let name = ServerName::try_from(place.host.clone())
        .map_err(|_| "its host is not a name that a certificate can have".to_owned())?;
    let stream = TlsConnector::from(config).connect(name, stream).await;
    let stream = stream.map_err(|error| format!("TLS: {error}"))?;
    exchange(stream, place).await
}

/// Connects to the first address that answers. The connection uses the very addresses that were looked up and checked. So a
/// name cannot mean one address for the check and another for the call.
async fn connect(outside: &FetchContext, place: &KeySetUrl) -> Result<TcpStream, String> {
    let addresses: Vec<SocketAddr> = match place.host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, place.port)],
        Err(_) => tokio::net::lookup_host((place.host.as_str(), place.port))
            .await
            .map_err(|error| format!("cannot resolve {}: {error}", place.host))?
            .collect(),
    };
    let mut last = format!("{} has no address", place.host);
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        if let Some(why) = forbidden(address.ip(), outside) {
            last = format!("{} is not called: {why}", address.ip());
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = format!("cannot connect to {address}: {error}"),
        }
    }
    Err(last)
}

/// Made anew for each question: it is rare, an authority that was added is believed at once, and between questions the
/// system's hundred and more authorities take no memory.
fn config(authorities: Option<PathBuf>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    // System certificates that cannot be read are skipped: they are no reason to refuse the rest.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authorities {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let own = CertificateDer::pem_file_iter(&path).map_err(|error| wrong(&error))?;
        for certificate in own {
            let certificate = certificate.map_err(|error| wrong(&error))?;
            roots.add(certificate).map_err(|error| wrong(&error))?;
        }
    }
    if roots.is_empty() {
        return Err("this machine has no certificate authorities".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Ends the connection's task with the question.
struct Driver(tokio::task::JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn exchange<S>(stream: S, place: &KeySetUrl) -> Result<KeySetResponse, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |error: hyper::Error| said(&error);
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let _driver = Driver(tokio::spawn(async move {
        // The task that waits for the answer learns of the error that ended the connection.
        let _ = connection.await;
    }));
    let request = Request::get(&place.target)
        .header(header::HOST, place.authority())
        .header(header::ACCEPT, "application/json")
        .header(
            header::USER_AGENT,
            concat!("voile/", env!("CARGO_PKG_VERSION")),
        )
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let field = |name| {
        let value = response.headers().get(name);
        value
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    match response.status() {
        StatusCode::OK => {
            let content_type = field(header::CONTENT_TYPE);
            let text = body(response.into_body()).await?;
            Ok(KeySetResponse::Document(Document { text, content_type }))
        }
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => match field(header::LOCATION) {
            location if location.is_empty() => Err("a redirect without a Location".to_owned()),
            location => Ok(KeySetResponse::Elsewhere(location)),
        },
        status => Err(format!("it answered {}", status.as_u16())),
    }
}

async fn body(mut body: Incoming) -> Result<String, String> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| said(&error))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if bytes.len() + data.len() > MAX_DOCUMENT_BYTES {
            return Err(format!(
                "the document is larger than {MAX_DOCUMENT_BYTES} bytes"
            ));
        }
        bytes.extend_from_slice(data);
    }
    String::from_utf8(bytes).map_err(|_| "the document is not UTF-8".to_owned())
}

/// Text of an error, with its cause.
fn said(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) if cause.downcast_ref::<io::Error>().is_some() => format!("{error}: {cause}"),
        _ => error.to_string(),
    }
}
