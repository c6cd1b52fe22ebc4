//! EndpointSlices: endpoints of a Service without a selector. Slices of one Service are merged by address. If the
//! Service's namespace has a workload at an address, that workload is the endpoint, with all its properties. Otherwise
//! a workload without proxy is made, and clients call it in plaintext.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::{
    CaptureSelection, EndpointAddress, Mesh, MeshService, Resolution, ServiceOrigin, Topology,
    Transport, Workload, WorkloadKind, WorkloadType,
};
use crate::names::{Labels, Namespace, Port, ResourceName, WorkloadKey};
use crate::source::Source;

/// An EndpointSlice, or an Endpoints, which is several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Its name.
    pub name: ResourceName,
    /// Which of the two kinds it is.
    pub kind: SliceKind,
    /// Name of its Service, in its namespace; `None` without a Service.
    pub service: Option<Arc<str>>,
    /// File and line of its definition.
    pub source: Source,
    /// Kubernetes' own controller wrote it for the Service's selector.
    pub of_selector: bool,
    /// Endpoints with their ports.
    pub subsets: Vec<EndpointSubset>,
}

/// The kind of the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SliceKind {
    /// `discovery.k8s.io`'s.
    EndpointSlice,
    /// The older one, which has its Service's name.
    Endpoints,
}

impl SliceKind {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EndpointSlice => "EndpointSlice",
            Self::Endpoints => "Endpoints",
        }
    }
}

/// Endpoints that have the same ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSubset {
    /// Port by the name that the Service's port has.
    pub ports: Vec<SlicePort>,
    /// Endpoints with these ports.
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port that endpoints have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlicePort {
    /// The name that the Service's port has; empty where that has none.
    pub name: Arc<str>,
    /// The transport below.
    pub transport: Transport,
    /// Its number there.
    pub number: Port,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// Its address.
    pub address: EndpointAddress,
    /// Readiness for traffic.
    pub readiness: Readiness,
    /// The Pod that must be there (`targetRef`); no other workload is called in its place.
    pub pod: Option<ResourceName>,
    /// `region/zone`, empty when not said.
    pub locality: Arc<str>,
    /// File and line of its definition.
    pub source: Source,
}

/// The readiness that `conditions` describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Readiness {
    /// It is not called.
    NotReady,
    /// It terminates but still serves: it is called while no endpoint is ready.
    Leaving,
    /// It is called.
    Ready,
}

/// The merged data of one address from all slices of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SliceAddress {
    ports: BTreeMap<(Arc<str>, Transport), Port>,
    readiness: Readiness,
    /// True if it is called: it is ready, or it still serves and no endpoint is ready.
    called: bool,
    pod: Option<ResourceName>,
    locality: Arc<str>,
    source: Source,
}

impl SliceAddress {
    /// Which of the Service's ports it serves, on which of its own.
    fn target_ports(&self, service: &MeshService) -> BTreeMap<Port, Port> {
        let served = service.ports.iter().filter_map(|port| {
            let name = (port.name.clone(), port.transport);
            Some((port.number, *self.ports.get(&name)?))
        });
        served.collect()
    }

    /// Returns true if the slice means this workload.
    fn means(&self, workload: &Workload) -> bool {
        self.pod.as_ref().is_none_or(|pod| {
            let own = &workload.key;
            workload.kind == WorkloadKind::Pod
                && own.namespace == pod.namespace
                && own.name == pod.name
        })
    }
}

/// The merged data of a Service, by address.
pub(crate) type Places = BTreeMap<EndpointAddress, SliceAddress>;

/// All slices of a mesh.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointSlices {
    /// By the name of their Service; the name is empty for slices without a Service.
    by_service: BTreeMap<ResourceName, OfService>,
    /// Services whose slices name an address.
    by_address: HashMap<IpAddr, BTreeSet<ResourceName>>,
}

/// The slices of a Service, and their merged data.
#[derive(Debug, Clone, Default, PartialEq)]
struct OfService {
    slices: BTreeMap<(SliceKind, Arc<str>), Arc<EndpointSlice>>,
    places: Places,
}

