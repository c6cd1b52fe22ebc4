//! Routes of called services: when they come into force, and their compiled form for one port. A set of routes is closed
//! before it counts: every resource that a route names was asked for and answered. Until then the earlier routes stay.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_model::mesh::action::HeaderRules;
use voile_model::mesh::{TextMatch as Said, claim};
use voile_model::{Labels, Port, ServiceKey};
use voile_proto::type_url;
use voile_traffic::RetryPolicy;
use voile_traffic::route::{
    ClaimMatch, ConnectionTable, FieldMatch, Match, PathMatch, Regex, RouteTable, TextMatch,
    ValueMatch,
};
use voile_xds::wire::{
    ConnectionMatch, ConnectionRoute, OpenedRoutes, OutboundService, PackedRoutes, RequestMatch,
    RouteDestination, RouteTarget, Routes, ServicePolicy, Subset, WireRoute,
};

use super::{Registry, service_name};
use crate::actions::Actions;
use crate::plan::{RoutesPlan, ServicePlan};

/// Reason for refusing every request if the service's routes cannot be read and none were held before.
const UNREADABLE: &str = "the routes of the service are invalid";

/// Why routes that are held can be read.
const READ_BEFORE: &str = "invariant: they were read when they came";

/// Time for which routes with missing destinations are held back while earlier routes are in force. A user who applies several
/// resources, by hand or by a script, is done by then. Istio answers 503 in the meantime.
const HELD_BACK: Duration = Duration::from_secs(10);

/// Routes that are not obeyed yet.
#[derive(Debug)]
pub(crate) struct HeldBack {
    routes: HeldRoutes,
    /// Time until which they are held back, once looked at.
    until: Option<Instant>,
}

/// Routes of one service, as they were told.
#[derive(Debug)]
pub(crate) struct HeldRoutes {
    pub(crate) version: Arc<str>,
    /// Wire form, a tenth of the parsed size. It is parsed again when a port of the service is called first.
    body: PackedRoutes,
    /// Everything that they lead to, each once.
    targets: Box<[RouteTarget]>,
    /// True if a destination does not exist.
    misses: bool,
    /// The same by the port that was called, once asked for.
    compiled: RefCell<BTreeMap<Port, Arc<CompiledRoutes>>>,
}

/// Routes as they hold for one port and for our own workload.
#[derive(Debug)]
pub(crate) struct CompiledRoutes {
    /// None where nothing is said of requests, which go to the service itself.
    pub(crate) table: Option<RouteTable>,
    /// True if the table has regular expressions, which cache state: then each worker uses its own clone.
    pub(crate) remembers: bool,
    pub(crate) connections: Connections,
    /// Rules by the numbers that the table returns.
    pub(crate) rules: Vec<RouteActions>,
    /// Destinations of the rules, each once; or the missing destination.
    pub(crate) targets: Vec<Result<RouteTarget, Arc<str>>>,
}

/// Routes of connections that are not HTTP.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    table: ConnectionTable,
    /// Shares by the numbers that the table returns.
    shares: Vec<Vec<(u64, usize)>>,
}

/// Destination of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteLeg {
    /// No route is for it, and none is for others: to the service itself.
    Straight,
    /// Nowhere: routes ask for names of TLS, and it has none of them.
    Nowhere,
    /// To the target of this number.
    To(usize),
}

impl Connections {
    /// Routes a connection to an address. `asked` is as of [`ConnectionTable::choose`], `random` uniform.
    pub(crate) fn lead(
        &self,
        asked: Option<&str>,
        called: IpAddr,
        random: impl FnOnce() -> u64,
    ) -> RouteLeg {
        let chosen = self.table.choose(asked, called);
        let share = chosen.and_then(|route| share(self.shares.get(route)?, random));
        match share {
            Some((_, target)) => RouteLeg::To(target),
            None if self.asks_for_names() => RouteLeg::Nowhere,
            None => RouteLeg::Straight,
        }
    }

    /// Returns true if routing needs the ClientHello of a TLS client.
    pub(crate) fn asks_for_names(&self) -> bool {
        self.table.asks_for_names()
    }
}

