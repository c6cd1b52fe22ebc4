//! Finds the service of a host name for a client. Exact names come first, then the short forms of Kubernetes Services
//! (a resolver's search list is not always there), then wildcard hosts, the longest first.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Hostname, Namespace, ServiceKey};
use crate::mesh::Visibility;

/// A service in the table, with its value.
#[derive(Debug)]
pub struct Candidate<T> {
    /// Its host, and the namespace that declares it.
    pub key: ServiceKey,
    /// Namespaces that see it.
    pub visibility: Visibility,
    /// True if it precedes those of other namespaces, for clients whose own namespace has none.
    pub canonical: bool,
    /// The name of its Kubernetes Service, if it is one: short names find it.
    pub kubernetes: Option<Arc<str>>,
    /// The value.
    pub found: T,
}

/// One of those of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bearer<T> {
    namespace: Namespace,
    visibility: Visibility,
    canonical: bool,
    found: T,
}

/// Services by host name. Of one host's services the asker's own comes first, then the canonical one, then by namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts<T> {
    by_host: HashMap<Hostname, Vec<Bearer<T>>>,
    /// Kubernetes Services without the cluster's domain (`reviews.shop.svc`), for short forms.
    by_short: HashMap<String, Hostname>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Self {
            by_host: HashMap::new(),
            by_short: HashMap::new(),
        }
    }
}

impl<T> FromIterator<Candidate<T>> for Hosts<T> {
    fn from_iter<I: IntoIterator<Item = Candidate<T>>>(all: I) -> Self {
        let mut hosts = Self::default();
        for one in all {
            let ServiceKey {
                namespace,
                hostname,
            } = one.key;
            if let Some(name) = one.kubernetes {
                let short = format!("{name}.{namespace}.svc");
                hosts.by_short.insert(short, hostname.clone());
            }
            hosts.by_host.entry(hostname).or_default().push(Bearer {
                namespace,
                visibility: one.visibility,
                canonical: one.canonical,
                found: one.found,
            });
        }
        for bearers in hosts.by_host.values_mut() {
            bearers.sort_by_cached_key(|one| (!one.canonical, one.namespace.clone()));
        }
        hosts
    }
}

impl<T> Hosts<T> {
    /// The value that a client in `namespace` finds under `host`. A client without a namespace sees public values.
    #[must_use]
    pub fn find(&self, namespace: Option<&Namespace>, host: &str) -> Option<&T> {
        let host = Hostname::new(host).filter(|host| !host.is_wildcard())?;
        self.visible(namespace, &host)
            .or_else(|| self.short(namespace, host.as_str()))
            .or_else(|| self.wildcard(namespace, host.as_str()))
    }

    fn visible(&self, namespace: Option<&Namespace>, host: &Hostname) -> Option<&T> {
        let sees = |one: &&Bearer<T>| match namespace {
            Some(namespace) => one.visibility.includes(namespace),
            None => one.visibility == Visibility::Public,
        };
        let bearers = self.by_host.get(host)?;
        let mut seen = bearers.iter().filter(sees);
        let own = seen.find(|one| Some(&one.namespace) == namespace);
        let found = own.or_else(|| bearers.iter().find(sees));
        found.map(|one| &one.found)
    }

    /// `reviews` in the asker's namespace, `reviews.shop`, `reviews.shop.svc`.
    fn short(&self, namespace: Option<&Namespace>, host: &str) -> Option<&T> {
        let full = match host.split('.').count() {
            1 => format!("{host}.{}.svc", namespace?),
            2 => format!("{host}.svc"),
            _ => host.to_owned(),
        };
        self.visible(namespace, self.by_short.get(&full)?)
    }

    fn wildcard(&self, namespace: Option<&Namespace>, host: &str) -> Option<&T> {
        let ends = host.match_indices('.').map(|(at, _)| &host[at..]);
        ends.chain([""]).find_map(|end| {
            let pattern = Hostname::new(&format!("*{end}"))?;
            self.visible(namespace, &pattern)
        })
    }
}
