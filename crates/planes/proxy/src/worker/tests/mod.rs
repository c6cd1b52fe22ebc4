//! A worker without its control thread: a plan, listeners on loopback, an authority of its own. These tests check
//! certificates and events before the first byte, on real sockets.

mod connect;
pub(crate) mod cost;
mod detection;
mod hostile;
mod http2;
mod identity;
mod let_go;
mod page;
mod parked;
mod retries;
mod websockets;

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use voile_identity::{CertificateStore, mesh_client_config, mesh_server_config};
use voile_memory::SourceConnections;
use voile_telemetry::{PeerLabels, ServiceLabels};
use voile_testkit::TestAuthority;
use voile_transport::alpn;
use voile_transport::{HandshakeError, TransportStream, connect_tls};
use voile_xds::wire::{MutualTls, WireProtocol};

use super::listeners::listener_set::WorkerListeners;
use super::{ConnectionPermit, Redirected, Tls, Worker};
use crate::plan::{
    EndpointPlan, InboundPlan, ListenerId, OutboundPlan, ProxyPlan, ServicePlan, Settings,
};

/// Far more than anything here takes; a test that reaches it has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a play on one thread, with a deadline.
pub(super) fn play<F: Future<Output = ()>>(act: impl FnOnce() -> F) {
    play_for(PATIENCE, act);
}

/// The same with another deadline.
pub(super) fn play_for<F: Future<Output = ()>>(patience: Duration, act: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let _clock = crate::http::clock::start().expect("a clock");
        tokio::time::timeout(patience, act())
            .await
            .expect("the play ends");
    });
}

/// One workload's worker. `server` is also who it is as a client.
pub(super) struct Stage {
    pub(super) authority: TestAuthority,
    pub(super) worker: Rc<Worker>,
    pub(super) store: Arc<CertificateStore>,
    settings: Settings,
    /// Compiled policies.
    pub(super) authorization: std::cell::RefCell<Option<crate::authorization::Authorization>>,
    /// True if listeners made from now on send HTTP/1.1 as HTTP/2.
    pub(super) http2_upgrade: std::cell::Cell<bool>,
    /// True if the client's protocol is used upstream.
    pub(super) client_protocol: std::cell::Cell<bool>,
    /// True if connections of listeners made from now on can be closed for want of memory.
    pub(super) listed: std::cell::Cell<bool>,
}

impl Stage {
    pub(super) fn new(settings: Settings) -> Self {
        Self::heard(settings, mpsc::unbounded_channel().0)
    }

    /// Creates a stage whose worker sends its messages to `control`.
    pub(super) fn heard(
        settings: Settings,
        control: mpsc::UnboundedSender<super::FromWorker>,
    ) -> Self {
        let authority = TestAuthority::new();
        let store = authority.store("shop", "server");
        let worker = Worker::new(
            tls(&store),
            control,
            Arc::default(),
            Redirected {
                ports: Vec::new(),
                exemption: None,
                keeps_source: false,
            },
            super::WorkerAccount::default(),
        );
        Self {
            authority,
            worker,
            store,
            settings,
            authorization: std::cell::RefCell::default(),
            http2_upgrade: std::cell::Cell::new(false),
            client_protocol: std::cell::Cell::new(false),
            listed: std::cell::Cell::new(false),
        }
    }

    fn plan(&self) -> ProxyPlan {
        ProxyPlan {
            rate_limits: None,
            limiters: Vec::new(),
            own: PeerLabels::default(),
            inbound: Vec::new(),
            outbound: Vec::new(),
            gateway: Vec::new(),
            capture: None,
            trust_domain: self.authority.trust_domain().clone(),
            trust_domain_aliases: Vec::new(),
            revocations: None,
            settings: self.settings.clone(),
            authorization: self.authorization.borrow().clone(),
            authorizer: None,
            tokens: None,
            telemetry: Arc::default(),
        }
    }

