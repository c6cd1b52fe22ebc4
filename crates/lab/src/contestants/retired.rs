//! Processes in whose place others were started by an experiment's events: ended first, or left to finish what they have.

use std::net::SocketAddr;

use voile_host::child::{Supervised, stop_all};

use crate::events::{Held, Sign};
use crate::target::STOP_GRACE;

/// Those that finish what they have, until a slice is over.
#[derive(Debug, Default)]
pub(super) struct Retired(Vec<Supervised>);

impl Retired {
    /// Ends them and that one, in whose place another is to be started.
    pub(super) fn end_with(&mut self, process: &mut Supervised) {
        stop_all(self.0.iter_mut().chain([process]), STOP_GRACE);
    }

    /// Another is in the place of that one, which was ended or finishes what it has and what it held: how the other, which tells of
    /// itself on that page, is seen to serve.
    pub(super) fn replaced(
        &mut self,
        before: Supervised,
        held: Option<Held>,
        (page, path): (SocketAddr, &str),
    ) -> Sign {
        match held {
            None => Sign::Ready(page, path.to_owned()),
            Some(held) => {
                self.0.push(before);
                Sign::TakenOver(page, held)
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
