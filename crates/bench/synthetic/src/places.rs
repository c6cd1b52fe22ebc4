//! Addresses of callees: from the command line, else from Kubernetes' variables, else by DNS.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use voile_graph::mesh::{PORT, variable};
use voile_graph::{Graph, GraphService, ServiceCall};

/// Address of a callee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CalleeAddress {
    /// At these addresses; connections go in turn.
    Fixed(Vec<SocketAddr>),
    /// A name, resolved when a connection is made, and a port.
    Named(String, u16),
}

/// Finds the place of a call's callee.
pub(crate) fn find(
    graph: &Graph,
    call: &ServiceCall,
    own_namespace: &str,
    told: &BTreeMap<String, Vec<SocketAddr>>,
    variables: &dyn Fn(&str) -> Option<String>,
) -> CalleeAddress {
    let callee = &graph.services[call.service];
    let (host, port) = match &call.hostname {
        None => (None, PORT),
        Some(hostname) => {
            let (host, port) = split(hostname);
            (Some(host), port.unwrap_or(80))
        }
    };
    let namespace = callee.namespace.as_deref().unwrap_or(own_namespace);
    // A host that is the service by another name is where the service is.
    let is_service = host.is_none_or(|host| is_name_of(host, callee, namespace));
    if is_service {
        if let Some(addresses) = told.get(&*callee.name) {
            return CalleeAddress::Fixed(addresses.clone());
        }
        let elsewhere = namespace != own_namespace;
        let prefix = variable(callee, elsewhere, own_namespace);
        let address = variables(&format!("{prefix}_SERVICE_HOST"))
            .and_then(|host| host.parse::<IpAddr>().ok())
            .zip(variables(&format!("{prefix}_SERVICE_PORT")).and_then(|port| port.parse().ok()));
        if let Some((ip, port)) = address {
            return CalleeAddress::Fixed(vec![SocketAddr::new(ip, port)]);
        }
    }
    let name = match host {
        Some(host) => host.to_owned(),
        None if namespace == own_namespace => callee.name.to_string(),
        None => format!("{}.{namespace}", callee.name),
    };
    CalleeAddress::Named(name, port)
}

/// The host and port that a call's request names.
pub(crate) fn authority(graph: &Graph, call: &ServiceCall) -> String {
    match &call.hostname {
        Some(hostname) => hostname.to_string(),
        None => {
            let callee = &graph.services[call.service];
            match &callee.namespace {
                Some(namespace) => format!("{}.{namespace}:{PORT}", callee.name),
                None => format!("{}:{PORT}", callee.name),
            }
        }
    }
}

fn split(hostname: &str) -> (&str, Option<u16>) {
    match hostname.split_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (hostname, None),
    }
}

fn is_name_of(host: &str, service: &GraphService, namespace: &str) -> bool {
    let Some(rest) = host.strip_prefix(&*service.name) else {
        return false;
    };
    let Some(rest) = rest.strip_prefix('.') else {
        return rest.is_empty();
    };
    // Istio's suffix for services of all clusters: here there is one cluster.
    if rest == "global" {
        return true;
    }
    let rest = rest.strip_prefix(namespace);
    rest.is_some_and(|rest| matches!(rest, "" | ".svc" | ".svc.cluster.local" | ".global"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn callees_are_found_by_what_is_told_then_variables_then_names() {
        let mut other = GraphService::named("b-x");
        other.namespace = Some("far".into());
        let graph = Graph {
            services: vec![GraphService::named("a"), GraphService::named("b-x"), other],
        };
        let told = BTreeMap::from([("a".to_owned(), vec![SocketAddr::from(([127, 0, 0, 1], 1))])]);
        let variables = |name: &str| {
            let value = match name {
                "B_X_SERVICE_HOST" => "127.0.0.2",
                "B_X_FAR_SERVICE_HOST" => "127.0.0.3",
                "B_X_SERVICE_PORT" | "B_X_FAR_SERVICE_PORT" => "8080",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let fixed = |text: &str| CalleeAddress::Fixed(vec![text.parse().expect("an address")]);
        let named = |name: &str, port| CalleeAddress::Named(name.to_owned(), port);
        for (service, hostname, expected) in [
            (0, None, fixed("127.0.0.1:1")),
            (0, Some("a.here.svc:99"), fixed("127.0.0.1:1")),
            (0, Some("ab:99"), named("ab", 99)),
            (1, None, fixed("127.0.0.2:8080")),
            (
                1,
                Some("b-x.here.svc.cluster.local:8080"),
                fixed("127.0.0.2:8080"),
            ),
            (
                1,
                Some("b-x.far.svc.cluster.local:8080"),
                named("b-x.far.svc.cluster.local", 8080),
            ),
            (1, Some("b-x.global:8080"), fixed("127.0.0.2:8080")),
            (2, None, fixed("127.0.0.3:8080")),
            (2, Some("b-x.far.global"), fixed("127.0.0.3:8080")),
            (2, Some("example.com"), named("example.com", 80)),
        ] {
            let mut call = ServiceCall::to(service, 0);
            call.hostname = hostname.map(Arc::from);
            let found = find(&graph, &call, "here", &told, &variables);
            assert_eq!(found, expected, "{service} {hostname:?}");
        }
        let found = find(&graph, &ServiceCall::to(2, 0), "here", &told, &|_| None);
        assert_eq!(found, named("b-x.far", 8080));
    }
}
