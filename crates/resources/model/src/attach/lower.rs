//! Translates attached resources into Gateways and VirtualServices. Each listener becomes a Gateway, with a
//! VirtualService for each host, or one for all its connections (`connections`). Each Service with routes gets one
//! VirtualService for all clients. Each namespace with routes of its own gets another one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_traffic::route::{
    FieldMatch, Match, PathMatch, RankedMatch, Regex, ValueMatch, by_precedence,
};

use super::connections;
use super::deployment::{listening, selector};
use super::listeners::{ListenerStatus, OpenGateway};
use super::routes::{AttachmentTarget, RouteAttachmentStatus, hosts};
use crate::attach::inputs::AttachmentInputs;
use crate::mesh::action::HeaderRules;
use crate::mesh::gateway_api::RouteKind;
use crate::mesh::routing_intent::{
    DeclaredServer, Gateway, ServerHost, ServerTls, ServerTlsMode, TlsVersion,
};
use crate::mesh::{
    Criterion, HttpMatch, HttpRoute, MeshService, RouteDestination, Subject, TextMatch,
    VirtualService, Visibility, WeightedDestination,
};
use crate::names::{Hostname, Namespace, Port, ResourceName, ServiceKey};
use crate::source::Source;

/// The generated resources.
#[derive(Default)]
pub(super) struct LoweredGateway {
    pub(super) gateways: Vec<Arc<Gateway>>,
    pub(super) virtual_services: Vec<Arc<VirtualService>>,
}

/// Separator in generated names; users cannot write it.
const APART: char = '~';

