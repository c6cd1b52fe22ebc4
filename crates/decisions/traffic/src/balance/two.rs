//! The better of two, drawn by weight: constant work however many endpoints there are, and no herd that follows the best.

use super::alias::Alias;

/// Properties of an endpoint for a choice, by its place.
pub trait EndpointCost {
    /// Returns the cost of one more request to the endpoint; less is better.
    fn cost(&self, place: usize) -> f64;
    /// Returns true if the endpoint may be selected now.
    fn is_available(&self, place: usize) -> bool;
    /// The share of its weight that it is to have now, up to 1: less while it warms up.
    fn warmth(&self, place: usize) -> f64;
}

/// Draws for a place before all are looked at in turn.
const DRAWS: usize = 8;

/// Endpoints by weight. A heavier one is drawn more often; costs, which know the weights as well, decide between two.
#[derive(Debug, Clone)]
pub struct TwoChoices {
    weights: Alias,
}

impl TwoChoices {
    /// Of endpoints with these weights.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        let weights = Alias::new(weights);
        Self { weights }
    }

    /// The better of two; the only one there is; `None` when none is available.
    pub fn choose(&self, of: &impl EndpointCost, mut random: impl FnMut() -> u64) -> Option<usize> {
        let first = self.draw(of, &mut random, None)?;
        match self.weights.len() {
            1 => Some(first),
            _ => Some(match self.draw(of, &mut random, Some(first)) {
                Some(second) if of.cost(second) < of.cost(first) => second,
                _ => first,
            }),
        }
    }

    /// Selects one by weight, whatever its cost.
    pub fn any(&self, of: &impl EndpointCost, mut random: impl FnMut() -> u64) -> Option<usize> {
        self.draw(of, &mut random, None)
    }

    /// One by weight and warmth, unlike `other`. A second one is not sought among all: the first is good enough then.
    fn draw(
        &self,
        of: &impl EndpointCost,
        random: &mut impl FnMut() -> u64,
        other: Option<usize>,
    ) -> Option<usize> {
        let mut cold = None;
        for _ in 0..DRAWS {
            let place = self.weights.draw(random())?;
            if Some(place) == other || !of.is_available(place) {
                continue;
            }
            let warmth = of.warmth(place);
            if warmth >= 1.0 || is_warm(warmth, random()) {
                return Some(place);
            }
            cold = cold.or(Some(place));
        }
        if cold.is_some() || other.is_some() {
            return cold;
        }
        let start = self.weights.draw(random())?;
        let after = (start..self.weights.len()).chain(0..start);
        let mut available = after.filter(|place| of.is_available(*place));
        available.next()
    }
}

/// Returns true if an endpoint that is warm to this part takes its turn.
pub(super) fn is_warm(warmth: f64, random: u64) -> bool {
    warmth >= 1.0 || unit(random) < warmth
}

/// From 0 up to 1.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}
