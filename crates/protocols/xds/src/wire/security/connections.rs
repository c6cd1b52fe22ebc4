//! Policies about connections ⇄ Istio's `Authorization` (interop with istiod and ztunnel). What cannot be read comes as a policy
//! that closes the same workloads.

use std::net::IpAddr;

use prost::Message;
use voile_model::ResourceName;
use voile_model::mesh::authorization::{Matches, ServiceAccountName};
use voile_policy::authorization::{Cidr, Text};
use voile_policy::connections::{
    CallerClause, CallerMatch, CallerRule, ConnectionAction, ConnectionPolicy, PolicyScope,
};
use voile_proto::authorization as wire;
use voile_proto::authorization::string_match::MatchType;

use crate::wire::fields::{wire_enum, wire_type};
use crate::wire::{WireError, WireType, address_bytes, unknown_value};

/// The message of a policy.
#[must_use]
pub fn encode_connection_policy(
    name: &ResourceName,
    policy: &ConnectionPolicy,
) -> wire::Authorization {
    let scope = match policy.scope {
        PolicyScope::Mesh => wire::Scope::Global,
        PolicyScope::Namespace(_) => wire::Scope::Namespace,
        PolicyScope::Named => wire::Scope::WorkloadSelector,
    };
    wire::Authorization {
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        scope: scope.into(),
        action: policy.action.to_wire(),
        rules: policy.rules.to_wire(),
        dry_run: policy.dry_run,
    }
}

/// Checks the bytes of a policy. An error comes with the policy that holds in its place, which closes the same workloads, or all
/// where they are unknown.
pub fn decode_connection_policy(
    bytes: &[u8],
) -> Result<ConnectionPolicy, (ConnectionPolicy, WireError)> {
    let closed = |scope| move |error| (ConnectionPolicy::closing(scope), error);
    let message = wire::Authorization::decode(bytes);
    let message = message.map_err(|error| closed(PolicyScope::Mesh)(error.into()))?;
    let scope = match wire::Scope::try_from(message.scope) {
        Ok(wire::Scope::Global) => PolicyScope::Mesh,
        Ok(wire::Scope::Namespace) => PolicyScope::Namespace(message.namespace.as_str().into()),
        Ok(wire::Scope::WorkloadSelector) => PolicyScope::Named,
        Err(_) => {
            let error = unknown_value("scope", message.scope);
            return Err(closed(PolicyScope::Mesh)(error));
        }
    };
    let read = || {
        let action = ConnectionAction::from_wire(message.action);
        let rules = WireType::from_wire(message.rules);
        Ok(ConnectionPolicy {
            action: action.map_err(|error| error.within("action"))?,
            rules: rules.map_err(|error: WireError| error.within("rules"))?,
            scope: scope.clone(),
            dry_run: message.dry_run,
        })
    };
    read().map_err(closed(scope.clone()))
}

wire_enum! { ConnectionAction as wire::Action { Allow, Deny } }
wire_type! { CallerRule as wire::Rule { clauses, } }
wire_type! { CallerClause as wire::Clause { matches, } }
wire_type! {
    CallerMatch as wire::Match {
        namespaces = (namespaces, not_namespaces),
        principals = (principals, not_principals),
        service_accounts = (service_accounts, not_service_accounts),
        source_ips = (source_ips, not_source_ips),
        destination_ips = (destination_ips, not_destination_ips),
        destination_ports = (destination_ports, not_destination_ports),
    }
}
wire_type! {
    ServiceAccountName as wire::ServiceAccountMatch { namespace, name = service_account, }
}

impl<T: WireType<F>, F> WireType<(Vec<F>, Vec<F>)> for Matches<T> {
    fn to_wire(&self) -> (Vec<F>, Vec<F>) {
        (self.any_of.to_wire(), self.none_of.to_wire())
    }

    fn from_wire((any, none): (Vec<F>, Vec<F>)) -> Result<Self, WireError> {
        Ok(Self {
            any_of: WireType::from_wire(any)?,
            none_of: WireType::from_wire(none)?,
        })
    }
}

impl WireType<wire::StringMatch> for Text {
    fn to_wire(&self) -> wire::StringMatch {
        let match_type = match self {
            Self::Exact(text) => Some(MatchType::Exact(text.to_string())),
            Self::Prefix(text) => Some(MatchType::Prefix(text.to_string())),
            Self::Suffix(text) => Some(MatchType::Suffix(text.to_string())),
            Self::Present => Some(MatchType::Presence(())),
            // No lowered policy has one; a node proxy would refuse the policy and close.
            Self::Glob(_) => None,
        };
        wire::StringMatch { match_type }
    }

    fn from_wire(form: wire::StringMatch) -> Result<Self, WireError> {
        match form.match_type {
            Some(MatchType::Exact(text)) => Ok(Self::Exact(text.into())),
            Some(MatchType::Prefix(text)) => Ok(Self::Prefix(text.into())),
            Some(MatchType::Suffix(text)) => Ok(Self::Suffix(text.into())),
            Some(MatchType::Presence(())) => Ok(Self::Present),
            None => Err(WireError::new("", "a string match of an unknown kind")),
        }
    }
}

impl WireType<wire::Address> for Cidr {
    fn to_wire(&self) -> wire::Address {
        wire::Address {
            address: address_bytes(self.address()),
            length: self.length().into(),
        }
    }

    fn from_wire(form: wire::Address) -> Result<Self, WireError> {
        let address = IpAddr::from_wire(form.address)?;
        let length = u8::try_from(form.length).ok();
        let range = length.and_then(|length| Self::new(address, length));
        let reason = || format!("{} is more bits than the address has", form.length);
        range.ok_or_else(|| WireError::new("length", reason()))
    }
}
