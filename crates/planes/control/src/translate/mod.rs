//! Translation of the checked mesh into the resources of proxies. Pure functions: any sequence of edits ends at the same state as
//! a fresh start. Unchanged resources keep their identity (`previous`), so that an edit without effect pushes nothing. If the
//! changes are known, only their dependents are made again (`update`).

mod address;
pub(crate) mod address_counts;
mod builder;
mod capture;
mod gateways;
mod health_checks;
mod listeners;
pub(crate) mod names;
mod network;
mod routes;
mod security;
mod telemetry;
mod update;
mod waypoint;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use voile_model::mesh::{
    AuthorizationPolicy, ClientCertificateDetails, ForwardClientCertificate, Forwards, MeshConfig,
    MeshService, ProxyLimits, Visibility, Workload, WorkloadGroup, WorkloadKind,
};
use voile_model::{Identity, Mesh};
use voile_xds::server::Resource;
use voile_xds::wire::{
    ConnectionTimeouts, HealthProbe, InboundCapture, ProxyConfiguration, WireLimits, WireType,
    encode_authorization,
};

use crate::effective_policies::{EffectivePoliciesBuilder, Names};
use crate::keys::Texts;
use crate::resources::resource;
use crate::snapshot::{ByNamespace, MeshSnapshot, OwnedConfiguration};
use crate::translate::builder::{SnapshotBuilder, put, put_resource};
use crate::ztunnel::{self, NodePolicy};
use security::{authorization, client_policies, rate_limits, tokens};
pub(crate) use update::update;

/// Detection deadline when the mesh sets none. Istio's own default waits for ever and hangs server-first
/// protocols.
const DETECTION_TIMEOUT: Duration = Duration::from_millis(100);

/// Makes the snapshot of a mesh. Things that cannot be put into force are left out, and said in the second part.
pub fn translate(mesh: &Mesh, previous: Option<&MeshSnapshot>) -> (MeshSnapshot, Vec<String>) {
    let snapshot = translate_with(mesh, &Texts::new(), previous);
    let problems = snapshot.problems();
    (snapshot, problems)
}

/// The same, with the keys of token issuers that were fetched.
pub(crate) fn translate_with(
    mesh: &Mesh,
    keys: &Texts,
    previous: Option<&MeshSnapshot>,
) -> MeshSnapshot {
    let ambient = mesh.workloads.values().any(|workload| workload.ambient);
    let snapshot = MeshSnapshot {
        ambient,
        together: mesh.has_waypoints() || mesh.has_networks(),
        providers: Arc::new(update::provided(mesh)),
        invited: Arc::new(invited(mesh)),
        groups: Arc::new(mesh.workload_groups.clone()),
        ..MeshSnapshot::default()
    };
    let mut making = SnapshotBuilder::new(mesh, previous, snapshot);
    for workload in mesh.workloads.values() {
        making.workload(workload);
    }
    for service in mesh.services.values() {
        making.service(service);
    }
    for made in address::network_gateways(mesh) {
        making.address(made);
    }
    making.routes(None);
    for policy in mesh.authorization_policies.values() {
        making.authorization(policy);
    }
    making.tokens(keys);
    making.peer_policies();
    making.snapshot.ranges = Arc::new(address::ranges(mesh));
    let places = address_counts::AddressCounts::of(mesh);
    making.snapshot.mesh_ranges = places.ranges();
    making.snapshot.places = Arc::new(places);
    for workload in mesh.workloads.values() {
        making.configuration(workload);
    }
    making.gather();
    let mut snapshot = making.snapshot;
    snapshot.names = Arc::new(names::of(mesh));
    snapshot.seal();
    snapshot
}

impl<'a> SnapshotBuilder<'a> {
    /// A workload's address, and how it is spoken to by that.
    fn workload(&mut self, workload: &Workload) {
        let (made, services) = address::of_workload(self.mesh, workload);
        self.address(made);
        let uid = &workload.uid;
        put(&mut self.snapshot.before, uid, services);
        let body = client_policies::workload_policy(self.mesh, workload)
            .to_wire()
            .encode_to_vec();
        self.policy(uid.clone(), body);
    }

