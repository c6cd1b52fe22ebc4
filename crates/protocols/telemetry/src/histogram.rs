//! Envoy's and Istio's histogram buckets: nineteen bounds that serve milliseconds and bytes alike. Counting one value
//! is a search among nineteen integers and two additions.

/// Upper bounds, doubled, so that Envoy's first bound of one half is an integer too.
const BOUNDS_DOUBLED: [u64; 19] = [
    1, 2, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 120_000, 600_000,
    1_200_000, 3_600_000, 7_200_000,
];

/// Number of bounds.
pub(crate) const BOUNDS: usize = BOUNDS_DOUBLED.len();

/// Counts of values by size, in thousandths of the exposed unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    counts: [u64; BOUNDS + 1],
    sum_milli: u64,
}

impl Histogram {
    /// Counts one value given in thousandths of the unit: microseconds for a histogram of milliseconds.
    pub fn record_milli(&mut self, milli: u64) {
        let index = BOUNDS_DOUBLED.partition_point(|bound| bound * 500 < milli);
        self.counts[index] += 1;
        self.sum_milli = self.sum_milli.saturating_add(milli);
    }

    /// Counts one value given in the unit.
    pub fn record(&mut self, value: u64) {
        self.record_milli(value.saturating_mul(1000));
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine += theirs;
        }
        self.sum_milli = self.sum_milli.saturating_add(other.sum_milli);
    }

    /// Returns the number of counted values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum in the unit.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum_milli as f64 / 1000.0
    }

    /// Bound and how many values are not above it, ascending; without the infinite one, which is [`Histogram::count`].
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut total = 0;
        BOUNDS_DOUBLED
            .iter()
            .zip(self.counts)
            .map(move |(bound, count)| {
                total += count;
                (*bound as f64 / 2.0, total)
            })
    }
}
