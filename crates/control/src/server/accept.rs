//! Accepts connections; running out of descriptors is a pause, never an end. TLS handshakes run beside each other, each
//! with a deadline and all under the bound of newcomers, so that a storm of reconnecting proxies costs a bounded amount
//! at a time and a silent peer nothing for long.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use voile_identity::authority::SERVER_TTL;
use voile_identity::{Authority, tls::control_server_config};

use super::newcomers::{Guarded, Newcomers, Probation};
use super::over;
use crate::error::ControlError;
use crate::status::Status;

/// Names and addresses a proxy may know us by.
const SERVER_NAMES: [&str; 5] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "istiod.istio-system.svc",
    "istiod.istio-system.svc.cluster.local",
];
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long accepting rests after a failure such as running out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What has finished its handshake. In a box: a task that owns a connection is moved several times, and keeps room for each.
pub(super) type OverTls = Guarded<Box<TlsStream<TcpStream>>>;

/// Our own certificate, made anew at half its life when a connection comes in: no timer, no file.
pub(super) struct OwnCertificate {
    authority: Arc<Authority>,
    /// Names besides [`SERVER_NAMES`]: those that were asked for, and the address that we listen on.
    further: Vec<String>,
    config: Arc<ServerConfig>,
    made: Instant,
}

impl OwnCertificate {
    pub(super) fn new(
        authority: Arc<Authority>,
        names: &[String],
        listen: IpAddr,
    ) -> Result<Self, ControlError> {
        let address = (!listen.is_unspecified()).then(|| listen.to_string());
        let further = names.iter().cloned().chain(address);
        let further: Vec<String> = further
            .filter(|name| !SERVER_NAMES.contains(&&**name))
            .collect();
        Ok(Self {
            config: issue(&authority, &further)?,
            authority,
            further,
            made: Instant::now(),
        })
    }

    fn acceptor(&mut self) -> TlsAcceptor {
        if self.made.elapsed() > SERVER_TTL / 2 {
            match issue(&self.authority, &self.further) {
                Ok(config) => {
                    self.config = config;
                    self.made = Instant::now();
                }
                Err(error) => tracing::error!(%error, "our own certificate cannot be renewed"),
            }
        }
        TlsAcceptor::from(self.config.clone())
    }
}

fn issue(authority: &Authority, further: &[String]) -> Result<Arc<ServerConfig>, ControlError> {
    let further = further.iter().map(String::as_str);
    let names: Vec<&str> = SERVER_NAMES.into_iter().chain(further).collect();
    let failed = |error: &dyn std::fmt::Display| ControlError::Setup(format!("TLS: {error}"));
    let certificate = authority
        .issue_server(&names, SystemTime::now())
        .map_err(|error| failed(&error))?;
    control_server_config(certificate.certified, &[authority.root().clone()])
        .map_err(|error| failed(&error))
}

/// Accepts until `ended`; what comes out has finished its handshake.
pub(super) fn tls(
    listener: TcpListener,
    mut own: OwnCertificate,
    status: Arc<Status>,
    ended: watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> mpsc::Receiver<OverTls> {
    let (accepted, incoming) = mpsc::channel(1);
    let mut newcomers = Newcomers::new();
    tasks.spawn(async move {
        let accepting = async {
            loop {
                let stream = next(&listener).await;
                let mut probation = newcomers.admit().await;
                let (accepted, status) = (accepted.clone(), status.clone());
                let acceptor = own.acceptor();
                tokio::spawn(async move {
                    let finished = handshake(acceptor, stream, &mut probation, &status).await;
                    if let Some(stream) = finished {
                        let stream = Guarded::new(Box::new(stream), probation);
                        // The server ended in between; so does the connection.
                        let _ = accepted.send(stream).await;
                    }
                });
            }
        };
        tokio::select! {
            () = accepting => {}
            () = over(ended) => {}
        }
    });
    incoming
}

/// Accepts in plaintext until `ended`.
pub(super) fn plaintext(
    listener: TcpListener,
    ended: watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> mpsc::Receiver<Guarded<TcpStream>> {
    let (accepted, incoming) = mpsc::channel(1);
    let mut newcomers = Newcomers::new();
    tasks.spawn(async move {
        let accepting = async {
            loop {
                let stream = next(&listener).await;
                let stream = Guarded::new(stream, newcomers.admit().await);
                if accepted.send(stream).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            () = over(ended) => {}
        }
    });
    incoming
}

async fn next(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    probation: &mut Probation,
    status: &Status,
) -> Option<TlsStream<TcpStream>> {
    let peer = stream.peer_addr().ok();
    let accepting = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let reason = tokio::select! {
        accepted = accepting => match accepted {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not finished in {HANDSHAKE_TIMEOUT:?}"),
        },
        reason = probation => reason.to_owned(),
    };
    status.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(?peer, reason, "no TLS");
    None
}
