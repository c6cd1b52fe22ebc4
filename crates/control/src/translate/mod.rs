//! From the checked mesh to what proxies ask for: a pure function, so that any sequence of edits ends where a fresh start
//! begins. What did not change keeps its identity (`previous`), so that an edit that changes nothing pushes nothing.

mod address;
mod authorization;
mod capture;
mod listeners;
pub(crate) mod names;
mod policy;
mod telemetry;
mod tokens;

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;
use voile_model::Mesh;
use voile_model::mesh::{Visibility, Workload};
use voile_proto::proxy as wire;
use voile_xds::server::Resource;
use voile_xds::wire::{address_bytes, encode_authorization};

use crate::keys::Texts;
use crate::obeyed::Gathering;
use crate::snapshot::{MeshSnapshot, Private, resource};

/// Detection deadline when the mesh sets none, in milliseconds. Istio's own default waits for ever and hangs server-first
/// protocols.
const DETECTION_TIMEOUT_MS: u32 = 100;

/// Makes the snapshot of a mesh. Things that cannot be put into force are left out, and said in the second part.
pub fn translate(mesh: &Mesh, previous: Option<&MeshSnapshot>) -> (MeshSnapshot, Vec<String>) {
    translate_with(mesh, &Texts::new(), previous)
}

/// The same, with the keys of token issuers that were fetched.
pub(crate) fn translate_with(
    mesh: &Mesh,
    keys: &Texts,
    previous: Option<&MeshSnapshot>,
) -> (MeshSnapshot, Vec<String>) {
    let mut snapshot = MeshSnapshot::default();
    let mut problems = Vec::new();
    address::addresses(
        mesh,
        &Kept::of(previous, |p| &p.all_addresses),
        &mut snapshot,
    );
    let kept = Kept::of(previous, |p| &p.policies);
    for service in mesh.services.values() {
        let name: Arc<str> = service.key.to_string().into();
        if service.visibility != Visibility::Public {
            let visibility = service.visibility.clone();
            snapshot.kept_close.insert(name.clone(), visibility);
        }
        let body = policy::service_policy(mesh, service).encode_to_vec();
        snapshot
            .policies
            .insert(name.clone(), kept.or_new(resource(name, Vec::new(), body)));
    }
    for workload in mesh.workloads.values() {
        let name = workload.uid.clone();
        let body = policy::workload_policy(mesh, workload).encode_to_vec();
        snapshot
            .policies
            .insert(name.clone(), kept.or_new(resource(name, Vec::new(), body)));
    }
    let kept = Kept::of(previous, |p| &p.authorization);
    for (name, policy) in &mesh.authorization_policies {
        let name: Arc<str> = name.to_string().into();
        let body = encode_authorization(policy).encode_to_vec();
        snapshot
            .authorization
            .insert(name.clone(), kept.or_new(resource(name, Vec::new(), body)));
    }
    let key_sets = tokens::tokens(mesh, keys, previous, &mut snapshot, &mut problems);
    let ranges = capture::mesh_ranges(mesh);
    let mut obeyed = Gathering::default();
    for workload in mesh
        .workloads
        .values()
        .filter(|workload| workload.has_sidecar)
    {
        let name: Arc<str> = workload.key.to_string().into();
        let mut body = configuration(mesh, workload, &ranges, &snapshot, &mut problems);
        tokens::refer(mesh, workload, &snapshot, &key_sets, &mut body);
        let owner = workload.identity(&mesh.config.trust_domain);
        obeyed.add(&owner, authorization::names(&body, &snapshot));
        let body = body.encode_to_vec();
        let mut made = Arc::new(resource(name.clone(), Vec::new(), body));
        if let Some(old) = previous.and_then(|p| p.configurations.get(&name))
            && *old.resource == *made
        {
            made = old.resource.clone();
        }
        snapshot.configurations.insert(
            name,
            Private {
                owner,
                pod: workload.key.name.clone(),
                resource: made,
            },
        );
    }
    snapshot.obeyed = obeyed.finish();
    snapshot.names = names::Names::new(mesh);
    snapshot.unready = mesh.workloads.values().filter(|w| !w.ready).count();
    snapshot.seal();
    (snapshot, problems)
}

/// Resources of the last snapshot, to be used again where nothing changed.
struct Kept<'a>(Option<&'a HashMap<Arc<str>, Arc<Resource>>>);

