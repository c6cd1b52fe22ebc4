//! Processes that events of an experiment replaced by others. They either ended first, or finish their connections.

use std::net::SocketAddr;

use voile_host::child::{SupervisedChild, stop_all};

use crate::contestants::effect_evidence::{EffectEvidence, ListenerOwners};
use crate::shared_processes::STOP_GRACE;

/// Those that finish what they have, until a slice is over.
#[derive(Debug, Default)]
pub(super) struct RetiredProcesses(Vec<SupervisedChild>);

impl RetiredProcesses {
    /// Ends these processes, and the given one before its replacement starts.
    pub(super) fn end_with(&mut self, process: &mut SupervisedChild) {
        stop_all(self.0.iter_mut().chain([process]), STOP_GRACE);
    }

    /// Records that another process replaced `before`, which was ended or finishes its connections. Returns the sign that the new
    /// process serves; its readiness page is `page`.
    pub(super) fn replaced(
        &mut self,
        before: SupervisedChild,
        held: Option<ListenerOwners>,
        (page, path): (SocketAddr, &str),
    ) -> EffectEvidence {
        match held {
            None => EffectEvidence::Ready(page, path.to_owned()),
            Some(held) => {
                self.0.push(before);
                EffectEvidence::TakenOver(page, held)
            }
        }
    }

    /// Ends them.
    pub(super) fn end(&mut self) {
        for mut retired in self.0.drain(..) {
            retired.stop(STOP_GRACE);
        }
    }
}
