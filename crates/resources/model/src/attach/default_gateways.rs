//! The gateways of Istio's installation (`istio: ingressgateway`, `istio: egressgateway`): a folder that has Gateways for them and no
//! Pods that are them gets a Deployment, a Service and an account for each, named as Istio's are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::deployment::{GatewayResources, proxy, unprivileged};
use crate::mesh::routing_intent::{DeclaredServer, Gateway};
use crate::mesh::{
    Location, Mesh, MeshService, Pod, Protocol, Resolution, ServiceAccount, ServiceOrigin,
    ServicePort, TargetPort, Transport, Visibility,
};
use crate::names::{CLUSTER_DOMAIN, Hostname, Labels, Port, ResourceName, ServiceKey};

/// Annotation on Pods that `voile up` starts. These Pods do not count as existing gateways.
pub(crate) const GENERATED: &str = "voile.dev/generated-from";

/// A gateway of Istio's installation.
struct Default {
    name: &'static str,
    /// The value of its label `istio`.
    istio: &'static str,
    account: &'static str,
    /// True if it is reachable from outside the mesh.
    published: bool,
}

const DEFAULTS: [Default; 2] = [
    Default {
        name: "istio-ingressgateway",
        istio: "ingressgateway",
        account: "istio-ingressgateway-service-account",
        published: true,
    },
    Default {
        name: "istio-egressgateway",
        istio: "egressgateway",
        account: "istio-egressgateway-service-account",
        published: false,
    },
];

impl Default {
    fn labels(&self) -> Labels {
        [("app", self.name), ("istio", self.istio)]
            .into_iter()
            .collect()
    }

    fn resource(&self, mesh: &Mesh) -> ResourceName {
        ResourceName::new(mesh.config.root_namespace.clone(), self.name)
    }

    /// The Gateways that select it and no written workload. In a cluster nothing starts it.
    fn wanted_by<'m>(&self, mesh: &'m Mesh) -> Vec<&'m Arc<Gateway>> {
        // The Pods of a folder are not live.
        if mesh.live_pods().next().is_some() {
            return Vec::new();
        }
        let labels = self.labels();
        let wanted = mesh.gateways.iter().filter(|gateway| {
            let selector = gateway.selector.as_ref();
            gateway.namespace.is_none()
                && selector.is_some_and(|one| {
                    !one.is_empty() && one.selects(&labels) && !selects_written(mesh, one)
                })
        });
        wanted.collect()
    }
}

/// Returns true if a user wrote a Pod, a controller of Pods or another workload with these labels.
fn selects_written(mesh: &Mesh, selector: &Labels) -> bool {
    let pods = mesh.pods.values();
    let mut pods = pods.filter(|pod| pod.template.annotations.get(GENERATED).is_none());
    let generated = |name: &ResourceName| {
        let pod = mesh.pods.get(name);
        pod.is_some_and(|pod| pod.template.annotations.get(GENERATED).is_some())
    };
    let mut workloads = mesh.workloads.values().filter(|one| {
        let name = ResourceName::new(one.key.namespace.clone(), one.key.name.clone());
        !generated(&name)
    });
    pods.any(|pod| selector.selects(&pod.template.labels))
        || workloads.any(|one| selector.selects(&one.labels))
        || mesh
            .deployments
            .values()
            .any(|one| selector.selects(&one.template.labels))
}

