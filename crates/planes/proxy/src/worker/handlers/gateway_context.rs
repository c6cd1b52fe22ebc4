//! State of a connection at a gateway or a waypoint that a sidecar's own calls do not have: path normalization, scheme and cipher
//! suite, and the vantage of telemetry.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::rc::Rc;

use rustls::CipherSuite;
use voile_policy::authorization::{PathError, PathNormalization as Normalization};

use crate::http::HttpHead;
use crate::worker::access_logs::Downstream;
use crate::worker::gateway::GatewaySlot;
use crate::worker::reporter::ReporterLabels;
use crate::worker::waypoint_metrics::TunnelCalls;

/// See the module.
pub(in crate::worker) struct AtGateway {
    pub(in crate::worker) edge: Edge,
    pub(in crate::worker) slot: Rc<GatewaySlot>,
    /// At a waypoint: metrics state with the caller.
    pub(in crate::worker) through: Option<TunnelCalls>,
}

impl AtGateway {
    /// Vantage of its requests in telemetry.
    pub(in crate::worker) fn vantage(&self) -> ReporterLabels<'_> {
        match &self.through {
            Some(through) => through.vantage(),
            None => ReporterLabels::at(&self.slot.inbound),
        }
    }

    /// The caller's side of it.
    pub(in crate::worker) fn downstream(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Downstream<'_> {
        match &self.through {
            Some(through) => through.downstream(local),
            None => Downstream {
                local,
                remote,
                principal: "",
                suite: self.edge.suite,
            },
        }
    }
}

/// Properties by which routes of a gateway compare requests.
#[derive(Clone, Copy)]
pub(in crate::worker) struct Edge {
    pub(in crate::worker) normalization: Normalization,
    /// Scheme of the connection, `http` or `https`.
    pub(in crate::worker) scheme: &'static str,
    /// None in plaintext.
    pub(in crate::worker) suite: Option<CipherSuite>,
}

impl Edge {
    /// Normalized path and query, if they differ from the received ones; an error for an ambiguous path.
    pub(in crate::worker) fn path(
        self,
        head: &HttpHead<'_>,
    ) -> Result<Option<Box<str>>, PathError> {
        let came = head.path_and_query();
        Ok(match self.normalization.normalize(came.as_bytes())? {
            Cow::Owned(path) => String::from_utf8(path).ok().map(Into::into),
            Cow::Borrowed(_) => None,
        })
    }
}
