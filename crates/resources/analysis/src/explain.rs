//! Explains a decision about a request: the decision that a proxy makes, the policy and rule behind it, and the changes
//! that would reverse it. Also lists the callers of a service.

mod callers;
mod limits;
mod token;
mod waypoint;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use voile_model::mesh::{
    AuthorizationPolicy, Mesh, MeshService, PodTemplate, Protocol, ServicePort, token_rules,
};
use voile_model::{Identity, Labels, Namespace, Port, Source};
use voile_policy::authorization::{
    Action, Attribute, AuthorizationOutcome, Denial, DenialReason, DryRun, HttpFacts,
    PathNormalization, Policy, PolicyRule, RequestFacts, RuleRef, Term, TrustDomains, Verdict,
    naive, provider_of,
};
use voile_policy::{ConnectionFacts, Mode, Trust, effective_at, inbound};

pub use callers::{
    Access, CallerAccess, CallerGroup, entrances, identities, unknown_caller, who_can,
};
pub use token::{PresentedToken, TokenSaid};

use crate::subject::{Subject, behind, subjects};

/// A request to explain.
#[derive(Debug, Clone)]
pub struct AccessQuestion<'a> {
    /// The caller's identity; `None` is plaintext.
    pub from: Option<&'a Identity>,
    /// From where.
    pub source_ip: Option<IpAddr>,
    /// The method.
    pub method: &'a str,
    /// Path and query, as a client would send them.
    pub path: &'a str,
    /// Host and port; `None` is the service's own name.
    pub host: Option<&'a str>,
    /// Name and value.
    pub headers: &'a [(String, String)],
    /// SNI.
    pub server_name: Option<&'a str>,
    /// A token that it brings.
    pub token: Option<PresentedToken<'a>>,
}

/// The decision of one workload behind a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The workload, for people: `Pod shop/web`.
    pub workload: String,
    /// Its port.
    pub port: Port,
    /// True if the request would be allowed.
    pub allowed: bool,
    /// The deciding policy or setting.
    pub decided: DecidingPolicy,
    /// The CUSTOM rule whose provider is asked before any other policy decides.
    pub asked: Option<DecidingPolicy>,
    /// The result for its token; `None` without a token.
    pub token: Option<TokenSaid>,
    /// Changes that would reverse the decision, one sentence each.
    pub otherwise: Vec<String>,
    /// Results of dry-run and AUDIT policies.
    pub beside: Vec<String>,
    /// Rate limits on the allowed requests, one sentence for each rule.
    pub limits: Vec<String>,
}

/// The deciding policy, or a sentence if no policy decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidingPolicy {
    /// One sentence.
    pub why: String,
    /// `namespace/name` of the policy, if one decided.
    pub policy: Option<String>,
    /// Its rule, counted from 0.
    pub rule: Option<u32>,
    /// Location of that rule.
    pub source: Option<Source>,
}

/// A service by what people call it: `web`, `web.shop`, `shop/web`, `web.shop.svc.cluster.local`. The namespace is for a
/// name without one.
#[must_use]
pub fn service_called<'a>(
    mesh: &'a Mesh,
    name: &str,
    own: &Namespace,
) -> Option<&'a Arc<MeshService>> {
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, name),
    };
    let name = name.trim_end_matches('.');
    let fits = |service: &&Arc<MeshService>| {
        let host = service.key.hostname.as_str();
        let own_name = format!("{}.{}", service.name, service.key.namespace);
        match namespace {
            Some(namespace) => {
                service.key.namespace.as_str() == namespace
                    && (host == name || *service.name == *name)
            }
            None => {
                let short = service.key.namespace == *own && *service.name == *name;
                host == name || short || own_name == name || format!("{own_name}.svc") == name
            }
        }
    };
    mesh.services.values().find(fits)
}

/// The port of a service that people name by its number or its name; the only one if they name none.
#[must_use]
pub fn port_called<'a>(service: &'a MeshService, port: Option<&str>) -> Option<&'a ServicePort> {
    match port {
        None if service.ports.len() == 1 => service.ports.first(),
        None => None,
        Some(text) => {
            let fits = |one: &&ServicePort| *one.name == *text || one.number.to_string() == text;
            service.ports.iter().find(fits)
        }
    }
}

