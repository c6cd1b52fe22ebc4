//! Gateway API: do routes attach to listeners that take them, and do references lead somewhere they may?

use std::sync::Arc;

use voile_model::mesh::intent::{Admission, AttachedRoute, Backend, Gateway, Parent, Server};
use voile_model::{Diagnostic, Hostname, Labels, Namespace, ResourceName, Source};

use crate::codes;
use crate::gateways::credential;
use crate::view::View;

/// Label that a cluster gives to each namespace: its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Where a route says what it attaches to.
const PARENTS: &str = "spec.parentRefs";

/// Checks Gateway API's gateways and routes.
pub(crate) fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    let intents = &view.mesh.intents;
    let gateways = intents.gateways.iter();
    let gateways: Vec<_> = gateways.filter(|one| one.gateway_api).collect();
    for gateway in &gateways {
        for server in &gateway.servers {
            for (namespace, name, at) in &server.credentials {
                let own = &gateway.name.namespace;
                let namespace = namespace.as_ref().unwrap_or(own);
                credential(view.mesh, namespace, name, at, found);
                let target = ResourceName::new(namespace.clone(), name.clone());
                granted(view, ("Gateway", own), ("Secret", &target), at, found);
            }
        }
    }
    for route in &intents.routes {
        for parent in &route.parents {
            attaches(view, route, parent, &gateways, found);
        }
        for backend in &route.backends {
            leads(view, route, backend, found);
        }
    }
}

fn error(code: &'static str, at: &Source, field: &str, said: String, help: &str) -> Diagnostic {
    let diagnostic = Diagnostic::error(code, at.clone(), said);
    diagnostic.field(field).help(help)
}

/// Whether what a route names is there; the gateway goes on to its listeners.
fn attaches(
    view: &View<'_>,
    route: &AttachedRoute,
    parent: &Parent,
    gateways: &[&Arc<Gateway>],
    found: &mut Vec<Diagnostic>,
) {
    let (kind, name) = (route.kind, &route.name);
    let missing = match &*parent.kind {
        "Service" if view.service(&parent.name).is_none() => codes::UNKNOWN_ROUTE_HOST,
        "Gateway" => match gateways.iter().find(|one| one.name == parent.name) {
            Some(gateway) => return found.extend(listens(view, route, parent, gateway)),
            None => codes::UNKNOWN_GATEWAY,
        },
        _ => return,
    };
    let said = format!(
        "{kind} {name} attaches to the {} {}, which is not there",
        parent.kind, parent.name
    );
    let help = "declare it, or correct name and namespace";
    found.push(error(missing, &parent.source, PARENTS, said, help));
}

/// Why no listener of a gateway serves a route.
fn listens(
    view: &View<'_>,
    route: &AttachedRoute,
    parent: &Parent,
    gateway: &Gateway,
) -> Option<Diagnostic> {
    let own = &route.name.namespace;
    let meant = |server: &&Server| {
        let section = parent.section.as_ref();
        section.is_none_or(|section| *section == server.name)
            && parent.port.is_none_or(|port| port == server.port)
    };
    let listeners: Vec<&Server> = gateway.servers.iter().filter(meant).collect();
    if listeners.is_empty() {
        let said = format!("the Gateway {} has no such listener", gateway.name);
        let names: Vec<&str> = gateway.servers.iter().map(|one| &*one.name).collect();
        let help = format!("it has {}", names.join(", "));
        let code = codes::UNKNOWN_GATEWAY;
        return Some(error(code, &parent.source, PARENTS, said, &help));
    }
    let admitted = |server: &&&Server| admits(view, &gateway.name.namespace, server, own);
    let taking: Vec<_> = listeners.iter().filter(admitted).collect();
    if taking.is_empty() {
        let said = format!(
            "no listener of the Gateway {} takes routes of {own}",
            gateway.name
        );
        let help = "set allowedRoutes.namespaces.from of the listener to All, or to Selector with labels of this namespace";
        let code = codes::ROUTE_NOT_ADMITTED;
        return Some(error(code, &parent.source, PARENTS, said, help));
    }
    let shares = |host: &Hostname| {
        let mut hosts = taking.iter().flat_map(|server| &server.hosts);
        hosts.any(|served| served.serves(host, own))
    };
    if route.hostnames.is_empty() || route.hostnames.iter().any(shares) {
        return None;
    }
    let said = format!(
        "no hostname of {} {} is one of the Gateway {}'s: nobody comes by this route",
        route.kind, route.name, gateway.name
    );
    let help = "name a host that a listener serves";
    let code = codes::HOST_NOT_IN_GATEWAY;
    Some(error(code, &route.source, "spec.hostnames", said, help))
}

