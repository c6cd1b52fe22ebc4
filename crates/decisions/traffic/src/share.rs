//! Shares of chance: one of several destinations by weight, and a percentage of requests. Chance is an argument, a uniform
//! 64-bit number.

/// A number below `limit` from a uniform one, without a division, and without bias worth speaking of.
pub(crate) fn below(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

/// Weights of things in order. Choosing takes the logarithm of their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// The sum of each and all before it.
    sums: Box<[u64]>,
}

impl Weights {
    /// Weights as they stand; those of 0 are never chosen.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        let sums = weights.iter().scan(0, |sum, weight| {
            *sum += u64::from(*weight);
            Some(*sum)
        });
        let sums = sums.collect();
        Self { sums }
    }

    /// The place of one of them, by its share of the sum; `None` when none has a weight (Gateway API: then the answer is
    /// 500).
    #[must_use]
    pub fn choose(&self, random: u64) -> Option<usize> {
        let total = *self.sums.last()?;
        let drawn = below(random, total);
        (total > 0).then(|| self.sums.partition_point(|sum| *sum <= drawn))
    }
}

/// A share of requests: of those to fail, to delay, to mirror. Kept in millionths, as Envoy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct RequestShare(u32);

/// Not a share.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0} is not a share: expected 0 to 100 %")]
pub struct ShareError(String);

impl RequestShare {
    const WHOLE: u32 = 1_000_000;
    /// Every request.
    pub const ALL: Self = Self(Self::WHOLE);
    /// No request.
    pub const NONE: Self = Self(0);

    /// A share of so many percent; parts below a millionth are cut off.
    pub fn percent(percent: f64) -> Result<Self, ShareError> {
        match percent {
            0.0..=100.0 => Ok(Self((percent * 10_000.0) as u32)),
            _ => Err(ShareError(format!("{percent} %"))),
        }
    }

    /// So many of so many: Gateway API's fraction.
    pub fn of(numerator: u32, denominator: u32) -> Result<Self, ShareError> {
        let millionths = u64::from(numerator) * u64::from(Self::WHOLE);
        match denominator {
            1.. if numerator <= denominator => {
                Ok(Self((millionths / u64::from(denominator)) as u32))
            }
            _ => Err(ShareError(format!("{numerator}/{denominator}"))),
        }
    }

    /// So many millionths, at most all.
    #[must_use]
    pub fn of_millionths(millionths: u32) -> Self {
        Self(millionths.min(Self::WHOLE))
    }

    /// It in millionths.
    #[must_use]
    pub fn millionths(self) -> u32 {
        self.0
    }

    /// Returns true if a request belongs to the share.
    #[must_use]
    pub fn takes(self, random: u64) -> bool {
        below(random, u64::from(Self::WHOLE)) < u64::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestShare, Weights};

    #[test]
    fn weights_converge_to_their_shares_and_zero_is_never_chosen() {
        let mut random = fastrand::Rng::with_seed(11);
        for weights in [
            &[1, 1][..],
            &[90, 10],
            &[0, 3, 0, 1, 0],
            &[u32::MAX, 1, u32::MAX],
            &[7],
        ] {
            let (choice, mut counts) = (Weights::new(weights), vec![0_u32; weights.len()]);
            const DRAWS: u32 = 100_000;
            for _ in 0..DRAWS {
                counts[choice.choose(random.u64(..)).expect("some")] += 1;
            }
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (weight, count) in weights.iter().zip(counts) {
                let (wanted, found) = (
                    f64::from(*weight) / total,
                    f64::from(count) / f64::from(DRAWS),
                );
                // Five deviations of a share of a half.
                assert!(
                    (wanted - found).abs() < 0.008,
                    "{weights:?}: {wanted} {found}"
                );
                assert!(*weight > 0 || count == 0);
            }
        }
    }

    #[test]
    fn extremes_of_chance_stay_in_range() {
        let weights = Weights::new(&[0, 2, 1, 0]);
        assert_eq!(
            (weights.choose(0), weights.choose(u64::MAX)),
            (Some(1), Some(2))
        );
        assert_eq!(
            (Weights::new(&[]).choose(5), Weights::new(&[0, 0]).choose(5)),
            (None, None)
        );
        for random in [0, u64::MAX / 2, u64::MAX] {
            assert!(RequestShare::ALL.takes(random) && !RequestShare::NONE.takes(random));
        }
    }

    #[test]
    fn shares_are_percents_and_fractions_and_nothing_beyond() {
        let mut random = fastrand::Rng::with_seed(5);
        for (share, wanted) in [
            (RequestShare::percent(12.5), 12_500),
            (RequestShare::of(1, 8), 12_500),
            (RequestShare::percent(0.0001), 0),
            (RequestShare::of(3, 3), 100_000),
        ] {
            let share = share.expect("good");
            let found = (0..100_000).filter(|_| share.takes(random.u64(..))).count();
            assert!(found.abs_diff(wanted) < 600, "{share:?}: {found}");
        }
        for wrong in [
            RequestShare::percent(-0.1),
            RequestShare::percent(100.1),
            RequestShare::percent(f64::NAN),
            RequestShare::of(2, 1),
            RequestShare::of(0, 0),
        ] {
            assert!(wrong.is_err(), "{wrong:?}");
        }
    }
}
