//! AuthorizationPolicy as Envoy's RBAC filter: one filter for an action, one policy in it for a rule, permissions from
//! operations and principals from sources, conditions in whichever of the two can ask them.

use serde_json::{Map, Value, json};
use voile_policy::authorization::{Action, Attribute, Pattern, Policy, PolicyRule, Term, Terms};

use crate::matchers;

/// Layer of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// HTTP requests.
    Http,
    /// Connections; terms that only HTTP can answer are treated as the rule's action demands.
    Tcp,
}

/// Source of the peer's identity in Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerIdentity {
    /// By the certificate of the connection.
    Certificate,
    /// By the filter state `io.istio.peer_principal` (waypoints).
    FilterState,
}

/// Form of the filters that policies become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// In front of what.
    pub layer: Layer,
    /// By what the peer is known.
    pub peer: PeerIdentity,
}

/// Which half of a policy of RBAC asks an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RbacSection {
    Permission,
    Principal,
}

impl RbacSection {
    fn of(attribute: &Attribute) -> Self {
        match attribute {
            Attribute::Host
            | Attribute::Method
            | Attribute::Path
            | Attribute::DestinationIp
            | Attribute::DestinationPort
            | Attribute::Sni => Self::Permission,
            _ => Self::Principal,
        }
    }

    fn all(self, list: Vec<Value>) -> Value {
        let list = match list.is_empty() {
            true => vec![json!({ "any": true })],
            false => list,
        };
        match self {
            Self::Permission => json!({ "and_rules": { "rules": list } }),
            Self::Principal => json!({ "and_ids": { "ids": list } }),
        }
    }

    fn one_of(self, list: Vec<Value>) -> Value {
        match self {
            Self::Permission => json!({ "or_rules": { "rules": list } }),
            Self::Principal => json!({ "or_ids": { "ids": list } }),
        }
    }

    fn not(self, one: Value) -> Value {
        match self {
            Self::Permission => json!({ "not_rule": one }),
            Self::Principal => json!({ "not_id": one }),
        }
    }
}

impl Translation {
    /// The rules of all policies of one action, enforced or only shadowed; none when there are no such policies. CUSTOM
    /// policies are the rules under which a provider is asked.
    pub fn rules(&self, policies: &[Policy], action: &Action, dry_run: bool) -> Option<Value> {
        let members = policies
            .iter()
            .filter(|policy| policy.action == *action && policy.dry_run == dry_run);
        let members: Vec<&Policy> = members.collect();
        if members.is_empty() {
            return None;
        }
        let mut all = Map::new();
        for policy in members {
            let name = |rule| {
                let name = &policy.name;
                format!("ns[{}]-policy[{}]-rule[{rule}]", name.namespace, name.name)
            };
            if policy.rules.is_empty() {
                all.insert(name(0), never());
            }
            for (number, rule) in policy.rules.iter().enumerate() {
                if let Some(asked) = rule.answerable(action, self.layer == Layer::Http) {
                    all.insert(name(number), self.rule(&asked));
                }
            }
        }
        let word = match action {
            Action::Allow => "ALLOW",
            Action::Deny | Action::Custom(_) => "DENY",
            Action::Audit => "LOG",
        };
        Some(json!({ "action": word, "policies": all }))
    }

    fn rule(&self, rule: &PolicyRule) -> Value {
        let halves = |half, parts: &[Terms]| -> Vec<Value> {
            let always = [Terms::new()];
            let parts = match parts.is_empty() {
                true => &always[..],
                false => parts,
            };
            let whole = |part: &Terms| {
                let terms = part
                    .iter()
                    .chain(&rule.when)
                    .filter(|term| RbacSection::of(&term.attribute) == half);
                half.all(terms.flat_map(|term| self.term(half, term)).collect())
            };
            parts.iter().map(whole).collect()
        };
        json!({
            "permissions": halves(RbacSection::Permission, &rule.to),
            "principals": halves(RbacSection::Principal, &rule.from),
        })
    }

    /// Conditions of a term: one of its values, none of the others.
    fn term(&self, half: RbacSection, term: &Term) -> Vec<Value> {
        let list = |patterns: &[Pattern]| {
            if patterns.is_empty() {
                return None;
            }
            // All values of a claim are one matcher.
            if let Some(path) = claim_path(&term.attribute) {
                return matchers::claim(&path, patterns);
            }
            let values = patterns
                .iter()
                .filter_map(|pattern| self.value(&term.attribute, pattern));
            Some(half.one_of(values.collect()))
        };
        let none = list(&term.none).map(|none| half.not(none));
        list(&term.any).into_iter().chain(none).collect()
    }

    fn value(&self, attribute: &Attribute, pattern: &Pattern) -> Option<Value> {
        match (attribute, pattern) {
            (Attribute::SourceIp, block) => matchers::block("direct_remote_ip", block),
            (Attribute::RemoteIp, block) => matchers::block("remote_ip", block),
            (Attribute::DestinationIp, block) => matchers::block("destination_ip", block),
            (Attribute::DestinationPort, Pattern::Port(port)) => {
                Some(json!({ "destination_port": port }))
            }
            (Attribute::Path, path) => matchers::path(path),
            (Attribute::Host, Pattern::Text(text)) => {
                Some(matchers::header(":authority", text, true))
            }
            (Attribute::Method, Pattern::Text(text)) => {
                Some(matchers::header(":method", text, false))
            }
            (Attribute::RequestHeader(name), Pattern::Text(text)) => {
                Some(matchers::header(name, text, false))
            }
            (Attribute::Sni, Pattern::Text(text)) => {
                Some(json!({ "requested_server_name": matchers::text(text, "", false) }))
            }
            (Attribute::SourcePrincipal, Pattern::Text(text)) => {
                Some(self.peer(&matchers::text(text, "spiffe://", false)))
            }
            (Attribute::SourceNamespace, Pattern::Text(text)) => {
                Some(self.peer(&matchers::namespace(text)))
            }
            (Attribute::SourceTrustDomain, Pattern::Text(text)) => {
                Some(self.peer(&matchers::trust_domain(text)))
            }
            (Attribute::SourceServiceAccount, Pattern::ServiceAccount { namespace, name }) => {
                Some(self.peer(&matchers::service_account(namespace, name)))
            }
            (Attribute::RequestPrincipal, principal) => matchers::request_principal(principal),
            _ => None,
        }
    }

    fn peer(&self, matcher: &Value) -> Value {
        match self.peer {
            PeerIdentity::Certificate => json!({ "authenticated": { "principal_name": matcher } }),
            PeerIdentity::FilterState => {
                json!({ "filter_state": { "key": "io.istio.peer_principal", "string_match": matcher } })
            }
        }
    }
}

fn claim_path(attribute: &Attribute) -> Option<Vec<&str>> {
    match attribute {
        Attribute::RequestAudiences => Some(vec!["aud"]),
        Attribute::RequestPresenter => Some(vec!["azp"]),
        Attribute::RequestClaim(path) => Some(path.iter().map(AsRef::as_ref).collect()),
        _ => None,
    }
}

/// A policy without rules: Envoy wants one that matches nothing.
fn never() -> Value {
    json!({
        "permissions": [{ "not_rule": { "any": true } }],
        "principals": [{ "not_id": { "any": true } }],
    })
}
