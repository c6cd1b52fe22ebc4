//! Everything that listens, started and stopped as one.

mod accept;
mod authenticate;
mod budget;
mod calls;
mod connections;
mod discovery;
mod first_bytes;
mod monitoring;
mod newcomers;
mod routes;
mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use voile_identity::revocation::CRL_FILE;
use voile_identity::{
    Authority, AuthorityStore, CertificateService, ExternalSigner, JoinTokens, MeshAuthenticator,
    StateDir, TokenKey, TokenVerifier, TrustBundle, TrustStore,
};
use voile_model::TrustDomain;
use voile_model::files::expect_outside;
use voile_watch::FolderWatch;
use voile_xds::server::{Snapshot, Streams, SubscriptionIndex};

use crate::deferred_work::{Reporter, RestedConfiguration};
use crate::error::ControlError;
use crate::groups::{self, Registrar};
use crate::keys::Keys;
use crate::options::ControlOptions;
use crate::reload::{Publisher, Reload, RememberedState};
use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use crate::source::Source;
use crate::state_watch;
use crate::status::Status;
use crate::ztunnel::AmbientWorkloads;
pub use budget::{RESTING_BYTES_OF_ALL, RESTING_BYTES_PER_CALLER, UNPROVEN_BYTES};

use accept::{ListeningPorts, OwnTls};
use authenticate::CertifiedMembers;
use discovery::{Discovery, DiscoveryListeners};

/// When the kernel asks whether the other end of a quiet connection is there, so that a proxy that vanished does not stay on
/// the books. Kernels answer that among themselves; HTTP/2 pings would wake every idle proxy of the mesh.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// Time after which an unanswered keep-alive question is repeated.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Questions unanswered after which the connection is lost.
const KEEPALIVE_RETRIES: u32 = 2;
/// Time in which open calls must end at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Addresses of a running control plane's listeners (port 0 has become a real one).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Discovery and certificates over TLS.
    pub tls: SocketAddr,
    /// Discovery in plaintext.
    pub plaintext: Option<SocketAddr>,
    /// Readiness, metrics and status.
    pub monitoring: SocketAddr,
}

/// A running control plane.
#[derive(Debug)]
pub struct Control {
    addresses: Addresses,
    ending: watch::Sender<bool>,
    tasks: JoinSet<()>,
    discovery: Discovery,
    groups: Arc<Registrar>,
    monitoring: monitoring::Monitoring,
    status: Arc<Status>,
}

/// Where the authority's key comes from, and which tokens are believed.
#[derive(Debug)]
pub enum Credentials {
    /// Files of the state directory, made at the first start.
    OfState,
    /// Those of a cluster.
    Given {
        /// The authority. It may change while the control plane runs.
        authority: AuthorityStore,
        /// The verifier of the callers' tokens.
        tokens: Arc<dyn TokenVerifier>,
        /// Signs certificates of workloads in the authority's place.
        external: Option<Arc<dyn ExternalSigner>>,
    },
}

/// Our own keys and who may use them.
struct OwnKeys {
    authority: AuthorityStore,
    authenticator: Arc<MeshAuthenticator>,
    trust: Arc<TrustStore>,
    joins: JoinTokens,
    external: Option<Arc<dyn ExternalSigner>>,
}

impl OwnKeys {
    /// The service that certifies whom these snapshots know.
    fn certificates(
        &self,
        snapshots: watch::Receiver<Arc<dyn Snapshot<SnapshotCaller>>>,
        streams: Streams<SnapshotCaller>,
        staff: watch::Receiver<Arc<AmbientWorkloads>>,
        status: &Arc<Status>,
    ) -> CertificateService<CertifiedMembers> {
        let present = CertifiedMembers {
            authenticator: self.authenticator.clone(),
            snapshots,
            streams,
            staff,
            status: status.clone(),
        };
        let (authority, joins) = (self.authority.clone(), self.joins.clone());
        CertificateService::new(authority, present, joins, self.trust.clone())
            .signed_by(self.external.clone())
    }
}

