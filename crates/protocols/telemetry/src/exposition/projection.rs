//! Projection of metrics by Telemetry's overrides, on the way to the page. It hides metrics that are off, removes or
//! changes labels, and adds up series that become the same. Workers count as always.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{label_text, outcome_labels};
use crate::labels::{Reporter, ServiceLabels};
use crate::shard::{Series, SeriesOutcome, TcpOutcome};

/// Projection of one metric of one reporter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricShape {
    /// It is not shown.
    pub off: bool,
    /// Labels that say this, or that go.
    pub labels: BTreeMap<Arc<str>, Option<Arc<str>>>,
}

/// All shapes that are not as usual.
#[derive(Debug, Clone, Default)]
pub struct Projection {
    shapes: HashMap<(Reporter, &'static str), MetricShape>,
    /// Of services behind a waypoint that have shapes of their own: all of theirs, as usual or not.
    behind_waypoint: HashMap<ServiceLabels, HashMap<&'static str, MetricShape>>,
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
            match self.shape(series, metric) {
                None => samples.push((text(&labels, None), Cow::Borrowed(outcome))),
                Some(shape) if shape.off => {}
                Some(shape) => {
                    let sum = changed.entry(text(&labels, Some(shape)));
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
                None => samples.push((text(&labels, None), of(outcome))),
                Some(shape) if shape.off => {}
                Some(shape) => {
                    *changed.entry(text(&labels, Some(shape))).or_default() += of(outcome);
                }
            }
        }
        samples.extend(changed);
        samples
    }
}

/// Labels in Istio's order, then the new ones by name.
fn text(labels: &[(&'static str, Cow<'_, str>)], shape: Option<&MetricShape>) -> String {
    let Some(shape) = shape else {
        return label_text(labels.iter().map(|(name, value)| (*name, &**value)));
    };
    let kept = labels
        .iter()
        .filter_map(|(name, value)| match shape.labels.get(*name) {
            None => Some((*name, &**value)),
            Some(None) => None,
            Some(Some(said)) => Some((*name, &**said)),
        });
    let known = |name: &str| labels.iter().any(|(label, _)| *label == name);
    let new = shape.labels.iter().filter_map(|(name, value)| {
        let value = value.as_deref()?;
        (!known(name)).then_some((&**name, value))
    });
    label_text(kept.chain(new))
}
