//! `delegate`: the routes of a VirtualService without hosts replace one route of another, by Istio's rules. Matches of
//! both must agree, and the delegate's must be the narrower. For every other field the delegate's value counts, and the
//! root's if the delegate has none.

use std::collections::HashMap;
use std::sync::Arc;

use crate::mesh::{Criterion, HttpMatch, HttpRoute, Mesh, Subject, TextMatch, VirtualService};
use crate::names::ResourceName;

/// VirtualServices by name.
pub(in crate::mesh) type ByName<'m> = HashMap<&'m ResourceName, &'m Arc<VirtualService>>;

/// A VirtualService with delegated routes in place. A route whose delegate is missing or invalid stays unchanged and
/// has no destination.
pub(in crate::mesh) fn whole(one: &Arc<VirtualService>, all: &ByName<'_>) -> Arc<VirtualService> {
    if one.http.iter().all(|route| route.delegate.is_none()) {
        return Arc::clone(one);
    }
    let mut made = VirtualService::clone(one);
    made.http = Vec::with_capacity(one.http.len());
    for route in &one.http {
        match delegate(one, route, all) {
            None => made.http.push(route.clone()),
            Some(other) => {
                let merged = other.http.iter().filter_map(|own| merged(route, own));
                made.http.extend(merged);
            }
        }
    }
    Arc::new(made)
}

impl Mesh {
    /// A VirtualService with the routes of those that it hands over to.
    #[must_use]
    pub fn handed(&self, one: &Arc<VirtualService>) -> Arc<VirtualService> {
        if one.http.iter().all(|route| route.delegate.is_none()) {
            return Arc::clone(one);
        }
        let all = self.virtual_services.iter();
        whole(one, &all.map(|one| (&one.name, one)).collect())
    }
}

/// The VirtualService that a route delegates to, if the delegation is valid.
fn delegate<'m>(
    one: &VirtualService,
    route: &HttpRoute,
    all: &ByName<'m>,
) -> Option<&'m Arc<VirtualService>> {
    let named = &route.delegate.as_ref()?.name;
    let other = all.get(named)?;
    let one_step = other.http.iter().all(|route| route.delegate.is_none());
    let seen = other.visibility.includes(&one.name.namespace);
    (other.hosts.is_empty() && one_step && seen).then_some(*other)
}

/// A route of a delegate's in its place; none where no request is for both.
fn merged(root: &HttpRoute, own: &HttpRoute) -> Option<HttpRoute> {
    let matches = match (root.matches.as_slice(), own.matches.as_slice()) {
        (_, []) => root.matches.clone(),
        ([], _) => own.matches.clone(),
        (roots, owns) => {
            let each = roots.iter();
            let both = each.flat_map(|root| owns.iter().filter_map(|own| narrowed(root, own)));
            let both: Vec<HttpMatch> = both.collect();
            if both.is_empty() {
                return None;
            }
            both
        }
    };
    let name = match (&root.name, &own.name) {
        (Some(root), Some(own)) => Some(format!("{root}-{own}").into()),
        (one, other) => one.clone().or_else(|| other.clone()),
    };
    let headers = match own.headers.is_empty() {
        true => &root.headers,
        false => &own.headers,
    };
    let mirrors = match own.mirrors.is_empty() {
        true => &root.mirrors,
        false => &own.mirrors,
    };
    // A route that answers itself forwards nothing, so it mirrors nothing.
    let goes_on = own.answer.is_none();
    Some(HttpRoute {
        name,
        matches,
        headers: headers.clone(),
        mirrors: mirrors.iter().filter(|_| goes_on).cloned().collect(),
        rewrite: own.rewrite.clone().or_else(|| root.rewrite.clone()),
        fault: own.fault.or(root.fault),
        cors: own.cors.clone().or_else(|| root.cors.clone()),
        timeout: own.timeout.or(root.timeout),
        retries: own.retries.clone().or_else(|| root.retries.clone()),
        ..own.clone()
    })
}

/// The match that meets both. `None` if they contradict each other, or the delegate's match is wider than the root's.
fn narrowed(root: &HttpMatch, own: &HttpMatch) -> Option<HttpMatch> {
    let both_paths = [root, own].map(|one| one.criteria.contains_key(&Subject::Uri));
    if both_paths == [true, true] && root.any_case != own.any_case {
        return None;
    }
    let mut made = own.clone();
    made.any_case |= root.any_case;
    for (subject, wide) in &root.criteria {
        match own.criteria.get(subject) {
            None => drop(made.criteria.insert(subject.clone(), wide.clone())),
            Some(narrow) if is_within(wide, narrow) => {}
            Some(_) => return None,
        }
    }
    Some(made)
}

fn is_within(wide: &Criterion, narrow: &Criterion) -> bool {
    use TextMatch::{Exact, Prefix};
    match (wide, narrow) {
        (Criterion::OneOf(wide), Criterion::OneOf(narrow)) => {
            narrow.iter().all(|one| wide.contains(one))
        }
        (Criterion::Is(wide), Criterion::Is(narrow))
        | (Criterion::IsNot(wide), Criterion::IsNot(narrow)) => match (wide, narrow) {
            (Exact(wide), Exact(narrow)) => wide == narrow,
            (Prefix(wide), Exact(narrow) | Prefix(narrow)) => narrow.starts_with(&**wide),
            (TextMatch::Segments(_), _) => wide.covers(narrow),
            (TextMatch::Present, TextMatch::Present) => true,
            // Containment of two regular expressions is not decidable here.
            _ => false,
        },
        _ => false,
    }
}
