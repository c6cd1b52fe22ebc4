//! What the control plane said, as it said it, and how that becomes a [`Plan`]. Pure: no socket, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use voile_identity::Identity;
use voile_proto::type_url;
use voile_telemetry as telemetry;
use voile_transport as transport;
use voile_xds::client::{Rejection, Update};
use voile_xds::wire::{
    Address, OutboundListener, OutboundService, Protocol, ProxyConfiguration, Service,
    ServicePolicy, Tunnel, Workload,
};

use crate::http::limits::HEADER_TIMEOUT;
use crate::plan::{EndpointPlan, InboundPlan, OutboundPlan, Plan, ServicePlan, Settings};

/// Resources by name, last good of each.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) configuration: Option<Held<ProxyConfiguration>>,
    pub(crate) services: BTreeMap<Arc<str>, Held<Service>>,
    pub(crate) workloads: BTreeMap<Arc<str>, Held<Workload>>,
    pub(crate) policies: BTreeMap<Arc<str>, Held<ServicePolicy>>,
    /// Workloads by address, for the labels of strangers.
    by_address: HashMap<IpAddr, Arc<str>>,
    /// Names asked for that the control plane says do not exist, by type.
    absent: BTreeSet<(&'static str, Arc<str>)>,
}

/// A resource and the version it came with.
#[derive(Debug)]
pub(crate) struct Held<T> {
    pub(crate) version: Arc<str>,
    pub(crate) value: T,
}