impl<'a> Kept<'a> {
    fn of(
        previous: Option<&'a MeshSnapshot>,
        which: impl Fn(&'a MeshSnapshot) -> &'a HashMap<Arc<str>, Arc<Resource>>,
    ) -> Self {
        Self(previous.map(which))
    }

    fn or_new(&self, made: Resource) -> Arc<Resource> {
        match self.0.and_then(|kept| kept.get(&made.name)) {
            Some(old) if **old == made => old.clone(),
            _ => Arc::new(made),
        }
    }
}

/// What one sidecar listens on and obeys.
fn configuration(
    mesh: &Mesh,
    workload: &Workload,
    ranges: &[wire::AddressRange],
    snapshot: &MeshSnapshot,
    problems: &mut Vec<String>,
) -> wire::ProxyConfiguration {
    let config = &mesh.config;
    let topology = workload.topology;
    let sidecar = mesh.sidecar_for(workload).map(|sidecar| &**sidecar);
    let outbound_policy = sidecar
        .and_then(|sidecar| sidecar.outbound_policy)
        .unwrap_or(config.outbound_policy);
    wire::ProxyConfiguration {
        workload_uid: workload.uid.to_string(),
        trust_domain: config.trust_domain.to_string(),
        trust_domain_aliases: config
            .trust_domain_aliases
            .iter()
            .map(ToString::to_string)
            .collect(),
        inbound: listeners::inbound(mesh, workload, sidecar, problems),
        outbound: listeners::outbound(mesh, workload, sidecar, problems),
        outbound_policy: match outbound_policy {
            voile_model::mesh::OutboundPolicy::AllowAny => wire::OutboundPolicy::AllowAny,
            voile_model::mesh::OutboundPolicy::RegistryOnly => wire::OutboundPolicy::RegistryOnly,
        }
        .into(),
        connection: Some(connection(config)),
        source_address: source_address(workload),
        capture: Some(wire::Capture {
            mesh_ranges: ranges.to_vec(),
            ..capture::capture(mesh, workload, sidecar)
        }),
        telemetry: Some(telemetry::telemetry(mesh, workload, problems)),
        limits: limits(config.proxy.limits),
        authorization_policies: authorization::references(mesh, workload, snapshot),
        authorizers: authorization::authorizers(mesh, workload, problems),
        path_normalization: authorization::normalization(config.path_normalization).into(),
        trusted_proxies: topology
            .trusted_proxies
            .unwrap_or(config.proxy.trusted_proxies),
        proxy_protocol: topology.proxy_protocol,
        // Said by `tokens::refer`.
        request_authentications: Vec::new(),
        key_sets: Vec::new(),
    }
}

/// Absent where the mesh says nothing.
fn limits(limits: voile_model::mesh::ProxyLimits) -> Option<wire::Limits> {
    (limits != voile_model::mesh::ProxyLimits::default()).then(|| wire::Limits {
        connections: limits.connections.unwrap_or(0),
        requests: limits.requests.unwrap_or(0),
        requests_per_destination: limits.requests_per_destination.unwrap_or(0),
        memory_bytes: limits.memory.unwrap_or(0),
    })
}

fn connection(config: &voile_model::mesh::MeshConfig) -> wire::ConnectionSettings {
    wire::ConnectionSettings {
        connect_timeout_ms: milliseconds(config.connect_timeout),
        detection_timeout_ms: match milliseconds(config.protocol_detection_timeout) {
            0 => DETECTION_TIMEOUT_MS,
            set => set,
        },
        // The mesh says nothing about these two; 0 leaves them to the proxy.
        idle_timeout_ms: 0,
        header_timeout_ms: 0,
        drain_timeout_ms: milliseconds(config.proxy.termination_drain_duration),
    }
}

/// A Pod's address is its own. An entry's may be another's (address translation), unless it is on this machine.
fn source_address(workload: &Workload) -> Vec<u8> {
    let own = workload.kind == voile_model::mesh::WorkloadKind::Pod;
    match workload.addresses.first() {
        Some(address) if own || address.is_loopback() => address_bytes(*address),
        _ => Vec::new(),
    }
}

/// A duration on the wire; more than fits is as much as fits.
fn milliseconds(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
