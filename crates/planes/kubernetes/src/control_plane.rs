//! The control plane on a cluster: the same as for folders, with the cluster's objects, identities and authority.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, OptionFuture};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use voile_control::{Control, ControlError, ControlOptions, Credentials, Reporter};
use voile_identity::{AuthorityStore, ExternalSigner};

use crate::connect::{ClusterAddress, connect};
use crate::election::Candidate;
use crate::error::ClusterError;
use crate::gateways::{self, Deployer};
use crate::inject::InjectorOptions;
use crate::injection::WebhookServer;
use crate::revision::{self, of_revision};
use crate::source::ClusterSource;
use crate::status::StatusWriter;
use crate::trust::authority::{AuthorityKeeper, ElsewhereAuthority, OpenAuthority};
use crate::trust::roots;
use crate::trust::tokens::ClusterTokens;
use crate::trust::trust_bundle;
use crate::webhooks::Validator;

/// Options of a control plane on a cluster, beside those that every control plane has.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The cluster.
    pub address: ClusterAddress,
    /// Namespace of the mesh's settings, of the authority's Secret and of the Lease.
    pub namespace: String,
    /// Revision of this control plane: which namespaces its webhooks serve, and which ConfigMap `istio-REVISION` it reads.
    pub revision: String,
    /// Name of this replica: no other has it.
    pub replica: String,
    /// Address of the webhooks, and the image of injected proxies; without it Pods are not injected.
    pub injection: Option<(SocketAddr, String)>,
    /// `imagePullPolicy` of that image; `None` is Kubernetes' default.
    pub image_pull_policy: Option<String>,
    /// True if a CNI plugin redirects the connections of injected Pods, which then have no `istio-init`.
    pub cni: bool,
    /// Time for which new roots are trusted before a key below them signs.
    pub root_overlap: Duration,
    /// Signer of CertificateSigningRequests that signs the certificates of workloads in the authority's place.
    pub external_signer: Option<String>,
    /// `HOST:PORT` of the authority that injected proxies ask for certificates in place of the control plane.
    pub ca_address: Option<String>,
    /// True if the control plane signs nothing: its own certificate is in the Secret `istiod-tls`, and others write the ConfigMap with
    /// the roots.
    pub signs_nothing: bool,
    /// True if the roots are in a ClusterTrustBundle in place of ConfigMaps.
    pub trust_bundle: bool,
}

/// Where the control plane's certificate comes from.
enum OpenedAuthority {
    Own(Box<OpenAuthority>),
    Elsewhere(Box<ElsewhereAuthority>),
}

impl OpenedAuthority {
    async fn open(
        client: Client,
        cluster: &ClusterOptions,
        longest: Duration,
    ) -> Result<Self, ClusterError> {
        if !cluster.signs_nothing {
            let own = OpenAuthority::open(client, cluster, longest).await?;
            return Ok(Self::Own(Box::new(own)));
        }
        let elsewhere = ElsewhereAuthority::open(client, &cluster.namespace).await;
        let elsewhere =
            elsewhere.ok_or_else(|| ClusterError::Config("its watch ended".to_owned()))?;
        Ok(Self::Elsewhere(Box::new(elsewhere)))
    }

    fn store(&self) -> AuthorityStore {
        match self {
            Self::Own(own) => own.store.clone(),
            Self::Elsewhere(elsewhere) => elsewhere.store.clone(),
        }
    }

    fn signer(&self) -> Option<Arc<dyn ExternalSigner>> {
        match self {
            Self::Own(own) => own.signer(),
            Self::Elsewhere(_) => None,
        }
    }

    /// Follows it for ever.
    async fn keep(
        self,
        client: Client,
        cluster: ClusterOptions,
        longest: Duration,
        leads: watch::Receiver<bool>,
    ) {
        match self {
            Self::Own(own) => {
                let place = (&*cluster.namespace, &*cluster.replica);
                let times = (cluster.root_overlap, longest);
                AuthorityKeeper::new(client, place, *own, times, leads)
                    .keep()
                    .await;
            }
            Self::Elsewhere(elsewhere) => elsewhere.keep().await,
        }
    }
}

/// Why a control plane on a cluster does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cluster cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The control plane cannot start.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// A running control plane of a cluster.
pub struct ControlPlane {
    control: Control,
    ending: watch::Sender<bool>,
    candidate: tokio::task::JoinHandle<()>,
    /// They end with it.
    _tasks: JoinSet<()>,
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane")
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

impl ControlPlane {
    /// Connects to the cluster, waits for its objects, and serves until `stop`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The cluster cannot be used, or the control plane cannot start.
    pub fn start(
        cluster: ClusterOptions,
        options: ControlOptions,
        reporter: Reporter,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::opened(cluster, options, reporter))
    }

