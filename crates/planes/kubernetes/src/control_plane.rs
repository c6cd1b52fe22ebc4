//! The control plane on a cluster: the same as for folders, with the cluster's objects, identities and authority.

use std::fmt;
use std::sync::Arc;

use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use voile_control::{Control, ControlError, ControlOptions, Credentials, Reporter};
use voile_model::TrustDomain;

use crate::connect::{ClusterAddress, connect};
use crate::election::Candidate;
use crate::error::ClusterError;
use crate::source::ClusterSource;
use crate::tokens::ClusterTokens;
use crate::{authority, roots};

/// Name of a revision that nobody named.
pub const DEFAULT_REVISION: &str = "default";

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
}

impl ClusterOptions {
    /// `name`, with the revision behind it where it is not the default one, as Istio names what belongs to a revision.
    fn of_revision(&self, name: &str) -> String {
        match &*self.revision {
            DEFAULT_REVISION => name.to_owned(),
            revision => format!("{name}-{revision}"),
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
    pub async fn start(
        cluster: ClusterOptions,
        mut options: ControlOptions,
        reporter: Reporter,
    ) -> Result<Self, StartError> {
        let client = connect(&cluster.address).await?;
        let (namespace, service) = (&cluster.namespace, cluster.of_revision("istiod"));
        for suffix in ["", ".cluster.local"] {
            options
                .names
                .push(format!("{service}.{namespace}.svc{suffix}"));
        }
        let domain = TrustDomain::new("cluster.local")
            .ok_or_else(|| ClusterError::Config("the default trust domain".to_owned()))?;
        let authority = authority::open(client.clone(), namespace, &domain).await?;
        let root = authority.root_pem().to_owned();
        let settings = cluster.of_revision("istio");
        let source = ClusterSource::start(client.clone(), (namespace, &settings)).await?;
        let tokens = Arc::new(ClusterTokens::start(client.clone(), source.store()).await?);
        let credentials = Credentials::Given {
            authority: Box::new(authority),
            tokens: tokens.clone(),
        };
        let control = Control::start_with(options, source, credentials, reporter).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(tokens.refresh());
        let lease = cluster.of_revision("voile-leader");
        let (candidate, leads) =
            Candidate::new(client.clone(), namespace, lease, cluster.replica.clone());
        tasks.spawn(while_leading(leads, move || {
            duties(client.clone(), root.clone(), cluster.revision.clone())
        }));
        let (ending, mut ended) = watch::channel(false);
        let over = async move {
            // An error means that nobody can end us any more, which is an end too.
            let _ = ended.wait_for(|ended| *ended).await;
        };
        Ok(Self {
            control,
            ending,
            candidate: tokio::spawn(candidate.run(over)),
            _tasks: tasks,
        })
    }

    /// Addresses of the listeners.
    pub fn addresses(&self) -> voile_control::Addresses {
        self.control.addresses()
    }

    /// Gives up the duties of the elected replica, ends every stream and listener, and waits until they are gone.
    pub async fn stop(self) {
        self.ending.send_replace(true);
        let _ = self.candidate.await;
        self.control.stop().await;
    }
}

/// What only one replica does.
async fn duties(client: Client, root: String, revision: String) {
    tokio::join!(
        roots::keep_config_maps(client.clone(), root.clone()),
        roots::keep_webhooks(client, root, revision),
    );
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
