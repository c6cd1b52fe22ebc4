//! Status of a Gateway API resource: its conditions, and the refused parts with their locations.

use std::sync::Arc;

use crate::names::ResourceName;
use crate::source::Source;

/// A reason of the specification for a condition that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionReason {
    /// Parameters that do not exist, or that Voile does not read.
    InvalidParameters,
    /// Addresses of its own.
    UnsupportedAddress,
    /// None of its listeners is good.
    ListenersNotValid,
    /// A protocol that Voile does not serve.
    UnsupportedProtocol,
    /// Another listener has the port with another protocol.
    ProtocolConflict,
    /// Another listener has the port and the host.
    HostnameConflict,
    /// Routes of a kind that cannot come here.
    InvalidRouteKinds,
    /// No such Secret, or not one of a certificate.
    InvalidCertificateRef,
    /// A reference into another namespace, which does not permit it.
    RefNotPermitted,
    /// No listener that is meant.
    NoMatchingParent,
    /// No listener that is meant takes it.
    NotAllowedByListeners,
    /// No listener that takes it has its host.
    NoMatchingListenerHostname,
    /// No such Service, or no such port of it.
    BackendNotFound,
    /// Something that requests cannot be sent to.
    InvalidKind,
    /// A value that Voile does not support.
    UnsupportedValue,
    /// The Gateway does not take it.
    NotAllowed,
    /// None of the authorities of a BackendTLSPolicy, or of a listener's clients, can be used.
    NoValidCertificate,
    /// One of them cannot be.
    InvalidAuthority,
    /// A reference to authorities that is to a resource of an unsupported kind.
    InvalidAuthorityKind,
    /// The certificate for backends cannot be used.
    InvalidClientCertificateRef,
    /// An older policy has the target.
    Conflicted,
    /// The target of a policy does not exist.
    TargetNotFound,
    /// Nothing runs yet.
    Pending,
    /// It is not good itself.
    Invalid,
}

impl ConditionReason {
    /// The specification's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::InvalidParameters => "InvalidParameters",
            Self::UnsupportedAddress => "UnsupportedAddress",
            Self::ListenersNotValid => "ListenersNotValid",
            Self::UnsupportedProtocol => "UnsupportedProtocol",
            Self::ProtocolConflict => "ProtocolConflict",
            Self::HostnameConflict => "HostnameConflict",
            Self::InvalidRouteKinds => "InvalidRouteKinds",
            Self::InvalidCertificateRef => "InvalidCertificateRef",
            Self::RefNotPermitted => "RefNotPermitted",
            Self::NoMatchingParent => "NoMatchingParent",
            Self::NotAllowedByListeners => "NotAllowedByListeners",
            Self::NoMatchingListenerHostname => "NoMatchingListenerHostname",
            Self::BackendNotFound => "BackendNotFound",
            Self::InvalidKind => "InvalidKind",
            Self::UnsupportedValue => "UnsupportedValue",
            Self::NotAllowed => "NotAllowed",
            Self::NoValidCertificate => "NoValidCACertificate",
            Self::InvalidAuthority => "InvalidCACertificateRef",
            Self::InvalidAuthorityKind => "InvalidCACertificateKind",
            Self::InvalidClientCertificateRef => "InvalidClientCertificateRef",
            Self::Conflicted => "Conflicted",
            Self::TargetNotFound => "TargetNotFound",
            Self::Pending => "Pending",
            Self::Invalid => "Invalid",
        }
    }
}

/// Something that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCondition {
    /// The reason.
    pub reason: ConditionReason,
    /// Location of the refused field.
    pub source: Source,
    /// The field.
    pub field: Arc<str>,
    /// The refusal in a sentence.
    pub said: String,
    /// The missing resource, `KIND NAMESPACE/NAME`, if one is.
    pub missing: Option<Arc<str>>,
}

/// One of `conditions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusCondition {
    /// `Accepted` and the like.
    pub kind: &'static str,
    /// True if it holds.
    pub holds: bool,
    /// The specification's word for why.
    pub reason: &'static str,
    /// In a sentence; may be empty.
    pub message: String,
}

/// Conditions of a part of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartConditions {
    /// A listener's name, or a route's parent, such as `Gateway shop/public, listener http`.
    pub name: Arc<str>,
    /// As it stands in the status: a listener's `name`, a parent's fields.
    pub written: Vec<(&'static str, Arc<str>)>,
    /// Kinds of routes that a listener takes.
    pub kinds: Vec<&'static str>,
    /// Number of routes attached to a listener.
    pub attached: usize,
    /// Its conditions.
    pub conditions: Vec<StatusCondition>,
}

/// The status of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceConditions {
    /// Its kind.
    pub kind: &'static str,
    /// Its name; of a GatewayClass without a namespace.
    pub name: ResourceName,
    /// Conditions of the whole; a route has none.
    pub conditions: Vec<StatusCondition>,
    /// Address of a Gateway.
    pub address: Option<Arc<str>>,
    /// For a Gateway, the number of ListenerSets with a valid listener.
    pub listener_sets: usize,
    /// Listeners, or the parents of a route.
    pub parts: Vec<PartConditions>,
    /// Refused parts.
    pub refusals: Vec<RefusedCondition>,
}

impl StatusCondition {
    /// One that holds.
    #[must_use]
    pub fn good(kind: &'static str) -> Self {
        Self {
            kind,
            holds: true,
            reason: kind,
            message: String::new(),
        }
    }

    /// One that does not.
    #[must_use]
    pub fn bad(kind: &'static str, why: &RefusedCondition) -> Self {
        Self {
            kind,
            holds: false,
            reason: why.reason.word(),
            message: why.said.clone(),
        }
    }

    /// One that holds unless something speaks against it.
    #[must_use]
    pub fn unless(kind: &'static str, why: Option<&RefusedCondition>) -> Self {
        why.map_or_else(|| Self::good(kind), |why| Self::bad(kind, why))
    }
}
