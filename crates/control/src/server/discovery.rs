//! Discovery and certificates, on a thread of their own: whatever else the control plane does leaves it alone, and what one stream is
//! told by another's change crosses no thread but once.

use std::net::TcpListener as Listener;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinSet, LocalSet};
use voile_identity::service::IstioCertificateServiceServer;
use voile_identity::{CertificateService, MeshAuthenticator};
use voile_xds::server::{Interest, Streams};

use super::accept::{self, OwnCertificate};
use super::authenticate::{self, Present};
use super::connections;
use super::routes::{Checked, Routes};
use crate::error::ControlError;
use crate::snapshot::Caller;
use crate::status::Status;

/// What is served, and where.
pub(super) struct Doors {
    /// Over TLS, and in plaintext.
    pub(super) listeners: (Listener, Option<Listener>),
    pub(super) own: OwnCertificate,
    pub(super) streams: Streams<Caller>,
    pub(super) certificates: CertificateService<Present>,
    pub(super) authenticator: Arc<MeshAuthenticator>,
    pub(super) interest: Arc<Interest>,
    pub(super) status: Arc<Status>,
    /// How long a connection may last.
    pub(super) age: Duration,
    /// Becomes true when all of it is to end.
    pub(super) ended: watch::Receiver<bool>,
}

/// The running thread.
#[derive(Debug)]
pub(super) struct Discovery {
    cut: Option<oneshot::Sender<()>>,
    done: oneshot::Receiver<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Discovery {
    /// Waits until every call has ended by itself.
    pub(super) async fn ended(&mut self) {
        // An error says that the thread is gone, which is an end too.
        let _ = (&mut self.done).await;
    }

    /// Ends what has not ended by itself, and waits.
    pub(super) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Dropping the sender is the signal.
        drop(self.cut.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn start(doors: Doors) -> Result<Discovery, ControlError> {
    let failed = |error: std::io::Error| ControlError::Setup(format!("discovery: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let (cut, is_cut) = oneshot::channel::<()>();
    let (finished, done) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("discovery".to_owned())
        .spawn(move || {
            let served = async {
                if let Err(error) = serve(doors).await {
                    tracing::error!(%error, "discovery");
                }
                // Nobody waits for it when the control plane is dropped.
                let _ = finished.send(());
            };
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = served => {}
                    _ = is_cut => {}
                }
            });
        })
        .map_err(failed)?;
    Ok(Discovery {
        cut: Some(cut),
        done,
        thread: Some(thread),
    })
}

/// Serves until it is to end and the last connection is gone.
async fn serve(doors: Doors) -> std::io::Result<()> {
    let Doors {
        listeners: (tls, plaintext),
        own,
        streams,
        certificates,
        authenticator,
        interest,
        status,
        age,
        ended,
    } = doors;
    let mut tasks = JoinSet::new();
    let check = authenticate::required(authenticator.clone(), status.clone(), age);
    let routes = Routes {
        discovery: Checked {
            streams: streams.clone(),
            check,
        },
        certificates: Some(certificates.into_server()),
    };
    let listener = TcpListener::from_std(tls)?;
    let incoming = accept::tls(listener, own, status.clone(), ended.clone(), &mut tasks);
    tasks.spawn_local(connections::serve(incoming, routes, age, ended.clone()));
    if let Some(listener) = plaintext {
        let check = authenticate::optional(authenticator, status, age);
        let routes = Routes {
            discovery: Checked { streams, check },
            // Keys are never certified over a wire that anybody can write on.
            certificates: None::<IstioCertificateServiceServer<CertificateService<Present>>>,
        };
        let listener = TcpListener::from_std(listener)?;
        let incoming = accept::plaintext(listener, ended.clone(), &mut tasks);
        tasks.spawn_local(connections::serve(incoming, routes, age, ended));
    }
    tokio::select! {
        () = async { while tasks.join_next().await.is_some() {} } => {}
        () = interest.herald() => {}
    }
    Ok(())
}