    /// A service's address, with what it brings along.
    fn service(&mut self, service: &MeshService) {
        let name: Arc<str> = service.key.to_string().into();
        if service.visibility != Visibility::Public {
            let visibility = service.visibility.clone();
            self.snapshot.kept_close.insert(name.clone(), visibility);
        }
        for made in address::named_endpoints(self.mesh, service) {
            let uid = made.name.clone();
            self.address(made);
            put(&mut self.snapshot.before, &uid, vec![name.clone()]);
        }
        let made = address::of_service(self.mesh, service, &name);
        self.address(made);
        self.members(service, name);
    }

    fn address(&mut self, made: Resource) {
        let made = self.kept(|snapshot| &snapshot.all_addresses, made);
        // Node proxies are told otherwise of what they cannot speak.
        let plain = ztunnel::plain(self.mesh, &made).filter(|_| self.snapshot.ambient);
        match plain {
            Some(plain) => {
                let plain = self.kept(|snapshot| &snapshot.plain, plain);
                put_resource(&mut self.snapshot.plain, plain);
            }
            None => drop(self.snapshot.plain.remove(&made.name)),
        }
        self.snapshot.put_address(made);
    }

    /// Makes the resources that depend on the workloads behind a service.
    fn members(&mut self, service: &MeshService, name: Arc<str>) {
        let members = self.mesh.workloads_of(service);
        let named = address::named_endpoints(self.mesh, service);
        let uids = members.iter().map(|member| member.workload.uid.clone());
        let behind = uids.chain(named.into_iter().map(|one| one.name)).collect();
        put(&mut self.snapshot.behind, &name, behind);
        let body = client_policies::told(self.mesh, service, None)
            .to_wire()
            .encode_to_vec();
        let general = self.policy(name.clone(), body);
        self.policies_apart(service, name, general);
    }

    /// Makes the policies of a service for the namespaces whose clients get a different one.
    fn policies_apart(&mut self, service: &MeshService, name: Arc<str>, general: Arc<Resource>) {
        let named = self.mesh.namespaces_apart(service).into_iter();
        let told = named.filter_map(|namespace| {
            let told = client_policies::told(self.mesh, service, Some(namespace));
            let body = told.to_wire().encode_to_vec();
            let made =
                (*body != *general.body).then(|| resource(name.clone(), Vec::new(), body))?;
            Some((namespace.clone(), Some(Arc::new(made))))
        });
        let apart: BTreeMap<_, _> = told.collect();
        let all = &mut self.snapshot.policies_apart;
        if apart.is_empty() {
            all.remove(&name);
            return;
        }
        let mut made = ByNamespace {
            general: Some(general),
            apart,
        };
        let old = self.previous.and_then(|old| old.policies_apart.get(&name));
        if let Some(old) = old {
            made.share(old);
        }
        if all.get(&name) != Some(&made) {
            all.insert(name, made);
        }
    }

    fn policy(&mut self, name: Arc<str>, body: Vec<u8>) -> Arc<Resource> {
        let made = resource(name, Vec::new(), body);
        let made = self.kept(|snapshot| &snapshot.policies, made);
        put_resource(&mut self.snapshot.policies, made.clone());
        made
    }

    fn authorization(&mut self, policy: &AuthorizationPolicy) {
        let body = encode_authorization(policy).encode_to_vec();
        let made = resource(policy.name.to_string().into(), Vec::new(), body);
        let made = self.kept(|snapshot| &snapshot.authorization, made);
        put_resource(&mut self.snapshot.authorization, made);
        let made = ztunnel::policy(self.mesh, policy).filter(|_| self.snapshot.ambient);
        match made {
            Some(made) => self.node_policy(made),
            None => drop(self.snapshot.node_policies.remove(&policy.name.to_string())),
        }
    }

