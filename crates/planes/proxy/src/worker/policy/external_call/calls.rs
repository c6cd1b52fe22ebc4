//! Calls of a service: endpoint after endpoint until one answers, and the connections of these calls.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use voile_transport::TransportStream;

use super::{CallFailure, Callee, Lines};
use crate::http::pool::{self, Pool};
use crate::http::{
    ConnectFailure, Exchange, HttpHead, HttpRole, HttpTimeouts, RequestRoute, ResponseFlag,
    RoleRefusal, UpstreamHttp,
};
use crate::http2::upstream::Upstreams;
use crate::plan::ServicePlan;
use crate::worker::Worker;
use crate::worker::upstream::balance::EndpointPreference;
use crate::worker::upstream::endpoint::{ConnectionManner, InFlight};
use crate::worker::upstream::service_state::ServiceState;

/// Most questions that one worker has under way to one service: each holds a request, a head and perhaps a body. One more is
/// not asked.
const MAX_QUESTIONS: usize = 8 * 1024;

/// Most attempts of one question: deciding twice about one request does no harm.
const MAX_ATTEMPTS: usize = 3;

impl Lines {
    /// None yet.
    pub(in crate::worker) fn new(worker: &Worker) -> Self {
        let timeouts = HttpTimeouts::default();
        let http1 = Pool::new(timeouts.upstream_idle);
        tokio::task::spawn_local(pool::keep(Rc::downgrade(&http1)));
        Self {
            http1,
            http2: Upstreams::new(worker.buffers.clone(), timeouts),
        }
    }
}

/// A question under way.
struct PendingCall(Rc<Cell<usize>>);

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Callee {
    /// Follows a plan; keeps the pools of `same` if it is the same service.
    pub(in crate::worker) fn follow(
        worker: &Worker,
        same: Option<&Self>,
        plan: &ServicePlan,
    ) -> Self {
        let service = ServiceState::follow(worker, same.map(|same| &same.service), plan);
        if let Some(same) = same {
            return Self {
                id: same.id,
                plan: plan.clone(),
                service,
                lines: same.lines.clone(),
                asking: Rc::clone(&same.asking),
            };
        }
        Self {
            id: worker.fresh_key().wrapping_add(1).max(1),
            plan: plan.clone(),
            service,
            lines: Lines::new(worker),
            asking: Rc::default(),
        }
    }

    /// Puts a question to one endpoint after another until one answers or the timeout passes. `once` asks one endpoint;
    /// `upstream` is the HTTP version.
    pub(in crate::worker) async fn ask<'w, T>(
        &self,
        worker: &'w Worker,
        (limit, upstream): (Duration, UpstreamHttp),
        once: impl AsyncFn(&Dialer<'w>, &RequestRoute<Dialer<'w>>) -> Result<T, CallFailure>,
    ) -> Result<T, Box<str>> {
        if self.asking.get() >= MAX_QUESTIONS {
            return Err("too many calls in flight".into());
        }
        self.asking.set(self.asking.get() + 1);
        let _asking = PendingCall(Rc::clone(&self.asking));
        match tokio::time::timeout(limit, self.put(worker, upstream, once)).await {
            Ok(answer) => answer,
            Err(_) => Err("no response in time".into()),
        }
    }

    async fn put<'w, T>(
        &self,
        worker: &'w Worker,
        upstream: UpstreamHttp,
        once: impl AsyncFn(&Dialer<'w>, &RequestRoute<Dialer<'w>>) -> Result<T, CallFailure>,
    ) -> Result<T, Box<str>> {
        let mut tried = Vec::new();
        let mut last = "no healthy upstream".into();
        for _ in 0..MAX_ATTEMPTS {
            let wish = EndpointPreference {
                tried: &tried,
                ..EndpointPreference::default()
            };
            let Some((to, _)) = self.service.choose_other(worker, wish) else {
                break;
            };
            let dialer = Dialer {
                worker,
                manner: ConnectionManner::of(worker, &self.plan.traffic),
            };
            let route = dialer.route(to, upstream);
            match once(&dialer, &route).await {
                Ok(answer) => return Ok(answer),
                Err(CallFailure { why, again }) => {
                    last = why;
                    if !again {
                        break;
                    }
                    tried.push(route.key);
                }
            }
        }
        Err(last)
    }
}

/// Opens connections for the pools.
pub(in crate::worker) struct Dialer<'a> {
    worker: &'a Worker,
    manner: ConnectionManner,
}

impl<'w> Dialer<'w> {
    /// For connections that are made in this manner.
    pub(in crate::worker) fn new(worker: &'w Worker, manner: ConnectionManner) -> Self {
        Self { worker, manner }
    }

    /// The way to an endpoint, spoken to in `upstream`.
    pub(in crate::worker) fn route(
        &self,
        to: InFlight,
        upstream: UpstreamHttp,
    ) -> RequestRoute<Self> {
        let to_sidecar = to.endpoint.plan.is_sidecar();
        let mut route = RequestRoute::new(to.endpoint.key, to);
        route.connect_timeout = self.manner.timeout;
        route.to_sidecar = to_sidecar;
        route.upstream = upstream;
        route
    }
}

impl HttpRole for Dialer<'_> {
    type Upstream = TransportStream;
    type Key = u32;
    type Ticket = InFlight;
    type Question = Infallible;

    fn route(&self, _: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        Err(RoleRefusal::new(404, ResponseFlag::NoRoute, "nobody calls"))
    }

    async fn connect(&self, route: &RequestRoute<Self>) -> Result<TransportStream, ConnectFailure> {
        let inside = route.upstream.into();
        let connecting = Box::pin(
            route
                .ticket
                .endpoint
                .connect(self.worker, inside, self.manner),
        );
        connecting
            .await
            .map_err(|unreachable| ConnectFailure::new(unreachable.detail))
    }

    fn record(&self, _: Exchange<'_, Self>) {}
}
