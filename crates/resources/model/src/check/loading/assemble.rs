//! Assembles the mesh from good resources. It decides settings that depend on a namespace's labels or on the root
//! namespace. Of two resources with the same name in the mesh, the first one wins.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use crate::attach::attach;
use crate::check::merge::merge;
use crate::check::networking::{CLUSTER, canonical_name, canonical_revision};
use crate::check::pod::{DATAPLANE_MODE, INJECT, REDIRECTION, asks_for_node_proxy};
use crate::check::{CheckedResource, ResourceId, Resources, StoredResource, slices};
use crate::codes;
use crate::diagnostic::{Diagnostic, Severity};
use crate::mesh::network::NETWORK;
use crate::mesh::{
    AuthorizationPolicy, Deployment, Exports, Mesh, MeshService, Pod, PodPhase, PodTemplate,
    Resolution, ServiceEntryEndpoint, ServiceOrigin, ServicePort, VirtualService, Visibility,
    Workload, WorkloadKind, WorkloadType,
};
use crate::names::{Labels, Namespace, ResourceName, WorkloadKey};
use crate::source::Source;

/// Makes the mesh. Resources that clash are left out, with a diagnostic.
pub(in crate::check) fn assemble(resources: Resources, diagnostics: &mut Vec<Diagnostic>) -> Mesh {
    let mut mesh = Mesh::default();
    let mut in_order: Vec<(&ResourceId, &StoredResource)> = resources.iter().collect();
    in_order.sort_by(|a, b| a.1.source.cmp(&b.1.source));
    first_round(&in_order, &mut mesh, diagnostics);
    for (id, stored) in &in_order {
        second_round(id, stored, &mut mesh, diagnostics);
    }
    slices::settle(&mut mesh);
    give_addresses(&in_order, &mut mesh);
    api_by_age(&mut mesh);
    rules_by_age(&mut mesh, diagnostics);
    attach(&mut mesh);
    peers_by_age(&mut mesh);
    tokens_by_age(&mut mesh);
    in_order_of_age(&mut mesh.virtual_services);
    gateways_by_age(&mut mesh);
    telemetries_by_age(&mut mesh);
    mesh.resources = resources;
    mesh
}

/// The oldest first; without a time, in the order of the documents.
pub(in crate::check) fn in_order_of_age(all: &mut [Arc<VirtualService>]) {
    let age = |one: &Arc<VirtualService>| one.created.unwrap_or(i64::MAX);
    all.sort_by(|one, other| (age(one), &one.source).cmp(&(age(other), &other.source)));
}

/// Puts those of its kind in order, of which this is a new one.
pub(in crate::check) fn by_age(one: &CheckedResource, mesh: &mut Mesh) {
    match one {
        CheckedResource::PeerAuthentication(_) => peers_by_age(mesh),
        CheckedResource::RequestAuthentication(_) => tokens_by_age(mesh),
        CheckedResource::Telemetry(_) => telemetries_by_age(mesh),
        _ => {}
    }
}

/// Sort key: the oldest resource of a kind comes first. Without a creation time the order of the documents counts.
fn age(created: Option<i64>, source: &Source) -> (i64, Source) {
    (created.unwrap_or(i64::MAX), source.clone())
}

fn peers_by_age(mesh: &mut Mesh) {
    mesh.peer_authentications
        .sort_by_cached_key(|one| age(one.created, &one.source));
}

fn tokens_by_age(mesh: &mut Mesh) {
    mesh.request_authentications
        .sort_by_cached_key(|one| age(one.created, &one.source));
}

fn rules_by_age(mesh: &mut Mesh, diagnostics: &mut Vec<Diagnostic>) {
    let mut rules = mesh.destination_rules.to_vec();
    rules.sort_by_cached_key(|one| age(one.created, &one.source));
    merge(&mut rules, diagnostics);
    mesh.destination_rules = rules.into_iter().collect();
}

/// Of two of one age the first by name, as Gateway API has it; without a time the youngest.
fn api_by_age(mesh: &mut Mesh) {
    let api = &mut mesh.gateway_api;
    let age = |created: Option<i64>| created.unwrap_or(i64::MAX);
    api.gateways
        .sort_by_cached_key(|one| (age(one.created), one.name.clone()));
    api.listener_sets
        .sort_by_cached_key(|one| (age(one.created), one.name.clone()));
    api.routes
        .sort_by_cached_key(|one| (age(one.created), one.name.clone(), one.kind));
    api.backend_tls
        .sort_by_cached_key(|one| (age(one.created), one.name.clone()));
}

