//! Gateway API's resources seen together: valid listeners, attachment of routes, targets of references, and
//! permissions. Attached resources become Gateways and VirtualServices of Istio's API, so that all code that publishes
//! routes publishes these too. Every other resource gets a condition with the specification's reason, and no proxy
//! receives it.
//!
//! ```text
//! Gateway, ListenerSet ─▶ listeners ─┐                ┌▶ VirtualServices, a Gateway for each listener
//! HTTPRoute … TCPRoute  ─▶ rules ─────┴▶ routes ─ lower┼▶ the gateway's Deployment and Service
//! ReferenceGrant ─▶ grants                            └▶ said: conditions and refusals
//! BackendTLSPolicy ─▶ backend_tls ─▶ DestinationRules
//! `tls` of a Gateway ─▶ gateway_tls ─▶ authorities of listeners, certificates in DestinationRules
//! ```

mod backend_tls;
mod conditions;
mod connections;
mod default_gateways;
mod deployment;
mod gateway_tls;
mod inputs;
mod listeners;
mod lower;
mod routes;
mod rules;
mod waypoints;

use std::sync::Arc;

use crate::attach::inputs::AttachmentInputs;
use crate::mesh::Mesh;
use crate::mesh::gateway_api::Admission;
use crate::names::{Labels, Namespace};
pub(crate) use backend_tls::shut;
pub(crate) use default_gateways::GENERATED;

/// Label that a cluster gives to each namespace: its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Adds attached resources to a mesh, and the status of all. Without Gateway API resources it changes nothing.
pub(crate) fn attach(mesh: &mut Mesh) {
    let further = default_gateways::further(mesh);
    add_further(mesh, further);
    if mesh.gateway_api.is_empty() {
        return;
    }
    let world = AttachmentInputs::new(mesh);
    let mut opened = listeners::opened(&world);
    let outcomes = routes::outcomes(&world, &mut opened);
    let made = lower::lower(&world, &opened, &outcomes);
    let mut further = deployment::deployments(&world, &opened);
    waypoints::add(&world, &mut further);
    let policies = backend_tls::policies(&world);
    let mut said = conditions::said(&world, &opened, &outcomes, &policies);
    said.extend(waypoints::said(&world));
    let spoken = backend_tls::spoken(&policies);
    let certificates = gateway_tls::client_certificates(&world, &opened);
    mesh.gateways.extend(made.gateways);
    mesh.virtual_services.extend(made.virtual_services);
    add_further(mesh, further);
    mesh.gateway_api.said = said.into();
    backend_tls::lay(mesh, spoken, &certificates);
}

/// Resources written by users take precedence over generated ones.
fn add_further(mesh: &mut Mesh, further: deployment::GatewayResources) {
    for deployment in further.deployments {
        mesh.deployments
            .entry(deployment.key())
            .or_insert(deployment);
    }
    for service in further.services {
        mesh.services.entry(service.key.clone()).or_insert(service);
    }
    for account in further.accounts {
        let name = account.name.clone();
        mesh.service_accounts.entry(name).or_insert(account);
    }
}

impl Mesh {
    /// Returns true if a resource of namespace `own` admits resources of namespace `from`.
    pub(crate) fn admits(&self, admission: &Admission, own: &Namespace, from: &Namespace) -> bool {
        match admission {
            Admission::All => true,
            Admission::Same => own == from,
            Admission::Nobody => false,
            Admission::Selected(selector) => {
                let declared = self.namespaces.get(from);
                let labels = declared.iter().flat_map(|one| one.labels.iter());
                let labels = labels.map(|(key, value)| (key.clone(), value.clone()));
                // A cluster gives each namespace its name as a label.
                let name = (NAMESPACE_NAME.into(), Arc::from(from.as_str()));
                let labels: Labels = labels.chain([name]).collect();
                selector.selects(&labels)
            }
        }
    }
}
