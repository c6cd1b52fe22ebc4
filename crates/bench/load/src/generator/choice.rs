//! Selects the next of several requests by weight, from its number and a seed. A run can therefore be repeated, and threads agree
//! without communication.

use std::sync::Arc;

/// Requests with weights, or in a recorded order.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestChoice {
    /// Recorded choice for each number; if set, nothing is drawn at random.
    order: Option<Arc<[u32]>>,
    /// Number of requests that take turns; if set, nothing is drawn at random.
    turns: Option<u64>,
    /// Upper edge of each request's share of 0…1, ascending, and the request's index.
    edges: Vec<(f64, usize)>,
    seed: u64,
}

impl RequestChoice {
    /// Weights by number; those of weight 0 are never chosen.
    pub(crate) fn new(weights: impl Iterator<Item = (usize, f64)>, seed: u64) -> Self {
        let mut sum = 0.0;
        let mut edges: Vec<(f64, usize)> = weights
            .filter(|(_, weight)| *weight > 0.0)
            .map(|(which, weight)| {
                sum += weight;
                (sum, which)
            })
            .collect();
        for (edge, _) in &mut edges {
            *edge /= sum;
        }
        Self {
            order: None,
            turns: None,
            edges,
            seed,
        }
    }

    /// Takes requests as recorded, by number.
    pub(crate) fn recorded(order: Arc<[u32]>) -> Self {
        Self {
            order: Some(order),
            ..Self::default()
        }
    }

    /// Takes so many requests one after the other, and around.
    pub(crate) fn in_turn(count: usize) -> Self {
        Self {
            turns: Some(count.max(1) as u64),
            ..Self::default()
        }
    }

    /// The choice for request number `k`.
    pub(crate) fn pick(&self, k: u64) -> usize {
        if let Some(order) = &self.order {
            return order.get(k as usize).map_or(0, |which| *which as usize);
        }
        if let Some(turns) = self.turns {
            return (k % turns) as usize;
        }
        match self.edges.as_slice() {
            [] => 0,
            [(_, which)] => *which,
            edges => {
                let at = fraction(self.seed ^ k.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let place = edges.partition_point(|(edge, _)| *edge <= at);
                edges[place.min(edges.len() - 1)].1
            }
        }
    }
}

/// A number from 0 up to 1 that has nothing to do with its neighbours' (splitmix64's mixing).
fn fraction(seed: u64) -> f64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_their_weights_and_can_be_repeated() {
        let weights = [3.0, 0.0, 1.0, 6.0];
        let choice = |seed| RequestChoice::new(weights.into_iter().enumerate(), seed);
        let mut counts = [0; 4];
        for k in 0..100_000 {
            let which = choice(7).pick(k);
            counts[which] += 1;
        }
        for (count, weight) in counts.iter().zip(weights) {
            // Six standard deviations at most.
            let off = (f64::from(*count) - weight * 10_000.0).abs();
            assert!(off < 1000.0, "{counts:?}");
        }
        assert_eq!(counts[1], 0);
        let draw = |seed| (0..100).map(|k| choice(seed).pick(k)).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(RequestChoice::default().pick(5), 0);
        let turns: Vec<usize> = (0..5).map(|k| RequestChoice::in_turn(3).pick(k)).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1]);
    }
}
