//! BackendTLSPolicies: the ports of Services that need TLS, and the authorities of their certificates. They are laid
//! over the DestinationRules, so that every caller of these ports obeys them. Fail closed: if the authorities cannot be
//! used, no certificate is trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::gateway_tls::{self, GatewayClientCertificate};
use crate::attach::inputs::{AttachmentInputs, refusal};
use crate::mesh::gateway_api::{
    BackendAuthorities, BackendTls, ConditionReason, Reference, RefusedCondition,
};
use crate::mesh::traffic::{Authorities, ClientTls, TlsOrigin};
use crate::mesh::{DestinationRule, Mesh, MeshService, RuleClient, TrafficPolicy, Visibility};
use crate::names::{Hostname, Port, ResourceName, ServiceKey};
use crate::source::Source;

/// A policy, and what became of it.
pub(super) struct Policy<'m> {
    pub(super) policy: &'m Arc<BackendTls>,
    /// Why it is not accepted.
    pub(super) refused: Option<RefusedCondition>,
    /// A reference that cannot be used.
    pub(super) unresolved: Option<RefusedCondition>,
    /// The Services that it is for.
    pub(super) services: Vec<&'m Arc<MeshService>>,
    /// Those that it has, each with the name of its port if only that one is meant.
    targets: Vec<(&'m Arc<MeshService>, Option<Arc<str>>)>,
    origin: Arc<TlsOrigin>,
}

/// TLS settings of a Service's ports, with the location of the policy.
pub(super) type Spoken = BTreeMap<ServiceKey, (Source, BTreeMap<Port, Arc<TlsOrigin>>)>;

/// All of them, the oldest first: it has the target.
pub(super) fn policies<'m>(world: &AttachmentInputs<'m>) -> Vec<Policy<'m>> {
    let mut taken: BTreeSet<(&ServiceKey, Option<Arc<str>>)> = BTreeSet::new();
    let all = world.mesh.gateway_api.backend_tls.iter();
    let judged = all.map(|policy| {
        let (authorities, mut refused, unresolved) = authorities(world, policy);
        let (mut services, mut targets) = (Vec::new(), Vec::new());
        for (to, section) in &policy.targets {
            let target = (to, section.as_ref());
            match self::target(world, target) {
                Err(why) => drop(refused.get_or_insert(why)),
                Ok(service) => {
                    services.push(service);
                    if taken.insert((&service.key, section.clone())) {
                        targets.push((service, section.clone()));
                        continue;
                    }
                    let said = format!("an older BackendTLSPolicy is for {} already", to.name);
                    let why = refusal(ConditionReason::Conflicted, &to.source, &to.field, said);
                    refused.get_or_insert(why);
                }
            }
        }
        Policy {
            policy,
            refused,
            unresolved,
            services,
            targets,
            origin: Arc::new(origin(policy, authorities)),
        }
    });
    judged.collect()
}

fn origin(policy: &BackendTls, authorities: Authorities) -> TlsOrigin {
    TlsOrigin {
        revocations: None,
        mutual: false,
        authorities: match &policy.hostname {
            Some(_) => authorities,
            None => nobody(),
        },
        credential: None,
        granted: None,
        certificate: None,
        server_name: policy.hostname.clone(),
        subject_alt_names: policy.subject_alt_names.clone(),
        unverified: false,
    }
}

/// Authorities that trust no certificate.
fn nobody() -> Authorities {
    Authorities::Pem(Arc::from([]))
}

fn target<'m>(
    world: &AttachmentInputs<'m>,
    (to, section): (&Reference, Option<&Arc<str>>),
) -> Result<&'m Arc<MeshService>, RefusedCondition> {
    let no = |reason, said| Err(refusal(reason, &to.source, &to.field, said));
    if !to.is("", "Service") {
        let said = format!(
            "a BackendTLSPolicy targets a Service, and {} is none",
            to.kind
        );
        return no(ConditionReason::Invalid, said);
    }
    let Some(service) = world.service(to) else {
        return no(
            ConditionReason::TargetNotFound,
            format!("the Service {} does not exist", to.name),
        );
    };
    match section {
        Some(name) if service.ports.iter().all(|port| port.name != *name) => {
            let said = format!("{} has no port named {name}", service.key);
            no(ConditionReason::TargetNotFound, said)
        }
        _ => Ok(service),
    }
}

/// The authorities that a policy trusts, the reason to refuse the policy, and its first unusable reference.
fn authorities(
    world: &AttachmentInputs<'_>,
    policy: &BackendTls,
) -> (
    Authorities,
    Option<RefusedCondition>,
    Option<RefusedCondition>,
) {
    let references = match &policy.authorities {
        BackendAuthorities::System => return (Authorities::System, None, None),
        BackendAuthorities::Unknown(name, source) => {
            let field = "spec.validation.wellKnownCACertificates";
            let said = format!("wellKnownCACertificates {name} is not supported, only System");
            let why = refusal(ConditionReason::Invalid, source, field, said);
            return (nobody(), Some(why), None);
        }
        BackendAuthorities::Held(references) => references,
    };
    let mut pem = Vec::new();
    let mut unresolved: Option<RefusedCondition> = None;
    for to in references {
        match held(world, to) {
            Ok(text) => {
                pem.extend_from_slice(text.as_bytes());
                pem.push(b'\n');
            }
            Err(why) => drop(unresolved.get_or_insert(why)),
        }
    }
    if !pem.is_empty() {
        return (Authorities::Pem(pem.into()), None, unresolved);
    }
    let refused = unresolved.as_ref().map(|why| RefusedCondition {
        reason: ConditionReason::NoValidCertificate,
        ..why.clone()
    });
    (nobody(), refused, unresolved)
}

