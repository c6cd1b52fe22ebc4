//! The agent of one node: announces pods and their networks to its proxy, by the protocol of Istio's CNI agent. Voile's node
//! proxy and ztunnel both speak it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::watch;
use tokio::task::JoinSet;
use voile_host::netns::Namespace;
use voile_zds::{AgentMessage, Agents, Channel, PodIdentity};

/// A pod of the node.
#[derive(Debug, Clone)]
pub(crate) struct NodePod {
    pub(crate) name: String,
    pub(crate) account: String,
    pub(crate) inside: Namespace,
}

/// Answers of the proxy about its pods. If two proxies speak with the agent, the answers are those of the later one.
#[derive(Debug, Default)]
struct AgentAnswers {
    serves: BTreeSet<String>,
    /// The last pod that it refused, and why.
    refusal: Option<String>,
}

/// The agent ends when it is dropped; its proxy goes on.
#[derive(Debug)]
pub(crate) struct Agent {
    /// All pods so far; none once the agent ends.
    pods: Option<watch::Sender<Vec<NodePod>>>,
    answers: Arc<Mutex<AgentAnswers>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Waits for the proxy at `path`, and announces these pods to it.
    pub(crate) fn start(path: &Path, pods: Vec<NodePod>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let listening = {
            let _inside = runtime.enter();
            Agents::listen(path)?
        };
        let (pods, told) = watch::channel(pods);
        let answers = Arc::<Mutex<AgentAnswers>>::default();
        let heard = Arc::clone(&answers);
        let thread = std::thread::Builder::new()
            .name("node-agent".to_owned())
            .spawn(move || runtime.block_on(run(&listening, told, heard)))?;
        Ok(Self {
            pods: Some(pods),
            answers,
            thread: Some(thread),
        })
    }

    /// Adds a pod.
    pub(crate) fn add(&self, pod: NodePod) {
        if let Some(pods) = &self.pods {
            pods.send_modify(|all| all.push(pod));
        }
    }

    /// Returns true if the proxy serves so many pods. The error is the reason why it refused a pod.
    pub(crate) fn serves(&self, pods: usize) -> Result<bool, String> {
        let answers = lock(&self.answers);
        match &answers.refusal {
            Some(why) => Err(why.clone()),
            None => Ok(answers.serves.len() >= pods),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.pods = None;
        if let Some(thread) = self.thread.take() {
            // The thread ends because `pods` is gone. A panic was printed already.
            let _ = thread.join();
        }
    }
}

/// Tells every proxy that connects about all pods. A proxy that is about to take over connects while its predecessor still
/// serves.
async fn run(
    agents: &Agents,
    told: watch::Receiver<Vec<NodePod>>,
    answers: Arc<Mutex<AgentAnswers>>,
) {
    let mut ended = told.clone();
    let mut conversations = JoinSet::new();
    loop {
        let proxy = tokio::select! {
            proxy = agents.accept() => proxy,
            () = gone(&mut ended) => return,
        };
        // A proxy that says something strange, or hangs up, may come again.
        let Ok(channel) = proxy else { continue };
        let (mut told, answers) = (told.clone(), Arc::clone(&answers));
        *lock(&answers) = AgentAnswers::default();
        conversations.spawn(async move { converse(&channel, &mut told, &answers).await });
    }
}

fn lock(answers: &Mutex<AgentAnswers>) -> MutexGuard<'_, AgentAnswers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the agent ends, so that no more pods can come.
async fn gone(told: &mut watch::Receiver<Vec<NodePod>>) {
    while told.changed().await.is_ok() {}
}

/// Tells one proxy of all pods, and of each that comes, until the agent ends.
async fn converse(
    channel: &Channel,
    told: &mut watch::Receiver<Vec<NodePod>>,
    answers: &Mutex<AgentAnswers>,
) -> io::Result<()> {
    let mut known = 0;
    let mut complete = false;
    loop {
        let news: Vec<NodePod> = told.borrow_and_update()[known..].to_vec();
        known += news.len();
        for pod in news {
            let said = channel.tell(&add(&pod)?).await?;
            let mut answers = lock(answers);
            match said {
                Ok(()) => {
                    answers.serves.insert(pod.name);
                }
                Err(why) => answers.refusal = Some(format!("{} is refused: {why}", pod.name)),
            }
        }
        if !std::mem::replace(&mut complete, true) {
            // The proxy may refuse only a pod.
            let _ = channel.tell(&AgentMessage::Complete).await?;
        }
        tokio::select! {
            changed = told.changed() => if changed.is_err() {
                return Ok(());
            },
            () = channel.ended() => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn add(pod: &NodePod) -> io::Result<AgentMessage> {
    Ok(AgentMessage::Add {
        uid: pod.name.clone(),
        who: PodIdentity {
            name: pod.name.clone(),
            namespace: super::NAMESPACE.to_owned(),
            service_account: pod.account.clone(),
        },
        inside: pod.inside.as_fd().try_clone_to_owned()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> NodePod {
        NodePod {
            name: name.to_owned(),
            account: "server".to_owned(),
            inside: Namespace::current().expect("we are somewhere"),
        }
    }

    #[test]
    fn a_proxy_hears_of_every_pod_also_of_those_that_come_later_and_anew_when_it_comes_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("zds");
        let agent = Agent::start(&path, vec![pod("first")]).expect("listens");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime");
        let heard = |told: Option<AgentMessage>| match told {
            Some(AgentMessage::Add { uid, who, .. }) => format!("{uid} {}", who.service_account),
            told => format!("{told:?}"),
        };
        runtime.block_on(async {
            let proxy = Channel::connect(&path).await.expect("it listens");
            assert_eq!(heard(proxy.hear().await.expect("a word")), "first server");
            assert_eq!(agent.serves(1), Ok(false), "it has not answered");
            proxy.answer(Ok(())).await.expect("heard");
            assert_eq!(heard(proxy.hear().await.expect("a word")), "Some(Complete)");
            assert_eq!(agent.serves(1), Ok(true));
            proxy.answer(Ok(())).await.expect("heard");
            agent.add(pod("second"));
            assert_eq!(heard(proxy.hear().await.expect("a word")), "second server");
            drop(proxy);
            let again = Channel::connect(&path).await.expect("it listens still");
            assert_eq!(heard(again.hear().await.expect("a word")), "first server");
            again.answer(Ok(())).await.expect("heard");
            assert_eq!(heard(again.hear().await.expect("a word")), "second server");
            again.answer(Err("no such node")).await.expect("heard");
            let _ = again.hear().await.expect("a word");
        });
        let why = agent.serves(2).expect_err("one is refused");
        assert!(why.contains("second is refused: no such node"), "{why}");
    }
}
