//! Meaning of host names: the request that finds a host's service, and that service's answer.

use std::net::IpAddr;
use std::sync::Arc;

use voile_model::{Hostname, Namespace};

use super::{Service, WireWorkload};

/// Prefix of requests by host name instead of resource name, by a caller for itself.
pub const SEARCH: &str = "*/";

/// The resource name that asks what a host name means to the caller.
#[must_use]
pub fn search_name(host: &str) -> Arc<str> {
    format!("{SEARCH}{host}").into()
}

/// The same for workloads of a namespace, of whoever calls for them.
#[must_use]
pub fn search_name_of(namespace: &Namespace, host: &str) -> Arc<str> {
    format!("*{namespace}/{host}").into()
}

/// For which namespace, if one is named, and by which host name is asked; none for what is asked by resource name.
#[must_use]
pub fn parse_search(name: &str) -> Option<(Option<Namespace>, &str)> {
    let (namespace, host) = name.strip_prefix('*')?.split_once('/')?;
    match namespace {
        "" => Some((None, host)),
        named => Some((Some(Namespace::new(named)?), host)),
    }
}

/// Returns true if this is an address that the control plane gives to ServiceEntries: Istio's ranges, which no network
/// routes and no other resolver knows.
#[must_use]
pub fn is_virtual(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[..2] == [240, 240],
        IpAddr::V6(v6) => v6.segments()[..3] == [0x2001, 2, 0],
    }
}

/// Meaning of a service's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameMeaning {
    /// These addresses: virtual ones, or those of its workloads. None is an answer too.
    Addresses(Vec<IpAddr>),
    /// Another name for a host outside.
    Alias(Hostname),
    /// The mesh knows it, and has it reached where the resolver says.
    Outside,
}

impl Service {
    /// Meaning of its name, by the workloads behind it.
    pub fn meaning<'a, I>(&self, behind: impl Fn() -> I) -> NameMeaning
    where
        I: Iterator<Item = &'a WireWorkload>,
    {
        if !self.addresses.is_empty() {
            return NameMeaning::Addresses(self.addresses.clone());
        }
        if self.passthrough {
            return NameMeaning::Outside;
        }
        // Each host of a pattern is where the resolver says.
        let pattern = |workload: &WireWorkload| {
            let host = workload.hostname.as_ref();
            host.is_some_and(Hostname::is_wildcard)
        };
        if behind().any(pattern) {
            return NameMeaning::Outside;
        }
        let named = |workload: &WireWorkload| {
            let unresolved = workload.addresses.is_empty();
            workload.hostname.clone().filter(|_| unresolved)
        };
        if let Some(alias) = behind().find_map(named) {
            return NameMeaning::Alias(alias);
        }
        let up = behind().filter(|workload| workload.healthy);
        let addresses = up.flat_map(|workload| workload.near_addresses().to_vec());
        NameMeaning::Addresses(addresses.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_say_for_whom_they_are() {
        let shop = Namespace::new("shop");
        for (name, wanted) in [
            ("*/web", Some((None, "web"))),
            ("*shop/web.blog", Some((shop.clone(), "web.blog"))),
            ("shop/web", None),
            ("*", None),
            ("*Not_one/web", None),
            ("/10.0.0.1", None),
        ] {
            assert_eq!(parse_search(name), wanted, "{name}");
        }
        let made = shop.map(|shop| search_name_of(&shop, "web.blog"));
        assert_eq!(made.as_deref(), Some("*shop/web.blog"));
        assert_eq!(&*search_name("web"), "*/web");
    }
}
