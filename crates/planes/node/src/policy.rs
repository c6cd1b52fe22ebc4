//! Authorization of connections by Istio's `Authorization` resource (interop with istiod). Pure. DENY comes before
//! ALLOW; if a workload has an ALLOW policy, one must match. A policy that is unreadable, or named but unknown,
//! denies: doubt never widens access.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use prost::Message;
use voile_model::Identity;
use voile_proto::authorization as wire;
use voile_proto::authorization::string_match::MatchType;

/// One policy.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    scope: PolicyScope,
    action: NodePolicyAction,
    dry_run: bool,
    /// Any rule; of it all clauses; of one any match.
    rules: Vec<Vec<Vec<wire::Match>>>,
}

/// Workloads for which the policy holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PolicyScope {
    Everybody,
    Namespace(Arc<str>),
    /// Only workloads that name the policy.
    Named,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodePolicyAction {
    Allow,
    Deny,
    /// The policy cannot be read: the workloads that it holds for are closed.
    Close,
}

/// A connection, as policies see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAttributes<'a> {
    /// Identity of the caller, if it was proven.
    pub(crate) identity: Option<&'a Identity>,
    /// From where.
    pub(crate) source: IpAddr,
    /// Destination: the workload's own address and the port of its application.
    pub(crate) destination: SocketAddr,
}

/// Workload whose connection is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JudgedConnection<'a> {
    /// The workload's namespace.
    pub(crate) namespace: &'a str,
    /// The policies that it names.
    pub(crate) named: &'a [Arc<str>],
}

/// Why a connection is refused: the policy, or that none allows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denial {
    /// This policy denies it.
    By(Arc<str>),
    /// There are policies that allow, and none of them allows this.
    NotAllowed,
    /// A policy that the workload names is not known.
    Unknown(Arc<str>),
}

impl std::fmt::Display for Denial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::By(name) => write!(f, "denied by policy {name}"),
            Self::NotAllowed => f.write_str("allowed by no policy"),
            Self::Unknown(name) => write!(f, "policy {name} has not been received yet"),
        }
    }
}

impl Policy {
    /// Decodes a policy. An error comes with the policy that holds in its place, which closes the same workloads.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, (Self, String)> {
        let closed = |scope| Self {
            scope,
            action: NodePolicyAction::Close,
            dry_run: false,
            rules: Vec::new(),
        };
        let message = wire::Authorization::decode(bytes).map_err(|error| {
            let reason = format!("not a message of its type: {error}");
            (closed(PolicyScope::Everybody), reason)
        })?;
        let scope = match wire::Scope::try_from(message.scope) {
            Ok(wire::Scope::Global) => PolicyScope::Everybody,
            Ok(wire::Scope::Namespace) => PolicyScope::Namespace(message.namespace.as_str().into()),
            Ok(wire::Scope::WorkloadSelector) => PolicyScope::Named,
            Err(_) => {
                let reason = format!("scope {} is unknown", message.scope);
                return Err((closed(PolicyScope::Everybody), reason));
            }
        };
        let action = match wire::Action::try_from(message.action) {
            Ok(wire::Action::Allow) => NodePolicyAction::Allow,
            Ok(wire::Action::Deny) => NodePolicyAction::Deny,
            Err(_) => {
                let reason = format!("action {} is unknown", message.action);
                return Err((closed(scope), reason));
            }
        };
        let matches = message.rules.iter().flat_map(|rule| &rule.clauses);
        for one in matches.flat_map(|clause| &clause.matches) {
            if let Err(reason) = check(one) {
                return Err((closed(scope), reason));
            }
        }
        let clauses = |rule: wire::Rule| rule.clauses.into_iter().map(|clause| clause.matches);
        let rules = message.rules.into_iter();
        Ok(Self {
            scope,
            action,
            dry_run: message.dry_run,
            rules: rules.map(|rule| clauses(rule).collect()).collect(),
        })
    }

    fn holds_for(&self, judged: &JudgedConnection<'_>) -> bool {
        match &self.scope {
            PolicyScope::Everybody => true,
            PolicyScope::Namespace(namespace) => **namespace == *judged.namespace,
            PolicyScope::Named => false,
        }
    }

    fn matches(&self, caller: &PeerAttributes<'_>) -> bool {
        let clause = |matches: &Vec<wire::Match>| {
            matches.is_empty() || matches.iter().any(|one| is_matched(one, caller))
        };
        self.rules.iter().any(|rule| rule.iter().all(clause))
    }
}

/// Every policy there is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policies(BTreeMap<Arc<str>, Arc<Policy>>);

impl Policies {
    /// Knows it under this name.
    pub(crate) fn set(&mut self, name: Arc<str>, policy: Policy) {
        self.0.insert(name, Arc::new(policy));
    }