/// The certificates that a ConfigMap holds.
fn held<'m>(world: &AttachmentInputs<'m>, to: &Reference) -> Result<&'m str, RefusedCondition> {
    let no = |reason, said| Err(refusal(reason, &to.source, &to.field, said));
    if !to.is("", "ConfigMap") {
        let said = format!("caCertificateRefs supports ConfigMaps, but no {}", to.kind);
        return no(ConditionReason::InvalidKind, said);
    }
    gateway_tls::of_map(world, to).map(|(_, text)| text)
}

/// The TLS settings of all policies together. A port's own policy precedes its Service's.
pub(super) fn spoken(policies: &[Policy<'_>]) -> Spoken {
    let mut spoken = Spoken::new();
    for wanted in [true, false] {
        for one in policies {
            let targets = one.targets.iter();
            for (service, section) in targets.filter(|(_, section)| section.is_some() == wanted) {
                let source = || (one.policy.source.clone(), BTreeMap::new());
                let (_, ports) = spoken.entry(service.key.clone()).or_insert_with(source);
                let all = service.ports.iter();
                let meant =
                    all.filter(|port| section.as_ref().is_none_or(|name| port.name == *name));
                for port in meant {
                    ports
                        .entry(port.number)
                        .or_insert_with(|| Arc::clone(&one.origin));
                }
            }
        }
    }
    spoken
}

/// Puts these settings into force. They precede all DestinationRules of the same Services, keep their other settings
/// and their clients.
pub(super) fn lay(mesh: &mut Mesh, spoken: Spoken, certificates: &[GatewayClientCertificate]) {
    for (key, (source, ports)) in spoken {
        let Some(service) = mesh.services.get(&key) else {
            continue;
        };
        let host = &key.hostname;
        let holding = mesh.destination_rules_of(service).into_iter();
        let mut rules: Vec<DestinationRule> = holding.map(|rule| (**rule).clone()).collect();
        // Clients without a rule get one in the root namespace; a client with a rule of the service's namespace keeps
        // that rule.
        if mesh
            .destination_rule(service, RuleClient::default())
            .is_none()
        {
            let name = ResourceName::new(mesh.config.root_namespace.clone(), "");
            rules.push(of_all(name, host, &source));
        }
        for rule in rules.into_iter().rev() {
            let name = format!("~{host}~{}", rule.name.name);
            let mut laid = DestinationRule {
                name: ResourceName::new(rule.name.namespace.clone(), name),
                source: source.clone(),
                created: Some(i64::MIN),
                host: host.clone(),
                ..rule
            };
            for (port, origin) in &ports {
                laid.speak(*port, &ClientTls::Originate(Arc::clone(origin)));
            }
            mesh.destination_rules.insert_oldest(laid.into());
        }
        for one in certificates {
            if let Some(rule) = of_gateway(mesh, &key, &ports, one) {
                mesh.destination_rules.insert_oldest(rule.into());
            }
        }
    }
}

/// The rule of a gateway that shows a certificate to backends: its own rule, and the certificate at these ports.
fn of_gateway(
    mesh: &Mesh,
    service: &ServiceKey,
    ports: &BTreeMap<Port, Arc<TlsOrigin>>,
    certificate: &GatewayClientCertificate,
) -> Option<DestinationRule> {
    let (gateway, selector) = (&certificate.gateway, &certificate.selector);
    let client = RuleClient {
        namespace: Some(&gateway.namespace),
        labels: Some(selector),
    };
    let service = mesh.services.get(service)?;
    let name = format!("~{}~~{}", service.key.hostname, gateway.name);
    let mut rule = DestinationRule {
        name: ResourceName::new(gateway.namespace.clone(), name),
        selector: Some(selector.clone()),
        visibility: Visibility::Namespaces(vec![gateway.namespace.clone()]),
        ..(**mesh.destination_rule(service, client)?).clone()
    };
    for (port, origin) in ports {
        let origin = match &certificate.secret {
            Some(secret) => TlsOrigin {
                mutual: true,
                credential: Some(match secret.namespace == gateway.namespace {
                    true => secret.name.clone(),
                    false => secret.to_string().into(),
                }),
                granted: Some(secret.clone()),
                ..(**origin).clone()
            },
            None => TlsOrigin {
                authorities: nobody(),
                ..(**origin).clone()
            },
        };
        rule.speak(*port, &ClientTls::Originate(Arc::new(origin)));
    }
    Some(rule)
}

/// A rule for all clients, still without settings.
fn of_all(name: ResourceName, host: &Hostname, source: &Source) -> DestinationRule {
    DestinationRule {
        name,
        source: source.clone(),
        created: None,
        host: host.clone(),
        visibility: Visibility::Public,
        selector: None,
        policy: TrafficPolicy::default(),
        subsets: BTreeMap::new(),
        merged: Vec::new(),
    }
}

/// Blocks all calls of the Services that an unreadable policy targets.
pub(crate) fn shut(mesh: &mut Mesh, broken: &BackendTls) {
    let world = AttachmentInputs::new(mesh);
    let origin = Arc::new(origin(broken, nobody()));
    let mut spoken = Spoken::new();
    for (to, section) in &broken.targets {
        let Some(service) = world.service(to) else {
            continue;
        };
        let all = service.ports.iter();
        // A port that is not there may be misspelt: then it is one of them.
        let there = |name: &Arc<str>| all.clone().any(|port| port.name == *name);
        let only = section.as_ref().filter(|name| there(name));
        let meant = all.filter(|port| only.is_none_or(|name| port.name == *name));
        let (_, ports) = spoken
            .entry(service.key.clone())
            .or_insert_with(|| (broken.source.clone(), BTreeMap::new()));
        ports.extend(meant.map(|port| (port.number, Arc::clone(&origin))));
    }
    lay(mesh, spoken, &[]);
}
