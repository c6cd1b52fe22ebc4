//! Expansion of a folder's mesh into processes on this machine. Controllers times replicas become pods with
//! addresses, and every pod learns its sidecar's address for each service it may see. Pure: the same folder makes the
//! same plan.

mod captured;
mod problems;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use voile_model::mesh::{
    CaptureMode, ControllerKind, EgressHost, EgressListener, EgressNamespace, EndpointHost,
    IngressListener, MeshService, PodTemplate, Resolution, ServiceOrigin, ServicePort, Sidecar,
    TargetPort, Transport,
};
use voile_model::names::is_dns_label;
use voile_model::{Diagnostic, Hostname, Labels, Mesh, Port, ResourceName, Source};

use crate::addresses::{AddressError, Addresses, PodIsolation};
use crate::rollout::{PodRoster, essence, pod_name};
use crate::variables::{PortView, ServiceView};

pub use problems::{
    NO_CALLERS, NO_COMMAND, NO_INGRESS, NO_PRIVILEGES, NOT_SERVED, POD_NAME, SHARED_BIND,
    SIDECAR_PORT, UNREACHABLE,
};
use problems::{check, no_ingress, own_binds};

/// Marks one pod among the replicas of a Deployment, so that a Sidecar can be meant for it alone.
pub const POD_LABEL: &str = voile_model::mesh::POD_LABEL;

/// Pods and publications that run.
#[derive(Debug, Default, PartialEq)]
pub struct RunPlan {
    /// Every pod, in order of names.
    pub pods: Vec<PodPlan>,
    /// Services reachable from outside the mesh.
    pub published: Vec<PublishedPort>,
    /// Virtual addresses that were given to Services which name none (in namespaces).
    pub given: BTreeMap<ResourceName, Ipv4Addr>,
    /// True if a node proxy serves the pods.
    pub by_node: bool,
    /// Pods that errors keep from running.
    pub refused: Vec<RefusedPod>,
    /// Problems with running this folder here; errors are pods that cannot run.
    pub problems: Vec<Diagnostic>,
}

/// A pod that an error keeps from running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedPod {
    /// Its name.
    pub name: ResourceName,
    /// The controller it is a replica of; `None` for a bare Pod.
    pub controller: Option<Controller>,
}

impl RefusedPod {
    /// Returns the name by which the view groups pods.
    pub fn workload(&self) -> &str {
        workload(&self.name, self.controller.as_ref())
    }
}

/// The name of the controller, or of the pod itself.
fn workload<'a>(pod: &'a ResourceName, controller: Option<&'a Controller>) -> &'a str {
    controller.map_or(&pod.name, |one| &one.name)
}

/// State of the run that an expansion depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExpandContext<'a> {
    /// Pods that run. One that an error refuses now goes on as it is.
    pub running: &'a [PodPlan],
    /// True if a node proxy serves the pods that are ambient.
    pub by_node: bool,
}

/// One pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodPlan {
    /// Its name.
    pub name: ResourceName,
    /// The Deployment, or other controller, it is a replica of; `None` for a bare Pod.
    pub controller: Option<Controller>,
    /// Source of the Deployment or Pod.
    pub source: Source,
    /// Its address.
    pub address: Ipv4Addr,
    /// Template of its containers.
    pub template: PodTemplate,
    /// The services it sees, each on an address of its own; none of a gateway's.
    pub services: Vec<ServiceView>,
    /// Services that the pod reaches, by hostname and protocol; of a gateway, the services that it calls.
    pub reach: Vec<Arc<MeshService>>,
    /// Names of the services it stands behind.
    pub behind: Vec<Arc<str>>,
    /// Its sidecar's other listeners; `None` when it has no sidecar.
    pub sidecar: Option<SidecarPlan>,
    /// Addresses at which its applications should listen, for readiness.
    pub endpoints: Vec<(Ipv4Addr, u16)>,
}

/// Controller of which a pod is a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// Its key among all of a mesh.
    pub key: ResourceName,
    /// Kind of the controller.
    pub kind: ControllerKind,
    /// Its name.
    pub name: Arc<str>,
}

