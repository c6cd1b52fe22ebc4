//! State of a connection at a gateway or a waypoint that a sidecar's own calls do not have: path normalization, scheme and cipher
//! suite, and the vantage of telemetry.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::rc::Rc;

use rustls::CipherSuite;
use voile_policy::authorization::{PathError, PathNormalization as Normalization};

use super::access_logs::Downstream;
use super::gateway::GatewaySlot;
use super::reporter::ReporterLabels;
use super::waypoint_calls::TunnelCalls;
use crate::http::HttpHead;

/// See the module.
pub(super) struct AtGateway {
    pub(super) edge: Edge,
    pub(super) slot: Rc<GatewaySlot>,
    /// At a waypoint: metrics state with the caller.
    pub(super) through: Option<TunnelCalls>,
}

impl AtGateway {
    /// Vantage of its requests in telemetry.
    pub(super) fn vantage(&self) -> ReporterLabels<'_> {
        match &self.through {
            Some(through) => through.vantage(),
            None => ReporterLabels::at(&self.slot.inbound),
        }
    }

    /// The caller's side of it.
    pub(super) fn downstream(&self, local: SocketAddr, remote: SocketAddr) -> Downstream<'_> {
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
pub(super) struct Edge {
    pub(super) normalization: Normalization,
    /// Scheme of the connection, `http` or `https`.
    pub(super) scheme: &'static str,
    /// None in plaintext.
    pub(super) suite: Option<CipherSuite>,
}

impl Edge {
    /// Normalized path and query, if they differ from the received ones; an error for an ambiguous path.
    pub(super) fn path(self, head: &HttpHead<'_>) -> Result<Option<Box<str>>, PathError> {
        let came = head.path_and_query();
        Ok(match self.normalization.normalize(came.as_bytes())? {
            Cow::Owned(path) => String::from_utf8(path).ok().map(Into::into),
            Cow::Borrowed(_) => None,
        })
    }
}
