//! Candidates of selectors: existing workloads, and those that Pods, Deployments and WorkloadGroups will create.

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_model::mesh::routing_intent::{Gateway, ServerTlsMode};
use voile_model::mesh::workload::sidecar_takes_tunnels;
use voile_model::mesh::{
    Mesh, MeshService, PodTemplate, TargetPort, Transport, Workload, WorkloadGroup, WorkloadKind,
};
use voile_model::{Labels, Namespace, Port, Source};

/// A workload, or what becomes one.
pub(crate) struct Subject<'a> {
    /// Kind and name for people: `Pod shop/web`.
    pub(crate) name: String,
    pub(crate) namespace: &'a Namespace,
    pub(crate) labels: &'a Labels,
    pub(crate) has_sidecar: bool,
    /// A node proxy stands before it, which knows connections only.
    pub(crate) ambient: bool,
    /// It is on another network, and called through a gateway of that.
    pub(crate) behind_gateway: bool,
    pub(crate) service_account: &'a Arc<str>,
    pub(crate) source: &'a Source,
    /// It has an address by which the whole network knows it, so it need not find a place on loopback addresses.
    pub(crate) placed: bool,
    /// Of Pods and Deployments.
    pub(crate) template: Option<&'a PodTemplate>,
    pub(crate) named_ports: BTreeMap<Arc<str>, Port>,
    /// The services that select it.
    pub(crate) services: Vec<&'a Arc<MeshService>>,
}

impl Subject<'_> {
    /// Returns true if it is only a proxy for traffic from outside the mesh.
    pub(crate) fn is_gateway(&self) -> bool {
        self.template.is_some_and(PodTemplate::is_gateway)
    }

    /// The ports at which the servers of Gateways make a gateway listen, each with true if it reads no requests there.
    pub(crate) fn servers(&self, mesh: &Mesh) -> impl Iterator<Item = (Port, bool)> {
        let is_it = |gateway: &&Arc<Gateway>| {
            let here = |own: &Namespace| own == self.namespace;
            let selects = |labels: &Labels| labels.selects(self.labels);
            gateway.namespace.as_ref().is_none_or(here)
                && gateway.selector.as_ref().is_none_or(selects)
        };
        // A Service in front says where its pods take a server's port, as in Istio.
        let behind = |number: Port| {
            let services = mesh.services.values().filter(|one| self.is_selected(one));
            let ports = services.flat_map(|service| &service.ports);
            let mut ports =
                ports.filter(|one| one.transport == Transport::Tcp && one.number == number);
            ports.find_map(|one| self.target(&one.target))
        };
        let gateways = mesh.gateways.iter().filter(is_it);
        let servers = gateways.flat_map(|gateway| &gateway.servers);
        servers.map(move |server| {
            let unread = [ServerTlsMode::Passthrough, ServerTlsMode::AutoPassthrough];
            let mode = server.tls.as_ref().map(|tls| tls.mode);
            let is_opaque = matches!(&*server.protocol, "TCP" | "TLS")
                || mode.is_some_and(|mode| unread.contains(&mode));
            let listens = server.listens.or_else(|| behind(server.port));
            (listens.unwrap_or(server.port), is_opaque)
        })
    }

    /// Returns true if a proxy of the mesh accepts its connections.
    pub(crate) fn has_proxy(&self) -> bool {
        self.has_sidecar || self.ambient
    }

    /// Returns true if it accepts HBONE tunnels. Callers from other networks reach it only by HBONE.
    pub(crate) fn takes_tunnels(&self) -> bool {
        let waypoint = self.template.is_some_and(PodTemplate::is_waypoint);
        let sidecar = self.has_sidecar && !self.is_gateway();
        self.ambient || waypoint || (sidecar && sidecar_takes_tunnels(self.labels))
    }

    /// Returns true if the selector of a service matches it.
    fn is_selected(&self, service: &MeshService) -> bool {
        service.key.namespace == *self.namespace
            && service
                .selector
                .as_ref()
                .is_some_and(|s| s.selects(self.labels))
    }

    /// The port that serves a service's port here; `None` when its name is not known here.
    pub(crate) fn target(&self, target: &TargetPort) -> Option<Port> {
        match target {
            TargetPort::Number(number) => Some(*number),
            TargetPort::Named(name) => self.named_ports.get(name).copied(),
        }
    }
}

