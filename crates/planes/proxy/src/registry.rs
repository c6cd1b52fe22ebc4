//! Resources from the control plane, as they came, and their translation to a [`ProxyPlan`]. Pure: no socket, no clock.

mod authorization;
mod capture;
mod destinations;
pub(crate) mod files;
mod gateway;
mod index;
mod origination;
pub(crate) mod routes;
#[cfg(test)]
mod tests;
mod tokens;
mod waypoint;

use destinations::{destination, dns_endpoints, locality, traffic, zones};
pub(crate) use destinations::{names, path_questions};

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use voile_traffic::{RetryBudget, RetryPolicy};

use prost::Message;
use voile_identity::{Identity, MeshRoots, Revocations};
use voile_model::mesh::PortTraffic;
use voile_model::mesh::traffic::ClientTls;
use voile_model::{Labels, Port, Ranges, ServiceKey};
use voile_proto::{proxy as wire, type_url};
use voile_telemetry as telemetry;
use voile_xds::client::{Rejection, Update};
use voile_xds::wire::{
    Address, Collector, InboundListener, OutboundListener, OutboundService, PolicyReference,
    PortPolicy, ProxyConfiguration, Service, ServicePolicy, Subset, Telemetry, Tunnel,
    WireProtocol, WireWorkload,
};

use crate::authorization::Authorization;
use crate::plan::{
    AuthorizerPlan, EndpointPlan, InboundPlan, LimiterPlan, OutboundPlan, PassthroughMode,
    ProxyPlan, ServicePlan, Settings, SharedPart, TelemetryPlan, TrafficPlan,
};
use crate::rate_limits::RateLimits;
pub(crate) use authorization::{CompilationWork, CompiledPolicies, Inputs};
use destination::NEVER_CAPTURED;
pub(crate) use destination::{is_service, outside};
use index::Index;
use locality::{EndpointRanking, LocalitySettings, OwnLocality};
use routes::{HeldBack, HeldRoutes};
pub(crate) use traffic::Findings;

/// Resources by name, last good of each.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) configuration: Option<Versioned<ProxyConfiguration>>,
    pub(crate) services: BTreeMap<Arc<str>, Versioned<Service>>,
    pub(crate) workloads: BTreeMap<Arc<str>, Versioned<WireWorkload>>,
    pub(crate) policies: BTreeMap<Arc<str>, Versioned<ServicePolicy>>,
    /// Policies with settings by client labels, as they came.
    policies_told: BTreeMap<Arc<str>, Versioned<ServicePolicy>>,
    /// Routes by the name of the called service.
    pub(crate) routes: BTreeMap<Arc<str>, HeldRoutes>,
    /// Routes that name what is not there, where others serve.
    held_back: BTreeMap<Arc<str>, HeldBack>,
    pub(crate) authorization: authorization::Policies,
    pub(crate) tokens: tokens::Rules,
    /// Certificates that are taken back.
    pub(crate) revocations: Option<Versioned<Arc<Revocations>>>,
    /// Roots that came with them. Those that were told last stay.
    pub(crate) mesh_roots: Arc<MeshRoots>,
    /// True if the lists are subscribed to: no plan comes into force without an answer.
    pub(crate) asks_revocations: bool,
    /// True if the kernel redirects connections to this proxy.
    pub(crate) capturing: bool,
    /// True if this proxy is a gateway.
    pub(crate) is_gateway: bool,
    /// True if this proxy is a waypoint.
    pub(crate) is_waypoint: bool,
    /// Listeners of a gateway.
    pub(crate) gateway: gateway::GatewayState,
    /// So much came that to read it took room worth giving back.
    has_read_much: bool,
    workloads_by_address: Index<IpAddr>,
    services_by_address: Index<IpAddr>,
    services_by_range: Ranges<Arc<str>>,
    /// The workloads behind each service.
    members: Index<ServiceKey>,
    /// Members that are reached through another network's gateway.
    far_members: Index<ServiceKey>,
    /// Addresses of the names that endpoints are known by.
    pub(crate) names: voile_dns::Table,
    /// Which resource answers a search (`*/hostname`).
    found: BTreeMap<Arc<str>, Arc<str>>,
    /// The searches that each resource answers, or did before another came to answer them.
    answered: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Names asked for that the control plane says do not exist, by type.
    absent: BTreeSet<(&'static str, Arc<str>)>,
    /// Subscriptions beside Addresses, and their answers.
    along: BTreeMap<Arc<str>, path_questions::PathQuestion>,
    /// Names asked for, with their users: bits of [`names::Asker`].
    askers: BTreeMap<Arc<str>, u8>,
    /// TLS that is made towards destinations.
    originations: origination::Originations,
    /// Files of our own machine.
    files: files::FileStore,
    /// Health state that all workers share.
    pub(crate) health: traffic::SharedHealth,
    /// Rate limits of our own workload.
    rate_limits: Option<Arc<RateLimits>>,
    /// Policies that balance by zone, and the callers like us, once counted.
    zoned: BTreeSet<Arc<str>>,
    callers: OnceCell<zones::Callers>,
}