/// Treatment of requests that take a route.
#[derive(Debug)]
pub(crate) struct RouteActions {
    /// For logs; may be empty.
    pub(crate) name: Arc<str>,
    /// Numbers of targets, each with the sum of the weights up to it.
    shares: Vec<(u64, usize)>,
    /// Instead of the destination's.
    pub(crate) retry: Option<RetryPolicy>,
    /// Timeout of an answer.
    pub(crate) timeout: Option<Duration>,
    /// Further actions on requests; most rules have none.
    pub(crate) actions: Option<Box<Actions>>,
    /// HTTP status if a destination does not exist.
    pub(crate) missing_status: u16,
}

impl RouteActions {
    /// The numbers of all targets that it may lead to.
    pub(crate) fn targets(&self) -> impl Iterator<Item = usize> {
        self.shares.iter().map(|(_, target)| *target)
    }

    /// Which of its shares takes one request, and the target of that; none where it is answered. `random` is uniform.
    pub(crate) fn share(&self, random: impl FnOnce() -> u64) -> Option<(usize, usize)> {
        share(&self.shares, random)
    }
}

fn share(shares: &[(u64, usize)], random: impl FnOnce() -> u64) -> Option<(usize, usize)> {
    match shares {
        [(_, only)] => Some((0, *only)),
        shares => {
            let (sum, _) = *shares.last()?;
            let drawn = ((u128::from(random()) * u128::from(sum)) >> 64) as u64;
            let at = shares.partition_point(|(upto, _)| *upto <= drawn);
            shares.get(at).map(|(_, target)| (at, *target))
        }
    }
}

/// Targets, each once, with the numbers that rules know them by.
#[derive(Default)]
struct Numbers {
    targets: Vec<Result<RouteTarget, Arc<str>>>,
    known: HashMap<Result<RouteTarget, Arc<str>>, usize>,
}

impl Numbers {
    /// The number of a target.
    fn of(&mut self, to: &Result<RouteTarget, Arc<str>>) -> usize {
        if let Some(known) = self.known.get(to) {
            return *known;
        }
        self.targets.push(to.clone());
        self.known.insert(to.clone(), self.targets.len() - 1);
        self.targets.len() - 1
    }

    /// Sums of the weights up to each destination, with the number of its target.
    fn shares(&mut self, destinations: &[RouteDestination]) -> Vec<(u64, usize)> {
        let mut sum = 0;
        let mut shares = Vec::new();
        for to in destinations.iter().filter(|to| to.weight > 0) {
            sum += u64::from(to.weight);
            shares.push((sum, self.of(&to.to)));
        }
        shares
    }
}

impl HeldRoutes {
    /// Checks the bytes of a `voile.proxy.v1.Routes`, expressions included.
    pub(crate) fn decode(version: Arc<str>, body: &[u8]) -> Result<Self, String> {
        Self::new(version, PackedRoutes::copied(body))
    }

    /// Checks what came, expressions included.
    pub(super) fn new(version: Arc<str>, body: PackedRoutes) -> Result<Self, String> {
        let mut targets = BTreeSet::new();
        let mut misses = false;
        let mut lead = |to: Result<RouteTarget, Arc<str>>| match to {
            Ok(to) => {
                targets.insert(to);
            }
            Err(_) => misses = true,
        };
        let opened = body.open().map_err(|error| error.to_string())?;
        for (index, route) in opened.routes().enumerate() {
            let route = route.map_err(|error| error.to_string())?;
            for one in &route.matches {
                matching(one).map_err(|error| format!("routes[{index}]: {error}"))?;
            }
            route.destinations.into_iter().for_each(|one| lead(one.to));
            route.mirrors.into_iter().for_each(|one| lead(one.to));
        }
        for route in opened.connections() {
            let route = route.map_err(|error| error.to_string())?;
            route.destinations.into_iter().for_each(|one| lead(one.to));
        }
        Ok(Self {
            version,
            body,
            targets: targets.into_iter().collect(),
            misses,
            compiled: RefCell::default(),
        })
    }

