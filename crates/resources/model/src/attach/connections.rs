//! TLSRoutes and TCPRoutes as the routes of connections that a VirtualService has: by the name that TLS asks for, the closest of which
//! counts; of those that are alike the oldest, since the first of them counts.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::listeners::{ListenerFamily, ListenerStatus};
use super::lower::{Closeness, Said, closeness, only};
use super::routes::RouteAttachmentStatus;
use crate::mesh::gateway_api::RouteKind;
use crate::mesh::{Criteria, Criterion, LayerFourRoute, Subject};
use crate::names::Hostname;

/// The names for which connections at a listener are routed, and how.
pub(super) fn at_listener(
    heard: &ListenerStatus<'_>,
    attached: &[&RouteAttachmentStatus<'_>],
) -> (BTreeSet<Hostname>, Vec<LayerFourRoute>) {
    let any = Hostname::new("*").expect("invariant: `*` is a host's name");
    let served = heard.host().unwrap_or(&any);
    if heard.family() == ListenerFamily::Tcp {
        let all = attached.iter().flat_map(|one| one.connections.clone());
        return ([any].into(), all.collect());
    }
    let mut hosts = BTreeSet::new();
    let mut routes: Vec<(Reverse<Closeness>, LayerFourRoute)> = Vec::new();
    for one in attached {
        let own: &[Hostname] = match one.route.hostnames.as_slice() {
            // A TCPRoute, or a TLSRoute without `hostnames`: every name of the listener.
            [] => std::slice::from_ref(served),
            own => own,
        };
        for name in own {
            let Some(both) = served.common(name) else {
                continue;
            };
            hosts.insert(both.clone());
            let asked = named(std::slice::from_ref(both));
            let made = one.connections.iter().map(|rule| LayerFourRoute {
                matches: vec![asked.clone()],
                ..rule.clone()
            });
            // Two routes may share the same names with the listener: the route with the closer own name comes first.
            routes.extend(made.map(|rule| (Reverse(closeness(name)), rule)));
        }
    }
    routes.sort_by_key(|(closeness, _)| *closeness);
    (hosts, routes.into_iter().map(|(_, rule)| rule).collect())
}

/// The routes of one kind that are attached to a Service.
pub(super) fn of_service(said: &[Said<'_>], kind: RouteKind) -> Vec<LayerFourRoute> {
    let ours = said.iter().filter(|(one, _)| one.route.kind == kind);
    let made = ours.flat_map(|(one, port)| {
        let mut asked = match kind {
            RouteKind::Tls if !one.route.hostnames.is_empty() => named(&one.route.hostnames),
            _ => Criteria::new(),
        };
        asked.extend(port.map(only));
        let matches = match asked.is_empty() {
            true => Vec::new(),
            false => vec![asked],
        };
        one.connections.iter().map(move |rule| LayerFourRoute {
            matches: matches.clone(),
            ..rule.clone()
        })
    });
    made.collect()
}

/// That one of these is asked for.
fn named(hosts: &[Hostname]) -> Criteria {
    let names = hosts.iter().map(|host| host.as_str().into());
    let names = Criterion::OneOf(names.collect());
    [(Subject::SniHosts, names)].into_iter().collect()
}
