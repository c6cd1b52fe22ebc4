//! Chance that can be repeated: whether the n-th request to a service fails, and which of its calls are made, depends only on
//! the seed, who decides, n and the decision, not on the order in which requests meet. So counts can be foretold exactly.

use crate::model::{GraphService, Probability};

/// A random decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The decision to fail it.
    Fail,
    /// The decision to make the n-th call of the script, counting every call as written from 0.
    Call(u32),
}

/// The dice of one process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessRandom {
    base: u64,
}

impl ProcessRandom {
    /// Those of `who` under a seed.
    #[must_use]
    pub fn new(seed: u64, who: &str) -> Self {
        let named = who.bytes().fold(seed, |state, byte| {
            mix(state ^ u64::from(byte)).wrapping_add(0x9e37_79b9_7f4a_7c15)
        });
        Self { base: mix(named) }
    }

    /// Returns true if a decision with this probability hits the request.
    #[must_use]
    pub fn hit(&self, request: u64, decision: Decision, share: Probability) -> bool {
        if share == Probability::ALL {
            return true;
        }
        let decision = match decision {
            Decision::Fail => 0,
            Decision::Call(call) => 1 + u64::from(call),
        };
        let roll = mix(mix(self.base ^ request.wrapping_mul(0xd134_2543_de82_ef95)) ^ decision);
        // 53 bits are what a double holds.
        let roll = (roll >> 11) as f64 / (1u64 << 53) as f64;
        roll < share.get()
    }

    /// Computes the failures among the first `requests` at a service, and the number of times that the rest
    /// makes each of its calls.
    #[must_use]
    pub fn foretell(&self, service: &GraphService, requests: u64) -> (u64, Vec<u64>) {
        let calls: Vec<Probability> = service.calls().map(|call| call.probability).collect();
        let (mut failed, mut made) = (0, vec![0; calls.len()]);
        for request in 0..requests {
            if self.hit(request, Decision::Fail, service.error_rate) {
                failed += 1;
                continue;
            }
            for ((share, made), call) in calls.iter().zip(&mut made).zip(0..) {
                *made += u64::from(self.hit(request, Decision::Call(call), *share));
            }
        }
        (failed, made)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of the answer.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_met_and_decisions_are_independent() {
        const ROLLS: u64 = 200_000;
        for share in [0.0, 0.001, 0.1, 0.5, 0.9, 1.0] {
            let share = Probability::new(share).expect("a share");
            let dice = ProcessRandom::new(7, "a/0");
            let hits = |decision| {
                (0..ROLLS)
                    .filter(|&request| dice.hit(request, decision, share))
                    .count() as f64
            };
            // Five standard deviations: with a fixed seed this either holds always or never.
            let spread = 5.0 * (ROLLS as f64 * share.get() * (1.0 - share.get())).sqrt();
            for decision in [Decision::Fail, Decision::Call(0), Decision::Call(1)] {
                let off = (hits(decision) - ROLLS as f64 * share.get()).abs();
                assert!(off <= spread, "{share:?} {decision:?}: {off} > {spread}");
            }
            let both = (0..ROLLS)
                .filter(|&n| {
                    dice.hit(n, Decision::Fail, share) && dice.hit(n, Decision::Call(0), share)
                })
                .count() as f64;
            let expected = ROLLS as f64 * share.get() * share.get();
            assert!(
                (both - expected).abs() <= spread.max(1.0),
                "{share:?}: {both} {expected}"
            );
        }
    }

    #[test]
    fn seeds_and_names_give_other_dice() {
        let half = Probability::new(0.5).expect("a share");
        let rolls = |dice: ProcessRandom| {
            (0..64)
                .map(|n| dice.hit(n, Decision::Fail, half))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            rolls(ProcessRandom::new(1, "a")),
            rolls(ProcessRandom::new(1, "a"))
        );
        assert_ne!(
            rolls(ProcessRandom::new(1, "a")),
            rolls(ProcessRandom::new(2, "a"))
        );
        assert_ne!(
            rolls(ProcessRandom::new(1, "a")),
            rolls(ProcessRandom::new(1, "b"))
        );
    }
}
