//! Which endpoints are asked at all: priorities that fail over as their health goes, localities that share a priority by
//! weight, and panic, when so few are left that asking the sick ones, too, is better than drowning the healthy.
//! Envoy's arithmetic (its pages "Priority levels", "Locality weighted load balancing", "Panic threshold").

use super::zones::{Zones, alike};
use crate::share::Weights;

/// Priority, locality, weight and health of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointLocality {
    /// 0 is asked first.
    pub priority: u32,
    /// Its locality, by number.
    pub locality: u32,
    /// The weight of its locality within the priority; 0 everywhere: localities do not matter.
    pub locality_weight: u32,
    /// Weight of the endpoint.
    pub weight: u32,
    /// True if the endpoint may be selected.
    pub healthy: bool,
}

/// Rules for spreading requests over priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// A level that is healthy to this part of itself, in hundredths of its parts, still carries all: 140 (Envoy's and
    /// Istio's) means that 72 in 100 suffice.
    pub overprovisioning_percent: u32,
    /// Below this many healthy in 100, and if the others cannot carry it all, all of a level are asked. 0 never (Istio's).
    pub panic_percent: u32,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            overprovisioning_percent: 140,
            panic_percent: 0,
        }
    }
}

/// Endpoints among which one is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointGroup {
    /// Their places in the list that was given, ascending.
    pub members: Box<[u32]>,
    /// True if unhealthy endpoints are members because too few are healthy.
    pub panics: bool,
}

/// Groups by their shares. Made anew when endpoints come, go, fall ill or get well.
#[derive(Debug, Clone)]
pub struct EndpointTiers {
    groups: Box<[EndpointGroup]>,
    shares: Weights,
}

/// Endpoints of one level, or of one locality of it.
#[derive(Debug, Clone, Default)]
struct PriorityLevel {
    priority: u32,
    members: Vec<u32>,
    healthy: Vec<u32>,
    weight: u32,
}

impl PriorityLevel {
    fn add(&mut self, member: usize, place: &EndpointLocality) {
        self.priority = place.priority;
        self.members.push(member as u32);
        self.weight = self.weight.max(place.locality_weight);
        if place.healthy {
            self.healthy.push(member as u32);
        }
    }

    /// Returns the percentage of its share of requests that a level can carry, up to 100.
    fn carries(&self, spread: &Spread) -> u64 {
        let healthy = self.healthy.len() as u64 * u64::from(spread.overprovisioning_percent);
        (healthy / self.members.len().max(1) as u64).min(100)
    }

    fn group(&self, panics: bool) -> EndpointGroup {
        let members = if panics { &self.members } else { &self.healthy };
        EndpointGroup {
            members: members.as_slice().into(),
            panics,
        }
    }
}

/// Parts of a share, so that localities' fractions of it are not rounded away.
const PARTS: u64 = 1_000_000;

impl EndpointTiers {
    /// Spreads requests over endpoints, where callers are told apart by zones.
    #[must_use]
    pub fn new(places: &[EndpointLocality], spread: &Spread, zones: Option<&Zones>) -> Self {
        let mut levels = std::collections::BTreeMap::<u32, PriorityLevel>::new();
        for (member, place) in places.iter().enumerate() {
            levels.entry(place.priority).or_default().add(member, place);
        }
        let levels: Vec<PriorityLevel> = levels.into_values().collect();
        let (mut groups, mut shares) = (Vec::new(), Vec::new());
        for (level, load) in levels.iter().zip(loads(&levels, spread)) {
            let panics = is_panic(level, &levels, spread);
            let zones = zones.filter(|zones| zones.priority == level.priority);
            let parts = match zones {
                Some(zones) => by_zone(places, level, panics, zones),
                None => localities(places, level, panics, spread),
            };
            let total: u64 = parts.iter().map(|(_, weight)| weight).sum();
            for (group, weight) in parts {
                // Zones without a share stay as a reserve, when no other zone may take requests.
                let stands_by = zones.is_some() && !group.members.is_empty();
                if load * total == 0 || (weight == 0 && !stands_by) {
                    continue;
                }
                // At least one part: a zone with weight gets requests.
                let share = (load * PARTS / 100 * weight / total).max(u64::from(weight > 0));
                shares.push(u32::try_from(share).unwrap_or(u32::MAX));
                groups.push(group);
            }
        }
        let (groups, shares) = (groups.into(), Weights::new(&shares));
        Self { groups, shares }
    }

    /// The groups, in order of priority.
    #[must_use]
    pub fn groups(&self) -> &[EndpointGroup] {
        &self.groups
    }

    /// Selects the group for this request; `None` when there is none.
    #[must_use]
    pub fn choose(&self, random: u64) -> Option<usize> {
        self.shares.choose(random)
    }
}

