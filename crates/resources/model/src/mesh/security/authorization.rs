//! Istio's AuthorizationPolicy, checked: permissions of callers at workloads. Every value is a typed matcher here;
//! `voile-policy` evaluates rules for requests.

pub mod values;

use std::fmt;
use std::sync::Arc;

use crate::mesh::gateway_api::{GATEWAY_NAME, GROUP, label_value};
use crate::mesh::{AddressRange, Mesh, Workload};
use crate::names::{Labels, Namespace, ResourceName};
use crate::source::Source;

/// One policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationPolicy {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// The workloads or resources that it applies to.
    pub target: PolicyTarget,
    /// Action on a matching request.
    pub action: AuthorizationAction,
    /// It is only counted and logged (`istio.io/dry-run`).
    pub dry_run: bool,
    /// One that matches is enough; none never match.
    pub rules: Vec<AuthorizationRule>,
}

/// The target of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyTarget {
    /// Every workload of the namespace; of the mesh, in the root namespace.
    Everything,
    /// The workloads with these labels, of the namespace; of the mesh, in the root namespace.
    Workloads(Labels),
    /// Services and gateways (`targetRefs`): waypoints and gateways of Gateway API obey it, sidecars do not.
    References(Vec<TargetReference>),
}

impl PolicyTarget {
    /// Returns true if it has `targetRefs`.
    pub(super) fn is_by_reference(&self) -> bool {
        matches!(self, Self::References(_))
    }

    /// Returns true if workloads with these labels are meant. References mean the proxies of a Gateway of the policy's own
    /// namespace, as that Gateway's name in their labels says.
    pub(super) fn means(&self, in_own_namespace: bool, labels: &Labels) -> bool {
        match self {
            Self::Everything => true,
            Self::Workloads(selector) => selector.selects(labels),
            Self::References(targets) => {
                in_own_namespace && targets.iter().any(|target| target.is_gateway_of(labels))
            }
        }
    }
}

/// One of `targetRefs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetReference {
    /// API group; empty is the core's.
    pub group: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// File and line of its definition.
    pub source: Source,
}

impl TargetReference {
    /// Returns true if it is the Gateway whose proxies have these labels.
    pub(crate) fn is_gateway_of(&self, labels: &Labels) -> bool {
        let mut gateway = labels.get(GATEWAY_NAME).into_iter();
        (&*self.group, &*self.kind) == (GROUP, "Gateway")
            && gateway.any(|name| label_value(&self.name) == name)
    }
}

/// Action on a matching request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizationAction {
    /// It may pass; if a workload has such policies, what matches none may not.
    Allow,
    /// It may not pass.
    Deny,
    /// It is marked for auditors.
    Audit,
    /// An external service is asked.
    Custom(AuthorizationProvider),
}

impl AuthorizationAction {
    /// Istio's word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::Audit => "AUDIT",
            Self::Custom(_) => "CUSTOM",
        }
    }
}

/// The external service that a CUSTOM policy names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationProvider {
    /// Its name among MeshConfig's `extensionProviders`.
    pub name: Arc<str>,
    /// File and line of its definition.
    pub source: Source,
}

/// A rule: `from` and `to` and `when`. An empty part matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationRule {
    /// File and line of its definition.
    pub source: Source,
    /// One of these.
    pub from: Vec<SourceMatch>,
    /// One of these.
    pub to: Vec<OperationMatch>,
    /// All of these.
    pub when: Vec<WhenCondition>,
}

/// Values of which one must match, and values of which none may. Both empty say nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matches<T> {
    /// One of these, if there are any.
    pub any_of: Vec<T>,
    /// None of these (`not…`).
    pub none_of: Vec<T>,
}

impl<T> Default for Matches<T> {
    fn default() -> Self {
        Self {
            any_of: Vec::new(),
            none_of: Vec::new(),
        }
    }
}

impl<T> Matches<T> {
    /// Returns true if both lists are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.any_of.is_empty() && self.none_of.is_empty()
    }

    /// Both lists.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.any_of.iter().chain(&self.none_of)
    }
}

/// Conditions on the caller. All of them must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceMatch {
    /// `TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT`, of the verified certificate.
    pub principals: Matches<StringMatch>,
    /// `ISSUER/SUBJECT`, of a verified token.
    pub request_principals: Matches<StringMatch>,
    /// Of the verified certificate; `*` stands for any letters, anywhere.
    pub namespaces: Matches<Arc<str>>,
    /// Of the verified certificate.
    pub service_accounts: Matches<ServiceAccountName>,
    /// Of the verified certificate.
    pub trust_domains: Matches<StringMatch>,
    /// The address that connects to us.
    pub ip_blocks: Matches<AddressRange>,
    /// The address of the first client, as trusted proxies tell it.
    pub remote_ip_blocks: Matches<AddressRange>,
}

/// Conditions on the operation. All of them must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OperationMatch {
    /// The authority, in any case.
    pub hosts: Matches<StringMatch>,
    /// The workload's port.
    pub ports: Matches<u16>,
    /// The method.
    pub methods: Matches<StringMatch>,
    /// The normalised path, without its query.
    pub paths: Matches<PathMatch>,
}

