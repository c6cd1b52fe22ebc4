//! Connections to an endpoint, through TLS, a tunnel or neither. The peer is verified before a byte of the application is sent.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::net::TcpStream;
use voile_identity::PeerError;
use voile_identity::revocation::keys_of;
use voile_traffic::balance::EndpointVitals;
use voile_transport::{self as transport, TLS_HANDSHAKE_TIMEOUT, TransportStream};

use super::{
    CachedSeries, ConnectionManner, EarlierEndpoints, Endpoint, InnerTraffic, Unreachable,
};
use crate::clock;
use crate::http::UNREACHED;
use crate::plan::{EndpointPlan, NamePlan, Origination, SharedPart, TrafficPlan, WorldTls};
use crate::worker::upstream::dial::{connect_to, verify};
use crate::worker::upstream::proxy_protocol::ConnectionPreamble;
use crate::worker::upstream::tunnels;
use crate::worker::{Overload, Tls, Worker, count};

impl ConnectionManner {
    /// As a plan says, or else as the settings do.
    pub(crate) fn of(worker: &Worker, plan: &TrafficPlan) -> Self {
        let usual = || worker.settings.borrow().connect_timeout;
        Self {
            timeout: plan.connect_timeout.unwrap_or_else(usual),
            keep_alive: plan.keep_alive,
            introduction: plan.introduces.map(ConnectionPreamble::of_our_own),
        }
    }
}

impl InnerTraffic {
    fn of_mesh(self, tls: &Tls) -> &Arc<ClientConfig> {
        match self {
            Self::Http => &tls.client_http,
            Self::Http2 => &tls.client_http2,
            Self::Bytes => &tls.client_tcp,
        }
    }
}

/// The same, but that the name is sent.
fn asking(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.enable_sni = true;
    Arc::new(config)
}

/// Addresses of a name that was just resolved which one connection tries; the next one finds the others.
const MAX_TRIES: usize = 3;

impl Endpoint {
    /// An endpoint for a plan: the same one if nothing changed, one with the same pool if only its standing did.
    pub(crate) fn follow(
        worker: &Worker,
        old: &EarlierEndpoints<'_>,
        plan: &EndpointPlan,
    ) -> Rc<Self> {
        let before = old.like(plan);
        if let Some(before) = before.filter(|before| before.plan == *plan) {
            return Rc::clone(before);
        }
        let key = before.map_or_else(|| worker.fresh_key(), |before| before.key);
        let shown = before.map_or_else(|| worker.shown.begin(), |before| before.shown());
        let fresh = || Rc::new(RefCell::new(EndpointVitals::new(clock::now())));
        Rc::new(Self {
            key,
            plan: plan.clone(),
            vitals: before.map_or_else(fresh, |before| Rc::clone(&before.vitals)),
            lines: before
                .map(|before| Rc::clone(&before.lines))
                .unwrap_or_default(),
            shown: RefCell::new(shown),
            http: CachedSeries::default(),
            grpc: CachedSeries::default(),
            tcp: CachedSeries::default(),
        })
    }

    /// Connects, and if it must be, speaks mutual TLS and verifies who answered.
    pub(crate) async fn connect(
        &self,
        worker: &Worker,
        inside: InnerTraffic,
        manner: ConnectionManner,
    ) -> Result<TransportStream, Unreachable> {
        let limit = manner.timeout;
        let _expected = worker.expect_connection().ok_or_else(|| {
            let why = Overload::Memory.reason();
            Unreachable::new(why, why.to_owned())
        })?;
        let origination = self.plan.origination.as_ref().map(|SharedPart(one)| &**one);
        if let Some(Origination::Unmade(why)) = origination {
            return Err(Unreachable::unmade(why));
        }
        if origination.is_some_and(Origination::is_tunnel) {
            let mut tunnel = Box::pin(tunnels::connect(worker, self, limit)).await?;
            if let Some(introduction) = manner.introduction {
                introduction.make(&mut tunnel, None).await?;
            }
            return Ok(tunnel);
        }
        let mut tcp = self.reach(worker, manner).await?;
        if let Some(introduction) = manner.introduction {
            let ends = tcp.local_addr().ok().zip(tcp.peer_addr().ok());
            introduction.make(&mut tcp, ends).await?;
        }
        if let Some(Origination::Unread) = origination {
            return Ok(TransportStream::Tcp(tcp.into()));
        }
        if let Some(Origination::World(world)) = origination {
            return Box::pin(self.shake(worker, world, inside, tcp)).await;
        }
        let Some(expected) = &self.plan.expected else {
            return Ok(TransportStream::Tcp(tcp.into()));
        };
        let (tls, name) = match origination {
            Some(Origination::Mesh(name)) => (asking(inside.of_mesh(&worker.tls)), name.clone()),
            // The name is neither sent nor compared; identities are.
            _ => (
                Arc::clone(inside.of_mesh(&worker.tls)),
                ServerName::IpAddress(self.plan.address.ip().into()),
            ),
        };
        let handshake = transport::connect_tls(tls, name, tcp.into(), TLS_HANDSHAKE_TIMEOUT);
        let stream = Box::pin(handshake).await.map_err(|error| {
            count(&worker.counters.handshake_failures_upstream);
            Unreachable::new(
                "upstream TLS error",
                format!("{}: {error}", self.plan.address),
            )
        })?;
        let verified = verify(&stream, expected);
        let Err(error) = verified.and_then(|()| self.remember(worker, &stream)) else {
            return Ok(stream);
        };
        count(&worker.counters.handshake_failures_upstream);
        // The caller does not wait until the refused peer has read the alert.
        let refusal = transport::refuse(stream, AlertDescription::AccessDenied);
        tokio::task::spawn_local(refusal);
        Err(Unreachable::new(
            "upstream identity refused",
            format!("{}: {error}", self.plan.address),
        ))
    }

