//! A VirtualService as Envoy's routes for one port of the service that is called: their names, order and meaning are those that
//! Istio gives them. Each alternative of a route is a route of Envoy's.

use serde_json::{Value, json};
use voile_model::Port;
use voile_model::mesh::traffic::HashKey;
use voile_model::mesh::{
    Criterion, DestinationRule, HttpMatch, HttpRoute, RouteAttachment, RouteDestination,
    RouteDestinationKind, ServicePort, Subject, TextMatch, VirtualService, holding,
};

use super::names::{self, ClusterTraffic, PortProtocol};
use super::outbound::{Hop, Outbound};
use super::{Callee, Made, actions, manager, traffic};
use crate::json::{duration, share};
use crate::limit::LimitName;
use crate::matching::{any, matching};

/// Destination of a route.
struct RouteBranch {
    cluster: String,
    /// By what its requests are kept together.
    key: Option<HashKey>,
}

impl<'a> Outbound<'a> {
    /// Says which routes of connections are not translated.
    pub(super) fn unrouted(&self, hop: &Hop, made: &mut Made) {
        let all = self.routing.of(&hop.service);
        let one = holding(&all, &hop.service, Some(&self.scope.namespace));
        let Some(one) = one.filter(|one| !one.tls.is_empty() || !one.tcp.is_empty()) else {
            return;
        };
        if self.mesh.waypoint_of(&hop.service).is_some() {
            return;
        }
        let about = format!("VirtualService {}", one.name);
        let why = "`tls` and `tcp` are not translated: connections go to the service itself";
        made.limit(LimitName::ConnectionRoutes, about, why);
    }

    /// The routes of requests to a service's port; none where no VirtualService is for these clients.
    pub(super) fn written(
        &self,
        hop: &Hop,
        carried: ClusterTraffic,
        made: &mut Made,
    ) -> Option<Vec<Value>> {
        let namespace = Some(&self.scope.namespace);
        let all = self.routing.of(&hop.service);
        let one = holding(&all, &hop.service, namespace)?;
        // One that speaks of connections alone leaves requests as they are.
        if one.http.is_empty() {
            return None;
        }
        let mut routes = Vec::new();
        let to = (RouteAttachment::Mesh, hop.port.number, carried);
        for route in &one.http {
            // Later routes are never reached, and Istio leaves them out as well.
            if self.alternatives(one, route, to, (&mut routes, made)) {
                break;
            }
        }
        Some(routes)
    }

    /// Returns true if a service's routes lead to a destination that keeps the version of HTTP.
    pub(super) fn leads_by_version(&self, hop: &Hop) -> bool {
        let all = self.routing.of(&hop.service);
        let one = holding(&all, &hop.service, Some(&self.scope.namespace));
        one.is_some_and(|one| self.is_by_version(one, hop.port.number))
    }

    /// The same of one's routes: then requests of each version need routes of their own, since a cluster carries one.
    pub(super) fn is_by_version(&self, one: &VirtualService, called: Port) -> bool {
        let mut all = one.http.iter().flat_map(HttpRoute::destinations);
        all.any(|to| {
            let found = self.lead(one, to, called);
            found.is_some_and(|(_, _, spoken, _)| !matches!(spoken, PortProtocol::One(_)))
        })
    }

