//! Options of a run, and why it cannot begin.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use voile_host::enclosure::EnclosureError;

use crate::addresses::AddressError;
use crate::loopback_block::NoBlock;

/// Options of `voile up`.
#[derive(Debug)]
pub struct RunnerOptions {
    /// The folder that describes the mesh.
    pub folder: PathBuf,
    /// Folder of the control plane's keys. `None` is the run's own folder, so that the keys are new each time.
    pub state: Option<PathBuf>,
    /// True if a root may be made that differs from the one that the state folder held before.
    pub new_root: bool,
    /// True if the run ends at its start because of any error in the folder.
    pub strict: bool,
    /// No live state.
    pub quiet: bool,
    /// Every process's lines.
    pub logs: bool,
    /// Once all is ready, run this by the shell, then stop, with its exit code.
    pub once_ready: Option<String>,
    /// The path of this program.
    pub voile: PathBuf,
    /// Validity of the sidecars' tokens; they are written anew after half of it.
    pub token_ttl: Duration,
    /// Number of control planes, 1 to [`crate::MAX_CONTROL_PLANES`].
    pub control_planes: usize,
    /// Further words for the control plane.
    pub control: Vec<(&'static str, String)>,
    /// True if pods in namespaces reach the host's network.
    pub egress: bool,
    /// Proxies that serve the pods.
    pub dataplane: Dataplane,
    /// True without a choice by the user: a node proxy is added if the folder has ambient pods and namespaces are
    /// available.
    pub by_labels: bool,
}

/// Kind of proxies that serve pods. A node proxy needs namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dataplane {
    /// A sidecar in each that is injected.
    Sidecars,
    /// One node proxy in place of those sidecars.
    Node,
    /// Sidecars where they are injected, and a node proxy for pods that are ambient.
    Mixed,
}

impl Dataplane {
    /// Returns true if there is a node proxy.
    pub fn has_node(self) -> bool {
        self != Self::Sidecars
    }
}

/// Messages from signals.
#[derive(Debug)]
pub struct SignalMessages {
    /// A message or a hang-up: stop.
    pub stop: Receiver<()>,
    /// Set when every sidecar is to be replaced by a new process.
    pub replace: Arc<AtomicBool>,
}

/// Why a mesh does not run.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The folder cannot be read.
    #[error("cannot read the folder: {0}")]
    Folder(io::Error),
    /// Errors in the folder, which have been printed, leave nothing to start, or are not tolerated.
    #[error("{} in the folder; nothing was started", counted(*.0))]
    Problems(usize),
    /// A document may be a security resource, and no earlier configuration is known.
    #[error(
        "a document that may be a security resource cannot be read (V0124); nothing was started: correct it, or move it out of the folder"
    )]
    NeverRead,
    /// Something on this machine.
    #[error("{0}")]
    Machine(#[from] io::Error),
    /// No namespaces, though they were asked for.
    #[error(
        "--isolation netns is not possible here: {0}; --isolation loopback needs no privileges"
    )]
    Namespaces(EnclosureError),
    /// No block of addresses.
    #[error(transparent)]
    Block(#[from] NoBlock),
    /// Not enough addresses in the block.
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// The state directory or its keys.
    #[error("cannot use the state directory: {0}")]
    State(String),
    /// It did not become ready.
    #[error("not ready after {waited:?}; still waiting for {what}")]
    Late {
        /// Time that the runner waited.
        waited: Duration,
        /// Condition that was not met.
        what: String,
    },
    /// One of our own processes ends again and again.
    #[error("{0} keeps ending; it cannot become ready")]
    Ends(String),
    /// The command of `--once-ready` cannot be run.
    #[error("cannot run `{0}`: {1}")]
    Command(String, io::Error),
}

/// `1 error`, `2 errors`.
pub(super) fn counted(errors: usize) -> String {
    if errors == 1 {
        "1 error".to_owned()
    } else {
        format!("{errors} errors")
    }
}