    /// Reads the routes as they came, one at a time.
    fn read(&self) -> OpenedRoutes {
        self.body.open().expect(READ_BEFORE)
    }

    /// Routes in force if no readable ones ever came: fail closed.
    pub(super) fn unreadable(version: Arc<str>) -> Self {
        let route = WireRoute::to(vec![RouteDestination {
            to: Err(UNREADABLE.into()),
            weight: 1,
            headers: HeaderRules::default(),
        }]);
        let said = Routes {
            connections: vec![ConnectionRoute {
                matches: Vec::new(),
                destinations: route.destinations.clone(),
            }],
            routes: vec![route],
        };
        Self::new(version, PackedRoutes::from(&said)).expect("invariant: they are ours")
    }

    /// Keeps the compiled form of the same routes.
    pub(super) fn follow(&mut self, before: &Self) {
        if self.body == before.body {
            self.compiled.clone_from(&before.compiled);
        }
    }

    /// The labels of our own workload are others than before.
    pub(super) fn forget_compiled(&mut self) {
        self.compiled.borrow_mut().clear();
    }

    /// As they hold for calls of a workload with these labels to a port.
    pub(crate) fn compiled(&self, port: Port, own: &Labels) -> Arc<CompiledRoutes> {
        let mut compiled = self.compiled.borrow_mut();
        let made = || Arc::new(compile(&self.read(), port, own));
        Arc::clone(compiled.entry(port).or_insert_with(made))
    }

    /// Returns true if a destination does not exist.
    fn misses(&self) -> bool {
        self.misses
    }

    /// For people with a question: each route with its name and where it leads.
    pub(crate) fn shown(&self) -> Vec<(String, Vec<String>)> {
        let to = |one: &RouteDestination| match &one.to {
            Err(missing) => format!("{}: nowhere, {missing}", one.weight),
            Ok(to) => {
                let port = to
                    .port
                    .map_or_else(|| "*".to_owned(), |port| port.to_string());
                let subset = to.subset.as_deref().unwrap_or_default();
                format!("{}: {}|{subset}|{port}", one.weight, to.service)
            }
        };
        let shown = |name: &str, destinations: &[RouteDestination]| {
            (name.to_owned(), destinations.iter().map(to).collect())
        };
        let said = self.read();
        let routes = said.routes().map(|route| {
            let route = route.expect(READ_BEFORE);
            shown(&route.name, &route.destinations)
        });
        let connections = said.connections().map(|route| {
            let route = route.expect(READ_BEFORE);
            shown("connections", &route.destinations)
        });
        routes.chain(connections).collect()
    }

    /// All destinations of the routes.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &RouteTarget> {
        self.targets.iter()
    }
}

fn compile(said: &OpenedRoutes, port: Port, own: &Labels) -> CompiledRoutes {
    let mut numbers = Numbers::default();
    let mut remembers = false;
    let mut rules = Vec::new();
    let mut said_of_requests = false;
    // One after the other, so that no more than one is there whole.
    let table = RouteTable::new(said.routes().filter_map(|route| {
        let route = route.expect(READ_BEFORE);
        said_of_requests = true;
        let ours = |one: &&RequestMatch| {
            one.port.is_none_or(|wanted| wanted == port) && one.source_labels.selects(own)
        };
        let matches = route.matches.iter().filter(ours);
        // Read before, when they came.
        let mut matches: Vec<Match> = matches.filter_map(|one| matching(one).ok()).collect();
        if route.matches.is_empty() {
            matches.push(Match::default());
        }
        if matches.is_empty() {
            return None;
        }
        remembers |= matches.iter().any(has_expressions);
        let shares = numbers.shares(&route.destinations);
        let mirrors = route.mirrors.iter();
        let mirrors = mirrors.map(|mirror| (mirror.share, numbers.of(&mirror.to)));
        let mirrors = mirrors.collect();
        rules.push(RouteActions {
            shares,
            retry: route.retry.as_ref().map(RetryPolicy::from),
            timeout: route.timeout,
            actions: Actions::of(&route, mirrors).map(Box::new),
            missing_status: route.missing_status,
            name: route.name,
        });
        Some(matches)
    }));
    let connections = connect(said, port, own, &mut numbers);
    // A virtual host without routes leads nowhere. A service with routes for connections only takes its requests itself.
    let has_table = said_of_requests || said.connections().next().is_none();
    CompiledRoutes {
        table: has_table.then_some(table),
        remembers,
        connections,
        rules,
        targets: numbers.targets,
    }
}

