//! The listener: TLS with a certificate for the control plane's name, callers' certificates verified where they bring one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::authority::{Authority, CertificationError};
use crate::mesh::Mesh;
use crate::service::Services;

/// Calls at once on one connection: a proxy watches each of its ports and each address that is called.
const MAX_CALLS_PER_CONNECTION: u32 = 1_000;

/// Why it does not serve.
#[derive(Debug)]
pub struct ServeError(String);

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServeError {}

impl From<CertificationError> for ServeError {
    fn from(CertificationError(why): CertificationError) -> Self {
        Self(why)
    }
}

fn read(path: &Path) -> Result<String, ServeError> {
    std::fs::read_to_string(path)
        .map_err(|e| ServeError(format!("reading {}: {e}", path.display())))
}

/// Everything that it needs to serve, read and bound.
pub struct ServingState {
    services: Services,
    tls: ServerTlsConfig,
    listener: TcpListener,
}

impl ServingState {
    /// Binds. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the anchor cannot be used or the address is taken.
    pub async fn bind(
        mesh: Mesh,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        let authority = Authority::new(&read(&mesh.root)?, &read(&mesh.root_key)?)?;
        let (certificate, key) = authority.server(&mesh.name)?;
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(certificate, key))
            .client_ca_root(Certificate::from_pem(authority.root()))
            // A proxy without a certificate connects to ask for its first one.
            .client_auth_optional(true);
        let listener = TcpListener::bind(mesh.listen)
            .await
            .map_err(|e| ServeError(format!("listening on {}: {e}", mesh.listen)))?;
        Ok(Self {
            services: Services {
                mesh: Arc::new(mesh),
                authority: Arc::new(authority),
                tell: Arc::new(tell),
            },
            tls,
            listener,
        })
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors The kernel does not return the address.
    pub fn address(&self) -> std::io::Result<std::net::SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    ///
    /// # Errors
    /// When the TLS configuration is refused or the listener fails.
    pub async fn serve(self) -> Result<(), ServeError> {
        let failed = |e: tonic::transport::Error| ServeError(format!("serving: {e}"));
        Server::builder()
            .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
            .tls_config(self.tls)
            .map_err(failed)?
            .serve_with_incoming(self.services, TcpListenerStream::new(self.listener))
            .await
            .map_err(failed)
    }
}

/// Serves what the file says until SIGTERM or Ctrl-C, and prints a line of each question.
///
/// # Errors
/// When the file is none of a mesh, or it cannot serve.
pub fn run(file: &Path) -> Result<(), ServeError> {
    let mesh: Mesh = serde_json::from_str(&read(file)?)
        .map_err(|e| ServeError(format!("{}: {e}", file.display())))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| ServeError(format!("starting: {e}")))?;
    runtime.block_on(async {
        let watched = |e: std::io::Error| ServeError(format!("watching for signals: {e}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(watched)?;
        let serving = ServingState::bind(mesh, |line| println!("{line}")).await?;
        tokio::select! {
            served = serving.serve() => served,
            _ = terminate.recv() => Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(watched),
        }
    })
}
