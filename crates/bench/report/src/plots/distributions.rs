//! Whole distributions from the merged histograms: latency by percentile, and the shape of it.

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

use crate::plots::plot::{Plot, Section, groups, who};
use crate::record::{Latency, MergedHistogram, Record, Summary};
use crate::svg::{Colours, Curve, curves, shapes};

/// Points of a percentile curve per factor of ten of rarity: smooth to the eye at this size.
const POINTS_PER_DECADE: f64 = 20.0;
/// Columns of a shape per factor of ten of latency: fine enough to tell two bumps, coarse enough for the whole
/// microseconds that histograms count.
const COLUMNS_PER_DECADE: f64 = 24.0;

/// The points of a curve; none of too few samples.
type Points = Option<Vec<(f64, f64)>>;

pub(super) fn sections(record: &Record, colours: &Colours) -> Vec<Section> {
    let (mut percentiles, mut shaped) = (Vec::new(), Vec::new());
    for (title, cells) in groups(record) {
        let histograms: Vec<(&Summary, Histogram<u64>)> = cells
            .into_iter()
            .filter_map(|summary| {
                let key = summary.key();
                let merged = record.histograms.iter().find(|m| m.cell == key)?;
                Some((summary, histogram(merged)?))
            })
            .collect();
        let draw = |points: fn(&Histogram<u64>) -> Points| -> Vec<Curve> {
            let each = histograms.iter().filter_map(|(summary, histogram)| {
                Some(Curve {
                    label: who(&summary.key()),
                    class: colours.class(&summary.contestant),
                    points: points(histogram)?,
                })
            });
            each.collect()
        };
        let lines = draw(points);
        if !lines.is_empty() {
            let svg = curves(&title, &lines);
            percentiles.push(Plot::new("percentiles", title.clone(), svg));
        }
        let lines = draw(columns);
        if !lines.is_empty() {
            let svg = shapes(&title, &lines);
            shaped.push(Plot::new("distribution", title, svg));
        }
    }
    vec![
        Section {
            title: "Latency by percentile",
            words: "All valid slices merged, for display only; drawn as far as ten samples lie beyond. To the right each step is ten times rarer.",
            plots: percentiles,
            folded: false,
        },
        Section {
            title: "Distributions",
            words: "The same samples by how often each latency occurs, the most frequent at the top.",
            plots: shaped,
            folded: false,
        },
    ]
}

/// A histogram that cannot be read has no curve; the record may come from anywhere.
fn histogram(merged: &MergedHistogram) -> Option<Histogram<u64>> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(merged.hdr.trim())
        .ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

fn points(histogram: &Histogram<u64>) -> Points {
    let decades = (histogram.len() as f64 / Latency::BEYOND).log10();
    if decades <= 0.0 {
        return None;
    }
    let steps = (decades * POINTS_PER_DECADE).floor() as u32;
    let points = (0..=steps).map(|step| {
        let share = 1.0 - 10f64.powf(-f64::from(step) / POINTS_PER_DECADE);
        (share, histogram.value_at_quantile(share) as f64)
    });
    Some(points.collect())
}

/// (latency, share of the highest column), in columns of equal width on a logarithmic axis.
fn columns(histogram: &Histogram<u64>) -> Points {
    if (histogram.len() as f64) < 10.0 * Latency::BEYOND {
        return None;
    }
    let column = |us: f64| (us.max(1.0).log10() * COLUMNS_PER_DECADE).floor();
    let edge = |column: f64| 10f64.powf(column / COLUMNS_PER_DECADE);
    // Drawn as far as ten samples lie beyond, like the percentiles.
    let beyond = 1.0 - Latency::BEYOND / histogram.len() as f64;
    let first = column(histogram.min() as f64);
    let last = column(histogram.value_at_quantile(beyond) as f64);
    let mut points = vec![(edge(first), 0.0)];
    let mut at = first;
    while at <= last {
        let (from, to) = (edge(at), edge(at + 1.0));
        // Whole microseconds: a column narrower than one may hold none, and is no gap.
        let (low, high) = (from.ceil() as u64, (to.ceil() as u64).saturating_sub(1));
        if high >= low {
            let values = (high - low + 1) as f64;
            let wide = to - from;
            let count = histogram.count_between(low, high) as f64;
            points.push((f64::midpoint(from, to), count / values * wide));
        }
        at += 1.0;
    }
    points.push((edge(last + 1.0), 0.0));
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    for point in &mut points {
        point.1 /= highest.max(f64::MIN_POSITIVE);
    }
    Some(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bumps_are_two_bumps() {
        let mut histogram = Histogram::<u64>::new(3).expect("bounds");
        for (value, count) in [(100, 600), (101, 600), (1000, 400), (1010, 400)] {
            histogram.record_n(value, count).expect("recorded");
        }
        let points = columns(&histogram).expect("enough samples");
        let near = |us: f64| {
            let close = points
                .iter()
                .filter(|point| (point.0 / us - 1.0).abs() < 0.1);
            close.map(|point| point.1).fold(0.0, f64::max)
        };
        assert!(near(100.0) > 0.9 && near(1000.0) > 0.3, "{points:?}");
        assert!(near(300.0) < 1e-9, "{points:?}");
    }
}
