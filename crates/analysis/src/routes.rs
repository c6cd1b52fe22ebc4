//! VirtualServices: do they lead somewhere, is each of their routes ever reached, and is each host routed once? Those that ask
//! for what is not in force yet are looked at all the same.

mod shadows;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use voile_model::mesh::intent::Gateway;
use voile_model::mesh::{
    HttpMatch, HttpRoute, Protocol, RequestAuthentication, RouteDestination, Service, Transport,
    VirtualService,
};
use voile_model::{Diagnostic, Hostname, ResourceName, Source};

use crate::codes;
use crate::view::{Found, View};

/// Checks all VirtualServices.
pub(crate) fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    let intents = &view.mesh.intents;
    let gateways = intents.gateways.iter();
    let gateways: BTreeMap<_, _> = gateways.map(|one| (&one.name, one)).collect();
    let services = intents.virtual_services.iter();
    let by_name: BTreeMap<_, _> = services.clone().map(|one| (&one.name, one)).collect();
    for service in services {
        let mut checking = Checking {
            view,
            service,
            gateways: &gateways,
            found,
        };
        for destination in service.destinations() {
            checking.destination(destination);
        }
        checking.hosts();
        checking.gateways();
        checking.protocols();
        checking.claims();
        for route in &service.http {
            checking.delegate(route, &by_name);
        }
        shadows::check(service, found);
    }
    unused(&intents.virtual_services, found);
    conflicts(&intents.virtual_services, found);
}

struct Checking<'a> {
    view: &'a View<'a>,
    service: &'a VirtualService,
    gateways: &'a BTreeMap<&'a ResourceName, &'a Arc<Gateway>>,
    found: &'a mut Vec<Diagnostic>,
}

