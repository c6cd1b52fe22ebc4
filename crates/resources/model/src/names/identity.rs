//! SPIFFE identities of workloads, in the one form Istio uses: `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Namespace, TrustDomain, is_dns_subdomain};

/// Identity of a workload. The field order gives the sort order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The trust domain.
    pub trust_domain: TrustDomain,
    /// The namespace.
    pub namespace: Namespace,
    /// The service account.
    pub service_account: Arc<str>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "spiffe://{}/ns/{}/sa/{}",
            self.trust_domain, self.namespace, self.service_account
        )
    }
}

/// Why a text is no workload identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityError(String);

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT",
            self.0
        )
    }
}

impl std::error::Error for IdentityError {}

impl FromStr for Identity {
    type Err = IdentityError;

    /// Strict: no escapes, no query, no extra path segments (SPIFFE-ID section 2).
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let parse = || {
            let rest = text.strip_prefix("spiffe://")?;
            let mut parts = rest.split('/');
            let trust_domain = TrustDomain::new(parts.next()?)?;
            (parts.next()? == "ns").then_some(())?;
            let namespace = Namespace::new(parts.next()?)?;
            (parts.next()? == "sa").then_some(())?;
            let service_account = parts.next()?;
            (is_dns_subdomain(service_account) && parts.next().is_none()).then_some(())?;
            Some(Self {
                trust_domain,
                namespace,
                service_account: service_account.into(),
            })
        };
        // A wire identity may be megabytes of hostile text: keep only what a person can read.
        parse().ok_or_else(|| IdentityError(text.chars().take(100).collect()))
    }
}