fn gateways_by_age(mesh: &mut Mesh) {
    mesh.gateways
        .sort_by_cached_key(|one| age(one.created, &one.source));
}

fn telemetries_by_age(mesh: &mut Mesh) {
    mesh.telemetries
        .sort_by_cached_key(|one| age(one.created, &one.source));
}

/// Adds the resources that others depend on: the mesh's configuration and the namespaces.
fn first_round(
    in_order: &[(&ResourceId, &StoredResource)],
    mesh: &mut Mesh,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let mut configs: Vec<(&ResourceId, &StoredResource, _)> = Vec::new();
    for (id, stored) in in_order {
        match &stored.checked {
            CheckedResource::Namespace(namespace) => drop(
                mesh.namespaces
                    .insert(namespace.name.clone(), namespace.clone()),
            ),
            CheckedResource::MeshConfig(config) => configs.push((id, stored, config)),
            _ => {}
        }
    }
    // The configuration is in the namespace that it names as root. In a folder there is only one, in any namespace.
    let home =
        |(id, _, config): &&(&ResourceId, &StoredResource, &Arc<crate::mesh::MeshConfig>)| {
            id.namespace.as_ref() == Some(&config.root_namespace)
        };
    let Some(chosen) = configs.iter().find(home).or(configs.first()) else {
        return;
    };
    mesh.config = chosen.2.clone();
    for (id, stored, _) in &configs {
        if *id != chosen.0 {
            let message = format!(
                "{id} is ignored: the mesh's configuration is {} in {}",
                chosen.0, chosen.1.source
            );
            diagnostics.push(
                Diagnostic::error(codes::CLASH, stored.source.clone(), message)
                    .help("keep one ConfigMap `istio`"),
            );
        }
    }
}

/// A Service that says nothing of an address has the one that it was given.
fn give_addresses(in_order: &[(&ResourceId, &StoredResource)], mesh: &mut Mesh) {
    let mut given: BTreeMap<&ResourceName, Vec<IpAddr>> = BTreeMap::new();
    for (_, stored) in in_order {
        if let CheckedResource::IpAddress(one) = &stored.checked {
            given.entry(&one.service).or_default().push(one.address);
        }
    }
    for service in mesh.services.values_mut().filter(|_| !given.is_empty()) {
        let lacks = service.origin == ServiceOrigin::Kubernetes
            && service.addresses.is_empty()
            && service.resolution == Resolution::Static;
        let name = ResourceName::new(service.key.namespace.clone(), service.name.clone());
        if lacks && let Some(addresses) = given.get(&name) {
            Arc::make_mut(service).addresses.clone_from(addresses);
        }
    }
}

pub(in crate::check) fn second_round(
    id: &ResourceId,
    stored: &StoredResource,
    mesh: &mut Mesh,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let mut clash = |what: &dyn Display, taken: &Source, severity: Severity| {
        let message = format!("{id} is not in force: {what} is already declared in {taken}");
        diagnostics.push(Diagnostic {
            severity,
            ..Diagnostic::error(codes::CLASH, stored.source.clone(), message)
                .help("give one of them another name")
        });
    };
    match &stored.checked {
        CheckedResource::ServiceAccount(account) => drop(
            mesh.service_accounts
                .insert(account.name.clone(), account.clone()),
        ),
        CheckedResource::Services(services, workloads) => {
            for service in services {
                let service = exported(mesh, stored, service);
                let Some(first) = mesh.services.get_mut(&service.key) else {
                    mesh.services.insert(service.key.clone(), service);
                    continue;
                };
                if add_ports(first, &service) {
                    continue;
                }
                // Istio takes both ServiceEntries, and obeys one.
                let entries = [&**first, &service].map(|one| one.origin);
                let severity = match entries == [ServiceOrigin::ServiceEntry; 2] {
                    true => Severity::Warning,
                    false => Severity::Error,
                };
                let what = format!("the service {}", service.key);
                clash(&what, &first.source, severity);
            }
            for workload in workloads {
                let workload = at_home(mesh, workload);
                add_workload(workload, &mut mesh.workloads, &mut clash);
            }
        }
        CheckedResource::Workload(workload) => {
            let workload = at_home(mesh, workload);
            add_workload(workload, &mut mesh.workloads, &mut clash);
        }
        CheckedResource::Pod(pod) => {
            let template = in_namespace(mesh, &pod.name.namespace, &pod.template);
            let pod = Arc::new(Pod {
                template,
                ..Pod::clone(pod)
            });
            if let Some(workload) = pod_workload(&pod) {
                let workload = at_home(mesh, &workload.into());
                add_workload(workload, &mut mesh.workloads, &mut clash);
            }
            mesh.pods.insert(pod.name.clone(), pod);
        }
        CheckedResource::Deployment(deployment) => add_deployment(deployment, mesh),
        other => add_configuration(other, stored, mesh),
    }
}

