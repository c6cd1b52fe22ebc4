//! Start of serving, and handover. A first process serves at once. A successor serves when it knows as much as the
//! process before it, and that process no longer accepts. All pods' listeners are handed over with the pages'
//! sockets. Both processes hold the same sockets for a while, so that new connections wait in the kernel and are not
//! refused.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;
use voile_process::{PageSockets, PageSource, ProcessOptions, RunError};
use voile_transport::PacketListener;
use voile_transport::handover::{
    IncumbentProcess, InheritedSockets, Lent, Predecessor, READY_LIMIT, offer, take_over,
    until_it_opens,
};

use crate::NodeOptions;
use crate::agents::role;
use crate::pages::PageSources;
use crate::pod::CERTIFICATE_PATIENCE;

/// Interval at which a process that takes over checks if it may serve.
const FITNESS_LOOK: Duration = Duration::from_millis(20);

/// Name under which a node proxy asks its predecessor.
#[derive(Debug, Clone)]
pub(crate) struct NodeIdentity {
    /// Node and trust domain: a process of another node or trust domain is no successor.
    name: String,
    /// The network of its own pages.
    place: (u64, u64),
}

/// Result of asking the previous process for its listeners.
pub(crate) struct Legacy {
    pub(crate) who: NodeIdentity,
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) inherited: InheritedSockets,
}

impl Legacy {
    /// Asks the previous process for its listeners, if there is one.
    pub(crate) fn claim(options: &NodeOptions) -> Result<Self, RunError> {
        let place = voile_host::netns::Namespace::current()?.id()?;
        let name = format!("node {} of {}", options.node, options.trust_domain);
        let who = NodeIdentity { name, place };
        let (predecessor, inherited) = match &options.process.handover {
            Some(path) => take_over(path, &who.said())?,
            None => (None, InheritedSockets::default()),
        };
        Ok(Self {
            who,
            predecessor,
            inherited,
        })
    }

    /// The pages' sockets. Those of another network are another's.
    pub(crate) fn pages(&mut self, options: &ProcessOptions) -> Result<PageSockets, RunError> {
        let place = self.who.place;
        PageSockets::bind(options, &mut self.inherited, |purpose| role(purpose, place))
    }
}

impl NodeIdentity {
    fn said(&self) -> String {
        let (device, inode) = self.place;
        format!("{} in {device}:{inode}", self.name)
    }
}

/// Process that serves in place of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeSuccessor {
    /// No process.
    Nobody,
    /// A process of this proxy's own network: this process ends when all connections have ended.
    Here,
    /// A process of another network, such as the next pod of a DaemonSet. The supervisor ends this process, and would
    /// restart it if it ended by itself.
    Elsewhere,
}

/// See the module.
pub(crate) struct NodeListeners {
    told: Rc<PageSources>,
    who: NodeIdentity,
    pages: Rc<RefCell<Option<PageSockets>>>,
    serving: Rc<RefCell<Vec<AbortHandle>>>,
    offering: Cell<Option<AbortHandle>>,
    /// Process that asked last.
    candidate: Cell<NodeSuccessor>,
    successor: Cell<NodeSuccessor>,
}

impl NodeListeners {
    pub(crate) fn new(told: &Rc<PageSources>, who: NodeIdentity, pages: PageSockets) -> Rc<Self> {
        Rc::new(Self {
            told: Rc::clone(told),
            who,
            pages: Rc::new(RefCell::new(Some(pages))),
            serving: Rc::default(),
            offering: Cell::default(),
            candidate: Cell::new(NodeSuccessor::Nobody),
            successor: Cell::new(NodeSuccessor::Nobody),
        })
    }

    /// Opens them, once the process before us has stopped if there is one.
    pub(crate) async fn open(
        self: Rc<Self>,
        predecessor: Option<Predecessor>,
        path: Option<PathBuf>,
    ) -> Result<(), RunError> {
        let relieved = match predecessor {
            None => None,
            Some(predecessor) => {
                let fit = tokio::time::timeout(READY_LIMIT, self.fit()).await;
                fit.map_err(|_| self.late())?;
                predecessor.relieve().await?
            }
        };
        self.serve()?;
        if let Some(path) = &path
            && let Err(error) = self.offer(path)
        {
            // One that is the first says so at once; one that has taken over serves without a way to hand over.
            match relieved {
                None => return Err(error),
                Some(_) => {
                    tracing::error!(%error, "cannot open the handover socket; serving without handover");
                }
            }
        }
        // This comes before the old process ends. A client of a pod that the agent did not name is refused, and does
        // not wait at a socket without a server.
        self.told.agency.forget_inherited();
        if let Some(relieved) = relieved {
            relieved.dismiss().await;
        }
        Ok(())
    }

    fn serve(&self) -> io::Result<()> {
        if let Some(pages) = &*self.pages.borrow() {
            self.serving.replace(pages.serve(&self.told)?);
        }
        self.told.agency.open();
        Ok(())
    }

