//! Latency samples: HDR histograms of three digits from 1 µs to 60 s, in microseconds, mergeable, and their
//! encoding in records (HdrHistogram's V2 compressed form, base64), which every HDR tool reads.

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::Serialize;

/// Significant decimal digits kept.
const DIGITS: u8 = 3;
/// The largest value kept apart, in µs: 60 s. Longer ones are counted as this, never dropped.
pub const MAX_US: u64 = 60_000_000;
/// Nanoseconds in a microsecond.
const MICROSECOND: u64 = 1_000;

/// A set of durations.
#[derive(Debug, Clone)]
pub struct Samples {
    histogram: Histogram<u64>,
}

impl Default for Samples {
    fn default() -> Self {
        Self::new()
    }
}

impl Samples {
    /// An empty set. It starts small and grows with the values seen, since a long run keeps one per second.
    #[must_use]
    pub fn new() -> Self {
        let mut histogram =
            Histogram::new_with_bounds(1, 2, DIGITS).expect("invariant: constant bounds are valid");
        histogram.auto(true);
        Self { histogram }
    }

    /// Adds one duration in nanoseconds.
    pub fn record(&mut self, nanoseconds: u64) {
        let microseconds = (nanoseconds.saturating_add(MICROSECOND / 2)) / MICROSECOND;
        // Not `saturating_record`: that saturates at the present size instead of growing.
        let recorded = self.histogram.record(microseconds.min(MAX_US));
        recorded.expect("invariant: an auto-resizing histogram takes any value");
    }

    /// Adds all of another set.
    pub fn merge(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("invariant: an auto-resizing histogram takes any value");
    }

    /// The set without the durations of another one, all of which it has.
    pub(crate) fn without(&self, part: &Self) -> Self {
        let mut rest = self.clone();
        rest.histogram
            .subtract(&part.histogram)
            .expect("invariant: every sample of a part is in the whole");
        rest
    }

    /// Number of durations in the set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The duration, in µs, that `quantile` (0…1) of the samples do not exceed.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        self.histogram
            .value_at_quantile(quantile)
            .min(self.histogram.max())
    }

    /// The largest, in µs.
    #[must_use]
    pub fn max_us(&self) -> u64 {
        if self.count() == 0 {
            0
        } else {
            self.histogram.max()
        }
    }

    /// Number of durations of at most `us` microseconds, at histogram precision.
    #[must_use]
    pub fn count_up_to(&self, us: u64) -> u64 {
        self.histogram.count_between(0, us)
    }

    /// Standard deviation in µs.
    #[must_use]
    pub fn deviation_us(&self) -> f64 {
        if self.count() == 0 {
            0.0
        } else {
            self.histogram.stdev()
        }
    }

    /// The figures that records show.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            p50: self.quantile_us(0.50),
            p75: self.quantile_us(0.75),
            p90: self.quantile_us(0.90),
            p99: self.quantile_us(0.99),
            p999: self.quantile_us(0.999),
            max: self.max_us(),
            mean: if self.count() == 0 {
                0.0
            } else {
                self.histogram.mean()
            },
            count: self.count(),
        }
    }

    /// HdrHistogram V2, compressed, base64.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        let encoded = V2DeflateSerializer::new().serialize(&self.histogram, &mut bytes);
        encoded.expect("invariant: writing to memory does not fail");
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    /// Reads what [`Samples::encode`] wrote, or any HdrHistogram V2 text of other tools.
    pub fn decode(text: &str) -> Result<Self, String> {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_err(|error| format!("histogram is not base64: {error}"))?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| format!("histogram is not HdrHistogram V2: {error}"))?;
        // Added to one that grows, because one that was read has the bounds of its text and panics on a larger value.
        let mut samples = Self::new();
        samples
            .histogram
            .add(&read)
            .map_err(|error| format!("histogram holds more than can be kept: {error}"))?;
        Ok(samples)
    }

    /// Each non-empty bucket as (lowest µs, highest µs, count), ascending.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.histogram.iter_recorded().map(|step| {
            let value = step.value_iterated_to();
            let lowest = self.histogram.lowest_equivalent(value);
            (
                lowest,
                self.histogram.highest_equivalent(value),
                step.count_at_value(),
            )
        })
    }
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Median.
    pub p50: u64,
    /// 75th percentile.
    pub p75: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest sample.
    pub max: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Number of samples.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(microseconds: &[u64]) -> Samples {
        let mut samples = Samples::new();
        for us in microseconds {
            samples.record(us * MICROSECOND);
        }
        samples
    }

    #[test]
    fn what_was_read_grows_like_what_was_recorded() {
        let mut read = Samples::decode(&of(&[100, 200]).encode()).expect("reads its own text");
        read.merge(&of(&[5_000_000]));
        read.record(MAX_US * MICROSECOND);
        assert_eq!((read.count(), read.quantile_us(0.25)), (4, 100));
        assert!(read.max_us() >= MAX_US, "{}", read.max_us());
    }

    #[test]
    fn text_that_is_no_histogram_is_refused_with_a_word() {
        let cut = of(&[1, 2, 3]).encode();
        for (text, word) in [
            ("#", "base64"),
            ("", "V2"),
            ("AAAA", "V2"),
            (&cut[..cut.len() / 8 * 4], "V2"),
        ] {
            let why = Samples::decode(text).expect_err("is no histogram");
            assert!(why.contains(word), "{text:?}: {why}");
        }
    }
}