/// All subjects of a mesh: Pods (with or without an address), Deployments that want Pods, WorkloadEntries and
/// WorkloadGroups. Members of a WorkloadGroup join by themselves.
pub(crate) fn subjects(mesh: &Mesh) -> Vec<Subject<'_>> {
    let pods = mesh.pods.values().map(|pod| {
        let mut subject = of_template(
            "Pod",
            &pod.name.to_string(),
            &pod.name.namespace,
            &pod.template,
            &pod.source,
        );
        subject.placed = pod.addresses.iter().any(|address| !address.is_loopback());
        subject
    });
    let deployments = mesh
        .deployments
        .values()
        .filter(|deployment| deployment.replicas > 0)
        .map(|d| {
            of_template(
                &d.kind.to_string(),
                &d.name.to_string(),
                &d.name.namespace,
                &d.template,
                &d.source,
            )
        });
    let entries = mesh
        .workloads
        .values()
        .filter(|workload| workload.kind == WorkloadKind::WorkloadEntry)
        .map(|workload| Subject {
            name: subject_name(workload),
            namespace: &workload.key.namespace,
            labels: &workload.labels,
            has_sidecar: workload.has_sidecar,
            ambient: workload.ambient,
            behind_gateway: mesh.is_behind_gateway(&workload.network),
            service_account: &workload.service_account,
            source: &workload.source,
            placed: true,
            template: None,
            named_ports: workload.named_ports.clone(),
            services: Vec::new(),
        });
    let groups = mesh
        .workload_groups
        .values()
        .map(|group| of_group(mesh, group));
    pods.chain(deployments)
        .chain(entries)
        .chain(groups)
        .collect()
}

/// A member that may join: with the sidecar by which it does.
fn of_group<'a>(mesh: &Mesh, group: &'a WorkloadGroup) -> Subject<'a> {
    Subject {
        name: format!("WorkloadGroup {}", group.name),
        namespace: &group.name.namespace,
        labels: &group.labels,
        has_sidecar: true,
        ambient: false,
        placed: true,
        behind_gateway: mesh.is_behind_gateway(&group.network),
        service_account: &group.service_account,
        source: &group.source,
        template: None,
        named_ports: group.ports.clone(),
        services: Vec::new(),
    }
}

/// Those behind a service, each with the ports of its own that serve the service's.
pub(crate) fn behind<'s, 'a>(
    mesh: &Mesh,
    service: &MeshService,
    subjects: &'s [Subject<'a>],
) -> Vec<(&'s Subject<'a>, BTreeMap<Port, Port>)> {
    if mesh.endpoints_in_slices(service) > 0 {
        let members = mesh.workloads_of(service).into_iter();
        let known = members.filter_map(|member| {
            let name = subject_name(&member.workload);
            let subject = subjects.iter().find(|subject| subject.name == name)?;
            Some((subject, member.ports))
        });
        return known.collect();
    }
    let selected = subjects.iter().filter(|one| one.is_selected(service));
    let ports = |subject: &Subject<'_>| {
        let all = service.ports.iter();
        all.filter_map(|port| Some((port.number, subject.target(&port.target)?)))
            .collect()
    };
    selected.map(|subject| (subject, ports(subject))).collect()
}

/// Name of an existing workload among the subjects.
pub(crate) fn subject_name(workload: &Workload) -> String {
    match &workload.kind {
        WorkloadKind::Pod => format!("Pod {}", workload.key),
        _ => format!("WorkloadEntry {}", workload.key),
    }
}

fn of_template<'a>(
    kind: &str,
    name: &str,
    namespace: &'a Namespace,
    template: &'a PodTemplate,
    source: &'a Source,
) -> Subject<'a> {
    let ports = template
        .containers
        .iter()
        .flat_map(|container| &container.ports);
    Subject {
        name: format!("{kind} {name}"),
        namespace,
        labels: &template.labels,
        has_sidecar: template.has_sidecar,
        ambient: template.ambient,
        behind_gateway: false,
        service_account: &template.service_account,
        source,
        placed: false,
        template: Some(template),
        named_ports: ports
            .filter_map(|port| Some((port.name.clone()?, port.number)))
            .collect(),
        services: Vec::new(),
    }
}
