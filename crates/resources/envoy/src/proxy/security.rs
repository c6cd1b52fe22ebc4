//! Filters before a workload's application: checks by providers, tokens, and rules, in the order in which our own proxies decide.
//! If a provider cannot be called, its requests are denied: the rules that select requests for it become DENY rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use voile_model::mesh::{
    DestinationRule, ExtAuthzProvider, ExtAuthzTransport, Mesh, MeshService, Provider,
    ProviderService, RequestAuthentication, ServicePort, TokenRule, Workload, token_rules,
};
use voile_policy::authorization::{Action, Policy, TrustDomains};
use voile_policy::tokens::KeySet;

use super::ClusterTarget;
use super::names::ClusterTraffic;
use crate::limit::{Limit, LimitName};
use crate::proxy::keys::Keys;
use crate::{CUSTOM_PREFIX, Layer, PeerIdentity, Translation, custom_filter, token_filter};

/// A key set by which nobody signs: tokens of an issuer whose keys are not known are refused. Envoy takes no empty set, and refuses all
/// of the listener for it. The key is a point of the curve that was drawn by a hash (its first coordinate is SHA-256 of
/// `voile: a key that is nobody's, 1`, its second the even one), so that whoever wrote it down knows no more of it than anybody.
const NOBODYS_KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"nobody","x":"6Ej6Bu10CRelH4FUkIfSgrhk2WHXBw-XR-3IQboCf5o","y":"r41gjzMsspQxBOFubo3A-uNcjnjNScWtNMb_6kBf_Yg"}]}"#;

/// The filters of one workload.
pub(crate) struct Security {
    /// Before the router.
    pub(crate) http: Vec<Value>,
    /// Before a proxy of bytes.
    pub(crate) tcp: Vec<Value>,
    /// The service that is asked, if any.
    pub(crate) asked: Option<ProviderCheck>,
    /// Policies that ask somebody, which nobody does about bytes.
    pub(crate) custom: Vec<String>,
}

/// A provider's service.
pub(crate) struct ProviderCheck {
    pub(crate) service: Arc<MeshService>,
    pub(crate) port: ServicePort,
}

/// All that a workload obeys.
pub(crate) fn of(
    mesh: &Mesh,
    (workload, peer): (&Workload, PeerIdentity),
    keys: &dyn Keys,
    limits: &mut BTreeSet<Limit>,
) -> Security {
    let policies = policies(mesh, workload);
    let (custom, plain): (Vec<Policy>, Vec<Policy>) = policies
        .into_iter()
        .partition(|policy| matches!(policy.action, Action::Custom(_)));
    let translation = |layer| Translation { layer, peer };
    let (http, tcp) = (translation(Layer::Http), translation(Layer::Tcp));
    let mut security = Security {
        http: Vec::new(),
        tcp: Vec::new(),
        asked: None,
        custom: Vec::new(),
    };
    let named = |policy: &Policy| {
        format!(
            "AuthorizationPolicy {}/{}",
            policy.name.namespace, policy.name.name
        )
    };
    for policy in custom.iter().filter(|policy| policy.dry_run) {
        let about = named(policy);
        let why = "a CUSTOM policy in dry run: the calls it would have made are not reported";
        limits.insert(Limit::new(LimitName::CustomDryRun, about, why));
    }
    let custom: Vec<Policy> = custom
        .into_iter()
        .filter(|policy| !policy.dry_run)
        .collect();
    match asking(mesh, workload, &custom, limits) {
        Some((name, provider, asked)) => {
            let filters = questions(&http, &custom, &name, &provider, &asked);
            security.http.extend(filters.into_iter().flatten());
            security.asked = Some(asked);
        }
        None => security.http.extend(denied(&http, &custom)),
    }
    // The provider sees the token, and may add one.
    if let Some(tokens) = tokens(mesh, workload, keys, limits) {
        security.http.push(tokens);
        // Rules about tokens can be told by now; nobody was asked by them.
        if security.asked.is_none() {
            security.http.extend(denied(&http, &custom));
        }
    }
    security.tcp.extend(denied(&tcp, &custom));
    security.custom = custom.iter().map(named).collect();
    // CUSTOM is the only action that these refuse, and there is none left.
    security
        .http
        .extend(http.filters(&plain).unwrap_or_default());
    security.tcp.extend(tcp.filters(&plain).unwrap_or_default());
    security
}

fn policies(mesh: &Mesh, workload: &Workload) -> Vec<Policy> {
    let config = &mesh.config;
    let aliases = config.trust_domain_aliases.iter();
    let aliases: Vec<&str> = aliases.map(voile_model::TrustDomain::as_str).collect();
    let domains = TrustDomains::new(config.trust_domain.as_str(), &aliases);
    let all = mesh.authorization_for(workload).into_iter();
    // A policy of the model was checked, value by value.
    let mut policies: Vec<Policy> = all.filter_map(|policy| Policy::of(policy).ok()).collect();
    policies.iter_mut().for_each(|policy| domains.apply(policy));
    policies
}