    async fn opened(
        cluster: ClusterOptions,
        mut options: ControlOptions,
        reporter: Reporter,
    ) -> Result<Self, StartError> {
        let client = connect(&cluster.address).await?;
        let (namespace, service) = (&cluster.namespace, of_revision("istiod", &cluster.revision));
        let service = format!("{service}.{namespace}.svc");
        let names = [service.clone(), format!("{service}.cluster.local")];
        options.names.extend(names.iter().cloned());
        let listener = cluster.injection.as_ref();
        let listener = listener.map(|(address, _)| listen(*address)).transpose()?;
        let longest = options.certificate_ttl;
        let opened = OpenedAuthority::open(client.clone(), &cluster, longest).await?;
        let authority = opened.store();
        let settings = of_revision("istio", &cluster.revision);
        let source = ClusterSource::start(client.clone(), (namespace, &settings)).await?;
        let tokens = Arc::new(ClusterTokens::start(client.clone(), source.store()).await?);
        let credentials = Credentials::Given {
            authority: authority.clone(),
            tokens: tokens.clone(),
            external: opened.signer(),
        };
        let store = source.store();
        let control = Control::start_with(options, source, credentials, reporter).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(tokens.refresh());
        let (ending, ended) = watch::channel(false);
        let statuses = StatusWriter {
            client: client.clone(),
            store: store.clone(),
            configurations: control.configurations(),
            names: revision::spawn_names(&mut tasks, client.clone(), &cluster.revision),
            replica: cluster.replica.clone(),
        };
        let settings = format!("configmaps/{namespace}/{settings}");
        let mut pods = None;
        if let Some(listener) = listener {
            let options = injector_options(&cluster, &service);
            pods = Some((options.clone(), settings.clone()));
            let webhook = WebhookServer {
                listener,
                options,
                settings,
                store,
                validator: Validator::new(control.configurations()),
            };
            tasks.spawn(webhook.serve(authority.clone(), names.to_vec(), over(ended.clone()))?);
        }
        let lease = of_revision("voile-leader", &cluster.revision);
        let (candidate, leads) =
            Candidate::new(client.clone(), namespace, lease, cluster.replica.clone());
        tasks.spawn(opened.keep(client, cluster.clone(), longest, leads.clone()));
        let duties = Duties {
            authority,
            roots: match (cluster.signs_nothing, cluster.trust_bundle) {
                (true, _) => RootsIn::Elsewhere,
                (false, true) => RootsIn::TrustBundle,
                (false, false) => RootsIn::ConfigMaps,
            },
            revision: cluster.revision,
            statuses,
            pods,
        };
        tasks.spawn(while_leading(leads, move || duties.clone().run()));
        Ok(Self {
            control,
            ending,
            candidate: tokio::spawn(candidate.run(over(ended))),
            _tasks: tasks,
        })
    }

    /// Addresses of the listeners.
    pub fn addresses(&self) -> voile_control::Addresses {
        self.control.addresses()
    }

    /// Gives up the duties of the elected replica, ends every stream and listener, and waits until they are gone.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.ending.send_replace(true);
            let _ = self.candidate.await;
            self.control.stop().await;
        })
    }
}

fn injector_options(cluster: &ClusterOptions, service: &str) -> InjectorOptions {
    let image = cluster.injection.as_ref().map(|(_, image)| image.clone());
    InjectorOptions {
        image: image.unwrap_or_default(),
        image_pull_policy: cluster.image_pull_policy.clone(),
        revision: cluster.revision.clone(),
        discovery_address: format!("{service}:15012"),
        cni: cluster.cni,
        ca_address: cluster.ca_address.clone(),
        trust_bundle: cluster.trust_bundle,
        ..InjectorOptions::default()
    }
}

async fn over(mut ended: watch::Receiver<bool>) {
    // An error means that nobody can end us any more, which is an end too.
    let _ = ended.wait_for(|ended| *ended).await;
}

fn listen(address: SocketAddr) -> Result<TcpListener, ClusterError> {
    TcpListener::bind(address).map_err(|error| ClusterError::Object {
        object: format!("the webhooks' address {address}"),
        reason: error.to_string(),
    })
}

/// Where pods find the roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RootsIn {
    ConfigMaps,
    TrustBundle,
    /// Others write them.
    Elsewhere,
}

/// What only one replica does.
#[derive(Clone)]
struct Duties {
    authority: AuthorityStore,
    roots: RootsIn,
    revision: String,
    statuses: StatusWriter,
    /// Options of the Pods of Gateways, and the file of the mesh's settings. None where the image of proxies is not known.
    pods: Option<(InjectorOptions, String)>,
}

impl Duties {
    async fn run(self) {
        let StatusWriter {
            client,
            store,
            names,
            ..
        } = self.statuses.clone();
        let client = || client.clone();
        let deployer = self.pods.map(|(options, settings)| {
            Deployer::new(client(), store.clone(), options, settings, names).run()
        });
        tokio::join!(
            keep_roots(client(), self.authority, self.roots, self.revision),
            self.statuses.keep(),
            gateways::keep_classes(client(), store.clone()),
            OptionFuture::from(deployer),
        );
    }
}

/// Brings the roots of the moment to namespaces and webhooks, for ever.
async fn keep_roots(client: Client, authority: AuthorityStore, place: RootsIn, revision: String) {
    let mut authorities = authority.subscribe();
    loop {
        let root = authorities.borrow_and_update().root_pem().to_owned();
        let (client, known) = (|| client.clone(), || root.clone());
        let maps =
            (place == RootsIn::ConfigMaps).then(|| roots::keep_config_maps(client(), known()));
        let bundle = (place == RootsIn::TrustBundle).then(|| trust_bundle::keep(client(), known()));
        let keep = async {
            tokio::join!(
                OptionFuture::from(maps),
                OptionFuture::from(bundle),
                roots::keep_webhooks::<MutatingWebhookConfiguration>(
                    client(),
                    known(),
                    revision.clone()
                ),
                roots::keep_webhooks::<ValidatingWebhookConfiguration>(
                    client(),
                    known(),
                    revision.clone()
                ),
            );
        };
        tokio::select! {
            () = keep => return,
            changed = authorities.wait_for(|next| next.root_pem() != root) => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Does `work` whenever this replica leads, and stops it when it no longer does.
async fn while_leading<W: Future<Output = ()>>(
    mut leads: watch::Receiver<bool>,
    work: impl Fn() -> W,
) {
    loop {
        if leads.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        let mut lost = leads.clone();
        tokio::select! {
            () = work() => {}
            _ = lost.wait_for(|leads| !*leads) => {}
        }
    }
}
