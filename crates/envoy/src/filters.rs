//! All filters that a workload's policies become, in the order in which Istio has Envoy ask them: AUDIT, DENY, ALLOW, each
//! with its dry-run policies as shadow rules beside it.

use serde_json::{Value, json};
use voile_policy::authorization::{Action, Policy};

use crate::rbac::{Layer, Translation};

/// Names and types of the filter at each layer.
const HTTP: [&str; 2] = [
    "envoy.filters.http.rbac",
    "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
];
const TCP: [&str; 2] = [
    "envoy.filters.network.rbac",
    "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
];

impl Translation {
    /// The filters that stand in front of the router (over TCP: of the proxy); none where there are no policies.
    ///
    /// # Errors
    /// Where a policy asks somebody else (CUSTOM): a filter of another kind, which these policies do not say all of.
    pub fn filters(&self, policies: &[Policy]) -> Result<Vec<Value>, String> {
        let custom = |policy: &&Policy| matches!(policy.action, Action::Custom(_));
        if let Some(policy) = policies.iter().find(custom) {
            let name = &policy.name;
            return Err(format!(
                "policy {}/{} asks an authorization provider (CUSTOM), which is not translated",
                name.namespace, name.name
            ));
        }
        let actions = [
            (Action::Audit, "istio_dry_run_audit_"),
            (Action::Deny, "istio_dry_run_deny_"),
            (Action::Allow, "istio_dry_run_allow_"),
        ];
        let filters = actions.iter().filter_map(|(action, shadow)| {
            let rules = self.rules(policies, action, false);
            let shadow_rules = self.rules(policies, action, true);
            if rules.is_none() && shadow_rules.is_none() {
                return None;
            }
            Some(self.filter(rules, shadow_rules, shadow))
        });
        Ok(filters.collect())
    }

    fn filter(&self, rules: Option<Value>, shadow_rules: Option<Value>, shadow: &str) -> Value {
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
        if let Some(rules) = shadow_rules {
            config["shadow_rules"] = rules;
            config["shadow_rules_stat_prefix"] = json!(shadow);
        }
        json!({ "name": name, "typed_config": config })
    }
}
