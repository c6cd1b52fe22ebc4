//! All filters that a workload's resources become, in the order in which Istio has Envoy ask them: CUSTOM (shadow rules, then
//! the filter that asks), tokens, AUDIT, DENY, ALLOW, each with its dry-run policies as shadow rules beside it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use voile_model::mesh::{ExtAuthzProvider, TokenRule};
use voile_policy::authorization::{Action, Policy};

use crate::custom::{CUSTOM_PREFIX, custom_filter, custom_network_filter};
use crate::rbac::{Layer, Translation};
use crate::token::token_filter;

/// Names and types of the filter at each layer.
const HTTP: [&str; 2] = [
    "envoy.filters.http.rbac",
    "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
];
const TCP: [&str; 2] = [
    "envoy.filters.network.rbac",
    "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
];

/// Prefix of the results of CUSTOM policies in dry run.
const DRY_CUSTOM_PREFIX: &str = "istio_dry_run_custom_";

/// Policies and token rules of a workload.
#[derive(Clone, Copy)]
pub struct WorkloadFilters<'a> {
    /// Its AuthorizationPolicies.
    pub policies: &'a [Policy],
    /// Its token rules in the order in which they hold (by issuer), each with the issuer's key set.
    pub tokens: &'a [(&'a TokenRule, &'a str)],
    /// Finds the provider that a policy names.
    pub provider: &'a dyn Fn(&str) -> Option<ExtAuthzProvider>,
}

/// The cluster by which Istio has Envoy reach a provider.
#[must_use]
pub fn cluster_of(provider: &ExtAuthzProvider) -> String {
    let service = &provider.service;
    format!("outbound|{}||{}", service.port, service.host)
}

impl Translation {
    /// The filters that stand in front of the router (over TCP: of the proxy); none where nothing is obeyed. Tokens are in
    /// heads of requests, so that over TCP there is no filter for them.
    ///
    /// # Errors
    /// Where a CUSTOM policy names a provider that is not there or cannot be asked at this layer, or several are named.
    pub fn all_filters(&self, obeyed: &WorkloadFilters<'_>) -> Result<Vec<Value>, String> {
        let mut filters = self.custom(obeyed)?;
        if self.layer == Layer::Http {
            filters.extend(token_filter(obeyed.tokens));
        }
        filters.extend(self.deciding(obeyed.policies));
        Ok(filters)
    }

    /// The filters of policies that decide by themselves.
    ///
    /// # Errors
    /// Where a policy asks somebody else (CUSTOM): a filter of another kind, which these policies do not say all of.
    pub fn filters(&self, policies: &[Policy]) -> Result<Vec<Value>, String> {
        let custom = |policy: &&Policy| matches!(policy.action, Action::Custom(_));
        match policies.iter().find(custom) {
            None => Ok(self.deciding(policies)),
            Some(policy) => Err(format!(
                "policy {}/{} calls an authorization provider (CUSTOM), which needs an ext_authz filter",
                policy.name.namespace, policy.name.name
            )),
        }
    }

    fn deciding(&self, policies: &[Policy]) -> Vec<Value> {
        let mut filters = Vec::new();
        let actions = [
            (Action::Audit, "istio_dry_run_audit_"),
            (Action::Deny, "istio_dry_run_deny_"),
            (Action::Allow, "istio_dry_run_allow_"),
        ];
        for (action, shadow) in &actions {
            let rules = self.rules(policies, action, false);
            let shadow_rules = self.rules(policies, action, true);
            if rules.is_some() || shadow_rules.is_some() {
                filters.push(self.filter(rules, shadow_rules.map(|rules| (rules, *shadow))));
            }
        }
        filters
    }

    /// The filters of CUSTOM policies: what those in dry run match is only told, then the provider of the others is asked.
    fn custom(&self, obeyed: &WorkloadFilters<'_>) -> Result<Vec<Value>, String> {
        let mut filters = Vec::new();
        for name in providers(obeyed.policies, true) {
            let rules = self.rules(obeyed.policies, &Action::Custom(name.into()), true);
            let shadow = rules.map(|rules| (rules, DRY_CUSTOM_PREFIX));
            filters.push(self.filter(None, shadow));
        }
        let asked: Vec<&str> = providers(obeyed.policies, false).into_iter().collect();
        let [name] = asked.as_slice() else {
            return match asked.as_slice() {
                [] => Ok(filters),
                several => Err(format!(
                    "policies call several authorization providers ({}), which is not translated: Voile denies what they match",
                    several.join(", ")
                )),
            };
        };
        let asking = |policy: &&Policy| {
            !policy.dry_run && matches!(&policy.action, Action::Custom(own) if &**own == *name)
        };
        let policy = obeyed.policies.iter().find(asking);
        let policy = policy.map_or_else(String::new, |policy| {
            format!("{}/{}", policy.name.namespace, policy.name.name)
        });
        let provider = (obeyed.provider)(name).ok_or_else(|| {
            format!(
                "policy {policy} calls the authorization provider `{name}`, which extensionProviders of MeshConfig does not have"
            )
        })?;
        let cluster = cluster_of(&provider);
        let rules = self.custom_rules(obeyed.policies, name);
        filters.push(self.filter(None, rules.map(|rules| (rules, CUSTOM_PREFIX))));
        filters.push(match self.layer {
            Layer::Http => custom_filter(name, &provider, &cluster),
            Layer::Tcp => custom_network_filter(name, &provider, &cluster).ok_or_else(|| {
                format!(
                    "policy {policy} calls the authorization provider `{name}` over HTTP, but for connections only gRPC providers are supported: not translated"
                )
            })?,
        });
        Ok(filters)
    }

    fn filter(&self, rules: Option<Value>, shadow: Option<(Value, &str)>) -> Value {
        let [name, kind] = match self.layer {
            Layer::Http => HTTP,
            Layer::Tcp => TCP,
        };
        let mut config = json!({ "@type": kind });
        if self.layer == Layer::Tcp {
            config["stat_prefix"] = json!("tcp.");
        }
        if let Some(rules) = rules {
            config["rules"] = rules;
        }
        if let Some((rules, prefix)) = shadow {
            config["shadow_rules"] = rules;
            config["shadow_rules_stat_prefix"] = json!(prefix);
        }
        json!({ "name": name, "typed_config": config })
    }
}

/// The providers that CUSTOM policies name, each once: of those in dry run, or of the others.
fn providers(policies: &[Policy], dry_run: bool) -> BTreeSet<&str> {
    let named = policies.iter().filter(|policy| policy.dry_run == dry_run);
    let named = named.filter_map(|policy| match &policy.action {
        Action::Custom(name) => Some(&**name),
        _ => None,
    });
    named.collect()
}
