//! Plan of a captured connection: its original destination is looked up among services, then workloads. Pure, like
//! the registry. A plan is closed: every resource that it needs was asked for and answered.
//!
//! ```text
//! address:port ─┬─ of services   → those services, told apart by authority or server name
//!               ├─ of a workload → that workload, in mutual TLS if it has a sidecar
//!               └─ of nobody     → ALLOW_ANY: on to where it was going │ REGISTRY_ONLY: nowhere
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use voile_traffic::{Conditions, RetryBudget, RetryPolicy};

use voile_identity::Identity;
use voile_model::{Port, ServiceKey, mesh};
use voile_proto::type_url;
use voile_telemetry as telemetry;
use voile_xds::wire::{
    OutboundPolicy, OutboundService, Service, Tunnel, WireProtocol, WireWorkload,
    parse_service_key, search_name,
};

use crate::plan::{CapturedDestination, EndpointPlan, OutboundPlan, PassthroughMode, ServicePlan};
use crate::registry::{Registry, address_name, origination, peer, retry, service_name};

/// Ports of sidecars themselves (metrics, readiness, Envoy's metrics): plaintext, and left alone by capture everywhere.
pub(in crate::registry) const NEVER_CAPTURED: [u16; 3] = [15020, 15021, 15090];
/// Istio's name for traffic to addresses outside the mesh.
const PASSTHROUGH: &str = "PassthroughCluster";

impl Registry {
    /// The names whose ServicePolicy must be known before connections to this address can be served.
    pub(crate) fn policies_wanted(&self, target: &CapturedDestination) -> Vec<Arc<str>> {
        let to = target.to;
        if let Some(host) = &target.host {
            let named = self.service_called(host, to.port());
            return named
                .map(|(wanted, _)| service_name(&wanted))
                .into_iter()
                .collect();
        }
        let services = self.services_at(to);
        let named = services.iter().map(|(service, _)| service_name(service));
        let chosen = services.iter().any(|(_, service)| !service.passthrough);
        let workloads = self.workloads_at(to).into_iter();
        let called = workloads.map(|workload| workload.uid.clone());
        match chosen {
            true => named.collect(),
            false => named.chain(called).collect(),
        }
    }

    /// Plan for connections to this address; `None` while answers are missing.
    pub(crate) fn destination(&self, target: &CapturedDestination) -> Option<OutboundPlan> {
        self.configuration.as_ref()?;
        let to = target.to;
        let policies = self.policies_wanted(target);
        if !self.is_told(target) || !policies.iter().all(|name| self.policy_answered(name)) {
            return None;
        }
        let mut called = policies.iter().filter(|name| is_service(name));
        if called.any(|name| self.unrouted(name).is_some()) {
            return None;
        }
        if self.is_waypoint_untold(target) {
            return None;
        }
        if let Some(host) = &target.host {
            return Some(match self.service_called(host, to.port()) {
                Some((wanted, service)) if self.may_be_anywhere(service) => {
                    self.to_name(to, &wanted, service)
                }
                _ => self.to_nobody(to),
            });
        }
        let services = self.services_at(to);
        if !services.is_empty() {
            return Some(self.to_services(to, &services));
        }
        let workloads = self.workloads_at(to);
        match workloads.is_empty() {
            true => Some(self.to_nobody(to)),
            false => Some(self.to_workload(to, &workloads)),
        }
    }

    /// Plan while the control plane does not answer. One of the mesh's own addresses may belong to a workload that
    /// needs mutual TLS, so connections to it go nowhere.
    pub(crate) fn destination_unasked(&self, target: &CapturedDestination) -> Option<OutboundPlan> {
        let configuration = &self.configuration.as_ref()?.value;
        let mut ranges = configuration
            .capture
            .iter()
            .flat_map(|capture| &capture.mesh_ranges);
        let mut plan = self.to_nobody(target.to);
        if ranges.any(|range| range.contains(target.to.ip())) {
            plan.services.clear();
            plan.otherwise = PassthroughMode::BlackHole;
        }
        Some(plan)
    }