/// Part of the user's Sidecar that a generated Sidecar keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct SidecarPlan {
    /// The user's Sidecar, if one holds for the pod.
    pub from: Option<ResourceName>,
    /// Its inbound listeners.
    pub ingress: Vec<IngressListener>,
    /// Its outbound listeners that name their own address.
    pub egress: Vec<EgressListener>,
    /// The other listeners, which limit the visible services.
    pub bounds: Vec<EgressListener>,
    /// In namespaces: whether the user's names no outbound listener, so that everything is seen.
    pub unbounded: bool,
    /// Its outbound policy.
    pub registry_only: Option<bool>,
}

/// A service port that is reachable from outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedPort {
    /// `namespace/name` of the service.
    pub service: ResourceName,
    /// Its port.
    pub port: u16,
    /// The host port wished for.
    pub wish: u16,
    /// TCP or UDP.
    pub transport: Transport,
    /// True if the port speaks HTTP, so that a URL can be printed.
    pub http: bool,
    /// Pod and its port, for each pod behind it.
    pub targets: Vec<(ResourceName, Ipv4Addr, u16)>,
}

impl PodPlan {
    /// Returns true if a running `self` can go on as `other`: the sidecar learns the difference, or it is only
    /// displayed.
    pub fn runs_as(&self, other: &Self) -> bool {
        self.name == other.name
            && self.address == other.address
            && essence(&self.template) == essence(&other.template)
    }

    /// Returns the address for a probe of this port. It is the application's own address where a Sidecar resource
    /// names it, unless probes are to come as callers do.
    pub fn probed(&self, port: u16) -> (Ipv4Addr, u16) {
        if !self.template.rewrites_probes {
            return (self.address, port);
        }
        let ingress = || self.sidecar.iter().flat_map(|sidecar| &sidecar.ingress);
        let called = ingress().find(|listener| listener.port.number.get() == port);
        let own = || ingress().find(|listener| endpoint(listener, self.address).1 == port);
        called
            .or_else(own)
            .map_or((self.address, port), |l| endpoint(l, self.address))
    }

    /// Returns true if a node proxy serves the pod, where there is one.
    pub fn is_ambient(&self) -> bool {
        self.template.ambient && self.sidecar.is_none()
    }

    /// Returns true if the kernel redirects its connections to its proxy, where namespaces allow that. A gateway is
    /// called by its address instead.
    pub fn is_captured(&self) -> bool {
        self.sidecar.is_some() && !self.template.is_gateway()
    }

    /// Returns the name by which the view groups pods: the Deployment or other controller, or the pod itself.
    pub fn workload(&self) -> &str {
        workload(&self.name, self.controller.as_ref())
    }
}

/// Expands `mesh`. Pods and pairs that were there keep their address in `addresses`.
pub fn expand(
    mesh: &Mesh,
    roster: &PodRoster,
    context: ExpandContext<'_>,
    addresses: &mut Addresses,
) -> Result<RunPlan, AddressError> {
    let mut plan = RunPlan {
        by_node: context.by_node,
        ..RunPlan::default()
    };
    let running = context.running.iter().map(|pod| (&pod.name, pod));
    let running: BTreeMap<&ResourceName, &PodPlan> = running.collect();
    let mut binds = BTreeMap::new();
    addresses.begin();
    let mut candidates = candidates(mesh, roster, &mut plan);
    // A running pod keeps an address that another pod wants, too.
    candidates.sort_by_key(|candidate| !running.contains_key(&candidate.name));
    for candidate in candidates {
        let mut problems = Vec::new();
        let mut pod = match addresses.layout() {
            _ if candidate.template.is_gateway() => gateway(mesh, candidate, addresses)?,
            PodIsolation::Loopback(_) => pod(mesh, candidate, addresses, &mut problems)?,
            PodIsolation::Namespaces => captured::pod(mesh, candidate, addresses, &mut problems)?,
        };
        check(
            &pod,
            (addresses.layout(), context.by_node),
            &binds,
            &mut problems,
        );
        let is_refused = problems.iter().any(Diagnostic::is_error);
        for problem in problems {
            if !plan.problems.contains(&problem) {
                plan.problems.push(problem);
            }
        }
        if is_refused {
            let Some(running) = running.get(&pod.name) else {
                let PodPlan {
                    name, controller, ..
                } = pod;
                plan.refused.push(RefusedPod { name, controller });
                continue;
            };
            pod = (*running).clone();
            for service in &pod.reach {
                addresses.listener(&pod.name.to_string(), &service.key.to_string())?;
            }
        }
        binds.extend(own_binds(&pod).map(|(bind, _)| (bind, pod.name.clone())));
        plan.pods.push(pod);
    }
    if addresses.layout() == PodIsolation::Namespaces {
        plan.given = captured::given(mesh, addresses)?;
    }
    addresses.finish();
    plan.pods.sort_by(|a, b| a.name.cmp(&b.name));
    plan.published = publications(mesh, &plan.pods);
    Ok(plan)
}

