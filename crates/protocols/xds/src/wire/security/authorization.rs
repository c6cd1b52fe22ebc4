//! AuthorizationPolicies ⇄ `voile.proxy.v1.AuthorizationPolicy`. The message carries Istio's own text, and both ends read it
//! with the same functions. A policy with a part that this end does not know is refused whole.

use std::fmt::Display;
use std::sync::Arc;

use prost::Message;
use voile_model::ResourceName;
use voile_model::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationProvider, AuthorizationRule, Matches,
    OperationMatch, PolicyTarget, SourceMatch, WhenCondition,
    values::{self, ConditionError},
};
use voile_model::source::Source;
use voile_proto::proxy as wire;

use crate::wire::{WireError, namespace, shown};

/// The message of a policy. The message has neither its target nor its source, which concern the control plane alone.
#[must_use]
pub fn encode_authorization(policy: &AuthorizationPolicy) -> wire::AuthorizationPolicy {
    let (action, provider) = match &policy.action {
        AuthorizationAction::Allow => (wire::AuthorizationAction::Allow, ""),
        AuthorizationAction::Deny => (wire::AuthorizationAction::Deny, ""),
        AuthorizationAction::Audit => (wire::AuthorizationAction::Audit, ""),
        AuthorizationAction::Custom(provider) => {
            (wire::AuthorizationAction::Custom, &*provider.name)
        }
    };
    wire::AuthorizationPolicy {
        action: action.into(),
        dry_run: policy.dry_run,
        provider: provider.to_owned(),
        rules: policy.rules.iter().map(encode_rule).collect(),
    }
}

fn encode_rule(rule: &AuthorizationRule) -> wire::AuthorizationRule {
    let source = |from: &SourceMatch| wire::AuthorizationSource {
        principals: encode(&from.principals),
        request_principals: encode(&from.request_principals),
        namespaces: encode(&from.namespaces),
        service_accounts: encode(&from.service_accounts),
        trust_domains: encode(&from.trust_domains),
        ip_blocks: encode(&from.ip_blocks),
        remote_ip_blocks: encode(&from.remote_ip_blocks),
    };
    let operation = |to: &OperationMatch| wire::AuthorizationOperation {
        hosts: encode(&to.hosts),
        ports: encode(&to.ports),
        methods: encode(&to.methods),
        paths: encode(&to.paths),
    };
    wire::AuthorizationRule {
        from: rule.from.iter().map(source).collect(),
        to: rule.to.iter().map(operation).collect(),
        when: rule.when.iter().map(encode_condition).collect(),
    }
}

fn encode_condition(condition: &WhenCondition) -> wire::AuthorizationCondition {
    let brackets = |head: &str, names: &[Arc<str>]| {
        names
            .iter()
            .fold(head.to_owned(), |key, name| format!("{key}[{name}]"))
    };
    let (key, matches) = match condition {
        WhenCondition::Header(name, matches) => (
            brackets("request.headers", std::slice::from_ref(name)),
            encode(matches),
        ),
        WhenCondition::RequestClaim(path, matches) => {
            (brackets("request.auth.claims", path), encode(matches))
        }
        WhenCondition::SourceIp(matches) => ("source.ip".to_owned(), encode(matches)),
        WhenCondition::RemoteIp(matches) => ("remote.ip".to_owned(), encode(matches)),
        WhenCondition::SourceNamespace(matches) => ("source.namespace".to_owned(), encode(matches)),
        WhenCondition::SourceServiceAccount(matches) => {
            ("source.serviceAccount".to_owned(), encode(matches))
        }
        WhenCondition::SourcePrincipal(matches) => ("source.principal".to_owned(), encode(matches)),
        WhenCondition::SourceTrustDomain(matches) => {
            ("source.trustDomain".to_owned(), encode(matches))
        }
        WhenCondition::RequestPrincipal(matches) => {
            ("request.auth.principal".to_owned(), encode(matches))
        }
        WhenCondition::RequestAudiences(matches) => {
            ("request.auth.audiences".to_owned(), encode(matches))
        }
        WhenCondition::RequestPresenter(matches) => {
            ("request.auth.presenter".to_owned(), encode(matches))
        }
        WhenCondition::DestinationIp(matches) => ("destination.ip".to_owned(), encode(matches)),
        WhenCondition::DestinationPort(matches) => ("destination.port".to_owned(), encode(matches)),
        WhenCondition::ServerName(matches) => ("connection.sni".to_owned(), encode(matches)),
    };
    wire::AuthorizationCondition { key, matches }
}

fn encode<T: Display>(matches: &Matches<T>) -> Option<wire::Matches> {
    let texts = |list: &[T]| list.iter().map(ToString::to_string).collect();
    (!matches.is_empty()).then(|| wire::Matches {
        values: texts(&matches.any_of),
        not_values: texts(&matches.none_of),
    })
}