/// Gives the ports of a second ServiceEntry to the service of the first, when they differ in nothing else, as Istio does. False when
/// they cannot be one service.
fn add_ports(first: &mut Arc<MeshService>, second: &MeshService) -> bool {
    let is_same = first.origin == ServiceOrigin::ServiceEntry
        && second.origin == ServiceOrigin::ServiceEntry
        && first.resolution == second.resolution
        && first.location == second.location
        && first.selector == second.selector
        && first.visibility == second.visibility
        && first.subject_alt_names == second.subject_alt_names
        && is_same_endpoints(first, second);
    let taken = |port: &ServicePort| {
        let mut all = first.ports.iter();
        all.any(|one| one.number == port.number || one.name == port.name)
    };
    let is_apart = !first.ports.is_empty() && !second.ports.iter().any(taken);
    if !is_same || !is_apart || second.ports.is_empty() {
        return false;
    }
    let merged = Arc::make_mut(first);
    merged.ports.extend(second.ports.iter().cloned());
    for address in &second.addresses {
        if !merged.addresses.contains(address) {
            merged.addresses.push(*address);
        }
    }
    for range in &second.address_ranges {
        if !merged.address_ranges.contains(range) {
            merged.address_ranges.push(*range);
        }
    }
    true
}

/// Returns true if both have the same endpoints; their locations in files may differ.
fn is_same_endpoints(first: &MeshService, second: &MeshService) -> bool {
    let same = |(one, other): (&ServiceEntryEndpoint, &ServiceEntryEndpoint)| {
        let other = ServiceEntryEndpoint {
            source: one.source.clone(),
            ..other.clone()
        };
        *one == other
    };
    let pairs = first.endpoints.iter().zip(&second.endpoints);
    first.endpoints.len() == second.endpoints.len() && pairs.into_iter().all(same)
}

/// The mesh's default visibility of a resource without `exportTo`; `None` is every namespace.
fn by_default(stored: &StoredResource, default: &Exports, own: &Namespace) -> Option<Visibility> {
    match stored.says_exports {
        true => None,
        false => default.of(own),
    }
}

/// The service, exported as it says, or else as the mesh does.
fn exported(mesh: &Mesh, stored: &StoredResource, service: &Arc<MeshService>) -> Arc<MeshService> {
    let default = &mesh.config.default_exports.services;
    match by_default(stored, default, &service.key.namespace) {
        None => service.clone(),
        Some(visibility) => Arc::new(MeshService {
            visibility,
            ..MeshService::clone(service)
        }),
    }
}

fn add_deployment(deployment: &Deployment, mesh: &mut Mesh) {
    let template = in_namespace(mesh, &deployment.name.namespace, &deployment.template);
    let deployment = Deployment {
        template,
        ..Deployment::clone(deployment)
    };
    mesh.deployments.insert(deployment.key(), deployment.into());
}