    /// The service that our pod means by a host name, if it has the port.
    fn service_called(&self, host: &str, port: u16) -> Option<(OutboundService, &Service)> {
        let service = self.service_named(&search_name(host))?;
        let port = Port::new(port).filter(|port| service.port(*port).is_some())?;
        self.reaches(service).then_some(())?;
        let wanted = OutboundService {
            key: service.key.clone(),
            port,
            authorities: vec![host.into()],
        };
        Some((wanted, service))
    }

    /// For an address without a service: the named service takes its requests; other traffic of the connection goes to the
    /// address.
    fn to_name(&self, to: SocketAddr, wanted: &OutboundService, service: &Service) -> OutboundPlan {
        let mut named = self.routed(wanted);
        // The client resolved the name itself; no other address of it is known.
        let unresolved = named.endpoints.is_empty() && self.is_unresolved(service);
        if (service.passthrough || unresolved) && !self.is_past_waypoint(service) {
            put_called(&mut named, &self.endpoint_called(to, None));
        }
        let protocol = match named.protocol {
            WireProtocol::Auto => undeclared(to),
            said => said,
        };
        let mut plan = self.to_nobody(to);
        plan.protocol = protocol;
        plan.services.insert(0, named);
        if let PassthroughMode::Service(index) = &mut plan.otherwise {
            *index += 1;
        }
        plan
    }

    /// Returns true if the owner of the target is known.
    pub(in crate::registry) fn is_told(&self, target: &CapturedDestination) -> bool {
        match &target.host {
            None => self.addresses_known(target.to),
            Some(host) => self.meaning(&search_name(host)).is_some(),
        }
    }

    fn addresses_known(&self, to: SocketAddr) -> bool {
        let name: Arc<str> = address_name(to.ip()).into();
        self.services_by_address.get(&to.ip()).next().is_some()
            || self.workloads_by_address.get(&to.ip()).next().is_some()
            || self.found.contains_key(&name)
            || self.absent.contains(&(type_url::ADDRESS, name))
    }

    pub(in crate::registry) fn policy_answered(&self, name: &Arc<str>) -> bool {
        self.policies.contains_key(name)
            || self
                .absent
                .contains(&(type_url::SERVICE_POLICY, name.clone()))
            || self.is_lacking(type_url::SERVICE_POLICY, name)
    }

    /// Services that have this address and this port; if no service has the address itself, those with the narrowest range
    /// around it.
    fn services_at(&self, to: SocketAddr) -> Vec<(OutboundService, &Service)> {
        let Some(port) = Port::new(to.port()) else {
            return Vec::new();
        };
        let serves = |name: &Arc<str>| {
            let service = &self.services.get(name)?.value;
            (service.port(port).is_some() && self.reaches(service)).then_some(service)
        };
        let alone = self.services_by_address.get(&to.ip());
        let mut found: Vec<&Service> = alone.filter_map(serves).collect();
        if found.is_empty() {
            let around = self.services_by_range.around(to.ip());
            let mut around = around
                .filter_map(|(prefix, name)| Some((prefix, serves(name)?)))
                .peekable();
            let narrowest = around.peek().map(|(prefix, _)| *prefix);
            let alike = around.take_while(|(prefix, _)| Some(*prefix) == narrowest);
            found = alike.map(|(_, service)| service).collect();
        }
        found
            .into_iter()
            .map(|service| {
                let authorities = vec![service.key.hostname.to_string().into()];
                let key = service.key.clone();
                let wanted = OutboundService {
                    key,
                    port,
                    authorities,
                };
                (wanted, service)
            })
            .collect()
    }

    /// A service as metrics and logs call it.
    pub(in crate::registry) fn service_labels(&self, key: &ServiceKey) -> telemetry::ServiceLabels {
        let name = key.to_string();
        let known = self
            .services
            .get(name.as_str())
            .map(|held| held.value.name.to_string());
        let host = key.hostname.to_string();
        telemetry::ServiceLabels {
            name: known.unwrap_or_else(|| host.split('.').next().unwrap_or_default().to_owned()),
            namespace: key.namespace.to_string(),
            host,
        }
    }

