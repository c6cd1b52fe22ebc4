//! Workloads on other networks. The proxy calls them through a gateway of theirs, by a tunnel to it and another inside that one:
//! the workload proves its identity, and nothing rests on the gateway. The gateway selects the workload, so the workloads of one
//! network are one endpoint. It is used when no endpoint on our own network is healthy.

use std::collections::BTreeMap;

use voile_identity::Identity;
use voile_model::mesh::PortTraffic;
use voile_model::mesh::traffic::ClientTls;
use voile_xds::wire::{OutboundService, Service, Tunnel, WireWorkload};

use crate::plan::{EndpointPlan, EndpointRank};
use crate::registry::{Registry, peer, service_name};

/// Behind all priorities that localities and labels make.
const FAR: EndpointRank = EndpointRank {
    priority: 1 << 16,
    locality: 0,
    locality_weight: 0,
};

impl Registry {
    /// Endpoints for a service's workloads on other networks. None if a DestinationRule wants plaintext or TLS outside the mesh:
    /// no workload behind a gateway speaks those.
    pub(in crate::registry) fn far_endpoints(
        &self,
        wanted: &OutboundService,
        said: Option<&PortTraffic>,
    ) -> Vec<EndpointPlan> {
        let tls = said.and_then(|said| said.tls.as_ref());
        let mutual = !matches!(tls, Some(ClientTls::Disable | ClientTls::Originate(_)));
        let held = self.services.get(&service_name(wanted)).filter(|_| mutual);
        let Some(service) = held.map(|held| &held.value) else {
            return Vec::new();
        };
        let mut networks = BTreeMap::<&str, Vec<&WireWorkload>>::new();
        for uid in self.far_members.get(&wanted.key) {
            let workload = self.workloads.get(uid).map(|held| &held.value);
            if let Some(workload) = workload
                && let Some(network) = entered(workload, wanted)
            {
                networks.entry(network).or_default().push(workload);
            }
        }
        let all = networks.into_values();
        all.filter_map(|all| self.far_endpoint(wanted, service, &all))
            .collect()
    }

    /// One for all of them, which are on one network.
    fn far_endpoint(
        &self,
        wanted: &OutboundService,
        service: &Service,
        all: &[&WireWorkload],
    ) -> Option<EndpointPlan> {
        let first = all.first()?;
        let gates = first.away.as_ref()?.keepers.clone();
        let well = all.iter().filter(|one| one.healthy);
        let weights = well.map(|one| one.weight.max(1));
        let weight = weights.fold(0, u32::saturating_add);
        let others = service.subject_alt_names.iter();
        let others = others.filter_map(|name| name.parse::<Identity>().ok());
        let mut expected: Vec<Identity> = Vec::new();
        for identity in all
            .iter()
            .filter_map(|one| one.identity.clone())
            .chain(others)
        {
            if !expected.contains(&identity) {
                expected.push(identity);
            }
        }
        let called = format!("{}:{}", wanted.key.hostname, wanted.port);
        Some(EndpointPlan {
            address: gates.first()?.at,
            name: None,
            expected: (!expected.is_empty()).then_some(expected),
            origination: Some(self.originations.far(&called, gates)),
            weight: weight.max(1),
            available: weight > 0,
            rank: FAR,
            peer: peer(first),
        })
    }
}

/// Network of a workload that serves this service, if its gateway and the workload's identity are known.
fn entered<'a>(workload: &'a WireWorkload, wanted: &OutboundService) -> Option<&'a str> {
    let away = workload.away.as_ref()?;
    let serves = workload
        .services
        .get(&wanted.key)?
        .contains_key(&wanted.port);
    let proven = workload.tunnel == Tunnel::Hbone && workload.identity.is_some();
    (serves && proven && !away.keepers.is_empty()).then_some(&*away.network)
}
