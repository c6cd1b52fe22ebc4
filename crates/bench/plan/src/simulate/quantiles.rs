//! A distribution by its quantiles, with straight lines between them.

/// Times in microseconds by the share of requests that takes no longer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Quantiles {
    /// Shares and times, both rising; empty for no time at all.
    knots: Vec<(f64, f64)>,
}

impl Quantiles {
    /// Always the same time.
    #[must_use]
    pub fn constant(time: f64) -> Self {
        Self {
            knots: vec![(0.0, time.max(0.0))],
        }
    }

    /// Through these quantiles; a time below the one before it is raised to it, and none is below zero.
    #[must_use]
    pub fn through(quantiles: &[(f64, f64)]) -> Self {
        let mut least = 0.0f64;
        let knots = quantiles.iter().map(|&(share, time)| {
            least = least.max(time);
            (share, least)
        });
        Self {
            knots: knots.collect(),
        }
    }

    /// Of measured percentiles. The lower half rises in a straight line, from where the mean is the measured one; the last
    /// hundredth stays at the 99th percentile.
    #[must_use]
    pub fn measured(mean: Option<f64>, p50: f64, p90: f64, p99: f64) -> Self {
        let upper = 0.4 * f64::midpoint(p50, p90) + 0.09 * f64::midpoint(p90, p99) + 0.01 * p99;
        let least = mean.map_or(p50, |mean| {
            (4.0 * (mean - upper) - p50).clamp(0.0, p50.max(0.0))
        });
        Self::through(&[(0.0, least), (0.5, p50), (0.9, p90), (0.99, p99)])
    }

    /// The time at a share from 0 to 1.
    #[must_use]
    pub fn at(&self, share: f64) -> f64 {
        let after = self.knots.partition_point(|knot| knot.0 <= share);
        match (
            after.checked_sub(1).map(|n| self.knots[n]),
            self.knots.get(after),
        ) {
            (None, None) => 0.0,
            (None, Some(first)) => first.1,
            (Some(last), None) => last.1,
            (Some(from), Some(to)) => from.1 + (to.1 - from.1) * (share - from.0) / (to.0 - from.0),
        }
    }

    /// The same without so much time.
    #[must_use]
    pub fn less(&self, time: f64) -> Self {
        let knots = self
            .knots
            .iter()
            .map(|&(share, all)| (share, (all - time).max(0.0)));
        Self {
            knots: knots.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_percentiles_and_the_mean_are_kept() {
        let times = Quantiles::measured(Some(118.0), 100.0, 150.0, 400.0);
        for (share, time) in [(0.5, 100.0), (0.9, 150.0), (0.99, 400.0), (1.0, 400.0)] {
            assert!((times.at(share) - time).abs() < 1e-9, "{share}");
        }
        let steps = 100_000;
        let shares = (0..steps).map(|n| (f64::from(n) + 0.5) / f64::from(steps));
        let mean = shares.map(|share| times.at(share)).sum::<f64>() / f64::from(steps);
        assert!((mean - 118.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn times_never_fall_nor_go_below_zero() {
        let times = Quantiles::through(&[(0.0, -5.0), (0.5, 10.0), (0.9, 7.0)]);
        assert_eq!(
            [0.0, 0.5, 0.9, 1.0].map(|share| times.at(share)),
            [0.0, 10.0, 10.0, 10.0]
        );
        assert_eq!(times.less(4.0).at(0.5), 6.0);
        assert_eq!(times.less(40.0).at(0.5), 0.0);
        assert_eq!(Quantiles::default().at(0.3), 0.0);
        assert_eq!(Quantiles::constant(3.0).at(0.7), 3.0);
    }
}
