//! Projection of metrics by Telemetry's overrides, on the way to the page. It hides metrics that are off, removes or
//! changes labels, and adds up series that become the same. Workers count as always.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{label_text, outcome_labels};
use crate::labels::{Labels, Reporter, ServiceLabels};
use crate::shard::{Series, SeriesOutcome, TcpOutcome};

/// Projection of one metric of one reporter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricShape {
    /// It is not shown.
    pub off: bool,
    /// Labels that change.
    pub labels: BTreeMap<Arc<str>, LabelChange>,
}

/// Change of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelChange {
    /// It goes.
    Remove,
    /// It says this.
    Set(Arc<str>),
    /// It says the requests' value of this name.
    Value(Arc<str>),
}

/// All shapes that are not as usual.
#[derive(Debug, Clone, Default)]
pub struct Projection {
    shapes: HashMap<(Reporter, &'static str), MetricShape>,
    /// Of services behind a waypoint that have shapes of their own: all of theirs, as usual or not.
    behind_waypoint: HashMap<ServiceLabels, HashMap<&'static str, MetricShape>>,
    /// Some series are divided by values of requests, which metrics without those labels add up.
    pub(super) adds_up: bool,
}

impl Projection {
    /// Gives a metric its shape; the name is as exposed.
    pub fn set(&mut self, reporter: Reporter, metric: &'static str, shape: MetricShape) {
        if shape != MetricShape::default() {
            self.shapes.insert((reporter, metric), shape);
        }
    }

    /// The same for a waypoint's counts of a service, in place of the waypoint's usual shape of the metric.
    pub fn set_behind_waypoint(
        &mut self,
        service: &ServiceLabels,
        metric: &'static str,
        shape: MetricShape,
    ) {
        let shapes = self.behind_waypoint.entry(service.clone()).or_default();
        shapes.insert(metric, shape);
    }

    fn shape(&self, series: &Series, metric: &'static str) -> Option<&MetricShape> {
        let labels = &series.labels;
        if labels.reporter == Reporter::Waypoint
            && let Some(own) = self.behind_waypoint.get(&labels.service)
        {
            return own
                .get(metric)
                .filter(|shape| **shape != MetricShape::default());
        }
        match self.shapes.is_empty() {
            true => None,
            false => self.shapes.get(&(labels.reporter, metric)),
        }
    }

    /// The samples of a metric of requests, with the text of their labels.
    pub(super) fn outcomes<'a>(
        &self,
        metric: &'static str,
        all: impl Iterator<Item = (&'a Series, &'a SeriesOutcome)>,
    ) -> Vec<(String, Cow<'a, SeriesOutcome>)> {
        let mut samples = Vec::new();
        let mut changed: BTreeMap<String, SeriesOutcome> = BTreeMap::new();
        for (series, outcome) in all {
            let labels = outcome_labels(&series.labels, outcome);
            let said = &series.labels;
            match self.shape(series, metric) {
                None if !self.adds_up => {
                    samples.push((text(said, &labels, None), Cow::Borrowed(outcome)));
                }
                Some(shape) if shape.off => {}
                shape => {
                    let sum = changed.entry(text(said, &labels, shape));
                    sum.and_modify(|sum| sum.add(outcome))
                        .or_insert_with(|| outcome.clone());
                }
            }
        }
        samples.extend(
            changed
                .into_iter()
                .map(|(labels, sum)| (labels, Cow::Owned(sum))),
        );
        samples
    }

    /// The same for opaque connections.
    pub(super) fn connections<'a>(
        &self,
        metric: &'static str,
        all: impl Iterator<Item = (&'a Series, &'a TcpOutcome)>,
        of: impl Fn(&TcpOutcome) -> u64,
    ) -> Vec<(String, u64)> {
        let mut samples = Vec::new();
        let mut changed: BTreeMap<String, u64> = BTreeMap::new();
        for (series, outcome) in all {
            let own = [("response_flags", outcome.flags)];
            let all = series.labels.pairs().into_iter().chain(own);
            let labels: Vec<_> = all
                .map(|(name, value)| (name, Cow::Borrowed(value)))
                .collect();
            match self.shape(series, metric) {
                None => samples.push((text(&series.labels, &labels, None), of(outcome))),
                Some(shape) if shape.off => {}
                shape => {
                    let sum = changed.entry(text(&series.labels, &labels, shape));
                    *sum.or_default() += of(outcome);
                }
            }
        }
        samples.extend(changed);
        samples
    }
}

/// Labels in Istio's order, then the new ones by name.
fn text(
    series: &Labels,
    labels: &[(&'static str, Cow<'_, str>)],
    shape: Option<&MetricShape>,
) -> String {
    let Some(shape) = shape else {
        return label_text(labels.iter().map(|(name, value)| (*name, &**value)));
    };
    let changed = |change| match change {
        &LabelChange::Remove => None,
        LabelChange::Set(value) => Some(&**value),
        LabelChange::Value(name) => Some(series.value(name)),
    };
    let kept = labels.iter().filter_map(|(name, value)| {
        let change = shape.labels.get(*name);
        Some((*name, change.map_or(Some(&**value), changed)?))
    });
    let known = |name: &str| labels.iter().any(|(label, _)| *label == name);
    let new = shape
        .labels
        .iter()
        .filter_map(|(name, change)| (!known(name)).then_some((&**name, changed(change)?)));
    label_text(kept.chain(new))
}