    /// An inbound listener in front of `endpoint`; gives its address.
    pub(super) async fn inbound(
        &self,
        protocol: WireProtocol,
        mutual_tls: MutualTls,
        endpoint: SocketAddr,
    ) -> SocketAddr {
        let mut plan = self.plan();
        let listener = listen().await;
        let bind = listener.local_addr().expect("an address");
        plan.inbound.push(InboundPlan {
            name: "in".into(),
            bind,
            protocol,
            mutual_tls,
            endpoint,
            service: ServiceLabels::default(),
        });
        self.serve(listener, &plan, &[ListenerId(1)], &[]);
        bind
    }

    /// An outbound listener that leads to one workload, with any expected identity.
    pub(super) async fn outbound(&self, protocol: WireProtocol, to: EndpointPlan) -> SocketAddr {
        let mut plan = self.plan();
        let listener = listen().await;
        let bind = listener.local_addr().expect("an address");
        plan.outbound.push(OutboundPlan {
            name: "out".into(),
            bind,
            protocol,
            services: vec![ServicePlan {
                subset: None,
                routes: None,
                retry: Default::default(),
                retry_budget: Default::default(),
                traffic: Default::default(),
                service: ServiceLabels::default(),
                port: bind.port(),
                protocol,
                http2_upgrade: self.http2_upgrade.get(),
                client_protocol: self.client_protocol.get(),
                authorities: vec!["server".into()],
                endpoints: vec![to],
            }],
            otherwise: crate::plan::PassthroughMode::NoRoute,
            by_name: false,
        });
        self.serve(listener, &plan, &[], &[ListenerId(1)]);
        bind
    }

    fn serve(
        &self,
        listener: TcpListener,
        plan: &ProxyPlan,
        inbound: &[ListenerId],
        outbound: &[ListenerId],
    ) {
        let mut slots = WorkerListeners::default();
        slots.apply(&self.worker, plan, [inbound, outbound, &[]]);
        let worker = Rc::clone(&self.worker);
        let listed = self.listed.get();
        let number = move |worker: &Worker| match listed {
            true => worker.connections.begin(0),
            false => SourceConnections::UNLISTED,
        };
        tokio::task::spawn_local(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                stream.set_nodelay(true).expect("an open socket");
                let place = ConnectionPermit(Rc::clone(&worker), number(&worker));
                slots.serve(&worker, ListenerId(1), stream, peer, place);
            }
        });
    }

    /// Shakes hands as a sidecar of the mesh would.
    pub(super) async fn shake(
        &self,
        tcp: TcpStream,
        protocol: &[u8],
    ) -> Result<TransportStream, HandshakeError> {
        self.shake_offering(tcp, &[protocol]).await
    }

    /// The same with any offer of protocols, or none.
    pub(super) async fn shake_offering(
        &self,
        tcp: TcpStream,
        protocols: &[&[u8]],
    ) -> Result<TransportStream, HandshakeError> {
        let store = self.authority.store("shop", "client");
        let config = mesh_client_config(&store, protocols).expect("a configuration");
        let name = ServerName::try_from("peer.invalid").expect("a name");
        connect_tls(config, name, tcp.into(), PATIENCE).await
    }
}

pub(super) fn tls(store: &Arc<CertificateStore>) -> Tls {
    let client = |name| mesh_client_config(store, &[name]).expect("a configuration");
    Tls {
        server: mesh_server_config(store, &alpn::SERVER).expect("a configuration"),
        tunnel_server: mesh_server_config(store, &[alpn::PLAIN_HTTP2]).expect("a configuration"),
        tunnel_client: client(alpn::PLAIN_HTTP2),
        client_http: client(alpn::HTTP11),
        client_http2: client(alpn::HTTP2),
        client_tcp: client(alpn::TCP),
    }
}

pub(super) async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

/// Reads exactly the expected bytes, or fails with the received ones.
pub(super) async fn hear(stream: &mut (impl AsyncReadExt + Unpin), expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    let read = stream.read_exact(&mut got).await;
    assert!(
        read.is_ok() && got == expected,
        "{:?} after {read:?}",
        String::from_utf8_lossy(&got)
    );
}

/// Writes everything.
pub(super) async fn say(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) {
    stream.write_all(bytes).await.expect("written");
    stream.flush().await.expect("flushed");
}