struct Candidate<'a> {
    name: ResourceName,
    controller: Option<Controller>,
    source: &'a Source,
    template: &'a PodTemplate,
}

fn candidates<'a>(mesh: &'a Mesh, roster: &'a PodRoster, plan: &mut RunPlan) -> Vec<Candidate<'a>> {
    let mut found: Vec<Candidate<'a>> = Vec::new();
    for (key, deployment) in &mesh.deployments {
        for replica in roster.replicas(key) {
            found.push(Candidate {
                name: pod_name(&deployment.name, replica.number),
                controller: Some(Controller {
                    key: key.clone(),
                    kind: deployment.kind,
                    name: deployment.name.name.clone(),
                }),
                source: &deployment.source,
                template: &replica.template,
            });
        }
    }
    // A Pod that has an address already runs elsewhere. Ours gets a name beside the declared one's, which stays declared.
    for pod in mesh.pods.values().filter(|pod| pod.addresses.is_empty()) {
        let name = format!("{}-0", pod.name.name);
        found.push(Candidate {
            name: ResourceName::new(pod.name.namespace.clone(), name),
            controller: None,
            source: &pod.source,
            template: &pod.template,
        });
    }
    let mut seen: BTreeSet<ResourceName> = mesh.pods.keys().cloned().collect();
    found.retain(|candidate| {
        let wrong = if !is_dns_label(&candidate.name.name) {
            "is not a DNS label of at most 63 characters"
        } else if !seen.insert(candidate.name.clone()) {
            "is already the name of another"
        } else {
            return true;
        };
        let message = format!("the pod's name `{}` {wrong}", candidate.name);
        let problem = Diagnostic::error(POD_NAME, candidate.source.clone(), message);
        plan.problems.push(
            problem
                .field("metadata.name")
                .help("choose another, or shorter, name"),
        );
        plan.refused.push(RefusedPod {
            name: candidate.name.clone(),
            controller: candidate.controller.clone(),
        });
        false
    });
    found
}

/// Returns the template with the mesh's defaults for settings that it lacks.
fn settled(mesh: &Mesh, template: &PodTemplate) -> PodTemplate {
    let mut template = template.clone();
    let keeps_source = &mut template.capture.keeps_source;
    keeps_source.get_or_insert(mesh.config.proxy.keeps_source);
    template
}

fn pod(
    mesh: &Mesh,
    candidate: Candidate<'_>,
    addresses: &mut Addresses,
    problems: &mut Vec<Diagnostic>,
) -> Result<PodPlan, AddressError> {
    let Candidate {
        name,
        controller,
        source,
        template,
    } = candidate;
    let address = addresses.pod(&name.to_string())?;
    let user = mesh.sidecar_for_labels(&name.namespace, &template.labels);
    let user = user.filter(|_| template.has_sidecar);
    let mut reach = visible(mesh, &name, user);
    reach.retain(|service| reachable(service, problems));
    let mut services = Vec::new();
    for service in &reach {
        let listener = addresses.listener(&name.to_string(), &service.key.to_string())?;
        services.push(view(service, listener));
    }
    let served = served_ports(mesh, &name, template);
    let sidecar = template.has_sidecar.then(|| sidecar_plan(user));
    let mut endpoints: Vec<_> = match &sidecar {
        Some(sidecar) => sidecar
            .ingress
            .iter()
            .map(|l| endpoint(l, address))
            .collect(),
        None => served.keys().map(|port| (address, port.get())).collect(),
    };
    endpoints.sort_unstable();
    endpoints.dedup();
    if let Some(sidecar) = &sidecar {
        for (port, service) in &served {
            if !sidecar
                .ingress
                .iter()
                .any(|listener| listener.port.number == *port)
            {
                problems.push(no_ingress(source, template, *port, service));
            }
        }
    }
    let behind: BTreeSet<_> = served.into_values().collect();
    Ok(PodPlan {
        name,
        controller,
        source: source.clone(),
        address,
        template: settled(mesh, template),
        services,
        reach,
        behind: behind.into_iter().collect(),
        sidecar,
        endpoints,
    })
}