    /// A connection to where it is.
    async fn reach(
        &self,
        worker: &Worker,
        manner: ConnectionManner,
    ) -> Result<TcpStream, Unreachable> {
        let limit = manner.timeout;
        let tcp = match &self.plan.name {
            Some(name) if self.plan.address.ip().is_unspecified() => {
                Box::pin(self.connect_by_name(worker, name, limit)).await?
            }
            _ => connect_to(worker, self.plan.address, limit).await?,
        };
        if let Some(keep_alive) = manner.keep_alive
            && let Err(error) = keep_alive.set(&tcp)
        {
            tracing::debug!(address = %self.plan.address, %error, "keep-alive is the kernel's own");
        }
        Ok(tcp)
    }

    /// Speaks TLS of the world's, which verifies who answered by itself.
    async fn shake(
        &self,
        worker: &Worker,
        world: &WorldTls,
        inside: InnerTraffic,
        tcp: TcpStream,
    ) -> Result<TransportStream, Unreachable> {
        let config = Arc::clone(match inside {
            InnerTraffic::Http => &world.http,
            InnerTraffic::Http2 => &world.http2,
            InnerTraffic::Bytes => &world.tcp,
        });
        let name = world.name.clone();
        let handshake = transport::connect_tls(config, name, tcp.into(), TLS_HANDSHAKE_TIMEOUT);
        handshake.await.map_err(|error| {
            count(&worker.counters.handshake_failures_upstream);
            Unreachable::unshaken(self.plan.address, &error)
        })
    }

    /// Notes the certificates of a new connection; they may have been revoked during the handshake.
    fn remember(&self, worker: &Worker, stream: &TransportStream) -> Result<(), PeerError> {
        let keys = keys_of(stream.peer_certificates());
        let belief = worker.belief.borrow();
        let lists = belief
            .as_ref()
            .and_then(|belief| belief.revocations.as_ref());
        if lists.is_some_and(|lists| keys.iter().any(|key| lists.includes(*key))) {
            return Err(PeerError::Revoked);
        }
        if self.is_cut() && !worker.stop.is_given() {
            // A cut stays in force for the old keys; from here on the endpoint is verified by new keys.
            *self.shown.borrow_mut() = worker.shown.begin();
        }
        self.shown.borrow().remember(&keys);
        Ok(())
    }

    /// The first to call a name has it resolved, and takes the first address that answers.
    async fn connect_by_name(
        &self,
        worker: &Worker,
        name: &NamePlan,
        limit: Duration,
    ) -> Result<TcpStream, Unreachable> {
        let host = &name.host;
        let resolved = match name.on_demand {
            true => worker.resolve_outside(host).await,
            false => worker.resolve(host).await,
        };
        let addresses = resolved.map_err(|why| Unreachable {
            public: "no healthy upstream",
            detail: format!("{host}: {why}"),
            nobody: true,
            details: UNREACHED,
        })?;
        let mut failure = None;
        for address in addresses.iter().take(MAX_TRIES) {
            let to = SocketAddr::new(*address, self.plan.address.port());
            match connect_to(worker, to, limit).await {
                Ok(tcp) => return Ok(tcp),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure
            .unwrap_or_else(|| Unreachable::new("no healthy upstream", format!("{host}: empty"))))
    }
}