impl EndpointSlices {
    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_service.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        let all = self.by_service.values();
        all.flat_map(|of_service| of_service.slices.values())
    }

    /// The Services that slices name, whether they are there or not.
    pub(crate) fn services(&self) -> impl Iterator<Item = &ResourceName> {
        self.by_service.keys()
    }

    /// The addresses that slices give for a Service of this name.
    pub(crate) fn places(&self, service: &ResourceName) -> Option<&Places> {
        self.by_service.get(service).map(|one| &one.places)
    }

    /// The Services whose slices name an address.
    pub(crate) fn services_at(&self, address: IpAddr) -> impl Iterator<Item = &ResourceName> {
        self.by_address.get(&address).into_iter().flatten()
    }

    /// Adds a slice. The caller must merge the slices of its Service again.
    pub(crate) fn insert(&mut self, slice: &Arc<EndpointSlice>) {
        let of_service = self.by_service.entry(slice.for_service()).or_default();
        let key = (slice.kind, slice.name.name.clone());
        of_service.slices.insert(key, slice.clone());
    }

    pub(crate) fn remove(&mut self, slice: &EndpointSlice) {
        let service = slice.for_service();
        let Some(of_service) = self.by_service.get_mut(&service) else {
            return;
        };
        let key = (slice.kind, slice.name.name.clone());
        of_service.slices.remove(&key);
        if of_service.slices.is_empty() {
            let places = std::mem::take(&mut of_service.places);
            self.by_service.remove(&service);
            self.forget(&service, &places);
        }
    }

    fn forget(&mut self, service: &ResourceName, places: &Places) {
        for address in places.keys().filter_map(numeric) {
            if let Some(services) = self.by_address.get_mut(&address) {
                services.remove(service);
                if services.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
    }

    /// Merges the slices of a Service.
    pub(crate) fn put_together(&mut self, service: &ResourceName) {
        let Some(of_service) = self.by_service.get_mut(service) else {
            return;
        };
        let made = places(of_service.slices.values());
        let now: Vec<IpAddr> = made.keys().filter_map(numeric).collect();
        let before = std::mem::replace(&mut of_service.places, made);
        self.forget(service, &before);
        for address in now {
            let services = self.by_address.entry(address).or_default();
            services.insert(service.clone());
        }
    }
}

impl EndpointSlice {
    /// The Service it is for, as slices are kept by it.
    pub(crate) fn for_service(&self) -> ResourceName {
        let name = self.service.clone().unwrap_or_else(|| "".into());
        ResourceName::new(self.name.namespace.clone(), name)
    }

    /// All its endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &SliceEndpoint> {
        self.subsets.iter().flat_map(|subset| &subset.endpoints)
    }
}

/// Merges the data of each address: all ports, and the other fields from the readiest endpoint. Among equals the first
/// slice by name counts.
fn places<'a>(slices: impl Iterator<Item = &'a Arc<EndpointSlice>>) -> Places {
    let mut all = Places::new();
    for subset in slices.flat_map(|slice| &slice.subsets) {
        for endpoint in &subset.endpoints {
            let ports = subset.ports.iter();
            let ports = ports.map(|port| ((port.name.clone(), port.transport), port.number));
            let mut place = SliceAddress {
                ports: ports.collect(),
                readiness: endpoint.readiness,
                called: false,
                pod: endpoint.pod.clone(),
                locality: endpoint.locality.clone(),
                source: endpoint.source.clone(),
            };
            if let Some(known) = all.remove(&endpoint.address) {
                let (mut first, second) = match place.readiness > known.readiness {
                    true => (place, known),
                    false => (known, place),
                };
                for (name, number) in second.ports {
                    first.ports.entry(name).or_insert(number);
                }
                place = first;
            }
            all.insert(endpoint.address.clone(), place);
        }
    }
    let readiest = all.values().map(|place| place.readiness).max();
    let called = readiest.filter(|one| *one != Readiness::NotReady);
    for place in all.values_mut() {
        place.called = Some(place.readiness) == called;
    }
    all
}