/// Adds a resource that depends on no other; no other resource of its name is in force.
fn add_configuration(checked: &CheckedResource, stored: &StoredResource, mesh: &mut Mesh) {
    let exports = &mesh.config.default_exports;
    match checked {
        CheckedResource::Namespace(_)
        | CheckedResource::MeshConfig(_)
        | CheckedResource::IpAddress(_)
        | CheckedResource::ServiceAccount(_)
        | CheckedResource::Services(..)
        | CheckedResource::Workload(_)
        | CheckedResource::Pod(_)
        | CheckedResource::Deployment(_) => {}
        // Workloads of slices are made later, when all addresses are known.
        CheckedResource::EndpointSlice(one) => mesh.endpoint_slices.insert(one),
        CheckedResource::Sidecar(sidecar) => {
            drop(mesh.sidecars.insert(sidecar.name.clone(), sidecar.clone()));
        }
        CheckedResource::PeerAuthentication(policy) => {
            mesh.peer_authentications.push(policy.clone());
        }
        CheckedResource::AuthorizationPolicy(policy) => mesh.add_policy(policy),
        CheckedResource::RequestAuthentication(one) => {
            mesh.request_authentications.push(one.clone());
        }
        CheckedResource::DestinationRule(rule) => {
            let mut rule = rule.clone();
            let default = &exports.destination_rules;
            if let Some(visibility) = by_default(stored, default, &rule.name.namespace) {
                Arc::make_mut(&mut rule).visibility = visibility;
            }
            mesh.destination_rules.push(rule);
        }
        CheckedResource::VirtualService(one) => {
            let mut one = one.clone();
            let default = &exports.virtual_services;
            if let Some(visibility) = by_default(stored, default, &one.name.namespace) {
                Arc::make_mut(&mut one).visibility = visibility;
            }
            mesh.virtual_services.push(one);
        }
        CheckedResource::Gateway(one) => mesh.gateways.push(one.clone()),
        CheckedResource::HealthCheck(one) => {
            drop(mesh.health_checks.insert(one.name.clone(), one.clone()));
        }
        CheckedResource::RateLimit(one) => {
            drop(mesh.rate_limits.insert(one.name.clone(), one.clone()));
        }
        CheckedResource::Telemetry(telemetry) => mesh.telemetries.push(telemetry.clone()),
        CheckedResource::ConfigMap(map) => {
            drop(mesh.config_maps.insert(map.name.clone(), map.clone()));
        }
        CheckedResource::ProxyConfig(config) => drop(
            mesh.proxy_configs
                .insert(config.name.clone(), config.clone()),
        ),
        CheckedResource::Secret(secret) => {
            drop(mesh.secrets.insert(secret.name.clone(), secret.clone()));
        }
        CheckedResource::WorkloadGroup(group) => drop(
            mesh.workload_groups
                .insert(group.name.clone(), group.clone()),
        ),
        CheckedResource::GatewayClass(class) => drop(
            mesh.gateway_api
                .classes
                .insert(class.name.clone(), class.clone()),
        ),
        CheckedResource::ApiGateway(one) => mesh.gateway_api.gateways.push(one.clone()),
        CheckedResource::ListenerSet(one) => mesh.gateway_api.listener_sets.push(one.clone()),
        CheckedResource::ApiRoute(one) => mesh.gateway_api.routes.push(one.clone()),
        CheckedResource::BackendTls(one) => mesh.gateway_api.backend_tls.push(one.clone()),
        CheckedResource::Grant(one) => mesh.gateway_api.grants.push(one.clone()),
    }
}

impl Mesh {
    fn add_policy(&mut self, policy: &Arc<AuthorizationPolicy>) {
        let name = policy.name.clone();
        self.authorization_policies.insert(name, policy.clone());
    }
}

fn add_workload(
    workload: Arc<Workload>,
    all: &mut BTreeMap<WorkloadKey, Arc<Workload>>,
    clash: &mut impl FnMut(&dyn Display, &Source, Severity),
) {
    match all.get(&workload.key) {
        Some(first) => {
            let what = format!("the workload {}", workload.key);
            clash(&what, &first.source, Severity::Error);
        }
        None => drop(all.insert(workload.key.clone(), workload)),
    }
}

/// The workload, which is on our network too where it calls that by its name.
fn at_home(mesh: &Mesh, workload: &Arc<Workload>) -> Arc<Workload> {
    let own = &*workload.network == mesh.own_network();
    if !own || workload.network.is_empty() {
        return workload.clone();
    }
    Arc::new(Workload {
        network: "".into(),
        ..Workload::clone(workload)
    })
}