/// Returns the plan of a gateway: a pod that is nothing but a proxy. It listens on the ports of Gateways, and calls
/// the destinations of their VirtualServices.
fn gateway(
    mesh: &Mesh,
    candidate: Candidate<'_>,
    addresses: &mut Addresses,
) -> Result<PodPlan, AddressError> {
    let Candidate {
        name,
        controller,
        source,
        template,
    } = candidate;
    let behind: BTreeSet<_> = served_ports(mesh, &name, template).into_values().collect();
    Ok(PodPlan {
        address: addresses.pod(&name.to_string())?,
        controller,
        source: source.clone(),
        template: settled(mesh, template),
        services: Vec::new(),
        reach: mesh.led_to_from_outside(&name.namespace, &template.labels),
        behind: behind.into_iter().collect(),
        sidecar: Some(sidecar_plan(None)),
        endpoints: Vec::new(),
        name,
    })
}

/// Workload ports that services of the namespace send to, each with the name of one such service.
fn served_ports(
    mesh: &Mesh,
    name: &ResourceName,
    template: &PodTemplate,
) -> BTreeMap<Port, Arc<str>> {
    let mut served = BTreeMap::new();
    for service in mesh.services.values() {
        if !stands_behind(service, name, &template.labels) {
            continue;
        }
        for port in service
            .ports
            .iter()
            .filter(|port| port.transport == Transport::Tcp)
        {
            if let Some(target) = target(&port.target, template) {
                served.insert(target, service.name.clone());
            }
        }
    }
    served
}

/// Returns true if a service selects a pod of that name with these labels.
pub fn stands_behind(service: &MeshService, pod: &ResourceName, labels: &Labels) -> bool {
    let selects = |selector: &Labels| !selector.is_empty() && selector.selects(labels);
    service.key.namespace == pod.namespace && service.selector.as_ref().is_some_and(selects)
}

fn target(target: &TargetPort, template: &PodTemplate) -> Option<Port> {
    match target {
        TargetPort::Number(port) => Some(*port),
        TargetPort::Named(name) => {
            let mut ports = template
                .containers
                .iter()
                .flat_map(|container| &container.ports);
            ports
                .find(|port| port.name.as_ref() == Some(name))
                .map(|port| port.number)
        }
    }
}

/// The services the pod may see, in order of their keys.
fn visible(mesh: &Mesh, pod: &ResourceName, user: Option<&Arc<Sidecar>>) -> Vec<Arc<MeshService>> {
    let bounds: Vec<&EgressListener> = user
        .map(|user| user.egress.iter().filter(|l| !keeps_address(l)).collect())
        .unwrap_or_default();
    let everything = EgressListener {
        port: None,
        bind: None,
        capture_mode: CaptureMode::None,
        hosts: Hostname::new("*")
            .map(|hostname| EgressHost {
                namespace: EgressNamespace::Any,
                hostname,
                source: Source {
                    file: "".into(),
                    line: 0,
                    column: 0,
                },
            })
            .into_iter()
            .collect(),
        source: Source {
            file: "".into(),
            line: 0,
            column: 0,
        },
    };
    let unbounded = user.is_none_or(|user| user.egress.is_empty());
    let listeners = if unbounded { vec![&everything] } else { bounds };
    let mut found = BTreeMap::new();
    for listener in listeners {
        for service in mesh.egress_services(&pod.namespace, listener) {
            found.insert(service.key.clone(), service);
        }
    }
    found.into_values().collect()
}