/// Returns the share of each level, in hundredths; all of them 0 when no endpoint may be selected.
fn loads(levels: &[PriorityLevel], spread: &Spread) -> Vec<u64> {
    let carries: Vec<u64> = levels.iter().map(|level| level.carries(spread)).collect();
    let total = carries.iter().sum::<u64>().min(100);
    if total == 0 {
        // No endpoint is healthy. If panic is allowed, each level gets a share by its size.
        let panic = u64::from(spread.panic_percent > 0);
        let all: usize = levels.iter().map(|level| level.members.len()).sum();
        let size = |level: &PriorityLevel| panic * 100 * level.members.len() as u64;
        return levels
            .iter()
            .map(|level| size(level).div_ceil(all.max(1) as u64))
            .collect();
    }
    let mut left = 100;
    let loads = carries.iter().map(|carries| {
        let load = (carries * 100 / total).min(left);
        left -= load;
        load
    });
    loads.collect()
}

fn is_panic(level: &PriorityLevel, levels: &[PriorityLevel], spread: &Spread) -> bool {
    let total: u64 = levels.iter().map(|level| level.carries(spread)).sum();
    let healthy = level.healthy.len() * 100;
    total < 100 && healthy < level.members.len() * spread.panic_percent as usize
}

/// The groups of one level, with their weights.
fn localities(
    places: &[EndpointLocality],
    level: &PriorityLevel,
    panics: bool,
    spread: &Spread,
) -> Vec<(EndpointGroup, u64)> {
    if level.weight == 0 {
        return vec![(level.group(panics), 1)];
    }
    let part = |locality: PriorityLevel| {
        let carries = if panics {
            100
        } else {
            locality.carries(spread)
        };
        (locality.group(panics), u64::from(locality.weight) * carries)
    };
    apart(places, level).into_values().map(part).collect()
}

fn apart(
    places: &[EndpointLocality],
    level: &PriorityLevel,
) -> std::collections::BTreeMap<u32, PriorityLevel> {
    let mut by_locality = std::collections::BTreeMap::<u32, PriorityLevel>::new();
    for member in &level.members {
        let place = &places[*member as usize];
        let locality = by_locality.entry(place.locality).or_default();
        locality.add(*member as usize, place);
    }
    by_locality
}

/// The groups of one level whose localities are zones, our own first, with their shares.
fn by_zone(
    places: &[EndpointLocality],
    level: &PriorityLevel,
    panics: bool,
    zones: &Zones,
) -> Vec<(EndpointGroup, u64)> {
    let mut apart = apart(places, level);
    let numbers = 0..u32::try_from(zones.callers.len()).unwrap_or(u32::MAX);
    let groups = numbers.map(|zone| apart.remove(&zone).unwrap_or_default().group(panics));
    let groups: Vec<EndpointGroup> = groups.collect();
    let weight = |member: &u32| u64::from(places[*member as usize].weight);
    let weights = groups
        .iter()
        .map(|group| group.members.iter().map(weight).sum());
    let weights: Vec<u64> = weights.collect();
    // In panic health is unknown, and all zones get equal treatment.
    let shares = match panics {
        true => alike(&weights),
        false => zones.shares(&weights, level.healthy.len()),
    };
    groups.into_iter().zip(shares).collect()
}

/// A region, zone and subzone; empty where none is said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Locality {
    /// `eu-west`.
    pub region: String,
    /// `eu-west-1a`.
    pub zone: String,
    /// Locality within the zone.
    pub subzone: String,
}

/// Returns the distance between two localities, as Istio ranks it: 0 the same subzone, 1 the same zone, 2 the same
/// region, 3 elsewhere. Returns 4 if `failover` names another region as the next one.
#[must_use]
pub fn distance(from: &Locality, to: &Locality, failover: &[(String, String)]) -> u32 {
    if from.region != to.region {
        let said = failover.iter().find(|(region, _)| *region == from.region);
        return 3 + u32::from(said.is_some_and(|(_, next)| *next != to.region));
    }
    match (from.zone == to.zone, from.subzone == to.subzone) {
        (true, true) => 0,
        (true, false) => 1,
        (false, _) => 2,
    }
}

/// Returns the distance by labels: Istio's `failoverPriority`. Labels are compared in order, up to the first that
/// differs. Each is a name, or a name and the value that the caller has for it (`topology=a`).
pub fn distance_by_labels<'l>(
    labels: &'l [String],
    own: impl Fn(&str) -> Option<&'l str>,
    of: impl Fn(&str) -> Option<&'l str>,
) -> u32 {
    let same = |label: &&String| match label.split_once('=') {
        Some((name, value)) => of(name) == Some(value),
        None => of(label).unwrap_or_default() == own(label).unwrap_or_default(),
    };
    (labels.len() - labels.iter().take_while(same).count()) as u32
}