/// The connections' part of it.
fn connect(said: &OpenedRoutes, port: Port, own: &Labels, numbers: &mut Numbers) -> Connections {
    let mut alternatives = Vec::new();
    let mut shares = Vec::new();
    for route in said.connections() {
        let route = route.expect(READ_BEFORE);
        let ours = |one: &&ConnectionMatch| {
            one.port.is_none_or(|wanted| wanted == port) && one.source_labels.selects(own)
        };
        let matches: Vec<_> = route.matches.iter().filter(ours).map(connection).collect();
        if matches.is_empty() && !route.matches.is_empty() {
            continue;
        }
        alternatives.push(matches);
        shares.push(numbers.shares(&route.destinations));
    }
    Connections {
        table: ConnectionTable::new(&alternatives),
        shares,
    }
}

fn connection(one: &ConnectionMatch) -> voile_traffic::route::ConnectionMatch {
    let subnets = one.subnets.iter();
    voile_traffic::route::ConnectionMatch {
        server_names: one.server_names.iter().map(ToString::to_string).collect(),
        subnets: subnets.map(|range| (range.address, range.prefix)).collect(),
    }
}

/// Returns true if any part of the match is a regular expression.
fn has_expressions(one: &Match) -> bool {
    let texts = [&one.method, &one.scheme, &one.authority];
    let fields = [&one.headers, &one.without_headers, &one.query];
    let fields = fields.into_iter().flatten();
    let values = fields.map(|field| &field.value);
    let values = values.chain(one.claims.iter().map(|claim| &claim.value));
    let values = values.filter_map(|value| match value {
        ValueMatch::Is(text) => Some(text),
        ValueMatch::Present | ValueMatch::Absent => None,
    });
    let mut all = texts.into_iter().flatten().chain(values);
    matches!(one.path, PathMatch::Regex(_)) || all.any(|text| matches!(text, TextMatch::Regex(_)))
}

/// A match as the table asks it.
pub(crate) fn matching(one: &RequestMatch) -> Result<Match, String> {
    let path = match &one.uri {
        None | Some(Said::Present) => PathMatch::Any,
        Some(Said::Exact(text)) => PathMatch::Exact(text.to_string()),
        Some(Said::Prefix(text)) => PathMatch::Prefix(text.to_string()),
        Some(Said::Segments(text)) => PathMatch::Segments(text.to_string()),
        Some(Said::Regex(text)) => PathMatch::Regex(regex(text)?),
    };
    let text = |said: &Option<Said>| match said {
        Some(said) => text(said),
        None => Ok(None),
    };
    let fields = |list: &[(Arc<str>, Said)]| {
        let list = list.iter().filter(|(name, _)| claim(name).is_none());
        let one = |(name, said): &(Arc<str>, Said)| Ok(FieldMatch::new(name, value(said)?));
        list.map(one).collect::<Result<Vec<_>, String>>()
    };
    Ok(Match {
        path,
        ignore_case: one.any_case,
        scheme: text(&one.scheme)?,
        method: text(&one.method)?,
        authority: text(&one.authority)?,
        headers: fields(&one.headers)?,
        without_headers: fields(&one.without_headers)?,
        query: one
            .query
            .iter()
            .map(|(name, said)| Ok(FieldMatch::new(name, value(said)?)))
            .collect::<Result<_, String>>()?,
        claims: claims(one)?,
    })
}

/// Claim matches of a request, which are listed among its header matches.
fn claims(one: &RequestMatch) -> Result<Vec<ClaimMatch>, String> {
    let with = one.headers.iter().map(|field| (field, false));
    let without = one.without_headers.iter().map(|field| (field, true));
    let asked = with.chain(without).filter_map(|((name, said), without)| {
        let path = claim(name)?.map(ToOwned::to_owned).collect();
        Some(value(said).map(|value| ClaimMatch {
            path,
            value,
            without,
        }))
    });
    asked.collect()
}