    /// A route for each of its alternatives that requests here can be. Says whether nothing passes them.
    pub(super) fn alternatives(
        &self,
        one: &VirtualService,
        route: &HttpRoute,
        (place, port, carried): (RouteAttachment<'_>, Port, ClusterTraffic),
        (routes, made): (&mut Vec<Value>, &mut Made),
    ) -> bool {
        let namespace = Some(&self.scope.namespace);
        let Some(matches) = route.matches_of(&one.name.namespace, namespace, place) else {
            return false;
        };
        let everything = matches.is_empty();
        let ours = matches.into_iter().filter(|one| self.is_ours(one, port));
        let mut ours: Vec<Option<&HttpMatch>> = ours.map(Some).collect();
        if everything {
            ours.push(None);
        }
        if ours.is_empty() {
            return false;
        }
        let base = self.base(one, route, (port, carried), made);
        for alternative in ours {
            let matching =
                alternative.map_or_else(any, |one| matching(&one.criteria, one.any_case));
            let last = matching == any();
            let said = base.clone().and_then(|base| {
                if alternative.is_some_and(HttpMatch::asks_claims) {
                    return Err("a match on a token claim");
                }
                let mut base = base;
                finish(&mut base, route, alternative, port)?;
                Ok(base)
            });
            let mut said = said.unwrap_or_else(|what| {
                let about = format!("VirtualService {}, {}", one.name, route.source);
                let why = format!("{what}: requests that match this route are answered 503");
                made.limit(LimitName::VirtualService, about, &why);
                nowhere()
            });
            said["name"] = json!(name(route, alternative));
            said["match"] = matching;
            routes.push(said);
            if last {
                return true;
            }
        }
        false
    }

    /// Returns true if requests of these clients to this port can match, as far as that is known beforehand.
    fn is_ours(&self, one: &HttpMatch, port: Port) -> bool {
        one.criteria.iter().all(|(subject, criterion)| {
            let Criterion::Is(TextMatch::Exact(wanted)) = criterion else {
                return true;
            };
            match subject {
                Subject::Port => wanted.parse() == Ok(port.get()),
                Subject::SourceLabel(label) => self.scope.labels.get(label) == Some(&**wanted),
                _ => true,
            }
        })
    }

    /// Part of a route that is the same for all its alternatives.
    fn base(
        &self,
        one: &VirtualService,
        route: &HttpRoute,
        to: (Port, ClusterTraffic),
        made: &mut Made,
    ) -> Result<Value, &'static str> {
        // It stands here still: there is nobody to hand over to, as at our own proxies.
        if route.delegate.is_some() {
            return Ok(nowhere());
        }
        let mut base = actions::around(route)?;
        if route.answer.is_some() && route.cors.is_some() {
            let about = format!("VirtualService {}, {}", one.name, route.source);
            let why = "Envoy does not apply CORS to direct responses and redirects: pages of other origins cannot read them";
            made.limit(LimitName::CorsOfAnswer, about, why);
        }
        if route.answer.is_none() {
            base["route"] = self.action(one, route, to, made);
        }
        Ok(base)
    }

    fn action(
        &self,
        one: &VirtualService,
        route: &HttpRoute,
        to: (Port, ClusterTraffic),
        made: &mut Made,
    ) -> Value {
        let taking: Vec<_> = route.shares().collect();
        let ways = taking
            .iter()
            .map(|(way, _)| self.way(one, &way.to, to, made));
        let ways: Vec<RouteBranch> = ways.collect();
        let authorities = taking
            .iter()
            .map(|(way, _)| actions::authority(route, &way.headers));
        let authorities: Vec<Option<&str>> = authorities.collect();
        let alike = authorities.windows(2).all(|two| two[0] == two[1]);
        let shares = taking.iter().zip(&ways).zip(&authorities);
        let shares = shares.map(|(((way, weight), to), authority)| {
            let mut share = json!({ "name": to.cluster, "weight": weight });
            actions::edit(&way.headers, &mut share);
            if let Some(authority) = authority.filter(|_| !alike) {
                share["host_rewrite_literal"] = json!(authority);
            }
            share
        });
        let shares: Vec<Value> = shares.collect();
        let mut action = match (taking.as_slice(), shares.as_slice()) {
            ([(only, _)], [share]) if only.headers.is_empty() => {
                json!({ "cluster": share["name"] })
            }
            _ => json!({ "weighted_clusters": { "clusters": shares } }),
        };
        if let Some(Some(authority)) = authorities.first().filter(|_| alike) {
            action["host_rewrite_literal"] = json!(authority);
        }
        // Without one there is none, where Envoy's own would be 15 s.
        action["timeout"] = duration(route.timeout.unwrap_or_default());
        if let Some(retry) = manager::retry(self.mesh, route.retries.as_ref()) {
            action["retry_policy"] = retry;
        }
        let copies = route.mirrors.iter().map(|mirror| {
            let cluster = self.way(one, &mirror.to, to, made).cluster;
            let share = json!({ "default_value": share(mirror.share) });
            json!({ "cluster": cluster, "runtime_fraction": share })
        });
        let copies: Vec<Value> = copies.collect();
        if !copies.is_empty() {
            action["request_mirror_policies"] = json!(copies);
        }
        let mut keys: Vec<&HashKey> = Vec::new();
        for key in ways.iter().filter_map(|way| way.key.as_ref()) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.len() > 1 {
            let about = format!("VirtualService {}, {}", one.name, route.source);
            let why = "its destinations hash different values (consistentHash), which Envoy combines into one hash for the route";
            made.limit(LimitName::ConsistentHash, about, why);
        }
        if let Some(policy) = traffic::hash_policy(&keys) {
            action["hash_policy"] = policy;
        }
        action
    }

