//! A pod of this node: its network, identity and keys. Each identity has a store of its own, so that no connection
//! can be made with another's; pods of one identity share it.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ServerConfig};
use tokio::net::TcpStream;
use tokio::sync::watch;
use voile_host::netns::Namespace;
use voile_identity::{
    CertificateStore, Identity, KeyError, WorkloadCertificate, mesh_client_config,
    mesh_server_config,
};
use voile_transport::{
    CONNECT_TIMEOUT, ConnectError, KeepAlive, OUTWARD_MARK, Origin, alpn, open, prepare,
};

/// Time that a connection waits for its pod's first certificate.
pub(crate) const CERTIFICATE_PATIENCE: Duration = Duration::from_secs(10);

/// A peer that is gone without a word is noticed by the kernel after some four minutes: nothing here cuts a tunnel for being
/// quiet, since databases keep theirs for days.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    probes: Some(4),
    time: Some(Duration::from_mins(3)),
    interval: Some(Duration::from_secs(15)),
};

/// Unused addresses (RFC 5737, RFC 3849). Choosing a route to them shows the pod's own address.
const NOWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// State of a pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodLife {
    /// It is served.
    Served,
    /// It takes nothing new; open connections may end by themselves.
    Leaving,
    /// The proxy cuts connections that are still open.
    Gone,
}

/// One identity's keys, for every pod that has it.
#[derive(Debug)]
pub(crate) struct IdentityKeys {
    pub(crate) identity: Identity,
    pub(crate) store: Arc<CertificateStore>,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) news: watch::Receiver<Option<Arc<WorkloadCertificate>>>,
    /// Dropped with the last pod, which ends the renewal.
    pub(crate) _renewal: Renewal,
}

/// Ends a task when it is dropped.
#[derive(Debug)]
pub(crate) struct Renewal(pub(crate) tokio::task::AbortHandle);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl IdentityKeys {
    /// TLS of both sides with this store's certificate.
    pub(crate) fn tls(
        store: &Arc<CertificateStore>,
    ) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), KeyError> {
        let protocols = [alpn::PLAIN_HTTP2];
        Ok((
            mesh_server_config(store, &protocols)?,
            mesh_client_config(store, &protocols)?,
        ))
    }

    /// Waits for a certificate; when none came, why.
    pub(crate) async fn certified(&self) -> Result<(), String> {
        if self.store.current().is_some() {
            return Ok(());
        }
        let mut news = self.news.clone();
        let certified = news.wait_for(Option::is_some);
        match tokio::time::timeout(CERTIFICATE_PATIENCE, certified).await {
            Ok(Ok(_)) => Ok(()),
            _ => {
                let why = self.store.trouble().unwrap_or_default();
                Err(format!("{} has no certificate: {why}", self.identity))
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pod {
    /// The agent's name for it.
    pub(crate) uid: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) inside: Namespace,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) badge: Arc<IdentityKeys>,
    pub(crate) life: watch::Sender<PodLife>,
    /// True if its applications are called from their clients' own addresses.
    pub(crate) keeps_source: bool,
    /// Ports of the proxy's own pages, for its own pod: tunnels may reach nothing else in its network.
    pub(crate) pages: Option<Box<[u16]>>,
}

impl Pod {
    /// Connects from inside the pod, as `source` says, under the mark that rules leave alone.
    pub(crate) async fn connect(
        &self,
        to: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<TcpStream, ConnectError> {
        let origin = Origin {
            source,
            mark: Some(OUTWARD_MARK),
            foreign: source.is_some(),
        };
        let inside = self.inside.within(|| prepare(to, origin));
        let failed = |error| ConnectError::Failed { address: to, error };
        let stream = open(inside.map_err(failed)??, to, CONNECT_TIMEOUT).await?;
        keep_alive(&stream);
        Ok(stream)
    }

    /// Returns true if a tunnel may lead to this port.
    pub(crate) fn opens(&self, port: u16) -> bool {
        let pages = self.pages.as_ref();
        pages.is_none_or(|pages| pages.contains(&port))
    }

    /// Returns true for one of the pod's own addresses.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Resolves when the pod is at least so far.
    pub(crate) async fn is_at(&self, life: PodLife) {
        // The sender lives as long as we do.
        let _ = self.life.subscribe().wait_for(|now| *now >= life).await;
    }
}

/// Has the kernel notice peers that are gone.
pub(crate) fn keep_alive(stream: &TcpStream) {
    if let Err(error) = KEEP_ALIVE.set(stream) {
        tracing::debug!(%error, "cannot enable TCP keep-alive");
    }
}

/// The addresses of a pod: those from which it would call the world.
pub(crate) fn addresses(inside: &Namespace) -> io::Result<Vec<IpAddr>> {
    inside.within(|| {
        let of = |nowhere: &&str| -> Option<IpAddr> {
            let to: SocketAddr = nowhere.parse().ok()?;
            let any: SocketAddr = match to.is_ipv4() {
                true => ([0; 4], 0).into(),
                false => ([0; 16], 0).into(),
            };
            // Nothing is sent: the kernel only chooses.
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(to).ok()?;
            Some(socket.local_addr().ok()?.ip())
        };
        NOWHERE.iter().filter_map(of).collect()
    })
}
