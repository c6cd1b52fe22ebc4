//! VirtualServices as the routes of the services that they name, with their own names resolved. Clients of one namespace are told
//! the same; what a namespace may not see, or what is for another, is not among it. Most services have one answer for all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use prost::Message;
use voile_model::mesh::action::HeaderRules;
use voile_model::mesh::{
    Criterion, HttpMatch, HttpRoute, Mesh, RouteDestination as Written, Routing, Service, Subject,
    TextMatch, VirtualService, Visibility, holding,
};
use voile_model::{Hostname, Labels, Namespace, Port, ResourceName};
use voile_xds::server::Resource;
use voile_xds::wire::{
    Mirror, RequestMatch, RetryPolicy, Route, RouteDestination, RouteTarget, Routes,
};

use super::Making;
use crate::shards::Shards;
use crate::snapshot::{Routed, resource};

impl Making<'_> {
    /// Routes of all services that have any.
    pub(super) fn routes(&mut self) {
        let routing = Routing::new(self.mesh);
        if routing.is_empty() {
            self.snapshot.routes = Shards::default();
            return;
        }
        let answers = Answers::new(self.mesh);
        let mut made: BTreeMap<Arc<str>, Routed> = BTreeMap::new();
        for service in self.mesh.services.values() {
            let holding = routing.of(service);
            if !holding.is_empty() {
                let name: Arc<str> = service.key.to_string().into();
                let routed = answers.routed(service, &name, &holding);
                made.insert(name, routed);
            }
        }
        let routes = &mut self.snapshot.routes;
        let names = routes.iter().map(|(name, _)| name);
        let gone = names.filter(|name| !made.contains_key(*name));
        let gone: Vec<Arc<str>> = gone.cloned().collect();
        gone.iter().for_each(|name| drop(routes.remove(name)));
        let previous = self.previous.map(|old| &old.routes);
        for (name, mut routed) in made {
            if let Some(old) = previous.and_then(|old| old.get(&name)) {
                routed.share(old);
            }
            if routes.get(&name) != Some(&routed) {
                routes.insert(name, routed);
            }
        }
    }
}

/// Services by host.
fn hosts(mesh: &Mesh) -> HashMap<&Hostname, Vec<&Arc<Service>>> {
    let mut hosts: HashMap<&Hostname, Vec<&Arc<Service>>> = HashMap::new();
    for service in mesh.services.values() {
        hosts
            .entry(&service.key.hostname)
            .or_default()
            .push(service);
    }
    hosts
}

/// Where routes are to hold.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// At the proxies of the mesh.
    Mesh,
    /// Where a Gateway's traffic comes in.
    Gateway(&'a ResourceName),
}

pub(super) struct Answers<'a> {
    mesh: &'a Mesh,
    hosts: HashMap<&'a Hostname, Vec<&'a Arc<Service>>>,
}

impl<'a> Answers<'a> {
    pub(super) fn new(mesh: &'a Mesh) -> Self {
        Self {
            mesh,
            hosts: hosts(mesh),
        }
    }
}

