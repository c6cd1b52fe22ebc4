//! Agent of a mesh with a node proxy. It reports the pods and their networks, as Istio's CNI agent does on a
//! Kubernetes node, by the same protocol. During a handover there are two proxies. Only the latest hears of new pods,
//! since two cannot listen in one; both hear of removed pods. When the latest ends, the one before it hears of the
//! pods that it missed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use voile_host::netns::Namespace;
use voile_zds::{AgentMessage, Agents, Channel, PodIdentity};

/// Namespace of the node proxy itself.
pub(crate) const NAMESPACE: &str = "istio-system";
/// Its pod, and its service account.
pub(crate) const NAME: &str = "node-proxy";
/// The one node there is.
pub(crate) const NODE: &str = "local";

/// Pause of accepting after an error.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Pods as the node proxy sees them, by uid: name and network. A pod that is started anew counts as another pod.
type Pods = BTreeMap<String, (PodIdentity, Namespace)>;

/// Connected proxies, in the order in which they came, and the pods that each confirmed.
type Talks = BTreeMap<u64, BTreeSet<String>>;

/// See the module. It ends with its runtime.
#[derive(Debug)]
pub(crate) struct NodeAgent {
    pods: watch::Sender<Arc<Pods>>,
    talks: Arc<watch::Sender<Talks>>,
}

impl NodeAgent {
    /// Waits for the node proxy at `path`.
    pub(crate) fn start(path: PathBuf, runtime: &tokio::runtime::Handle) -> io::Result<Self> {
        let (pods, told) = watch::channel(Arc::default());
        let talks = Arc::default();
        let agents = {
            let _inside = runtime.enter();
            Agents::listen(&path)?
        };
        runtime.spawn(run(agents, told, Arc::clone(&talks)));
        Ok(Self { pods, talks })
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

    /// Returns true if a node proxy has confirmed that it serves this pod.
    pub(crate) fn serves(&self, uid: &str) -> bool {
        let talks = self.talks.borrow();
        talks.values().any(|served| served.contains(uid))
    }
}

/// The name of a pod in this network.
pub(crate) fn uid(pod: &voile_model::ResourceName, inside: &Namespace) -> io::Result<String> {
    let (_, inode) = inside.id()?;
    Ok(format!("{pod}/{inode}"))
}

async fn run(agents: Agents, told: watch::Receiver<Arc<Pods>>, talks: Arc<watch::Sender<Talks>>) {
    for number in 0.. {
        match agents.accept().await {
            Ok(channel) => {
                talks.send_modify(|talks| drop(talks.insert(number, BTreeSet::new())));
                let (told, talks) = (told.clone(), Arc::clone(&talks));
                tokio::spawn(async move {
                    let talk = AgentConversation {
                        number,
                        talks: &talks,
                    };
                    if let Err(error) = talk.converse(&channel, told).await {
                        tracing::debug!(%error, "the node proxy has ended");
                    }
                    talks.send_modify(|talks| drop(talks.remove(&number)));
                });
            }
            Err(error) => {
                tracing::warn!(%error, "unexpected answer of the node proxy");
                // Without descriptors the same error would come again at once.
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One conversation.
struct AgentConversation<'a> {
    number: u64,
    talks: &'a watch::Sender<Talks>,
}

impl AgentConversation<'_> {
    /// Tells one proxy of everything, and of each change; ends with the mesh.
    async fn converse(
        &self,
        channel: &Channel,
        mut told: watch::Receiver<Arc<Pods>>,
    ) -> io::Result<()> {
        let mut talks = self.talks.subscribe();
        let mut known: BTreeSet<String> = BTreeSet::new();
        let mut complete = false;
        loop {
            let latest = talks.borrow_and_update().keys().next_back() == Some(&self.number);
            let pods = Arc::clone(&told.borrow_and_update());
            let gone: Vec<String> = known
                .extract_if(.., |uid| !pods.contains_key(uid))
                .collect();
            for uid in gone {
                self.note(|served| {
                    served.remove(&uid);
                });
                say(channel, &AgentMessage::Remove(uid)).await?;
            }
            for (uid, (who, inside)) in pods.iter().filter(|_| latest) {
                if !known.insert(uid.clone()) {
                    continue;
                }
                let inside = inside.as_fd().try_clone_to_owned()?;
                let add = AgentMessage::Add {
                    uid: uid.clone(),
                    who: who.clone(),
                    inside,
                };
                if say(channel, &add).await? {
                    self.note(|served| {
                        served.insert(uid.clone());
                    });
                }
            }
            if latest && !std::mem::replace(&mut complete, true) {
                say(channel, &AgentMessage::Complete).await?;
            }
            tokio::select! {
                changed = told.changed() => if changed.is_err() {
                    return Ok(());
                },
                // We hold its sender.
                _ = talks.changed() => {}
                () = channel.ended() => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// Changes the pods that this proxy has confirmed.
    fn note(&self, change: impl FnOnce(&mut BTreeSet<String>)) {
        self.talks.send_modify(|talks| {
            if let Some(served) = talks.get_mut(&self.number) {
                change(served);
            }
        });
    }
}

/// Tells the proxy; returns true if it agrees.
async fn say(channel: &Channel, told: &AgentMessage) -> io::Result<bool> {
    let answer = channel.tell(told).await?;
    if let Err(reason) = &answer {
        tracing::warn!(reason, "the node proxy refuses a pod");
    }
    Ok(answer.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the next message to a proxy, and agrees.
    async fn hears(proxy: &Channel) -> String {
        let told = proxy.hear().await.expect("heard").expect("a word");
        proxy.answer(Ok(())).await.expect("answered");
        match told {
            AgentMessage::Add { uid, .. } => format!("add {uid}"),
            AgentMessage::Keep(uid) => format!("keep {uid}"),
            AgentMessage::Remove(uid) => format!("remove {uid}"),
            AgentMessage::Complete => "complete".to_owned(),
        }
    }

    fn pods(names: &[&str]) -> Pods {
        let pod = |name: &&str| {
            let who = PodIdentity {
                name: (*name).to_owned(),
                namespace: "shop".to_owned(),
                service_account: "default".to_owned(),
            };
            let inside = Namespace::current().expect("a network");
            ((*name).to_owned(), (who, inside))
        };
        names.iter().map(pod).collect()
    }

    #[test]
    fn of_two_proxies_the_latest_hears_of_new_pods_both_of_those_that_go_and_the_first_catches_up()
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("zds");
        let agent = NodeAgent::start(path.clone(), runtime.handle()).expect("it listens");
        runtime.block_on(async {
            agent.tell(pods(&["a", "b"]));
            let first = Channel::connect(&path).await.expect("an agent");
            for word in ["add a", "add b", "complete"] {
                assert_eq!(hears(&first).await, word);
            }
            let second = Channel::connect(&path).await.expect("an agent");
            for word in ["add a", "add b", "complete"] {
                assert_eq!(hears(&second).await, word);
            }
            agent.tell(pods(&["b", "c"]));
            assert_eq!(hears(&first).await, "remove a");
            for word in ["remove a", "add c"] {
                assert_eq!(hears(&second).await, word);
            }
            agent.tell(pods(&["b"]));
            assert_eq!(hears(&second).await, "remove c");
            agent.tell(pods(&["b", "d"]));
            assert_eq!(hears(&second).await, "add d");
            drop(second);
            assert_eq!(hears(&first).await, "add d", "of c it never heard");
            agent.tell(pods(&["d"]));
            assert_eq!(hears(&first).await, "remove b");
            assert!(agent.serves("d") && !agent.serves("b") && !agent.serves("c"));
        });
    }
}
