//! Actions of a VirtualService's route on requests, besides forwarding. If `voile-traffic` implements an action, its
//! type is used here, so that checks and proxies agree.

use std::sync::Arc;
use std::time::Duration;

pub use voile_traffic::RequestShare;
pub use voile_traffic::route::{
    Cors, HeaderEdit, HeaderEdits, Origin, PathRewrite, Redirect, RedirectPort, Regex,
    RegexRewrite, TextMatch as OriginMatch,
};

use crate::mesh::RouteDestination;

/// A response that the proxy gives itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectResponse {
    /// `redirect`: where to ask instead.
    Redirect {
        /// The `Location`.
        to: Redirect,
        /// One of 301, 302, 303, 307 and 308.
        status: u16,
    },
    /// `directResponse`.
    Direct {
        /// From 200 to 599.
        status: u16,
        /// May be empty.
        body: Arc<[u8]>,
    },
}

/// `rewrite`: changes of the request before it is forwarded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rewrite {
    /// Of the path, whose query stays.
    pub path: Option<PathRewrite>,
    /// The authority.
    pub authority: Option<Arc<str>>,
}

/// `headers` of a route or of a destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderRules {
    /// Edits of the request's headers.
    pub request: HeaderEdits,
    /// Edits of the response's headers.
    pub response: HeaderEdits,
}

impl HeaderRules {
    /// Returns true if there is nothing to edit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty()
    }
}

/// `fault`: faults injected on purpose, to test the callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// Delay of some requests.
    pub delay: Option<Delay>,
    /// Response of the proxy to some requests.
    pub abort: Option<Abort>,
}

/// `fault.delay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delay {
    /// Duration of the delay.
    pub fixed: Duration,
    /// Share of requests that wait.
    pub share: RequestShare,
}

/// `fault.abort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// By what.
    pub with: AbortStatus,
    /// Share of requests that are aborted.
    pub share: RequestShare,
}

/// Status of an aborted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortStatus {
    /// `httpStatus`, from 200 to 599.
    Http(u16),
    /// `grpcStatus`, from 0 to 16. A client that does not speak gRPC gets status 200, as from Envoy.
    Grpc(u16),
}

/// One of `mirrors`.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirror {
    /// Destination of the copies.
    pub to: RouteDestination,
    /// Share of requests that are copied.
    pub share: RequestShare,
}
