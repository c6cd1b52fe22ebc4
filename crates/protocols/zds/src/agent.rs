//! The agent's end for a set of pods. It reports them and their networks to each proxy that connects, as Istio's CNI
//! agent does. During a handover there are two proxies. Only the latest hears of new pods, since two cannot listen in
//! one; both hear of removed pods. When the latest ends, the one before it hears of the pods that it missed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::messages::{AgentMessage, PodIdentity};
use crate::packets::{Agents, Channel};

/// Pause of accepting after an error.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Pods as the node proxy sees them, by uid: name and network. A pod that is started anew counts as another pod.
pub type ServedPods<N> = BTreeMap<String, (PodIdentity, N)>;

/// Connected proxies, in the order in which they came, and the pods that each confirmed.
type Talks = BTreeMap<u64, BTreeSet<String>>;

/// See the module. `N` is a network namespace, held open. Dropped, it listens no more and ends its conversations.
#[derive(Debug)]
pub struct NodeAgent<N> {
    /// `None` until the agent knows its pods: a proxy drops pods that a complete list lacks.
    pods: watch::Sender<Option<Arc<ServedPods<N>>>>,
    talks: Arc<watch::Sender<Talks>>,
    accepting: AbortHandle,
}

impl<N> Drop for NodeAgent<N> {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl<N: AsFd + Send + Sync + 'static> NodeAgent<N> {
    /// Waits for node proxies at `path`.
    ///
    /// # Errors
    /// As [`Agents::listen`].
    pub fn start(path: &Path, runtime: &tokio::runtime::Handle) -> io::Result<Self> {
        let (pods, told) = watch::channel(None);
        let talks = Arc::default();
        let agents = {
            let _inside = runtime.enter();
            Agents::listen(path)?
        };
        let accepting = runtime.spawn(run(agents, told, Arc::clone(&talks)));
        Ok(Self {
            pods,
            talks,
            accepting: accepting.abort_handle(),
        })
    }

    /// These are the pods now. Proxies hear nothing before the first call.
    pub fn tell(&self, pods: ServedPods<N>) {
        self.pods.send_if_modified(|held| {
            let same = |held: &Arc<ServedPods<N>>| held.keys().eq(pods.keys());
            let news = !held.as_ref().is_some_and(same);
            if news {
                *held = Some(Arc::new(pods));
            }
            news
        });
    }

    /// Returns true if a node proxy has confirmed that it serves this pod.
    pub fn serves(&self, uid: &str) -> bool {
        let talks = self.talks.borrow();
        talks.values().any(|served| served.contains(uid))
    }

    /// Waits until a node proxy has confirmed that it serves this pod.
    pub async fn served(&self, uid: &str) {
        let mut talks = self.talks.subscribe();
        let serves = |talks: &Talks| talks.values().any(|served| served.contains(uid));
        // The sender lives as long as this agent: there is no error.
        let _ = talks.wait_for(serves).await;
    }
}

async fn run<N: AsFd + Send + Sync + 'static>(
    agents: Agents,
    told: watch::Receiver<Option<Arc<ServedPods<N>>>>,
    talks: Arc<watch::Sender<Talks>>,
) {
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
    async fn converse<N: AsFd + Send + Sync>(
        &self,
        channel: &Channel,
        mut told: watch::Receiver<Option<Arc<ServedPods<N>>>>,
    ) -> io::Result<()> {
        let mut talks = self.talks.subscribe();
        let mut known: BTreeSet<String> = BTreeSet::new();
        let mut complete = false;
        tokio::select! {
            known = told.wait_for(Option::is_some) => if known.is_err() {
                return Ok(());
            },
            () = channel.ended() => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        loop {
            let latest = talks.borrow_and_update().keys().next_back() == Some(&self.number);
            let pods = told.borrow_and_update().clone().unwrap_or_default();
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

    fn pods(names: &[&str]) -> ServedPods<std::fs::File> {
        let pod = |name: &&str| {
            let who = PodIdentity {
                name: (*name).to_owned(),
                namespace: "shop".to_owned(),
                service_account: "default".to_owned(),
            };
            let inside = std::fs::File::open("/dev/null").expect("it is there");
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
        let agent = NodeAgent::start(&path, runtime.handle()).expect("it listens");
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

    #[test]
    fn a_proxy_hears_of_no_end_of_a_list_that_the_agent_does_not_know_yet() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("zds");
        let agent = NodeAgent::start(&path, runtime.handle()).expect("it listens");
        runtime.block_on(async {
            let proxy = Channel::connect(&path).await.expect("an agent");
            let mut talks = agent.talks.subscribe();
            let greeted = talks.wait_for(|talks| !talks.is_empty()).await;
            drop(greeted.expect("the agent lives"));
            tokio::task::yield_now().await;
            agent.tell(pods(&["a"]));
            for word in ["add a", "complete"] {
                assert_eq!(hears(&proxy).await, word);
            }
        });
    }
}
