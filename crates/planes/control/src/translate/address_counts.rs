//! Address ranges of the mesh's workloads and virtual addresses, as every sidecar gets them. They are coarse, so that pods may
//! come and go without a push. They are counted, so that a change needs no search among all addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use voile_model::masked;
use voile_model::mesh::{AddressRange, Mesh, MeshService, Resolution, Workload};

/// Most ranges that every sidecar is told; beyond them they become coarser.
const MAX_RANGES: usize = 64;
/// Prefixes of IPv4 and IPv6, the finest first.
const CUTS: [(u8, u8); 3] = [(24, 64), (16, 48), (8, 16)];

/// Number of addresses in each network, by the cuts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AddressCounts([BTreeMap<(IpAddr, u8), u32>; CUTS.len()]);

impl AddressCounts {
    /// Of a mesh.
    pub(super) fn of(mesh: &Mesh) -> Self {
        let mut places = Self::default();
        for workload in mesh.workloads.values() {
            places.add_workload(workload);
        }
        for service in mesh.services.values() {
            places.add_service(service);
        }
        places
    }

    pub(super) fn add_workload(&mut self, workload: &Workload) {
        for address in addresses(workload) {
            self.count(*address, None, |count| count + 1);
        }
    }

    pub(super) fn remove_workload(&mut self, workload: &Workload) {
        for address in addresses(workload) {
            self.count(*address, None, |count| count.saturating_sub(1));
        }
    }

    pub(super) fn add_service(&mut self, service: &MeshService) {
        for (address, prefix) in ranges(service) {
            self.count(address, prefix, |count| count + 1);
        }
    }

    pub(super) fn remove_service(&mut self, service: &MeshService) {
        for (address, prefix) in ranges(service) {
            self.count(address, prefix, |count| count.saturating_sub(1));
        }
    }

    /// Counts an address, or a range that may be wider than a cut.
    fn count(&mut self, address: IpAddr, prefix: Option<u8>, step: impl Fn(u32) -> u32) {
        for (networks, (v4, v6)) in self.0.iter_mut().zip(CUTS) {
            let narrow = |cut: u8| prefix.map_or(cut, |own| cut.min(own));
            let network = network(address, narrow(v4), narrow(v6));
            match step(networks.get(&network).copied().unwrap_or(0)) {
                0 => drop(networks.remove(&network)),
                more => drop(networks.insert(network, more)),
            }
        }
    }

    /// As sidecars are told.
    pub(super) fn ranges(&self) -> Arc<[AddressRange]> {
        let range = |(address, prefix): (IpAddr, u8)| AddressRange { address, prefix };
        let few = self.0.iter().find(|networks| networks.len() <= MAX_RANGES);
        match few {
            Some(networks) => networks.keys().copied().map(range).collect(),
            // Everything, of each version that there is.
            None => {
                let all = self.0.last().into_iter().flat_map(BTreeMap::keys);
                let all = all.map(|(address, _)| network(*address, 0, 0));
                let all: BTreeSet<_> = all.collect();
                all.into_iter().map(range).collect()
            }
        }
    }
}

/// Those of a workload that takes mutual TLS.
fn addresses(workload: &Workload) -> &[IpAddr] {
    match workload.has_sidecar {
        true => &workload.addresses,
        false => &[],
    }
}

/// A service's addresses and ranges. Endpoints in a service's own range may need mutual TLS like those behind any virtual
/// address.
fn ranges(service: &MeshService) -> impl Iterator<Item = (IpAddr, Option<u8>)> {
    let own = service.address_ranges.iter();
    let own = own.filter(|_| service.resolution != Resolution::Passthrough);
    let own = own.map(|range| (range.address, Some(range.prefix)));
    let addresses = service.addresses.iter().map(|address| (*address, None));
    addresses.chain(own)
}

fn network(address: IpAddr, v4: u8, v6: u8) -> (IpAddr, u8) {
    let prefix = match address {
        IpAddr::V4(_) => v4,
        IpAddr::V6(_) => v6,
    };
    (masked(address, prefix), prefix)
}