fn tokens(
    mesh: &Mesh,
    workload: &Workload,
    keys: &dyn Keys,
    limits: &mut BTreeSet<Limit>,
) -> Option<Value> {
    let resources = mesh.request_authentication_for(workload);
    let mut known = |resource: &RequestAuthentication, rule: &TokenRule| {
        let keys = keys.of(resource, rule);
        let why = match keys.as_deref().map(KeySet::read) {
            Some(Ok(_)) => return keys,
            Some(Err(error)) => format!("are invalid: {error}"),
            None => "are not known here (only a control plane fetches them)".to_owned(),
        };
        let about = format!("RequestAuthentication {}", resource.name);
        let why = format!(
            "keys of the issuer `{}` {why}; its tokens are refused",
            rule.issuer
        );
        limits.insert(Limit::new(LimitName::KeysMissing, about, why));
        None
    };
    let rules = token_rules(resources);
    let rules: Vec<(&TokenRule, Arc<str>)> = rules
        .into_iter()
        .map(|(resource, rule)| {
            let keys = known(resource, rule);
            (rule, keys.unwrap_or_else(|| NOBODYS_KEYS.into()))
        })
        .collect();
    let rules: Vec<(&TokenRule, &str)> =
        rules.iter().map(|(rule, keys)| (*rule, &**keys)).collect();
    token_filter(&rules)
}

/// The one provider that CUSTOM policies ask, if it can be asked. Says of each of them what it means over TCP.
fn asking(
    mesh: &Mesh,
    workload: &Workload,
    custom: &[Policy],
    limits: &mut BTreeSet<Limit>,
) -> Option<(Arc<str>, ExtAuthzProvider, ProviderCheck)> {
    let named = custom.iter().filter_map(|policy| match &policy.action {
        Action::Custom(provider) => Some(provider.clone()),
        _ => None,
    });
    let names: BTreeSet<Arc<str>> = named.collect();
    let about = format!("workload {}", workload.key);
    let mut limit = |name, why: String| {
        limits.insert(Limit::new(name, &about, why));
    };
    let mut each = names.iter();
    let name = each.next()?;
    if each.next().is_some() {
        let all: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let why = format!(
            "CUSTOM policies call {}; requests that they match are denied",
            all.join(" and ")
        );
        limit(LimitName::SeveralProviders, why);
        return None;
    }
    let unknown = |why: &str| {
        format!("provider `{name}`: {why}; requests that CUSTOM policies match are denied")
    };
    let Some(Provider::ExtAuthz(provider)) = mesh.config.provider(name) else {
        limit(
            LimitName::UnknownProvider,
            unknown("MeshConfig has no such provider of authorization"),
        );
        return None;
    };
    match service(mesh, &provider.service) {
        Some(asked) => Some((name.clone(), provider, asked)),
        None => {
            let why = format!(
                "there is no service {} with port {}",
                provider.service.host, provider.service.port
            );
            limit(LimitName::UnknownProvider, unknown(&why));
            None
        }
    }
}

/// A provider's service: anywhere, the root namespace first, unless its namespace is said.
fn service(mesh: &Mesh, wanted: &ProviderService) -> Option<ProviderCheck> {
    let there = |service: &&Arc<MeshService>| {
        let there = wanted
            .namespace
            .as_ref()
            .is_none_or(|name| service.key.namespace == *name);
        there && service.key.hostname == wanted.host
    };
    let mut found: Vec<&Arc<MeshService>> = mesh.services.values().filter(there).collect();
    found.sort_by_key(|service| service.key.namespace != mesh.config.root_namespace);
    found.into_iter().find_map(|service| {
        let port = service.port(wanted.port)?.clone();
        Some(ProviderCheck {
            service: service.clone(),
            port,
        })
    })
}

/// Rules that find what is to be asked about, and the filter that asks.
fn questions(
    translation: &Translation,
    custom: &[Policy],
    name: &str,
    provider: &ExtAuthzProvider,
    asked: &ProviderCheck,
) -> [Option<Value>; 2] {
    let Some(rules) = translation.custom_rules(custom, name) else {
        return [None, None];
    };
    let shadow = json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "shadow_rules": rules,
            "shadow_rules_stat_prefix": CUSTOM_PREFIX,
        },
    });
    [
        Some(shadow),
        Some(custom_filter(name, provider, &asked.cluster(provider))),
    ]
}

impl ProviderCheck {
    /// The cluster by which it is asked.
    fn cluster(&self, provider: &ExtAuthzProvider) -> String {
        let base = super::names::outbound(self.port.number, None, &self.service.key.hostname);
        match provider.transport {
            ExtAuthzTransport::Grpc => format!("{base}~asked-h2"),
            ExtAuthzTransport::Http(_) => format!("{base}~asked"),
        }
    }

    /// Clusters for calls to the provider. They are separate ones, since checks over gRPC are HTTP/2 whatever the port declares.
    pub(crate) fn clusters(
        &self,
        mesh: &Mesh,
        rule: Option<&DestinationRule>,
        limits: &mut BTreeSet<Limit>,
    ) -> Vec<(String, Value)> {
        let Some(target) = ClusterTarget::new(mesh, (&self.service, rule), &self.port, None) else {
            return Vec::new();
        };
        let base = super::names::outbound(self.port.number, None, &self.service.key.hostname);
        [
            ("~asked-h2", ClusterTraffic::Http2),
            ("~asked", ClusterTraffic::Http1),
        ]
        .into_iter()
        .filter_map(|(ends, carried)| {
            let name = format!("{base}{ends}");
            Some((name.clone(), target.cluster_as(&name, carried, limits)?))
        })
        .collect()
    }
}

/// Turns CUSTOM policies into DENY policies.
fn denied(translation: &Translation, custom: &[Policy]) -> Vec<Value> {
    let policies = custom.iter().cloned().map(|mut policy| {
        policy.action = Action::Deny;
        policy
    });
    let policies: Vec<Policy> = policies.collect();
    translation.filters(&policies).unwrap_or_default()
}