fn value(said: &Said) -> Result<ValueMatch, String> {
    Ok(text(said)?.map_or(ValueMatch::Present, ValueMatch::Is))
}

/// None asks only whether it is there.
fn text(said: &Said) -> Result<Option<TextMatch>, String> {
    Ok(match said {
        Said::Present => None,
        Said::Exact(text) => Some(TextMatch::Exact(text.to_string())),
        Said::Prefix(text) => Some(TextMatch::Prefix(text.to_string())),
        Said::Segments(_) => return Err("path templates match paths only".to_owned()),
        Said::Regex(text) => Some(TextMatch::Regex(regex(text)?)),
    })
}

fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string())
}

impl Registry {
    /// Stores routes. Unreadable ones leave the last good ones; without any, requests are refused.
    pub(super) fn add_routes(
        &mut self,
        name: &Arc<str>,
        version: Arc<str>,
        body: &[u8],
    ) -> Result<(), String> {
        match HeldRoutes::decode(version.clone(), body) {
            Ok(routes) if routes.misses() && self.is_served_whole(name) => {
                let before = self.held_back.get(name);
                let until = before.and_then(|before| before.until);
                let held_back = HeldBack { routes, until };
                self.held_back.insert(name.clone(), held_back);
                Ok(())
            }
            Ok(held) => {
                self.held_back.remove(name);
                self.routes.insert(name.clone(), held);
                Ok(())
            }
            Err(reason) => {
                let closed = || HeldRoutes::unreadable(version);
                self.routes.entry(name.clone()).or_insert_with(closed);
                Err(reason)
            }
        }
    }

    /// Returns true if every request to a service has a destination now.
    fn is_served_whole(&self, name: &Arc<str>) -> bool {
        match self.routes.get(name) {
            Some(held) => !held.misses(),
            // It has no routes, or those that it would have are held back.
            None => {
                self.is_absent(type_url::SERVICE_ROUTES, name) || self.held_back.contains_key(name)
            }
        }
    }

