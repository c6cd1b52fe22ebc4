//! A figure at a load that was not measured: from the nearest point along the curves through it. Says where it left the measured
//! range.

use std::collections::BTreeSet;

use serde::Serialize;
use voile_report::record::Estimate;

use crate::curves::CurvePoint;

/// A measure of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Requests per second.
    Rate,
    /// Connections.
    Connections,
    /// Bytes of request and response.
    Body,
    /// Services of the mesh.
    Services,
}

impl Axis {
    const ALL: [Self; 4] = [Self::Rate, Self::Connections, Self::Body, Self::Services];

    fn of(self, point: &CurvePoint) -> f64 {
        match self {
            Self::Rate => point.rate,
            Self::Connections => f64::from(point.connections),
            Self::Body => point.body_bytes as f64,
            Self::Services => f64::from(point.services),
        }
    }

    /// In the words of a table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Connections => "connections",
            Self::Body => "body",
            Self::Services => "services",
        }
    }
}

/// The load at which a figure is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// `http1` or `grpc`.
    pub protocol: &'static str,
    /// Requests per second.
    pub rate: f64,
    /// Connections.
    pub connections: f64,
    /// Bytes of request and response.
    pub body: f64,
    /// Services of the mesh.
    pub services: f64,
    /// Policies or issuers.
    pub amount: u32,
}

impl Load {
    fn on(&self, axis: Axis) -> f64 {
        match axis {
            Axis::Rate => self.rate,
            Axis::Connections => self.connections,
            Axis::Body => self.body,
            Axis::Services => self.services,
        }
    }
}

/// A predicted figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figure {
    /// The most likely value.
    pub value: f64,
    /// Lower end of the interval; none if a figure it rests on has none.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Measures of the load that lie outside of the measured range.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub extrapolated: BTreeSet<Axis>,
}

impl Figure {
    /// Nothing, and certainly so.
    #[must_use]
    pub fn zero() -> Self {
        Self {
            low: Some(0.0),
            high: Some(0.0),
            ..Self::default()
        }
    }

    /// So many times as much.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            low: self.low.map(|low| low * factor),
            high: self.high.map(|high| high * factor),
            extrapolated: self.extrapolated.clone(),
        }
    }

    /// Both together. The ends are added: two figures of one curve err in the same direction.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let both = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
        Self {
            value: self.value + other.value,
            low: both(self.low, other.low),
            high: both(self.high, other.high),
            extrapolated: &self.extrapolated | &other.extrapolated,
        }
    }

    /// Not below zero.
    #[must_use]
    pub fn at_least_zero(mut self) -> Self {
        self.value = self.value.max(0.0);
        self.low = self.low.map(|low| low.max(0.0));
        self.high = self.high.map(|high| high.max(0.0));
        self
    }
}

/// How a figure follows the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Law {
    /// CPU or latency: scaled by the curve of each axis. Beyond the measured range it stays as it is, but follows the bytes.
    Scaled,
    /// Memory: the difference along each axis is added, also beyond the measured range.
    Added,
    /// The difference that a feature makes: the nearest point's.
    Nearest,
}

