//! Lists the callers of a service: every identity of the mesh, and plaintext, against each of its ports. Conditions on
//! the request are quoted from the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use voile_model::mesh::{
    Mesh, MeshService, Protocol, RequestAuthentication, ServicePort, token_rules,
};
use voile_model::{Identity, Port, ResourceName, nearest_name};
use voile_policy::authorization::{
    Action, Policy, PolicyRule, RequestFacts, Term, naive, provider_of,
};

use super::{
    WorkloadPolicies, enforced_protocol, is_known, is_opaque, mode, refused_at_the_door, said,
    token, waypoint,
};
use crate::subject::{Subject, behind, subjects};

/// The caller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallerGroup {
    /// A caller with a certificate of the mesh.
    Identity(Identity),
    /// A plaintext caller without identity.
    Plaintext,
}

impl CallerGroup {
    /// Its identity, if it has one.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Identity(identity) => Some(identity),
            Self::Plaintext => None,
        }
    }
}

/// Permissions of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerAccess {
    /// Anything.
    Everything,
    /// Requests that match these conditions; a condition may also exclude.
    Some(Vec<String>),
    /// Nothing; why.
    Nothing(String),
}

/// One cell: a caller at a port of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The caller.
    pub caller: CallerGroup,
    /// The workload, for people.
    pub workload: String,
    /// The service's port.
    pub port: Port,
    /// Its permissions.
    pub answer: CallerAccess,
}

/// Every identity of a workload with a proxy, and whether a gateway or waypoint has it.
#[must_use]
pub fn identities(mesh: &Mesh) -> BTreeMap<Identity, Option<&'static str>> {
    let mut known = BTreeMap::new();
    let subjects = subjects(mesh);
    for subject in subjects.iter().filter(|subject| subject.has_proxy()) {
        let identity = Identity {
            trust_domain: mesh.config.trust_domain.clone(),
            namespace: subject.namespace.clone(),
            service_account: subject.service_account.clone(),
        };
        let role = match subject.template {
            Some(template) if template.is_waypoint() => Some("waypoint"),
            Some(template) if template.is_gateway() => Some("gateway"),
            _ => None,
        };
        let known = known.entry(identity).or_insert(role);
        *known = known.or(role);
    }
    known
}

/// A sentence about a caller of this mesh's trust domain whose identity no workload with a proxy has.
#[must_use]
pub fn unknown_caller(mesh: &Mesh, caller: &Identity) -> Option<String> {
    let known = identities(mesh);
    if caller.trust_domain != mesh.config.trust_domain || known.contains_key(caller) {
        return None;
    }
    let names = known.keys();
    let names = names.map(|one| (one.namespace.as_str(), &*one.service_account));
    let meant = nearest_name((caller.namespace.as_str(), &caller.service_account), names);
    let hint = meant.map(|(namespace, account)| format!("; did you mean {namespace}/{account}?"));
    let hint = hint.unwrap_or_default();
    Some(format!(
        "no workload with a proxy has the identity {caller}{hint}"
    ))
}

/// The ways from outside of the mesh to a service: hosts, the gateway and the route that leads there, with its place.
#[must_use]
pub fn entrances(mesh: &Mesh, service: &MeshService) -> Vec<String> {
    let mut found = Vec::new();
    let shown = |hosts: Vec<String>| match hosts.is_empty() {
        true => "any host".to_owned(),
        false => hosts.join(", "),
    };
    for route in &mesh.intents.virtual_services {
        if !route
            .destinations()
            .any(|to| to.host == service.key.hostname)
        {
            continue;
        }
        let declared = |gateway: &&ResourceName| {
            let mut gateways = mesh.intents.gateways.iter();
            gateways.any(|one| one.name == **gateway)
        };
        let gateways = route.gateways.iter();
        let gateways = gateways.filter_map(|(gateway, _)| gateway.as_ref());
        for gateway in gateways.filter(declared) {
            let hosts = route.hosts.iter().map(|(host, _)| host.to_string());
            let hosts = shown(hosts.collect());
            let (name, source) = (&route.name, &route.source);
            found.push(format!(
                "{hosts} at Gateway {gateway}, by VirtualService {name} in {source}"
            ));
        }
    }
    let own = ResourceName::new(service.key.namespace.clone(), service.name.clone());
    for route in &mesh.gateway_api.routes {
        let requests = route.rules.iter().flat_map(|rule| &rule.backends);
        let connections = route.connections.iter().flat_map(|rule| &rule.backends);
        if !requests.chain(connections).any(|one| one.to.to.name == own) {
            continue;
        }
        for parent in route
            .parents
            .iter()
            .filter(|one| &*one.to.kind == "Gateway")
        {
            let hosts = shown(route.hostnames.iter().map(ToString::to_string).collect());
            let (kind, name, source) = (route.kind.word(), &route.name, &route.source);
            let gateway = &parent.to.name;
            found.push(format!(
                "{hosts} at Gateway {gateway}, by {kind} {name} in {source}"
            ));
        }
    }
    found
}