/// A resource and the version it came with.
#[derive(Debug)]
pub(crate) struct Versioned<T> {
    pub(crate) version: Arc<str>,
    pub(crate) value: T,
}

/// Size of a response whose processing takes ten times as much memory: more than a sidecar holds otherwise.
const MUCH_BYTES: usize = 256 * 1024;

impl Registry {
    /// Returns true if much was read since the last call.
    pub(crate) fn take_read_much(&mut self) -> bool {
        std::mem::take(&mut self.has_read_much)
    }

    /// Applies one response. Returns rejections by name for unusable resources; a resource held under such a name stays.
    pub(crate) fn apply(&mut self, update: &Update) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        let Some(kind) = names::known_type(&update.type_url) else {
            return rejections;
        };
        self.forget_callers(kind);
        let bytes: usize = update.added.iter().map(|one| one.body.len()).sum();
        self.has_read_much |= bytes >= MUCH_BYTES;
        for resource in &update.added {
            let result = self.add(kind, &resource.name, &resource.version, &resource.body);
            if let Err(reason) = result {
                rejections.push(Rejection {
                    name: resource.name.clone(),
                    reason,
                });
            }
            self.absent.remove(&(kind, resource.name.clone()));
            if kind == type_url::ADDRESS {
                self.answers(&resource.name, &resource.aliases);
            }
            for alias in &resource.aliases {
                self.absent.remove(&(kind, alias.clone()));
            }
        }
        for name in &update.removed {
            self.remove(kind, name);
        }
        let asked_along = |name: &Arc<str>| {
            path_questions::ALONG.contains(&kind) && path_questions::is_question(name)
        };
        let absent = update.absent.iter().filter(|name| !asked_along(name));
        self.absent.extend(absent.map(|name| (kind, name.clone())));
        self.hear_along(kind, update);
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
                    self.remove_service(name);
                    for address in &value.addresses {
                        self.services_by_address.insert(*address, name);
                    }
                    for range in &value.ranges {
                        self.services_by_range.insert(*range, name.clone());
                    }
                    self.services
                        .insert(name.clone(), Versioned { version, value });
                }
                Address::Workload(value) => {
                    self.remove_workload(name);
                    for address in value.near_addresses() {
                        self.workloads_by_address.insert(*address, name);
                    }
                    for service in value.services.keys() {
                        self.members.insert(service.clone(), name);
                        if value.is_behind_gateway() {
                            self.far_members.insert(service.clone(), name);
                        }
                    }
                    self.workloads
                        .insert(name.clone(), Versioned { version, value });
                }
            },
            type_url::SERVICE_POLICY => self.add_policy(name, version, body)?,
            type_url::SERVICE_ROUTES => self.add_routes(name, version, body)?,
            type_url::AUTHORIZATION_POLICY => self.authorization.add(name, version, body)?,
            type_url::REQUEST_AUTHENTICATION => self.tokens.add(name, version, body)?,
            type_url::KEY_SET => self.tokens.add_keys(name, body)?,
            type_url::REVOCATION_LISTS => self.revoke(version, body)?,
            _ => {
                let value = ProxyConfiguration::decode(body).map_err(|e| e.to_string())?;
                let gateway = self.taken_from_outside(&version, &value)?;
                self.rate_limits = RateLimits::follow(&value, self.rate_limits.as_ref())?;
                let before = self.configuration.as_ref().map(|held| &held.value.labels);
                let relabelled = before != Some(&value.labels);
                if relabelled {
                    self.routes
                        .values_mut()
                        .for_each(HeldRoutes::forget_compiled);
                }
                self.gateway.turn_into(gateway, relabelled);
                self.configuration = Some(Versioned { version, value });
                if relabelled {
                    self.choose_policies();
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, kind: &'static str, name: &Arc<str>) {
        match kind {
            type_url::ADDRESS => {
                self.remove_service(name);
                self.remove_workload(name);
                self.found.remove(name);
                self.answers(name, &[]);
            }
            type_url::SERVICE_POLICY => self.remove_policy(name),
            type_url::SERVICE_ROUTES => self.remove_routes(name),
            type_url::AUTHORIZATION_POLICY => self.authorization.remove(name),
            type_url::REQUEST_AUTHENTICATION | type_url::KEY_SET => self.tokens.remove(kind, name),
            type_url::REVOCATION_LISTS => self.revocations = None,
            // A proxy whose own configuration vanished keeps the last one: its workload is being deleted, or the
            // control plane is confused; neither is a reason to open or close ports.
            _ => {}
        }
    }

    /// Applies lists of revoked certificates, and the roots beside them. Unreadable lists leave the last good ones; without any, the proxy trusts no peer.
    fn revoke(&mut self, version: Arc<str>, body: &[u8]) -> Result<(), String> {
        let decoded = wire::RevocationLists::decode(body).map_err(|error| error.to_string());
        let read = decoded.and_then(|said| {
            let read = Revocations::told(&said.lists).map_err(|error| error.to_string())?;
            let roots = MeshRoots::told(said.roots, said.issuer_key_id);
            Ok((read, roots.map_err(|error| error.to_string())?))
        });
        let (value, result) = match read {
            Ok((read, roots)) => {
                self.mesh_roots = Arc::new(roots);
                (Arc::new(read), Ok(()))
            }
            Err(reason) => {
                let good = self.revocations.take().map(|held| held.value);
                let closed = || Arc::new(Revocations::closed());
                (good.unwrap_or_else(closed), Err(reason))
            }
        };
        self.revocations = Some(Versioned { version, value });
        result
    }

    fn remove_service(&mut self, name: &Arc<str>) {
        if let Some(gone) = self.services.remove(name) {
            for address in &gone.value.addresses {
                self.services_by_address.remove(address, name);
            }
            for range in &gone.value.ranges {
                self.services_by_range.remove(*range, name);
            }
        }
    }

    fn remove_workload(&mut self, name: &Arc<str>) {
        if let Some(gone) = self.workloads.remove(name) {
            for address in &gone.value.addresses {
                self.workloads_by_address.remove(address, name);
            }
            for service in gone.value.services.keys() {
                self.members.remove(service, name);
                self.far_members.remove(service, name);
            }
        }
    }

    /// Forgets a policy or keys that the configuration names no longer.
    pub(crate) fn forget_named(&mut self, kind: &'static str, name: &Arc<str>) {
        self.remove(kind, name);
        self.absent.remove(&(kind, name.clone()));
    }

    /// Returns true if the control plane said that no resource has this name.
    pub(crate) fn is_absent(&self, kind: &'static str, name: &Arc<str>) -> bool {
        self.absent.contains(&(kind, name.clone()))
    }

    /// Forgets that the name does not exist.
    pub(crate) fn forget_absent(&mut self, kind: &'static str, name: &Arc<str>) {
        self.absent.remove(&(kind, name.clone()));
    }

    /// Forgets a service without a subscription by its name, unless another name led to it: that name's answer does not come
    /// twice.
    pub(crate) fn forget_service(&mut self, name: &Arc<str>) {
        let mut led = self.answered.get(name).into_iter().flatten();
        if !led.any(|search| self.found.get(search) == Some(name)) {
            self.remove_service(name);
            self.forget_callers(type_url::ADDRESS);
        }
        self.absent.remove(&(type_url::ADDRESS, name.clone()));
    }

    /// Workload at an address: `None` without an answer so far, `Some(None)` if there is none.
    pub(crate) fn workload_at(&self, address: IpAddr) -> Option<Option<&WireWorkload>> {
        if let Some(uid) = self.workloads_by_address.get(&address).next() {
            return Some(self.workloads.get(uid).map(|held| &held.value));
        }
        let name: Arc<str> = address_name(address).into();
        // The owner of a range around the address is no workload.
        let answered = self.found.contains_key(&name);
        (answered || self.absent.contains(&(type_url::ADDRESS, name))).then_some(None)
    }

    /// Names of the services that listeners lead to.
    pub(crate) fn services_called(&self) -> BTreeSet<Arc<str>> {
        let configuration = self.configuration.iter();
        let listeners = configuration.flat_map(|held| &held.value.outbound);
        let services = listeners.flat_map(|listener| &listener.services);
        services
            .chain(self.behind_waypoint())
            .map(service_name)
            .collect()
    }

    /// Names of the services that the configuration speaks of, and of those that their routes lead to.
    pub(crate) fn services_wanted(&self) -> BTreeSet<Arc<str>> {
        let called = self.services_called();
        let led_to = self.led_to(&called);
        let configuration = self.configuration.iter();
        let telling = configuration.flat_map(|held| held.value.telemetries());
        let telling = telling.flat_map(Telemetry::collectors);
        let configuration = self.configuration.iter();
        let asked = configuration.flat_map(|held| &held.value.authorizers);
        let limits = self.rate_limits.iter();
        let counting = limits.flat_map(|limits| limits.services());
        called
            .into_iter()
            .chain(led_to)
            .chain(self.gateway.services())
            .chain(telling.map(|collector| collector.service.to_string().into()))
            .chain(asked.map(|authorizer| authorizer.service.to_string().into()))
            .chain(counting.map(|(key, _)| key.to_string().into()))
            .chain(self.waypoints_wanted())
            .collect()
    }

    /// Telemetry settings, with the endpoints of the collectors.
    fn telemetry(&self, configuration: &ProxyConfiguration) -> TelemetryPlan {
        let apart = configuration.waypoint.as_ref();
        let apart = apart.map_or_else(Vec::new, |waypoint| waypoint.telemetries.clone());
        let reached = |collector: &Collector| {
            let service = self.reached(&collector.service, collector.port);
            (collector.clone(), service)
        };
        TelemetryPlan {
            collectors: configuration
                .telemetries()
                .flat_map(Telemetry::collectors)
                .map(reached)
                .collect(),
            telemetry: configuration.telemetry.clone(),
            apart,
        }
    }

    /// A port of a service that we call ourselves.
    fn reached(&self, key: &ServiceKey, port: Port) -> ServicePlan {
        self.service(&OutboundService {
            key: key.clone(),
            port,
            authorities: Vec::new(),
        })
    }

    /// External service of the policies in force, if its settings are known.
    fn authorizer(
        &self,
        configuration: &ProxyConfiguration,
        policies: Option<&Authorization>,
    ) -> Option<AuthorizerPlan> {
        let name = policies?.provider()?;
        let mut known = configuration.authorizers.iter();
        let settings = known.find(|authorizer| authorizer.name == *name)?;
        Some(AuthorizerPlan {
            service: self.reached(&settings.service, settings.port),
            settings: settings.clone(),
        })
    }

    /// Rate limit services.
    fn limiters(&self) -> Vec<LimiterPlan> {
        let limits = self.rate_limits.iter();
        let services = limits.flat_map(|limits| limits.services());
        let plan = |key: &(ServiceKey, Port)| LimiterPlan {
            service: self.reached(&key.0, key.1),
            key: key.clone(),
        };
        services.map(plan).collect()
    }

    /// Names without an answer so far, our own workload included; while there are any, no plan is published.
    pub(crate) fn unanswered(&self) -> Vec<Arc<str>> {
        let unknown = |name: &Arc<str>| !self.service_answered(name);
        let called = self.services_called();
        let unrouted = called.iter().filter_map(|name| self.unrouted(name));
        let own = self
            .configuration
            .iter()
            .map(|held| held.value.workload_uid.clone());
        let nobody = |uid: &Arc<str>| {
            !self.workloads.contains_key(uid)
                && !self.absent.contains(&(type_url::ADDRESS, uid.clone()))
        };
        let configuration = self.configuration.iter().map(|held| &held.value);
        let references = self.authorization_wanted().into_iter();
        let missing = references.filter(|wanted| !self.authorization.holds(wanted));
        let lists = self.asks_revocations.then(|| type_url::REVOCATIONS.into());
        let untold = |name: &Arc<str>| {
            self.revocations.is_none() && !self.is_absent(type_url::REVOCATION_LISTS, name)
        };
        own.filter(nobody)
            .chain(lists.filter(untold))
            .chain(self.services_wanted().into_iter().filter(unknown))
            .chain(self.workloads_wanted().into_iter().filter(nobody))
            .chain(unrouted)
            .chain(self.gateway.routes().filter_map(|held| self.unled(held)))
            .chain(missing.map(|wanted| wanted.name.clone()))
            .chain(configuration.flat_map(|held| self.tokens.missing(held)))
            .collect()
    }

    /// Authorization policies of our workload, or of the waypoint's destinations.
    pub(crate) fn authorization_wanted(&self) -> Vec<&PolicyReference> {
        let configuration = self.configuration.iter();
        let own = configuration.flat_map(|held| &held.value.authorization_policies);
        own.chain(self.policies_of_waypoint()).collect()
    }

    /// Policies of a closed state that take long to compile, and are not yet.
    pub(crate) fn work(&self) -> Option<CompilationWork> {
        let configuration = &self.configuration.as_ref()?.value;
        let work = self.authorization.work(configuration)?;
        self.unanswered().is_empty().then_some(work)
    }

    /// Names of all policies and keys that hold for our workload, by type.
    pub(crate) fn named_wanted(&self) -> [(&'static str, BTreeSet<Arc<str>>); 3] {
        let name = |wanted: &PolicyReference| wanted.name.clone();
        let policies = self.authorization_wanted().into_iter().map(name);
        let configuration = self.configuration.as_ref().map(|held| &held.value);
        let tokens = configuration.map_or(&[][..], |it| &it.request_authentications);
        let tokens = tokens.iter().chain(self.tokens_of_waypoint()).map(name);
        let key_sets = configuration.map_or(&[][..], |it| &it.key_sets);
        [
            (type_url::AUTHORIZATION_POLICY, policies.collect()),
            (type_url::REQUEST_AUTHENTICATION, tokens.collect()),
            (type_url::KEY_SET, key_sets.iter().cloned().collect()),
        ]
    }

    /// The closed state, if there is one.
    pub(crate) fn plan(&self) -> Option<ProxyPlan> {
        let configuration = &self.configuration.as_ref()?.value;
        if !self.unanswered().is_empty() {
            return None;
        }
        let own = self.workloads.get(&configuration.workload_uid);
        let authorization = self.authorization.compiled(configuration);
        Some(ProxyPlan {
            own: own.map(|held| peer(&held.value)).unwrap_or_default(),
            telemetry: self.telemetry(configuration).into(),
            inbound: self.inbound(configuration),
            capture: self.capture(configuration),
            outbound: configuration
                .outbound
                .iter()
                .map(|listener| self.outbound(listener))
                .collect(),
            gateway: self.edge(configuration),
            trust_domain: configuration.trust_domain.clone(),
            trust_domain_aliases: configuration.trust_domain_aliases.clone(),
            revocations: self.revocations.as_ref().map(|held| held.value.clone()),
            authorizer: match &configuration.waypoint {
                None => self.authorizer(configuration, authorization.as_ref()),
                // If destinations name several providers, none is asked.
                Some(_) => {
                    let all = self.policies_at_waypoint(configuration);
                    self.authorizer(configuration, all.as_ref())
                }
            },
            authorization,
            tokens: self.tokens.compiled(configuration),
            settings: Settings::of(configuration),
            rate_limits: self.rate_limits.clone().map(SharedPart),
            limiters: self.limiters(),
        })
    }

    fn inbound(&self, configuration: &ProxyConfiguration) -> Vec<InboundPlan> {
        let plan = |listener: &InboundListener| InboundPlan {
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
        self.inbound_wanted(configuration).map(plan).collect()
    }

    /// The inbound listeners to bind: with capture only those that are meant to stand beside it.
    pub(crate) fn inbound_wanted<'a>(
        &self,
        configuration: &'a ProxyConfiguration,
    ) -> impl Iterator<Item = &'a InboundListener> + use<'a> {
        let capturing = self.capturing;
        let listeners = configuration.inbound.iter();
        listeners.filter(move |listener| !capturing || listener.beside_capture)
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
                WireProtocol::Auto => policy_protocol.unwrap_or(WireProtocol::Auto),
                said => said,
            },
            services: listener
                .services
                .iter()
                .map(|service| self.routed(service))
                .collect(),
            otherwise: PassthroughMode::NoRoute,
            by_name: false,
        }
    }

    fn policy(&self, service: &OutboundService) -> Option<&PortPolicy> {
        self.policies
            .get(&service_name(service))?
            .value
            .ports
            .get(&service.port)
    }

    /// Declared protocol of a service port.
    fn spoken(&self, wanted: &OutboundService) -> WireProtocol {
        let by_service = || {
            let service = self.services.get(&service_name(wanted))?;
            Some(service.value.port(wanted.port)?.protocol)
        };
        let by_policy = self.policy(wanted).map(|policy| policy.protocol);
        by_policy.or_else(by_service).unwrap_or(WireProtocol::Auto)
    }

    fn service(&self, wanted: &OutboundService) -> ServicePlan {
        if let Some(through) = self.through_waypoint(wanted) {
            return through;
        }
        let said = self.policy(wanted).map(|policy| &policy.traffic);
        let mut plan = self.members_as(wanted, said, |_| true);
        plan.endpoints.extend(self.far_endpoints(wanted, said));
        match said {
            Some(said) => self.treated(plan, wanted, said),
            None => plan,
        }
    }

    /// The part of a service that has a subset's labels; on our own network, since a gateway knows nothing of subsets.
    fn part(&self, wanted: &OutboundService, name: &Arc<str>, subset: &Subset) -> ServicePlan {
        let has = |workload: &WireWorkload| subset.labels.selects(&workload.own_labels);
        let port = subset.ports.get(&wanted.port);
        let said = port.map(|port| &port.traffic);
        let plan = self.members_as(wanted, said, has);
        let plan = ServicePlan {
            subset: Some(name.clone()),
            http2_upgrade: port.map_or(plan.http2_upgrade, |port| port.http2_upgrade),
            client_protocol: port.map_or(plan.client_protocol, |port| port.client_protocol),
            ..plan
        };
        match said {
            Some(said) => self.treated(plan, wanted, said),
            None => plan,
        }
    }

    /// A port of a service, with those of its workloads that are meant.
    fn members_as(
        &self,
        wanted: &OutboundService,
        said: Option<&PortTraffic>,
        meant: impl Fn(&WireWorkload) -> bool,
    ) -> ServicePlan {
        let name = service_name(wanted);
        let service = self.services.get(&name).map(|held| &held.value);
        let sans = service
            .map(|service| service.subject_alt_names.as_slice())
            .unwrap_or_default();
        let sans: Vec<Identity> = sans.iter().filter_map(|name| name.parse().ok()).collect();
        let words = LocalitySettings::of(said);
        let asked = self.health_check(wanted).is_some();
        let ranking = EndpointRanking::new(self.whereabouts(), (said, asked), &words);
        let past = service.is_some_and(|service| self.is_past_waypoint(service));
        let (mut endpoints, mut localities) = (Vec::new(), Vec::new());
        // Workloads of a removed service have no service.
        let members = service.map(|_| self.members.get(&wanted.key));
        let workloads = members.into_iter().flatten();
        let held = workloads.filter_map(|uid| self.workloads.get(uid));
        for workload in held.map(|held| &held.value).filter(|one| meant(one)) {
            let Some(rank) = ranking.rank(workload) else {
                continue;
            };
            let tls = said.and_then(|said| said.tls.as_ref());
            for endpoint in self.endpoints(wanted, workload, (&sans, tls)) {
                let available = endpoint.available && !past;
                endpoints.push(EndpointPlan {
                    rank,
                    available,
                    ..endpoint
                });
                localities.push(Arc::clone(&workload.locality));
            }
        }
        dns_endpoints::scale(&mut endpoints);
        let zones = ranking.settle(&mut endpoints, &localities, || self.callers());
        let policy = self.policy(wanted);
        ServicePlan {
            retry: retry(policy),
            retry_budget: RetryBudget::default(),
            traffic: TrafficPlan::among(zones),
            service: self.service_labels(&wanted.key),
            port: wanted.port.get(),
            subset: None,
            protocol: self.spoken(wanted),
            http2_upgrade: policy.is_some_and(|policy| policy.http2_upgrade),
            client_protocol: policy.is_some_and(|policy| policy.client_protocol),
            authorities: wanted.authorities.clone(),
            endpoints,
            routes: None,
        }
    }

    /// Endpoints of the workload; several if a name leads to several addresses.
    fn endpoints(
        &self,
        wanted: &OutboundService,
        workload: &WireWorkload,
        (sans, tls): (&[Identity], Option<&ClientTls>),
    ) -> Vec<EndpointPlan> {
        // A gateway of another network reaches no single workload.
        let called = !workload.is_behind_gateway();
        let ports = workload.services.get(&wanted.key).filter(|_| called);
        let Some(port) = ports.and_then(|ports| ports.get(&wanted.port)) else {
            return Vec::new();
        };
        let spared = NEVER_CAPTURED.contains(&port.get())
            || self
                .policy(wanted)
                .is_some_and(|policy| policy.plaintext_workloads.contains(&workload.uid));
        let never = NEVER_CAPTURED.contains(&port.get());
        let mutual = matches!(tls, Some(ClientTls::Mutual(_)));
        let plain = matches!(tls, Some(ClientTls::Disable | ClientTls::Originate(_)));
        let expected = |identity: &Identity| -> Vec<Identity> {
            let others = sans.iter().cloned();
            std::iter::once(identity.clone()).chain(others).collect()
        };
        let (expected, reachable) = match (workload.tunnel, &workload.identity) {
            // A gateway takes it where its Gateways say so, and refuses it elsewhere.
            (Tunnel::None, Some(identity)) if mutual && workload.gateway => {
                (Some(vec![identity.clone()]), true)
            }
            // A call that must use the mesh's mutual TLS never falls back to plaintext.
            (Tunnel::None, _) => (None, !mutual),
            (Tunnel::Mtls, _) if never || plain => (None, true),
            (Tunnel::Mtls, _) if spared => (None, !mutual),
            (Tunnel::Mtls, Some(identity)) => (Some(expected(identity)), true),
            // A node proxy takes tunnels in every mode of PeerAuthentication.
            (Tunnel::Hbone, _) if never || plain => (None, true),
            (Tunnel::Hbone, Some(identity)) => (Some(expected(identity)), true),
            // A workload without an identity cannot be verified, and gets no plaintext instead.
            (Tunnel::Mtls | Tunnel::Hbone, None) => (None, false),
        };
        let by_address = |address: IpAddr| EndpointPlan {
            address: SocketAddr::new(address, port.get()),
            name: None,
            origination: (workload.tunnel == Tunnel::Hbone && expected.is_some())
                .then(origination::tunnel),
            expected,
            weight: workload.weight.max(1),
            available: reachable && workload.healthy,
            rank: Default::default(),
            peer: peer(workload),
        };
        match (workload.addresses.first(), &workload.hostname) {
            (Some(address), _) => vec![by_address(*address)],
            (None, Some(host)) => {
                let one = by_address(Ipv4Addr::UNSPECIFIED.into());
                self.named_endpoints(wanted, host, &one)
            }
            (None, None) => Vec::new(),
        }
    }

    /// Location of our own workload, and its labels.
    fn whereabouts(&self) -> OwnLocality<'_> {
        const NONE: &Labels = &Labels::NONE;
        let held = self.configuration.as_ref().map(|held| &held.value);
        let own = held.and_then(|held| self.workloads.get(&held.workload_uid));
        OwnLocality {
            locality: own.map_or("", |own| &*own.value.locality),
            node: own.map_or("", |own| &*own.value.node),
            labels: held.map_or(NONE, |held| &held.labels),
        }
    }
}

