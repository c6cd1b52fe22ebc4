//! Relations: workloads of a service, services of a workload, the Sidecar of a workload and the services it reaches.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mesh::{EgressListener, Mesh, MeshService, Sidecar, TargetPort, Workload, WorkloadKind};
use crate::names::{Hostname, Labels, Namespace, Port, ServiceKey, WorkloadKey};

/// A workload of a service, and which of its ports serves which service port. A service port that is not there is not
/// served by this workload (its named target port does not exist).
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceWorkload {
    /// The workload.
    pub workload: Arc<Workload>,
    /// Workload port by service port.
    pub ports: BTreeMap<Port, Port>,
}

/// A service of a workload, and which of its ports this workload serves on which of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadService {
    /// The service.
    pub service: Arc<MeshService>,
    /// Workload port by service port.
    pub ports: BTreeMap<Port, Port>,
}

/// The label that tells one pod among its like, so that a Sidecar can be meant for it alone; `voile up` sets it.
pub const POD_LABEL: &str = "voile.dev/pod";

/// A service that an egress listener reaches.
pub type ReachableService = Arc<MeshService>;

impl Mesh {
    /// The workloads behind a service, in order of their names.
    pub fn workloads_of(&self, service: &MeshService) -> Vec<ServiceWorkload> {
        self.workloads_in(&service.key.namespace)
            .filter_map(|workload| {
                Some(ServiceWorkload {
                    ports: self.ports_behind(service, workload)?,
                    workload: workload.clone(),
                })
            })
            .collect()
    }

    /// The services a workload stands behind, in order of their names.
    pub fn services_of(&self, workload: &Workload) -> Vec<WorkloadService> {
        self.services_in(&workload.key.namespace)
            .filter_map(|service| {
                Some(WorkloadService {
                    ports: self.ports_behind(service, workload)?,
                    service: service.clone(),
                })
            })
            .collect()
    }

    /// Which ports of a service a workload of its namespace serves, on which of its own; `None` if it does not stand behind it.
    fn ports_behind(
        &self,
        service: &MeshService,
        workload: &Workload,
    ) -> Option<BTreeMap<Port, Port>> {
        match selects(service, workload) {
            true => Some(target_ports(service, workload)),
            false => self.ports_by_slices(service, workload),
        }
    }

    /// The services of one namespace. Selectors never cross namespaces, so this is all that need be looked at.
    pub fn services_in(&self, namespace: &Namespace) -> impl Iterator<Item = &Arc<MeshService>> {
        let own = namespace.clone();
        self.services
            .range(ServiceKey::new(namespace.clone(), Hostname::before_all())..)
            .take_while(move |(key, _)| key.namespace == own)
            .map(|(_, service)| service)
    }

    /// The workloads of one namespace.
    pub fn workloads_in(&self, namespace: &Namespace) -> impl Iterator<Item = &Arc<Workload>> {
        let own = namespace.clone();
        self.workloads
            .range(WorkloadKey::new(namespace.clone(), "")..)
            .take_while(move |(key, _)| key.namespace == own)
            .map(|(_, workload)| workload)
    }

    /// The Sidecar that holds for a workload: one that selects it, else its namespace's, else the root namespace's.
    pub fn sidecar_for(&self, workload: &Workload) -> Option<&Arc<Sidecar>> {
        self.sidecar_for_labels(&workload.key.namespace, &workload.labels)
    }

    /// As `sidecar_for`, for a workload that is not yet running.
    pub fn sidecar_for_labels(
        &self,
        namespace: &Namespace,
        labels: &Labels,
    ) -> Option<&Arc<Sidecar>> {
        let in_namespace = |namespace: &Namespace| {
            self.sidecars
                .values()
                .filter(move |s| s.name.namespace == *namespace)
                .collect::<Vec<_>>()
        };
        let own = in_namespace(namespace);
        let selecting = |s: &&&Arc<Sidecar>| {
            s.selector
                .as_ref()
                .is_some_and(|selector| selector.selects(labels))
        };
        let for_one_pod = |s: &&&Arc<Sidecar>| {
            s.selector
                .as_ref()
                .is_some_and(|selector| selector.get(POD_LABEL).is_some())
        };
        // A Sidecar meant for this one pod carries on the more general one that it was made from.
        own.iter()
            .filter(selecting)
            .find(for_one_pod)
            .or_else(|| own.iter().find(selecting))
            .or_else(|| own.iter().find(|s| s.selector.is_none()))
            .copied()
            .or_else(|| {
                in_namespace(&self.config.root_namespace)
                    .into_iter()
                    .find(|s| s.selector.is_none())
            })
    }

    /// The services that a proxy in `namespace` reaches through an egress listener: hosts match, `exportTo` allows, and the
    /// service has the listener's port if it names one. A hostname found in the proxy's own namespace hides its like elsewhere.
    pub fn egress_services(
        &self,
        namespace: &Namespace,
        listener: &EgressListener,
    ) -> Vec<ReachableService> {
        let mut found: Vec<&Arc<MeshService>> = self
            .services
            .values()
            .filter(|s| s.visibility.includes(namespace))
            .filter(|s| {
                listener
                    .hosts
                    .iter()
                    .any(|host| host.matches(namespace, &s.key))
            })
            .filter(|s| {
                listener
                    .port
                    .as_ref()
                    .is_none_or(|port| s.port(port.number).is_some())
            })
            .collect();
        let own: Vec<_> = found
            .iter()
            .filter(|s| s.key.namespace == *namespace)
            .map(|s| s.key.hostname.clone())
            .collect();
        found.retain(|s| s.key.namespace == *namespace || !own.contains(&s.key.hostname));
        found.into_iter().cloned().collect()
    }
}

fn selects(service: &MeshService, workload: &Workload) -> bool {
    if service.key.namespace != workload.key.namespace {
        return false;
    }
    match &workload.kind {
        WorkloadKind::ServiceEntryEndpoint(entry) => {
            service.origin == crate::mesh::ServiceOrigin::ServiceEntry && entry.name == service.name
        }
        WorkloadKind::SliceEndpoint(_) => false,
        WorkloadKind::Pod | WorkloadKind::WorkloadEntry => service
            .selector
            .as_ref()
            .is_some_and(|selector| !selector.is_empty() && selector.selects(&workload.labels)),
    }
}

fn target_ports(service: &MeshService, workload: &Workload) -> BTreeMap<Port, Port> {
    let target = |port: &crate::mesh::ServicePort| match (&workload.kind, &port.target) {
        (WorkloadKind::Pod, TargetPort::Named(name)) => workload.named_ports.get(name).copied(),
        (WorkloadKind::Pod, TargetPort::Number(number)) => Some(*number),
        // Entries name their ports after the service's port; a port without a name keeps the service's target.
        (_, TargetPort::Number(number)) => Some(
            workload
                .named_ports
                .get(&port.name)
                .copied()
                .unwrap_or(*number),
        ),
        (_, TargetPort::Named(name)) => workload
            .named_ports
            .get(&port.name)
            .or_else(|| workload.named_ports.get(name))
            .copied(),
    };
    service
        .ports
        .iter()
        .filter_map(|port| Some((port.number, target(port)?)))
        .collect()
}