/// The whole table, callers in order. A service behind a waypoint has one row for each port: the waypoint decides.
#[must_use]
pub fn who_can(mesh: &Mesh, service: &MeshService) -> Vec<Access> {
    let subjects = subjects(mesh);
    let mut callers = BTreeSet::from([CallerGroup::Plaintext]);
    callers.extend(identities(mesh).into_keys().map(CallerGroup::Identity));
    let waypoint = mesh.waypoint_of(service);
    let members = match waypoint {
        Some(_) => Vec::new(),
        None => behind(mesh, service, &subjects),
    };
    let mut table = Vec::new();
    for caller in &callers {
        let mut row = |workload: String, port: Port, answer| {
            table.push(Access {
                caller: caller.clone(),
                workload,
                port,
                answer,
            });
        };
        if let Some(name) = &waypoint {
            for port in &service.ports {
                let answer = at_waypoint(mesh, name, (service, port), caller);
                row(format!("waypoint {name}"), port.number, answer);
            }
        }
        for (subject, ports) in &members {
            let held = WorkloadPolicies::of(mesh, subject);
            for port in &service.ports {
                if let Some(target) = ports.get(&port.number) {
                    let answer =
                        at_workload(mesh, subject, &held, caller, (port.protocol, *target));
                    row(subject.name.clone(), port.number, answer);
                }
            }
        }
    }
    table
}

/// Decides by the ALLOW policies: without any, always.
fn allowed<'p>(
    policies: impl Iterator<Item = &'p Policy>,
    facts: &RequestFacts<'_>,
    http: bool,
) -> MatchCertainty {
    let mut allows = policies
        .filter(|policy| policy.action == Action::Allow)
        .peekable();
    if allows.peek().is_none() {
        return MatchCertainty::Always;
    }
    let mut some = Vec::new();
    for policy in allows {
        match weigh(policy, facts, http) {
            MatchCertainty::Always => return MatchCertainty::Always,
            MatchCertainty::Never => {}
            MatchCertainty::When(rules) => some.extend(rules),
        }
    }
    match some.is_empty() {
        true => MatchCertainty::Never,
        false => MatchCertainty::When(some),
    }
}

fn at_waypoint(
    mesh: &Mesh,
    name: &ResourceName,
    (service, port): (&MeshService, &ServicePort),
    caller: &CallerGroup,
) -> CallerAccess {
    match waypoint::entrance(mesh, name, service, caller.identity()) {
        Err((why, _)) => CallerAccess::Nothing(why),
        Ok(gateway) => {
            let held = WorkloadPolicies::of_policies(
                mesh,
                mesh.authorization_aimed_at(gateway, Some(service)),
            );
            let own = waypoint::workload(mesh, name);
            let tokens = mesh.request_authentication_at(gateway, Some(service), own);
            answer(&held, tokens, caller, (port.protocol, port.number))
        }
    }
}

fn at_workload(
    mesh: &Mesh,
    subject: &Subject<'_>,
    held: &WorkloadPolicies<'_>,
    caller: &CallerGroup,
    (protocol, port): (Protocol, Port),
) -> CallerAccess {
    if !subject.has_proxy() {
        return CallerAccess::Everything;
    }
    match refused_at_the_door(mesh, mode(mesh, subject, port), caller.identity()) {
        Some(why) => CallerAccess::Nothing(why),
        None => {
            let tokens = mesh.request_authentication_for_labels(subject.namespace, subject.labels);
            let protocol = enforced_protocol(mesh, subject, (protocol, port));
            answer(held, tokens, caller, (protocol, port))
        }
    }
}

