//! Services that a caller means before it knows their names: by an address, or by a host as clients write it. The caller asks for
//! the policy and the routes of such a service at the same time as for its Address.

use std::sync::Arc;

use voile_proto::type_url;
use voile_xds::server::Resolution;
use voile_xds::wire::{CLUSTER, parse_search};

use super::{MeshSnapshot, SnapshotCaller};

/// Returns true if a request names a policy or routes by an address or a host, and not by the resource's own name.
pub(super) fn is_question(name: &str) -> bool {
    name.starts_with(['/', '*'])
}

impl MeshSnapshot {
    /// Resources of a type for all services that the question means. If none of them has one, the answer lists their names as
    /// lacking.
    pub(super) fn of_meant(
        &self,
        caller: &SnapshotCaller,
        type_url: &str,
        question: &str,
    ) -> Resolution {
        let (mut found, mut lacking) = (Vec::new(), Vec::new());
        for name in self.meant(caller, question) {
            // Of a workload nothing is routed.
            if type_url == type_url::SERVICE_ROUTES && name.starts_with(CLUSTER) {
                continue;
            }
            match self.of_clients(caller, type_url, &name) {
                Resolution::Found(all) => found.extend(all),
                Resolution::Unknown => lacking.push(name),
                // It is nobody to this caller.
                Resolution::Lacking(_) | Resolution::Refused(_) => {}
            }
        }
        match (found.is_empty(), lacking.is_empty()) {
            (false, _) => Resolution::Found(found),
            (true, false) => Resolution::Lacking(lacking),
            (true, true) => Resolution::Unknown,
        }
    }

    /// Names of those whom the caller would be told of if it asked for Addresses: those at it, not those behind them.
    fn meant(&self, caller: &SnapshotCaller, question: &str) -> Vec<Arc<str>> {
        if let Some((named, host)) = parse_search(question) {
            // Of another namespace nodes ask, which are told nothing of this.
            let own = named.is_none().then(|| caller.namespace());
            let found = own.and_then(|own| self.names.find(Some(own), host));
            return found.cloned().into_iter().collect();
        }
        let owners = self.owners.get(question).into_iter();
        let owners = owners.flat_map(|all| all.iter());
        let address = question.strip_prefix('/').map(str::parse);
        let around = address.and_then(Result::ok).into_iter();
        let around = around.flat_map(|address| self.ranges.around(address));
        owners
            .chain(around.map(|(_, service)| service))
            .filter(|name| self.sees(caller, name))
            .cloned()
            .collect()
    }
}