/// Answers for every workload behind a service's port.
#[must_use]
pub fn explain(
    mesh: &Mesh,
    service: &MeshService,
    port: &ServicePort,
    question: &AccessQuestion<'_>,
) -> Vec<Explanation> {
    if let Some(waypoint) = mesh.waypoint_of(service) {
        return vec![waypoint::at(mesh, &waypoint, (service, port), question)];
    }
    let subjects = subjects(mesh);
    behind(mesh, service, &subjects)
        .into_iter()
        .filter_map(|(subject, ports)| {
            let target = *ports.get(&port.number)?;
            Some(one(
                mesh,
                subject,
                (service, port.protocol),
                target,
                question,
            ))
        })
        .collect()
}

/// The policies of a workload with these labels, with the trust domain's aliases, as its proxy holds them.
#[must_use]
pub fn policies_of(mesh: &Mesh, namespace: &Namespace, labels: &Labels) -> Vec<Policy> {
    WorkloadPolicies::of_labels(mesh, namespace, labels).policies
}

/// A workload's policies, ready to be asked.
pub(crate) struct WorkloadPolicies<'a> {
    pub(crate) written: Vec<&'a Arc<AuthorizationPolicy>>,
    pub(crate) policies: Vec<Policy>,
}

impl<'a> WorkloadPolicies<'a> {
    /// The policies of the proxy in front of a workload. A node proxy sees connections only, so it keeps only
    /// conditions on connections.
    pub(crate) fn of(mesh: &'a Mesh, subject: &Subject<'_>) -> Self {
        let mut held = Self::of_labels(mesh, subject.namespace, subject.labels);
        if !subject.has_sidecar && subject.ambient {
            held.policies
                .iter_mut()
                .for_each(Policy::limit_to_connections);
        }
        held
    }

    fn of_labels(mesh: &'a Mesh, namespace: &Namespace, labels: &Labels) -> Self {
        Self::of_policies(mesh, mesh.authorization_for_labels(namespace, labels))
    }

    fn of_policies(mesh: &'a Mesh, all: Vec<&'a Arc<AuthorizationPolicy>>) -> Self {
        let config = &mesh.config;
        let aliases = config.trust_domain_aliases.iter();
        let aliases: Vec<&str> = aliases.map(voile_model::TrustDomain::as_str).collect();
        let domains = TrustDomains::new(config.trust_domain.as_str(), &aliases);
        // A policy of the model was checked, value by value.
        let read = |policy: &'a Arc<AuthorizationPolicy>| Some((policy, Policy::of(policy).ok()?));
        let (written, mut policies): (Vec<_>, Vec<_>) = all.into_iter().filter_map(read).unzip();
        policies.iter_mut().for_each(|policy| domains.apply(policy));
        Self { written, policies }
    }

    fn decided(&self, why: String, rule: Option<RuleRef>) -> DecidingPolicy {
        let found =
            rule.and_then(|rule| Some((self.written.get(rule.policy as usize)?, rule.rule)));
        let source = found.map(|(policy, rule)| {
            let rule = policy.rules.get(rule as usize);
            rule.map_or_else(|| policy.source.clone(), |rule| rule.source.clone())
        });
        DecidingPolicy {
            why,
            policy: found.map(|(policy, _)| policy.name.to_string()),
            rule: found.map(|(_, rule)| rule),
            source,
        }
    }

    /// The provider that a CUSTOM rule asks.
    fn asking(&self, rule: RuleRef) -> DecidingPolicy {
        let policy = self.policies.get(rule.policy as usize);
        let provider = policy.and_then(|policy| match &policy.action {
            Action::Custom(name) => Some(name),
            Action::Allow | Action::Deny | Action::Audit => None,
        });
        let provider = provider.map_or("", |name| &**name);
        self.decided(format!("provider `{provider}`"), Some(rule))
    }
}

fn mode(mesh: &Mesh, subject: &Subject<'_>, port: Port) -> Mode {
    // A gateway takes what its servers declare: PeerAuthentication is about sidecars and node proxies.
    let is_gateway = |template: &PodTemplate| template.is_gateway() && !template.is_waypoint();
    if subject.template.is_some_and(is_gateway) {
        return Mode::Permissive;
    }
    effective_at(mesh, subject.namespace, subject.labels, port).mode
}

