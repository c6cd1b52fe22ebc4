//! Meanings of host names for our pod, from the control plane's answers about `*/hostname`. Pure: no socket,
//! no clock.

use std::net::IpAddr;
use std::sync::Arc;

use voile_dns::{LocalName, Owner};
use voile_model::ServiceKey;
use voile_proto::type_url;
use voile_xds::wire::{NameMeaning, SEARCH, Service, WireWorkload, is_virtual};

use crate::registry::Registry;

/// The type that a response is of, if it is one that is asked for.
pub(in crate::registry) fn known_type(url: &str) -> Option<&'static str> {
    [
        type_url::ADDRESS,
        type_url::SERVICE_POLICY,
        type_url::SERVICE_ROUTES,
        type_url::AUTHORIZATION_POLICY,
        type_url::REQUEST_AUTHENTICATION,
        type_url::KEY_SET,
        type_url::REVOCATION_LISTS,
        type_url::PROXY_CONFIGURATION,
    ]
    .into_iter()
    .find(|known| *known == url)
}

/// Users of name subscriptions. All users share one subscription: it begins with the first user and ends with the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NameSubscriptions {
    /// Applications that look a name up.
    Dns = 1,
    /// Clients that name a host on a captured connection.
    Destinations = 2,
}

/// The address of IPv4 that one of IPv6 leads to: mapped, or by NAT64 (RFC 6052).
fn embedded(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                let bits = (u32::from(high) << 16) | u32::from(low);
                std::net::Ipv4Addr::from_bits(bits).into()
            }
            _ => v6.into(),
        },
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Registry {
    /// Adds a user of a name. Returns `true` if it is the first, so that the control plane must be asked.
    #[must_use]
    pub(crate) fn hold_name(&mut self, name: &Arc<str>, asker: NameSubscriptions) -> bool {
        let holders = self.askers.entry(name.clone()).or_default();
        let first = *holders == 0;
        *holders |= asker as u8;
        if first {
            // An old answer may no longer hold.
            self.forget_absent(type_url::ADDRESS, name);
        }
        first
    }

    /// Removes a user of a name. Returns `true` if it was the last: the meaning is forgotten, and the caller must
    /// unsubscribe.
    #[must_use]
    pub(crate) fn release_name(&mut self, name: &Arc<str>, asker: NameSubscriptions) -> bool {
        let Some(holders) = self.askers.get_mut(name) else {
            return false;
        };
        *holders &= !(asker as u8);
        if *holders != 0 {
            return false;
        }
        self.askers.remove(name);
        self.forget_name(name);
        true
    }

    /// Learns which names a resource answers: searches, and addresses in its ranges.
    pub(crate) fn answers(&mut self, resource: &Arc<str>, aliases: &[Arc<str>]) {
        for name in self.answered.remove(resource).into_iter().flatten() {
            if self.found.get(&name) == Some(resource) && !aliases.contains(&name) {
                self.found.remove(&name);
            }
        }
        let asked = |alias: &&Arc<str>| alias.starts_with(SEARCH) || alias.starts_with('/');
        let asked: Vec<Arc<str>> = aliases.iter().filter(asked).cloned().collect();
        for alias in &asked {
            self.found.insert(alias.clone(), resource.clone());
        }
        if !asked.is_empty() {
            self.answered.insert(resource.clone(), asked);
        }
    }

    /// Forgets what a name meant.
    pub(crate) fn forget_name(&mut self, name: &Arc<str>) {
        self.found.remove(name);
        self.forget_absent(type_url::ADDRESS, name);
    }

    /// Meaning of the name asked for by [`search_name`]; `None` while the control plane has not answered.
    pub(crate) fn meaning(&self, name: &Arc<str>) -> Option<LocalName> {
        let Some(resource) = self.found.get(name) else {
            return self
                .is_absent(type_url::ADDRESS, name)
                .then_some(LocalName::Nobody);
        };
        let service = &self.services.get(resource)?.value;
        let behind = || self.behind(&service.key);
        Some(match service.meaning(behind) {
            NameMeaning::Addresses(addresses) => LocalName::Addresses(addresses),
            NameMeaning::Alias(alias) => LocalName::Alias(alias.to_string()),
            NameMeaning::Outside => LocalName::Outside,
        })
    }

    /// Owner of an address, as far as known; never asks the control plane.
    pub(crate) fn owner(&self, address: IpAddr) -> Owner {
        let mut services = self.services_by_address.get(&address);
        let host = services.find_map(|name| {
            let host = &self.services.get(name)?.value.key.hostname;
            (!host.is_wildcard()).then(|| host.to_string())
        });
        match host {
            Some(host) => Owner::Host(host),
            None if is_virtual(address) => Owner::Nameless,
            None if self.workloads_by_address.get(&address).next().is_some() => Owner::Nameless,
            None => Owner::Unknown,
        }
    }

    /// Returns true if DNS may lead a name outside the mesh to this address. False for addresses of the mesh, and for addresses
    /// that each host has for itself.
    pub(crate) fn may_be_outside(&self, address: IpAddr) -> bool {
        let address = embedded(address);
        let special = match address {
            IpAddr::V4(v4) => {
                let [first, ..] = v4.octets();
                // 0.0.0.0/8 is this host, 240.0.0.0/4 is reserved.
                first == 0
                    || first >= 240
                    || v4.is_loopback()
                    || v4.is_link_local()
                    || v4.is_multicast()
            }
            IpAddr::V6(v6) => {
                v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_multicast()
                    || v6.is_unicast_link_local()
            }
        };
        let configuration = self.configuration.as_ref();
        let capture = configuration.and_then(|held| held.value.capture.as_ref());
        let mut ranges = capture.into_iter().flat_map(|capture| &capture.mesh_ranges);
        !special
            && !is_virtual(address)
            && !ranges.any(|range| range.contains(address))
            && self.services_by_address.get(&address).next().is_none()
            && self.workloads_by_address.get(&address).next().is_none()
    }

    /// The addresses of the workload called `pod` behind a service that has none of its own.
    pub(crate) fn pod_addresses(&self, name: &Arc<str>, pod: &str) -> Option<Vec<IpAddr>> {
        let service = &self.services.get(self.found.get(name)?)?.value;
        let mut behind = self.behind(&service.key);
        service.addresses.is_empty().then_some(())?;
        let found = behind.find(|workload| *workload.name == *pod)?;
        Some(found.addresses.clone())
    }

    /// The service that the name asked for by [`search_name`] stands for.
    pub(in crate::registry) fn service_named(&self, name: &Arc<str>) -> Option<&Service> {
        Some(&self.services.get(self.found.get(name)?)?.value)
    }

    /// Returns true if the service's endpoints are known by their names only.
    pub(in crate::registry) fn is_unresolved(&self, service: &Service) -> bool {
        self.behind(&service.key)
            .any(|workload| workload.addresses.is_empty())
    }

    fn behind(&self, key: &ServiceKey) -> impl Iterator<Item = &WireWorkload> {
        let names = self.members.get(key);
        names.filter_map(|name| Some(&self.workloads.get(name)?.value))
    }
}