/// Checks the bytes of a policy that came under this name.
pub fn decode_authorization(name: &str, bytes: &[u8]) -> Result<AuthorizationPolicy, WireError> {
    let message = wire::AuthorizationPolicy::decode(bytes)?;
    let name = parse_name(name)
        .ok_or_else(|| WireError::new("", format!("`{}` is not NAMESPACE/NAME", shown(name))))?;
    let source = Source {
        file: "".into(),
        line: 0,
        column: 0,
    };
    let provider = || AuthorizationProvider {
        name: message.provider.as_str().into(),
        source: source.clone(),
    };
    use wire::AuthorizationAction as Word;
    let action = match Word::try_from(message.action) {
        Ok(Word::Allow) => AuthorizationAction::Allow,
        Ok(Word::Deny) => AuthorizationAction::Deny,
        Ok(Word::Audit) => AuthorizationAction::Audit,
        Ok(Word::Custom) if message.provider.is_empty() => {
            return Err(WireError::new("provider", "missing"));
        }
        Ok(Word::Custom) => AuthorizationAction::Custom(provider()),
        Ok(Word::NoAction) | Err(_) => {
            return Err(crate::wire::unknown_value("action", message.action));
        }
    };
    let own = name.namespace.to_string();
    let rule = |(index, rule): (usize, &wire::AuthorizationRule)| {
        decode_rule(rule, &own, &source).map_err(|error| error.within(&format!("rules[{index}]")))
    };
    let rules = message.rules.iter().enumerate().map(rule);
    Ok(AuthorizationPolicy {
        rules: rules.collect::<Result<_, _>>()?,
        name,
        source: source.clone(),
        target: PolicyTarget::Everything,
        action,
        dry_run: message.dry_run,
    })
}

pub(in crate::wire) fn parse_name(text: &str) -> Option<ResourceName> {
    let (own, name) = text.split_once('/')?;
    let namespace = namespace("", own).ok()?;
    (!name.is_empty()).then(|| ResourceName::new(namespace, name))
}

fn decode_rule(
    rule: &wire::AuthorizationRule,
    own: &str,
    source: &Source,
) -> Result<AuthorizationRule, WireError> {
    let from = |from: &wire::AuthorizationSource| {
        Ok(SourceMatch {
            principals: decode("principals", &from.principals, values::string)?,
            request_principals: decode(
                "request_principals",
                &from.request_principals,
                values::string,
            )?,
            namespaces: decode("namespaces", &from.namespaces, values::namespace)?,
            service_accounts: decode("service_accounts", &from.service_accounts, |value| {
                values::service_account(value, own)
            })?,
            trust_domains: decode("trust_domains", &from.trust_domains, values::trust_domain)?,
            ip_blocks: decode("ip_blocks", &from.ip_blocks, values::address_range)?,
            remote_ip_blocks: decode(
                "remote_ip_blocks",
                &from.remote_ip_blocks,
                values::address_range,
            )?,
        })
    };
    let to = |to: &wire::AuthorizationOperation| {
        Ok(OperationMatch {
            hosts: decode("hosts", &to.hosts, values::string)?,
            ports: decode("ports", &to.ports, values::port)?,
            methods: decode("methods", &to.methods, values::string)?,
            paths: decode("paths", &to.paths, values::path)?,
        })
    };
    Ok(AuthorizationRule {
        source: source.clone(),
        from: each("from", &rule.from, from)?,
        to: each("to", &rule.to, to)?,
        when: each("when", &rule.when, |when| decode_condition(when, own))?,
    })
}

fn each<W, T>(
    field: &str,
    list: &[W],
    read: impl Fn(&W) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let one = |(index, entry): (usize, &W)| {
        read(entry).map_err(|error| error.within(&format!("{field}[{index}]")))
    };
    list.iter().enumerate().map(one).collect()
}

fn decode_condition(
    when: &wire::AuthorizationCondition,
    own: &str,
) -> Result<WhenCondition, WireError> {
    let matches = when.matches.clone().unwrap_or_default();
    if matches.values.is_empty() && matches.not_values.is_empty() {
        return Err(WireError::new("matches", "missing"));
    }
    let values: Vec<&str> = matches.values.iter().map(String::as_str).collect();
    let not_values: Vec<&str> = matches.not_values.iter().map(String::as_str).collect();
    values::condition(&when.key, &values, &not_values, own).map_err(|error| match error {
        ConditionError::Key(why) => WireError::new("key", why),
        ConditionError::Value(index, why) => WireError::new(format!("matches[{index}]"), why),
    })
}

fn decode<T>(
    field: &str,
    matches: &Option<wire::Matches>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Matches<T>, WireError> {
    let Some(matches) = matches else {
        return Ok(Matches::default());
    };
    let list = |part: &str, texts: &[String]| -> Result<Vec<T>, WireError> {
        let one = |(index, text): (usize, &String)| {
            let field = format!("{field}.{part}[{index}]");
            read(text).map_err(|why| WireError::new(field, why))
        };
        texts.iter().enumerate().map(one).collect()
    };
    Ok(Matches {
        any_of: list("values", &matches.values)?,
        none_of: list("not_values", &matches.not_values)?,
    })
}