    /// Returns true if the Sidecar resource lets our workload see the service. Other services count as
    /// unknown.
    fn reaches(&self, service: &Service) -> bool {
        let configuration = self.configuration.as_ref();
        let capture = configuration.and_then(|held| held.value.capture.as_ref());
        capture.is_none_or(|capture| capture.reaches(&service.key))
    }

    fn workloads_at(&self, to: SocketAddr) -> Vec<&WireWorkload> {
        let names = self.workloads_by_address.get(&to.ip());
        names
            .filter_map(|name| self.workloads.get(name))
            .map(|held| &held.value)
            .collect()
    }

    fn to_services(
        &self,
        to: SocketAddr,
        services: &[(OutboundService, &Service)],
    ) -> OutboundPlan {
        let said = |(wanted, service): &(OutboundService, &Service)| {
            let by_policy = self.policy(wanted).map(|policy| policy.protocol);
            by_policy.or_else(|| service.port(wanted.port).map(|port| port.protocol))
        };
        let protocol = services.iter().find_map(said).unwrap_or(WireProtocol::Auto);
        let alike = services
            .iter()
            .all(|service| said(service) == Some(protocol));
        let mut plans: Vec<ServicePlan> = services
            .iter()
            .map(|(wanted, service)| {
                let mut plan = self.routed(wanted);
                if service.passthrough && !self.is_past_waypoint(service) {
                    // The called address may still be a workload that needs mutual TLS.
                    let there = self.workloads_at(to);
                    let known = there.first().map(|first| (*first, there.as_slice()));
                    put_called(&mut plan, &self.endpoint_called(to, known));
                }
                plan
            })
            .collect();
        // If there are several services, a request that names none of them goes to none.
        let otherwise = match (plans.len(), self.outbound_policy()) {
            (1, _) | (_, OutboundPolicy::RegistryOnly) => PassthroughMode::BlackHole,
            (_, OutboundPolicy::AllowAny) => {
                plans.push(self.passthrough(to));
                PassthroughMode::Service(plans.len() - 1)
            }
        };
        OutboundPlan {
            name: format!("captured/{to}").into(),
            bind: to,
            protocol: if alike { protocol } else { WireProtocol::Auto },
            services: plans,
            otherwise,
            by_name: false,
        }
    }

    /// Plan of a workload called by its own address: the caller selected the endpoint, and it must prove an identity
    /// that is known there.
    pub(in crate::registry) fn to_workload(
        &self,
        to: SocketAddr,
        workloads: &[&WireWorkload],
    ) -> OutboundPlan {
        let serves =
            |workload: &&&WireWorkload| services_served(workload, to.port()).next().is_some();
        let workload = workloads.iter().find(serves).unwrap_or(&workloads[0]);
        let service = services_served(workload, to.port()).next();
        let protocol = Port::new(to.port())
            .and_then(|port| self.policies.get(&workload.uid)?.value.ports.get(&port))
            .map_or_else(|| undeclared(to), |policy| policy.protocol);
        let labels = match &service {
            Some(service) => self.service_labels(&service.key),
            None => outside(PASSTHROUGH),
        };
        OutboundPlan {
            name: format!("captured/{to}").into(),
            bind: to,
            protocol,
            services: vec![ServicePlan {
                retry: retry(service.as_ref().and_then(|service| self.policy(service))),
                retry_budget: RetryBudget::default(),
                traffic: Default::default(),
                service: labels,
                port: service
                    .as_ref()
                    .map_or(to.port(), |service| service.port.get()),
                protocol,
                http2_upgrade: service
                    .as_ref()
                    .and_then(|service| self.policy(service))
                    .is_some_and(|policy| policy.http2_upgrade),
                client_protocol: service
                    .as_ref()
                    .and_then(|service| self.policy(service))
                    .is_some_and(|policy| policy.client_protocol),
                authorities: Vec::new(),
                endpoints: self.endpoints_called(to, workload, workloads),
                // A caller of a workload's own address has chosen the endpoint already.
                subset: None,
                routes: None,
            }],
            otherwise: PassthroughMode::BlackHole,
            by_name: false,
        }
    }

