//! From policies as the mesh's model has them, values checked, to policies as they are decided by.

use std::fmt::Display;

use voile_model::mesh::authorization::{
    self as model, AuthorizationPolicy, Matches, OperationMatch, SourceMatch, WhenCondition,
};

use super::attribute::Attribute;
use super::paths::PathNormalization;
use super::pattern::ValueError;
use super::policy::{Action, Policy, PolicyName, PolicyRule, Term, Terms};

impl Policy {
    /// The policy that a resource is.
    ///
    /// # Errors
    /// When a value is not one of its attribute; the model has seen to that already.
    pub fn of(resource: &AuthorizationPolicy) -> Result<Self, ValueError> {
        let namespace = resource.name.namespace.as_str();
        let rules = resource.rules.iter().map(|one| rule(one, namespace));
        let source = &resource.source;
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            name: PolicyName {
                namespace: namespace.into(),
                name: resource.name.name.clone(),
            },
            origin: (!source.file.is_empty()).then(|| source.to_string().into()),
            action: match &resource.action {
                model::AuthorizationAction::Allow => Action::Allow,
                model::AuthorizationAction::Deny => Action::Deny,
                model::AuthorizationAction::Audit => Action::Audit,
                model::AuthorizationAction::Custom(provider) => {
                    Action::Custom(provider.name.clone())
                }
            },
            dry_run: resource.dry_run,
        })
    }
}

fn rule(rule: &model::AuthorizationRule, namespace: &str) -> Result<PolicyRule, ValueError> {
    let from = rule.from.iter().map(|from| source(from, namespace));
    let to = rule.to.iter().map(|to| operation(to, namespace));
    let when = rule.when.iter().map(|when| condition(when, namespace));
    Ok(PolicyRule {
        from: from.collect::<Result<_, _>>()?,
        to: to.collect::<Result<_, _>>()?,
        when: when.collect::<Result<_, _>>()?,
    })
}

/// The terms that ask something.
struct MatchedTerms<'a> {
    namespace: &'a str,
    terms: Terms,
}

impl MatchedTerms<'_> {
    fn add<T: Display>(
        &mut self,
        attribute: Attribute,
        matches: &Matches<T>,
    ) -> Result<(), ValueError> {
        if !matches.is_empty() {
            self.terms.push(term(attribute, matches, self.namespace)?);
        }
        Ok(())
    }
}

fn term<T: Display>(
    attribute: Attribute,
    matches: &Matches<T>,
    namespace: &str,
) -> Result<Term, ValueError> {
    let texts = |list: &[T]| -> Vec<String> { list.iter().map(ToString::to_string).collect() };
    let (any, none) = (texts(&matches.any_of), texts(&matches.none_of));
    Term::parse(attribute, namespace, &any, &none)
}

fn source(from: &SourceMatch, namespace: &str) -> Result<Terms, ValueError> {
    let mut asked = MatchedTerms {
        namespace,
        terms: Terms::new(),
    };
    asked.add(Attribute::SourcePrincipal, &from.principals)?;
    asked.add(Attribute::RequestPrincipal, &from.request_principals)?;
    asked.add(Attribute::SourceNamespace, &from.namespaces)?;
    asked.add(Attribute::SourceServiceAccount, &from.service_accounts)?;
    asked.add(Attribute::SourceTrustDomain, &from.trust_domains)?;
    asked.add(Attribute::SourceIp, &from.ip_blocks)?;
    asked.add(Attribute::RemoteIp, &from.remote_ip_blocks)?;
    Ok(asked.terms)
}

fn operation(to: &OperationMatch, namespace: &str) -> Result<Terms, ValueError> {
    let mut asked = MatchedTerms {
        namespace,
        terms: Terms::new(),
    };
    asked.add(Attribute::Host, &to.hosts)?;
    asked.add(Attribute::DestinationPort, &to.ports)?;
    asked.add(Attribute::Method, &to.methods)?;
    asked.add(Attribute::Path, &to.paths)?;
    Ok(asked.terms)
}

fn condition(when: &WhenCondition, namespace: &str) -> Result<Term, ValueError> {
    let own = namespace;
    match when {
        WhenCondition::Header(name, values) => {
            term(Attribute::RequestHeader(name.clone()), values, own)
        }
        WhenCondition::SourceIp(values) => term(Attribute::SourceIp, values, own),
        WhenCondition::RemoteIp(values) => term(Attribute::RemoteIp, values, own),
        WhenCondition::SourceNamespace(values) => term(Attribute::SourceNamespace, values, own),
        WhenCondition::SourceServiceAccount(values) => {
            term(Attribute::SourceServiceAccount, values, own)
        }
        WhenCondition::SourcePrincipal(values) => term(Attribute::SourcePrincipal, values, own),
        WhenCondition::SourceTrustDomain(values) => term(Attribute::SourceTrustDomain, values, own),
        WhenCondition::RequestPrincipal(values) => term(Attribute::RequestPrincipal, values, own),
        WhenCondition::RequestAudiences(values) => term(Attribute::RequestAudiences, values, own),
        WhenCondition::RequestPresenter(values) => term(Attribute::RequestPresenter, values, own),
        WhenCondition::RequestClaim(path, values) => {
            term(Attribute::RequestClaim(path.as_slice().into()), values, own)
        }
        WhenCondition::DestinationIp(values) => term(Attribute::DestinationIp, values, own),
        WhenCondition::DestinationPort(values) => term(Attribute::DestinationPort, values, own),
        WhenCondition::ServerName(values) => term(Attribute::Sni, values, own),
    }
}

impl From<voile_model::mesh::PathNormalization> for PathNormalization {
    fn from(written: voile_model::mesh::PathNormalization) -> Self {
        use voile_model::mesh::PathNormalization as Written;
        match written {
            Written::None => Self::None,
            Written::Base => Self::Base,
            Written::MergeSlashes => Self::MergeSlashes,
            Written::DecodeAndMergeSlashes => Self::DecodeAndMergeSlashes,
        }
    }
}
