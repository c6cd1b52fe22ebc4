//! Endpoint selection of one worker. Each worker has its own measurements (`vitals`). The groups that may be selected
//! are decided when endpoints change (`tiers`). A choice takes constant time, or the logarithm of the endpoints'
//! number: the better of two (`two`), round robin (`rotation`), or consistent hashing of the request's key (`ring`,
//! `key`).

mod alias;
mod key;
mod ring;
mod rotation;
mod tiers;
mod two;
mod vitals;
mod zones;

pub use alias::Alias;
pub use key::{HashCookie, HashKey, RequestKey};
pub use ring::{MAGLEV_SIZE, MAX_RING, MIN_RING, Maglev, Ring, RingEndpoint};
pub use rotation::Rotation;
pub use tiers::{
    EndpointGroup, EndpointLocality, EndpointTiers, Locality, Spread, distance, distance_by_labels,
};
pub use two::{EndpointCost, TwoChoices};
pub use vitals::{EWMA_DECAY, EWMA_INITIAL, EndpointVitals, MAX_PENALTY, PENALTY, Warmup};
pub use zones::Zones;

/// Algorithm that selects an endpoint of a group: `loadBalancer` as a DestinationRule says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// The better of two, by the caller's costs: by default latency and load.
    #[default]
    LeastCost,
    /// LEAST_REQUEST: the same by load alone.
    LeastRequest,
    /// ROUND_ROBIN: each in turn.
    RoundRobin,
    /// RANDOM: any.
    Random,
    /// `consistentHash`: by the request's key, on a ring with at least so many places.
    RingHash(u64),
    /// `consistentHash`: by the request's key, in Maglev's table of a prime size.
    Maglev(u32),
}

/// Turns that are looked at for one whose endpoint is warm enough to take it.
const WARM_TURNS: usize = 8;

/// Endpoints of a group, ready to be chosen from. A worker's own, and made anew when the group changes.
#[derive(Debug, Clone)]
pub struct Balancer {
    weights: TwoChoices,
    way: BalancingPolicy,
}

#[derive(Debug, Clone)]
enum BalancingPolicy {
    LeastCost,
    Random,
    RoundRobin(Rotation),
    Ring(Ring),
    Maglev(Maglev),
}

impl Balancer {
    /// Of endpoints by name and weight.
    #[must_use]
    pub fn new(algorithm: Algorithm, of: &[RingEndpoint<'_>], random: impl FnMut() -> u64) -> Self {
        let weights: Vec<u32> = of.iter().map(|endpoint| endpoint.weight.max(1)).collect();
        let way = match algorithm {
            Algorithm::LeastCost | Algorithm::LeastRequest => BalancingPolicy::LeastCost,
            Algorithm::Random => BalancingPolicy::Random,
            Algorithm::RoundRobin => BalancingPolicy::RoundRobin(Rotation::new(&weights, random)),
            Algorithm::RingHash(least) => BalancingPolicy::Ring(Ring::new(of, least)),
            Algorithm::Maglev(size) => BalancingPolicy::Maglev(Maglev::new(of, size)),
        };
        let weights = TwoChoices::new(&weights);
        Self { weights, way }
    }

    /// One of those available, by its place. A request without a key goes to any where keys decide, as with Envoy.
    pub fn choose(
        &mut self,
        of: &impl EndpointCost,
        key: Option<u64>,
        mut random: impl FnMut() -> u64,
    ) -> Option<usize> {
        let available = |place: usize| of.is_available(place);
        match (&mut self.way, key) {
            (BalancingPolicy::LeastCost, _) => self.weights.choose(of, random),
            (BalancingPolicy::RoundRobin(rotation), _) => {
                let first = rotation.choose(available)?;
                if of.warmth(first) >= 1.0 {
                    return Some(first);
                }
                // An endpoint that warms up skips some of its turns.
                let takes = |place: usize, random: u64| two::is_warm(of.warmth(place), random);
                let mut turns = (0..WARM_TURNS).map(|turn| match turn {
                    0 => Some(first),
                    _ => rotation.choose(available),
                });
                let warm = turns.find(|turn| turn.is_none_or(|place| takes(place, random())));
                warm.flatten().or(Some(first))
            }
            (BalancingPolicy::Ring(ring), Some(key)) => ring.choose(key, available),
            (BalancingPolicy::Maglev(maglev), Some(key)) => maglev.choose(key, available),
            (
                BalancingPolicy::Random | BalancingPolicy::Ring(_) | BalancingPolicy::Maglev(_),
                _,
            ) => self.weights.any(of, random),
        }
    }
}
