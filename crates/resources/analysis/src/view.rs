//! Indexes of a mesh for checks: workloads of a selector, workloads of a service, services of a name. Built once, so
//! that no check reads all workloads for each service.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use voile_model::mesh::authorization::PolicyTarget;
use voile_model::mesh::{Mesh, MeshService, ServiceOrigin, Sidecar, WorkloadKind};
use voile_model::{Hostname, Labels, Namespace, ResourceName, ServiceKey};

use crate::subject::{Subject, subject_name, subjects};

/// See the module.
pub(crate) struct ClientView<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) subjects: Vec<Subject<'a>>,
    in_namespace: BTreeMap<&'a Namespace, Vec<usize>>,
    labelled: HashMap<(&'a Namespace, &'a str, &'a str), Vec<usize>>,
    behind: BTreeMap<&'a ServiceKey, Vec<usize>>,
    named: HashMap<&'a Hostname, Vec<&'a Arc<MeshService>>>,
    wildcards: Vec<&'a Arc<MeshService>>,
    /// Endpoints written inside of ServiceEntries, by entry.
    endpoints: BTreeMap<&'a ResourceName, usize>,
}

/// The service that a client finds under a name.
pub(crate) enum ResolvedName<'a> {
    /// This service.
    Seen(&'a Arc<MeshService>),
    /// This one, which is not exported to the client.
    Hidden(&'a Arc<MeshService>),
    /// Nothing.
    Nothing,
}

impl<'a> ClientView<'a> {
    pub(crate) fn new(mesh: &'a Mesh) -> Self {
        let mut view = Self {
            mesh,
            subjects: subjects(mesh),
            in_namespace: BTreeMap::new(),
            labelled: HashMap::new(),
            behind: BTreeMap::new(),
            named: HashMap::new(),
            wildcards: Vec::new(),
            endpoints: BTreeMap::new(),
        };
        for (index, subject) in view.subjects.iter().enumerate() {
            let all = view.in_namespace.entry(subject.namespace).or_default();
            all.push(index);
            for (key, value) in subject.labels.iter() {
                let label = (subject.namespace, &**key, &**value);
                view.labelled.entry(label).or_default().push(index);
            }
        }
        for service in mesh.services.values() {
            let name = &service.key.hostname;
            view.named.entry(name).or_default().push(service);
            if name.is_wildcard() {
                view.wildcards.push(service);
            }
            // A selector without labels selects nothing.
            let selector = service.selector.as_ref().filter(|one| !one.is_empty());
            let behind = match selector {
                Some(selector) => view.indexes(&service.key.namespace, selector),
                None if mesh.endpoints_in_slices(service) > 0 => view.by_slices(service),
                None => continue,
            };
            for index in &behind {
                view.subjects[*index].services.push(service);
            }
            view.behind.insert(&service.key, behind);
        }
        for workload in mesh.workloads.values() {
            if let WorkloadKind::ServiceEntryEndpoint(entry) = &workload.kind {
                *view.endpoints.entry(entry).or_default() += 1;
            }
        }
        view
    }

    /// The workloads that stand where a service's EndpointSlices say.
    fn by_slices(&self, service: &MeshService) -> Vec<usize> {
        let members = self.mesh.workloads_of(service).into_iter();
        let names: Vec<_> = members
            .map(|member| subject_name(&member.workload))
            .collect();
        let own = self.in_namespace.get(&service.key.namespace);
        let own = own.into_iter().flatten().copied();
        own.filter(|index| names.contains(&self.subjects[*index].name))
            .collect()
    }

    fn indexes(&self, namespace: &Namespace, selector: &Labels) -> Vec<usize> {
        let none = Vec::new();
        // The rarest label first: only workloads with that label can be selected.
        let of_label = selector
            .iter()
            .map(|(key, value)| self.labelled.get(&(namespace, &**key, &**value)))
            .min_by_key(|indexes| indexes.map_or(0, Vec::len));
        let candidates = match of_label {
            Some(indexes) => indexes.unwrap_or(&none),
            None => self.in_namespace.get(&namespace).unwrap_or(&none),
        };
        let selected = candidates.iter().copied();
        selected
            .filter(|index| selector.selects(self.subjects[*index].labels))
            .collect()
    }

    /// The workloads of one namespace that a selector selects; all of them where it has no labels.
    pub(crate) fn selected(&self, namespace: &Namespace, selector: &Labels) -> Vec<&Subject<'a>> {
        let indexes = self.indexes(namespace, selector);
        indexes.iter().map(|index| &self.subjects[*index]).collect()
    }

    /// The workloads that a policy selects which is for its namespace, or for all from the root namespace.
    pub(crate) fn obeying(
        &self,
        namespace: &Namespace,
        target: &PolicyTarget,
    ) -> Vec<&Subject<'a>> {
        let everything = Labels::default();
        let selector = match target {
            PolicyTarget::References(_) => return Vec::new(),
            PolicyTarget::Everything => &everything,
            PolicyTarget::Workloads(labels) => labels,
        };
        match *namespace == self.mesh.config.root_namespace {
            true => self.selected_anywhere(selector),
            false => self.selected(namespace, selector),
        }
    }

    /// The workloads of the mesh that a selector selects.
    pub(crate) fn selected_anywhere(&self, selector: &Labels) -> Vec<&Subject<'a>> {
        let namespaces = self.in_namespace.keys();
        let all = namespaces.flat_map(|namespace| self.selected(namespace, selector));
        all.collect()
    }

    /// The workloads that a service selects.
    pub(crate) fn behind(&self, service: &MeshService) -> Vec<&Subject<'a>> {
        let indexes = self.behind.get(&service.key).into_iter().flatten();
        indexes.map(|index| &self.subjects[*index]).collect()
    }

    /// The number of endpoints that a service's resource declares.
    pub(crate) fn written_endpoints(&self, service: &MeshService) -> usize {
        let name = ResourceName::new(service.key.namespace.clone(), service.name.clone());
        let workloads = self.endpoints.get(&&name).copied().unwrap_or_default();
        match service.origin {
            ServiceOrigin::ServiceEntry => workloads.max(service.endpoints.len()),
            ServiceOrigin::Kubernetes => self.mesh.endpoints_in_slices(service),
        }
    }

    /// Finds the service that a client in `from` reaches by a name. The client's own namespace comes first, and an
    /// exact name precedes a pattern.
    pub(crate) fn find(&self, host: &Hostname, from: &Namespace) -> ResolvedName<'a> {
        let exact = self.named.get(&host).map_or(&[][..], Vec::as_slice);
        let covering = self.wildcards.iter().copied();
        let covering = covering.filter(|service| service.key.hostname.covers(host));
        let mut all: Vec<&'a Arc<MeshService>> = exact.to_vec();
        all.sort_by_key(|service| service.key.namespace != *from);
        all.extend(covering.filter(|service| service.key.hostname != *host));
        let seen = all.iter().find(|one| one.visibility.includes(from));
        match (seen, all.first()) {
            (Some(seen), _) => ResolvedName::Seen(seen),
            (None, Some(hidden)) => ResolvedName::Hidden(hidden),
            (None, None) => ResolvedName::Nothing,
        }
    }

    /// The services that a host, or a pattern of hosts, stands for.
    pub(crate) fn covered(&self, host: &Hostname) -> Vec<&'a Arc<MeshService>> {
        if !host.is_wildcard() {
            return self.named.get(&host).cloned().unwrap_or_default();
        }
        let all = self.mesh.services.values();
        all.filter(|service| host.covers(&service.key.hostname))
            .collect()
    }

    /// The Sidecar that holds for a workload.
    pub(crate) fn sidecar(&self, subject: &Subject<'_>) -> Option<&'a Arc<Sidecar>> {
        self.mesh
            .sidecar_for_labels(subject.namespace, subject.labels)
    }

    /// Services by their very name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'a Hostname, &[&'a Arc<MeshService>])> {
        self.named.iter().map(|(name, all)| (*name, all.as_slice()))
    }
}
