//! The agent of a mesh with a node proxy: tells it of the pods and their networks, as Istio's CNI agent does on a Kubernetes node,
//! by the same protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use voile_host::netns::Namespace;
use voile_zds::{Agents, Channel, Told, Who};

/// Where the node proxy itself belongs.
pub(crate) const NAMESPACE: &str = "istio-system";
/// Its pod, and its service account.
pub(crate) const NAME: &str = "node-proxy";
/// The one node there is.
pub(crate) const NODE: &str = "local";

/// What a pod is called towards the node proxy: its name, and its network, so that who comes anew is somebody else.
type Pods = BTreeMap<String, (Who, Namespace)>;

/// See the module. It ends with its runtime.
#[derive(Debug)]
pub(crate) struct NodeAgent {
    pods: watch::Sender<Arc<Pods>>,
    served: Arc<Mutex<BTreeSet<String>>>,
}

impl NodeAgent {
    /// Waits for the node proxy at `path`.
    pub(crate) fn start(path: PathBuf, runtime: &tokio::runtime::Handle) -> io::Result<Self> {
        let (pods, told) = watch::channel(Arc::default());
        let served = Arc::default();
        let agents = {
            let _inside = runtime.enter();
            Agents::listen(&path)?
        };
        runtime.spawn(run(agents, told, Arc::clone(&served)));
        Ok(Self { pods, served })
    }

    /// These are the pods now.
    pub(crate) fn tell(&self, pods: Pods) {
        self.pods.send_if_modified(|held| {
            let news = held.keys().ne(pods.keys());
            if news {
                *held = Arc::new(pods);
            }
            news
        });
    }

    /// Whether the node proxy has said that it serves this one.
    pub(crate) fn serves(&self, uid: &str) -> bool {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.contains(uid)
    }
}

/// The name of a pod in this network.
pub(crate) fn uid(pod: &voile_model::ResourceName, inside: &Namespace) -> io::Result<String> {
    let (_, inode) = inside.id()?;
    Ok(format!("{pod}/{inode}"))
}

async fn run(
    agents: Agents,
    mut told: watch::Receiver<Arc<Pods>>,
    served: Arc<Mutex<BTreeSet<String>>>,
) {
    loop {
        match agents.accept().await {
            Ok(channel) => {
                let ended = converse(&channel, &mut told, &served).await;
                served
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clear();
                match ended {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(%error, "the node proxy is gone"),
                }
            }
            Err(error) => tracing::warn!(%error, "a node proxy is not understood"),
        }
    }
}

/// Tells one proxy of everything, and of each change; ends with the mesh.
async fn converse(
    channel: &Channel,
    told: &mut watch::Receiver<Arc<Pods>>,
    served: &Mutex<BTreeSet<String>>,
) -> io::Result<()> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut complete = false;
    loop {
        let pods = Arc::clone(&told.borrow_and_update());
        let gone: Vec<String> = known
            .iter()
            .filter(|uid| !pods.contains_key(*uid))
            .cloned()
            .collect();
        for uid in gone {
            known.remove(&uid);
            served
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&uid);
            say(channel, &Told::Remove(uid)).await?;
        }
        for (uid, (who, inside)) in pods.iter() {
            if !known.insert(uid.clone()) {
                continue;
            }
            let inside = inside.as_fd().try_clone_to_owned()?;
            let add = Told::Add {
                uid: uid.clone(),
                who: who.clone(),
                inside,
            };
            if say(channel, &add).await? {
                served
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(uid.clone());
            }
        }
        if !std::mem::replace(&mut complete, true) {
            say(channel, &Told::Complete).await?;
        }
        tokio::select! {
            changed = told.changed() => if changed.is_err() {
                return Ok(());
            },
            () = channel.ended() => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Whether the proxy says yes.
async fn say(channel: &Channel, told: &Told) -> io::Result<bool> {
    let answer = channel.tell(told).await?;
    if let Err(reason) = &answer {
        tracing::warn!(reason, "the node proxy refuses a pod");
    }
    Ok(answer.is_ok())
}
