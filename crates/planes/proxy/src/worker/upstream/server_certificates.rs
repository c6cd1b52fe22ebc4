//! Certificates that a workload showed us as a server, and the signal that ends its connections: given when one of them is
//! revoked, and when the worker stops. Kept by endpoint, so that a connection holds nothing for it. A workload whose keys
//! are lost loses all its connections.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use voile_identity::{CertificateKey, Revocations};

use crate::worker::listeners::termination::{Stop, StopListener};

/// Certificates remembered of one endpoint: those of half a month of renewals; older ones have expired.
const MAX_REMEMBERED: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct WorkerSnapshot {
    certificates: RefCell<VecDeque<CertificateKey>>,
    cut: Stop,
}

impl WorkerSnapshot {
    /// One more connection was verified by these.
    pub(crate) fn remember(&self, keys: &[CertificateKey]) {
        let mut known = self.certificates.borrow_mut();
        for key in keys {
            if !known.contains(key) {
                known.push_back(*key);
            }
        }
        while known.len() > MAX_REMEMBERED {
            known.pop_front();
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_given()
    }

    /// Ready when it is.
    pub(crate) fn cut(&self) -> StopListener {
        self.cut.heard()
    }
}

/// All of a worker's.
#[derive(Default)]
pub(crate) struct AllShown(RefCell<Vec<Weak<WorkerSnapshot>>>);

impl AllShown {
    /// One more.
    pub(crate) fn begin(&self) -> Rc<WorkerSnapshot> {
        let shown = Rc::new(WorkerSnapshot::default());
        let mut all = self.0.borrow_mut();
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
        }
        all.push(Rc::downgrade(&shown));
        shown
    }

    /// Ends connections to peers that showed a revoked certificate.
    pub(crate) fn revoke(&self, lists: &Revocations) {
        self.cut_if(|shown| {
            let known = shown.certificates.borrow();
            known.iter().any(|key| lists.includes(*key))
        });
    }

    /// Ends everything.
    pub(crate) fn stop(&self) {
        self.cut_if(|_| true);
    }

    fn cut_if(&self, condition: impl Fn(&WorkerSnapshot) -> bool) {
        for shown in self.0.borrow().iter().filter_map(Weak::upgrade) {
            if condition(&shown) {
                shown.cut.give();
            }
        }
    }
}
