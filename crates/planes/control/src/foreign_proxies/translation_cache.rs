//! Cache of the resources made for strangers from one snapshot, so that the second request gets the answer of the first, and the
//! limits of the translation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sha2::{Digest, Sha256};
use voile_proto::envoy;
use voile_xds::server::Resource;

use super::limits::EnvoyLimits;
use crate::resources::hex;

/// Resources kept of one snapshot: as many as parts of services in a large mesh. Resources beyond that are made for each request.
const MAX_MADE: usize = 50_000;

/// A type, and what of that.
type Key = (&'static str, String);

/// See the module. A copy of a snapshot is about to become another one: it begins without.
#[derive(Debug, Default)]
pub(crate) struct TranslationCache {
    resources: Mutex<HashMap<Key, Result<Arc<Resource>, String>>>,
    /// Limits of the translation for gRPC.
    pub(crate) limits: EnvoyLimits,
}

impl Clone for TranslationCache {
    fn clone(&self) -> Self {
        Self {
            resources: Mutex::default(),
            limits: self.limits.clone(),
        }
    }
}

/// It says nothing that the rest of a snapshot does not.
impl PartialEq for TranslationCache {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TranslationCache {}

impl TranslationCache {
    /// Returns the resource made from this, or makes it now under this name.
    pub(crate) fn once(
        &self,
        kind: &'static str,
        of: &str,
        name: &str,
        make: impl FnOnce() -> Result<Value, String>,
    ) -> Result<Arc<Resource>, String> {
        let key = (kind, of.to_owned());
        let found = |made: &HashMap<Key, _>| made.get(&key).cloned();
        if let Some(made) = found(
            &self
                .resources
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        ) {
            return made;
        }
        // Two may make it at once; both make the same.
        let made = make().and_then(|message| resource(name, &message));
        let mut resources = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Failures are not kept: a caller can invent names without end.
        if made.is_ok() && resources.len() < MAX_MADE {
            resources.insert(key, made.clone());
        }
        made
    }
}

/// A message as a resource. Its version is its text's: maps have no order on the wire.
pub(crate) fn resource(name: &str, message: &Value) -> Result<Arc<Resource>, String> {
    resource_like(name, message, None)
}

/// The same; the old one where it says the same.
pub(crate) fn resource_like(
    name: &str,
    message: &Value,
    old: Option<&Arc<Resource>>,
) -> Result<Arc<Resource>, String> {
    let mut hash = Sha256::new();
    hash.update(message.to_string());
    let version = hex(&hash.finalize());
    if let Some(old) = old.filter(|old| *old.version == *version) {
        return Ok(old.clone());
    }
    let encoded = envoy::encode(message).map_err(|error| error.to_string())?;
    Ok(Arc::new(Resource {
        name: name.into(),
        aliases: Vec::new(),
        version: version.into(),
        body: encoded.value.into(),
    }))
}