impl OperationMatch {
    /// Returns true if a condition can be evaluated for requests only.
    #[must_use]
    pub fn is_http(&self) -> bool {
        !(self.hosts.is_empty() && self.methods.is_empty() && self.paths.is_empty())
    }
}

/// `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceAccountName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for ServiceAccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Istio's matcher of texts: `abc`, `abc*`, `*abc`, `*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StringMatch {
    /// This.
    Exact(Arc<str>),
    /// A text with this prefix.
    Prefix(Arc<str>),
    /// A text with this suffix.
    Suffix(Arc<str>),
    /// Anything but nothing.
    Present,
}

impl StringMatch {
    /// Reads Istio's form. A `*` that is neither first nor last is a letter like any other.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text == "*" {
            Self::Present
        } else if let Some(suffix) = text.strip_prefix('*') {
            Self::Suffix(suffix.into())
        } else if let Some(prefix) = text.strip_suffix('*') {
            Self::Prefix(prefix.into())
        } else {
            Self::Exact(text.into())
        }
    }

    /// The literal part of the pattern; empty for presence.
    #[must_use]
    pub fn literal(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Suffix(text) => text,
            Self::Present => "",
        }
    }
}

impl fmt::Display for StringMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => f.write_str(text),
            Self::Prefix(text) => write!(f, "{text}*"),
            Self::Suffix(text) => write!(f, "*{text}"),
            Self::Present => f.write_str("*"),
        }
    }
}

/// Matches a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMatch {
    /// As text.
    Text(StringMatch),
    /// By segments: `{*}` is one, `{**}` any number.
    Template(Arc<str>),
}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::Template(template) => f.write_str(template),
        }
    }
}

/// A condition of `when`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhenCondition {
    /// `request.headers[NAME]`, the name in lower case.
    Header(Arc<str>, Matches<StringMatch>),
    /// `source.ip`.
    SourceIp(Matches<AddressRange>),
    /// `remote.ip`.
    RemoteIp(Matches<AddressRange>),
    /// `source.namespace`.
    SourceNamespace(Matches<Arc<str>>),
    /// `source.serviceAccount`.
    SourceServiceAccount(Matches<ServiceAccountName>),
    /// `source.principal`.
    SourcePrincipal(Matches<StringMatch>),
    /// `source.trustDomain`.
    SourceTrustDomain(Matches<StringMatch>),
    /// `request.auth.principal`.
    RequestPrincipal(Matches<StringMatch>),
    /// `request.auth.audiences`.
    RequestAudiences(Matches<StringMatch>),
    /// `request.auth.presenter`.
    RequestPresenter(Matches<StringMatch>),
    /// `request.auth.claims[NAME][INNER]…`.
    RequestClaim(Vec<Arc<str>>, Matches<StringMatch>),
    /// `destination.ip`.
    DestinationIp(Matches<AddressRange>),
    /// `destination.port`.
    DestinationPort(Matches<u16>),
    /// `connection.sni`.
    ServerName(Matches<StringMatch>),
}

impl WhenCondition {
    /// Returns true if the condition can be evaluated for requests only.
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(
            self,
            Self::Header(..)
                | Self::RequestPrincipal(_)
                | Self::RequestAudiences(_)
                | Self::RequestPresenter(_)
                | Self::RequestClaim(..)
        )
    }

    /// Returns true if the condition needs a verified certificate.
    #[must_use]
    pub fn wants_identity(&self) -> bool {
        matches!(
            self,
            Self::SourceNamespace(_)
                | Self::SourceServiceAccount(_)
                | Self::SourcePrincipal(_)
                | Self::SourceTrustDomain(_)
        )
    }
}

impl AuthorizationPolicy {
    /// Returns true if the policy applies to a workload with these labels.
    #[must_use]
    pub fn selects(&self, root: &Namespace, namespace: &Namespace, labels: &Labels) -> bool {
        let own = self.name.namespace == *namespace;
        (own || self.name.namespace == *root) && self.target.means(own, labels)
    }
}

impl Mesh {
    /// The policies that hold for a workload: the root namespace's, then its own namespace's, each in order of names. Of a waypoint
    /// without those that target it: they hold for each destination (`authorization_aimed_at`).
    #[must_use]
    pub fn authorization_for(&self, workload: &Workload) -> Vec<&Arc<AuthorizationPolicy>> {
        let mut found = self.authorization_for_labels(&workload.key.namespace, &workload.labels);
        found.retain(|policy| !workload.waypoint || !policy.target.is_by_reference());
        found
    }

    /// As `authorization_for`, for a workload that is not yet running.
    #[must_use]
    pub fn authorization_for_labels(
        &self,
        namespace: &Namespace,
        labels: &Labels,
    ) -> Vec<&Arc<AuthorizationPolicy>> {
        let root = &self.config.root_namespace;
        let own = (namespace != root).then_some(namespace);
        let found = std::iter::once(root).chain(own).flat_map(|namespace| {
            let first = ResourceName::new(namespace.clone(), "");
            self.authorization_policies
                .range(first..)
                .take_while(move |(name, _)| name.namespace == *namespace)
                .map(|(_, policy)| policy)
        });
        found
            .filter(|policy| policy.selects(root, namespace, labels))
            .collect()
    }
}
