//! Locality ranking of endpoints, by `localityLbSetting` for our own workload, or by `zoneAwareLbSetting`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_model::Labels;
use voile_model::mesh::network::NETWORK;
use voile_model::mesh::traffic::{
    Algorithm, Distribute, LocalitySetting, NODE, PortTraffic, REGION, SUBZONE, ZONE,
};
use voile_traffic::balance::{Locality, Zones, distance, distance_by_labels};
use voile_xds::wire::WireWorkload;

use crate::plan::{EndpointPlan, EndpointRank};
use crate::registry::zones::{Callers, region_and_zone};

/// Location of our own workload, as far as known.
#[derive(Clone, Copy)]
pub(in crate::registry) struct OwnLocality<'a> {
    /// `region/zone/subzone`.
    pub(in crate::registry) locality: &'a str,
    pub(in crate::registry) node: &'a str,
    pub(in crate::registry) labels: &'a Labels,
}

/// Ranking of one destination's endpoints.
pub(in crate::registry) struct EndpointRanking<'a> {
    own: Locality,
    node: &'a str,
    labels: &'a Labels,
    way: LocalityRule<'a>,
}

enum LocalityRule<'a> {
    /// All are as near as each other.
    Flat,
    /// By locality.
    Failover(&'a [(String, String)]),
    /// By labels.
    Labels(&'a [String]),
    /// By shares of localities.
    Distribute(&'a Distribute),
    /// By labels, then by region; within our own region by the capacity of its zones.
    Zones(&'a LocalitySettings, Option<u32>),
}

/// Regions that differ in who comes first: our own, the one that is named to come next, all others.
const REGIONS: u32 = 3;

/// Parsed parts of a locality setting.
#[derive(Default)]
pub(in crate::registry) struct LocalitySettings {
    failover: Vec<(String, String)>,
    priority: Vec<String>,
}

impl LocalitySettings {
    pub(in crate::registry) fn of(said: Option<&PortTraffic>) -> Self {
        let setting = said.and_then(|said| said.balancer.locality.as_ref());
        let failover = setting.map_or(&[][..], |setting| &setting.failover);
        let priority = setting.map_or(&[][..], |setting| &setting.priority);
        let pair = |(from, to): &(Arc<str>, Arc<str>)| (from.to_string(), to.to_string());
        Self {
            failover: failover.iter().map(pair).collect(),
            priority: priority.iter().map(ToString::to_string).collect(),
        }
    }
}

impl<'a> EndpointRanking<'a> {
    /// Ranking for a workload at this location. As in Istio, there is no failover without outlier detection or health checks,
    /// unless the service itself prefers near endpoints.
    pub(in crate::registry) fn new(
        at: OwnLocality<'a>,
        (said, asked): (Option<&'a PortTraffic>, bool),
        words: &'a LocalitySettings,
    ) -> Self {
        let own = at.locality;
        let setting = said.and_then(|said| said.balancer.locality.as_ref());
        let of_ours = |setting: &&'a LocalitySetting| setting.enabled;
        let shares = setting.filter(of_ours).and_then(|setting| {
            let mut all = setting.distribute.iter();
            all.find(|one| covers(&one.from, own))
        });
        let always = setting.is_some_and(|setting| setting.always);
        let ejects = always || asked || said.is_some_and(|said| said.outliers.is_some());
        let nowhere = own.is_empty() && at.node.is_empty();
        let enabled = setting.is_none_or(|setting| setting.enabled);
        let zone_aware = setting.and_then(|setting| setting.zone_aware);
        // A consistent-hash key ignores zones.
        let least = zone_aware.filter(|_| !said.is_some_and(decides_by_key));
        let distributes = setting.is_some_and(|setting| !setting.distribute.is_empty());
        let way = match shares {
            _ if !enabled || (own.is_empty() && words.priority.is_empty()) => LocalityRule::Flat,
            _ if zone_aware.is_some() && own.is_empty() => LocalityRule::Labels(&words.priority),
            _ if zone_aware.is_some() => LocalityRule::Zones(words, least),
            _ if always && nowhere => LocalityRule::Flat,
            Some(shares) => LocalityRule::Distribute(shares),
            None if !ejects || distributes => LocalityRule::Flat,
            None if !words.priority.is_empty() => LocalityRule::Labels(&words.priority),
            None => LocalityRule::Failover(&words.failover),
        };
        Self {
            own: parsed(own),
            node: at.node,
            labels: at.labels,
            way,
        }
    }

    /// Rank of this workload's endpoint; `None` if its locality has no share.
    pub(in crate::registry) fn rank(&self, workload: &WireWorkload) -> Option<EndpointRank> {
        let of = parsed(&workload.locality);
        let by = |priority| EndpointRank {
            priority,
            ..EndpointRank::default()
        };
        Some(match &self.way {
            LocalityRule::Flat => EndpointRank::default(),
            LocalityRule::Failover(failover) => by(distance(&self.own, &of, failover)),
            LocalityRule::Labels(labels) => by(self.by_labels(labels, workload, &of)),
            LocalityRule::Zones(words, _) => {
                let distance = distance(&self.own, &of, &words.failover);
                // Zones and subzones of our own region are alike.
                let region = distance.saturating_sub(2);
                by(self.by_labels(&words.priority, workload, &of) * REGIONS + region)
            }
            LocalityRule::Distribute(shares) => {
                let mut to = shares.to.iter();
                let share = to.position(|(to, _)| covers(to, &workload.locality))?;
                // Until all are known, by the share that it is part of.
                EndpointRank {
                    locality_weight: u32::try_from(share).ok()? + 1,
                    ..EndpointRank::default()
                }
            }
        })
    }

    fn by_labels(&self, labels: &[String], workload: &WireWorkload, of: &Locality) -> u32 {
        distance_by_labels(
            labels,
            |name| label(self.labels, (&self.own, self.node), name),
            |name| match (name, &workload.away) {
                (NETWORK, Some(away)) => Some(&*away.network),
                // Our own network, whatever its name.
                (NETWORK, None) => self.labels.get(NETWORK),
                _ => label(&workload.own_labels, (of, &workload.node), name),
            },
        )
    }

    /// Gives localities their weights, now that all endpoints are known; returns the callers by zone, if they
    /// decide.
    pub(in crate::registry) fn settle<'c>(
        &self,
        endpoints: &mut [EndpointPlan],
        localities: &[Arc<str>],
        callers: impl FnOnce() -> &'c Callers,
    ) -> Option<Box<Zones>> {
        match &self.way {
            LocalityRule::Distribute(shares) => {
                share(shares, endpoints, localities);
                None
            }
            LocalityRule::Zones(_, Some(least)) => {
                self.zones(endpoints, localities, *least, callers())
            }
            LocalityRule::Zones(_, None)
            | LocalityRule::Flat
            | LocalityRule::Failover(_)
            | LocalityRule::Labels(_) => None,
        }
    }

    /// Tells apart the zones of those who are asked first, if they are of our region; none where all would be asked alike in any case.
    fn zones(
        &self,
        endpoints: &mut [EndpointPlan],
        localities: &[Arc<str>],
        least: u32,
        callers: &Callers,
    ) -> Option<Box<Zones>> {
        let able = endpoints.iter().filter(|one| one.available);
        let priority = able.map(|one| one.rank.priority).min()?;
        let meant = |one: &EndpointPlan| one.available && one.rank.priority == priority;
        let count = endpoints.iter().filter(|one| meant(one)).count();
        let (own, ours) = (self.own.zone.as_str(), callers.of(&self.own.zone));
        let zones = endpoints.iter().zip(localities);
        let zones = zones.filter(|(one, _)| meant(one));
        let zones = zones.map(|(_, locality)| region_and_zone(locality).1);
        let mut others: BTreeSet<&str> = zones.collect();
        let are_several = others.len() > 1;
        others.remove(own);
        let decides = are_several && ours > 0 && ours < callers.all() && count >= least as usize;
        if priority % REGIONS > 0 || !decides {
            return None;
        }
        let order: Vec<&str> = std::iter::once(own).chain(others).collect();
        let numbers: BTreeMap<&str, u32> = order.iter().copied().zip(0..).collect();
        for (one, locality) in endpoints.iter_mut().zip(localities) {
            if meant(one) {
                one.rank = EndpointRank {
                    priority,
                    locality: numbers[region_and_zone(locality).1],
                    locality_weight: 1,
                };
            }
        }
        let known: Box<[u32]> = order.iter().map(|zone| callers.of(zone)).collect();
        Some(Box::new(Zones {
            priority,
            elsewhere: callers.all() - known.iter().sum::<u32>(),
            callers: known,
            least,
        }))
    }
}

/// Returns true if a hash of request keys selects endpoints.
fn decides_by_key(said: &PortTraffic) -> bool {
    let algorithm = said.balancer.algorithm;
    matches!(algorithm, Algorithm::RingHash(_) | Algorithm::Maglev(_))
}

/// Gives localities their weights: those of one share divide it by their endpoints'.
fn share(shares: &Distribute, endpoints: &mut [EndpointPlan], localities: &[Arc<str>]) {
    let mut weights = BTreeMap::<(u32, &str), u64>::new();
    let mut totals = BTreeMap::<u32, u64>::new();
    for (endpoint, locality) in endpoints.iter().zip(localities) {
        let (share, weight) = (endpoint.rank.locality_weight, u64::from(endpoint.weight));
        *weights.entry((share, locality)).or_default() += weight;
        *totals.entry(share).or_default() += weight;
    }
    let numbers: BTreeMap<_, u32> = weights.keys().copied().zip(0..).collect();
    for (endpoint, locality) in endpoints.iter_mut().zip(localities) {
        let share = endpoint.rank.locality_weight;
        let key = (share, &**locality);
        let percent = shares.to[share as usize - 1].1;
        let part = u64::from(percent) * 100 * weights[&key];
        endpoint.rank = EndpointRank {
            priority: 0,
            locality: numbers[&key],
            locality_weight: u32::try_from(part.div_ceil(totals[&share].max(1)))
                .unwrap_or(u32::MAX),
        };
    }
}

/// Returns true if the pattern covers the locality: the same one, or one within it.
fn covers(pattern: &str, locality: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let whole = pattern.strip_suffix("/*").unwrap_or(pattern);
    let rest = locality.strip_prefix(whole);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn parsed(text: &str) -> Locality {
    let mut parts = text.splitn(3, '/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    Locality {
        region: next(),
        zone: next(),
        subzone: next(),
    }
}

/// A label, or what says the same, as Istio's control plane adds it.
fn label<'l>(
    labels: &'l Labels,
    (locality, node): (&'l Locality, &'l str),
    name: &str,
) -> Option<&'l str> {
    labels.get(name).or_else(|| {
        let part = match name {
            REGION => locality.region.as_str(),
            ZONE => locality.zone.as_str(),
            SUBZONE => locality.subzone.as_str(),
            NODE => node,
            _ => return None,
        };
        Some(part).filter(|part| !part.is_empty())
    })
}