fn admits(view: &View<'_>, own: &Namespace, server: &Server, from: &Namespace) -> bool {
    match &server.admission {
        Admission::All | Admission::Unknown => true,
        Admission::Same => own == from,
        Admission::Selected(selector) => {
            let declared = view.mesh.namespaces.get(from);
            let labels = declared.map_or(Labels::default(), |one| one.labels.clone());
            let mut wanted = selector.iter();
            wanted.all(|(key, value)| match &**key {
                NAMESPACE_NAME => **value == *from.as_str(),
                key => labels.get(key) == Some(&**value),
            })
        }
    }
}

fn leads(view: &View<'_>, route: &AttachedRoute, backend: &Backend, found: &mut Vec<Diagnostic>) {
    let field = "spec.rules.backendRefs";
    let (kind, name) = (route.kind, &route.name);
    if &*backend.kind != "Service" {
        return;
    }
    let own = &name.namespace;
    granted(
        view,
        (kind, own),
        ("Service", &backend.name),
        &backend.source,
        found,
    );
    let Some(service) = view.service(&backend.name) else {
        let said = format!(
            "{kind} {name} leads to the Service {}, which is not there",
            backend.name
        );
        let help = "declare it, or correct name and namespace";
        return found.push(error(
            codes::UNKNOWN_ROUTE_HOST,
            &backend.source,
            field,
            said,
            help,
        ));
    };
    match backend.port {
        Some(port) if service.port(port).is_none() => {
            let numbers: Vec<_> = service
                .ports
                .iter()
                .map(|one| one.number.to_string())
                .collect();
            let said = format!("{} has no port {port}", service.key);
            let help = format!("it has {}", numbers.join(", "));
            found.push(error(
                codes::UNKNOWN_ROUTE_PORT,
                &backend.source,
                field,
                said,
                &help,
            ));
        }
        None => {
            let said = format!("which port of {} is meant is not said", service.key);
            let help = "a Service as a backend needs `port`";
            found.push(error(
                codes::AMBIGUOUS_PORT,
                &backend.source,
                field,
                said,
                help,
            ));
        }
        Some(_) if !service.visibility.includes(own) => {
            let said = format!("{} is not exported to {own}", service.key);
            let help = format!("add {own} to its exportTo");
            found.push(error(
                codes::NOT_EXPORTED,
                &backend.source,
                field,
                said,
                &help,
            ));
        }
        Some(_) => {}
    }
}

/// Whether a reference from one namespace into another is permitted there.
fn granted(
    view: &View<'_>,
    (kind, from): (&str, &Namespace),
    (target_kind, target): (&str, &ResourceName),
    at: &Source,
    found: &mut Vec<Diagnostic>,
) {
    if *from == target.namespace {
        return;
    }
    let permits = view.mesh.intents.grants.iter().any(|grant| {
        let comes = |one: &(Arc<str>, Arc<str>)| &*one.0 == kind && *one.1 == *from.as_str();
        let goes = |one: &(Arc<str>, Option<Arc<str>>)| {
            &*one.0 == target_kind && one.1.as_ref().is_none_or(|name| *name == target.name)
        };
        let there = grant.name.namespace == target.namespace;
        there && grant.from.iter().any(comes) && grant.to.iter().any(goes)
    });
    if !permits {
        let said = format!(
            "the reference to the {target_kind} {target} leaves {from}, and no ReferenceGrant of {} permits it",
            target.namespace
        );
        let help = format!(
            "add a ReferenceGrant in {} from {kind} of {from} to {target_kind}",
            target.namespace
        );
        found.push(error(codes::NOT_GRANTED, at, "", said, &help));
    }
}
