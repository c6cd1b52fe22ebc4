//! Key sets of token issuers, as the translation gets them.

use std::sync::Arc;

use voile_model::mesh::{KeySource, RequestAuthentication, TokenRule};

/// Source of token issuers' keys.
pub trait Keys {
    /// A rule's key set (JSON); none where nobody knows it.
    fn of(&self, resource: &RequestAuthentication, rule: &TokenRule) -> Option<Arc<str>>;
}

/// Only those that are written into the resources.
#[derive(Debug, Clone, Copy, Default)]
pub struct WrittenKeys;

impl Keys for WrittenKeys {
    fn of(&self, _: &RequestAuthentication, rule: &TokenRule) -> Option<Arc<str>> {
        match &rule.keys {
            KeySource::Inline(keys) => Some(keys.clone()),
            KeySource::Uri(_) | KeySource::Discovery => None,
        }
    }
}