impl Registry {
    /// Takes one response in. What cannot be used is named, and what was held under its name stays.
    pub(crate) fn apply(&mut self, update: &Update) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        let Some(kind) = known_type(&update.type_url) else {
            return rejections;
        };
        for resource in &update.added {
            let result = self.add(kind, &resource.name, &resource.version, &resource.body);
            if let Err(reason) = result {
                rejections.push(Rejection {
                    name: resource.name.clone(),
                    reason,
                });
            }
            self.absent.remove(&(kind, resource.name.clone()));
            for alias in &resource.aliases {
                self.absent.remove(&(kind, alias.clone()));
            }
        }
        for name in &update.removed {
            self.remove(kind, name);
            self.absent.insert((kind, name.clone()));
        }
        rejections
    }

    fn add(
        &mut self,
        kind: &'static str,
        name: &Arc<str>,
        version: &Arc<str>,
        body: &[u8],
    ) -> Result<(), String> {
        let version = version.clone();
        match kind {
            type_url::ADDRESS => match Address::decode(body).map_err(|e| e.to_string())? {
                Address::Service(value) => {
                    self.services.insert(name.clone(), Held { version, value });
                }
                Address::Workload(value) => {
                    for address in &value.addresses {
                        self.by_address.insert(*address, name.clone());
                    }
                    self.workloads.insert(name.clone(), Held { version, value });
                }
            },
            type_url::SERVICE_POLICY => {
                let value = ServicePolicy::decode(body).map_err(|e| e.to_string())?;
                self.policies.insert(name.clone(), Held { version, value });
            }
            _ => {
                let value = ProxyConfiguration::decode(body).map_err(|e| e.to_string())?;
                self.configuration = Some(Held { version, value });
            }
        }
        Ok(())
    }

    fn remove(&mut self, kind: &'static str, name: &Arc<str>) {
        match kind {
            type_url::ADDRESS => {
                self.services.remove(name);
                if let Some(gone) = self.workloads.remove(name) {
                    for address in &gone.value.addresses {
                        if self.by_address.get(address) == Some(name) {
                            self.by_address.remove(address);
                        }
                    }
                }
            }
            type_url::SERVICE_POLICY => {
                self.policies.remove(name);
            }
            // A proxy whose own configuration vanished keeps the last one: its workload is being deleted, or the
            // control plane is confused; neither is a reason to open or close ports.
            _ => {}
        }
    }

    /// Forgets a service nobody asks for any more.
    pub(crate) fn forget_service(&mut self, name: &Arc<str>) {
        self.services.remove(name);
        self.policies.remove(name);
        self.absent.remove(&(type_url::ADDRESS, name.clone()));
        self.absent
            .remove(&(type_url::SERVICE_POLICY, name.clone()));
    }

    /// The workload at an address: `None` while nobody has answered, `Some(None)` when there is none.
    pub(crate) fn workload_at(&self, address: IpAddr) -> Option<Option<&Workload>> {
        if let Some(uid) = self.by_address.get(&address) {
            return Some(self.workloads.get(uid).map(|held| &held.value));
        }
        let name: Arc<str> = address_name(address).into();
        self.absent
            .contains(&(type_url::ADDRESS, name))
            .then_some(None)
    }

    /// Names of the services that the configuration speaks of.
    pub(crate) fn services_wanted(&self) -> BTreeSet<Arc<str>> {
        let listeners = self
            .configuration
            .iter()
            .flat_map(|held| &held.value.outbound);
        listeners
            .flat_map(|listener| &listener.services)
            .map(service_name)
            .collect()
    }

    /// What was asked for and is not yet answered, our own workload included: while there is any, no plan is published.
    pub(crate) fn unanswered(&self) -> Vec<Arc<str>> {
        let unknown = |name: &Arc<str>| {
            let service = self.services.contains_key(name)
                || self.absent.contains(&(type_url::ADDRESS, name.clone()));
            let policy = self.policies.contains_key(name)
                || self
                    .absent
                    .contains(&(type_url::SERVICE_POLICY, name.clone()));
            !(service && policy)
        };
        let own = self
            .configuration
            .iter()
            .map(|held| held.value.workload_uid.clone());
        let nobody = |uid: &Arc<str>| {
            !self.workloads.contains_key(uid)
                && !self.absent.contains(&(type_url::ADDRESS, uid.clone()))
        };
        own.filter(nobody)
            .chain(self.services_wanted().into_iter().filter(unknown))
            .collect()
    }

    /// The closed state, if there is one.
    pub(crate) fn plan(&self) -> Option<Plan> {
        let configuration = &self.configuration.as_ref()?.value;
        if !self.unanswered().is_empty() {
            return None;
        }
        let own = self.workloads.get(&configuration.workload_uid);
        Some(Plan {
            own: own.map(|held| peer(&held.value)).unwrap_or_default(),
            inbound: self.inbound(configuration),
            outbound: configuration
                .outbound
                .iter()
                .map(|listener| self.outbound(listener))
                .collect(),
            trust_domain: configuration.trust_domain.clone(),
            trust_domain_aliases: configuration.trust_domain_aliases.clone(),
            settings: settings(configuration),
        })
    }

    fn inbound(&self, configuration: &ProxyConfiguration) -> Vec<InboundPlan> {
        let plan = |listener: &voile_xds::wire::InboundListener| InboundPlan {
            name: listener.name.clone(),
            bind: listener.bind,
            protocol: listener.protocol,
            mutual_tls: listener.mutual_tls,
            endpoint: listener.endpoint,
            service: listener
                .service
                .as_ref()
                .map(|(key, _)| self.service_labels(key))
                .unwrap_or_default(),
        };
        configuration.inbound.iter().map(plan).collect()
    }

    fn outbound(&self, listener: &OutboundListener) -> OutboundPlan {
        let policy_protocol = match listener.services.as_slice() {
            [only] => self.policy(only).map(|policy| policy.protocol),
            _ => None,
        };
        OutboundPlan {
            name: listener.name.clone(),
            bind: listener.bind,
            protocol: match listener.protocol {
                Protocol::Auto => policy_protocol.unwrap_or(Protocol::Auto),
                said => said,
            },
            services: listener
                .services
                .iter()
                .map(|service| self.service(service))
                .collect(),
        }
    }

    fn policy(&self, service: &OutboundService) -> Option<&voile_xds::wire::PortPolicy> {
        self.policies
            .get(&service_name(service))?
            .value
            .ports
            .get(&service.port)
    }

    fn service(&self, wanted: &OutboundService) -> ServicePlan {
        let name = service_name(wanted);
        let service = self.services.get(&name).map(|held| &held.value);
        let sans = service
            .map(|service| service.subject_alt_names.as_slice())
            .unwrap_or_default();
        let sans: Vec<Identity> = sans.iter().filter_map(|name| name.parse().ok()).collect();
        let endpoints = match service {
            // Workloads of a service that is gone are nobody's.
            None => Vec::new(),
            Some(_) => {
                let workloads = self.workloads.values().map(|held| &held.value);
                workloads
                    .filter_map(|workload| self.endpoint(wanted, workload, &sans))
                    .collect()
            }
        };
        ServicePlan {
            service: self.service_labels(&wanted.key),
            port: wanted.port.get(),
            authorities: wanted.authorities.clone(),
            endpoints,
        }
    }

    fn endpoint(
        &self,
        wanted: &OutboundService,
        workload: &Workload,
        sans: &[Identity],
    ) -> Option<EndpointPlan> {
        let endpoint = workload.endpoint(&wanted.key, wanted.port)?;
        let spared = self
            .policy(wanted)
            .is_some_and(|policy| policy.plaintext_workloads.contains(&workload.uid));
        let (expected, reachable) = match (workload.tunnel, &workload.identity) {
            (Tunnel::None, _) => (None, true),
            (Tunnel::Mtls, _) if spared => (None, true),
            (Tunnel::Mtls, Some(identity)) => (
                Some(
                    std::iter::once(identity.clone())
                        .chain(sans.iter().cloned())
                        .collect(),
                ),
                true,
            ),
            // What we cannot speak, or whom we cannot verify, is not spoken to in plaintext instead.
            (Tunnel::Mtls, None) | (Tunnel::Hbone, _) => (None, false),
        };
        Some(EndpointPlan {
            address: SocketAddr::new(endpoint.address, endpoint.port.get()),
            expected,
            weight: workload.weight.max(1),
            available: reachable && workload.healthy,
            peer: peer(workload),
        })
    }

    fn service_labels(&self, key: &voile_model::ServiceKey) -> telemetry::Service {
        let name = key.to_string();
        let known = self
            .services
            .get(name.as_str())
            .map(|held| held.value.name.to_string());
        let host = key.hostname.to_string();
        telemetry::Service {
            name: known.unwrap_or_else(|| host.split('.').next().unwrap_or_default().to_owned()),
            namespace: key.namespace.to_string(),
            host,
        }
    }
}