/// Retry policy of a port: the control plane's, else the proxy's default.
pub(crate) fn retry(policy: Option<&PortPolicy>) -> RetryPolicy {
    let said = policy.and_then(|policy| policy.retry.as_ref());
    said.map_or_else(RetryPolicy::default, RetryPolicy::from)
}

/// The resource name of a service.
fn service_name(service: &OutboundService) -> Arc<str> {
    service.key.to_string().into()
}

/// The resource name of an address on our network.
pub(crate) fn address_name(address: IpAddr) -> String {
    format!("/{address}")
}

/// The labels of a workload. Istio's wire carries neither `app` nor `version`; our control plane's says where they are not
/// the canonical names, which stand for them otherwise, as in ztunnel.
pub(crate) fn peer(workload: &WireWorkload) -> telemetry::PeerLabels {
    let labels = &workload.labels;
    let canonical = || {
        (
            labels.canonical_name.clone(),
            labels.canonical_revision.clone(),
        )
    };
    let (app, version) = labels.app_and_version.clone().unwrap_or_else(canonical);
    telemetry::PeerLabels {
        workload: labels.workload_name.to_string(),
        namespace: labels.namespace.to_string(),
        principal: String::new(),
        app: app.to_string(),
        version: version.to_string(),
        canonical_service: labels.canonical_name.to_string(),
        canonical_revision: labels.canonical_revision.to_string(),
        cluster: labels.cluster.to_string(),
        locality: None,
    }
}
