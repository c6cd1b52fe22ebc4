//! Accepts connections and finishes their handshakes, on a thread of its own: no storm of them delays a push. A connection waits
//! without a cost until its first bytes are there, takes a place among newcomers for its handshake, and comes out as a newcomer or,
//! with a certificate of the mesh, as a member. Accepting never stops: the oldest of the source with most connections goes.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use voile_identity::tls::{control_server_config, peer_identity};
use voile_identity::{Authority, AuthorityStore, OwnCertificate};

use super::budget::{MEMBERS, NEWCOMERS, RESTING, WAITING};
use super::first_bytes::{ConnectionGreeting, GREETING_ROOM};
use super::newcomers::{GuardedConnection, Lane, NewcomerDeadline, RestingConnection};
use super::over;
use super::socket::Socket;
use crate::error::ControlError;
use crate::status::Status;
use voile_memory::shares::Source;

/// Names and addresses a proxy may know us by.
const SERVER_NAMES: [&str; 5] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "istiod.istio-system.svc",
    "istiod.istio-system.svc.cluster.local",
];
/// Longest time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause of accepting after a failure such as running out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that must go when there are no descriptors left.
const EVICT_AT_ONCE: usize = 16;

/// A connection after its TLS handshake. Boxed, because a task that owns a connection is moved several times and keeps room for
/// each move.
pub(super) type OverTls = GuardedConnection<Box<TlsStream<Socket>>>;

/// The certificate that this server shows.
pub(super) struct OwnTls {
    /// Names besides [`SERVER_NAMES`]: those that were asked for, and the address that we listen on.
    further: Vec<String>,
    own: OwnCertificate<Arc<ServerConfig>>,
}

impl OwnTls {
    pub(super) fn new(
        authority: AuthorityStore,
        names: &[String],
        listen: IpAddr,
    ) -> Result<Self, ControlError> {
        let address = (!listen.is_unspecified()).then(|| listen.to_string());
        let further = names.iter().cloned().chain(address);
        let further: Vec<String> = further
            .filter(|name| !SERVER_NAMES.contains(&&**name))
            .collect();
        let own = OwnCertificate::new(authority, |issuer| issue(issuer, &further))?;
        Ok(Self { further, own })
    }

    fn acceptor(&mut self) -> TlsAcceptor {
        let config = self.own.current(|issuer| issue(issuer, &self.further));
        TlsAcceptor::from(Arc::clone(config))
    }
}

fn issue(authority: &Authority, further: &[String]) -> Result<Arc<ServerConfig>, ControlError> {
    let further = further.iter().map(String::as_str);
    let names: Vec<&str> = SERVER_NAMES.into_iter().chain(further).collect();
    let failed = |error: &dyn std::fmt::Display| ControlError::Setup(format!("TLS: {error}"));
    let certificate = authority
        .issue_server(&names, SystemTime::now())
        .map_err(|error| failed(&error))?;
    control_server_config(certificate.certified, authority.roots()).map_err(|error| failed(&error))
}

/// The listeners, and the state that they need.
pub(super) struct ListeningPorts {
    /// Over TLS, and in plaintext.
    pub(super) listeners: (std::net::TcpListener, Option<std::net::TcpListener>),
    pub(super) own: OwnTls,
    pub(super) status: Arc<Status>,
    /// Becomes true when all of it is to end.
    pub(super) ended: watch::Receiver<bool>,
}

/// The running thread, and what has finished its handshake.
pub(super) struct AcceptThread {
    pub(super) thread: std::thread::JoinHandle<()>,
    pub(super) tls: mpsc::Receiver<OverTls>,
    pub(super) plaintext: mpsc::Receiver<GuardedConnection<Socket>>,
}

/// State that the tasks of the thread share. Both ports share the same lanes: it is one budget.
struct AcceptLanes {
    waiting: Lane,
    newcomers: Lane,
    members: Lane,
    /// Of proven callers.
    resting: Lane,
    /// To look at first bytes in.
    room: RefCell<Vec<u8>>,
    own: RefCell<OwnTls>,
    status: Arc<Status>,
}