    fn offer(self: &Rc<Self>, path: &Path) -> Result<(), RunError> {
        let listener = PacketListener::bind(path).map_err(|error| {
            RunError::Handover(format!("cannot listen at {}: {error}", path.display()))
        })?;
        let offering = tokio::task::spawn_local(offer(listener, Rc::clone(self)));
        self.offering.set(Some(offering.abort_handle()));
        Ok(())
    }

    /// Ready when we could serve as well as the process before us.
    async fn fit(&self) {
        let mut known_since = None;
        loop {
            if self.told.unready().is_empty() && self.knows_its_pods() {
                let since = *known_since.get_or_insert_with(Instant::now);
                let (certified, all) = self.certified();
                if may_serve(certified, all, since.elapsed()) {
                    return;
                }
            }
            tokio::time::sleep(FITNESS_LOOK).await;
        }
    }

    fn knows_its_pods(&self) -> bool {
        let view = self.told.view.borrow();
        let pods = self.told.agency.pods();
        let mut addresses = pods.iter().flat_map(|pod| &pod.addresses);
        addresses.all(|address| view.knows(*address))
    }

    /// Returns the number of pods that have a certificate, and the number of pods.
    fn certified(&self) -> (usize, usize) {
        let pods = self.told.agency.pods();
        let has = |pod: &&std::sync::Arc<crate::pod::Pod>| pod.badge.store.current().is_some();
        (pods.iter().filter(has).count(), pods.len())
    }

    /// Why a successor gives up.
    fn late(&self) -> RunError {
        let (certified, all) = self.certified();
        let reasons = self.told.unready().join("; ");
        RunError::Handover(format!(
            "not ready within {READY_LIMIT:?} ({certified} of {all} pods have a certificate; {reasons}); the running proxy goes on serving"
        ))
    }

    /// Stops offering the listeners to a successor. Returns the process that serves in place of this one.
    pub(crate) fn close(&self) -> NodeSuccessor {
        if let Some(offering) = self.offering.take() {
            offering.abort();
        }
        self.successor.get()
    }
}

/// Reports if a process may take over. It has certificates for `certified` of `all` pods, and has waited since it
/// knew all else. One pod without a certified identity must not keep the other pods from a newer process. An
/// authority that certifies no pod must keep them.
fn may_serve(certified: usize, all: usize, waited: Duration) -> bool {
    certified == all || (certified > 0 && waited >= CERTIFICATE_PATIENCE)
}

impl IncumbentProcess for NodeListeners {
    fn who(&self) -> String {
        self.who.said()
    }

    fn admits(&self, who: &str) -> bool {
        let Some((name, _)) = who.rsplit_once(" in ") else {
            return false;
        };
        let admitted = name == self.who.name;
        if admitted {
            self.told.agency.defer(true);
            self.candidate.set(match who == self.who.said() {
                true => NodeSuccessor::Here,
                false => NodeSuccessor::Elsewhere,
            });
        }
        admitted
    }

    fn sockets(&self) -> io::Result<Vec<Lent>> {
        let mut all = self.told.agency.lend()?;
        if let Some(pages) = &*self.pages.borrow() {
            all.extend(pages.lend(|purpose| role(purpose, self.who.place))?);
        }
        Ok(all)
    }

    /// Stops accepting, and ends the conversation with the agent: the successor listens for new pods.
    fn stop(&self) {
        self.told.agency.hang_up();
        self.told.agency.pause();
        self.serving.take().iter().for_each(AbortHandle::abort);
    }

    fn resume(&self) {
        self.told.agency.talk();
        self.told.agency.open();
        let (told, pages) = (Rc::clone(&self.told), Rc::clone(&self.pages));
        let serving = Rc::clone(&self.serving);
        let reopening = tokio::task::spawn_local(async move {
            let open = || match &*pages.borrow() {
                Some(pages) => pages.serve(&told),
                None => Ok(Vec::new()),
            };
            let tasks = until_it_opens("the pages", open).await;
            serving.replace(tasks);
        });
        self.serving.replace(vec![reopening.abort_handle()]);
    }

    fn abandoned(&self) {
        self.told.agency.defer(false);
    }

    fn succeeded(&self) {
        self.pages.take();
        self.successor.set(self.candidate.get());
        self.told.ending.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_over_has_all_certificates_or_after_a_while_some() {
        let patience = CERTIFICATE_PATIENCE;
        for (certified, all, waited, expected) in [
            (0, 0, Duration::ZERO, true),
            (3, 3, Duration::ZERO, true),
            (2, 3, Duration::ZERO, false),
            (2, 3, patience, true),
            (0, 3, patience, false),
        ] {
            let may = may_serve(certified, all, waited);
            assert_eq!(may, expected, "{certified} of {all} after {waited:?}");
        }
    }
}
