//! The way to the API server.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use voile_model::with_causes;

use crate::error::ClusterError;

/// Which cluster, and as whom.
#[derive(Debug, Clone, Default)]
pub struct ClusterAddress {
    /// The kubeconfig; without one, that of the variable `KUBECONFIG`, of `~/.kube/config`, or the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; without one, the current context.
    pub context: Option<String>,
}

/// A client of the cluster. Must be called inside a tokio runtime.
///
/// # Errors
/// No configuration leads to a cluster, or the one that was named cannot be read.
pub fn connect<'a>(address: &'a ClusterAddress) -> BoxFuture<'a, Result<Client, ClusterError>> {
    Box::pin(async move {
        let failed = |error: &dyn std::error::Error| ClusterError::Config(with_causes(error));
        let options = KubeConfigOptions {
            context: address.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &address.kubeconfig {
            Some(file) => {
                let file = Kubeconfig::read_from(file).map_err(|error| failed(&error))?;
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.map_err(|error| failed(&error))?
            }
            None if address.context.is_some() => Config::from_kubeconfig(&options)
                .await
                .map_err(|error| failed(&error))?,
            None => Config::infer().await.map_err(|error| failed(&error))?,
        };
        Client::try_from(config).map_err(|error| failed(&error))
    })
}