/// The figure of a set of points at a load; none if no point has it.
#[must_use]
pub fn look_up(
    points: &[CurvePoint],
    load: &Load,
    law: Law,
    figure: impl Fn(&CurvePoint) -> Option<Estimate>,
) -> Option<Figure> {
    let all: Vec<(&CurvePoint, Estimate)> = points
        .iter()
        .filter_map(|point| Some((point, figure(point)?)))
        .collect();
    let same: Vec<_> = all
        .iter()
        .filter(|(point, _)| point.protocol == load.protocol)
        .copied()
        .collect();
    // The bytes of gRPC and HTTP/1.1 differ, but any measured cost says more than none.
    let known = if same.is_empty() { all } else { same };
    let relevant: &[Axis] = match law {
        Law::Scaled | Law::Nearest => &[Axis::Rate, Axis::Connections, Axis::Body],
        Law::Added => &[Axis::Connections, Axis::Services],
    };
    let distance = |point: &CurvePoint| nearness(point, load, relevant);
    let nearest = |one: &&(&CurvePoint, Estimate), other: &&(&CurvePoint, Estimate)| {
        distance(one.0).total_cmp(&distance(other.0))
    };
    let &(base, estimate) = known.iter().min_by(nearest)?;
    let mut value = estimate.median;
    let mut extrapolated = BTreeSet::new();
    for &axis in relevant {
        let curve = curve(&known, base, axis);
        let wanted = load.on(axis);
        if outside(&curve, wanted) {
            extrapolated.insert(axis);
        }
        let beyond = law == Law::Added || axis == Axis::Body;
        let (there, here) = (
            follow(&curve, wanted, beyond),
            follow(&curve, axis.of(base), beyond),
        );
        match law {
            Law::Scaled if here > 0.0 => value *= (there / here).max(0.0),
            Law::Added => value += there - here,
            Law::Scaled | Law::Nearest => {}
        }
    }
    let moved = |end: f64| match law {
        Law::Scaled if estimate.median > 0.0 => value * end / estimate.median,
        _ => value + end - estimate.median,
    };
    Some(Figure {
        value,
        low: estimate.low.map(moved),
        high: estimate.high.map(moved),
        extrapolated,
    })
}

/// Distance of a point from a load, in powers of e. An axis without influence on the figure decides only between equals.
fn nearness(point: &CurvePoint, load: &Load, relevant: &[Axis]) -> f64 {
    const HARDLY: f64 = 1e-3;
    let axes = Axis::ALL.into_iter().map(|axis| {
        let apart = (axis.of(point) + 1.0).ln() - (load.on(axis) + 1.0).ln();
        let weight = if relevant.contains(&axis) {
            1.0
        } else {
            HARDLY
        };
        apart.abs() * weight
    });
    let amount = (f64::from(point.amount) + 1.0).ln() - (f64::from(load.amount) + 1.0).ln();
    axes.sum::<f64>() + amount.abs()
}

/// The curve of an axis through a point; if the point is alone there, the longest that was measured elsewhere.
fn curve(known: &[(&CurvePoint, Estimate)], base: &CurvePoint, axis: Axis) -> Vec<(f64, f64)> {
    let own = along(known, base, axis);
    if own.len() > 1 {
        return own;
    }
    let others = known.iter().map(|(point, _)| along(known, point, axis));
    let longest = others.max_by_key(Vec::len);
    longest.filter(|longest| longest.len() > 1).unwrap_or(own)
}

/// The points that differ from one in nothing but an axis, in its order.
fn along(known: &[(&CurvePoint, Estimate)], base: &CurvePoint, axis: Axis) -> Vec<(f64, f64)> {
    let others = Axis::ALL.into_iter().filter(|other| *other != axis);
    let others: Vec<Axis> = others.collect();
    let alike = |point: &CurvePoint| {
        point.amount == base.amount
            && others
                .iter()
                .all(|other| other.of(point).total_cmp(&other.of(base)).is_eq())
    };
    let mut curve: Vec<(f64, f64)> = known
        .iter()
        .filter(|(point, _)| alike(point))
        .map(|(point, estimate)| (axis.of(point), estimate.median))
        .collect();
    curve.sort_by(|one, other| one.0.total_cmp(&other.0));
    curve.dedup_by(|one, other| one.0.total_cmp(&other.0).is_eq());
    curve
}

fn outside(curve: &[(f64, f64)], wanted: f64) -> bool {
    /// A load this close to the end of a curve is on it.
    const CLOSE: f64 = 0.02;
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else {
        return true;
    };
    wanted < first.0 * (1.0 - CLOSE) || wanted > last.0 * (1.0 + CLOSE)
}

