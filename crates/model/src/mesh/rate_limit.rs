//! Our own RateLimit: how many requests a workload takes, by route and by who asks. Istio has no resource for it.

use std::sync::Arc;
use std::time::Duration;

use super::{HttpMatch, Mesh, Workload};
use crate::names::{Labels, ResourceName};
use crate::source::Source;

/// Keys that one limit tells apart unless it says otherwise.
pub const DEFAULT_KEYS: u32 = 8_192;

/// Most keys that one limit tells apart: 19 MB in each proxy.
pub const MAX_KEYS: u32 = 1 << 20;

/// Most limits of one rule: each is asked for each of its requests.
pub const MAX_LIMITS: usize = 8;

/// Most RateLimits that hold for one workload: each is asked for each request.
pub const MAX_RATE_LIMITS: usize = 32;

/// One resource.
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimit {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
    /// The first that takes a request counts.
    pub rules: Vec<LimitRule>,
}

/// One of `rules`.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRule {
    /// Where it was written.
    pub source: Source,
    /// What clients read it is called.
    pub name: Arc<str>,
    /// It takes what matches any of them; without any, everything.
    pub matches: Vec<HttpMatch>,
    /// All of them hold; none lets everything pass.
    pub limits: Vec<Limit>,
}

/// One of `rules[].limits`: a bucket of tokens, or one for each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// So many requests …
    pub requests: u32,
    /// … in this time.
    pub per: Duration,
    /// Most at once.
    pub burst: u32,
    /// Whose requests are counted together.
    pub by: LimitBy,
    /// Keys that are told apart.
    pub keys: u32,
}

/// What requests are told apart by; by nothing, they have one bucket together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitBy {
    /// The caller's proven identity; callers without one count together.
    pub identity: bool,
    /// The client's address.
    pub address: bool,
    /// Values of these headers, in lower case; requests without one count together.
    pub headers: Vec<Arc<str>>,
}

impl LimitBy {
    /// Whether all requests have one bucket.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Mesh {
    /// The RateLimits that hold for a workload, by name: those of its namespace and of the root namespace that select it.
    pub fn rate_limits_for<'m>(
        &'m self,
        workload: &'m Workload,
    ) -> impl Iterator<Item = &'m Arc<RateLimit>> {
        let root = &self.config.root_namespace;
        self.rate_limits.values().filter(move |one| {
            let namespace = &one.name.namespace;
            let near = *namespace == workload.key.namespace || namespace == root;
            let selector = one.selector.as_ref();
            near && selector.is_none_or(|labels| labels.selects(&workload.labels))
        })
    }
}
