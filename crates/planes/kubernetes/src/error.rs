//! Errors of the cluster.

use std::fmt;

use voile_model::with_causes;

/// Status of a request by a token that is not valid, or no longer.
pub(crate) const UNAUTHORIZED: u16 = 401;
/// Status of a request that the API server's authorization denies.
pub(crate) const FORBIDDEN: u16 = 403;
/// Status of a request for an object that is not there.
pub(crate) const NOT_FOUND: u16 = 404;

/// Why the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No configuration leads to a cluster.
    #[error(
        "no cluster: {0}; inside a cluster the pod needs its service account's token, elsewhere `--kubeconfig FILE` or the variable KUBECONFIG names a file"
    )]
    Config(String),
    /// The API server refused or did not answer.
    #[error("{what}: {reason}")]
    Api {
        /// What was asked.
        what: String,
        /// The answer.
        reason: String,
    },
    /// An object of the cluster cannot be used.
    #[error("{object}: {reason}")]
    Object {
        /// Kind, namespace and name.
        object: String,
        /// The reason and its cure.
        reason: String,
    },
}

impl ClusterError {
    /// The API server's answer to what was asked.
    pub(crate) fn api(what: impl fmt::Display, error: &kube::Error) -> Self {
        let cure = match error {
            kube::Error::Api(status) if status.code == FORBIDDEN => {
                "; cure: a Role or ClusterRole that lets this user do so"
            }
            _ => "",
        };
        Self::Api {
            what: what.to_string(),
            reason: explain(error) + cure,
        }
    }
}

/// The API server's words, or the error with its causes.
pub(crate) fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => with_causes(other),
    }
}
