//! Routes that nothing reaches. Of several routes the first that matches wins, so one behind another that takes all it matches
//! is as good as not written.

use std::collections::HashMap;
use std::sync::Arc;

use voile_model::mesh::{
    Criterion, HttpMatch, HttpRoute, LayerFourRoute, Subject, TextMatch, VirtualService,
};
use voile_model::{Diagnostic, Source};

use crate::codes;

/// Most matches by more than an exact path that each later one is compared with: the comparison is quadratic, and no hand wrote more.
const MAX_BROAD: usize = 1000;

/// Checks the routes of one VirtualService.
pub(super) fn check(service: &VirtualService, found: &mut Vec<Diagnostic>) {
    http(&service.http, found);
    layer_four("tls", &service.tls, found);
    layer_four("tcp", &service.tcp, found);
}

/// Earlier matches, by the exact path where they have one, since such a match covers only what has the same.
#[derive(Default)]
struct EarlierMatches<'a> {
    exact: HashMap<&'a str, Vec<(usize, &'a HttpMatch)>>,
    broad: Vec<(usize, &'a HttpMatch)>,
    /// A route without any match takes everything.
    everything: Option<usize>,
}

impl<'a> EarlierMatches<'a> {
    fn covering(&self, one: &HttpMatch) -> Option<usize> {
        let same = exact_path(one).and_then(|path| self.exact.get(path));
        let all = same.into_iter().flatten().chain(&self.broad);
        let mut covering = all.filter(|(_, earlier)| earlier.covers(one));
        self.everything
            .or_else(|| covering.next().map(|(route, _)| *route))
    }

    fn add(&mut self, route: usize, one: &'a HttpMatch) {
        match exact_path(one).filter(|_| !one.any_case) {
            Some(path) => self.exact.entry(path).or_default().push((route, one)),
            None if self.broad.len() < MAX_BROAD => self.broad.push((route, one)),
            None => {}
        }
    }
}

fn exact_path(one: &HttpMatch) -> Option<&str> {
    match one.criteria.get(&Subject::Uri) {
        Some(Criterion::Is(TextMatch::Exact(path))) => Some(path),
        _ => None,
    }
}

fn http(routes: &[HttpRoute], found: &mut Vec<Diagnostic>) {
    let mut earlier = EarlierMatches::default();
    for (index, route) in routes.iter().enumerate() {
        let covered = |one: &HttpMatch| earlier.covering(one);
        let by: Vec<Option<usize>> = match route.matches.is_empty() {
            true => vec![earlier.everything],
            false => route.matches.iter().map(covered).collect(),
        };
        let dead = by.iter().flatten().count();
        if dead == by.len() {
            let by = by.iter().flatten().next().copied().unwrap_or_default();
            let what = named("http", index, route.name.as_ref());
            let by = named("http", by, routes[by].name.as_ref());
            found.push(shadowed(&what, &by, &route.source));
        } else if dead > 0 {
            for (one, by) in route.matches.iter().zip(&by) {
                let Some(by) = by else { continue };
                let what = format!("a match of {}", named("http", index, route.name.as_ref()));
                let by = named("http", *by, routes[*by].name.as_ref());
                found.push(shadowed(&what, &by, &one.source));
            }
        }
        for one in &route.matches {
            earlier.add(index, one);
        }
        if route.matches.is_empty() {
            earlier.everything.get_or_insert(index);
        }
    }
}

fn layer_four(layer: &str, routes: &[LayerFourRoute], found: &mut Vec<Diagnostic>) {
    for (index, route) in routes.iter().enumerate().take(MAX_BROAD) {
        let takes = |earlier: &LayerFourRoute| {
            let same = || {
                route
                    .matches
                    .iter()
                    .all(|one| earlier.matches.contains(one))
            };
            earlier.matches.is_empty() || (!route.matches.is_empty() && same())
        };
        if let Some(by) = routes[..index].iter().position(takes) {
            let what = named(layer, index, None);
            found.push(shadowed(&what, &named(layer, by, None), &route.source));
        }
    }
}

fn named(layer: &str, index: usize, name: Option<&Arc<str>>) -> String {
    match name {
        Some(name) => format!("{layer}[{index}] `{name}`"),
        None => format!("{layer}[{index}]"),
    }
}

fn shadowed(what: &str, by: &str, source: &Source) -> Diagnostic {
    let said = format!("{what} is unreachable: {by} comes first and matches all its requests");
    Diagnostic::warning(codes::SHADOWED_ROUTE, source.clone(), said)
        .help("put the narrower route first, or remove one of the two")
}
