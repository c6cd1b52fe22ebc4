//! Everything that one Envoy needs to stand for one workload: listeners, routes, clusters and endpoints by name, as its discovery
//! services give them, and what of the mesh could not be said.

mod actions;
pub(crate) mod cluster;
mod gateway;
mod inbound;
mod keys;
mod manager;
pub(crate) mod names;
mod outbound;
mod routes;
mod security;
mod tls;
mod traffic;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use voile_model::mesh::{
    DestinationRule, Mesh, MeshService, Routing, RuleClient, ServicesByHost, Subject, Workload,
};
use voile_model::{Labels, Namespace, Port, ResourceName, ServiceKey};

use crate::PeerIdentity;
use crate::limit::{Limit, LimitName};
pub use crate::proxy::keys::Keys;
pub use crate::proxy::keys::WrittenKeys;
pub(crate) use cluster::ClusterTarget;
pub use tls::{IDENTITY, ROOT, identity_secret, root_secret};

/// Time for the detection of a protocol if the mesh sets none. Istio's own default waits for ever, and protocols whose server
/// speaks first then hang.
const DETECTION_TIMEOUT: Duration = Duration::from_millis(100);

/// Capture of connections by the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterceptMode {
    /// Clients connect to listeners of the Sidecar resource.
    None,
    /// The kernel redirects them, by Istio's rules.
    Redirect,
}

/// All that what a workload's application calls depends on, besides the mesh: workloads of one scope are told the same of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DependencyScope {
    namespace: Namespace,
    /// The Sidecar that holds.
    sidecar: Option<ResourceName>,
    capture: InterceptMode,
    ipv6: bool,
    /// Of its labels those that some route or DestinationRule asks for.
    labels: Labels,
}

impl DependencyScope {
    /// A client in this scope.
    fn client(&self) -> RuleClient<'_> {
        RuleClient {
            namespace: Some(&self.namespace),
            labels: Some(&self.labels),
        }
    }

    /// Any address of its family.
    fn any(&self) -> &'static str {
        if self.ipv6 { "::" } else { "0.0.0.0" }
    }
}

/// A port of a service that is called, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Callee {
    /// The service.
    pub service: ServiceKey,
    /// Its port.
    pub port: Port,
    /// The part; `None` is the whole.
    pub subset: Option<Arc<str>>,
    /// The DestinationRule by which it is called.
    pub rule: Option<ResourceName>,
}

impl Callee {
    fn new(
        service: &MeshService,
        port: Port,
        subset: Option<&Arc<str>>,
        rule: Option<&DestinationRule>,
    ) -> Self {
        Self {
            service: service.key.clone(),
            port,
            subset: subset.cloned(),
            rule: rule.map(|rule| rule.name.clone()),
        }
    }
}

/// Resources of an Envoy, each by its name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    /// Listeners.
    pub listeners: BTreeMap<String, Value>,
    /// Route configurations.
    pub routes: BTreeMap<String, Value>,
    /// Clusters.
    pub clusters: BTreeMap<String, Value>,
    /// Cluster load assignments.
    pub endpoints: BTreeMap<String, Value>,
    /// Secrets with keys of its own: what a gateway shows to clients.
    pub secrets: BTreeMap<String, Value>,
    /// Settings that could not be translated.
    pub limits: BTreeSet<Limit>,
    /// Callees whose clusters and endpoints belong to it.
    pub callees: BTreeSet<Callee>,
}

pub(crate) type Made = Configuration;

impl Configuration {
    fn add(&mut self, more: Self) {
        self.listeners.extend(more.listeners);
        self.routes.extend(more.routes);
        self.clusters.extend(more.clusters);
        self.endpoints.extend(more.endpoints);
        self.secrets.extend(more.secrets);
        self.limits.extend(more.limits);
        self.callees.extend(more.callees);
    }

    fn limit(&mut self, name: LimitName, about: impl fmt::Display, why: &str) {
        self.limits.insert(Limit::new(name, about, why));
    }
}

/// Complete configuration of the Envoy of a workload.
#[must_use]
pub fn translate(
    mesh: &Mesh,
    workload: &Workload,
    capture: InterceptMode,
    keys: &dyn Keys,
) -> Configuration {
    let translator = Translator::new(mesh);
    let mut made = translator.own(workload, capture, keys);
    // A gateway has no application that makes calls.
    if !workload.gateway {
        made.add(translator.calls(&translator.scope(workload, capture)));
    }
    for callee in &std::mem::take(&mut made.callees) {
        made.add(translator.callee(callee));
    }
    made
}

/// A mesh whose parts are translated one by one, so that what is the same for many is made once.
#[derive(Debug)]
pub struct Translator<'m> {
    mesh: &'m Mesh,
    routing: Routing<'m>,
    /// Made when first asked for: who is told what was made before needs none.
    leads: OnceCell<ServicesByHost<'m>>,
    /// Labels that some route or DestinationRule asks callers for.
    asked_labels: BTreeSet<&'m str>,
}