/// The value of a curve: straight lines between its points. Beyond its ends the last line goes on, or the value stays.
fn follow(curve: &[(f64, f64)], wanted: f64, beyond: bool) -> f64 {
    let (first, last) = match curve {
        [] => return 0.0,
        [only] => return only.1,
        [first, .., last] => (*first, *last),
    };
    if !beyond && wanted <= first.0 {
        return first.1;
    }
    if !beyond && wanted >= last.0 {
        return last.1;
    }
    let after = curve[1..curve.len() - 1]
        .iter()
        .position(|point| point.0 >= wanted)
        .map_or(curve.len() - 1, |place| place + 1);
    let (from, to) = (curve[after - 1], curve[after]);
    from.1 + (to.1 - from.1) * (wanted - from.0) / (to.0 - from.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curves::{LatencyCost, SideCost};
    use std::collections::BTreeMap;

    fn point(rate: f64, connections: u32, body_bytes: u64, median: f64) -> CurvePoint {
        let estimate = Estimate {
            median,
            low: Some(median * 0.9),
            high: Some(median * 1.2),
            rounds: 8,
        };
        let cost = SideCost {
            cpu_us: Some(estimate),
            memory_bytes: Some(estimate),
        };
        CurvePoint {
            protocol: "http1".to_owned(),
            rate,
            connections,
            body_bytes,
            services: 0,
            amount: 0,
            sides: BTreeMap::from([("server-sidecar".to_owned(), cost)]),
            latency_us: LatencyCost::default(),
        }
    }

    fn found(load: (f64, f64, f64), law: Law) -> Figure {
        let points = [
            point(1000.0, 16, 1024, 50.0),
            point(4000.0, 16, 1024, 30.0),
            point(1000.0, 64, 1024, 60.0),
            point(1000.0, 16, 17_408, 66.0),
        ];
        let load = Load {
            protocol: "http1",
            rate: load.0,
            connections: load.1,
            body: load.2,
            services: 0.0,
            amount: 0,
        };
        let cpu = |point: &CurvePoint| point.sides["server-sidecar"].cpu_us;
        look_up(&points, &load, law, cpu).expect("a figure")
    }

    #[test]
    fn a_measured_load_has_the_measured_figure_and_others_lie_between() {
        for (load, value) in [
            ((1000.0, 16.0, 1024.0), 50.0),
            ((4000.0, 16.0, 1024.0), 30.0),
            ((2500.0, 16.0, 1024.0), 40.0),
            ((1000.0, 40.0, 1024.0), 55.0),
            ((1000.0, 16.0, 9216.0), 58.0),
            // Each axis scales: 40 / 50 of the rate, 55 / 50 of the connections.
            ((2500.0, 40.0, 1024.0), 44.0),
        ] {
            let found = found(load, Law::Scaled);
            assert!((found.value - value).abs() < 0.01, "{load:?}: {found:?}");
            assert!(found.extrapolated.is_empty(), "{load:?}: {found:?}");
            let (low, high) = (found.low.expect("low"), found.high.expect("high"));
            assert!((low / found.value - 0.9).abs() < 1e-9, "{found:?}");
            assert!((high / found.value - 1.2).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn beyond_the_measured_range_the_axis_is_named() {
        let faster = found((40_000.0, 16.0, 1024.0), Law::Scaled);
        assert!((faster.value - 30.0).abs() < 1e-9, "{faster:?}");
        assert_eq!(faster.extrapolated, BTreeSet::from([Axis::Rate]));
        let larger = found((1000.0, 16.0, 33_792.0), Law::Scaled);
        assert!((larger.value - 82.0).abs() < 1e-9, "{larger:?}");
        assert_eq!(larger.extrapolated, BTreeSet::from([Axis::Body]));
        let more = found((1000.0, 160.0, 1024.0), Law::Added);
        assert!((more.value - 80.0).abs() < 1e-9, "{more:?}");
        assert_eq!(more.extrapolated, BTreeSet::from([Axis::Connections]));
    }

    #[test]
    fn sums_keep_what_is_extrapolated_and_lose_an_interval_that_a_part_lacks() {
        let known = found((1000.0, 16.0, 1024.0), Law::Scaled);
        let sum = known.plus(&found((9000.0, 16.0, 1024.0), Law::Scaled));
        assert_eq!(sum.extrapolated, BTreeSet::from([Axis::Rate]));
        assert_eq!((sum.value, sum.low), (80.0, Some(45.0 + 27.0)));
        let none = Figure {
            value: 1.0,
            ..Figure::default()
        };
        assert_eq!(known.plus(&none).low, None);
    }
}
