//! VirtualServices as the routes of the services that they name, with their own names resolved. Clients of one namespace are told
//! the same; what a namespace may not see, or what is for another, is not among it. Most services have one answer for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use voile_model::mesh::action::HeaderRules;
use voile_model::mesh::{
    AddressRange, Criteria, Criterion, HttpMatch, HttpRoute, LayerFourRoute, Mesh, MeshService,
    RouteAttachment, RouteDestination as Written, Routing, RuleClient, ServicesByHost, Subject,
    TextMatch, VirtualService, Visibility, holding,
};
use voile_model::{Hostname, Labels, Namespace, Port};
use voile_xds::server::Resource;
use voile_xds::wire::{
    ConnectionMatch, ConnectionRoute, Mirror, RequestMatch, RouteDestination, RouteTarget, Routes,
    WireRoute, WireType,
};

use crate::resources::resource;
use crate::shards::Shards;
use crate::snapshot::ByNamespace;
use crate::translate::builder::SnapshotBuilder;

impl SnapshotBuilder<'_> {
    /// Routes of all services that have any, or of those of some hosts.
    pub(super) fn routes(&mut self, hosts: Option<&BTreeSet<Hostname>>) {
        let routing = Routing::new(self.mesh);
        if routing.is_empty() {
            self.snapshot.routes = Shards::default();
            return;
        }
        let answers = RouteResponses::new(self.mesh);
        let mut made: BTreeMap<Arc<str>, Option<ByNamespace>> = BTreeMap::new();
        if hosts.is_none() {
            // Of services that are gone nothing is said below.
            let known = self.snapshot.routes.iter();
            made.extend(known.map(|(name, _)| (name.clone(), None)));
        }
        let patterns = hosts
            .into_iter()
            .flatten()
            .filter(|host| host.is_wildcard());
        let patterns: Vec<&Hostname> = patterns.collect();
        let is_of = |hosts: &BTreeSet<Hostname>, host: &Hostname| {
            hosts.contains(host) || patterns.iter().any(|pattern| pattern.covers(host))
        };
        for service in self.mesh.services.values() {
            if !hosts.is_none_or(|hosts| is_of(hosts, &service.key.hostname)) {
                continue;
            }
            let holding = routing.of(service);
            let name: Arc<str> = service.key.to_string().into();
            let routed = (!holding.is_empty()).then(|| answers.routed(service, &name, &holding));
            made.insert(name, routed);
        }
        let routes = &mut self.snapshot.routes;
        let previous = self.previous.map(|old| &old.routes);
        for (name, routed) in made {
            let Some(mut routed) = routed else {
                routes.remove(&name);
                continue;
            };
            if let Some(old) = previous.and_then(|old| old.get(&name)) {
                routed.share(old);
            }
            if routes.get(&name) != Some(&routed) {
                routes.insert(name, routed);
            }
        }
    }
}

pub(super) struct RouteResponses<'a> {
    mesh: &'a Mesh,
    leads: ServicesByHost<'a>,
}

impl<'a> RouteResponses<'a> {
    pub(super) fn new(mesh: &'a Mesh) -> Self {
        Self {
            mesh,
            leads: ServicesByHost::new(mesh),
        }
    }
}