/// The template with what its namespace says of proxies.
fn in_namespace(mesh: &Mesh, namespace: &Namespace, template: &PodTemplate) -> PodTemplate {
    let wanted = || !template.host_network && has_sidecar(mesh, namespace, template);
    let has_sidecar = template.injected.unwrap_or_else(wanted);
    PodTemplate {
        has_sidecar,
        ambient: !has_sidecar && is_ambient(mesh, namespace, template),
        asks_for_ambient: !has_sidecar && asks_for_ambient(mesh, namespace, template),
        ..template.clone()
    }
}

/// Returns true if a node proxy serves the Pod. The recorded redirection of the Pod counts first. A live Pod without this record
/// is not served, or not yet; one in a folder is if its labels ask for it.
fn is_ambient(mesh: &Mesh, namespace: &Namespace, template: &PodTemplate) -> bool {
    let is_live = template.injected.is_some();
    match template.annotations.get(REDIRECTION) {
        Some("enabled") => true,
        Some("disabled") => false,
        _ => !is_live && asks_for_ambient(mesh, namespace, template),
    }
}

/// Returns true if the labels ask for a node proxy and the Pod can have one.
fn asks_for_ambient(mesh: &Mesh, namespace: &Namespace, template: &PodTemplate) -> bool {
    let labels = mesh.namespaces.get(namespace).map(|found| &found.labels);
    let namespace = labels.and_then(|labels| labels.get(DATAPLANE_MODE));
    let pod = template.labels.get(DATAPLANE_MODE);
    !template.host_network && asks_for_node_proxy(pod, namespace)
}

/// The Pod's word, by label before annotation, else its namespace's.
fn has_sidecar(mesh: &Mesh, namespace: &Namespace, template: &PodTemplate) -> bool {
    match template
        .labels
        .get(INJECT)
        .or_else(|| template.annotations.get(INJECT))
    {
        Some(word) => word == "true",
        None => mesh
            .namespaces
            .get(namespace)
            .is_some_and(|namespace| injects(&namespace.labels)),
    }
}

fn injects(labels: &Labels) -> bool {
    match labels.get("istio-injection") {
        Some(word) => word == "enabled",
        None => labels.get("istio.io/rev").is_some(),
    }
}

/// The workload that a Pod is, once it has an address and until it has ended. A Pod with a sidecar on a node of a cluster is one
/// without an address, too: the kubelet tells the address only after the sidecar is ready, for which it needs its configuration.
fn pod_workload(pod: &Pod) -> Option<Workload> {
    let ended = matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed);
    let template = &pod.template;
    let awaits_sidecar =
        template.injected == Some(true) && template.has_sidecar && !template.node.is_empty();
    if ended || (pod.addresses.is_empty() && !awaits_sidecar) {
        return None;
    }
    let ResourceName { namespace, name } = &pod.name;
    let (workload_type, workload_name) = pod
        .owner
        .clone()
        .unwrap_or((WorkloadType::Pod, name.clone()));
    let ports = || {
        pod.template
            .containers
            .iter()
            .flat_map(|container| &container.ports)
    };
    Some(Workload {
        key: WorkloadKey::new(namespace.clone(), name.clone()),
        uid: format!("{CLUSTER}//Pod/{namespace}/{name}").into(),
        source: pod.source.clone(),
        kind: WorkloadKind::Pod,
        addresses: pod.addresses.clone(),
        hostname: None,
        labels: pod.template.labels.clone(),
        service_account: pod.template.service_account.clone(),
        has_sidecar: pod.template.has_sidecar,
        gateway: pod.template.is_gateway(),
        waypoint: pod.template.is_waypoint(),
        ambient: pod.template.ambient,
        asks_for_ambient: pod.template.asks_for_ambient,
        node: pod.template.node.clone(),
        canonical_name: canonical_name(&pod.template.labels, &workload_name),
        canonical_revision: canonical_revision(&pod.template.labels),
        workload_name,
        workload_type,
        named_ports: ports()
            .filter_map(|port| Some((port.name.clone()?, port.number)))
            .collect(),
        container_ports: ports().map(|port| port.number).collect(),
        captured_ports: pod.template.capture.inbound_ports.clone(),
        topology: pod.template.topology,
        network: pod.template.labels.get(NETWORK).unwrap_or_default().into(),
        locality: crate::check::networking::locality(&pod.template.labels),
        weight: None,
        ready: pod.ready && pod.phase == PodPhase::Running,
        group: None,
    })
}
