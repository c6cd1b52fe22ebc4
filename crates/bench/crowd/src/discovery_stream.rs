//! The discovery stream of one simulated proxy: gRPC by HTTP/2 over TLS on a connection of its own, as real as any, but read, heard,
//! answered and written in one turn of one task. Thousands of proxies share two cores with the control plane that they measure: what
//! they waste is charged to it as lateness.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use prost::Message;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use voile_http2::{Config, Connection, Fields, Link, Pool, RecvStream, ResponseFuture, SendStream};
use voile_proto::discovery::DeltaDiscoveryRequest;

const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// TCP and TLS together, as a proxy waits for them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Room to read into, in bytes: one TLS record.
const ROOM: usize = 16 * 1024;
/// gRPC's head of a message, in bytes.
const HEAD_BYTES: usize = 5;
/// Largest response that is taken, in bytes: many times what ten services come to.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

const LIMITS: Config = Config {
    stream_window: 1024 * 1024,
    connection_window: 1024 * 1024,
    max_header_list: 16 * 1024,
    max_continuations: 4,
    // The control plane opens no streams to us.
    max_peer_streams: 0,
    initial_streams: 1,
    max_remembered_resets: 1,
    max_unseen_resets: 1,
    max_provoked_resets: 1,
    forgiving_streams: 1,
    max_unsent: 1024 * 1024,
    max_empty_frames: 100,
    max_interim: 1,
    max_heads: 64 * 1024,
    max_window_changes: 100,
};

/// TLS and buffers that the proxies of a crowd share.
pub(crate) struct CrowdState {
    tls: TlsConnector,
    pool: Pool,
    room: RefCell<Box<[u8]>>,
}

impl CrowdState {
    /// For control planes that these roots (PEM) vouch for.
    pub(crate) fn new(root_pem: &str) -> Result<Rc<Self>, String> {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(root_pem.as_bytes()) {
            let root = root.map_err(|e| format!("the root certificate: {e}"))?;
            roots
                .add(root)
                .map_err(|e| format!("the root certificate: {e}"))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|e| e.to_string())?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Each proxy is a machine of its own.
        config.resumption = Resumption::disabled();
        Ok(Rc::new(Self {
            tls: TlsConnector::from(Arc::new(config)),
            pool: Pool::new(),
            room: RefCell::new(vec![0; ROOM].into()),
        }))
    }
}

/// An open stream.
pub(crate) struct Wire {
    shared: Rc<CrowdState>,
    stream: TlsStream<TcpStream>,
    link: Link,
    say: SendStream,
    /// Until the head of the answer has come.
    answer: Option<ResponseFuture>,
    heard: Option<RecvStream>,
    /// The beginning of a message.
    partial: Vec<u8>,
    unflushed: bool,
}

impl Wire {
    /// Opens one to `https://host:port`.
    pub(crate) async fn open(
        shared: &Rc<CrowdState>,
        control: &str,
        token: &str,
    ) -> Result<Self, String> {
        let authority = control.strip_prefix("https://");
        let authority = authority.ok_or_else(|| format!("{control}: not https://HOST:PORT"))?;
        let (host, _) = authority
            .rsplit_once(':')
            .ok_or_else(|| format!("{control}: no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        let connecting = async {
            let stream = TcpStream::connect(authority).await?;
            stream.set_nodelay(true)?;
            shared.tls.connect(name, stream).await
        };
        let stream = timeout(CONNECT_TIMEOUT, connecting).await;
        let stream = stream.map_err(|_| "no answer in time".to_owned())?;
        let stream = stream.map_err(|e| e.to_string())?;
        let link = Link::new(Connection::client(&LIMITS, shared.pool.clone()));
        let mut head = Fields::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", authority),
            (":path", METHOD),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("authorization", &format!("Bearer {token}")),
        ] {
            head.push(name, value.as_bytes());
        }
        let begun = link.send_request(head, false);
        let (answer, say) = begun.ok_or("the connection accepts no stream")?;
        Ok(Self {
            shared: shared.clone(),
            stream,
            link,
            say,
            answer: Some(answer),
            heard: None,
            partial: Vec::new(),
            unflushed: false,
        })
    }