    /// Returns true if calls that name a service may go to an address without an owner. With REGISTRY_ONLY, a service whose
    /// clients resolve its name is only at its declared addresses, if it has any. Claims of its name elsewhere do not count.
    fn may_be_anywhere(&self, service: &Service) -> bool {
        let bound = !service.addresses.is_empty() || !service.ranges.is_empty();
        !(service.passthrough && bound && self.outbound_policy() == OutboundPolicy::RegistryOnly)
    }

    fn to_nobody(&self, to: SocketAddr) -> OutboundPlan {
        let (services, otherwise) = match self.outbound_policy() {
            OutboundPolicy::AllowAny => (vec![self.passthrough(to)], PassthroughMode::Service(0)),
            OutboundPolicy::RegistryOnly => (Vec::new(), PassthroughMode::BlackHole),
        };
        OutboundPlan {
            name: format!("captured/{to}").into(),
            bind: to,
            protocol: undeclared(to),
            services,
            otherwise,
            by_name: true,
        }
    }

    fn passthrough(&self, to: SocketAddr) -> ServicePlan {
        // There is only one address: a failed call is not repeated there, as in Istio.
        let retry = RetryPolicy {
            on: Conditions::REFUSED.and(Conditions::RESET_BEFORE_REQUEST),
            ..RetryPolicy::default()
        };
        ServicePlan {
            retry,
            retry_budget: RetryBudget::default(),
            traffic: Default::default(),
            service: outside(PASSTHROUGH),
            port: to.port(),
            protocol: undeclared(to),
            http2_upgrade: false,
            client_protocol: false,
            authorities: Vec::new(),
            endpoints: vec![self.endpoint_called(to, None)],
            subset: None,
            routes: None,
        }
    }

    /// The endpoint that a workload's own address is, or those of the waypoint before it.
    fn endpoints_called(
        &self,
        to: SocketAddr,
        workload: &WireWorkload,
        all: &[&WireWorkload],
    ) -> Vec<EndpointPlan> {
        let before = all.iter().find(|one| self.is_past_waypoint_of(one));
        match before.and_then(|one| one.waypoint.as_ref()) {
            Some(waypoint) => self.waypoint_endpoints(waypoint, &to.to_string()),
            None => vec![self.endpoint_called(to, Some((workload, all)))],
        }
    }

    /// Returns true if the target is behind a waypoint that has no answer yet.
    fn is_waypoint_untold(&self, target: &CapturedDestination) -> bool {
        let named = target.host.as_ref();
        let named = named.and_then(|host| self.service_called(host, target.to.port()));
        let services = self.services_at(target.to).into_iter().chain(named);
        let mut services = services.filter(|(_, service)| self.is_past_waypoint(service));
        let workloads = self.workloads_at(target.to);
        let mut workloads = workloads.iter().filter(|one| self.is_past_waypoint_of(one));
        services.any(|(_, one)| self.is_untold(one.waypoint.as_ref()))
            || workloads.any(|one| self.is_untold(one.waypoint.as_ref()))
    }

