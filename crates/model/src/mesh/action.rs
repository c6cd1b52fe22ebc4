//! What a route of a VirtualService does to requests besides sending them somewhere. Where `voile-traffic` has a decision for it, its
//! type is what was checked, so that nothing is checked in one way and obeyed in another.

use std::sync::Arc;
use std::time::Duration;

pub use voile_traffic::Share;
pub use voile_traffic::route::{
    Cors, HeaderEdit, HeaderEdits, Origin, PathRewrite, Redirect, RedirectPort, Regex,
    RegexRewrite, TextMatch as OriginMatch,
};

use super::RouteDestination;

/// What is answered without asking anybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
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

/// `rewrite`: what goes on is not what came.
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
    /// What becomes of the request's.
    pub request: HeaderEdits,
    /// What becomes of the answer's.
    pub response: HeaderEdits,
}

impl HeaderRules {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty()
    }
}

/// `fault`: what is done on purpose to see who can bear it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// How long some requests wait first.
    pub delay: Option<Delay>,
    /// What some requests are answered instead.
    pub abort: Option<Abort>,
}

/// `fault.delay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delay {
    /// How long.
    pub fixed: Duration,
    /// How many wait.
    pub share: Share,
}

/// `fault.abort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// By what.
    pub with: AbortStatus,
    /// How many are answered so.
    pub share: Share,
}

/// What an aborted request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortStatus {
    /// `httpStatus`, from 200 to 599.
    Http(u16),
    /// `grpcStatus`, from 0 to 16. Who does not speak gRPC is answered 200, as by Envoy.
    Grpc(u16),
}

/// One of `mirrors`.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirror {
    /// Where copies go.
    pub to: RouteDestination,
    /// How many requests are copied.
    pub share: Share,
}
