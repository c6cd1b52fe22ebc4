//! Istio's VirtualService as far as analysis needs it: which requests it takes, in which order, and where they go.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Visibility;
use crate::names::{Hostname, Port, ResourceName};
use crate::source::Source;

/// One resource.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualService {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// Hosts that it routes, made whole by its namespace. None makes it a delegate's.
    pub hosts: Vec<(Hostname, Source)>,
    /// Gateways at which it holds; `None` stands for the proxies of the mesh.
    pub gateways: Vec<(Option<ResourceName>, Source)>,
    /// Who may see it.
    pub visibility: Visibility,
    /// Routes of requests, the first that matches wins.
    pub http: Vec<HttpRoute>,
    /// Routes of TLS connections by name.
    pub tls: Vec<LayerFourRoute>,
    /// Routes of connections.
    pub tcp: Vec<LayerFourRoute>,
}

impl VirtualService {
    /// Whether proxies in the mesh obey it.
    #[must_use]
    pub fn is_for_mesh(&self) -> bool {
        self.gateways.iter().any(|(gateway, _)| gateway.is_none())
    }

    /// Everything it sends traffic to.
    pub fn destinations(&self) -> impl Iterator<Item = &RouteDestination> {
        let http = self.http.iter().flat_map(|route| &route.destinations);
        let others = self.tls.iter().chain(&self.tcp);
        http.chain(others.flat_map(|route| &route.destinations))
    }
}

/// One of `http`.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpRoute {
    /// Where it was written.
    pub source: Source,
    /// Its name, if any.
    pub name: Option<Arc<str>>,
    /// One of these; none matches everything.
    pub matches: Vec<HttpMatch>,
    /// Where requests go, copies included.
    pub destinations: Vec<RouteDestination>,
    /// Another VirtualService that says more.
    pub delegate: Option<Delegate>,
}

/// `delegate`.
#[derive(Debug, Clone, PartialEq)]
pub struct Delegate {
    /// Which.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
}

/// One of `match`: all of it must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpMatch {
    /// Where it was written.
    pub source: Source,
    /// By what is looked at, such as `uri`, `headers[x]` or `port`.
    pub criteria: BTreeMap<Arc<str>, Criterion>,
    /// Whether letters' case means nothing in `uri`.
    pub any_case: bool,
}

/// What is asked of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Criterion {
    /// It matches.
    Is(TextMatch),
    /// It does not.
    IsNot(TextMatch),
    /// It is one of these.
    OneOf(Vec<Arc<str>>),
}

/// Istio's StringMatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextMatch {
    /// This.
    Exact(Arc<str>),
    /// What begins with this.
    Prefix(Arc<str>),
    /// All of it matches this expression.
    Regex(Arc<str>),
    /// It is there.
    Present,
}

impl TextMatch {
    /// Whether everything that `other` takes is taken, as far as can be told without reading expressions.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Present, _) => true,
            (Self::Regex(mine), _) if &**mine == ".*" => true,
            (Self::Prefix(mine), Self::Prefix(text) | Self::Exact(text)) => {
                text.starts_with(&**mine)
            }
            (mine, other) => mine == other,
        }
    }

    /// With its letters in lower case.
    #[must_use]
    pub fn folded(&self) -> Self {
        let fold = |text: &str| text.to_lowercase().into();
        match self {
            Self::Exact(text) => Self::Exact(fold(text)),
            Self::Prefix(text) => Self::Prefix(fold(text)),
            Self::Regex(_) | Self::Present => self.clone(),
        }
    }
}

impl Criterion {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Is(mine), Self::Is(other)) => mine.covers(other),
            (Self::OneOf(mine), Self::OneOf(other)) => other.iter().all(|one| mine.contains(one)),
            (mine, other) => mine == other,
        }
    }
}

impl HttpMatch {
    /// Whether every request that `other` takes is taken.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.criteria.iter().all(|(subject, mine)| {
            let Some(other_one) = other.criteria.get(subject) else {
                return false;
            };
            if &**subject != "uri" {
                return mine.covers(other_one);
            }
            match (mine, other_one, self.any_case, other.any_case) {
                (Criterion::Is(mine), Criterion::Is(other), true, _) => {
                    mine.folded().covers(&other.folded())
                }
                (_, _, false, true) => false,
                _ => mine.covers(other_one),
            }
        })
    }
}

/// One of `tls` or `tcp`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerFourRoute {
    /// Where it was written.
    pub source: Source,
    /// One of these; none matches everything.
    pub matches: Vec<BTreeMap<Arc<str>, Criterion>>,
    /// Where connections go.
    pub destinations: Vec<RouteDestination>,
}

/// Somewhere that traffic is sent to.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteDestination {
    /// Where it was written.
    pub source: Source,
    /// The field, such as `spec.http[0].route[1].destination`.
    pub field: Arc<str>,
    /// Which service; a short name is made whole by the VirtualService's namespace.
    pub host: Hostname,
    /// Which part of it.
    pub subset: Option<(Arc<str>, Source)>,
    /// Which port of it.
    pub port: Option<(Port, Source)>,
}
