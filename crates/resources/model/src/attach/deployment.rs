//! The Pods of a Gateway: Pods that users wrote for it, by its name in a label, or else a generated Deployment. A
//! generated Deployment has a Service in front, as with Gateway API's controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::listeners::{ListenerFamily, OpenGateway};
use crate::attach::inputs::AttachmentInputs;
use crate::mesh::gateway_api::{GATEWAY_CLASS, GATEWAY_NAME, Gateway, label_value, shortened};
use crate::mesh::{
    CaptureScope, Container, ControllerKind, Deployment, Location, MeshService, PodTemplate,
    Probes, Protocol, Resolution, Restart, SecurityContext, ServiceAccount, ServiceOrigin,
    ServicePort, Strategy, TEMPLATES, TargetPort, Topology, Transport, Visibility,
};
use crate::names::{CLUSTER_DOMAIN, Hostname, Labels, Port, ResourceName, ServiceKey};
use crate::source::Source;

/// Below this a process needs a privilege to listen; a gateway that is started here listens so much higher (80 at 8080, 443 at 8443).
const PRIVILEGED: u16 = 1024;
const HIGHER: u16 = 8000;
/// Longest name of a Deployment, so that its Pods' names are labels of DNS.
const MAX_NAME: usize = 52;
/// Grace period of a gateway: Kubernetes' default.
const GRACE: Duration = Duration::from_secs(30);

/// Resources generated for Gateways.
#[derive(Default)]
pub(super) struct GatewayResources {
    pub(super) deployments: Vec<Arc<Deployment>>,
    pub(super) services: Vec<Arc<MeshService>>,
    pub(super) accounts: Vec<Arc<ServiceAccount>>,
}

/// The Service of a Gateway whose Pods users deploy: as in Istio, the only address is a Hostname, the name of a Service. The inner
/// `None` is a name that leads to none of the Gateway's namespace.
pub(super) fn deployed_by_users<'m>(
    world: &AttachmentInputs<'m>,
    gateway: &Gateway,
) -> Option<Option<&'m Arc<MeshService>>> {
    let [(kind, name, _)] = &gateway.places[..] else {
        return None;
    };
    let namespace = &gateway.name.namespace;
    let mut own = world.services.values().filter(|one| {
        one.key.namespace == *namespace && one.selector.as_ref().is_some_and(|all| !all.is_empty())
    });
    let is_meant = |one: &MeshService| {
        one.name == *name
            || one.key.hostname.as_str() == &**name
            || one.key.hostname.as_str() == format!("{name}.{CLUSTER_DOMAIN}")
    };
    (&**kind == "Hostname").then(|| own.find(|one| is_meant(one)).copied())
}

/// The labels of the Pods that run a Gateway.
pub(super) fn selector(world: &AttachmentInputs<'_>, gateway: &Gateway) -> Labels {
    let service = deployed_by_users(world, gateway).flatten();
    let selector = service.and_then(|one| one.selector.clone());
    selector.unwrap_or_else(|| own_selector(gateway))
}

/// The labels of a Gateway's generated Pods.
pub(super) fn own_selector(gateway: &Gateway) -> Labels {
    [(GATEWAY_NAME, &*label_value(&gateway.name.name))]
        .into_iter()
        .collect()
}

/// Templates that users wrote for a Gateway.
pub(super) fn written<'m>(
    world: &AttachmentInputs<'m>,
    gateway: &Gateway,
) -> impl Iterator<Item = &'m PodTemplate> {
    let own = gateway.name.namespace.clone();
    let name = label_value(&gateway.name.name).into_owned();
    let deployments = world.mesh.deployments.values();
    let deployments = deployments.map(|one| (&one.name, &one.template));
    // Pods with an owner are made by it, perhaps by a generated Deployment.
    let pods = world.mesh.pods.values().filter(|pod| pod.owner.is_none());
    let pods = pods.map(|one| (&one.name, &one.template));
    deployments.chain(pods).filter_map(move |(of, template)| {
        let named = template.labels.get(GATEWAY_NAME) == Some(&*name);
        (of.namespace == own && named).then_some(template)
    })
}

