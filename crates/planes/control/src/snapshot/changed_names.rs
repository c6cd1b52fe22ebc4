//! Differences between two snapshots by the names that streams asked for, so that only the streams
//! concerned look again.

use std::sync::Arc;

use voile_proto::type_url;
use voile_xds::server::{CALLER, ChangedNames, Resource};
use voile_xds::wire::CLUSTER;

use super::{BY_CERTIFICATE, ByNamespace, MeshSnapshot};
use crate::effective_policies::Names as Obeys;
use crate::foreign_proxies::envoy::TYPES;
use crate::shards::Shards;
use crate::ztunnel::NodePolicy;

impl MeshSnapshot {
    /// Names that changed since `old`. The cost follows the size of the change if one snapshot was
    /// made from the other.
    pub(crate) fn touched_since(&self, old: &Self) -> ChangedNames {
        let mut touched = ChangedNames::default();
        self.addresses_since(old, &mut touched);
        for name in self.policies.differences(&old.policies, Arc::ptr_eq) {
            touched.touch(type_url::SERVICE_POLICY, name);
        }
        let same = |one: &ByNamespace, other: &ByNamespace| one == other;
        for name in self.policies_apart.differences(&old.policies_apart, same) {
            touched.touch(type_url::SERVICE_POLICY, name);
        }
        for name in self.routes.differences(&old.routes, same) {
            touched.touch(type_url::SERVICE_ROUTES, name);
        }
        for name in self
            .authorization
            .differences(&old.authorization, Arc::ptr_eq)
        {
            touched.touch(type_url::AUTHORIZATION_POLICY, name);
        }
        for (kind, names) in self.obeyed_since(old) {
            names.into_iter().for_each(|name| touched.touch(kind, name));
        }
        for name in self.tokens.differences(&old.tokens, Arc::ptr_eq) {
            touched.touch(type_url::REQUEST_AUTHENTICATION, name);
        }
        for name in self.key_sets.differences(&old.key_sets, Arc::ptr_eq) {
            touched.touch(type_url::KEY_SET, name);
        }
        if self.revocations != old.revocations {
            touched.touch(type_url::REVOCATION_LISTS, type_url::REVOCATIONS.into());
            touched.touch(CALLER, BY_CERTIFICATE.into());
        }
        let same =
            |one: &super::OwnedConfiguration, other: &super::OwnedConfiguration| one == other;
        for name in self.configurations.differences(&old.configurations, same) {
            touched.touch(type_url::PROXY_CONFIGURATION, name);
        }
        let same = |one: &NodePolicy, other: &NodePolicy| one == other;
        for name in self.node_policies.differences(&old.node_policies, same) {
            touched.touch(type_url::AUTHORIZATION, name);
        }
        // A caller that becomes or ceases to be a node proxy gets different Addresses for all
        // services.
        if self.staff != old.staff {
            touched.touch_type(type_url::ADDRESS);
            touched.touch_type(type_url::AUTHORIZATION);
        }
        if self.departed != old.departed {
            for caller in self.departed.differences(&old.departed) {
                touched.touch(CALLER, caller);
            }
        }
        // One translation makes all types for an Envoy.
        if self.envoys.are_there() && !touched.is_empty() {
            TYPES.into_iter().for_each(|kind| touched.touch_type(kind));
        }
        touched
    }

    /// Policies that an identity began or ceased to obey: those streams get a different answer, since
    /// a caller sees only policies it obeys.
    fn obeyed_since(&self, old: &Self) -> Obeys {
        match Arc::ptr_eq(&self.obeyed, &old.obeyed) {
            true => Obeys::new(),
            false => self.obeyed.differences(&old.obeyed),
        }
    }

    fn addresses_since(&self, old: &Self, touched: &mut ChangedNames) {
        // Searches and ranges lead elsewhere: who asked for what is not looked for.
        if self.names != old.names || self.ranges != old.ranges {
            touched.touch_type(type_url::ADDRESS);
        }
        // A hidden service is hidden together with its policy and its routes.
        if self.kept_close != old.kept_close || self.providers != old.providers {
            touched.touch_type(type_url::ADDRESS);
            touched.touch_type(type_url::SERVICE_POLICY);
            touched.touch_type(type_url::SERVICE_ROUTES);
        }
        let both = |map: fn(&Self) -> &Shards<Arc<Resource>>, name: &str| {
            [map(self).get(name).cloned(), map(old).get(name).cloned()]
        };
        for name in self
            .all_addresses
            .differences(&old.all_addresses, Arc::ptr_eq)
        {
            for resource in both(|snapshot| &snapshot.all_addresses, &name)
                .into_iter()
                .flatten()
            {
                for alias in &resource.aliases {
                    touched.touch(type_url::ADDRESS, alias.clone());
                }
            }
            if name.starts_with(CLUSTER) {
                for snapshot in [self, old] {
                    let before = snapshot.before.get(&name);
                    for service in before.into_iter().flat_map(|all| all.iter()) {
                        touched.touch(type_url::ADDRESS, service.clone());
                    }
                }
            }
            touched.touch(type_url::ADDRESS, name);
        }
        for service in self
            .behind
            .differences(&old.behind, |one, other| one == other)
        {
            touched.touch(type_url::ADDRESS, service);
        }
    }
}
