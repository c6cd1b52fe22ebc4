//! RequestAuthentications and the keys that they need: each policy once, and each key set once, under a hash of what it
//! says, whoever obeys them. A configuration names both, so that a proxy obeys rules only beside the keys that were known
//! when they were told.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use prost::Message;
use sha2::{Digest, Sha256};
use voile_model::mesh::{KeySource, Mesh, RequestAuthentication, TokenRule, Workload};
use voile_proto::proxy as wire;
use voile_xds::wire::encode_tokens;

use super::Kept;
use crate::keys::{Origin, Texts, key_set};
use crate::snapshot::{MeshSnapshot, resource};

/// Bytes of the hash in a key set's name: nobody finds two sets that share 128 bits.
const NAME_BYTES: usize = 16;

/// The key sets that each policy names.
pub(super) type KeySets = HashMap<Arc<str>, BTreeSet<Arc<str>>>;

/// Puts policies and keys into the snapshot.
pub(super) fn tokens(
    mesh: &Mesh,
    keys: &Texts,
    previous: Option<&MeshSnapshot>,
    snapshot: &mut MeshSnapshot,
    problems: &mut Vec<String>,
) -> KeySets {
    let kept = Kept::of(previous, |p| &p.tokens);
    let kept_keys = Kept::of(previous, |p| &p.key_sets);
    let mut named = KeySets::new();
    for policy in &mesh.request_authentications {
        let mut names: HashMap<&KeySource, Arc<str>> = HashMap::new();
        let mut used = BTreeSet::new();
        let mut names_of_rules = Vec::with_capacity(policy.rules.len());
        for rule in &policy.rules {
            let text = text(policy, rule, keys, problems);
            let name = text.map(|text| {
                let name = match &rule.keys {
                    // One text in many rules is hashed once.
                    KeySource::Discovery => hash(&text),
                    source => names.entry(source).or_insert_with(|| hash(&text)).clone(),
                };
                snapshot.key_sets.entry(name.clone()).or_insert_with(|| {
                    let body = wire::KeySet {
                        jwks: text.to_string(),
                    };
                    let body = body.encode_to_vec();
                    kept_keys.or_new(resource(name.clone(), Vec::new(), body))
                });
                used.insert(name.clone());
                name
            });
            names_of_rules.push(name);
        }
        let name: Arc<str> = policy.name.to_string().into();
        let message = encode_tokens(policy, &names_of_rules);
        let made = resource(name.clone(), Vec::new(), message.encode_to_vec());
        snapshot.tokens.insert(name.clone(), kept.or_new(made));
        named.insert(name, used);
    }
    named
}

/// The keys of a rule, if they are known.
fn text(
    policy: &RequestAuthentication,
    rule: &TokenRule,
    keys: &Texts,
    problems: &mut Vec<String>,
) -> Option<Arc<str>> {
    match (&rule.keys, Origin::of(rule)) {
        (KeySource::Inline(text), _) => match key_set(text) {
            Ok(text) => Some(text),
            Err(why) => {
                problems.push(format!(
                    "{}: the `jwks` of the issuer `{}` in RequestAuthentication {} cannot be used: {why}; its tokens are refused",
                    rule.source, rule.issuer, policy.name
                ));
                None
            }
        },
        (_, Some(origin)) => keys.get(&origin).cloned(),
        (_, None) => None,
    }
}

fn hash(text: &str) -> Arc<str> {
    let digest = Sha256::digest(text.as_bytes());
    let digits: String = digest
        .iter()
        .take(NAME_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    digits.into()
}

/// Names in a workload's configuration what holds for it.
pub(super) fn refer(
    mesh: &Mesh,
    workload: &Workload,
    snapshot: &MeshSnapshot,
    key_sets: &KeySets,
    body: &mut wire::ProxyConfiguration,
) {
    let mut used: BTreeSet<&Arc<str>> = BTreeSet::new();
    for policy in mesh.request_authentication_for(workload) {
        let name = policy.name.to_string();
        used.extend(key_sets.get(name.as_str()).into_iter().flatten());
        let resource = snapshot.tokens.get(name.as_str());
        body.request_authentications.push(wire::PolicyReference {
            version: resource.map_or_else(String::new, |resource| resource.version.to_string()),
            name,
        });
    }
    body.key_sets = used.into_iter().map(ToString::to_string).collect();
}
