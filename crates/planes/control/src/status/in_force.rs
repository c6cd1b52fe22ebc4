//! Decides if the last publication is in force, from the acknowledgements of proxies. The status page, `voile status`, the events
//! and the screen of `voile up` all read this decision; no other code decides it.

use serde::Serialize;

use super::proxies::{Proxies, RejectedResource};

/// Refused resources shown: a page is read by people.
const SHOWN_REFUSALS: usize = 100;

/// See the module.
#[derive(Debug, Serialize)]
pub(super) struct InForce<'a> {
    /// Every connected proxy has acknowledged everything that concerns it, and refuses nothing.
    pub(super) everywhere: bool,
    /// Open streams, and those of them that are in sync.
    proxies: usize,
    acknowledged: usize,
    /// Something is still on its way to proxies.
    on_its_way: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RejectedResource<'a>>,
}

/// `quiet`: every stream has looked at what was published last, and said what there was to say of it.
pub(super) fn in_force(proxies: &Proxies, quiet: bool) -> InForce<'_> {
    InForce {
        everywhere: is_everywhere(proxies, quiet),
        proxies: proxies.len(),
        acknowledged: proxies.synced(),
        on_its_way: !quiet || proxies.behind() > 0,
        refused: proxies.refusals(SHOWN_REFUSALS),
    }
}

/// The decision alone.
pub(super) fn is_everywhere(proxies: &Proxies, quiet: bool) -> bool {
    quiet && proxies.behind() == 0 && proxies.refusing() == 0
}
