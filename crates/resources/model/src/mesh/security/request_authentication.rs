//! Istio's RequestAuthentication, checked: trusted issuers of a workload, places of tokens in requests, and headers for
//! the application. `voile-policy` parses the keys.

use std::sync::Arc;
use std::time::Duration;

use crate::mesh::authorization::PolicyTarget;
use crate::mesh::{Mesh, Workload};
use crate::names::{Labels, Namespace, ResourceName};
use crate::source::Source;

/// One resource. All that hold for a workload count together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestAuthentication {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// The workloads or resources that it applies to.
    pub target: PolicyTarget,
    /// `jwtRules`, as written.
    pub rules: Vec<TokenRule>,
}

/// One of `jwtRules`: an issuer whose tokens are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRule {
    /// File and line of its definition.
    pub source: Source,
    /// `iss` must be this; empty means any issuer.
    pub issuer: Arc<str>,
    /// `aud` must hold one of these; any when there are none.
    pub audiences: Vec<Arc<str>>,
    /// Source of the issuer's keys.
    pub keys: KeySource,
    /// Headers that carry a token. With no place named in these three, `Authorization: Bearer` and the parameter
    /// `access_token` do.
    pub from_headers: Vec<HeaderPlace>,
    /// Parameters of the query that carry a token.
    pub from_params: Vec<Arc<str>>,
    /// Cookies that carry a token.
    pub from_cookies: Vec<Arc<str>>,
    /// True if the application gets the token itself.
    pub forward_original: bool,
    /// A header in which the application gets the token's payload, in lower case.
    pub output_payload_to_header: Option<Arc<str>>,
    /// Headers in which the application gets single claims.
    pub output_claims: Vec<ClaimOutput>,
    /// Claims that are lists written with blanks, besides `scope` and `permission`.
    pub space_delimited_claims: Vec<Arc<str>>,
    /// Time limit of one request for keys.
    pub timeout: Duration,
    /// `presence: REQUIRED`: a request without a valid token for this rule is refused.
    pub required: bool,
}

/// Source of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeySource {
    /// Here: a JSON Web Key Set as written (`jwks`).
    Inline(Arc<str>),
    /// To be fetched from here (`jwksUri`).
    Uri(Arc<str>),
    /// From the issuer's OpenID configuration.
    Discovery,
}

/// A header that carries a token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderPlace {
    /// Its name in lower case.
    pub name: Arc<str>,
    /// Text before the token; a line without it carries none.
    pub prefix: Arc<str>,
}

/// A claim that the application gets in a header.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimOutput {
    /// The header in lower case.
    pub header: Arc<str>,
    /// The claim; dots lead into objects.
    pub claim: Arc<str>,
}

/// The key set that stands for keys which cannot be read: it verifies no token.
pub const UNREADABLE_KEYS: &str = r#"{"keys":[],"unreadable":true}"#;

impl TokenRule {
    /// Replacement for rules that cannot be parsed: no token in the default places is accepted, from any issuer.
    pub(crate) fn unreadable(source: Source) -> Self {
        Self {
            source,
            issuer: "".into(),
            audiences: Vec::new(),
            keys: KeySource::Inline(UNREADABLE_KEYS.into()),
            from_headers: Vec::new(),
            from_params: Vec::new(),
            from_cookies: Vec::new(),
            forward_original: false,
            output_payload_to_header: None,
            output_claims: Vec::new(),
            space_delimited_claims: Vec::new(),
            timeout: Duration::ZERO,
            required: false,
        }
    }

    /// Header with a token if the rule names no place.
    pub const DEFAULT_HEADER: (&'static str, &'static str) = ("authorization", "Bearer ");
    /// The parameter that may carry a token when the rule names no place.
    pub const DEFAULT_PARAM: &'static str = "access_token";

    /// Returns true if it names no place, so that the default ones apply.
    #[must_use]
    pub fn in_default_places(&self) -> bool {
        self.from_headers.is_empty() && self.from_params.is_empty() && self.from_cookies.is_empty()
    }
}

impl RequestAuthentication {
    /// Returns true if it applies to a workload with these labels.
    #[must_use]
    pub fn selects(&self, root: &Namespace, namespace: &Namespace, labels: &Labels) -> bool {
        let own = self.name.namespace == *namespace;
        (own || self.name.namespace == *root) && self.target.means(own, labels)
    }
}

impl Mesh {
    /// The RequestAuthentications that hold for a workload, all of which count: its own namespace's, then the root
    /// namespace's, each oldest first. Of a waypoint without those that target it (`request_authentication_at`).
    #[must_use]
    pub fn request_authentication_for(
        &self,
        workload: &Workload,
    ) -> Vec<&Arc<RequestAuthentication>> {
        let mut found =
            self.request_authentication_for_labels(&workload.key.namespace, &workload.labels);
        found.retain(|one| !workload.waypoint || !one.target.is_by_reference());
        found
    }

    /// As `request_authentication_for`, for a workload that is not yet running.
    #[must_use]
    pub fn request_authentication_for_labels(
        &self,
        namespace: &Namespace,
        labels: &Labels,
    ) -> Vec<&Arc<RequestAuthentication>> {
        let root = &self.config.root_namespace;
        let selecting = |one: &&Arc<RequestAuthentication>| one.selects(root, namespace, labels);
        let mut found: Vec<_> = self
            .request_authentications
            .iter()
            .filter(selecting)
            .collect();
        found.sort_by_key(|one| one.name.namespace != *namespace);
        found
    }
}

/// The rules of all these resources in the order in which tokens are tried: by issuer, and in the order given among
/// rules of one issuer.
#[must_use]
pub fn token_rules<'a>(
    resources: impl IntoIterator<Item = &'a Arc<RequestAuthentication>>,
) -> Vec<(&'a RequestAuthentication, &'a TokenRule)> {
    let rules = resources
        .into_iter()
        .flat_map(|one| one.rules.iter().map(|rule| (&**one, rule)));
    let mut rules: Vec<_> = rules.collect();
    rules.sort_by(|a, b| a.1.issuer.cmp(&b.1.issuer));
    rules
}