/// The role of an endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointStanding {
    /// It is this workload of the Service's namespace.
    Workload(WorkloadKey),
    /// No workload is known there.
    Stranger,
    /// This workload of another namespace is there: it is not called.
    Elsewhere(WorkloadKey),
    /// It must be a Pod that does not exist: it is not called.
    Absent(ResourceName),
    /// It would be each proxy's own machine: it is not called.
    Loopback,
}

/// The workloads at some addresses.
pub(crate) type Owners = BTreeMap<IpAddr, Vec<WorkloadKey>>;

impl Mesh {
    /// The addresses that slices give for a Service, if slices count for it: it has no selector and is no alias.
    pub(crate) fn places_of(&self, service: &MeshService) -> Option<&Places> {
        if self.endpoint_slices.is_empty() || !takes_slices(service) {
            return None;
        }
        let name = ResourceName::new(service.key.namespace.clone(), service.name.clone());
        self.endpoint_slices.places(&name)
    }

    /// The number of endpoints that slices give for a Service.
    #[must_use]
    pub fn endpoints_in_slices(&self, service: &MeshService) -> usize {
        self.places_of(service).map_or(0, BTreeMap::len)
    }

    /// Which of a Service's ports a workload serves that stands where its slices say.
    pub(crate) fn ports_by_slices(
        &self,
        service: &MeshService,
        workload: &Workload,
    ) -> Option<BTreeMap<Port, Port>> {
        let places = self.places_of(service)?;
        let place = match &workload.kind {
            WorkloadKind::SliceEndpoint(of) if *of != service.name => return None,
            WorkloadKind::SliceEndpoint(_) => places.get(&address_of(workload)?),
            WorkloadKind::Pod | WorkloadKind::WorkloadEntry if is_near(workload) => {
                let mut addresses = workload.addresses.iter();
                let found =
                    addresses.find_map(|address| places.get(&EndpointAddress::Ip(*address)));
                found.filter(|place| place.called && place.means(workload))
            }
            WorkloadKind::Pod
            | WorkloadKind::WorkloadEntry
            | WorkloadKind::ServiceEntryEndpoint(_) => None,
        };
        Some(place?.target_ports(service))
    }

    /// The role of an endpoint.
    #[must_use]
    pub fn standing(&self, slice: &EndpointSlice, endpoint: &SliceEndpoint) -> EndpointStanding {
        let addresses: BTreeSet<IpAddr> = numeric(&endpoint.address).into_iter().collect();
        let owners = self.owners(&addresses);
        let pod = endpoint.pod.as_ref();
        standing(&slice.name.namespace, &endpoint.address, pod, &owners)
    }

    /// The Pods and WorkloadEntries of our network at these addresses.
    pub(crate) fn owners(&self, addresses: &BTreeSet<IpAddr>) -> Owners {
        let mut owners = Owners::new();
        if addresses.is_empty() {
            return owners;
        }
        for workload in self.workloads.values().filter(|one| is_known(one)) {
            for address in &workload.addresses {
                if addresses.contains(address) {
                    let all = owners.entry(*address).or_default();
                    all.push(workload.key.clone());
                }
            }
        }
        owners
    }

    /// The addresses of which slices say something of these Services, names left out.
    pub(crate) fn slice_addresses<'a>(
        &self,
        services: impl IntoIterator<Item = &'a ResourceName>,
    ) -> BTreeSet<IpAddr> {
        let slices = &self.endpoint_slices;
        let places = services.into_iter().filter_map(|one| slices.places(one));
        places
            .flat_map(BTreeMap::keys)
            .filter_map(numeric)
            .collect()
    }

    /// A workload for each address of a Service's slices without a known workload.
    pub(crate) fn strangers(&self, service: &MeshService, owners: &Owners) -> Vec<Workload> {
        let own = &service.key.namespace;
        let places = self.places_of(service).into_iter().flatten();
        let strangers = places.filter(|(address, place)| {
            standing(own, address, place.pod.as_ref(), owners) == EndpointStanding::Stranger
        });
        strangers
            .map(|(address, place)| stranger(service, address, place))
            .collect()
    }
}