/// The resource name of a service.
fn service_name(service: &OutboundService) -> Arc<str> {
    service.key.to_string().into()
}

/// The resource name of an address on our network.
pub(crate) fn address_name(address: IpAddr) -> String {
    format!("/{address}")
}

fn known_type(url: &str) -> Option<&'static str> {
    [
        type_url::ADDRESS,
        type_url::SERVICE_POLICY,
        type_url::PROXY_CONFIGURATION,
    ]
    .into_iter()
    .find(|known| *known == url)
}

/// The labels of a workload. Istio's wire carries neither `app` nor `version`; as in ztunnel the canonical names stand
/// for them.
pub(crate) fn peer(workload: &Workload) -> telemetry::Peer {
    let labels = &workload.labels;
    telemetry::Peer {
        workload: labels.workload_name.to_string(),
        namespace: labels.namespace.to_string(),
        principal: String::new(),
        app: labels.canonical_name.to_string(),
        version: labels.canonical_revision.to_string(),
        canonical_service: labels.canonical_name.to_string(),
        canonical_revision: labels.canonical_revision.to_string(),
        cluster: labels.cluster.to_string(),
    }
}

fn settings(configuration: &ProxyConfiguration) -> Settings {
    let said = configuration.connection;
    Settings {
        connect_timeout: said.connect_timeout.unwrap_or(transport::CONNECT_TIMEOUT),
        detection_timeout: said
            .detection_timeout
            .unwrap_or(transport::DETECTION_TIMEOUT),
        idle_timeout: said.idle_timeout.unwrap_or(transport::IDLE_TIMEOUT),
        header_timeout: said.header_timeout.unwrap_or(HEADER_TIMEOUT),
        source_address: configuration.source_address,
        access_log: configuration.access_log.clone(),
    }
}
