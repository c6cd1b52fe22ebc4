//! EndpointSlices: is there a Service that takes them, and is each endpoint called?

use voile_model::mesh::{
    EndpointAddress, EndpointSlice, EndpointStanding, Mesh, MeshService, Resolution, SliceEndpoint,
    SliceKind,
};
use voile_model::{CLUSTER_DOMAIN, Diagnostic, Hostname, ServiceKey};

use crate::codes;

/// Checks all slices.
pub(crate) fn check(mesh: &Mesh, found: &mut Vec<Diagnostic>) {
    for slice in mesh.endpoint_slices.iter() {
        let Some(service) = taken(mesh, slice, found) else {
            continue;
        };
        for endpoint in slice.endpoints() {
            called(mesh, slice, endpoint, found);
        }
        ports(slice, service, found);
    }
}

/// The Service that takes a slice; else says why none does.
fn taken<'a>(
    mesh: &'a Mesh,
    slice: &EndpointSlice,
    found: &mut Vec<Diagnostic>,
) -> Option<&'a MeshService> {
    let shown = format!("{} {}", slice.kind.name(), slice.name);
    let mut not_taken = |why: String, help: &str| {
        let message = format!("{shown} is not in force: {why}");
        let source = slice.source.clone();
        let diagnostic = match slice.of_selector {
            // The model computes the workloads of a selector itself and does not need this slice.
            true => Diagnostic::note(codes::SLICE_NOT_TAKEN, source, message),
            false => Diagnostic::warning(codes::SLICE_NOT_TAKEN, source, message),
        };
        found.push(diagnostic.help(help));
    };
    let Some(name) = &slice.service else {
        let (why, help) = match slice.kind {
            SliceKind::EndpointSlice => (
                "it names no Service",
                "label it kubernetes.io/service-name: NAME",
            ),
            SliceKind::Endpoints => (
                "its label skip-mirror excludes it",
                "remove the label endpointslice.kubernetes.io/skip-mirror",
            ),
        };
        not_taken(why.to_owned(), help);
        return None;
    };
    let namespace = &slice.name.namespace;
    let host = Hostname::new(&format!("{name}.{namespace}.svc.{CLUSTER_DOMAIN}"));
    let key = host.map(|host| ServiceKey::new(namespace.clone(), host));
    let Some(service) = key.and_then(|key| mesh.services.get(&key)) else {
        let help = "write the Service, without a selector";
        not_taken(format!("there is no Service {namespace}/{name}"), help);
        return None;
    };
    if service.selector.is_some() {
        let why = format!(
            "Service {namespace}/{name} has a selector, and its endpoints are the Pods that it selects"
        );
        not_taken(why, "remove the Service's selector, or this resource");
        return None;
    }
    if matches!(service.resolution, Resolution::Alias(_)) {
        let why = format!("Service {namespace}/{name} has type ExternalName");
        not_taken(why, "write a Service of another type");
        return None;
    }
    Some(service)
}

/// Says of an endpoint that it is never called.
fn called(
    mesh: &Mesh,
    slice: &EndpointSlice,
    endpoint: &SliceEndpoint,
    found: &mut Vec<Diagnostic>,
) {
    let address = match &endpoint.address {
        EndpointAddress::Ip(address) => address.to_string(),
        EndpointAddress::Dns(host) => host.to_string(),
    };
    let (why, help) = match mesh.standing(slice, endpoint) {
        EndpointStanding::Workload(_) | EndpointStanding::Stranger => return,
        EndpointStanding::Elsewhere(key) => (
            format!(
                "the address is that of {key}, and a Service has endpoints only in its own namespace"
            ),
            "write the slice and its Service in the workload's namespace; a ReferenceGrant allows routes from other namespaces",
        ),
        EndpointStanding::Absent(pod) => (
            format!("its `targetRef` is Pod {pod}, which does not have this address"),
            "remove `targetRef`, or write the Pod's address",
        ),
        EndpointStanding::Loopback => (
            "the address is local to each proxy and belongs to no workload of the mesh".to_owned(),
            "write an address that all proxies can reach",
        ),
    };
    let message = format!(
        "endpoint {address} of {} is never called: {why}",
        slice.name
    );
    let source = endpoint.source.clone();
    found.push(Diagnostic::warning(codes::ENDPOINT_NOT_CALLED, source, message).help(help));
}

/// Ports are known by the names that the Service gives them.
fn ports(slice: &EndpointSlice, service: &MeshService, found: &mut Vec<Diagnostic>) {
    for port in slice.subsets.iter().flat_map(|subset| &subset.ports) {
        let mut own = service.ports.iter();
        if own.any(|one| one.name == port.name && one.transport == port.transport) {
            continue;
        }
        let named = match &*port.name {
            "" => "without a name".to_owned(),
            name => format!("`{name}`"),
        };
        let message = format!(
            "port {} ({named}) of {} {} is no port of {}: it is never called",
            port.number,
            slice.kind.name(),
            slice.name,
            service.key
        );
        let help = "give it the name and protocol of the Service's port";
        let source = slice.source.clone();
        found.push(
            Diagnostic::warning(codes::SLICE_PORT_UNKNOWN, source, message)
                .field("ports")
                .help(help),
        );
    }
}
