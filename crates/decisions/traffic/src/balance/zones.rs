//! Zones: requests stay in the caller's zone as far as its part of the endpoints allows for its part of the callers.
//! The rest goes where endpoints are to spare. Envoy's arithmetic (its page "Zone aware routing"), with exact parts
//! and by weight.
//!
//! ```text
//!             zone a   zone b
//! callers     3        1         who asks in a: 2/3 stay (half of the endpoints for 3/4 of the callers), 1/3 goes to b
//! endpoints   2        2         who asks in b: all stay; so each endpoint takes a quarter
//! ```

/// Callers by zone, as one of the callers knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zones {
    /// The level of endpoints that is meant, by [`Place::priority`](super::Place::priority). Its zones are its localities; the
    /// caller's own is the first.
    pub priority: u32,
    /// Callers in each of these zones. With 0 in the caller's own zone nothing is known of callers.
    pub callers: Box<[u32]>,
    /// Callers in zones without endpoints.
    pub elsewhere: u32,
    /// Among fewer endpoints that are well all zones are asked alike.
    pub least: u32,
}

/// Parts of a share.
const PARTS: u128 = 1_000_000;

/// One of so many, in parts; at least one where it is anything.
fn part(of: u128, all: u128) -> u64 {
    (of * PARTS / all.max(1)).max(u128::from(of > 0)) as u64
}

/// Returns the shares of zones without preference: the weight of their endpoints.
pub(super) fn alike(weights: &[u64]) -> Vec<u64> {
    let total: u64 = weights.iter().sum();
    let share = |weight: &u64| part((*weight).into(), total.into());
    weights.iter().map(share).collect()
}

impl Zones {
    /// The shares of the zones in millionths, whose endpoints that are well weigh so much, and are so many in all.
    pub(super) fn shares(&self, weights: &[u64], count: usize) -> Vec<u64> {
        let (Some(own), Some(ours)) = (weights.first(), self.callers.first()) else {
            return Vec::new();
        };
        if count < self.least as usize || *ours == 0 {
            return alike(weights);
        }
        let total: u64 = weights.iter().sum();
        let all: u64 = self.callers.iter().copied().map(u64::from).sum();
        let all = all + u64::from(self.elsewhere);
        // Capacity of a zone's endpoints, and load of its callers, over one denominator.
        let takes = |weight: u64| u128::from(weight) * u128::from(all);
        let brings = |callers: u32| u128::from(callers) * u128::from(total);
        let kept = part(takes(*own).min(brings(*ours)), brings(*ours));
        let others = weights.iter().zip(&self.callers[..]).skip(1);
        let spare = others.map(|(weight, callers)| takes(*weight).saturating_sub(brings(*callers)));
        let spare: Vec<u128> = spare.collect();
        let to_spare: u128 = spare.iter().sum();
        let left = PARTS - u128::from(kept);
        let others = spare.into_iter();
        let others = others.map(|spare| (left * spare / to_spare.max(1)) as u64);
        std::iter::once(kept).chain(others).collect()
    }
}
