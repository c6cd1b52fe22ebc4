//! What host names mean to our pod, by what the control plane said of `*/hostname`. Pure: no socket, no clock.

use std::net::IpAddr;
use std::sync::Arc;

use voile_dns::{Meaning, Owner};
use voile_model::ServiceKey;
use voile_proto::type_url;
use voile_xds::wire::{NameMeaning, SEARCH, Service, Workload, is_virtual};

use super::Registry;

/// The type that a response is of, if it is one that is asked for.
pub(super) fn known_type(url: &str) -> Option<&'static str> {
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

/// Who asks the control plane for names. A subscription is one, whoever wants it: it begins with the first and ends with the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Asker {
    /// Applications that look a name up.
    Dns = 1,
    /// Clients that name somebody on a captured connection.
    Destinations = 2,
}

impl Registry {
    /// Somebody wants to know what a name means from now on. `true`: nobody did before, so the control plane is to be asked.
    #[must_use]
    pub(crate) fn hold_name(&mut self, name: &Arc<str>, asker: Asker) -> bool {
        let holders = self.askers.entry(name.clone()).or_default();
        let first = *holders == 0;
        *holders |= asker as u8;
        if first {
            // What was said long ago may hold no more.
            self.forget_absent(type_url::ADDRESS, name);
        }
        first
    }

    /// One of them does no more. `true`: nobody does, what it meant is forgotten, and the control plane is to be told.
    #[must_use]
    pub(crate) fn release_name(&mut self, name: &Arc<str>, asker: Asker) -> bool {
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

    /// What the name asked for by [`search_name`] means; `None` while the control plane has not answered.
    pub(crate) fn meaning(&self, name: &Arc<str>) -> Option<Meaning> {
        let Some(resource) = self.found.get(name) else {
            return self
                .is_absent(type_url::ADDRESS, name)
                .then_some(Meaning::Nobody);
        };
        let service = &self.services.get(resource)?.value;
        let behind = || self.behind(&service.key);
        Some(match service.meaning(behind) {
            NameMeaning::Addresses(addresses) => Meaning::Addresses(addresses),
            NameMeaning::Alias(alias) => Meaning::Alias(alias.to_string()),
            NameMeaning::Outside => Meaning::Outside,
        })
    }

    /// Who has an address, as far as we were told; nobody asks the control plane for this.
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

    /// The addresses of the workload called `pod` behind a service that has none of its own.
    pub(crate) fn pod_addresses(&self, name: &Arc<str>, pod: &str) -> Option<Vec<IpAddr>> {
        let service = &self.services.get(self.found.get(name)?)?.value;
        let mut behind = self.behind(&service.key);
        service.addresses.is_empty().then_some(())?;
        let found = behind.find(|workload| *workload.name == *pod)?;
        Some(found.addresses.clone())
    }

    /// The service that the name asked for by [`search_name`] stands for.
    pub(super) fn service_named(&self, name: &Arc<str>) -> Option<&Service> {
        Some(&self.services.get(self.found.get(name)?)?.value)
    }

    /// Whether its endpoints are known by their names only.
    pub(super) fn is_unresolved(&self, service: &Service) -> bool {
        self.behind(&service.key)
            .any(|workload| workload.addresses.is_empty())
    }

    fn behind(&self, key: &ServiceKey) -> impl Iterator<Item = &Workload> {
        let names = self.members.get(key);
        names.filter_map(|name| Some(&self.workloads.get(name)?.value))
    }
}