/// Accepts until it is to end.
pub(super) fn start(listening: ListeningPorts) -> Result<AcceptThread, ControlError> {
    let failed = |error: io::Error| ControlError::Setup(format!("accepting: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let (to_tls, tls) = mpsc::channel(1);
    let (to_plaintext, plaintext) = mpsc::channel(1);
    let thread = std::thread::Builder::new()
        .name("accepting".to_owned())
        .spawn(move || {
            let accepting = accept(listening, to_tls, to_plaintext);
            LocalSet::new().block_on(&runtime, accepting);
        })
        .map_err(failed)?;
    Ok(AcceptThread {
        thread,
        tls,
        plaintext,
    })
}

async fn accept(
    listening: ListeningPorts,
    to_tls: mpsc::Sender<OverTls>,
    to_plaintext: mpsc::Sender<GuardedConnection<Socket>>,
) {
    let entry = Rc::new(AcceptLanes {
        waiting: Lane::new(&WAITING),
        newcomers: Lane::new(&NEWCOMERS),
        members: Lane::new(&MEMBERS),
        resting: Lane::new(&RESTING),
        room: RefCell::new(vec![0; GREETING_ROOM]),
        own: RefCell::new(listening.own),
        status: listening.status,
    });
    let (over_tls, in_plaintext) = listening.listeners;
    let accepting = async {
        let tls = over_tls_until_dropped(&entry, over_tls, to_tls);
        let plaintext = in_plaintext_until_dropped(&entry, in_plaintext, to_plaintext);
        tokio::join!(tls, plaintext, entry.newcomers.keep(), entry.members.keep());
    };
    tokio::select! {
        () = accepting => {}
        () = over(listening.ended) => {}
    }
}

async fn over_tls_until_dropped(
    entry: &Rc<AcceptLanes>,
    listener: std::net::TcpListener,
    accepted: mpsc::Sender<OverTls>,
) {
    let Some(listener) = listener_of(listener) else {
        return;
    };
    loop {
        let (stream, from) = entry.next(&listener).await;
        let (entry, accepted) = (entry.clone(), accepted.clone());
        spawn_local(async move {
            if let Some(stream) = entry.tls(stream, from).await {
                // The server ended in between; so does the connection.
                let _ = accepted.send(stream).await;
            }
        });
    }
}

async fn in_plaintext_until_dropped(
    entry: &Rc<AcceptLanes>,
    listener: Option<std::net::TcpListener>,
    accepted: mpsc::Sender<GuardedConnection<Socket>>,
) {
    let Some(listener) = listener.and_then(listener_of) else {
        return;
    };
    loop {
        let (stream, from) = entry.next(&listener).await;
        let (entry, accepted) = (entry.clone(), accepted.clone());
        spawn_local(async move {
            if let Some((stream, probation)) =
                entry.greeted(ConnectionGreeting::Http2, stream, from).await
            {
                let mut socket = Socket::from(stream);
                if socket.detach().is_ok() {
                    let resting = entry.resting(from.ip().into());
                    let _ = accepted
                        .send(GuardedConnection::new(socket, probation, resting))
                        .await;
                }
            }
        });
    }
}

fn listener_of(listener: std::net::TcpListener) -> Option<TcpListener> {
    let listener = TcpListener::from_std(listener);
    listener
        .inspect_err(|error| tracing::error!(%error, "cannot listen; no connection is accepted"))
        .ok()
}

impl AcceptLanes {
    async fn next(&self, listener: &TcpListener) -> (TcpStream, SocketAddr) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let _ = stream.set_nodelay(true);
                    return (stream, from);
                }
                Err(error) => {
                    let evicted = (0..EVICT_AT_ONCE).filter(|_| self.waiting.evict_one());
                    let evicted = evicted.count();
                    tracing::warn!(%error, evicted, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// A connection whose first bytes are there, with a place among newcomers.
    async fn greeted(
        &self,
        greeting: ConnectionGreeting,
        stream: TcpStream,
        from: SocketAddr,
    ) -> Option<(TcpStream, NewcomerDeadline)> {
        let source = Source::from(from.ip());
        let waits = self.waiting.place_now(source.clone());
        let place = async {
            greeting.arrives(&stream, &self.room).await?;
            let place = self.newcomers.place(source).await;
            place.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))
        };
        let reason = tokio::select! {
            place = place => match place {
                Ok(place) => return Some((stream, place)),
                Err(error) => error.to_string(),
            },
            reason = waits => reason.to_owned(),
        };
        self.refused(from, &reason);
        None
    }

    /// A connection that has finished its handshake, as a newcomer or a member.
    async fn tls(&self, stream: TcpStream, from: SocketAddr) -> Option<OverTls> {
        let (stream, mut probation) = self.greeted(ConnectionGreeting::Tls, stream, from).await?;
        let acceptor = self.own.borrow_mut().acceptor();
        let accepting = acceptor.accept(Socket::from(stream));
        let accepting = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting);
        let reason = tokio::select! {
            accepted = accepting => match accepted {
                Ok(Ok(stream)) => return self.finished(Box::new(stream), from, probation).await,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("TLS handshake not finished within {HANDSHAKE_TIMEOUT:?}"),
            },
            reason = &mut probation => reason.to_owned(),
        };
        self.refused(from, &reason);
        None
    }

    async fn finished(
        &self,
        mut stream: Box<TlsStream<Socket>>,
        from: SocketAddr,
        mut probation: NewcomerDeadline,
    ) -> Option<OverTls> {
        // A certificate that is shown at all is one of the mesh: the handshake saw to that.
        let (source, probation) = match peer_identity(stream.get_ref().1) {
            Ok(identity) => {
                let member = Source::Member(identity.to_string().into(), from.ip().to_canonical());
                tokio::select! {
                    place = self.members.place(member.clone()) => (member, place?),
                    _ = &mut probation => return None,
                }
            }
            Err(_) => (from.ip().into(), probation),
        };
        stream.get_mut().0.detach().ok()?;
        Some(GuardedConnection::new(
            stream,
            probation,
            self.resting(source),
        ))
    }

    fn resting(&self, source: Source) -> RestingConnection {
        let lane = self.resting.clone();
        RestingConnection { lane, source }
    }

    fn refused(&self, from: SocketAddr, reason: &str) {
        self.status
            .failed_handshakes
            .fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%from, reason, "no connection");
    }
}
