//! Each in turn, the heavier ones more often and evenly spread: earliest deadline first, where an endpoint's next deadline
//! is one period after its last, and its period one part of its weight. The logarithm of their number, and one step where
//! all weigh the same.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::share::below;

/// Endpoints in turn, by weight. A worker's own: choosing moves it on.
#[derive(Debug, Clone)]
pub struct Rotation {
    state: RotationState,
}

#[derive(Debug, Clone)]
enum RotationState {
    Even {
        of: usize,
        next: usize,
    },
    Weighted {
        periods: Box<[u64]>,
        /// Next deadline and place.
        queue: BinaryHeap<Reverse<(u64, u32)>>,
    },
}

/// The period of the weight 1, so that the largest weight still has one that is not rounded away.
const SCALE: u64 = 1 << 40;

/// When deadlines are this far on, they are all set back: after some hundred million turns of the lightest.
const FAR: u64 = u64::MAX / 2;

impl Rotation {
    /// Of endpoints with these weights; 0 counts as 1. Workers begin at different places, by chance.
    #[must_use]
    pub fn new(weights: &[u32], mut random: impl FnMut() -> u64) -> Self {
        let even = weights.windows(2).all(|pair| pair[0] == pair[1]);
        let state = if even {
            let of = weights.len();
            let next = below(random(), of as u64) as usize;
            RotationState::Even { of, next }
        } else {
            let periods = weights
                .iter()
                .map(|weight| SCALE / u64::from((*weight).max(1)));
            let periods: Box<[u64]> = periods.collect();
            let queue = periods.iter().enumerate();
            let queue =
                queue.map(|(place, period)| Reverse((below(random(), *period), place as u32)));
            RotationState::Weighted {
                queue: queue.collect(),
                periods,
            }
        };
        Self { state }
    }

    /// Selects the next endpoint in rotation among those available; `None` if there is none.
    pub fn choose(&mut self, is_available: impl Fn(usize) -> bool) -> Option<usize> {
        let places = match &self.state {
            RotationState::Even { of, .. } => *of,
            RotationState::Weighted { periods, .. } => periods.len(),
        };
        // With weights an endpoint may have several turns before every other had one, so that these turns are not
        // enough.
        let turns = (0..places).map(|_| self.turn());
        let found = { turns }.find(|place| is_available(*place));
        found.or_else(|| (0..places).find(|place| is_available(*place)))
    }

    fn turn(&mut self) -> usize {
        match &mut self.state {
            RotationState::Even { of, next } => {
                let turn = *next;
                *next = if turn + 1 == *of { 0 } else { turn + 1 };
                turn
            }
            RotationState::Weighted { periods, queue } => {
                let mut first = queue
                    .peek_mut()
                    .expect("invariant: weights that differ are two or more");
                let Reverse((deadline, place)) = &mut *first;
                let turn = *place as usize;
                *deadline += periods[turn];
                let far = *deadline > FAR;
                drop(first);
                if far {
                    set_back(queue);
                }
                turn
            }
        }
    }
}

/// Takes the earliest deadline off all of them.
fn set_back(queue: &mut BinaryHeap<Reverse<(u64, u32)>>) {
    let least = queue.peek().map_or(0, |Reverse((deadline, _))| *deadline);
    *queue = std::mem::take(queue)
        .into_iter()
        .map(|Reverse((deadline, place))| Reverse((deadline - least, place)))
        .collect();
}

#[cfg(test)]
mod tests {
    use super::Rotation;

    #[test]
    fn turns_follow_the_weights_at_every_moment() {
        let mut random = fastrand::Rng::with_seed(4);
        for weights in [
            &[1, 1, 1][..],
            &[1, 2, 3, 94],
            &[5, 1],
            &[u32::MAX, 1],
            &[1_000, 999, 1],
        ] {
            let mut rotation = Rotation::new(weights, || random.u64(..));
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            let mut counts = vec![0_u32; weights.len()];
            for turn in 1..=10_000 {
                counts[rotation.choose(|_| true).expect("one")] += 1;
                for (weight, count) in weights.iter().zip(&counts) {
                    let due = f64::from(turn) * f64::from(*weight) / total;
                    let late = (due - f64::from(*count)).abs();
                    assert!(late < 2.0, "{weights:?} after {turn}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn who_is_not_available_has_no_turn() {
        let none = || 0;
        assert_eq!(Rotation::new(&[], none).choose(|_| true), None);
        assert_eq!(Rotation::new(&[1, 1], none).choose(|_| false), None);
        assert_eq!(Rotation::new(&[9, 1], none).choose(|_| false), None);
        assert_eq!(
            Rotation::new(&[1_000_000, 1, 1], none).choose(|place| place == 2),
            Some(2)
        );
        let mut even = Rotation::new(&[3, 3, 3], none);
        let turns: Vec<_> = (0..4).map(|_| even.choose(|place| place != 1)).collect();
        assert_eq!(turns, [Some(0), Some(2), Some(0), Some(2)]);
    }
}
