//! The webhooks of a control plane: their certificate, and settings of injection that follow the mesh's ConfigMap.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use voile_identity::{Authority, AuthorityStore, IssueError, OwnCertificate};
use voile_model::mesh::MeshConfig;

use crate::error::ClusterError;
use crate::inject::InjectorOptions;
use crate::source::ObjectStore;
use crate::webhooks::{self, InjectionSettings, Validator};

/// The certificate of the webhooks.
#[derive(Debug)]
struct WebhookCertificate {
    names: Vec<String>,
    own: Mutex<OwnCertificate<Arc<CertifiedKey>>>,
}

impl WebhookCertificate {
    fn new(authority: AuthorityStore, names: Vec<String>) -> Result<Self, IssueError> {
        let own = OwnCertificate::new(authority, |issuer| issue(issuer, &names))?;
        let own = Mutex::new(own);
        Ok(Self { names, own })
    }
}

fn issue(authority: &Authority, names: &[String]) -> Result<Arc<CertifiedKey>, IssueError> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let issued = authority.issue_server(&names, SystemTime::now())?;
    Ok(Arc::new(issued.certified))
}

impl ResolvesServerCert for WebhookCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        Some(own.current(|issuer| issue(issuer, &self.names)).clone())
    }
}

/// The mesh's settings in the file of its ConfigMap.
pub(crate) fn mesh_config(store: &ObjectStore, file: &str) -> Arc<MeshConfig> {
    store.text(file).map_or_else(Arc::default, |file| {
        let (mesh, _) = voile_model::check(&[(*file).clone()], None);
        mesh.config
    })
}

/// The webhook server, once it listens.
pub(crate) struct WebhookServer {
    pub(crate) listener: TcpListener,
    pub(crate) options: InjectorOptions,
    /// Name of the file of the mesh's ConfigMap.
    pub(crate) settings: String,
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) validator: Validator,
}

impl WebhookServer {
    /// Serves until `over`. `names` are the names that the API server calls it by.
    ///
    /// # Errors
    /// No certificate can be made.
    pub(crate) fn serve(
        self,
        authority: AuthorityStore,
        names: Vec<String>,
        over: impl Future<Output = ()>,
    ) -> Result<impl Future<Output = ()>, ClusterError> {
        let failed = |error: &dyn std::fmt::Display| ClusterError::Object {
            object: "the webhook".to_owned(),
            reason: error.to_string(),
        };
        let certificate =
            WebhookCertificate::new(authority, names).map_err(|error| failed(&error))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificate));
        let mut changes = self.store.changes();
        let (published, current) = watch::channel(Arc::new(self.read()));
        let listener = self.listener.try_clone().map_err(|error| failed(&error))?;
        let validator = self.validator.clone();
        Ok(async move {
            let follow = async {
                let mut read = self.store.text(&self.settings);
                while changes.changed().await.is_ok() {
                    let found = self.store.text(&self.settings);
                    let same = match (&read, &found) {
                        (Some(read), Some(found)) => Arc::ptr_eq(read, found),
                        (read, found) => read.is_none() && found.is_none(),
                    };
                    if !same {
                        read = found;
                        published.send_replace(Arc::new(self.read()));
                    }
                }
            };
            tokio::select! {
                served = webhooks::serve(listener, Arc::new(tls), current, validator, over) => {
                    if let Err(error) = served {
                        tracing::error!(%error, "the webhook");
                    }
                }
                () = follow => {}
            }
        })
    }

    fn read(&self) -> InjectionSettings {
        InjectionSettings {
            options: self.options.clone(),
            mesh: mesh_config(&self.store, &self.settings),
        }
    }
}
