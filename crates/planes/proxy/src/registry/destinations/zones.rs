//! Callers like our own workload, by zone (`zoneAwareLbSetting`). They are the workloads of its kind behind the first of its
//! services. Only this module asks for that service, and only if a policy depends on it. A workload without a service knows of no
//! other callers.

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_model::ServiceKey;
use voile_model::mesh::traffic::PortTraffic;
use voile_proto::type_url;
use voile_xds::wire::{ServicePolicy, WireWorkload, WorkloadType};

use crate::registry::Registry;

/// Labels of the Pods of one template. During a rollout, Pods of another template receive more or fewer calls.
const TEMPLATES: [&str; 2] = ["pod-template-hash", "rollouts-pod-template-hash"];

/// Number of callers in each zone of our region, ourselves included.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Callers(BTreeMap<Box<str>, u32>);

impl Callers {
    /// Number of callers in one zone.
    pub(in crate::registry) fn of(&self, zone: &str) -> u32 {
        self.0.get(zone).copied().unwrap_or(0)
    }

    /// Number of callers in all zones.
    pub(in crate::registry) fn all(&self) -> u32 {
        self.0.values().sum()
    }

    /// Each zone's.
    pub(crate) fn by_zone(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|(zone, count)| (&**zone, *count))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, u32); N]> for Callers {
    fn from(zones: [(&str, u32); N]) -> Self {
        Self(zones.map(|(zone, count)| (zone.into(), count)).into())
    }
}

/// The region and the zone of a locality.
pub(in crate::registry) fn region_and_zone(locality: &str) -> (&str, &str) {
    let mut parts = locality.splitn(3, '/');
    let mut next = || parts.next().unwrap_or_default();
    (next(), next())
}

/// Returns true if any part of the policy balances by zone.
fn depends_on_callers(policy: &ServicePolicy) -> bool {
    let by_zone = |said: &PortTraffic| {
        let setting = said.balancer.locality.as_ref();
        setting.is_some_and(|setting| setting.zone_aware.is_some())
    };
    let parts = policy.subsets.values().flat_map(|part| part.ports.values());
    let parts = parts.map(|port| &port.traffic);
    let all = policy.ports.values().map(|port| &port.traffic);
    all.chain(parts).any(by_zone)
}

/// Returns true if two workloads are replicas of one owner and one template. Workloads without an owner compare by their
/// canonical names.
fn are_alike(one: &WireWorkload, other: &WireWorkload) -> bool {
    let (ours, others) = (&one.labels, &other.labels);
    let same_name = match ours.workload_type {
        WorkloadType::Pod => {
            let name = ours.canonical_name == others.canonical_name;
            name && ours.canonical_revision == others.canonical_revision
        }
        _ => ours.workload_name == others.workload_name,
    };
    let same_template = |label: &&str| one.own_labels.get(label) == other.own_labels.get(label);
    one.namespace == other.namespace
        && ours.workload_type == others.workload_type
        && same_name
        && TEMPLATES.iter().all(same_template)
}

impl Registry {
    /// Remembers whether zones share calls by a policy.
    pub(in crate::registry) fn look_for_zones(&mut self, name: &Arc<str>, policy: &ServicePolicy) {
        match depends_on_callers(policy) {
            true => drop(self.zoned.insert(Arc::clone(name))),
            false => drop(self.zoned.remove(name)),
        }
    }

    /// A workload or our own configuration changed: callers are counted again at the next use.
    pub(in crate::registry) fn forget_callers(&mut self, kind: &str) {
        if kind == type_url::ADDRESS || kind == type_url::PROXY_CONFIGURATION {
            self.callers.take();
        }
    }

    /// The service whose workloads call as ours does, where anything depends on them.
    pub(crate) fn callers_wanted(&self) -> Option<Arc<str>> {
        if self.zoned.is_empty() {
            return None;
        }
        let (_, service) = self.own_service()?;
        Some(service.to_string().into())
    }

    /// Callers like our own workload.
    pub(crate) fn callers(&self) -> &Callers {
        self.callers
            .get_or_init(|| self.count_callers().unwrap_or_default())
    }

    /// Callers by zone, where any policy depends on them.
    pub(crate) fn callers_shown(&self) -> Option<&Callers> {
        (!self.zoned.is_empty()).then(|| self.callers())
    }

    fn own_service(&self) -> Option<(&WireWorkload, &ServiceKey)> {
        let uid = &self.configuration.as_ref()?.value.workload_uid;
        let own = &self.workloads.get(uid)?.value;
        Some((own, own.services.keys().next()?))
    }

    fn count_callers(&self) -> Option<Callers> {
        let (own, service) = self.own_service()?;
        self.services.get(service.to_string().as_str())?;
        let (region, _) = region_and_zone(&own.locality);
        let mut zones = BTreeMap::<Box<str>, u32>::new();
        let others = self.members.get(service);
        let others = others.filter_map(|uid| Some(&self.workloads.get(uid)?.value));
        let calls = |one: &&WireWorkload| one.healthy && one.away.is_none() && are_alike(own, one);
        for other in others.filter(calls) {
            let (other_region, zone) = region_and_zone(&other.locality);
            if other_region == region {
                *zones.entry(zone.into()).or_default() += 1;
            }
        }
        Some(Callers(zones))
    }
}