impl Mesh {
    fn live_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let pods = self.pods.values();
        pods.filter(|pod| pod.template.injected.is_some())
    }

    /// The Gateways for which a gateway of Istio's installation was made, with its name.
    pub fn default_gateways(&self) -> Vec<(ResourceName, Vec<&Arc<Gateway>>)> {
        let made = DEFAULTS.iter().filter_map(|one| {
            let name = one.resource(self);
            let deployment = self.deployments.get(&name)?;
            let labels = one.labels();
            let gateways = self.gateways.iter().filter(|gateway| {
                let selector = gateway.selector.as_ref();
                gateway.source == deployment.source
                    || selector.is_some_and(|one| !one.is_empty() && one.selects(&labels))
            });
            let gateways: Vec<_> = gateways.collect();
            // A generated Deployment has the location of the first Gateway that needs it.
            let is_made = gateways.iter().any(|one| one.source == deployment.source);
            is_made.then_some((name, gateways))
        });
        made.collect()
    }

    /// Returns true if some Gateway selects a gateway of Istio's installation. Generated resources then depend on the
    /// workloads with these labels. False in a cluster, of which a live Pod is left when so many resources are removed.
    pub(crate) fn may_have_default_gateways(&self, removed: usize) -> bool {
        if self.live_pods().take(removed + 1).count() > removed {
            return false;
        }
        self.gateways.iter().any(|gateway| {
            let selector = gateway.selector.as_ref();
            let selects = |one: &Default| {
                selector
                    .is_some_and(|selector| !selector.is_empty() && selector.selects(&one.labels()))
            };
            DEFAULTS.iter().any(selects)
        })
    }
}

/// The generated resources; they never replace written ones.
pub(super) fn further(mesh: &Mesh) -> GatewayResources {
    let mut further = GatewayResources::default();
    for default in &DEFAULTS {
        let gateways = default.wanted_by(mesh);
        let Some(first) = gateways.first() else {
            continue;
        };
        let name = default.resource(mesh);
        let account = ResourceName::new(name.namespace.clone(), default.account);
        further.accounts.push(Arc::new(ServiceAccount {
            name: account.clone(),
            source: first.source.clone(),
        }));
        let labels = default.labels();
        let deployment = proxy(
            name.clone(),
            &first.source,
            (labels.clone(), labels),
            Labels::default(),
            "gateway",
        );
        further.deployments.push(Arc::new(crate::mesh::Deployment {
            template: crate::mesh::PodTemplate {
                service_account: account.name,
                ..deployment.template
            },
            ..deployment
        }));
        let servers = gateways.iter().flat_map(|gateway| &gateway.servers);
        further
            .services
            .extend(service(default, &name, servers).map(Arc::new));
    }
    further
}

/// The Service before it: the ports of its Gateways' servers, each led to one for which no privilege is needed, as Istio's does.
fn service<'m>(
    default: &Default,
    name: &ResourceName,
    servers: impl Iterator<Item = &'m DeclaredServer> + Clone,
) -> Option<MeshService> {
    let taken: BTreeSet<Port> = servers.clone().map(|server| server.port).collect();
    let mut ports: BTreeMap<Port, ServicePort> = BTreeMap::new();
    for server in servers {
        let number = server.port;
        ports.entry(number).or_insert_with(|| ServicePort {
            name: format!("port-{number}").into(),
            number,
            protocol: match &*server.protocol {
                "HTTP" | "HTTP2" | "GRPC" => Protocol::Http,
                "HTTPS" | "TLS" => Protocol::Tls,
                _ => Protocol::Tcp,
            },
            transport: Transport::Tcp,
            target: TargetPort::Number(unprivileged(number, &taken)),
            node_port: None,
            source: server.source.clone(),
        });
    }
    let source = ports.values().next()?.source.clone();
    let host = format!("{}.{}.svc.{CLUSTER_DOMAIN}", name.name, name.namespace);
    Some(MeshService {
        key: ServiceKey::new(name.namespace.clone(), Hostname::new(&host)?),
        name: name.name.clone(),
        source,
        origin: ServiceOrigin::Kubernetes,
        addresses: Vec::new(),
        address_ranges: Vec::new(),
        ports: ports.into_values().collect(),
        selector: Some(default.labels()),
        location: Location::MeshInternal,
        resolution: Resolution::Static,
        headless: false,
        endpoints: Vec::new(),
        subject_alt_names: Vec::new(),
        visibility: Visibility::Public,
        waypoint: None,
        published: default.published,
        global: false,
        distribution: None,
    })
}
