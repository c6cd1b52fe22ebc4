//! Discovery and certificates, on a thread of their own: whatever else the control plane does leaves it alone, and what one stream is
//! told by another's change crosses no thread but once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use voile_identity::{CertificateService, MeshAuthenticator};
use voile_xds::server::{Streams, SubscriptionIndex};

use super::accept::{self, AcceptThread, ListeningPorts};
use super::authenticate::{self, Certificates, CertifiedMembers};
use super::connections;
use super::routes::{AuthorizedDiscovery, Routes};
use crate::error::ControlError;
use crate::snapshot::SnapshotCaller;
use crate::status::Status;

/// The services of the discovery ports, and their listeners.
pub(super) struct DiscoveryListeners {
    pub(super) listening: ListeningPorts,
    pub(super) streams: Streams<SnapshotCaller>,
    pub(super) certificates: CertificateService<CertifiedMembers>,
    pub(super) authenticator: Arc<MeshAuthenticator>,
    pub(super) interest: Arc<SubscriptionIndex>,
    pub(super) status: Arc<Status>,
    /// Longest age of a connection.
    pub(super) age: Duration,
}

/// The running threads: one that accepts, one that serves.
#[derive(Debug)]
pub(super) struct Discovery {
    cut: Option<oneshot::Sender<()>>,
    done: oneshot::Receiver<()>,
    threads: Vec<std::thread::JoinHandle<()>>,
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
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.end();
    }
}

/// A control plane that is to end ends its accepting by itself.
pub(super) fn start(doors: DiscoveryListeners) -> Result<Discovery, ControlError> {
    let failed = |error: std::io::Error| ControlError::Setup(format!("discovery: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let DiscoveryListeners {
        listening,
        streams,
        certificates,
        authenticator,
        interest,
        status,
        age,
    } = doors;
    let ended = listening.ended.clone();
    let AcceptThread {
        thread: accepting,
        tls,
        plaintext,
    } = accept::start(listening)?;
    let (cut, is_cut) = oneshot::channel::<()>();
    let (finished, done) = oneshot::channel();
    let serve = async move {
        let check = authenticate::required(authenticator, status.clone(), age);
        let in_plaintext = Routes {
            discovery: AuthorizedDiscovery {
                streams: streams.clone(),
                check: check.clone(),
            },
            // Keys are never certified over a wire that anybody can write on.
            certificates: None::<Certificates>,
        };
        let over_tls = Routes {
            discovery: AuthorizedDiscovery { streams, check },
            certificates: Some(Certificates::new(certificates, status)),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn_local(connections::serve(tls, over_tls, age, ended.clone()));
        tasks.spawn_local(connections::serve(plaintext, in_plaintext, age, ended));
        // Until it is to end and the last connection is gone.
        tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => {}
            () = interest.herald() => {}
        }
        // Nobody waits for it when the control plane is dropped.
        let _ = finished.send(());
    };
    let thread = std::thread::Builder::new()
        .name("discovery".to_owned())
        .spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = serve => {}
                    _ = is_cut => {}
                }
            });
        })
        .map_err(failed)?;
    Ok(Discovery {
        cut: Some(cut),
        done,
        threads: vec![thread, accepting],
    })
}