    fn node_policy(&mut self, mut made: NodePolicy) {
        let name = made.resource.name.clone();
        let old = self.previous.and_then(|old| old.node_policies.get(&name));
        if let Some(old) = old
            && *old.resource == *made.resource
        {
            made.resource = old.resource.clone();
        }
        if self.snapshot.node_policies.get(&name) != Some(&made) {
            self.snapshot.node_policies.insert(name, made);
        }
    }

    /// PeerAuthentications as node proxies keep them.
    fn peer_policies(&mut self) {
        if self.snapshot.ambient {
            for made in ztunnel::peer_policies(self.mesh) {
                self.node_policy(made);
            }
        }
    }

    /// Makes the configuration of a workload's sidecar, if it has one. Ranges and policies must exist already.
    fn configuration(&mut self, workload: &Workload) {
        if !workload.has_sidecar {
            return;
        }
        let name: Arc<str> = workload.key.to_string().into();
        let mut problems = Vec::new();
        let mut body = configuration(self.mesh, workload, &self.snapshot, &mut problems);
        tokens::refer(self.mesh, workload, &self.snapshot, &mut body);
        let old = self.previous.and_then(|old| old.configurations.get(&name));
        let obeys = authorization::names(&body, &self.snapshot);
        let mut made = OwnedConfiguration {
            owner: workload.identity(&self.mesh.config.trust_domain),
            pod: workload.key.name.clone(),
            joined: member_of(self.mesh, workload).is_some(),
            obeys: self.shared(obeys, old),
            resource: Arc::new(resource(
                name.clone(),
                Vec::new(),
                body.to_wire().encode_to_vec(),
            )),
            problems: problems.into(),
        };
        let same = |old: &OwnedConfiguration| old.owner == made.owner && old.obeys == made.obeys;
        self.obeyed_anew |= !old.is_some_and(same);
        if let Some(old) = old
            && *old.resource == *made.resource
        {
            made.resource = old.resource.clone();
        }
        if self.snapshot.configurations.get(&name) != Some(&made) {
            self.snapshot.configurations.insert(name, made);
        }
    }

    fn without_configuration(&mut self, name: &str) {
        let gone = self.snapshot.configurations.remove(name);
        self.obeyed_anew |= gone.is_some();
    }

    fn shared(&mut self, names: Names, old: Option<&OwnedConfiguration>) -> Arc<Names> {
        if let Some(old) = old
            && *old.obeys == names
        {
            return old.obeys.clone();
        }
        if let Some(known) = self.obeys.get(&names) {
            return known.clone();
        }
        let made = Arc::new(names);
        self.obeys.insert(made.clone());
        made
    }

    /// Collects the identities that obey each policy from all configurations.
    fn gather(&mut self) {
        let mut gathering = EffectivePoliciesBuilder::default();
        for private in self.snapshot.configurations.values() {
            gathering.add(&private.owner, &private.obeys);
        }
        self.snapshot.obeyed = Arc::new(gathering.finish());
    }
}

