//! A VirtualService as Envoy's routes for one port of the service that is called: their names, order and meaning are those that
//! Istio gives them. Each alternative of a route is a route of Envoy's.

use serde_json::{Value, json};
use voile_model::Port;
use voile_model::mesh::action::HeaderRules;
use voile_model::mesh::{
    Criterion, HttpMatch, HttpRoute, Place, RouteDestination, Subject, TextMatch, VirtualService,
    holding,
};

use super::names::{self, Carried, Spoken};
use super::outbound::{Hop, Outbound};
use super::{Callee, Made, manager};
use crate::json::duration;
use crate::limit::LimitName;
use crate::matching::{any, matching};

impl Outbound<'_> {
    /// The routes of requests to a service's port; none where no VirtualService is for these clients.
    pub(super) fn written(
        &self,
        hop: &Hop,
        carried: Carried,
        made: &mut Made,
    ) -> Option<Vec<Value>> {
        let namespace = Some(&self.scope.namespace);
        let all = self.routing.of(&hop.service);
        let one = holding(&all, &hop.service, namespace)?;
        let port = hop.port.number;
        let mut routes = Vec::new();
        for route in &one.http {
            let Some(matches) = route.matches_of(&one.name.namespace, namespace, Place::Mesh)
            else {
                continue;
            };
            let everything = matches.is_empty();
            let ours = matches.into_iter().filter(|one| self.is_ours(one, port));
            let mut ours: Vec<Option<&HttpMatch>> = ours.map(Some).collect();
            if everything {
                ours.push(None);
            }
            if ours.is_empty() {
                continue;
            }
            let (kind, action) = match untranslated(route) {
                None => ("route", self.action(one, route, (port, carried), made)),
                Some(what) => {
                    let about = format!("VirtualService {}, {}", one.name, route.source);
                    let why = format!(
                        "{what} is not translated: requests that take this route are answered 503"
                    );
                    made.limit(LimitName::VirtualService, about, &why);
                    ("direct_response", json!({ "status": 503 }))
                }
            };
            for alternative in ours {
                let matching =
                    alternative.map_or_else(any, |one| matching(&one.criteria, one.any_case));
                let last = matching == any();
                routes.push(json!({
                    "name": name(route, alternative),
                    "match": matching,
                    kind: action,
                }));
                // What follows is never reached, and Istio does not say it either.
                if last {
                    return Some(routes);
                }
            }
        }
        Some(routes)
    }

    /// Whether requests of these clients to this port can be it, as far as that is known beforehand.
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

    fn action(
        &self,
        one: &VirtualService,
        route: &HttpRoute,
        (port, carried): (Port, Carried),
        made: &mut Made,
    ) -> Value {
        let shares = route.shares().map(|(to, weight)| {
            let cluster = self.cluster(one, &to.to, (port, carried), made);
            json!({ "name": cluster, "weight": weight })
        });
        let shares: Vec<Value> = shares.collect();
        let mut action = match shares.as_slice() {
            [only] => json!({ "cluster": only["name"] }),
            _ => json!({ "weighted_clusters": { "clusters": shares } }),
        };
        // Without one there is none, where Envoy's own would be 15 s.
        action["timeout"] = duration(route.timeout.unwrap_or_default());
        if let Some(retry) = manager::retry(self.mesh, route.retries.as_ref()) {
            action["retry_policy"] = retry;
        }
        action
    }

    /// The cluster that a destination is. What is not there has the name of one that is not there either: as in Istio, whoever
    /// comes by it is answered 503.
    fn cluster(
        &self,
        one: &VirtualService,
        to: &RouteDestination,
        (called, carried): (Port, Carried),
        made: &mut Made,
    ) -> String {
        let lead = self.leads.of(one, to, Some(&self.scope.namespace));
        let found = lead.ok().and_then(|lead| {
            let port = lead.service.port(lead.port.unwrap_or(called))?;
            let subset = lead.subset.as_deref();
            let spoken = Spoken::to(self.mesh, lead.service, port, subset)?;
            let base = names::outbound(port.number, subset, &lead.service.key.hostname);
            let name = spoken.cluster(base, carried)?;
            let callee = Callee::new(lead.service, port.number, lead.subset.as_ref());
            Some((name, callee))
        });
        if let Some((name, callee)) = found {
            made.callees.insert(callee);
            return name;
        }
        let port = to.port.as_ref().map_or(called, |(port, _)| *port);
        let subset = to.subset.as_ref().map(|(name, _)| &**name);
        names::outbound(port, subset, &to.host)
    }
}

/// What of a route is not said to Envoy: whoever takes it goes nowhere, since what is left of it is something else.
fn untranslated(route: &HttpRoute) -> Option<&'static str> {
    match route {
        route if route.delegate.is_some() => Some("`delegate`"),
        route if !route.mirrors.is_empty() => Some("`mirror`"),
        route if route.answer.is_some() => Some("`redirect` or `directResponse`"),
        route if route.rewrite.is_some() => Some("`rewrite`"),
        route if route.fault.is_some() => Some("`fault`"),
        route if route.cors.is_some() => Some("`corsPolicy`"),
        route if edits(&route.headers) || route.route.iter().any(|to| edits(&to.headers)) => {
            Some("`headers` (edits)")
        }
        _ => None,
    }
}

fn edits(rules: &HeaderRules) -> bool {
    *rules != HeaderRules::default()
}

/// As Istio calls it: by the route's name and the alternative's.
fn name(route: &HttpRoute, alternative: Option<&HttpMatch>) -> String {
    let own = route.name.as_deref().unwrap_or_default();
    match alternative.and_then(|one| one.name.as_deref()) {
        Some(name) if !name.is_empty() => format!("{own}.{name}"),
        _ => own.to_owned(),
    }
}