impl Checking<'_> {
    fn error(&mut self, code: &'static str, at: &Source, field: &str, said: String, help: String) {
        let diagnostic = Diagnostic::error(code, at.clone(), said);
        self.found.push(diagnostic.field(field).help(help));
    }

    fn warn(&mut self, code: &'static str, at: &Source, said: String, help: &str) {
        let diagnostic = Diagnostic::warning(code, at.clone(), said);
        self.found.push(diagnostic.help(help));
    }

    /// Hosts that are no service: proxies ask for the routes of services.
    fn hosts(&mut self) {
        let (service, name) = (self.service, &self.service.name);
        if !service.is_for_mesh() {
            return;
        }
        for (host, at) in &service.hosts {
            let nobody = match host.is_wildcard() {
                true => !self
                    .view
                    .mesh
                    .services
                    .keys()
                    .any(|key| host.covers(&key.hostname)),
                false => matches!(self.view.find(host, &name.namespace), Found::Nothing),
            };
            if nobody {
                let said = format!(
                    "VirtualService {name} routes {host}, which is no service: nobody asks for its routes"
                );
                let help = match self.view.like(host) {
                    Some(like) => format!("there is {}", like.key.hostname),
                    None => "declare a Service or ServiceEntry for it".to_owned(),
                };
                let code = codes::ROUTED_HOST_WITHOUT_SERVICE;
                self.error(code, at, "spec.hosts", said, help);
            }
        }
    }

    fn destination(&mut self, to: &RouteDestination) {
        let (name, from) = (&self.service.name, &self.service.name.namespace);
        let field = format!("{}.host", to.field);
        let service = match self.view.find(&to.host, from) {
            Found::Seen(service) => service,
            Found::Hidden(service) => {
                let said = format!(
                    "VirtualService {name} leads to {}, which {} does not export to {from}",
                    to.host, service.source
                );
                let help = format!("add {from} to its exportTo");
                return self.error(codes::NOT_EXPORTED, &to.source, &field, said, help);
            }
            Found::Nothing => {
                let said = format!(
                    "VirtualService {name} leads to {}, which is no service",
                    to.host
                );
                let help = match self.view.like(&to.host) {
                    Some(like) => format!("there is {}", like.key.hostname),
                    None => "declare a Service or ServiceEntry for it".to_owned(),
                };
                return self.error(codes::UNKNOWN_ROUTE_HOST, &to.source, &field, said, help);
            }
        };
        self.port(to, service);
        if let Some((subset, at)) = &to.subset {
            self.subset(to, subset, at);
        }
    }

    fn port(&mut self, to: &RouteDestination, service: &Service) {
        let shown = || {
            let numbers = service.ports.iter().map(|port| port.number.to_string());
            numbers.collect::<Vec<_>>().join(", ")
        };
        match &to.port {
            Some((port, at)) if service.port(*port).is_none() => {
                let said = format!("{} has no port {port}", service.key);
                let help = format!("it has {}", shown());
                let field = format!("{}.port.number", to.field);
                self.error(codes::UNKNOWN_ROUTE_PORT, at, &field, said, help);
            }
            None if service.ports.len() > 1 => {
                let said = format!(
                    "{} has several ports ({}): which is meant is not said",
                    service.key,
                    shown()
                );
                let help = "add port: {number: …}".to_owned();
                let field = format!("{}.port", to.field);
                self.error(codes::AMBIGUOUS_PORT, &to.source, &field, said, help);
            }
            Some(_) | None => {}
        }
    }

    fn subset(&mut self, to: &RouteDestination, subset: &Arc<str>, at: &Source) {
        let rules = &self.view.mesh.intents.destinations;
        let from = &self.service.name.namespace;
        let covering = rules.iter().filter(|rule| rule.host.covers(&to.host));
        let (seen, hidden): (Vec<_>, Vec<_>) =
            covering.partition(|rule| rule.visibility.includes(from));
        let declared: BTreeSet<&str> = seen
            .iter()
            .flat_map(|rule| &rule.subsets)
            .map(|subset| &*subset.name)
            .collect();
        if declared.contains(&**subset) {
            return;
        }
        let elsewhere = hidden
            .iter()
            .find(|rule| rule.subsets.iter().any(|one| one.name == *subset));
        let field = format!("{}.subset", to.field);
        if let Some(rule) = elsewhere {
            let said = format!(
                "subset `{subset}` of {} is declared by DestinationRule {}, which is not exported to {from}",
                to.host, rule.name
            );
            let help = format!("add {from} to its exportTo");
            return self.error(codes::NOT_EXPORTED, at, &field, said, help);
        }
        let said = format!("no DestinationRule of {} has a subset `{subset}`", to.host);
        let help = match declared.is_empty() {
            true => "add a DestinationRule that declares it".to_owned(),
            false => voile_model::suggest(subset, declared.iter().copied()),
        };
        self.error(codes::UNKNOWN_SUBSET, at, &field, said, help);
    }

    /// Gateways that are not there, and hosts that they do not serve.
    fn gateways(&mut self) {
        let (service, name) = (self.service, &self.service.name);
        let field = "spec.gateways";
        for (gateway, at) in &service.gateways {
            let Some(gateway) = gateway else { continue };
            let Some(known) = self.gateways.get(gateway) else {
                let said = format!(
                    "VirtualService {name} names the Gateway {gateway}, which is not there"
                );
                let mut names = self.gateways.keys().map(|name| (*name).to_string());
                let help = match names.next() {
                    Some(first) => format!("there is {first}"),
                    None => {
                        "add it, or leave `gateways` out for the proxies of the mesh".to_owned()
                    }
                };
                self.error(codes::UNKNOWN_GATEWAY, at, field, said, help);
                continue;
            };
            let mut served = known.servers.iter().flat_map(|server| &server.hosts);
            let serves = |host: &Hostname| {
                let namespace = &name.namespace;
                let mut hosts = served.clone();
                hosts.any(|served| served.serves(host, namespace))
            };
            let lost = service.hosts.iter().find(|(host, _)| !serves(host));
            if let (Some((host, at)), Some(_)) = (lost, served.next()) {
                let said = format!(
                    "the Gateway {gateway} does not serve {host}: nobody comes by this route"
                );
                let help = "add the host to the Gateway's servers, or name a host that it serves";
                let code = codes::HOST_NOT_IN_GATEWAY;
                self.error(code, at, "spec.hosts", said, help.to_owned());
            }
        }
    }

    /// Routes of one layer for a host that speaks another.
    fn protocols(&mut self) {
        let service = self.service;
        if !service.is_for_mesh() {
            return;
        }
        for (host, _) in &service.hosts {
            let Found::Seen(routed) = self.view.find(host, &service.name.namespace) else {
                continue;
            };
            let ports = routed
                .ports
                .iter()
                .filter(|p| p.transport == Transport::Tcp);
            let opaque = |protocol| matches!(protocol, Protocol::Tcp | Protocol::Tls);
            let declared =
                |protocol| matches!(protocol, Protocol::Http | Protocol::Http2 | Protocol::Grpc);
            let mut protocols = ports.map(|port| port.protocol).peekable();
            if protocols.peek().is_none() {
                continue;
            }
            let all: Vec<Protocol> = protocols.collect();
            let (all_opaque, all_http) = (
                all.iter().all(|p| opaque(*p)),
                all.iter().all(|p| declared(*p)),
            );
            let others = service.tcp.first().or(service.tls.first());
            let (route, what, kind) = match (service.http.first(), others) {
                (Some(route), _) if all_opaque => (&route.source, "HTTP", "`tcp` or `tls`"),
                (_, Some(route)) if all_http => (&route.source, "TCP", "`http`"),
                _ => continue,
            };
            let said = format!(
                "{what} routes for {host} are not looked at: no port of {} speaks that",
                routed.key
            );
            let help = format!("write {kind} routes, or declare what its ports speak");
            self.warn(codes::ROUTE_OF_OTHER_PROTOCOL, route, said, &help);
        }
    }

    /// Tokens are asked about at gateways: who verifies them there?
    fn claims(&mut self) {
        let asks = |route: &&HttpRoute| route.matches.iter().any(HttpMatch::asks_claims);
        let Some(route) = self.service.http.iter().find(asks) else {
            return;
        };
        let verifying = |one: &Arc<RequestAuthentication>| !one.rules.is_empty();
        for (gateway, _) in &self.service.gateways {
            let selector = gateway.as_ref().and_then(|name| self.gateways.get(name));
            let Some(selector) = selector.and_then(|gateway| gateway.selector.as_ref()) else {
                continue;
            };
            let unverified = self
                .view
                .selected_anywhere(selector)
                .into_iter()
                .find(|one| {
                    let mesh = self.view.mesh;
                    let holding = mesh.request_authentication_for_labels(one.namespace, one.labels);
                    !holding.iter().any(|one| verifying(one))
                });
            if let Some(subject) = unverified {
                let said = format!(
                    "requests are routed by what a token says, and {} verifies none",
                    subject.name
                );
                let help = "write a RequestAuthentication for the gateway's workloads";
                self.warn(codes::CLAIMS_WITHOUT_TOKENS, &route.source, said, help);
            }
        }
    }

    fn delegate(&mut self, route: &HttpRoute, all: &BTreeMap<&ResourceName, &Arc<VirtualService>>) {
        let Some(delegate) = &route.delegate else {
            return;
        };
        let name = &delegate.name;
        let (said, help) = match all.get(name) {
            None => (
                format!("VirtualService {name}, to which this route hands over, is not there"),
                "add it, or correct the name",
            ),
            Some(other) if !other.hosts.is_empty() => (
                format!("VirtualService {name} has hosts of its own, and cannot be handed over to"),
                "remove its `hosts`",
            ),
            Some(other) if other.http.iter().any(|route| route.delegate.is_some()) => (
                format!("VirtualService {name} hands over too: that goes one step only"),
                "write its routes out",
            ),
            Some(_) => return,
        };
        let field = "spec.http.delegate";
        self.error(
            codes::UNKNOWN_DELEGATE,
            &delegate.source,
            field,
            said,
            help.to_owned(),
        );
    }
}

