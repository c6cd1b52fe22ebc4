//! Questions to the control plane about unknown callers, and the answers to the workers.

use crate::registry::peer;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_proto::type_url;
use voile_telemetry::PeerLabels;
use voile_xds::wire::WireWorkload;

use crate::control::discovery::state::Control;
use crate::control::discovery::unknown_callers::{MADE_ROOM, MAX_STRANGERS};
use crate::registry::address_name;
use crate::worker::ToWorker;

/// Peer of a workload, for workers, with the identity that it must prove.
fn known(workload: &WireWorkload) -> PeerLabels {
    let identity = workload.identity.as_ref();
    PeerLabels {
        principal: identity.map(ToString::to_string).unwrap_or_default(),
        ..peer(workload)
    }
}

impl Control {
    /// A worker met an address it does not know.
    pub(in crate::control) fn ask_for(&mut self, address: IpAddr) {
        if let Some(told) = self.strangers.told.get(&address) {
            // Asked by another worker before; the answer, if there is one, went to all.
            if let Some(answer) = told.clone() {
                self.tell(address, answer);
            }
            return;
        }
        if self.strangers.told.len() >= MAX_STRANGERS {
            let gone = self
                .strangers
                .followed
                .make_room(MADE_ROOM, &BTreeSet::new());
            self.let_go_of_strangers(gone);
        }
        self.strangers.told.insert(address, None);
        self.strangers.followed.begin(address, Instant::now());
        // Without room for the name the labels stay `unknown`.
        let _ = self
            .client
            .subscribe(type_url::ADDRESS, [address_name(address)]);
        self.answer_strangers();
    }

    pub(in crate::control) fn answer_strangers(&mut self) {
        let mut news = Vec::new();
        {
            let shared = self.shared();
            for (address, told) in &self.strangers.told {
                let known = shared
                    .registry
                    .workload_at(*address)
                    .map(|workload| workload.map(known));
                if known.is_some() && known != *told {
                    news.push((*address, known.flatten()));
                }
            }
        }
        for (address, answer) in news {
            self.strangers.told.insert(address, Some(answer.clone()));
            self.tell(address, answer);
        }
    }

    /// Lets go of those that no worker met for a while; says how many.
    pub(in crate::control) fn release_strangers(
        &mut self,
        met: &BTreeSet<IpAddr>,
        now: Instant,
        idle: Duration,
    ) -> usize {
        let gone = self.strangers.followed.settle(met, now, idle);
        self.let_go_of_strangers(gone)
    }

    fn let_go_of_strangers(&mut self, gone: Vec<IpAddr>) -> usize {
        if gone.is_empty() {
            return 0;
        }
        self.strangers.let_go += gone.len() as u64;
        for address in &gone {
            self.strangers.told.remove(address);
        }
        let unwanted: Vec<Arc<str>> = gone
            .iter()
            .filter(|address| !self.destinations.has_address(**address))
            .map(|address| address_name(*address).into())
            .collect();
        for name in &unwanted {
            self.shared().registry.forget_name(name);
        }
        self.client.unsubscribe(type_url::ADDRESS, unwanted);
        let gone: Arc<BTreeSet<IpAddr>> = Arc::new(gone.into_iter().collect());
        // A worker that meets one of them just now asks again.
        self.dispatcher
            .broadcast(|| ToWorker::Strangers(Arc::clone(&gone)));
        gone.len()
    }

    fn tell(&self, address: IpAddr, answer: Option<PeerLabels>) {
        self.dispatcher.broadcast(|| ToWorker::Peer {
            address,
            peer: answer.clone().map(Box::new),
        });
    }
}