pub(super) fn lower(
    world: &AttachmentInputs<'_>,
    opened: &[OpenGateway<'_>],
    outcomes: &[RouteAttachmentStatus<'_>],
) -> LoweredGateway {
    let mut made = LoweredGateway::default();
    for (place, open) in opened.iter().enumerate() {
        if open.refused.is_none() {
            gateway(world, (place, open), outcomes, &mut made);
        }
    }
    services(outcomes, &mut made);
    made
}

fn gateway(
    world: &AttachmentInputs<'_>,
    (place, open): (usize, &OpenGateway<'_>),
    outcomes: &[RouteAttachmentStatus<'_>],
    made: &mut LoweredGateway,
) {
    let ports = listening(world, open);
    for (index, heard) in open.listeners.iter().enumerate() {
        if !heard.is_accepted() {
            continue;
        }
        let (gateway, listener) = (open.gateway, heard.listener);
        let owner = heard.set.map(|set| set.name.to_string());
        let name = format!(
            "{}{APART}{}{APART}{}",
            gateway.name.name,
            owner.unwrap_or_default(),
            listener.name
        );
        let name = ResourceName::new(gateway.name.namespace.clone(), name);
        let server = server(heard, ports.get(&listener.port).copied());
        made.gateways.push(Arc::new(Gateway {
            name: name.clone(),
            source: listener.source.clone(),
            created: gateway.created,
            selector: Some(selector(world, gateway)),
            namespace: Some(gateway.name.namespace.clone()),
            servers: vec![server],
        }));
        let is_ours = |one: &&RouteAttachmentStatus<'_>| {
            one.parents.iter().any(|parent| match &parent.to {
                Ok(AttachmentTarget::Listeners(at, listeners)) => {
                    *at == place && listeners.contains(&index)
                }
                _ => false,
            })
        };
        let attached: Vec<&RouteAttachmentStatus<'_>> = outcomes.iter().filter(is_ours).collect();
        let blank = |part: &str, hosts: Vec<(Hostname, Source)>| VirtualService {
            name: ResourceName::new(
                name.namespace.clone(),
                format!("{}{APART}{part}", name.name),
            ),
            source: listener.source.clone(),
            created: None,
            hosts,
            gateways: vec![(Some(name.clone()), listener.source.clone())],
            visibility: Visibility::Public,
            http: Vec::new(),
            tls: Vec::new(),
            tcp: Vec::new(),
        };
        if !heard.has_requests() {
            let (hosts, layer) = connections::at_listener(heard, &attached);
            let hosts = hosts.into_iter();
            let hosts = hosts.map(|host| (host, listener.source.clone()));
            let mut one = blank("connections", hosts.collect());
            match heard.passes_tls() {
                true => one.tls = layer,
                false => one.tcp = layer,
            }
            made.virtual_services.push(Arc::new(one));
            continue;
        }
        for (host, http) in virtual_hosts(open, heard, &attached) {
            let hosts = vec![(host.clone(), listener.source.clone())];
            let one = blank(host.as_str(), hosts);
            made.virtual_services
                .push(Arc::new(VirtualService { http, ..one }));
        }
    }
}

fn server(heard: &ListenerStatus<'_>, listens: Option<Port>) -> DeclaredServer {
    let listener = heard.listener;
    let any = || Hostname::new("*").expect("invariant: `*` is a host's name");
    let certificate = heard.certificate.iter();
    let credentials = certificate.map(|secret| {
        let namespace = Some(secret.namespace.clone());
        (namespace, secret.name.clone(), listener.source.clone())
    });
    DeclaredServer {
        source: listener.source.clone(),
        name: listener.name.clone(),
        port: listener.port,
        listens,
        protocol: listener.protocol.clone(),
        bind: None,
        hosts: vec![ServerHost {
            namespace: None,
            host: heard.host().cloned().unwrap_or_else(any),
        }],
        tls: heard.in_tls().then(|| ServerTls {
            mode: match heard.passes_tls() {
                true => ServerTlsMode::Passthrough,
                false => heard.mode,
            },
            https_redirect: false,
            oldest: TlsVersion::V12,
            newest: TlsVersion::V13,
            cipher_suites: listener
                .tls
                .as_ref()
                .map(|tls| tls.cipher_suites.clone())
                .unwrap_or_default(),
            files: None,
            authorities: heard.authorities.clone(),
            unverified: heard.unverified,
        }),
        credentials: credentials.collect(),
        granted: true,
    }
}

/// The hosts of a listener, each with the routes that are in force there. A host that another listener of the port serves more closely
/// is that one's alone.
fn virtual_hosts(
    open: &OpenGateway<'_>,
    heard: &ListenerStatus<'_>,
    attached: &[&RouteAttachmentStatus<'_>],
) -> Vec<(Hostname, Vec<HttpRoute>)> {
    let any = Hostname::new("*").expect("invariant: `*` is a host's name");
    let own = heard.host().unwrap_or(&any);
    let mut all: BTreeSet<Hostname> = [own.clone()].into();
    for one in attached {
        let shared = hosts(heard.host(), &one.route.hostnames);
        all.extend(shared.map(|host| host.unwrap_or(&any).clone()));
    }
    let closer = |host: &Hostname| {
        open.listeners.iter().any(|other| {
            let Some(theirs) = other.host() else {
                return false;
            };
            let same_place = other.listener.port == heard.listener.port
                && other.family() == heard.family()
                && other.is_open();
            same_place && theirs != own && own.covers(theirs) && theirs.covers(host)
        })
    };
    all.retain(|host| !closer(host));
    let routed = |host: Hostname| {
        let http = at_host(&host, attached);
        (host, http)
    };
    let mut made: Vec<_> = all.into_iter().map(routed).collect();
    if heard.in_tls() {
        // A client's server name selects a TLS listener before any host does. Hosts of another listener therefore get
        // no routes here.
        let others = open.listeners.iter().filter_map(ListenerStatus::host);
        let others: BTreeSet<&Hostname> = others.filter(|host| closer(host)).collect();
        made.extend(others.into_iter().map(|host| (host.clone(), Vec::new())));
    }
    made
}

/// Precision of a host match: the exact name first, then the longest pattern.
pub(super) type Closeness = (bool, usize);

pub(super) fn closeness(own: &Hostname) -> Closeness {
    (!own.is_wildcard(), own.as_str().len())
}

/// Routes for a host: those with the closest own name first, and among these in Gateway API's order.
fn at_host(host: &Hostname, attached: &[&RouteAttachmentStatus<'_>]) -> Vec<HttpRoute> {
    let mut by_closeness: BTreeMap<Closeness, Vec<&RouteAttachmentStatus<'_>>> = BTreeMap::new();
    for one in attached {
        let covering = one.route.hostnames.iter();
        let closest = match one.route.hostnames.is_empty() {
            true => Some((false, 0)),
            // A route for only a part of the host has a virtual host of its own.
            false => covering.filter(|own| own.covers(host)).map(closeness).max(),
        };
        if let Some(closest) = closest {
            by_closeness.entry(closest).or_default().push(one);
        }
    }
    let mut routes = Vec::new();
    for (_, outcomes) in by_closeness.into_iter().rev() {
        let rules = outcomes.into_iter();
        routes.extend(ranked(rules.map(|one| (one, None))));
    }
    until_all_is_taken(routes)
}

/// A route, and the port of a Service that is meant.
pub(super) type Said<'a> = (&'a RouteAttachmentStatus<'a>, Option<Port>);

/// Rules, a route for each match, in the order in which Gateway API asks them.
fn ranked<'a>(all: impl Iterator<Item = Said<'a>>) -> Vec<HttpRoute> {
    let mut ranked = Vec::new();
    for (outcome, port) in all {
        let route = outcome.route;
        for rule in &outcome.rules {
            for one in &rule.matches {
                let mut wanted = one.clone();
                wanted.criteria.extend(port.map(only));
                ranked.push(RankedMatch {
                    wanted: rank(one),
                    created: route.created.and_then(|time| u64::try_from(time).ok()),
                    name: route.name.to_string(),
                    of: HttpRoute {
                        matches: vec![wanted],
                        ..rule.clone()
                    },
                });
            }
        }
    }
    by_precedence(&mut ranked);
    let routes = ranked.into_iter().map(|one| one.of);
    // A route that matches everything goes after regular expressions; precedence does not rank them.
    let (last, mut routes): (Vec<_>, Vec<_>) = routes.partition(takes_all);
    routes.extend(last);
    routes
}

/// That a port was called.
pub(super) fn only(port: Port) -> (Subject, Criterion) {
    let number = TextMatch::Exact(port.to_string().into());
    (Subject::Port, Criterion::Is(number))
}

/// The properties of a match that precedence compares.
fn rank(one: &HttpMatch) -> Match {
    let mut wanted = Match::default();
    for (subject, criterion) in &one.criteria {
        let Criterion::Is(text) = criterion else {
            continue;
        };
        match (subject, text) {
            (Subject::Uri, TextMatch::Exact(path)) => {
                wanted.path = PathMatch::Exact(path.to_string());
            }
            (Subject::Uri, TextMatch::Prefix(path)) => {
                wanted.path = PathMatch::Prefix(path.to_string());
            }
            (Subject::Uri, TextMatch::Segments(path)) => {
                wanted.path = PathMatch::Segments(path.to_string());
            }
            (Subject::Uri, TextMatch::Regex(text)) => {
                // Read before: an expression that is none was refused.
                wanted.path = Regex::new(text).map_or(PathMatch::Any, PathMatch::Regex);
            }
            (Subject::Method, TextMatch::Exact(method)) => {
                let exact = voile_traffic::route::TextMatch::Exact(method.to_string());
                wanted.method = Some(exact);
            }
            (Subject::Header(name), _) => {
                let there = FieldMatch::new(name, ValueMatch::Present);
                wanted.headers.push(there);
            }
            (Subject::QueryParam(name), _) => {
                wanted
                    .query
                    .push(FieldMatch::new(name, ValueMatch::Present));
            }
            _ => {}
        }
    }
    wanted
}

/// Returns true if the route matches every request.
fn takes_all(route: &HttpRoute) -> bool {
    let whole = |one: &HttpMatch| {
        let path = one.criteria.get(&Subject::Uri);
        let root = TextMatch::Segments("/".into());
        one.criteria.len() == 1 && path == Some(&Criterion::Is(root))
    };
    route.matches.iter().any(whole)
}

/// Drops routes after one that matches every request.
fn until_all_is_taken(mut routes: Vec<HttpRoute>) -> Vec<HttpRoute> {
    if let Some(last) = routes.iter().position(takes_all) {
        routes.truncate(last + 1);
    }
    routes
}

/// Routes of one Service, each with the port that is meant.
struct OfService<'a> {
    service: &'a MeshService,
    source: &'a Source,
    /// Routes in its own namespace: for all clients.
    producer: Vec<Said<'a>>,
    /// Of others: for their own clients.
    consumers: BTreeMap<&'a Namespace, Vec<Said<'a>>>,
}

fn services<'a>(outcomes: &'a [RouteAttachmentStatus<'a>], made: &mut LoweredGateway) {
    let mut all: BTreeMap<&ServiceKey, OfService<'_>> = BTreeMap::new();
    for one in outcomes {
        for parent in &one.parents {
            let Ok(AttachmentTarget::Service(service, port)) = &parent.to else {
                continue;
            };
            let of = all.entry(&service.key).or_insert_with(|| OfService {
                service,
                source: &one.route.source,
                producer: Vec::new(),
                consumers: BTreeMap::new(),
            });
            let said: Said<'_> = (one, *port);
            let from = &one.route.name.namespace;
            match *from == service.key.namespace {
                true => of.producer.push(said),
                false => of.consumers.entry(from).or_default().push(said),
            }
        }
    }
    for of in all.into_values() {
        for (client, said) in &of.consumers {
            let only = Visibility::Namespaces(vec![(*client).clone()]);
            made.virtual_services
                .push(of_service(&of, only, said, &of.producer));
        }
        if !of.producer.is_empty() {
            made.virtual_services
                .push(of_service(&of, Visibility::Public, &of.producer, &[]));
        }
    }
}

/// Rules for requests to all ports of a Service: a port of which nothing is said is led as `otherwise` says, and else to itself.
fn of_all_ports(of: &OfService<'_>, said: &[Said<'_>], otherwise: &[Said<'_>]) -> Vec<HttpRoute> {
    let mut routes = ranked(said.iter().copied());
    if routes.is_empty() {
        return routes;
    }
    for port in of.service.ports.iter().map(|port| port.number) {
        let is_meant = |(_, meant): &&Said<'_>| meant.is_none_or(|meant| meant == port);
        let says = |(outcome, _): &Said<'_>| !outcome.rules.is_empty();
        if said.iter().filter(is_meant).any(says) {
            continue;
        }
        let theirs = otherwise.iter().filter(is_meant);
        let theirs = ranked(theirs.map(|(outcome, _)| (*outcome, Some(port))));
        match theirs.is_empty() {
            true => routes.push(straight(of, port)),
            false => routes.extend(theirs),
        }
    }
    routes
}

/// From a port of a Service to itself.
fn straight(of: &OfService<'_>, port: Port) -> HttpRoute {
    let source = of.source;
    HttpRoute {
        source: source.clone(),
        name: None,
        matches: vec![HttpMatch {
            source: source.clone(),
            name: None,
            criteria: [only(port)].into_iter().collect(),
            any_case: false,
        }],
        route: vec![WeightedDestination {
            to: RouteDestination {
                source: source.clone(),
                field: "spec.parentRefs".into(),
                host: of.service.key.hostname.clone(),
                subset: None,
                port: Some((port, source.clone())),
                nowhere: None,
            },
            weight: 1,
            headers: HeaderRules::default(),
        }],
        answer: None,
        mirrors: Vec::new(),
        delegate: None,
        rewrite: None,
        headers: HeaderRules::default(),
        fault: None,
        cors: None,
        timeout: None,
        retries: None,
        missing_status: HttpRoute::MISSING,
    }
}

fn of_service(
    of: &OfService<'_>,
    visibility: Visibility,
    said: &[Said<'_>],
    otherwise: &[Said<'_>],
) -> Arc<VirtualService> {
    let (key, source) = (&of.service.key, of.source);
    let (namespace, created) = match &visibility {
        // Routes from the clients' own namespace precede routes for all clients.
        Visibility::Namespaces(own) => (own[0].clone(), Some(i64::MIN)),
        Visibility::Public => {
            let ages = said.iter().filter_map(|(one, _)| one.route.created);
            (key.namespace.clone(), ages.min())
        }
    };
    let http = until_all_is_taken(of_all_ports(of, said, otherwise));
    Arc::new(VirtualService {
        name: ResourceName::new(namespace, format!("{APART}{}", key.hostname)),
        source: source.clone(),
        created,
        hosts: vec![(key.hostname.clone(), source.clone())],
        gateways: vec![(None, source.clone())],
        visibility,
        http,
        tls: connections::of_service(said, RouteKind::Tls),
        tcp: connections::of_service(said, RouteKind::Tcp),
    })
}
