//! Endpoints known by a DNS name: resolved addresses replace the name.
//!
//! ```text
//! never resolved → one endpoint without an address: whoever connects asks and waits
//! resolved       → one endpoint for each address, or (first address only) one with the first
//! never could be → one endpoint that is not available
//! a pattern      → one endpoint that stands for every host that it covers: each is asked for when a client names it
//! ```

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use voile_dns::NameState;
use voile_model::Hostname;
use voile_xds::wire::OutboundService;

use crate::plan::{EndpointPlan, NamePlan};
use crate::registry::{Registry, service_name};

/// Factor of a workload's weight when it is split over a name's addresses: large enough to tell shares apart, small
/// enough that no sum overflows.
const WEIGHT_SCALE: u32 = 1000;

impl Registry {
    /// Endpoints of a workload called `host`. Each is like `one`, except for the address and name.
    pub(in crate::registry) fn named_endpoints(
        &self,
        wanted: &OutboundService,
        host: &Hostname,
        one: &EndpointPlan,
    ) -> Vec<EndpointPlan> {
        let policy = self.policies.get(&service_name(wanted));
        let logical = policy.is_some_and(|held| held.value.first_address_only);
        let on_demand = host.is_wildcard();
        let named = EndpointPlan {
            name: Some(NamePlan {
                host: host.as_str().into(),
                logical: logical || on_demand,
                on_demand,
            }),
            ..one.clone()
        };
        if on_demand {
            return vec![named];
        }
        match self.names.state(host.as_str()) {
            NameState::Unknown => vec![named],
            NameState::Failed(_) => vec![EndpointPlan {
                available: false,
                ..named
            }],
            NameState::Known(addresses) => {
                let used = if logical { 1 } else { addresses.len() };
                let at = |address| EndpointPlan {
                    address: SocketAddr::new(address, one.address.port()),
                    ..named.clone()
                };
                let mut endpoints: Vec<_> = addresses.iter().take(used).copied().map(at).collect();
                split(one.weight, &mut endpoints);
                endpoints
            }
        }
    }

    /// Forgets names that no workload is called by any more.
    pub(crate) fn forget_names(&mut self) {
        if self.names.is_empty() {
            return;
        }
        let called: BTreeSet<Arc<str>> = self
            .workloads
            .values()
            .filter_map(|held| Some(held.value.hostname.as_ref()?.as_str().into()))
            .collect();
        self.names.retain(|name| called.contains(name));
    }
}

/// Shares a weight among endpoints. Scaling changes nothing between them; endpoints with an address of their own are
/// scaled, too (see [`scale`]).
fn split(weight: u32, endpoints: &mut [EndpointPlan]) {
    let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX).max(1);
    for endpoint in endpoints {
        endpoint.weight = (weight.saturating_mul(WEIGHT_SCALE) / count).max(1);
    }
}

/// Brings the weights of a service's other endpoints to the scale of the split ones.
pub(in crate::registry) fn scale(endpoints: &mut [EndpointPlan]) {
    let resolved = |endpoint: &EndpointPlan| {
        endpoint.name.is_some() && !endpoint.address.ip().is_unspecified()
    };
    if endpoints.iter().any(resolved) {
        for endpoint in endpoints.iter_mut().filter(|endpoint| !resolved(endpoint)) {
            endpoint.weight = endpoint.weight.saturating_mul(WEIGHT_SCALE);
        }
    }
}