impl RouteResponses<'_> {
    fn routed(
        &self,
        service: &MeshService,
        name: &Arc<str>,
        all: &[&Arc<VirtualService>],
    ) -> ByNamespace {
        let answer = |namespace: Option<&Namespace>| {
            let one = holding(all, service, namespace)?;
            let routes = Routes {
                routes: self.routes(one, namespace, RouteAttachment::Mesh).collect(),
                connections: self
                    .connections(
                        one,
                        one.tls.iter().chain(&one.tcp),
                        namespace,
                        RouteAttachment::Mesh,
                    )
                    .collect(),
            };
            let body = routes.to_wire().encode_to_vec();
            Some(Arc::new(resource(name.clone(), Vec::new(), body)))
        };
        let general: Option<Arc<Resource>> = answer(None);
        let apart = self.apart(all).into_iter();
        let apart = apart.map(|namespace| (answer(Some(&namespace)), namespace));
        // A namespace with the general answer needs no entry of its own.
        let apart = apart.filter(|(told, _)| *told != general);
        ByNamespace {
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
                for service in self.leads.services(&to.host) {
                    if let Visibility::Namespaces(list) = &service.visibility {
                        named.extend(list.iter().cloned());
                    }
                    // The DestinationRule that a client obeys decides if a service has a subset.
                    if to.subset.is_some() {
                        let apart = self.mesh.namespaces_apart(service).into_iter();
                        named.extend(apart.cloned());
                    }
                }
            }
        }
        named
    }

    /// Routes of a VirtualService for clients in a namespace.
    pub(super) fn routes(
        &self,
        one: &VirtualService,
        namespace: Option<&Namespace>,
        place: RouteAttachment<'_>,
    ) -> impl Iterator<Item = WireRoute> {
        let routes = one.http.iter();
        routes.filter_map(move |route| self.route(one, route, namespace, place))
    }

    /// Connection routes of a VirtualService for clients in a namespace, from some of its routes.
    pub(super) fn connections<'r>(
        &self,
        one: &VirtualService,
        routes: impl Iterator<Item = &'r LayerFourRoute>,
        namespace: Option<&Namespace>,
        place: RouteAttachment<'_>,
    ) -> impl Iterator<Item = ConnectionRoute> {
        routes.filter_map(move |route| {
            let matches = route.matches_of(&one.name.namespace, namespace, place)?;
            let destinations = route.shares().map(|(to, weight)| RouteDestination {
                to: self.target(one, &to.to, namespace),
                weight,
                headers: HeaderRules::default(),
            });
            Some(ConnectionRoute {
                matches: matches.into_iter().map(connection_match).collect(),
                destinations: destinations.collect(),
            })
        })
    }

    /// None where no request of these clients can take it.
    fn route(
        &self,
        one: &VirtualService,
        route: &HttpRoute,
        namespace: Option<&Namespace>,
        place: RouteAttachment<'_>,
    ) -> Option<WireRoute> {
        let matches = route.matches_of(&one.name.namespace, namespace, place)?;
        let destinations = route.shares().map(|(to, weight)| RouteDestination {
            to: self.target(one, &to.to, namespace),
            weight,
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
                let missing = format!(
                    "the delegate VirtualService {} does not exist",
                    delegate.name
                );
                vec![RouteDestination {
                    to: Err(missing.into()),
                    weight: 1,
                    headers: HeaderRules::default(),
                }]
            }
        };
        Some(WireRoute {
            name: route.name.clone().unwrap_or_default(),
            matches: matches.into_iter().map(request_match).collect(),
            destinations,
            timeout: route.timeout,
            retry: route.retries.clone(),
            answer: route.answer.clone(),
            rewrite: route.rewrite.clone(),
            headers: route.headers.clone(),
            fault: route.fault,
            cors: route.cors.clone(),
            mirrors: mirrors.collect(),
            missing_status: route.missing_status,
        })
    }

    /// Target of a destination, or its missing part (as in Istio: 503 for requests on this route, and for no others).
    fn target(
        &self,
        one: &VirtualService,
        to: &Written,
        namespace: Option<&Namespace>,
    ) -> Result<RouteTarget, Arc<str>> {
        let lead = self.leads.of(one, to, RuleClient::within(namespace))?;
        Ok(RouteTarget {
            service: lead.service.key.clone(),
            subset: lead.subset,
            port: lead.port,
        })
    }
}

fn connection_match(criteria: &Criteria) -> ConnectionMatch {
    let mut made = ConnectionMatch::default();
    let mut labels: Vec<(Arc<str>, Arc<str>)> = Vec::new();
    for (subject, criterion) in criteria {
        match (subject, criterion) {
            (Subject::SniHosts, Criterion::OneOf(names)) => made.server_names.clone_from(names),
            (Subject::DestinationSubnets, Criterion::OneOf(ranges)) => {
                let ranges = ranges.iter();
                made.subnets = ranges
                    .filter_map(|text| AddressRange::parse(text))
                    .collect();
            }
            (Subject::Port, Criterion::Is(TextMatch::Exact(text))) => {
                made.port = text.parse().ok().and_then(Port::new);
            }
            (Subject::SourceLabel(name), Criterion::Is(TextMatch::Exact(text))) => {
                labels.push((name.clone(), text.clone()));
            }
            // Decided above.
            _ => {}
        }
    }
    made.source_labels = labels.into_iter().collect::<Labels>();
    made
}

pub(super) fn request_match(one: &HttpMatch) -> RequestMatch {
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
            // Decided above, or of connections.
            Subject::SourceNamespace
            | Subject::Gateways
            | Subject::SniHosts
            | Subject::DestinationSubnets => {}
        }
    }
    made.source_labels = labels.into_iter().collect::<Labels>();
    made
}
