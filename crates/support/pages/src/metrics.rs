//! Lines of a page in Prometheus' text format, and percentiles from a histogram's buckets.

use std::collections::BTreeMap;

/// A line of a page.
#[derive(Debug)]
pub struct Sample<'a> {
    /// Name of the series.
    pub name: &'a str,
    labels: Vec<(&'a str, String)>,
    /// Its value.
    pub value: f64,
}

/// The lines of a page that are samples.
pub fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(Sample::parse)
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let mut labels = Vec::new();
        let name_end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(name_end);
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                rest = rest.trim_start_matches([',', ' ']);
                if let Some(after) = rest.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let (key, after) = rest.split_once("=\"")?;
                let (value, after) = quoted(after)?;
                labels.push((key, value));
                rest = after;
            }
        }
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self {
            name,
            labels,
            value,
        })
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        let found = labels.find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Up to the closing quote; `\\`, `\"` and `\n` are escapes.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            _ => value.push(c),
        }
    }
    None
}

/// Counts at or below each upper bound, by the bits of the bound (`f64::INFINITY` is the last). Bit patterns of positive floats sort
/// as the numbers do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets(BTreeMap<u64, f64>);

impl Buckets {
    /// Adds a `_bucket` sample; one without a bound is left out.
    pub fn add(&mut self, sample: &Sample<'_>) {
        let bound = sample.label("le").and_then(|le| le.parse::<f64>().ok());
        if let Some(bound) = bound.filter(|bound| *bound >= 0.0) {
            *self.0.entry(bound.to_bits()).or_default() += sample.value;
        }
    }

    /// Both, combined count by count.
    #[must_use]
    pub fn combine(&self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        let bounds = self.0.keys().chain(other.0.keys());
        let bucket = |of: &Self, bound: &u64| of.0.get(bound).copied().unwrap_or_default();
        let both = |bound| combine(bucket(self, bound), bucket(other, bound));
        Self(bounds.map(|bound| (*bound, both(bound))).collect())
    }

    /// Number of values.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.0.last_key_value().map_or(0.0, |(_, count)| *count)
    }

    /// Interpolated linearly within the bucket, as Prometheus' `histogram_quantile` does; in the last bucket, its lower bound. None
    /// if nothing was counted.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.total();
        if total <= 0.0 {
            return None;
        }
        let rank = quantile * total;
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            let bound = f64::from_bits(*bound);
            if *count >= rank {
                let inside = (count - below).max(f64::MIN_POSITIVE);
                let share = ((rank - below) / inside).clamp(0.0, 1.0);
                return Some(match bound.is_finite() {
                    true => lower + (bound - lower) * share,
                    false => lower,
                });
            }
            (lower, below) = (bound, *count);
        }
        Some(lower)
    }

    /// The same; none if it lies above the last finite bound, or if fewer than `beyond` values do above it.
    #[must_use]
    pub fn bounded_quantile(&self, quantile: f64, beyond: f64) -> Option<f64> {
        let total = self.total();
        let finite = self.0.iter().rev();
        let mut finite = finite.filter(|(bound, _)| f64::from_bits(**bound).is_finite());
        let within = finite
            .next()
            .is_some_and(|(_, count)| *count >= quantile * total);
        let is_told = within && total * (1.0 - quantile) >= beyond;
        self.quantile(quantile).filter(|_| is_told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"
# TYPE calls_total counter
calls_total 7
calls_total{code="200",flags="a\"b,}"} 10 1700000000
took_bucket{le="1"} 50
took_bucket{le="5"} 90
took_bucket{le="+Inf"} 100
took_bucket{le="nonsense"} 7
took_bucket{le="-1"} 7
took_bucket{le="5
calls_total{code="200"} many
other{} 3
"#;

    #[test]
    fn lines_are_samples_or_skipped() {
        let found: Vec<_> = samples(PAGE)
            .map(|sample| {
                (
                    sample.name,
                    sample.label("flags").map(str::to_owned),
                    sample.value,
                )
            })
            .filter(|(name, ..)| *name != "took_bucket")
            .collect();
        let flags = Some("a\"b,}".to_owned());
        let expected = [
            ("calls_total", None, 7.0),
            ("calls_total", flags, 10.0),
            ("other", None, 3.0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn percentiles_are_interpolated_in_their_bucket_and_never_beyond_the_last_bound() {
        let mut buckets = Buckets::default();
        assert_eq!(buckets.quantile(0.5), None);
        let took = samples(PAGE).filter(|sample| sample.name == "took_bucket");
        took.for_each(|sample| buckets.add(&sample));
        assert_eq!(buckets.total(), 100.0);
        for (quantile, expected, bounded) in [
            (0.25, 0.5, Some(0.5)),
            (0.5, 1.0, Some(1.0)),
            (0.7, 3.0, Some(3.0)),
            (0.9, 5.0, Some(5.0)),
            (0.95, 5.0, None),
            (0.99, 5.0, None),
        ] {
            assert_eq!(buckets.quantile(quantile), Some(expected), "{quantile}");
            assert_eq!(
                buckets.bounded_quantile(quantile, 9.5),
                bounded,
                "{quantile}"
            );
        }
        assert_eq!(
            buckets.bounded_quantile(0.5, 51.0),
            None,
            "few values beyond it"
        );
        let none = buckets.combine(&buckets, |one, other| one - other);
        assert_eq!(none.quantile(0.5), None);
        let twice = buckets.combine(&buckets, |one, other| one + other);
        assert_eq!((twice.total(), twice.quantile(0.5)), (200.0, Some(1.0)));
    }
}