impl Control {
    /// Reads the folders, opens the authority, listens, and serves until `stop`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// A folder cannot be read, the state cannot be used, or an address is taken. Broken resources are no error: they
    /// are reported and left out.
    pub fn start(
        options: ControlOptions,
        reporter: Reporter,
    ) -> BoxFuture<'static, Result<Self, ControlError>> {
        Box::pin(async move {
            let source = FolderWatch::new(&options.config)?;
            Self::start_with(options, source, Credentials::OfState, reporter).await
        })
    }

    /// As [`Self::start`], with another source of resources than folders, and other credentials than those of the state directory.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(
        options: ControlOptions,
        mut source: impl Source,
        credentials: Credentials,
        reporter: Reporter,
    ) -> Result<Self, ControlError> {
        may_start(&options)?;
        // Listen before anything is written: a second control plane must fail without a trace.
        let BoundListeners {
            addresses,
            tls,
            plaintext,
            monitoring,
        } = BoundListeners::of(&options).await?;
        let status = Arc::new(Status::default());
        let interest = Arc::new(SubscriptionIndex::default());
        let (publisher, snapshots, staff) = publisher(&interest);
        status.deliver_by(interest.clone());
        let in_state = matches!(credentials, Credentials::OfState);
        let keys = keys(&options, credentials)?;
        let first = keys.authority.current();
        let served = first.fingerprint();
        let issuers = issuers(&options, &status);
        let groups = register(&options, &mut source, &status)?;
        let mut reload = Reload::new(
            source,
            reporter,
            publisher,
            keys.trust.clone(),
            status.clone(),
            RememberedState::open(&options.state, first, !in_state),
            issuers.clone(),
        );
        reload.farewell = options.farewell;
        reload.node_accounts = Arc::new(options.node_accounts);
        reload.read()?;
        let (ending, ended) = watch::channel(false);
        let known = monitoring::MonitoringSources {
            status: status.clone(),
            interest: interest.clone(),
        };
        let own = OwnTls::new(keys.authority.clone(), &options.names, addresses.tls.ip())?;
        let listening = ListeningPorts {
            listeners: (into_std(tls)?, plaintext.map(into_std).transpose()?),
            own,
            status: status.clone(),
            ended,
        };
        let streams = Streams::new(snapshots.clone(), interest.clone(), status.clone());
        let discovery = discovery::start(DiscoveryListeners {
            listening,
            certificates: keys.certificates(snapshots, streams.clone(), staff, &status),
            streams,
            authenticator: keys.authenticator,
            interest,
            status: status.clone(),
            age: options.connection_age,
        })?;
        let mut tasks = JoinSet::new();
        if in_state {
            let state = state_watch::watch(options.state, served, status.clone());
            tasks.spawn(until_over(state, ending.subscribe()));
        }
        tasks.spawn(reload.follow(keys.authority, over(ending.subscribe())));
        tasks.spawn(until_over(issuers.run(), ending.subscribe()));
        status.ready.store(true, Ordering::Relaxed);
        Ok(Self {
            monitoring: monitoring::start(monitoring, known)?,
            addresses,
            ending,
            tasks,
            discovery,
            groups,
            status,
        })
    }

    /// Addresses of the listeners.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The configuration whenever it rests: what is in force, and what was found in it.
    pub fn configurations(&self) -> watch::Receiver<Arc<RestedConfiguration>> {
        self.status.configurations()
    }

    /// Ends every stream and listener, and waits until they are gone.
    pub fn stop(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.ending.send_replace(true);
            let all = async {
                while self.tasks.join_next().await.is_some() {}
                self.discovery.ended().await;
            };
            if tokio::time::timeout(SHUTDOWN_GRACE, all).await.is_err() {
                tracing::warn!("open calls did not end within {SHUTDOWN_GRACE:?} and are closed");
            }
            self.discovery.stop();
            self.groups.stop();
            self.monitoring.stop();
        })
    }
}

/// Sockets that listen, and serve nothing yet.
struct BoundListeners {
    addresses: Addresses,
    tls: TcpListener,
    plaintext: Option<TcpListener>,
    monitoring: TcpListener,
}

impl BoundListeners {
    async fn of(options: &ControlOptions) -> Result<Self, ControlError> {
        let tls = listen(options.listen, "discovery over TLS").await?;
        let plaintext = match options.plaintext {
            Some(address) => Some(listen(address, "plaintext discovery").await?),
            None => None,
        };
        let monitoring = listen(options.monitoring, "monitoring").await?;
        let addresses = Addresses {
            tls: bound(&tls)?,
            plaintext: plaintext.as_ref().map(bound).transpose()?,
            monitoring: bound(&monitoring)?,
        };
        Ok(Self {
            addresses,
            tls,
            plaintext,
            monitoring,
        })
    }
}

fn into_std(listener: TcpListener) -> Result<std::net::TcpListener, ControlError> {
    listener
        .into_std()
        .map_err(|error| ControlError::Setup(format!("the listener: {error}")))
}

