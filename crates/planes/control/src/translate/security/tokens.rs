//! RequestAuthentications and the keys that they need: each policy once, and each key set once, under a hash of what it
//! says, whoever obeys them. A configuration names both, so that a proxy obeys rules only beside the keys that were known
//! when they were told.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use prost::Message;
use sha2::{Digest, Sha256};
use voile_model::mesh::{KeySource, Mesh, RequestAuthentication, TokenRule, Workload};
use voile_proto::proxy as wire;
use voile_xds::wire::{PolicyReference, ProxyConfiguration, encode_tokens};

use crate::keys::{Origin, Texts, key_set};
use crate::resources::resource;
use crate::shards::Shards;
use crate::snapshot::{KeySets, MeshSnapshot};
use crate::translate::builder::{SnapshotBuilder, put_resource};

/// Bytes of the hash in a key set's name: nobody finds two sets that share 128 bits.
const NAME_BYTES: usize = 16;

impl SnapshotBuilder<'_> {
    /// All policies and keys.
    pub(in crate::translate) fn tokens(&mut self, keys: &Texts) {
        self.snapshot.tokens = Shards::default();
        self.snapshot.key_sets = Shards::default();
        let mut problems = Vec::new();
        let mut keys_of = KeySets::new();
        for policy in &self.mesh.request_authentications {
            let mut hashes: HashMap<&KeySource, Arc<str>> = HashMap::new();
            let mut used = BTreeSet::new();
            let mut names_of_rules = Vec::with_capacity(policy.rules.len());
            for rule in &policy.rules {
                let text = text(policy, rule, keys, &mut problems);
                let name = text.map(|text| {
                    let name = match &rule.keys {
                        // One text in many rules is hashed once.
                        KeySource::Discovery => hash(&text),
                        source => hashes.entry(source).or_insert_with(|| hash(&text)).clone(),
                    };
                    self.key_set(&name, &text);
                    used.insert(name.clone());
                    name
                });
                names_of_rules.push(name);
            }
            let name: Arc<str> = policy.name.to_string().into();
            let message = encode_tokens(policy, &names_of_rules);
            let made = resource(name.clone(), Vec::new(), message.encode_to_vec());
            let made = self.kept(|snapshot| &snapshot.tokens, made);
            put_resource(&mut self.snapshot.tokens, made);
            keys_of.insert(name, used);
        }
        self.snapshot.keys_of = Arc::new(keys_of);
        self.snapshot.token_problems = problems.into();
    }

    fn key_set(&mut self, name: &Arc<str>, text: &str) {
        if self.snapshot.key_sets.get(name).is_some() {
            return;
        }
        let body = wire::KeySet {
            jwks: text.to_owned(),
        };
        let made = resource(name.clone(), Vec::new(), body.encode_to_vec());
        let made = self.kept(|snapshot| &snapshot.key_sets, made);
        put_resource(&mut self.snapshot.key_sets, made);
    }
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
pub(in crate::translate) fn refer(
    mesh: &Mesh,
    workload: &Workload,
    snapshot: &MeshSnapshot,
    body: &mut ProxyConfiguration,
) {
    let waypoint = body.waypoint.iter();
    let waypoint = waypoint.flat_map(|waypoint| &waypoint.destinations);
    // A waypoint's destinations each name their own policies.
    let own = match workload.waypoint {
        true => Vec::new(),
        false => mesh.request_authentication_for(workload),
    };
    let own = own.into_iter().map(|policy| reference(policy, snapshot));
    let own: Vec<_> = own.collect();
    let all = waypoint.flat_map(|one| &one.request_authentications);
    let used: BTreeSet<&Arc<str>> = all
        .chain(&own)
        .filter_map(|policy| snapshot.keys_of.get(&policy.name))
        .flatten()
        .collect();
    body.key_sets = used.into_iter().cloned().collect();
    body.request_authentications = own;
}

/// A policy in the version that is in force beside a configuration.
pub(in crate::translate) fn reference(
    policy: &RequestAuthentication,
    snapshot: &MeshSnapshot,
) -> PolicyReference {
    let name: Arc<str> = policy.name.to_string().into();
    let resource = snapshot.tokens.get(&name);
    PolicyReference {
        version: resource.map_or_else(|| "".into(), |resource| resource.version.clone()),
        name,
    }
}
