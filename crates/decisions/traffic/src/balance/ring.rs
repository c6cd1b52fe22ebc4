//! Consistent hashing: the same key goes to the same endpoint, and when one leaves, only its keys go elsewhere. A
//! ring (Karger and others, 1997) or Maglev's table (Eisenbud and others, NSDI 2016, section 3.4). Clones share the
//! table.

use std::sync::Arc;

use crate::hash::xxh64;

/// Places on the ring of four endpoints, at least: Istio's and Envoy's `minimumRingSize`.
pub const MIN_RING: u64 = 1_024;

/// Places on a ring at most: 16 MiB of them. Envoy allows eight times as many.
pub const MAX_RING: u64 = 1 << 20;

/// Places in Maglev's table: Istio's and Envoy's default, a prime.
pub const MAGLEV_SIZE: u32 = 65_537;

/// An endpoint to be placed: its name, the same everywhere (its address and port), and its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingEndpoint<'n> {
    /// The name that is hashed.
    pub name: &'n str,
    /// Its share of the keys; 0 counts as 1.
    pub weight: u32,
}

/// Endpoints on a ring.
#[derive(Debug, Clone)]
pub struct Ring {
    /// End of an endpoint's range on the ring, and the endpoint.
    places: Arc<[(u64, u32)]>,
}

impl Ring {
    /// Places endpoints, a quarter of `least` places for each unit of weight. That does not depend on how many endpoints
    /// there are, as it does with Envoy, where all others get more places when one leaves and take keys from each other.
    /// Only where there would be more than [`MAX_RING`] in all, each has half as many, or a quarter…
    #[must_use]
    pub fn new(endpoints: &[RingEndpoint<'_>], least: u64) -> Self {
        let weight = |endpoint: &RingEndpoint<'_>| u64::from(endpoint.weight.max(1));
        let unit = endpoints
            .iter()
            .map(weight)
            .fold(0, greatest_common_divisor);
        let each = least.div_ceil(4).clamp(1, MAX_RING);
        let whole = |endpoint: &RingEndpoint<'_>| weight(endpoint) / unit * each;
        let mut halvings = 0;
        let own = |endpoint: &RingEndpoint<'_>, halvings: u32| (whole(endpoint) >> halvings).max(1);
        while halvings < u64::BITS - 1
            && endpoints
                .iter()
                .map(|endpoint| own(endpoint, halvings))
                .sum::<u64>()
                > MAX_RING
        {
            halvings += 1;
        }
        let mut places = Vec::new();
        for (number, endpoint) in endpoints.iter().enumerate() {
            for copy in 0..own(endpoint, halvings) {
                let key = format!("{}_{copy}", endpoint.name);
                places.push((xxh64(key.as_bytes(), 0), number as u32));
            }
        }
        places.sort_unstable();
        let places = places.into();
        Self { places }
    }

    /// Selects the endpoint of a key, among those available.
    #[must_use]
    pub fn choose(&self, key: u64, is_available: impl Fn(usize) -> bool) -> Option<usize> {
        let start = self.places.partition_point(|(end, _)| *end < key);
        let (before, after) = self.places.split_at(start);
        let around = after.iter().chain(before).map(|(_, owner)| *owner as usize);
        { around }.find(|owner| is_available(*owner))
    }
}

fn greatest_common_divisor(left: u64, right: u64) -> u64 {
    let (mut left, mut right) = (left, right);
    while right > 0 {
        (left, right) = (right, left % right);
    }
    left
}

/// Endpoints in Maglev's table: one step, and shares that are more even than a ring's; more of the others' keys move.
#[derive(Debug, Clone)]
pub struct Maglev {
    owners: Arc<[u32]>,
}

const NOBODY: u32 = u32::MAX;

/// One endpoint's way through the table while it is filled.
struct Permutation {
    offset: u64,
    skip: u64,
    next: u64,
    /// By the table's turns: how many places it has had, and is due.
    due: f64,
    weight: f64,
}

impl Maglev {
    /// Fills a table of a prime size.
    #[must_use]
    pub fn new(endpoints: &[RingEndpoint<'_>], size: u32) -> Self {
        let mut owners = vec![
            NOBODY;
            if endpoints.is_empty() {
                0
            } else {
                size as usize
            }
        ];
        let heaviest = endpoints
            .iter()
            .map(|endpoint| endpoint.weight.max(1))
            .max();
        let heaviest = f64::from(heaviest.unwrap_or(1));
        let modulus = u64::from(size);
        let of = |endpoint: &RingEndpoint<'_>| Permutation {
            offset: xxh64(endpoint.name.as_bytes(), 0) % modulus,
            skip: xxh64(endpoint.name.as_bytes(), 1) % (modulus - 1) + 1,
            next: 0,
            due: 0.0,
            weight: f64::from(endpoint.weight.max(1)) / heaviest,
        };
        let mut all: Vec<Permutation> = endpoints.iter().map(of).collect();
        let mut left = owners.len();
        while left > 0 {
            for (number, own) in all.iter_mut().enumerate() {
                own.due += own.weight;
                if own.due < 1.0 {
                    continue;
                }
                own.due -= 1.0;
                let place = loop {
                    let place = (own.offset + own.skip * own.next) % modulus;
                    own.next += 1;
                    if owners[place as usize] == NOBODY {
                        break place;
                    }
                };
                owners[place as usize] = number as u32;
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        let owners = owners.into();
        Self { owners }
    }

    /// Selects the endpoint of a key, among those available.
    #[must_use]
    pub fn choose(&self, key: u64, is_available: impl Fn(usize) -> bool) -> Option<usize> {
        if self.owners.is_empty() {
            return None;
        }
        let start = (key % self.owners.len() as u64) as usize;
        let (before, after) = self.owners.split_at(start);
        let around = after.iter().chain(before).map(|owner| *owner as usize);
        { around }.find(|owner| is_available(*owner))
    }
}