    /// Says a request.
    pub(crate) fn send(&mut self, request: &DeltaDiscoveryRequest) -> Result<(), String> {
        let length = request.encoded_len();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + length);
        bytes.push(0);
        let head = u32::try_from(length).map_err(|_| "the request is too large")?;
        bytes.extend_from_slice(&head.to_be_bytes());
        // Its own length is enough room for it.
        let _ = request.encode(&mut bytes);
        let sent = self.say.send_copy(&bytes, false);
        sent.map_err(|failure| format!("the stream failed: {failure:?}"))
    }

    /// Gives what comes to `take`, message by message, and says what that answers; until the stream ends, and why.
    pub(crate) async fn follow(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<Vec<DeltaDiscoveryRequest>, String>,
    ) -> String {
        let ended = poll_fn(|context| self.poll(context, &mut take)).await;
        match ended {
            Err(why) => why,
            Ok(never) => match never {},
        }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        take: &mut impl FnMut(&[u8]) -> Result<Vec<DeltaDiscoveryRequest>, String>,
    ) -> Poll<Result<Infallible, String>> {
        loop {
            let more = self.read(context)?;
            self.hear(take)?;
            if let Err(error) = ready!(self.write(context)) {
                return Poll::Ready(Err(error.to_string()));
            }
            if self.link.borrow().is_over() {
                return Poll::Ready(Err("the connection ended".to_owned()));
            }
            if !more {
                return Poll::Pending;
            }
        }
    }

    /// Reads once; whether something came.
    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        let mut room = self.shared.room.borrow_mut();
        let mut buffer = ReadBuf::new(&mut room[..]);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error.to_string()),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                Err("the control plane closed the connection".to_owned())
            }
            Poll::Ready(Ok(())) => {
                self.link.borrow().receive(buffer.filled());
                Ok(true)
            }
        }
    }

    /// Processes received frames. The stream needs no wake-up: data arrives by `read`.
    fn hear(
        &mut self,
        take: &mut impl FnMut(&[u8]) -> Result<Vec<DeltaDiscoveryRequest>, String>,
    ) -> Result<(), String> {
        let mut nobody = Context::from_waker(Waker::noop());
        if let Some(mut answer) = self.answer.take() {
            match answer.poll_head(&mut nobody) {
                Poll::Pending => {
                    self.answer = Some(answer);
                    return Ok(());
                }
                Poll::Ready(Err(failure)) => return Err(format!("no answer: {failure:?}")),
                Poll::Ready(Ok(head)) => {
                    refused(&head)?;
                    self.heard = Some(answer.into_body());
                }
            }
        }
        let Some(heard) = &mut self.heard else {
            return Ok(());
        };
        while let Poll::Ready(next) = heard.poll_data(&mut nobody) {
            let bytes = match next {
                Some(Ok(bytes)) => bytes,
                Some(Err(failure)) => return Err(format!("the stream failed: {failure:?}")),
                None => {
                    if let Poll::Ready(Ok(Some(trailers))) = heard.poll_trailers(&mut nobody) {
                        refused(&trailers)?;
                    }
                    return Err("the control plane ended the stream".to_owned());
                }
            };
            heard.release_capacity(bytes.len());
            self.partial.extend_from_slice(&bytes);
        }
        self.messages(take)
    }

    fn messages(
        &mut self,
        take: &mut impl FnMut(&[u8]) -> Result<Vec<DeltaDiscoveryRequest>, String>,
    ) -> Result<(), String> {
        let all = std::mem::take(&mut self.partial);
        let mut rest = &all[..];
        while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
            let [_, length @ ..] = *head;
            let length = u32::from_be_bytes(length) as usize;
            if length > MAX_RESPONSE_BYTES {
                return Err(format!("the response has {length} bytes, too many"));
            }
            let Some((message, after)) = after.split_at_checked(length) else {
                break;
            };
            for request in take(message)? {
                self.send(&request)?;
            }
            rest = after;
        }
        self.partial = rest.to_vec();
        Ok(())
    }

    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut connection = self.link.borrow();
            connection.replenish();
            if connection.output().is_empty() {
                break;
            }
            let stream = Pin::new(&mut self.stream);
            let written = ready!(stream.poll_write(context, connection.output()))?;
            connection.wrote(written);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the gRPC error in a head or trailers, if there is one.
fn refused(fields: &Fields) -> Result<(), String> {
    let text = |name| fields.get(name).map(String::from_utf8_lossy);
    match text("grpc-status") {
        None => Ok(()),
        Some(status) => {
            let message = text("grpc-message").unwrap_or_default();
            Err(format!("gRPC status {status}: {message}"))
        }
    }
}
