//! Pods in network namespaces: traffic is redirected, so a service has one virtual address for all, and an application may
//! listen on the very port that its callers name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use voile_model::mesh::{CaptureMode, MeshService, Resolution, ServiceOrigin};
use voile_model::{Diagnostic, Mesh, ResourceName};

use super::problems::sidecar_port;
use super::{Candidate, PodPlan, endpoint, served_ports, settled, sidecar_plan, view, visible};
use crate::addresses::{AddressError, Addresses};

pub(super) fn pod(
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
    let served = served_ports(mesh, &name, template);
    for listener in user.iter().flat_map(|user| &user.ingress) {
        let (port, own) = (listener.port.number, endpoint(listener, address).1);
        if let Some(service) = served.get(&port)
            && template.ambient
            && !template.has_sidecar
            && own != port.get()
        {
            problems.push(sidecar_port(source, service, port, own));
        }
    }
    let user = user.filter(|_| template.has_sidecar);
    let mut reach = visible(mesh, &name, user);
    let mut services = Vec::new();
    let mut failed = None;
    reach.retain(|service| match virtual_address(service, addresses) {
        Ok(Some(address)) => {
            services.push(view(service, address));
            true
        }
        Ok(None) => false,
        Err(error) => {
            failed = Some(error);
            false
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let mut sidecar = template.has_sidecar.then(|| sidecar_plan(user));
    if let Some(sidecar) = &mut sidecar {
        sidecar.unbounded = user.is_none_or(|user| user.egress.is_empty());
    }
    for listener in sidecar.iter_mut().flat_map(|sidecar| &mut sidecar.ingress) {
        // Redirection covers the address that callers connect to. The application's own address stays as written.
        if listener.bind.is_none() {
            listener.capture_mode = CaptureMode::Default;
        }
    }
    let ingress = || sidecar.iter().flat_map(|sidecar| &sidecar.ingress);
    let mut endpoints: Vec<_> = ingress().map(|l| endpoint(l, address)).collect();
    let plain = served
        .keys()
        .filter(|port| !ingress().any(|listener| listener.port.number == **port));
    endpoints.extend(plain.map(|port| (address, port.get())));
    endpoints.sort_unstable();
    endpoints.dedup();
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

/// Services that need an address given to them, and that address.
pub(super) fn given(
    mesh: &Mesh,
    addresses: &mut Addresses,
) -> Result<BTreeMap<ResourceName, Ipv4Addr>, AddressError> {
    let mut given = BTreeMap::new();
    for service in mesh.services.values() {
        if lacks_address(service)
            && let Some(address) = virtual_address(service, addresses)?
        {
            let name = ResourceName::new(service.key.namespace.clone(), service.name.clone());
            given.insert(name, address);
        }
    }
    Ok(given)
}

fn lacks_address(service: &MeshService) -> bool {
    service.origin == ServiceOrigin::Kubernetes
        && service.resolution == Resolution::Static
        && service.addresses.is_empty()
}

/// Returns the address at which clients call the service, if it has or can have one.
fn virtual_address(
    service: &MeshService,
    addresses: &mut Addresses,
) -> Result<Option<Ipv4Addr>, AddressError> {
    if lacks_address(service) {
        return addresses.listener("", &service.key.to_string()).map(Some);
    }
    Ok(service.addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }))
}
