//! Peers without a verified identity, by source address: for metric labels only, never for a decision. The worker asks
//! once about an unknown address; until the answer comes, the labels say `unknown`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

use tokio::sync::mpsc;
use voile_telemetry::{Labels, PeerLabels, SeriesId, Shard};

use super::FromWorker;

/// Addresses remembered by one worker; the oldest makes room.
pub(crate) const MAX_PEERS: usize = 4096;

/// State of an address.
#[derive(Clone)]
pub(crate) enum PeerEntry {
    /// Asked, not answered.
    Asked,
    /// Answered: not a workload of the mesh.
    Stranger,
    /// A workload; with its identity, where it has one.
    Workload(Rc<PeerLabels>),
}

/// Returns true if two identities may be the same workload, whatever their trust domains. An unknown identity matches every
/// other.
fn may_be(one: &str, other: &str) -> bool {
    one.is_empty() || other.is_empty() || account(one) == account(other)
}

/// An identity without its trust domain.
fn account(identity: &str) -> Option<&str> {
    identity.find("/ns/").map(|at| &identity[at..])
}

/// An address that called.
struct KnownPeer {
    known: PeerEntry,
    /// Since the last question.
    used: Cell<bool>,
}

/// See the module.
pub(crate) struct Peers {
    known: RefCell<HashMap<IpAddr, KnownPeer>>,
    order: RefCell<VecDeque<IpAddr>>,
    unknown: mpsc::UnboundedSender<FromWorker>,
}

impl Peers {
    pub(crate) fn new(unknown: mpsc::UnboundedSender<FromWorker>) -> Self {
        Self {
            known: RefCell::default(),
            order: RefCell::default(),
            unknown,
        }
    }

    /// Returns the state of an address; asks about an unknown one.
    pub(crate) fn get(&self, address: IpAddr) -> PeerEntry {
        if let Some(met) = self.known.borrow().get(&address) {
            met.used.set(true);
            return met.known.clone();
        }
        self.remember(address, PeerEntry::Asked);
        // Without a receiver the process is ending, and no scrape will come.
        let _ = self.unknown.send(FromWorker::Stranger(address));
        PeerEntry::Asked
    }

    /// State of a caller at this address with this principal, empty in plaintext. If the principal is not the address's own, the
    /// caller comes through that workload, as from another network: only its identity is known.
    pub(crate) fn caller(&self, address: IpAddr, principal: &str) -> PeerEntry {
        match self.get(address) {
            PeerEntry::Workload(peer) if !may_be(&peer.principal, principal) => PeerEntry::Stranger,
            known => known,
        }
    }

    /// The answer.
    pub(crate) fn learn(&self, address: IpAddr, peer: Option<PeerLabels>) {
        let known = peer.map_or(PeerEntry::Stranger, |peer| {
            PeerEntry::Workload(Rc::new(peer))
        });
        self.remember(address, known);
    }

    /// The addresses that called since the last time, or wait for an answer.
    pub(crate) fn used(&self) -> Vec<IpAddr> {
        let known = self.known.borrow();
        let used = known.iter().filter(|(_, met)| {
            let waits = matches!(met.known, PeerEntry::Asked);
            met.used.replace(false) || waits
        });
        used.map(|(address, _)| *address).collect()
    }

    /// The control thread no longer follows these addresses; those that called just now are asked for again.
    pub(crate) fn forget(&self, gone: &BTreeSet<IpAddr>) {
        let mut all = self.known.borrow_mut();
        all.retain(|address, met| {
            let stays = !gone.contains(address) || met.used.get();
            if stays && gone.contains(address) {
                // Without a receiver the process is ending, and no scrape will come.
                let _ = self.unknown.send(FromWorker::Stranger(*address));
            }
            stays
        });
        all.shrink_to_fit();
        let mut order = self.order.borrow_mut();
        order.retain(|address| all.contains_key(address));
        order.shrink_to_fit();
    }

    fn remember(&self, address: IpAddr, known: PeerEntry) {
        let mut all = self.known.borrow_mut();
        if let Some(met) = all.get_mut(&address) {
            met.known = known;
            return;
        }
        let used = Cell::new(true);
        if all.insert(address, KnownPeer { known, used }).is_none() {
            let mut order = self.order.borrow_mut();
            order.push_back(address);
            if order.len() > MAX_PEERS
                && let Some(oldest) = order.pop_front()
            {
                all.remove(&oldest);
            }
        }
    }
}

/// Series whose caller is still being asked for.
#[derive(Default)]
pub(crate) struct Provisional(RefCell<Vec<(IpAddr, SeriesId)>>);

impl Provisional {
    /// The provisional series of this caller with these labels.
    pub(crate) fn series(
        &self,
        shard: &RefCell<Shard>,
        address: IpAddr,
        labels: &Labels,
    ) -> SeriesId {
        let mut waiting = self.0.borrow_mut();
        let mut shard = shard.borrow_mut();
        let same =
            |(theirs, id): &&(IpAddr, SeriesId)| *theirs == address && shard.labels(*id) == labels;
        if let Some((_, id)) = waiting.iter().find(same) {
            return *id;
        }
        let id = shard.provisional(labels);
        waiting.push((address, id));
        id
    }

    /// The answer came: the series of this address take their labels.
    pub(crate) fn settle(
        &self,
        shard: &RefCell<Shard>,
        address: IpAddr,
        peer: Option<&PeerLabels>,
    ) {
        let mut shard = shard.borrow_mut();
        self.0.borrow_mut().retain(|(theirs, id)| {
            if *theirs == address {
                shard.settle(*id, |labels| {
                    let peer = peer.filter(|one| may_be(&one.principal, &labels.source.principal));
                    if let Some(peer) = peer {
                        let principal = std::mem::take(&mut labels.source.principal);
                        labels.source = PeerLabels {
                            principal,
                            ..peer.clone()
                        };
                    }
                });
            }
            *theirs != address
        });
    }
}
