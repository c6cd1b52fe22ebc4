//! Waypoints: Gateways of the class `istio-waypoint`. The generated resources have the waypoint's name and accept HBONE
//! at one port. Only services and workloads that name a waypoint attach to its listener. The gateways between networks
//! (`istio-east-west`) are the same proxies and are generated alike.

use std::sync::Arc;

use super::conditions::{empty, runs};
use super::deployment::{self, GatewayResources, deployment, own_selector, written};
use crate::attach::inputs::{AttachmentInputs, refusal};
use crate::mesh::gateway_api::{
    ConditionReason, Gateway, GatewayTlsConfig, PartConditions, RefusedCondition,
    ResourceConditions, StatusCondition,
};
use crate::mesh::waypoint::{HBONE, HBONE_PORT, waypoint_host};
use crate::mesh::workload::WAYPOINT_TEMPLATE;
use crate::mesh::{
    Location, MeshService, Protocol, Resolution, ServiceAccount, ServiceOrigin, ServicePort,
    TargetPort, Transport, Visibility,
};
use crate::names::{Port, ServiceKey};

fn all<'m>(world: &AttachmentInputs<'m>) -> impl Iterator<Item = &'m Arc<Gateway>> {
    let all = world.mesh.gateway_api.gateways.iter();
    all.filter(|gateway| gateway.is_waypoint() || gateway.is_east_west())
}

/// Faults of a waypoint: listeners that are not HBONE's, and fields that waypoints do not support.
fn refusals(gateway: &Gateway) -> Vec<RefusedCondition> {
    let mut refusals = Vec::new();
    for listener in &gateway.listeners {
        if &*listener.protocol == HBONE && listener.port.get() == HBONE_PORT {
            continue;
        }
        let field = format!("spec.listeners[{}]", listener.name);
        let said = format!(
            "listener {}: a {} supports only {HBONE} at port {HBONE_PORT}",
            listener.name,
            match gateway.is_waypoint() {
                true => "waypoint",
                false => "gateway between networks",
            }
        );
        let reason = ConditionReason::UnsupportedProtocol;
        refusals.push(refusal(reason, &listener.source, &field, said));
    }
    if gateway.tls != GatewayTlsConfig::default() {
        let said = format!(
            "{}: `tls` has no effect at a gateway of the mesh",
            gateway.name
        );
        let reason = ConditionReason::UnsupportedValue;
        refusals.push(refusal(reason, &gateway.source, "spec.tls", said));
    }
    if let Some(source) = &gateway.parameters {
        let said = format!("{}: parametersRef is not supported", gateway.name);
        let field = "spec.infrastructure.parametersRef";
        refusals.push(refusal(
            ConditionReason::InvalidParameters,
            source,
            field,
            said,
        ));
    }
    if let Some(source) = &gateway.addresses {
        let said = format!("{}: addresses are not supported", gateway.name);
        let reason = ConditionReason::UnsupportedAddress;
        refusals.push(refusal(reason, source, "spec.addresses", said));
    }
    refusals
}

/// Adds the Deployment, Service and account of each waypoint, unless users wrote its Pods.
pub(super) fn add(world: &AttachmentInputs<'_>, further: &mut GatewayResources) {
    let good = |gateway: &&Arc<Gateway>| {
        refusals(gateway).is_empty() && world.mesh.flaws(gateway).is_empty()
    };
    for gateway in all(world).filter(good) {
        further.services.extend(service(gateway).map(Arc::new));
        if written(world, gateway).next().is_some() {
            continue;
        }
        further.accounts.push(Arc::new(ServiceAccount {
            name: deployment::name(gateway),
            source: gateway.source.clone(),
        }));
        let made = deployment(gateway, WAYPOINT_TEMPLATE);
        further.deployments.push(made.into());
    }
}

fn service(gateway: &Gateway) -> Option<MeshService> {
    let port = Port::new(HBONE_PORT)?;
    let name = deployment::name(gateway);
    Some(MeshService {
        key: ServiceKey::new(name.namespace.clone(), waypoint_host(&name)?),
        name: name.name,
        source: gateway.source.clone(),
        origin: ServiceOrigin::Kubernetes,
        addresses: Vec::new(),
        address_ranges: Vec::new(),
        ports: vec![ServicePort {
            name: "mesh".into(),
            number: port,
            protocol: Protocol::Tcp,
            transport: Transport::Tcp,
            target: TargetPort::Number(port),
            node_port: None,
            source: gateway.source.clone(),
        }],
        selector: Some(own_selector(gateway)),
        location: Location::MeshInternal,
        resolution: Resolution::Static,
        headless: false,
        endpoints: Vec::new(),
        subject_alt_names: Vec::new(),
        visibility: Visibility::Public,
        waypoint: None,
        published: false,
        global: false,
        distribution: None,
    })
}

/// The conditions of each.
pub(super) fn said(world: &AttachmentInputs<'_>) -> Vec<ResourceConditions> {
    let said = |gateway: &Arc<Gateway>| {
        let refusals = refusals(gateway);
        // Analysis reports the faults; here they only make conditions false.
        let flaws = world.mesh.flaws(gateway).into_iter();
        let mut flaws =
            flaws.map(|flaw| refusal(ConditionReason::Invalid, &flaw.source, "spec", flaw.what));
        let flaw = flaws.next();
        let against = refusals.first().or(flaw.as_ref());
        let pending = || {
            let what = format!("{}: none of its Pods is ready", gateway.name);
            refusal(
                ConditionReason::Pending,
                &gateway.source,
                "metadata.name",
                what,
            )
        };
        let programmed = match against {
            Some(why) => StatusCondition {
                reason: ConditionReason::Invalid.word(),
                ..StatusCondition::bad("Programmed", why)
            },
            None if runs(world, gateway) => StatusCondition::good("Programmed"),
            None => StatusCondition::bad("Programmed", &pending()),
        };
        let parts = gateway.listeners.iter().map(|listener| PartConditions {
            written: vec![("name", listener.name.clone())],
            name: format!("listener {}", listener.name).into(),
            kinds: Vec::new(),
            attached: 0,
            conditions: vec![
                StatusCondition::unless("Accepted", against),
                StatusCondition::unless("Programmed", against),
                StatusCondition::unless("ResolvedRefs", None),
            ],
        });
        let host = waypoint_host(&gateway.name).filter(|_| against.is_none());
        ResourceConditions {
            conditions: vec![StatusCondition::unless("Accepted", against), programmed],
            address: host.map(|host| host.as_str().into()),
            parts: parts.collect(),
            refusals,
            ..empty("Gateway", gateway.name.clone())
        }
    };
    all(world).map(said).collect()
}
