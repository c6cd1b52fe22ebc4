//! Addresses of a Gateway: those of its Services. A Gateway without an address is not programmed yet.

use serde_json::{Map, Value, json};

use crate::gateways::requested_addresses;
use crate::source::{ObjectStore, ReportedObject};

/// Most addresses that a Gateway's status holds.
const MAX_ADDRESSES: usize = 16;

/// The status of a Gateway with the addresses of its Services.
pub(super) fn with_addresses(
    status: &Map<String, Value>,
    store: &ObjectStore,
    (namespace, name): (&str, &str),
    gateway: &Value,
) -> Map<String, Value> {
    let mut status = status.clone();
    // The control plane knows the host of the Service.
    let host = status
        .get("addresses")
        .and_then(|all| all[0]["value"].as_str());
    let service = host.and_then(|host| host.split('.').next());
    let services = store.services_of_gateway(namespace, name, service);
    let mut addresses: Vec<Value> = Vec::new();
    for (spec, service) in &services {
        for address in addresses_of(spec, service) {
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    let has = |wanted: &&str| addresses.iter().any(|one| one["value"] == **wanted);
    let missing = requested_addresses(gateway).find(|wanted| !has(wanted));
    let problem = match missing {
        Some(wanted) => Some((
            "AddressNotUsable",
            format!("no Service of the Gateway has the requested address {wanted}"),
        )),
        None if services.is_empty() => Some((
            "AddressNotAssigned",
            format!(
                "no Service in {namespace} has the label gateway.networking.k8s.io/gateway-name={name}"
            ),
        )),
        None if addresses.is_empty() => Some((
            "AddressNotAssigned",
            "the Service has no address yet".to_owned(),
        )),
        None => None,
    };
    if let Some((reason, message)) = problem {
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        let mut conditions = conditions.into_iter().flatten();
        let programmed =
            conditions.find(|one| one["type"] == "Programmed" && one["status"] == "True");
        if let Some(programmed) = programmed {
            programmed["status"] = "False".into();
            programmed["reason"] = reason.into();
            programmed["message"] = message.into();
        }
    }
    status.insert("addresses".to_owned(), addresses.into());
    status
}

/// Addresses from outside the cluster of a Service with a load balancer; those of the cluster of others.
fn addresses_of(spec: &Value, service: &ReportedObject) -> Vec<Value> {
    let address = |kind: &str, value: &Value| {
        let value = value
            .as_str()
            .filter(|value| !value.is_empty() && *value != "None")?;
        Some(json!({"type": kind, "value": value}))
    };
    if spec["type"] == "LoadBalancer" {
        let ingress = service.status["loadBalancer"]["ingress"].as_array();
        let given = ingress.into_iter().flatten();
        let given = given.filter_map(|one| {
            address("IPAddress", &one["ip"]).or_else(|| address("Hostname", &one["hostname"]))
        });
        return given.collect();
    }
    let own = spec["clusterIPs"].as_array().into_iter().flatten();
    own.filter_map(|one| address("IPAddress", one)).collect()
}
