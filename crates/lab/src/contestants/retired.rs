//! Processes that events of an experiment replaced by others. They either ended first, or finish their connections.

use std::net::SocketAddr;

use voile_host::child::{Supervised, stop_all};

use crate::events::{Held, Sign};
use crate::target::STOP_GRACE;

/// Those that finish what they have, until a slice is over.
#[derive(Debug, Default)]
pub(super) struct Retired(Vec<Supervised>);

impl Retired {
    /// Ends these processes, and the given one before its replacement starts.
    pub(super) fn end_with(&mut self, process: &mut Supervised) {
        stop_all(self.0.iter_mut().chain([process]), STOP_GRACE);
    }

    /// Records that another process replaced `before`, which was ended or finishes its connections. Returns the sign that the new
    /// process serves; its readiness page is `page`.
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