/// Configuration of one sidecar: its listeners, and the policies that it obeys.
fn configuration(
    mesh: &Mesh,
    workload: &Workload,
    snapshot: &MeshSnapshot,
    problems: &mut Vec<String>,
) -> ProxyConfiguration {
    let config = &mesh.config;
    let topology = workload.topology;
    // Neither Sidecars nor Services say what a gateway takes: Gateways do.
    let gateway = workload.gateway;
    let sidecar = mesh.sidecar_for(workload).filter(|_| !gateway);
    let sidecar = sidecar.map(|sidecar| &**sidecar);
    ProxyConfiguration {
        workload_uid: workload.uid.clone(),
        trust_domain: config.trust_domain.clone(),
        trust_domain_aliases: config.trust_domain_aliases.clone(),
        inbound: match gateway {
            true => Vec::new(),
            false => listeners::inbound(mesh, workload, sidecar, problems),
        },
        gateway: (gateway && !workload.waypoint)
            .then(|| gateways::gateway(mesh, workload, problems)),
        waypoint: match workload.waypoint {
            true => waypoint::waypoint(mesh, workload, snapshot, problems),
            false => None,
        },
        outbound: listeners::outbound(mesh, workload, sidecar, problems),
        outbound_policy: sidecar
            .and_then(|sidecar| sidecar.outbound_policy)
            .unwrap_or(config.outbound_policy),
        connection: connection(config),
        source_address: source_address(workload),
        capture: Some(InboundCapture {
            mesh_ranges: snapshot.mesh_ranges.to_vec(),
            ..capture::capture(mesh, workload, sidecar)
        }),
        telemetry: telemetry::telemetry(mesh, workload, problems),
        limits: limits(config.proxy.limits),
        // A waypoint's destinations each name their own policies.
        authorization_policies: match workload.waypoint {
            true => Vec::new(),
            false => authorization::references(mesh, workload, snapshot),
        },
        authorizers: authorization::authorizers(mesh, workload, problems),
        path_normalization: config.path_normalization,
        trusted_proxies: topology
            .trusted_proxies
            .unwrap_or(config.proxy.trusted_proxies),
        proxy_protocol: workload.hears_proxy_header(config.proxy.proxy_protocol),
        forwards: workload.forwards(&config.proxy.forwards),
        certificate_details: details(workload, &config.proxy.forwards),
        labels: workload.labels.clone(),
        health_probe: member_of(mesh, workload).and_then(|group| HealthProbe::of(group, workload)),
        rate_limits: rate_limits::holding(mesh, workload, problems),
        health_checks: health_checks::asked_by(mesh, workload, problems),
        // Said by `tokens::refer`.
        request_authentications: Vec::new(),
        key_sets: Vec::new(),
    }
}

/// The group that a workload joined, and is of.
fn member_of<'a>(mesh: &'a Mesh, workload: &Workload) -> Option<&'a Arc<WorkloadGroup>> {
    let group = mesh.workload_groups.get(workload.group.as_ref()?)?;
    (group.service_account == workload.service_account).then_some(group)
}

/// Identities that WorkloadGroups are for.
fn invited(mesh: &Mesh) -> BTreeSet<Identity> {
    let groups = mesh.workload_groups.values();
    let identity = |group: &Arc<WorkloadGroup>| Identity {
        trust_domain: mesh.config.trust_domain.clone(),
        namespace: group.name.namespace.clone(),
        service_account: group.service_account.clone(),
    };
    groups.map(identity).collect()
}

fn limits(limits: ProxyLimits) -> WireLimits {
    WireLimits {
        connections: limits.connections.unwrap_or(0),
        requests: limits.requests.unwrap_or(0),
        requests_per_destination: limits.requests_per_destination.unwrap_or(0),
        memory: limits.memory.unwrap_or(0),
        service_idle: limits.service_idle,
    }
}

/// Of who tells nothing nothing is said.
fn details(workload: &Workload, mesh: &Forwards) -> Option<ClientCertificateDetails> {
    use ForwardClientCertificate::{AppendForward, SanitizeSet};
    let tells = matches!(workload.forwards(mesh), AppendForward | SanitizeSet);
    tells.then(|| workload.certificate_details(mesh))
}

fn connection(config: &MeshConfig) -> ConnectionTimeouts {
    let given = |time: Duration| Some(time).filter(|time| !time.is_zero());
    let detection = given(config.protocol_detection_timeout);
    ConnectionTimeouts {
        connect_timeout: given(config.connect_timeout),
        detection_timeout: Some(detection.unwrap_or(DETECTION_TIMEOUT)),
        // The mesh says nothing about these two: they are left to the proxy.
        idle_timeout: None,
        header_timeout: None,
        drain_timeout: given(config.proxy.termination_drain_duration),
    }
}

/// A Pod's address is its own. An entry's may be another's (address translation), unless it is on this machine.
fn source_address(workload: &Workload) -> Option<IpAddr> {
    let own = workload.kind == WorkloadKind::Pod;
    let address = workload.addresses.first().copied();
    address.filter(|address| own || address.is_loopback())
}