/// Returns true if slices determine the endpoints of a Service.
pub(crate) fn takes_slices(service: &MeshService) -> bool {
    service.origin == ServiceOrigin::Kubernetes
        && service.selector.is_none()
        && !matches!(service.resolution, Resolution::Alias(_))
}

/// Key prefix of the workloads made for a Service's slices. No other workload's name has two slashes.
pub(crate) fn stranger_prefix(service: &str) -> String {
    format!("{service}/slice/")
}

fn stranger(service: &MeshService, address: &EndpointAddress, place: &SliceAddress) -> Workload {
    let (namespace, name) = (&service.key.namespace, &service.name);
    let (addresses, hostname, shown) = match address {
        EndpointAddress::Ip(address) => (vec![*address], None, address.to_string()),
        EndpointAddress::Dns(host) => (Vec::new(), Some(host.clone()), host.to_string()),
    };
    Workload {
        key: WorkloadKey::new(
            namespace.clone(),
            format!("{}{shown}", stranger_prefix(name)),
        ),
        uid: format!("Kubernetes/discovery.k8s.io/EndpointSlice/{namespace}/{name}/{shown}").into(),
        source: place.source.clone(),
        kind: WorkloadKind::SliceEndpoint(name.clone()),
        addresses,
        hostname,
        labels: Labels::NONE,
        service_account: "default".into(),
        has_sidecar: false,
        gateway: false,
        waypoint: false,
        ambient: false,
        asks_for_ambient: false,
        node: "".into(),
        canonical_name: name.clone(),
        canonical_revision: "latest".into(),
        workload_name: name.clone(),
        workload_type: WorkloadType::Pod,
        named_ports: BTreeMap::new(),
        container_ports: place.ports.values().copied().collect(),
        captured_ports: CaptureSelection::default(),
        topology: Topology::default(),
        network: "".into(),
        locality: place.locality.clone(),
        weight: None,
        ready: place.called,
        group: None,
    }
}

fn standing(
    own: &Namespace,
    address: &EndpointAddress,
    pod: Option<&ResourceName>,
    owners: &Owners,
) -> EndpointStanding {
    let known = numeric(address).and_then(|address| owners.get(&address));
    let known = known.map_or(&[][..], Vec::as_slice);
    if let Some(pod) = pod {
        let mut all = known.iter();
        return match all.find(|one| one.namespace == pod.namespace && one.name == pod.name) {
            Some(there) if there.namespace == *own => EndpointStanding::Workload(there.clone()),
            Some(there) => EndpointStanding::Elsewhere(there.clone()),
            None => EndpointStanding::Absent(pod.clone()),
        };
    }
    match known.iter().find(|one| one.namespace == *own) {
        Some(there) => EndpointStanding::Workload(there.clone()),
        None => match known.first() {
            Some(there) => EndpointStanding::Elsewhere(there.clone()),
            None if numeric(address).is_some_and(|one| one.is_loopback()) => {
                EndpointStanding::Loopback
            }
            None => EndpointStanding::Stranger,
        },
    }
}

fn numeric(address: &EndpointAddress) -> Option<IpAddr> {
    match address {
        EndpointAddress::Ip(address) => Some(*address),
        EndpointAddress::Dns(_) => None,
    }
}

fn address_of(workload: &Workload) -> Option<EndpointAddress> {
    let address = workload.addresses.first().copied().map(EndpointAddress::Ip);
    address.or_else(|| workload.hostname.clone().map(EndpointAddress::Dns))
}

/// Addresses of other networks are not ours to call.
fn is_near(workload: &Workload) -> bool {
    workload.network.is_empty()
}

fn is_known(workload: &Workload) -> bool {
    let stands_alone = matches!(
        workload.kind,
        WorkloadKind::Pod | WorkloadKind::WorkloadEntry
    );
    stands_alone && is_near(workload)
}
