//! Parts of a service's policy that hold for clients with our labels.

use std::sync::Arc;

use voile_model::Labels;
use voile_proto::type_url;
use voile_xds::wire::ServicePolicy;

use crate::registry::{Registry, Versioned};

impl Registry {
    /// Stores a policy.
    pub(in crate::registry) fn add_policy(
        &mut self,
        name: &Arc<str>,
        version: Arc<str>,
        body: &[u8],
    ) -> Result<(), String> {
        let value = ServicePolicy::decode(body).map_err(|error| error.to_string())?;
        self.policies_told.remove(name);
        if value.for_clients.is_empty() {
            self.obey_policy(name, version, value);
        } else {
            let told = Versioned { version, value };
            self.choose_policy(name, &told);
            self.policies_told.insert(name.clone(), told);
        }
        Ok(())
    }

    /// Chooses anew: we have other labels.
    pub(in crate::registry) fn choose_policies(&mut self) {
        let all = std::mem::take(&mut self.policies_told);
        let each = all.iter();
        each.for_each(|(name, told)| self.choose_policy(name, told));
        self.policies_told = all;
    }

    fn choose_policy(&mut self, name: &Arc<str>, told: &Versioned<ServicePolicy>) {
        let own = self.configuration.as_ref().map(|held| &held.value.labels);
        let chosen = told.value.for_client(own.unwrap_or(&Labels::NONE));
        let value = ServicePolicy {
            for_clients: Vec::new(),
            ..chosen.clone()
        };
        self.obey_policy(name, told.version.clone(), value);
    }

    fn obey_policy(&mut self, name: &Arc<str>, version: Arc<str>, mut value: ServicePolicy) {
        self.keep_parts(name, &mut value);
        self.look_for_zones(name, &value);
        self.policies
            .insert(name.clone(), Versioned { version, value });
    }

    /// Returns true if a service has a subset of this name for clients with other labels than ours.
    pub(in crate::registry) fn others_have(&self, service: &str, subset: &str) -> bool {
        let told = self.policies_told.get(service);
        told.is_some_and(|held| held.value.has_subset(subset))
    }

    /// There is no policy of this name any more.
    pub(in crate::registry) fn remove_policy(&mut self, name: &Arc<str>) {
        self.policies.remove(name);
        self.policies_told.remove(name);
        self.zoned.remove(name);
    }

    /// Forgets a policy without a subscription.
    pub(crate) fn forget_policy(&mut self, name: &Arc<str>) {
        self.remove_policy(name);
        self.forget_lacking(type_url::SERVICE_POLICY, name);
        self.absent
            .remove(&(type_url::SERVICE_POLICY, name.clone()));
    }
}