fn reachable(service: &MeshService, problems: &mut Vec<Diagnostic>) -> bool {
    let why = match (&service.resolution, service.origin) {
        _ if service.key.hostname.is_wildcard() => "its host is a wildcard",
        (Resolution::Static, _) | (Resolution::Passthrough, ServiceOrigin::Kubernetes) => {
            return service
                .ports
                .iter()
                .any(|port| port.transport == Transport::Tcp);
        }
        (Resolution::Alias(_), _) => "it has type ExternalName",
        (_, _) => "its addresses are not known in advance",
    };
    let message = format!(
        "{} gets no listener in loopback isolation: {why}",
        service.key
    );
    problems.push(Diagnostic::warning(
        UNREACHABLE,
        service.source.clone(),
        message,
    ));
    false
}

fn view(service: &MeshService, address: Ipv4Addr) -> ServiceView {
    let name = match service.origin {
        ServiceOrigin::Kubernetes => service.name.to_string(),
        ServiceOrigin::ServiceEntry => service.key.hostname.to_string(),
    };
    let ports = service
        .ports
        .iter()
        .filter(|port| port.transport == Transport::Tcp);
    ServiceView {
        name,
        namespace: service.key.namespace.to_string(),
        address,
        ports: ports
            .map(|port| PortView {
                name: port.name.to_string(),
                number: port.number.get(),
            })
            .collect(),
    }
}

/// Returns true for an egress listener with its own address and port, which are the user's choice. Any other listener
/// only limits the visible services.
fn keeps_address(listener: &EgressListener) -> bool {
    listener.port.is_some() && listener.bind.is_some()
}

fn sidecar_plan(user: Option<&Arc<Sidecar>>) -> SidecarPlan {
    let Some(user) = user else {
        return SidecarPlan {
            from: None,
            ingress: Vec::new(),
            egress: Vec::new(),
            bounds: Vec::new(),
            unbounded: false,
            registry_only: None,
        };
    };
    let (egress, bounds) = user.egress.iter().cloned().partition(keeps_address);
    SidecarPlan {
        from: Some(user.name.clone()),
        ingress: user.ingress.clone(),
        egress,
        bounds,
        unbounded: false,
        registry_only: user
            .outbound_policy
            .map(|policy| policy == voile_model::mesh::OutboundPolicy::RegistryOnly),
    }
}

fn endpoint(listener: &IngressListener, pod: Ipv4Addr) -> (Ipv4Addr, u16) {
    match listener.default_endpoint {
        Some(endpoint) => match endpoint.host {
            EndpointHost::Workload => (pod, endpoint.port.get()),
            EndpointHost::Loopback(_) => (Ipv4Addr::LOCALHOST, endpoint.port.get()),
        },
        None => (Ipv4Addr::LOCALHOST, listener.port.number.get()),
    }
}

/// The pods behind a service's port: name, address and port of each.
pub fn endpoints_of<'a>(
    service: &'a MeshService,
    port: &'a ServicePort,
    pods: &'a [PodPlan],
) -> impl Iterator<Item = (ResourceName, Ipv4Addr, u16)> + 'a {
    pods.iter()
        .filter(|pod| stands_behind(service, &pod.name, &pod.template.labels))
        .filter_map(|pod| {
            let port = target(&port.target, &pod.template)?;
            Some((pod.name.clone(), pod.address, port.get()))
        })
}

fn publications(mesh: &Mesh, pods: &[PodPlan]) -> Vec<PublishedPort> {
    let mut published = Vec::new();
    for service in mesh.services.values() {
        for port in &service.ports {
            if !service.published {
                continue;
            }
            let wish = port.node_port.unwrap_or(port.number).get();
            let targets = endpoints_of(service, port, pods).collect();
            published.push(PublishedPort {
                service: ResourceName::new(service.key.namespace.clone(), service.name.clone()),
                port: port.number.get(),
                wish,
                transport: port.transport,
                http: matches!(
                    port.protocol,
                    voile_model::mesh::Protocol::Http | voile_model::mesh::Protocol::Auto
                ),
                targets,
            });
        }
    }
    published
}
