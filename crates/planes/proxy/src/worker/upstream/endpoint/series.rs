//! Metric series of an endpoint, cached by the epoch of the worker's own labels.

use voile_telemetry::{GRPC, Labels, PeerLabels, Reporter, Security, SeriesId, ServiceLabels, TCP};

use super::{CachedSeries, Endpoint};
use crate::worker::Worker;

impl CachedSeries {
    pub(crate) fn get(&self, worker: &Worker, labels: impl FnOnce() -> Labels) -> SeriesId {
        let epoch = worker.epoch.get();
        if let Some((then, id)) = self.0.get()
            && then == epoch
            && worker.shard.borrow().is_current(id)
        {
            return id;
        }
        let id = worker.shard.borrow_mut().series(&labels());
        self.0.set(Some((epoch, id)));
        id
    }
}

impl Endpoint {
    /// Series of requests to this endpoint, by Istio's protocol label.
    pub(crate) fn http_series(
        &self,
        worker: &Worker,
        service: &ServiceLabels,
        protocol: &'static str,
    ) -> SeriesId {
        let cached = if protocol == GRPC {
            &self.grpc
        } else {
            &self.http
        };
        cached.get(worker, || {
            outbound_labels(worker, service, Some(self), protocol)
        })
    }

    pub(crate) fn tcp_series(&self, worker: &Worker, service: &ServiceLabels) -> SeriesId {
        self.tcp
            .get(worker, || outbound_labels(worker, service, Some(self), TCP))
    }
}

/// The client's side of a series. Without an endpoint the destination is unknown.
pub(crate) fn outbound_labels(
    worker: &Worker,
    service: &ServiceLabels,
    endpoint: Option<&Endpoint>,
    protocol: &'static str,
) -> Labels {
    let expected = endpoint.and_then(|endpoint| endpoint.plan.expected.as_ref());
    let mut source = PeerLabels::clone(&worker.own.borrow());
    let mut destination = endpoint
        .map(|endpoint| endpoint.plan.peer.clone())
        .unwrap_or_default();
    if let Some(expected) = expected {
        source.principal.clone_from(&worker.principal.borrow());
        destination.principal = expected
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
    }
    Labels {
        reporter: Reporter::Source,
        source,
        destination,
        service: service.clone(),
        protocol,
        security: Security::Unknown,
        values: Vec::new(),
    }
}
