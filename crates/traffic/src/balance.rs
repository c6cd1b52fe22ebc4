//! Endpoint choice. What a worker balances by is its own (`vitals`); who is asked at all is decided when that changes
//! (`tiers`); a choice is then constant work, or the logarithm of the endpoints' number: the better of two (`two`), each in
//! turn (`rotation`), or whose the request's key is (`ring`, `key`).
//!
//! [`pick`] is Istio's plain default (LEAST_REQUEST with two choices): of two drawn at random by weight, the one with fewer
//! requests in flight for its weight.

mod alias;
mod key;
mod ring;
mod rotation;
mod tiers;
mod two;
mod vitals;

pub use alias::Alias;
pub use key::{Cookie, Key, KeySource};
pub use ring::{MAGLEV_SIZE, MAX_RING, MIN_RING, Maglev, Placed, Ring};
pub use rotation::Rotation;
pub use tiers::{Group, Locality, Place, Spread, Tiers, distance, distance_by_labels};
pub use two::{Cost, TwoChoices};
pub use vitals::{EWMA_DECAY, EWMA_INITIAL, MAX_PENALTY, PENALTY, SlowStart, Vitals};

/// How endpoints of a group are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// The better of two, by what the caller says each costs: by default latency and load.
    #[default]
    LeastCost,
    /// Each in turn.
    RoundRobin,
    /// Any.
    Random,
    /// By the request's key, on a ring with at least so many places.
    RingHash(u64),
    /// By the request's key, in Maglev's table of a prime size.
    Maglev(u32),
}

/// Endpoints of a group, ready to be chosen from. A worker's own, and made anew when the group changes.
#[derive(Debug, Clone)]
pub struct Balancer {
    weights: TwoChoices,
    way: Way,
}

#[derive(Debug, Clone)]
enum Way {
    LeastCost,
    Random,
    RoundRobin(Rotation),
    Ring(Ring),
    Maglev(Maglev),
}