    /// Returns true if a policy of this name is known.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// It is gone.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Returns the number of policies.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Authorizes a connection, or returns the reason of its denial.
    pub(crate) fn judge(
        &self,
        judged: &JudgedConnection<'_>,
        caller: &PeerAttributes<'_>,
    ) -> Result<(), Denial> {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut all: Vec<(&Arc<str>, &Policy)> = Vec::new();
        for name in judged.named {
            let Some((name, policy)) = self.0.get_key_value(name) else {
                return Err(Denial::Unknown(Arc::clone(name)));
            };
            if seen.insert(name) {
                all.push((name, policy));
            }
        }
        let others = self.0.iter().filter(|(_, policy)| policy.holds_for(judged));
        all.extend(others.map(|(name, policy)| (name, &**policy)));
        all.retain(|(_, policy)| !policy.dry_run);
        let refuses = |(_, policy): &&(&Arc<str>, &Policy)| match policy.action {
            NodePolicyAction::Close => true,
            NodePolicyAction::Deny => policy.matches(caller),
            NodePolicyAction::Allow => false,
        };
        if let Some((name, _)) = all.iter().find(refuses) {
            return Err(Denial::By(Arc::clone(name)));
        }
        let mut allowing = all
            .iter()
            .filter(|(_, p)| p.action == NodePolicyAction::Allow);
        let mut allowing = allowing.by_ref().peekable();
        match allowing.peek().is_none() || allowing.any(|(_, policy)| policy.matches(caller)) {
            true => Ok(()),
            false => Err(Denial::NotAllowed),
        }
    }
}

/// Checks that every field of a match can be understood.
fn check(one: &wire::Match) -> Result<(), String> {
    let texts = [
        &one.namespaces,
        &one.not_namespaces,
        &one.principals,
        &one.not_principals,
    ];
    if texts
        .into_iter()
        .flatten()
        .any(|text| text.match_type.is_none())
    {
        return Err("a string match of an unknown kind".to_owned());
    }
    let ranges = [
        &one.source_ips,
        &one.not_source_ips,
        &one.destination_ips,
        &one.not_destination_ips,
    ];
    for range in ranges.into_iter().flatten() {
        let bits = match range.address.len() {
            4 => 32,
            16 => 128,
            bytes => return Err(format!("an address has {bytes} bytes, not 4 or 16")),
        };
        if range.length > bits {
            return Err(format!(
                "a prefix length of {}, more than {bits}",
                range.length
            ));
        }
    }
    Ok(())
}

fn is_empty(one: &wire::Match) -> bool {
    *one == wire::Match::default()
}

fn is_matched(one: &wire::Match, caller: &PeerAttributes<'_>) -> bool {
    /// Returns true if the wanted ones are empty or one of them matches, and none of the unwanted ones matches.
    fn both<T>(wanted: &[T], unwanted: &[T], is: impl Fn(&T) -> bool) -> bool {
        (wanted.is_empty() || wanted.iter().any(&is)) && !unwanted.iter().any(is)
    }
    if is_empty(one) {
        return false;
    }
    let identity = caller.identity;
    let principal = identity.map(|identity| {
        let text = identity.to_string();
        text.strip_prefix("spiffe://")
            .map(str::to_owned)
            .unwrap_or(text)
    });
    let principal = principal.unwrap_or_default();
    let namespace = identity.map_or("", |identity| identity.namespace.as_str());
    both(&one.namespaces, &one.not_namespaces, |text| {
        is_text(text, namespace)
    }) && both(&one.principals, &one.not_principals, |text| {
        identity.is_some() && is_text(text, &principal)
    }) && both(
        &one.service_accounts,
        &one.not_service_accounts,
        |account| {
            identity.is_some_and(|identity| {
                identity.namespace.as_str() == account.namespace
                    && *identity.service_account == *account.service_account
            })
        },
    ) && both(&one.source_ips, &one.not_source_ips, |range| {
        contains(range, caller.source)
    }) && both(&one.destination_ips, &one.not_destination_ips, |range| {
        contains(range, caller.destination.ip())
    }) && both(&one.destination_ports, &one.not_destination_ports, |port| {
        *port == u32::from(caller.destination.port())
    })
}

fn is_text(wanted: &wire::StringMatch, found: &str) -> bool {
    match &wanted.match_type {
        Some(MatchType::Exact(text)) => found == text,
        Some(MatchType::Prefix(text)) => found.starts_with(text.as_str()),
        Some(MatchType::Suffix(text)) => found.ends_with(text.as_str()),
        Some(MatchType::Presence(())) => !found.is_empty(),
        None => false,
    }
}

fn contains(range: &wire::Address, address: IpAddr) -> bool {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    if octets.len() != range.address.len() {
        return false;
    }
    let mut left = range.length;
    octets.iter().zip(&range.address).all(|(found, wanted)| {
        let bits = left.min(8);
        left -= bits;
        // Of no bits every byte is equal.
        (u32::from(found ^ wanted) >> (8 - bits)) == 0
    })
}

#[cfg(test)]
mod tests;