/// The ports of a Gateway's Pods, by the Gateway's ports.
pub(super) fn listening(
    world: &AttachmentInputs<'_>,
    open: &OpenGateway<'_>,
) -> BTreeMap<Port, Port> {
    let open_ports = open.listeners.iter().filter(|heard| heard.is_open());
    let ports: BTreeSet<Port> = open_ports.map(|heard| heard.listener.port).collect();
    let template = template(world, open.gateway);
    let mut taken = ports.clone();
    let mut found = BTreeMap::new();
    for port in ports {
        let at = match template {
            Some((labels, is_written)) => {
                behind(world, open.gateway, labels, port).unwrap_or_else(|| match is_written {
                    true => port,
                    false => unprivileged(port, &taken),
                })
            }
            None => unprivileged(port, &taken),
        };
        if at != port {
            taken.insert(at);
            found.insert(port, at);
        }
    }
    found
}

/// The labels of a Gateway's Pods that are there, and true if users wrote them. Pods of a cluster have an owner; its Service may
/// be the deployer's, or the user's own.
fn template<'m>(world: &AttachmentInputs<'m>, gateway: &Gateway) -> Option<(&'m Labels, bool)> {
    if let Some(Some(service)) = deployed_by_users(world, gateway) {
        return Some((service.selector.as_ref()?, true));
    }
    if let Some(written) = written(world, gateway).next() {
        return Some((&written.labels, true));
    }
    let name = label_value(&gateway.name.name);
    let mut pods = world.mesh.pods.values();
    let pod = pods.find(|pod| {
        pod.name.namespace == gateway.name.namespace
            && pod.template.labels.get(GATEWAY_NAME) == Some(&*name)
    })?;
    Some((&pod.template.labels, false))
}

/// The port of a Pod that a Service's port targets.
fn behind(
    world: &AttachmentInputs<'_>,
    gateway: &Gateway,
    labels: &Labels,
    port: Port,
) -> Option<Port> {
    let services = world.services.values();
    let own = services.filter(|one| {
        let selector = one.selector.as_ref();
        let selects = selector.is_some_and(|selector| selector.selects(labels));
        one.key.namespace == gateway.name.namespace && selects
    });
    let mut targets = own.filter_map(|one| match &one.port(port)?.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Named(_) => None,
    });
    targets.next()
}

/// A port for which no privilege is needed, and that no listener has.
pub(super) fn unprivileged(port: Port, taken: &BTreeSet<Port>) -> Port {
    if port.get() >= PRIVILEGED {
        return port;
    }
    let from = port.get() + HIGHER;
    let mut all = (from..=u16::MAX).filter_map(Port::new);
    all.find(|other| !taken.contains(other)).unwrap_or(port)
}

/// The name of a Gateway's generated resources: its name and class.
pub(super) fn name(gateway: &Gateway) -> ResourceName {
    if gateway.is_waypoint() || gateway.is_east_west() {
        // As Istio's are, which others name by it.
        return gateway.name.clone();
    }
    let whole = format!("{}-{}", gateway.name.name, gateway.class.0);
    let mut whole = whole.replace('.', "-");
    if !whole.starts_with(|c: char| c.is_ascii_lowercase()) {
        // The name of a Service begins with a letter.
        whole.insert_str(0, "gateway-");
    }
    ResourceName::new(
        gateway.name.namespace.clone(),
        &*shortened(&whole, MAX_NAME),
    )
}

/// The host of the Service that is made for a Gateway.
pub(super) fn host(gateway: &Gateway) -> Option<Hostname> {
    let name = name(gateway);
    let host = format!("{}.{}.svc.{CLUSTER_DOMAIN}", name.name, name.namespace);
    Hostname::new(&host)
}

