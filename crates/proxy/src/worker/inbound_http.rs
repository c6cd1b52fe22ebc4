//! Inbound's part of HTTP: every request asks the policy anew, goes to the one application behind the listener, and is
//! counted with the caller's identity.

use std::cell::OnceCell;
use std::rc::Rc;

use voile_policy::Permit;
use voile_telemetry::{GRPC, HTTP, SeriesId};
use voile_transport::{self as transport, Stream};

use voile_xds::wire::Protocol;

use super::Worker;
use super::admission::{Admission, Arrival};
use super::counted;
use super::inbound::{Caller, inbound_series};
use super::logged::{self, HttpContext};
use super::slots::InboundSlot;
use crate::http::{
    ConnectFailure, Exchange, Head, HttpRole, HttpVersion, Refusal, ResponseFlag, Route,
    UpstreamHttp,
};

/// One inbound connection.
pub(crate) struct InboundRole {
    worker: Rc<Worker>,
    slot: Rc<InboundSlot>,
    caller: Caller,
    admission: Admission,
    series: SeriesId,
    /// The same for gRPC calls, from the first one on.
    grpc: OnceCell<SeriesId>,
    /// For requests of HTTP/1.0 that name none.
    authority: Rc<str>,
}

impl InboundRole {
    pub(crate) fn new(worker: Rc<Worker>, slot: Rc<InboundSlot>, caller: Caller) -> Self {
        let series = inbound_series(&worker, &slot, &caller, HTTP);
        let authority = slot.plan.borrow().service.host.as_str().into();
        Self {
            worker,
            slot,
            admission: Admission::new(caller.arrival.clone()),
            caller,
            series,
            grpc: OnceCell::new(),
            authority,
        }
    }
}

/// What the server is spoken to in: what its port was declared to speak, else what the caller speaks.
pub(crate) fn upstream(declared: Protocol, head: &Head<'_>) -> UpstreamHttp {
    match (declared, head.version()) {
        (Protocol::Http, _) => UpstreamHttp::Http1,
        (Protocol::Http2 | Protocol::Grpc, _) | (_, HttpVersion::Http2) => UpstreamHttp::Http2,
        (_, HttpVersion::Http10 | HttpVersion::Http11) => UpstreamHttp::Http1,
    }
}

impl HttpRole for InboundRole {
    type Upstream = Stream;
    type Key = u32;
    type Ticket = Rc<Permit>;

    fn route(&self, head: &Head<'_>) -> Result<Route<Self>, Refusal<Self>> {
        let (mode, protocol) = {
            let plan = self.slot.plan.borrow();
            (plan.mutual_tls, plan.protocol)
        };
        let refused = |reason: String| Refusal::new(403, ResponseFlag::Unauthorized, reason);
        let trust = self.worker.trust.borrow();
        let Some(trust) = trust.as_ref() else {
            return Err(refused("no trust domain yet".to_owned()));
        };
        let permit = self.admission.permit(mode, trust);
        let permit = permit.map_err(|denial| refused(denial.to_string()))?;
        let mut route = Route::new(self.slot.endpoint_key.get(), permit);
        route.connect_timeout = self.worker.settings.borrow().connect_timeout;
        route.upstream = upstream(protocol, head);
        if head.authority().is_none() && !self.authority.is_empty() {
            route.default_authority = Some(Rc::clone(&self.authority));
        }
        Ok(route)
    }

    async fn connect(&self, route: &Route<Self>) -> Result<Stream, ConnectFailure> {
        let (endpoint, limit) = (self.slot.plan.borrow().endpoint, route.connect_timeout);
        match transport::connect(endpoint, self.worker.homeward(), limit).await {
            Ok(tcp) => Ok(Stream::Tcp(tcp.into())),
            Err(error) => {
                tracing::debug!(%error, "application not reached");
                Err(ConnectFailure::new(
                    "the application does not accept connections",
                ))
            }
        }
    }

    fn serves_sidecar(&self) -> bool {
        matches!(self.caller.arrival, Arrival::MutualTls(_))
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let series = match exchange.grpc {
            None => self.series,
            Some(_) => *self
                .grpc
                .get_or_init(|| inbound_series(&self.worker, &self.slot, &self.caller, GRPC)),
        };
        counted::count(&self.worker, series, &exchange);
        if self.worker.access_log.borrow().is_some() {
            let plan = self.slot.plan.borrow();
            let context = HttpContext {
                upstream: Some(plan.endpoint),
                cluster: &format!("inbound|{}||", plan.endpoint.port()),
                local: plan.bind,
                remote: self.caller.remote,
                principal: &self.caller.principal,
            };
            logged::http(&self.worker, &exchange, &context);
        }
    }
}