/// Why peer authentication refuses, if it does.
fn refused_at_the_door(mesh: &Mesh, mode: Mode, from: Option<&Identity>) -> Option<String> {
    let config = &mesh.config;
    let trust = Trust::new(
        config.trust_domain.clone(),
        config.trust_domain_aliases.clone(),
    );
    let facts = match from {
        None => ConnectionFacts::Plaintext,
        Some(identity) => ConnectionFacts::MutualTls(Some(identity)),
    };
    inbound(mode, facts, &trust)
        .err()
        .map(|denial| denial.to_string())
}

/// The initial explanation: the result without any policy.
fn undecided(subject: &Subject<'_>, port: Port) -> Explanation {
    Explanation {
        workload: subject.name.clone(),
        port,
        allowed: true,
        decided: DecidingPolicy {
            why: "no ALLOW policy holds for it, and no other matches".to_owned(),
            policy: None,
            rule: None,
            source: None,
        },
        asked: None,
        token: None,
        otherwise: Vec::new(),
        beside: Vec::new(),
        limits: Vec::new(),
    }
}

fn one(
    mesh: &Mesh,
    subject: &Subject<'_>,
    (service, protocol): (&MeshService, Protocol),
    port: Port,
    question: &AccessQuestion<'_>,
) -> Explanation {
    let mut explanation = undecided(subject, port);
    if !subject.has_proxy() {
        explanation.decided.why =
            "neither a sidecar nor a node proxy serves it: nothing is enforced".to_owned();
        return explanation;
    }
    let protocol = enforced_protocol(mesh, subject, (protocol, port));
    let mode = mode(mesh, subject, port);
    if let Some(why) = refused_at_the_door(mesh, mode, question.from) {
        explanation.allowed = false;
        explanation.decided.why = why;
        explanation
            .otherwise
            .push(format!("PeerAuthentication is {mode:?} there"));
        return explanation;
    }
    let held = WorkloadPolicies::of(mesh, subject);
    let looked = match is_opaque(protocol) {
        true => token::ExaminedTokens::default(),
        false => token::look(mesh, subject, question.path, question),
    };
    ask(
        mesh,
        (&held, looked),
        (service, protocol),
        question,
        &mut explanation,
    );
    let limited = match is_opaque(protocol) {
        true => Vec::new(),
        false => limits::told(mesh, subject),
    };
    let holding = mesh.request_authentication_for_labels(subject.namespace, subject.labels);
    let ruled = !token_rules(holding).is_empty() || !limited.is_empty();
    requests_alone(protocol, ruled, &mut explanation);
    if explanation.allowed {
        explanation.limits = limited;
    }
    explanation
}

/// The protocol as the proxy before a workload understands it: a node proxy carries bytes, and at a gateway the servers of Gateways
/// declare it, not the Service in front.
fn enforced_protocol(
    mesh: &Mesh,
    subject: &Subject<'_>,
    (protocol, port): (Protocol, Port),
) -> Protocol {
    if !subject.has_sidecar {
        return Protocol::Tcp;
    }
    let mut servers = subject.servers(mesh).filter(|(at, _)| *at == port);
    match servers.next().filter(|_| subject.is_gateway()) {
        Some((_, true)) => Protocol::Tcp,
        Some((_, false)) => Protocol::Http,
        None => protocol,
    }
}

fn is_opaque(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Tcp | Protocol::Tls)
}

/// Says of a port that declares nothing that it carries requests alone, where rules about requests hold.
fn requests_alone(protocol: Protocol, ruled: bool, explanation: &mut Explanation) {
    if protocol == Protocol::Auto && ruled {
        let said = "this port denies traffic that is not HTTP: it declares no protocol, and HTTP rules apply to it";
        explanation.beside.push(said.to_owned());
    }
}