    /// Obeys what was held back long enough; when to look again.
    pub(crate) fn look_at_held_back(&mut self, now: Instant) -> Option<Instant> {
        for one in self.held_back.values_mut() {
            one.until.get_or_insert(now + HELD_BACK);
        }
        let all = std::mem::take(&mut self.held_back);
        let is_due = |one: &HeldBack| one.until.is_some_and(|until| until <= now);
        let (due, waiting): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|(_, one)| is_due(one));
        self.held_back = waiting;
        self.routes
            .extend(due.into_iter().map(|(name, one)| (name, one.routes)));
        self.held_back.values().filter_map(|one| one.until).min()
    }

    /// Keeps the parts of a service that routes lead to while others, which say that they are gone, are held back.
    pub(super) fn keep_parts(&self, service: &Arc<str>, policy: &mut ServicePolicy) {
        let Some(before) = self.policies.get(service) else {
            return;
        };
        let waiting = self.held_back.keys();
        let in_force = waiting.filter_map(|called| self.routes.get(called));
        for to in in_force.flat_map(HeldRoutes::targets) {
            if to.service.to_string() == **service
                && let Some(name) = &to.subset
                && let Some(part) = before.value.subsets.get(name)
            {
                let parts = policy.subsets.entry(name.clone());
                parts.or_insert_with(|| part.clone());
            }
        }
    }

    /// There are none any more.
    pub(super) fn remove_routes(&mut self, name: &Arc<str>) {
        self.held_back.remove(name);
        self.routes.remove(name);
    }

    /// Forgets routes without a subscription.
    pub(crate) fn forget_routes(&mut self, name: &Arc<str>) {
        self.remove_routes(name);
        self.forget_lacking(type_url::SERVICE_ROUTES, name);
        self.absent
            .remove(&(type_url::SERVICE_ROUTES, name.clone()));
    }

    /// The services that the routes of these lead to.
    pub(crate) fn led_to<'a>(
        &self,
        called: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> BTreeSet<Arc<str>> {
        let held = called.into_iter().filter_map(|name| self.routes.get(name));
        let targets = held.flat_map(HeldRoutes::targets);
        targets.map(|to| to.service.to_string().into()).collect()
    }

    /// Missing answer about a service's routes: the routes themselves, or a destination.
    pub(super) fn unrouted(&self, called: &Arc<str>) -> Option<Arc<str>> {
        let Some(held) = self.routes.get(called) else {
            let answered = self.is_absent(type_url::SERVICE_ROUTES, called)
                || self.is_lacking(type_url::SERVICE_ROUTES, called)
                || self.held_back.contains_key(called);
            return (!answered).then(|| format!("the routes of {called}").into());
        };
        self.unled(held)
    }

    /// Missing answer about a destination of routes.
    pub(super) fn unled(&self, held: &HeldRoutes) -> Option<Arc<str>> {
        held.targets().find_map(|to| {
            let name: Arc<str> = to.service.to_string().into();
            if !self.service_answered(&name) {
                return Some(name);
            }
            // A removed service gets no further answers.
            let policy = self.policies.get(&name)?;
            let subset = to.subset.as_ref()?;
            // A part that other clients have and we have not is known not to be there.
            let known =
                policy.value.subsets.contains_key(subset) || self.others_have(&name, subset);
            (!known).then(|| format!("subset {subset} of {name}").into())
        })
    }

    /// Returns true if the service and its policy have answers.
    pub(super) fn service_answered(&self, name: &Arc<str>) -> bool {
        let service = self.services.contains_key(name) || self.is_absent(type_url::ADDRESS, name);
        service && self.policy_answered(name)
    }

    /// A port of a service as the application calls it, with its routes.
    pub(super) fn routed(&self, wanted: &OutboundService) -> ServicePlan {
        ServicePlan {
            routes: self.routes_plan(wanted),
            ..self.service(wanted)
        }
    }

    fn routes_plan(&self, wanted: &OutboundService) -> Option<Box<RoutesPlan>> {
        // They are obeyed by the waypoint, and once is enough.
        if self.waypoint_before(&wanted.key).is_some() {
            return None;
        }
        let held = self.routes.get(&service_name(wanted))?;
        Some(self.plan_of(held, wanted.port))
    }

    /// Routes as they hold for a port that is called.
    pub(super) fn plan_of(&self, held: &HeldRoutes, called: Port) -> Box<RoutesPlan> {
        let own = self.configuration.as_ref().map(|held| &held.value.labels);
        let none = Labels::default();
        let compiled = held.compiled(called, own.unwrap_or(&none));
        let target = |to: &Result<RouteTarget, Arc<str>>| match to {
            Ok(to) => self.target(to, called),
            Err(missing) => Err(missing.clone()),
        };
        Box::new(RoutesPlan {
            targets: compiled.targets.iter().map(target).collect(),
            compiled,
        })
    }

    /// Plan of a route's destination, for a called port.
    fn target(&self, to: &RouteTarget, called: Port) -> Result<ServicePlan, Arc<str>> {
        let wanted = OutboundService {
            key: to.service.clone(),
            port: to.port.unwrap_or(called),
            authorities: Vec::new(),
        };
        let name = service_name(&wanted);
        let Some(service) = self.services.get(&name) else {
            return Err(format!("{name} does not exist").into());
        };
        if service.value.port(wanted.port).is_none() {
            return Err(format!("{name} has no port {}", wanted.port).into());
        }
        let Some(subset) = &to.subset else {
            return Ok(self.service(&wanted));
        };
        match self.subset(&to.service, subset) {
            Some(said) => Ok(self.part(&wanted, subset, said)),
            None => Err(format!("{name} has no subset {subset}").into()),
        }
    }

    fn subset(&self, service: &ServiceKey, name: &str) -> Option<&Subset> {
        let policy = self.policies.get(service.to_string().as_str())?;
        policy.value.subsets.get(name)
    }
}