    /// Service and port of a destination, its payload, and its DestinationRule.
    fn lead(
        &self,
        one: &VirtualService,
        to: &RouteDestination,
        called: Port,
    ) -> Option<(
        RouteDestinationKind<'a>,
        &'a ServicePort,
        PortProtocol,
        Option<&'a DestinationRule>,
    )> {
        let client = self.scope.client();
        let lead = self.leads.of(one, to, client).ok()?;
        let port = lead.service.port(lead.port.unwrap_or(called))?;
        let rule = self.mesh.destination_rule(lead.service, client);
        let rule = rule.map(|rule| &**rule);
        let subset = lead.subset.as_deref();
        let said = (self.mesh).traffic_by(lead.service, rule, port.number, subset);
        let spoken = PortProtocol::to(self.mesh, port, &said.pool)?;
        Some((lead, port, spoken, rule))
    }

    /// Cluster of a destination. A missing destination has the name of a missing cluster: as in Istio, its requests are
    /// answered 503.
    fn way(
        &self,
        one: &VirtualService,
        to: &RouteDestination,
        (called, carried): (Port, ClusterTraffic),
        made: &mut Made,
    ) -> RouteBranch {
        let lead = self.lead(one, to, called);
        let found = lead.and_then(|(lead, port, spoken, rule)| {
            let subset = lead.subset.as_deref();
            let base = names::outbound(port.number, subset, &lead.service.key.hostname);
            let cluster = spoken.cluster(base, carried)?;
            let callee = Callee::new(lead.service, port.number, lead.subset.as_ref(), rule);
            let said = (self.mesh).traffic_by(lead.service, rule, port.number, subset);
            let key = said.balancer.key;
            Some((RouteBranch { cluster, key }, callee))
        });
        if let Some((way, callee)) = found {
            made.callees.insert(callee);
            return way;
        }
        let port = to.port.as_ref().map_or(called, |(port, _)| *port);
        let subset = to.subset.as_ref().map(|(name, _)| &**name);
        let (cluster, key) = (names::outbound(port, subset, &to.host), None);
        RouteBranch { cluster, key }
    }
}

/// Adds the part of a route that depends on the matched alternative: rewritten paths, and answers with them.
fn finish(
    base: &mut Value,
    route: &HttpRoute,
    alternative: Option<&HttpMatch>,
    called: Port,
) -> Result<(), &'static str> {
    if route.delegate.is_some() {
        return Ok(());
    }
    match (&route.answer, &route.rewrite) {
        (Some(answer), _) => {
            let (kind, said) = actions::answer(answer, alternative, called.get())?;
            base[kind] = said;
        }
        (None, Some(rewrite)) => actions::rewrite(rewrite, alternative, &mut base["route"])?,
        (None, None) => {}
    }
    Ok(())
}

/// Route without a destination.
pub(super) fn nowhere() -> Value {
    json!({ "direct_response": { "status": 503 } })
}

/// As Istio calls it: by the route's name and the alternative's.
fn name(route: &HttpRoute, alternative: Option<&HttpMatch>) -> String {
    let own = route.name.as_deref().unwrap_or_default();
    match alternative.and_then(|one| one.name.as_deref()) {
        Some(name) if !name.is_empty() => format!("{own}.{name}"),
        _ => own.to_owned(),
    }
}