impl Answers<'_> {
    fn routed(&self, service: &Service, name: &Arc<str>, all: &[&Arc<VirtualService>]) -> Routed {
        let answer = |namespace: Option<&Namespace>| {
            let one = holding(all, service, namespace)?;
            let routes = Routes {
                routes: self.routes(one, namespace, Place::Mesh).collect(),
            };
            let body = routes.encode().encode_to_vec();
            Some(Arc::new(resource(name.clone(), Vec::new(), body)))
        };
        let general: Option<Arc<Resource>> = answer(None);
        let apart = self.apart(all).into_iter();
        let apart = apart.map(|namespace| (answer(Some(&namespace)), namespace));
        // Who is told what all are told is nobody apart.
        let apart = apart.filter(|(told, _)| *told != general);
        Routed {
            apart: apart.map(|(told, namespace)| (namespace, told)).collect(),
            general,
        }
    }

    /// The namespaces whose clients may be told otherwise than all others: those that somebody names.
    fn apart(&self, all: &[&Arc<VirtualService>]) -> BTreeSet<Namespace> {
        let mut named = BTreeSet::new();
        for one in all {
            named.extend(one.namespaces());
            for to in one.destinations() {
                for service in self.hosts.get(&to.host).into_iter().flatten() {
                    if let Visibility::Namespaces(list) = &service.visibility {
                        named.extend(list.iter().cloned());
                    }
                }
            }
        }
        named
    }

    /// What a VirtualService says to clients in a namespace.
    pub(super) fn routes(
        &self,
        one: &VirtualService,
        namespace: Option<&Namespace>,
        place: Place<'_>,
    ) -> impl Iterator<Item = Route> {
        let routes = one.http.iter();
        routes.filter_map(move |route| self.route(one, route, namespace, place))
    }

    /// None where no request of these clients can take it.
    fn route(
        &self,
        one: &VirtualService,
        route: &HttpRoute,
        namespace: Option<&Namespace>,
        place: Place<'_>,
    ) -> Option<Route> {
        let own = &one.name.namespace;
        let is_theirs = |one: &&HttpMatch| {
            let of = one.source_namespace();
            let here = match place {
                Place::Mesh => one.is_for_mesh(),
                Place::Gateway(name) => one.is_for_gateway(name, own),
            };
            here && of.is_none_or(|of| namespace.is_some_and(|own| own.as_str() == of))
        };
        let matches = route.matches.iter().filter(is_theirs);
        let matches: Vec<RequestMatch> = matches.map(request_match).collect();
        if matches.is_empty() && !route.matches.is_empty() {
            return None;
        }
        // One that is alone takes everything, whatever its weight.
        let alone = route.route.len() == 1;
        let destinations = route.route.iter().filter(|to| alone || to.weight > 0);
        let destinations = destinations.map(|to| RouteDestination {
            to: self.target(one, &to.to, namespace),
            weight: if alone { 1 } else { to.weight },
            headers: to.headers.clone(),
        });
        let mirrors = route.mirrors.iter().map(|mirror| Mirror {
            to: self.target(one, &mirror.to, namespace),
            share: mirror.share,
        });
        let destinations = match &route.delegate {
            None => destinations.collect(),
            // It stands here still: there is nobody to hand over to.
            Some(delegate) => {
                let missing = format!("no VirtualService {} can be handed over to", delegate.name);
                vec![RouteDestination {
                    to: Err(missing.into()),
                    weight: 1,
                    headers: HeaderRules::default(),
                }]
            }
        };
        Some(Route {
            name: route.name.clone().unwrap_or_default(),
            matches,
            destinations,
            timeout: route.timeout,
            retry: route.retries.as_ref().map(RetryPolicy::of),
            answer: route.answer.clone(),
            rewrite: route.rewrite.clone(),
            headers: route.headers.clone(),
            fault: route.fault,
            cors: route.cors.clone(),
            mirrors: mirrors.collect(),
        })
    }

    /// What a destination is, or what of it is not there (as Istio: 503 for those who come by this route, and for nobody else).
    fn target(
        &self,
        one: &VirtualService,
        to: &Written,
        namespace: Option<&Namespace>,
    ) -> Result<RouteTarget, Arc<str>> {
        let missing = |what: String| Arc::<str>::from(what);
        let service = self
            .service(&to.host, &one.name.namespace, namespace)
            .ok_or_else(|| missing(format!("no service {} can be seen", to.host)))?;
        let port = match (&to.port, service.ports.as_slice()) {
            (Some((port, _)), _) if service.port(*port).is_none() => {
                return Err(missing(format!("{} has no port {port}", service.key)));
            }
            (Some((port, _)), _) => Some(*port),
            (None, [only]) => Some(only.number),
            (None, _) => None,
        };
        let subset = to.subset.as_ref().map(|(name, _)| name.clone());
        if let Some(name) = &subset {
            let rule = self.mesh.destination_rule(service);
            if !rule.is_some_and(|rule| rule.subsets.contains_key(name)) {
                return Err(missing(format!("{} has no subset {name}", service.key)));
            }
        }
        Ok(RouteTarget {
            service: service.key.clone(),
            subset,
            port,
        })
    }

    /// Of several services of one host the resource's own namespace has precedence. What its clients do not see is not there.
    fn service(
        &self,
        host: &Hostname,
        own: &Namespace,
        client: Option<&Namespace>,
    ) -> Option<&Service> {
        let is_seen = |service: &&&Arc<Service>| match (&service.visibility, client) {
            (Visibility::Public, _) => true,
            (visibility, Some(client)) => visibility.includes(client),
            (Visibility::Namespaces(_), None) => false,
        };
        let mut seen = self.hosts.get(host)?.iter().filter(is_seen);
        let first = seen.clone().next();
        let of_own = seen.find(|service| service.key.namespace == *own);
        of_own.or(first).map(|service| &***service)
    }
}

fn request_match(one: &HttpMatch) -> RequestMatch {
    let mut made = RequestMatch {
        any_case: one.any_case,
        ..RequestMatch::default()
    };
    let mut labels: Vec<(Arc<str>, Arc<str>)> = Vec::new();
    for (subject, criterion) in &one.criteria {
        let (Criterion::Is(text) | Criterion::IsNot(text)) = criterion else {
            continue; // Gateways: decided above.
        };
        let exact = match text {
            TextMatch::Exact(text) => Some(text),
            _ => None,
        };
        match subject {
            Subject::Uri => made.uri = Some(text.clone()),
            Subject::Scheme => made.scheme = Some(text.clone()),
            Subject::Method => made.method = Some(text.clone()),
            Subject::Authority => made.authority = Some(text.clone()),
            Subject::Header(name) => made.headers.push((name.clone(), text.clone())),
            Subject::WithoutHeader(name) => made.without_headers.push((name.clone(), text.clone())),
            Subject::QueryParam(name) => made.query.push((name.clone(), text.clone())),
            Subject::Port => {
                let number = exact.and_then(|text| text.parse().ok());
                made.port = number.and_then(Port::new);
            }
            Subject::SourceLabel(name) => {
                labels.extend(exact.map(|text| (name.clone(), text.clone())));
            }
            // Decided above, or of other layers, which are refused.
            Subject::SourceNamespace
            | Subject::Gateways
            | Subject::SniHosts
            | Subject::DestinationSubnets
            | Subject::SourceSubnet => {}
        }
    }
    made.source_labels = labels.into_iter().collect::<Labels>();
    made
}
