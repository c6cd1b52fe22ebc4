//! Names of resources and hosts. Each name is checked once, when it is made: a `Port` is never 0, and a `Hostname` is
//! always lower case. A namespace cannot be passed for a trust domain.

mod cluster;
mod hosts;
mod identity;
mod labels;

use std::fmt;
use std::sync::Arc;

pub use cluster::{is_mesh_name, is_service_name, pod_of_service};
pub use hosts::{Candidate, Hosts};
pub use identity::{Identity, IdentityError};
pub use labels::Labels;

macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_name!(
    /// A Kubernetes namespace: an RFC 1123 label.
    Namespace
);
text_name!(
    /// A DNS name in lower case without a final dot; the first label may be `*`.
    Hostname
);
text_name!(
    /// A SPIFFE trust domain such as `cluster.local`.
    TrustDomain
);

/// The domain below which Kubernetes names its services.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// Longest name of a Kubernetes object (RFC 1123 subdomain), in bytes.
pub const MAX_NAME_BYTES: usize = 253;
/// Longest DNS label, in bytes.
pub const MAX_LABEL_BYTES: usize = 63;

/// Returns true if `text` can be the name of a Kubernetes object: labels joined by dots, at most 253 bytes together.
/// Unlike DNS, Kubernetes sets no limit for one label.
pub fn is_object_name(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
            && bytes.iter().all(|b| edge(b) || *b == b'-')
    };
    text.len() <= MAX_NAME_BYTES && text.split('.').all(is_part)
}

/// Returns true if `text` is an RFC 1123 label: lower-case letters, digits and inner `-`, at most 63 bytes.
pub fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !bytes.is_empty()
        && bytes.len() <= MAX_LABEL_BYTES
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|b| edge(b) || *b == b'-')
}

/// Returns true if `text` is an RFC 1123 subdomain: labels joined by dots, at most 253 bytes.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_NAME_BYTES && text.split('.').all(is_dns_label)
}

impl Namespace {
    /// Checks and makes one.
    pub fn new(text: &str) -> Option<Self> {
        is_dns_label(text).then(|| Self(text.into()))
    }

    /// The namespace of resources that name none.
    pub fn default_namespace() -> Self {
        Self("default".into())
    }
}

impl Hostname {
    /// A key that sorts before every host name, as the start of a range.
    pub(crate) fn before_all() -> Self {
        Self("".into())
    }

    /// Checks and makes one; upper case is folded, one final dot dropped, underscores allowed inside labels.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let rest = if text == "*" {
            return Some(Self("*".into()));
        } else {
            text.strip_prefix("*.").unwrap_or(&text)
        };
        let label = |l: &str| {
            !l.is_empty()
                && l.len() <= MAX_LABEL_BYTES
                && !l.starts_with('-')
                && !l.ends_with('-')
                && l.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
        };
        (text.len() <= MAX_NAME_BYTES && rest.split('.').all(label)).then(|| Self(text.into()))
    }

    /// Returns true if it is a wildcard (`*` or `*.example.com`).
    pub fn is_wildcard(&self) -> bool {
        self.0.starts_with('*')
    }

    /// Returns true if this name, as a pattern, covers `other`. A pattern `*.a` covers `x.a`, `y.x.a` and `*.x.a`, not
    /// `a`.
    pub fn covers(&self, other: &Hostname) -> bool {
        match self.0.strip_prefix('*') {
            Some("") => true,
            Some(suffix) => other.0.len() > suffix.len() && other.0.ends_with(suffix),
            None => self == other,
        }
    }
}

impl TrustDomain {
    /// Checks and makes one: the characters the SPIFFE ID specification allows, at most 255 bytes.
    pub fn new(text: &str) -> Option<Self> {
        const MAX_TRUST_DOMAIN_BYTES: usize = 255; // SPIFFE-ID section 2.3
        let allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
        (!text.is_empty() && text.len() <= MAX_TRUST_DOMAIN_BYTES && text.bytes().all(allowed))
            .then(|| Self(text.into()))
    }
}

/// A TCP or UDP port, 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(u16);

impl Port {
    /// Checks and makes one.
    pub fn new(number: u16) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! pair_name {
    ($(#[$doc:meta])* $name:ident { $second:ident: $type:ty }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            /// The namespace.
            pub namespace: Namespace,
            #[doc = concat!("The ", stringify!($second), ".")]
            pub $second: $type,
        }

        impl $name {
            /// Joins the two parts.
            pub fn new(namespace: Namespace, $second: impl Into<$type>) -> Self {
                Self { namespace, $second: $second.into() }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.$second)
            }
        }
    };
}

pair_name!(
    /// `namespace/name` of a resource.
    ResourceName { name: Arc<str> }
);
pair_name!(
    /// `namespace/name` of a workload: a Pod, a WorkloadEntry, or an endpoint written inside a ServiceEntry.
    WorkloadKey { name: Arc<str> }
);
pair_name!(
    /// `namespace/hostname` of a service, the name it has on the wire.
    ServiceKey { hostname: Hostname }
);

impl std::str::FromStr for WorkloadKey {
    type Err = String;

    /// Parses `namespace/name`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not NAMESPACE/NAME");
        let (namespace, name) = text.split_once('/').ok_or_else(wrong)?;
        let namespace = Namespace::new(namespace).ok_or_else(wrong)?;
        if name.is_empty() {
            return Err(wrong());
        }
        Ok(Self::new(namespace, name))
    }
}