impl Balancer {
    /// Of endpoints by name and weight.
    #[must_use]
    pub fn new(algorithm: Algorithm, of: &[Placed<'_>], random: impl FnMut() -> u64) -> Self {
        let weights: Vec<u32> = of.iter().map(|endpoint| endpoint.weight.max(1)).collect();
        let way = match algorithm {
            Algorithm::LeastCost => Way::LeastCost,
            Algorithm::Random => Way::Random,
            Algorithm::RoundRobin => Way::RoundRobin(Rotation::new(&weights, random)),
            Algorithm::RingHash(least) => Way::Ring(Ring::new(of, least)),
            Algorithm::Maglev(size) => Way::Maglev(Maglev::new(of, size)),
        };
        let weights = TwoChoices::new(&weights);
        Self { weights, way }
    }

    /// One of those available, by its place. A request without a key goes to any where keys decide, as with Envoy.
    pub fn choose(
        &mut self,
        of: &impl Cost,
        key: Option<u64>,
        random: impl FnMut() -> u64,
    ) -> Option<usize> {
        let available = |place: usize| of.is_available(place);
        match (&mut self.way, key) {
            (Way::LeastCost, _) => self.weights.choose(of, random),
            (Way::RoundRobin(rotation), _) => rotation.choose(available),
            (Way::Ring(ring), Some(key)) => ring.choose(key, available),
            (Way::Maglev(maglev), Some(key)) => maglev.choose(key, available),
            (Way::Random | Way::Ring(_) | Way::Maglev(_), _) => self.weights.any(of, random),
        }
    }
}

/// What balancing must know of an endpoint.
pub trait Candidate {
    /// Requests in flight to it from this worker.
    fn in_flight(&self) -> u32;
    /// Relative capacity, at least 1.
    fn weight(&self) -> u32;
    /// Whether it may be chosen now.
    fn is_available(&self) -> bool;
}

impl<C: Candidate> Candidate for std::rc::Rc<C> {
    fn in_flight(&self) -> u32 {
        (**self).in_flight()
    }
    fn weight(&self) -> u32 {
        (**self).weight()
    }
    fn is_available(&self) -> bool {
        (**self).is_available()
    }
}

/// Draws that may hit an unavailable endpoint before all are looked at in turn.
const DRAWS: usize = 4;

/// Chooses an endpoint, or `None` when none is available. `random` yields uniform 64-bit numbers.
///
/// Endpoints are drawn uniformly and compared by load for their weight, which keeps a draw constant however many
/// there are; a heavier endpoint therefore wins comparisons, not draws.
pub fn pick<C: Candidate>(candidates: &[C], mut random: impl FnMut() -> u64) -> Option<usize> {
    match candidates {
        [] => return None,
        [only] => return only.is_available().then_some(0),
        _ => {}
    }
    let first = draw(candidates, &mut random)?;
    // The second is drawn from the others, so that two endpoints are always compared.
    let offset = 1 + below(random(), candidates.len() - 1);
    let second = (first + offset) % candidates.len();
    if candidates[second].is_available() && is_lighter(&candidates[second], &candidates[first]) {
        Some(second)
    } else {
        Some(first)
    }
}

fn draw<C: Candidate>(candidates: &[C], random: &mut impl FnMut() -> u64) -> Option<usize> {
    for _ in 0..DRAWS {
        let index = below(random(), candidates.len());
        if candidates[index].is_available() {
            return Some(index);
        }
    }
    let start = below(random(), candidates.len());
    (0..candidates.len())
        .map(|step| (start + step) % candidates.len())
        .find(|index| candidates[*index].is_available())
}

/// (in flight + 1) / weight, compared without division.
fn is_lighter<C: Candidate>(left: &C, right: &C) -> bool {
    let load =
        |mine: &C, other: &C| (u64::from(mine.in_flight()) + 1) * u64::from(other.weight().max(1));
    load(left, right) < load(right, left)
}

/// A number below `limit` from a uniform one, without the modulo's division or bias worth speaking of.
fn below(random: u64, limit: usize) -> usize {
    ((u128::from(random) * limit as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endpoint {
        in_flight: u32,
        weight: u32,
        up: bool,
    }

    impl Candidate for Endpoint {
        fn in_flight(&self) -> u32 {
            self.in_flight
        }
        fn weight(&self) -> u32 {
            self.weight
        }
        fn is_available(&self) -> bool {
            self.up
        }
    }

    fn endpoints(of: &[(u32, u32, bool)]) -> Vec<Endpoint> {
        of.iter()
            .map(|&(in_flight, weight, up)| Endpoint {
                in_flight,
                weight,
                up,
            })
            .collect()
    }

    fn shares(of: &[(u32, u32, bool)], draws: usize) -> Vec<usize> {
        let (all, mut random) = (endpoints(of), fastrand::Rng::with_seed(7));
        let mut counts = vec![0; of.len()];
        for _ in 0..draws {
            if let Some(index) = pick(&all, || random.u64(..)) {
                counts[index] += 1;
            }
        }
        counts
    }

    #[test]
    fn nobody_is_chosen_from_nobody_available() {
        for of in [
            &[][..],
            &[(0, 1, false)],
            &[(0, 1, false), (0, 1, false), (0, 1, false)],
        ] {
            assert_eq!(pick(&endpoints(of), || 0), None);
        }
    }

    #[test]
    fn the_only_available_endpoint_is_always_chosen() {
        let counts = shares(
            &[(0, 1, false), (900, 1, true), (0, 1, false), (0, 1, false)],
            200,
        );
        assert_eq!(counts, [0, 200, 0, 0]);
    }

    #[test]
    fn of_two_the_less_loaded_for_its_weight_is_chosen() {
        assert_eq!(shares(&[(5, 1, true), (4, 1, true)], 100), [0, 100]);
        assert_eq!(shares(&[(5, 2, true), (4, 1, true)], 100), [100, 0]);
    }

    #[test]
    fn equals_share_equally() {
        let counts = shares(&[(0, 1, true); 5], 50_000);
        assert!(
            counts.iter().all(|count| (9_500..10_500).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn the_most_loaded_of_many_is_never_chosen() {
        assert_eq!(
            shares(
                &[(1, 1, true), (1, 1, true), (9, 1, true), (1, 1, true)],
                10_000
            )[2],
            0
        );
    }

    #[test]
    fn extremes_of_chance_stay_in_range() {
        let all = endpoints(&[(0, 1, true); 3]);
        for chance in [0, u64::MAX] {
            assert!(pick(&all, || chance).is_some_and(|index| index < 3));
        }
    }
}