/// Decides a request by policies and its token.
fn ask(
    mesh: &Mesh,
    (held, mut looked): (&WorkloadPolicies<'_>, token::ExaminedTokens),
    (service, protocol): (&MeshService, Protocol),
    question: &AccessQuestion<'_>,
    explanation: &mut Explanation,
) {
    explanation.token = looked.said.take();
    let may_ask = provider_of(&held.policies).is_some();
    if !may_ask && let Some(refused) = looked.refused.take() {
        return explanation.token_refused(refused);
    }
    let mode = PathNormalization::from(mesh.config.path_normalization);
    let Ok(path) = mode.normalize(question.path.as_bytes()) else {
        explanation.allowed = held.policies.is_empty();
        explanation.decided.why =
            "the path is ambiguous: 400 on every workload with a policy".to_owned();
        return;
    };
    let ip = question.source_ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let host = question.host.unwrap_or(service.key.hostname.as_str());
    let facts = |headers, claims| {
        let http = HttpFacts {
            authority: Some(host.as_bytes()),
            method: question.method.as_bytes(),
            path: &path,
            headers,
            claims,
        };
        RequestFacts {
            source: question.from,
            source_ip: ip,
            remote_ip: ip,
            destination: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), explanation.port.get()),
            sni: question.server_name,
            http: (!is_opaque(protocol)).then_some(http),
        }
    };
    let now = facts(&looked.headers, looked.claims.as_ref());
    let came = facts(&looked.came, None);
    let outcome = naive::decide_with(&held.policies, &now, Some(&came));
    if let Verdict::Ask(ask) = &outcome.verdict {
        explanation.asked = Some(held.asking(ask.rule()));
    }
    match looked.refused {
        Some(refused) => explanation.token_refused(refused),
        None => judge(held, &now, outcome, explanation),
    }
}

impl Explanation {
    /// The token refuses the request. If a CUSTOM rule asks a provider first, the text says so in the place of the
    /// token's rule.
    fn token_refused(&mut self, (status, otherwise): (u16, Vec<String>)) {
        self.allowed = false;
        let when = match self.asked {
            Some(_) => {
                "unless the provider of the CUSTOM policy denies the request or replaces the token"
            }
            None => "before any policy decides",
        };
        self.decided.why = format!("the token is refused, {when} ({status})");
        self.otherwise = otherwise;
    }
}

fn judge(
    held: &WorkloadPolicies<'_>,
    facts: &RequestFacts<'_>,
    outcome: AuthorizationOutcome,
    explanation: &mut Explanation,
) {
    let denial = match outcome.verdict {
        Verdict::Allowed(permit) => {
            if permit.rule().is_some() {
                explanation.decided =
                    held.decided("an ALLOW rule matches".to_owned(), permit.rule());
            }
            None
        }
        Verdict::Denied(denial) => Some(denial),
        Verdict::Ask(ask) => {
            let then = match ask.clone().granted() {
                Ok(_) => "if the provider allows the request, so do the other policies".to_owned(),
                Err(denial) => format!(
                    "if the provider allows the request, it is still denied: {}",
                    words(denial)
                ),
            };
            explanation.beside.push(then);
            Some(ask.refused())
        }
    };
    if let Some(denial) = denial {
        explanation.allowed = false;
        explanation.decided = held.decided(words(denial).to_owned(), denial.rule);
        explanation.otherwise = match denial.rule {
            Some(rule) => unmatched(held, rule, denial.reason, facts.http.is_some()),
            None => nearest(held, facts),
        };
    }
    explanation
        .beside
        .extend(beside(held, outcome.audit, outcome.dry_run));
}

/// Results of policies that do not decide: AUDIT and dry-run.
fn beside(held: &WorkloadPolicies<'_>, audit: Option<RuleRef>, dry_run: DryRun) -> Vec<String> {
    let named = |rule| match held.decided(String::new(), rule).policy {
        Some(policy) => format!(": {policy}"),
        None => String::new(),
    };
    let mut said = Vec::new();
    if audit.is_some() {
        said.push(format!("AUDIT policies mark it{}", named(audit)));
    }
    let dry = [
        ("ALLOW", dry_run.allow, ["deny", "allow"]),
        ("DENY", dry_run.deny, ["deny", "allow"]),
        ("CUSTOM", dry_run.custom, ["ask about", "not ask about"]),
    ];
    for (action, verdict, words) in dry {
        if let Some(verdict) = verdict {
            let word = words[usize::from(verdict.allowed)];
            said.push(format!(
                "{action} policies on dry run would {word} it{}",
                named(verdict.rule)
            ));
        }
    }
    said
}