    /// Endpoint of the called address itself. If any workload there needs mutual TLS, all calls use it.
    fn endpoint_called(
        &self,
        to: SocketAddr,
        known: Option<(&WireWorkload, &[&WireWorkload])>,
    ) -> EndpointPlan {
        let (chosen, all) = known.unzip();
        let all = all.unwrap_or_default();
        let encrypted = |workload: &&&WireWorkload| match workload.tunnel {
            Tunnel::None => false,
            Tunnel::Mtls => !self.spared(workload, to.port()),
            // A node proxy takes tunnels in every mode of PeerAuthentication.
            Tunnel::Hbone => !NEVER_CAPTURED.contains(&to.port()),
        };
        let mut tunnels: Vec<Tunnel> = Vec::new();
        let mut expected: Vec<Identity> = Vec::new();
        let mut reachable = true;
        for workload in all.iter().filter(encrypted) {
            tunnels.push(workload.tunnel);
            match &workload.identity {
                Some(identity) => expected.push(identity.clone()),
                // A workload without an identity cannot be verified, and gets no plaintext instead.
                None => reachable = false,
            }
        }
        let tunnelled = tunnels.contains(&Tunnel::Hbone);
        // The answering workload, and so its protocol, cannot be known.
        reachable &= !(tunnelled && tunnels.contains(&Tunnel::Mtls));
        EndpointPlan {
            address: to,
            name: None,
            expected: (!expected.is_empty()).then_some(expected),
            origination: tunnelled.then(origination::tunnel),
            weight: 1,
            available: reachable && !all.iter().any(|one| self.is_past_waypoint_of(one)),
            rank: Default::default(),
            peer: chosen.map(peer).unwrap_or_default(),
        }
    }

    /// Returns true if this port of the workload takes plaintext only: by PeerAuthentication, or since no sidecar
    /// captures it.
    fn spared(&self, workload: &WireWorkload, port: u16) -> bool {
        if NEVER_CAPTURED.contains(&port) {
            return true;
        }
        let Some(policy) = self.policies.get(&workload.uid).map(|held| &held.value) else {
            return false;
        };
        match Port::new(port).and_then(|port| policy.ports.get(&port)) {
            Some(port) => port.plaintext_workloads.contains(&workload.uid),
            None => policy.plaintext,
        }
    }

    fn outbound_policy(&self) -> OutboundPolicy {
        self.configuration
            .as_ref()
            .map_or(OutboundPolicy::RegistryOnly, |held| {
                held.value.outbound_policy
            })
    }
}

/// Returns true if a policy of this name belongs to a service, and not to a workload.
pub(crate) fn is_service(name: &str) -> bool {
    parse_service_key(name).is_some()
}

/// Makes the called address the endpoint of the service, and of routes to the same port of it.
fn put_called(plan: &mut ServicePlan, called: &EndpointPlan) {
    let (service, port) = (plan.service.clone(), plan.port);
    put(plan, called);
    let routes = plan.routes.as_mut();
    let targets = routes.into_iter().flat_map(|routes| &mut routes.targets);
    for target in targets.flatten() {
        if target.service == service && target.port == port && target.subset.is_none() {
            put(target, called);
        }
    }
}

fn put(plan: &mut ServicePlan, called: &EndpointPlan) {
    plan.endpoints = vec![called.clone()];
    origination::originate(plan);
    // No other endpoint may replace the called address.
    plan.traffic.watch = None;
}

/// The services whose port this port of the workload serves.
fn services_served(workload: &WireWorkload, target: u16) -> impl Iterator<Item = OutboundService> {
    let served = move |(key, ports): (&ServiceKey, &std::collections::BTreeMap<Port, Port>)| {
        let (port, _) = ports.iter().find(|(_, to)| to.get() == target)?;
        Some(OutboundService {
            key: key.clone(),
            port: *port,
            authorities: Vec::new(),
        })
    };
    workload.services.iter().filter_map(served)
}

fn undeclared(to: SocketAddr) -> WireProtocol {
    let said = Port::new(to.port()).map(mesh::Protocol::undeclared);
    said.and_then(voile_xds::wire::protocol_of)
        .unwrap_or(WireProtocol::Auto)
}

/// A name of Istio's in place of a service's.
pub(crate) fn outside(name: &str) -> telemetry::ServiceLabels {
    telemetry::ServiceLabels {
        host: String::new(),
        name: name.to_owned(),
        namespace: String::new(),
    }
}
