//! Authorization of connections by Istio's `Authorization` resource (interop with istiod). Pure. DENY comes before
//! ALLOW; if a workload has an ALLOW policy, one must match. A policy that is unreadable, or named but unknown,
//! denies: doubt never widens access.

use std::collections::BTreeMap;
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

    fn matches(&self, caller: &PeerAttributes<'_>, principal: &str) -> bool {
        let clause = |matches: &Vec<wire::Match>| {
            matches.is_empty() || matches.iter().any(|one| is_matched(one, caller, principal))
        };
        self.rules.iter().any(|rule| rule.iter().all(clause))
    }
}

type PoliciesByName = BTreeMap<Arc<str>, Arc<Policy>>;

/// Every policy there is. A connection meets those of its place only, however many there are. Clones share all that is equal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policies {
    all: Arc<PoliciesByName>,
    /// Those that hold for every workload.
    everywhere: Arc<PoliciesByName>,
    /// Those that hold for the workloads of a namespace.
    namespaces: Arc<BTreeMap<Arc<str>, Arc<PoliciesByName>>>,
}

impl Policies {
    /// Knows it under this name.
    pub(crate) fn set(&mut self, name: Arc<str>, policy: Policy) {
        self.remove(&name);
        let policy = Arc::new(policy);
        let place = match &policy.scope {
            PolicyScope::Everybody => Some(&mut self.everywhere),
            PolicyScope::Namespace(namespace) => {
                let namespaces = Arc::make_mut(&mut self.namespaces);
                Some(namespaces.entry(Arc::clone(namespace)).or_default())
            }
            PolicyScope::Named => None,
        };
        if let Some(place) = place {
            Arc::make_mut(place).insert(Arc::clone(&name), Arc::clone(&policy));
        }
        Arc::make_mut(&mut self.all).insert(name, policy);
    }

    /// Returns true if a policy of this name is known.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    /// It is gone.
    pub(crate) fn remove(&mut self, name: &str) {
        if !self.contains(name) {
            return;
        }
        let policy = Arc::make_mut(&mut self.all).remove(name);
        match policy.as_ref().map(|policy| &policy.scope) {
            Some(PolicyScope::Everybody) => {
                Arc::make_mut(&mut self.everywhere).remove(name);
            }
            Some(PolicyScope::Namespace(namespace)) => {
                let namespaces = Arc::make_mut(&mut self.namespaces);
                let emptied = namespaces.get_mut(namespace).is_some_and(|of_namespace| {
                    let of_namespace = Arc::make_mut(of_namespace);
                    of_namespace.remove(name);
                    of_namespace.is_empty()
                });
                if emptied {
                    namespaces.remove(namespace);
                }
            }
            Some(PolicyScope::Named) | None => {}
        }
    }

    /// Returns the number of policies.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The policies that hold for a workload, those that it names first; one that it names and that holds anyhow comes twice.
    fn held<'a>(
        &'a self,
        judged: &'a JudgedConnection<'_>,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<Policy>)> + Clone {
        let named = judged
            .named
            .iter()
            .filter_map(|name| self.all.get_key_value(name));
        let of_namespace = self.namespaces.get(judged.namespace);
        let others = of_namespace
            .into_iter()
            .flat_map(|policies| policies.iter());
        named.chain(self.everywhere.iter()).chain(others)
    }

    /// Authorizes a connection, or returns the reason of its denial.
    pub(crate) fn judge(
        &self,
        judged: &JudgedConnection<'_>,
        caller: &PeerAttributes<'_>,
    ) -> Result<(), Denial> {
        if let Some(unknown) = judged.named.iter().find(|name| !self.contains(name)) {
            return Err(Denial::Unknown(Arc::clone(unknown)));
        }
        let mut held = self
            .held(judged)
            .filter(|(_, policy)| !policy.dry_run)
            .peekable();
        if held.peek().is_none() {
            return Ok(());
        }
        let principal = caller.identity.map(ToString::to_string);
        let principal = principal.as_deref().unwrap_or_default();
        let principal = principal.strip_prefix("spiffe://").unwrap_or(principal);
        let refuses = |(_, policy): &(&Arc<str>, &Arc<Policy>)| match policy.action {
            NodePolicyAction::Close => true,
            NodePolicyAction::Deny => policy.matches(caller, principal),
            NodePolicyAction::Allow => false,
        };
        if let Some((name, _)) = held.clone().find(refuses) {
            return Err(Denial::By(Arc::clone(name)));
        }
        let mut allowing = held
            .filter(|(_, policy)| policy.action == NodePolicyAction::Allow)
            .peekable();
        match allowing.peek().is_none()
            || allowing.any(|(_, policy)| policy.matches(caller, principal))
        {
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

fn is_matched(one: &wire::Match, caller: &PeerAttributes<'_>, principal: &str) -> bool {
    /// Returns true if the wanted ones are empty or one of them matches, and none of the unwanted ones matches.
    fn both<T>(wanted: &[T], unwanted: &[T], is: impl Fn(&T) -> bool) -> bool {
        (wanted.is_empty() || wanted.iter().any(&is)) && !unwanted.iter().any(is)
    }
    if is_empty(one) {
        return false;
    }
    let identity = caller.identity;
    let namespace = identity.map_or("", |identity| identity.namespace.as_str());
    both(&one.namespaces, &one.not_namespaces, |text| {
        is_text(text, namespace)
    }) && both(&one.principals, &one.not_principals, |text| {
        identity.is_some() && is_text(text, principal)
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