/// Decides by the policies for a caller whose connection is accepted.
fn answer(
    held: &WorkloadPolicies<'_>,
    tokens: Vec<&Arc<RequestAuthentication>>,
    caller: &CallerGroup,
    (protocol, port): (Protocol, Port),
) -> CallerAccess {
    let nowhere = Ipv4Addr::UNSPECIFIED.into();
    let facts = RequestFacts {
        source: caller.identity(),
        source_ip: nowhere,
        remote_ip: nowhere,
        destination: SocketAddr::new(nowhere, port.get()),
        sni: None,
        http: None,
    };
    let http = !is_opaque(protocol);
    let enforced = || held.policies.iter().filter(|policy| !policy.dry_run);
    let mut conditions = match http {
        true => token::required_tokens(token_rules(tokens)),
        false => Vec::new(),
    };
    for policy in enforced() {
        // If CUSTOM policies name several providers, the requests they match are denied.
        let asked = match policy.action {
            Action::Allow | Action::Audit => continue,
            Action::Deny => None,
            Action::Custom(_) => provider_of(&held.policies),
        };
        match (weigh(policy, &facts, http), asked) {
            (MatchCertainty::Never, _) => {}
            (MatchCertainty::Always, None) => {
                return CallerAccess::Nothing(format!("{} denies everything", policy.name));
            }
            (MatchCertainty::Always, Some(asked)) => {
                conditions.push(format!("`{asked}` allows"));
            }
            (MatchCertainty::When(rules), None) => {
                conditions.extend(rules.into_iter().map(|rule| format!("not ({rule})")));
            }
            (MatchCertainty::When(rules), Some(asked)) => {
                let rules = rules.into_iter();
                let or = |rule| format!("(`{asked}` allows or not ({rule}))");
                conditions.extend(rules.map(or));
            }
        }
    }
    match allowed(enforced(), &facts, http) {
        MatchCertainty::Always => {}
        MatchCertainty::Never => {
            return CallerAccess::Nothing("no ALLOW rule can match".to_owned());
        }
        MatchCertainty::When(rules) => {
            let one = rules.join(" or ");
            conditions.push(match rules.len() {
                1 => one,
                _ => format!("({one})"),
            });
        }
    }
    match conditions.is_empty() {
        true => CallerAccess::Everything,
        false => CallerAccess::Some(conditions),
    }
}

/// The match of a policy, as far as it is known without a request.
enum MatchCertainty {
    Always,
    Never,
    /// If one of these holds.
    When(Vec<String>),
}

fn weigh(policy: &Policy, facts: &RequestFacts<'_>, http: bool) -> MatchCertainty {
    let mut when = Vec::new();
    for rule in &policy.rules {
        let Some(rule) = rule.answerable(&policy.action, http) else {
            continue;
        };
        match open(&rule, facts) {
            None => {}
            Some(left) if left.is_empty() => return MatchCertainty::Always,
            Some(left) => when.push(left),
        }
    }
    match when.is_empty() {
        true => MatchCertainty::Never,
        false => MatchCertainty::When(when),
    }
}

/// The conditions of a rule that remain once caller and port are known. `None` never matches; an empty text always
/// does.
fn open(rule: &PolicyRule, facts: &RequestFacts<'_>) -> Option<String> {
    let left = |terms: &Vec<Term>| -> Option<Vec<String>> {
        let known = |term: &&Term| is_known(&term.attribute);
        let holds = terms
            .iter()
            .filter(known)
            .all(|term| naive::holds(term, facts));
        let unknown = terms.iter().filter(|term| !known(term));
        holds.then(|| unknown.map(said).collect())
    };
    let part = |parts: &Vec<Vec<Term>>| -> Option<String> {
        if parts.is_empty() {
            return Some(String::new());
        }
        let open: Vec<Vec<String>> = parts.iter().filter_map(left).collect();
        if open.iter().any(Vec::is_empty) {
            return Some(String::new());
        }
        let alternatives: Vec<String> = open.iter().map(|terms| terms.join(" and ")).collect();
        match alternatives.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            // Other parts are asked beside.
            several => Some(format!("({})", several.join(" or "))),
        }
    };
    let parts = [
        part(&rule.from)?,
        part(&rule.to)?,
        left(&rule.when)?.join(" and "),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some(parts.join(" and "))
}
