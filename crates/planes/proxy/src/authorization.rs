//! Authorization policies of our workload, compiled once for all workers and never changed. Derived attributes of a
//! request (its normalized path, its first client's address) are made here.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use voile_model::TrustDomain;
use voile_model::mesh::AuthorizationPolicy;
use voile_policy::authorization::{
    Action, AuthorizationOutcome, Denial, Engine, PathNormalization, Policy, PolicyName,
    PolicyRule, RequestFacts, RuleRef, TrustDomains, provider_of,
};

use crate::http::HttpHead;
use crate::registry::Inputs;

/// See the module. Equal only to its own copies: a new compilation always counts as a change.
#[derive(Clone)]
pub(crate) struct Authorization(Arc<CompiledAuthorization>);

struct CompiledAuthorization {
    engine: Engine,
    normalization: PathNormalization,
    trusted_proxies: u32,
    /// Provider of the enforced CUSTOM policies; none without such policies, or if they name several.
    provider: Option<Arc<str>>,
}

impl PartialEq for Authorization {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authorization")
            .field(&self.0.engine)
            .finish()
    }
}

/// A rule as people know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedRule<'a> {
    pub(crate) policy: &'a PolicyName,
    pub(crate) rule: u32,
}

impl fmt::Display for NamedRule<'_> {
    /// Istio's form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyName { namespace, name } = self.policy;
        write!(f, "ns[{namespace}]-policy[{name}]-rule[{}]", self.rule)
    }
}

impl Authorization {
    /// Compiles policies as a configuration wants them read.
    pub(crate) fn new(mut policies: Vec<Policy>, how: &Inputs) -> Self {
        let aliases: Vec<&str> = how.aliases.iter().map(TrustDomain::as_str).collect();
        let domains = TrustDomains::new(how.trust_domain.as_str(), &aliases);
        policies.iter_mut().for_each(|policy| domains.apply(policy));
        Self(Arc::new(CompiledAuthorization {
            engine: Engine::new(&policies),
            normalization: how.normalization.into(),
            trusted_proxies: how.trusted_proxies,
            provider: provider_of(&policies).cloned(),
        }))
    }

    /// The policies of a YAML text, for tests.
    #[cfg(test)]
    pub(crate) fn of_yaml(text: &str) -> Self {
        let (mesh, problems) =
            voile_model::check(&[voile_model::SourceFile::new("policies.yaml", text)], None);
        let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        let policies = mesh.authorization_policies.values();
        let policies: Vec<Policy> = policies.map(|one| read(one).expect("checked")).collect();
        Self(Arc::new(CompiledAuthorization {
            engine: Engine::new(&policies),
            normalization: PathNormalization::Base,
            trusted_proxies: 0,
            provider: provider_of(&policies).cloned(),
        }))
    }

    /// Provider of the CUSTOM policies, if all name the same.
    pub(crate) fn provider(&self) -> Option<&Arc<str>> {
        self.0.provider.as_ref()
    }

    /// Decides by the policies. If the request no longer matches `came`, CUSTOM rules are evaluated in both
    /// readings.
    pub(crate) fn decide(
        &self,
        facts: &RequestFacts<'_>,
        came: Option<&RequestFacts<'_>>,
    ) -> AuthorizationOutcome {
        self.0.engine.decide_with(facts, came)
    }

    /// The name of a rule that decided.
    pub(crate) fn named(&self, rule: RuleRef) -> Option<NamedRule<'_>> {
        let policy = self.0.engine.name(rule)?;
        Some(NamedRule {
            policy,
            rule: rule.rule,
        })
    }

    /// Envoy's details of a denial.
    pub(crate) fn details(&self, denial: &Denial) -> String {
        let rule = denial.rule.and_then(|rule| self.named(rule));
        match rule {
            Some(rule) => format!("rbac_access_denied_matched_policy[{rule}]"),
            None => "rbac_access_denied_matched_policy[none]".to_owned(),
        }
    }

    /// The path and query as policies compare them and the application gets them; `None` where they are refused.
    pub(crate) fn normalized<'a>(&self, path: &'a str) -> Option<Cow<'a, str>> {
        match self.0.normalization.normalize(path.as_bytes()).ok()? {
            Cow::Borrowed(_) => Some(Cow::Borrowed(path)),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }

    /// Address of the first client. Only proxies that the mesh trusts are believed: each appends its peer's address to
    /// `x-forwarded-for`.
    pub(crate) fn remote_ip(&self, head: &HttpHead<'_>, peer: IpAddr) -> IpAddr {
        match self.0.trusted_proxies {
            0 => peer,
            trusted => forwarded_for(head, trusted).unwrap_or(peer),
        }
    }
}

/// The `count`-th address from the end, over all lines of the field.
pub(crate) fn forwarded_for(head: &HttpHead<'_>, count: u32) -> Option<IpAddr> {
    let lines = head.headers();
    let lines = lines.filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"));
    let values: Vec<&[u8]> = lines.map(|(_, value)| value).collect();
    let listed = values
        .iter()
        .rev()
        .flat_map(|value| value.rsplit(|byte| *byte == b','));
    let one = listed
        .skip(usize::try_from(count).ok()?.checked_sub(1)?)
        .map(<[u8]>::trim_ascii)
        .next()?;
    let address: IpAddr = std::str::from_utf8(one).ok()?.parse().ok()?;
    Some(address.to_canonical())
}

/// A policy as the engine takes it.
pub(crate) fn read(said: &AuthorizationPolicy) -> Result<Policy, String> {
    Policy::of(said).map_err(|error| error.to_string())
}

/// Denies everything, in place of one that cannot be read.
pub(crate) fn shut(name: &str) -> Policy {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    Policy {
        name: PolicyName {
            namespace: namespace.into(),
            name: name.into(),
        },
        origin: None,
        action: Action::Deny,
        dry_run: false,
        rules: vec![PolicyRule::default()],
    }
}