/// One without hosts is there for others to hand over to; if nobody does, no request ever takes its routes.
fn unused(all: &[Arc<VirtualService>], found: &mut Vec<Diagnostic>) {
    let routes = all.iter().flat_map(|one| &one.http);
    let named = routes.filter_map(|route| Some(&route.delegate.as_ref()?.name));
    let named: BTreeSet<&ResourceName> = named.collect();
    for one in all.iter().filter(|one| one.hosts.is_empty()) {
        if !named.contains(&one.name) {
            let said = format!(
                "VirtualService {} has no hosts, and no other hands over to it: no request takes its routes",
                one.name
            );
            let diagnostic =
                Diagnostic::warning(codes::DELEGATE_OF_NOBODY, one.source.clone(), said);
            let help = "write `hosts`, or `delegate` in the VirtualService that has the host";
            found.push(diagnostic.field("spec.hosts").help(help));
        }
    }
}

/// One host, one VirtualService: at each gateway, and in the mesh of each namespace that sees both. Those of gateways are merged
/// by Istio in an order that nobody wrote; those of the mesh are not merged at all.
fn conflicts(all: &[Arc<VirtualService>], found: &mut Vec<Diagnostic>) {
    type Place<'a> = (Option<&'a ResourceName>, &'a Hostname);
    let mut taken: HashMap<Place<'_>, Vec<&VirtualService>> = HashMap::new();
    for service in all {
        for (gateway, _) in &service.gateways {
            for (host, at) in &service.hosts {
                let first = taken.entry((gateway.as_ref(), host)).or_default();
                let together = |one: &&&VirtualService| {
                    let own = &service.name.namespace;
                    let other = &one.name.namespace;
                    one.name != service.name
                        && (one.visibility.includes(own) || service.visibility.includes(other))
                };
                if let Some(first) = first.iter().find(together) {
                    let code = codes::CONFLICTING_ROUTES;
                    let place = match gateway {
                        None => "in the mesh".to_owned(),
                        Some(gateway) => format!("at {gateway}"),
                    };
                    let said = format!(
                        "VirtualService {} routes {host} {place}, and so does {} in {}",
                        service.name, first.name, first.source
                    );
                    let help =
                        "put all routes of a host into one VirtualService, or use `delegate`";
                    let diagnostic = match gateway {
                        None => Diagnostic::error(code, at.clone(), said),
                        Some(_) => Diagnostic::warning(code, at.clone(), said),
                    };
                    found.push(diagnostic.field("spec.hosts").help(help));
                }
                first.push(service);
            }
        }
    }
}