/// Keys of token issuers, as the status page shows them.
fn issuers(options: &ControlOptions, status: &Status) -> Keys {
    let issuers = Keys::new(&options.state, &options.keys);
    status.follow(issuers.clone());
    issuers
}

/// Starts the registrar of WorkloadGroups. Its folder in the state directory becomes a source: the registrar writes joined
/// workloads there.
fn register(
    options: &ControlOptions,
    source: &mut impl Source,
    status: &Status,
) -> Result<Arc<Registrar>, ControlError> {
    let folder = options.state.join(groups::FOLDER);
    let groups = Registrar::start(&options.state, options.workload_grace)
        .map_err(|error| ControlError::State(format!("{}: {error}", folder.display())))?;
    let groups = Arc::new(groups);
    status.register_with(groups.clone());
    source.follow_file(&options.state.join(CRL_FILE))?;
    source.follow_folder(&folder)?;
    Ok(groups)
}

/// Checks options before anything is done.
fn may_start(options: &ControlOptions) -> Result<(), ControlError> {
    for folder in &options.config {
        if let Err(reason) = expect_outside(folder, &options.state) {
            tracing::warn!("the state directory {reason}");
        }
    }
    may_listen(options)
}

fn may_listen(options: &ControlOptions) -> Result<(), ControlError> {
    match options.plaintext {
        Some(address) if !address.ip().is_loopback() && !options.plaintext_beyond_loopback => {
            Err(ControlError::PlaintextBeyondLoopback(address))
        }
        _ => Ok(()),
    }
}

type Published = (
    Publisher,
    watch::Receiver<Arc<dyn Snapshot<SnapshotCaller>>>,
    watch::Receiver<Arc<AmbientWorkloads>>,
);

fn publisher(interest: &Arc<SubscriptionIndex>) -> Published {
    let empty: Arc<dyn Snapshot<SnapshotCaller>> = Arc::new(MeshSnapshot::default());
    let (publish, snapshots) = watch::channel(empty);
    let (publish_staff, staff) = watch::channel(Arc::default());
    let publisher = Publisher {
        snapshots: publish,
        staff: publish_staff,
        interest: interest.clone(),
    };
    (publisher, snapshots, staff)
}

async fn until_over(work: impl Future<Output = ()>, ended: watch::Receiver<bool>) {
    tokio::select! {
        () = work => {}
        () = over(ended) => {}
    }
}

async fn over(mut ended: watch::Receiver<bool>) {
    // An error means that whoever could end us is gone, which is an end too.
    let _ = ended.wait_for(|ended| *ended).await;
}

async fn listen(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, ControlError> {
    let failed = |source| ControlError::Listen {
        address,
        purpose,
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    // Accepted sockets inherit the listener's options.
    let socket = SockRef::from(&listener);
    socket.set_tcp_keepalive(&keep_alive).map_err(failed)?;
    Ok(listener)
}

fn bound(listener: &TcpListener) -> Result<SocketAddr, ControlError> {
    listener
        .local_addr()
        .map_err(|error| ControlError::Setup(format!("the listener's address: {error}")))
}

fn keys(options: &ControlOptions, credentials: Credentials) -> Result<OwnKeys, ControlError> {
    let (state, longest) = (&options.state, options.certificate_ttl);
    let failed = |error: &dyn std::fmt::Display| ControlError::State(error.to_string());
    // The root's subject is a label for people; the trust domain that counts comes with the first reading.
    let domain = TrustDomain::new("cluster.local")
        .ok_or_else(|| ControlError::Setup("the default trust domain".to_owned()))?;
    let (authority, given, external) = match credentials {
        Credentials::Given {
            authority,
            tokens,
            external,
        } => (authority, Some(tokens), external),
        Credentials::OfState => {
            let authority = Authority::open_with(state, &domain, &options.root, SystemTime::now());
            let authority = authority.map_err(|e| failed(&e))?;
            (Arc::new(authority.with_longest(longest)).into(), None, None)
        }
    };
    let folder = StateDir::open(state).map_err(|e| failed(&e))?;
    let tokens = match given {
        Some(tokens) => tokens,
        None => Arc::new(TokenKey::open(&folder).map_err(|e| failed(&e))?),
    };
    let joins = JoinTokens::open(&folder).map_err(|e| failed(&e))?;
    let bundle = TrustBundle::from_pem(domain, Vec::new(), authority.current().root_pem());
    let trust = Arc::new(TrustStore::new(bundle.map_err(|e| failed(&e))?));
    Ok(OwnKeys {
        authority,
        authenticator: Arc::new(MeshAuthenticator::new(tokens, trust.clone())),
        trust,
        joins,
        external,
    })
}