fn words(denial: Denial) -> &'static str {
    match denial.reason {
        DenialReason::DenyRule => "a DENY rule matches",
        DenialReason::NotAllowed => "there are ALLOW policies, and none of their rules matches",
        DenialReason::Provider => {
            "a CUSTOM rule matches: its provider decides, and this command does not call it"
        }
        DenialReason::SeveralProviders => {
            "a CUSTOM rule matches, and CUSTOM policies name several providers"
        }
    }
}

/// Describes a term for people; of one that cannot be evaluated, also that.
pub(crate) fn said(term: &Term) -> String {
    let list = |patterns: &[voile_policy::authorization::Pattern]| {
        let shown: Vec<String> = patterns.iter().take(5).map(ToString::to_string).collect();
        let more = if patterns.len() > 5 { ", …" } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    let mut parts = Vec::new();
    if !term.any.is_empty() {
        parts.push(format!("{} is one of {}", term.attribute, list(&term.any)));
    }
    if !term.none.is_empty() {
        parts.push(format!(
            "{} is none of {}",
            term.attribute,
            list(&term.none)
        ));
    }
    let unknown = match term.attribute.is_answerable() {
        true => "",
        false => ", which a node proxy cannot tell",
    };
    parts.join(" and ") + unknown
}

/// Conditions of a DENY or CUSTOM rule: the rule would not match if one of them did not hold.
fn unmatched(
    held: &WorkloadPolicies<'_>,
    rule: RuleRef,
    reason: DenialReason,
    http: bool,
) -> Vec<String> {
    let policy = held.policies.get(rule.policy as usize);
    let rule = policy.and_then(|policy| {
        let rule = policy.rules.get(rule.rule as usize)?;
        rule.answerable(&policy.action, http)
    });
    let terms: Vec<String> = rule.iter().flat_map(PolicyRule::terms).map(said).collect();
    match terms.is_empty() {
        true => {
            vec!["the rule matches everything: remove it, or add conditions".to_owned()]
        }
        false => {
            let what = match reason {
                DenialReason::Provider => "somebody is asked",
                DenialReason::DenyRule
                | DenialReason::NotAllowed
                | DenialReason::SeveralProviders => "it denies",
            };
            vec![format!("{what} while {}", terms.join("; and "))]
        }
    }
}

/// The ALLOW rules that fail by least, each with what fails.
fn nearest(held: &WorkloadPolicies<'_>, facts: &RequestFacts<'_>) -> Vec<String> {
    const SHOWN: usize = 3; // more is no answer
    let allows = held
        .policies
        .iter()
        .zip(&held.written)
        .filter(|(policy, written)| {
            !policy.dry_run
                && written.action == voile_model::mesh::authorization::AuthorizationAction::Allow
        });
    let mut found: Vec<(usize, String)> = allows
        .flat_map(|(policy, written)| {
            policy
                .rules
                .iter()
                .zip(&written.rules)
                .map(move |(rule, place)| {
                    let fails = |terms: &Vec<Term>| -> Vec<String> {
                        let failing = terms.iter().filter(|term| {
                            let answered = term.attribute.is_answerable()
                                && (facts.http.is_some() || !term.attribute.is_http());
                            !answered || !naive::holds(term, facts)
                        });
                        failing.map(said).collect()
                    };
                    let best =
                        |parts: &Vec<Vec<Term>>| parts.iter().map(fails).min_by_key(Vec::len);
                    let mut failing = best(&rule.from).unwrap_or_default();
                    failing.extend(best(&rule.to).unwrap_or_default());
                    failing.extend(fails(&rule.when));
                    let text = format!(
                        "{} in {} would allow it if {}",
                        written.name,
                        place.source,
                        failing.join(", and ")
                    );
                    (failing.len(), text)
                })
        })
        .collect();
    found.sort();
    let mut shown: Vec<String> = found
        .into_iter()
        .take(SHOWN)
        .map(|(_, text)| text)
        .collect();
    if shown.is_empty() {
        shown.push("no ALLOW policy has a rule: write one".to_owned());
    }
    shown
}

/// Returns true if the caller and the port determine the attribute.
fn is_known(attribute: &Attribute) -> bool {
    matches!(
        attribute,
        Attribute::SourcePrincipal
            | Attribute::SourceNamespace
            | Attribute::PeerNamespace
            | Attribute::SourceServiceAccount
            | Attribute::SourceTrustDomain
            | Attribute::DestinationPort
    )
}
