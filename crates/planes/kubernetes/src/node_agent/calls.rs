//! Calls of the CNI plugin. Each is one pod with its network; the answer comes when the pod may start.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use voile_host::netns::Namespace;
use voile_zds::{AgentMessage, Agents, Channel, PodIdentity};

use super::role::PodRole;
use super::sidecars::SidecarCapture;
use super::view::NodeView;
use crate::cni::is_uid_of;

/// Longest wait for a pod that a runtime starts and the watch has not told yet.
const POD_LIMIT: Duration = Duration::from_secs(5);
/// Pause of accepting after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A new pod that is to be enrolled before it starts.
#[derive(Debug)]
pub(super) struct NewPod {
    pub(super) uid: String,
    pub(super) network: Namespace,
    /// Takes the answer.
    pub(super) answer: oneshot::Sender<Result<(), String>>,
}

/// Serves plugins at `socket`, for ever. Must be called inside a tokio runtime.
///
/// # Errors
/// As [`Agents::listen`].
pub(super) fn serve(
    socket: &Path,
    view: watch::Receiver<NodeView>,
    sidecars: Arc<SidecarCapture>,
    enrolments: mpsc::Sender<NewPod>,
) -> io::Result<impl Future<Output = ()> + use<>> {
    let agents = Agents::listen(socket)?;
    Ok(async move {
        loop {
            match agents.accept().await {
                Ok(channel) => {
                    let (view, enrolments) = (view.clone(), enrolments.clone());
                    let sidecars = Arc::clone(&sidecars);
                    tokio::spawn(async move {
                        if let Err(error) = answer(&channel, view, &sidecars, enrolments).await {
                            tracing::warn!(%error, "a call of the CNI plugin failed");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a call of the CNI plugin is refused");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

async fn answer(
    channel: &Channel,
    view: watch::Receiver<NodeView>,
    sidecars: &SidecarCapture,
    enrolments: mpsc::Sender<NewPod>,
) -> io::Result<()> {
    let Some(AgentMessage::Add { uid, who, inside }) = channel.hear().await? else {
        return channel.answer(Err("expected a pod")).await;
    };
    let done = admit(&uid, &who, inside.into(), view, (sidecars, enrolments)).await;
    channel
        .answer(done.as_ref().map_err(String::as_str).copied())
        .await
}

async fn admit(
    told: &str,
    who: &PodIdentity,
    network: Namespace,
    mut view: watch::Receiver<NodeView>,
    (sidecars, enrolments): (&SidecarCapture, mpsc::Sender<NewPod>),
) -> Result<(), String> {
    let find = |view: &NodeView| {
        let mut pods = view.pods.iter();
        let found = pods.find(|(uid, pod)| {
            pod.namespace == who.namespace && pod.name == who.name && is_uid_of(told, uid)
        });
        found.map(|(uid, pod)| (uid.clone(), view.role(pod), pod.object.clone()))
    };
    let seen = async {
        let view = view.wait_for(|view| find(view).is_some()).await.ok()?;
        find(&view)
    };
    let found = tokio::time::timeout(POD_LIMIT, seen).await;
    let Some((uid, role, pod)) = found.ok().flatten() else {
        return Err(format!(
            "the API server has not told of pod {}/{} in {POD_LIMIT:?}",
            who.namespace, who.name
        ));
    };
    match role {
        PodRole::Outside => return Ok(()),
        PodRole::Sidecar => return sidecars.capture(&uid, &pod, network).await,
        PodRole::Ambient => {}
    }
    let (answer, answered) = oneshot::channel();
    let new = NewPod {
        uid,
        network,
        answer,
    };
    let gone = || "the node agent ends".to_owned();
    enrolments.send(new).await.map_err(|_| gone())?;
    answered.await.map_err(|_| gone())?
}