pub(super) fn deployments(
    world: &AttachmentInputs<'_>,
    opened: &[OpenGateway<'_>],
) -> GatewayResources {
    let mut further = GatewayResources::default();
    for open in opened {
        let gateway = open.gateway;
        let is_written = gateway.addresses.is_some() || written(world, gateway).next().is_some();
        if open.refused.is_some() || is_written {
            continue;
        }
        further.accounts.push(Arc::new(ServiceAccount {
            name: name(gateway),
            source: gateway.source.clone(),
        }));
        further
            .deployments
            .push(deployment(gateway, "gateway").into());
        further.services.extend(service(world, open).map(Arc::new));
    }
    further
}

fn labels(gateway: &Gateway) -> Labels {
    let own = gateway.labels.iter();
    let own = own.map(|(key, value)| (key.clone(), value.clone()));
    let ours: [(Arc<str>, Arc<str>); 2] = [
        (
            GATEWAY_NAME.into(),
            (*label_value(&gateway.name.name)).into(),
        ),
        (GATEWAY_CLASS.into(), gateway.class.0.clone()),
    ];
    own.chain(ours).collect()
}

/// A Gateway's proxy by a template of the injector's, and nothing else.
pub(super) fn deployment(gateway: &Gateway, template: &str) -> Deployment {
    let labels = (own_selector(gateway), labels(gateway));
    let annotations = gateway.annotations.clone();
    proxy(
        name(gateway),
        &gateway.source,
        labels,
        annotations,
        template,
    )
}

/// A proxy by a template of the injector's, with the labels that select it and those that it has.
pub(super) fn proxy(
    name: ResourceName,
    source: &Source,
    (selector, labels): (Labels, Labels),
    annotations: Labels,
    template: &str,
) -> Deployment {
    let own = annotations.iter();
    let own = own.map(|(key, value)| (key.clone(), value.clone()));
    let annotations = own.chain([(TEMPLATES.into(), template.into())]);
    let proxy = Container {
        name: "istio-proxy".into(),
        image: Some("auto".into()),
        command: Vec::new(),
        args: Vec::new(),
        env_from: Vec::new(),
        env: Vec::new(),
        working_dir: None,
        ports: Vec::new(),
        probes: Probes::default(),
        security: SecurityContext::default(),
        source: source.clone(),
    };
    Deployment {
        source: source.clone(),
        kind: ControllerKind::Deployment,
        replicas: 1,
        selector,
        template: PodTemplate {
            labels,
            annotations: annotations.collect(),
            service_account: name.name.clone(),
            service_account_source: None,
            has_sidecar: true,
            injected: None,
            host_network: false,
            ambient: false,
            asks_for_ambient: false,
            node: "".into(),
            containers: vec![proxy],
            termination_grace: GRACE,
            restart: Restart::Always,
            capture: CaptureScope::default(),
            topology: Topology::default(),
            rewrites_probes: true,
        },
        strategy: Strategy::DEFAULT,
        name,
    }
}

/// None while no listener is good.
fn service(world: &AttachmentInputs<'_>, open: &OpenGateway<'_>) -> Option<MeshService> {
    let gateway = open.gateway;
    let name = name(gateway);
    let at = listening(world, open);
    let mut ports: BTreeMap<Port, ServicePort> = BTreeMap::new();
    for heard in open.listeners.iter().filter(|heard| heard.is_open()) {
        let number = heard.listener.port;
        let protocol = match heard.family() {
            ListenerFamily::Tls => Protocol::Tls,
            ListenerFamily::Tcp => Protocol::Tcp,
            ListenerFamily::Http => Protocol::Http,
        };
        ports.entry(number).or_insert(ServicePort {
            name: format!("port-{number}").into(),
            number,
            protocol,
            transport: Transport::Tcp,
            target: TargetPort::Number(at.get(&number).copied().unwrap_or(number)),
            node_port: None,
            source: heard.listener.source.clone(),
        });
    }
    if ports.is_empty() {
        return None;
    }
    Some(MeshService {
        key: ServiceKey::new(name.namespace.clone(), host(gateway)?),
        name: name.name,
        source: gateway.source.clone(),
        origin: ServiceOrigin::Kubernetes,
        addresses: Vec::new(),
        address_ranges: Vec::new(),
        ports: ports.into_values().collect(),
        selector: Some(own_selector(gateway)),
        location: Location::MeshExternal,
        resolution: Resolution::Static,
        headless: false,
        endpoints: Vec::new(),
        subject_alt_names: Vec::new(),
        visibility: Visibility::Public,
        waypoint: None,
        published: true,
        global: false,
        distribution: None,
    })
}