impl<'m> Translator<'m> {
    /// Of a mesh.
    #[must_use]
    pub fn new(mesh: &'m Mesh) -> Self {
        let routes = mesh.virtual_services.iter().flat_map(|one| &one.http);
        let subjects = routes.flat_map(|route| &route.matches);
        let subjects = subjects.flat_map(|one| one.criteria.keys());
        let label = |subject: &'m Subject| match subject {
            Subject::SourceLabel(name) => Some(&**name),
            _ => None,
        };
        let rules = mesh.destination_rules.iter();
        let selectors = rules.filter_map(|rule| rule.selector.as_ref());
        let selected = selectors.flat_map(Labels::iter).map(|(name, _)| &**name);
        Self {
            mesh,
            routing: Routing::new(mesh),
            leads: OnceCell::new(),
            asked_labels: subjects.filter_map(label).chain(selected).collect(),
        }
    }

    /// The scope of what a workload calls.
    #[must_use]
    pub fn scope(&self, workload: &Workload, capture: InterceptMode) -> DependencyScope {
        let sidecar = self.mesh.sidecar_for(workload);
        let labels = workload.labels.iter();
        let labels = labels.filter(|(name, _)| self.asked_labels.contains(&***name));
        DependencyScope {
            namespace: workload.key.namespace.clone(),
            sidecar: sidecar.map(|sidecar| sidecar.name.clone()),
            capture,
            ipv6: workload
                .addresses
                .first()
                .is_some_and(std::net::IpAddr::is_ipv6),
            labels: labels
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        }
    }

    /// Listeners and routes for what applications of a scope call, and whom that concerns; not their clusters and endpoints.
    #[must_use]
    pub fn calls(&self, scope: &DependencyScope) -> Configuration {
        let mut made = Made::default();
        outbound::translate(self.outbound(scope), &mut made);
        made
    }

    fn outbound<'s>(&'s self, scope: &'s DependencyScope) -> outbound::Outbound<'s> {
        outbound::Outbound {
            mesh: self.mesh,
            routing: &self.routing,
            leads: self.leads.get_or_init(|| ServicesByHost::new(self.mesh)),
            scope,
        }
    }

    /// The clusters and endpoints of one who is called; nothing where it is not there. They are the same for all who obey its rule.
    #[must_use]
    pub fn callee(&self, callee: &Callee) -> Configuration {
        let mut made = Made::default();
        if let Some(service) = self.mesh.services.get(&callee.service)
            && let Some(port) = service.port(callee.port)
            && let Some(target) = {
                let rule = callee.rule.as_ref();
                let host = &service.key.hostname;
                let mut rules = self.mesh.destination_rules.covering(host);
                let rule = rule.and_then(|name| rules.find(|one| one.name == *name));
                let rule = rule.map(|rule| &**rule);
                ClusterTarget::new(self.mesh, (service, rule), port, callee.subset.as_deref())
            }
        {
            made.clusters = target.clusters(&mut made.limits);
            made.endpoints.extend(target.endpoints());
        }
        made
    }

    /// Resources of one workload: its inbound listeners, its authorization provider, and its limits; of a gateway all its
    /// listeners and destinations.
    #[must_use]
    pub fn own(
        &self,
        workload: &Workload,
        capture: InterceptMode,
        keys: &dyn Keys,
    ) -> Configuration {
        let mesh = self.mesh;
        let mut made = Made::default();
        let peer = match workload.gateway {
            // A client from outside is no workload of the mesh, whatever its certificate says: no filter sets this state.
            true => PeerIdentity::FilterState,
            false => PeerIdentity::Certificate,
        };
        let security = security::of(mesh, (workload, peer), keys, &mut made.limits);
        if let Some(asked) = &security.asked {
            let rule = mesh.destination_rule(&asked.service, RuleClient::of(workload));
            let rule = rule.map(|rule| &**rule);
            let clusters = asked.clusters(mesh, rule, &mut made.limits);
            made.clusters.extend(clusters);
            let target = ClusterTarget::new(mesh, (&asked.service, rule), &asked.port, None);
            made.endpoints
                .extend(target.and_then(|target| target.endpoints()));
        }
        if workload.gateway {
            let scope = self.scope(workload, capture);
            gateway::translate(self.outbound(&scope), workload, &security, &mut made);
        } else {
            inbound::translate(mesh, workload, capture, &security, &mut made);
        }
        untranslated(mesh, workload, &mut made);
        made
    }
}

/// Reports settings of a workload's proxy that stock Envoy cannot express, or that are not translated.
fn untranslated(mesh: &Mesh, workload: &Workload, made: &mut Made) {
    let about = format!("workload {}", workload.key);
    for telemetry in mesh.telemetry_for(workload) {
        let why = "metrics, spans and access logs of Telemetry resources are not translated; the mesh's own access log is";
        made.limit(
            LimitName::Telemetry,
            format!("Telemetry {}", telemetry.name),
            why,
        );
    }
    for one in mesh.rate_limits_for(workload) {
        let why = "requests are not counted, and are not limited";
        made.limit(LimitName::RateLimit, format!("RateLimit {}", one.name), why);
    }
    for one in mesh.health_checks_for(workload) {
        let why = "endpoints are not health checked, and take traffic in any case";
        let about = format!("HealthCheck {}", one.name);
        made.limit(LimitName::HealthCheck, about, why);
    }
    if !mesh.config.default_providers.tracing.is_empty() {
        made.limit(
            LimitName::Telemetry,
            "MeshConfig defaultProviders.tracing",
            "spans are not translated",
        );
    }
    if mesh.config.proxy.keeps_source {
        let why =
            "applications see the proxy's address, not the client's (interceptionMode TPROXY)";
        made.limit(LimitName::KeepsSource, &about, why);
    }
    if workload.topology.proxy_protocol && !workload.gateway {
        let why = "PROXY headers before plaintext are not read: such connections fail";
        made.limit(LimitName::ProxyProtocol, &about, why);
    }
    let limits = mesh.config.proxy.limits;
    if limits != voile_model::mesh::ProxyLimits::default() {
        let why = "limits of `runtimeValues` apply to Voile's proxies only";
        made.limit(LimitName::OwnLimits, &about, why);
    }
}

/// Time for the detection of a connection's protocol, after which it counts as bytes.
fn detection_timeout(mesh: &Mesh) -> Duration {
    match mesh.config.protocol_detection_timeout {
        Duration::ZERO => DETECTION_TIMEOUT,
        said => said,
    }
}
