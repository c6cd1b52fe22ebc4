//! Visibility by `exportTo`: hides services that are not exported to the caller's namespace, and the workloads' references to
//! them.

use std::sync::Arc;

use prost::Message;
use voile_model::Hostname;
use voile_proto::workload as wire;
use voile_xds::server::Resource;

use super::{MeshSnapshot, SnapshotCaller};
use crate::resources::resource;

impl MeshSnapshot {
    /// Returns true if a service is exported to the caller's namespace.
    pub(super) fn sees(&self, caller: &SnapshotCaller, service: &str) -> bool {
        let Some(visibility) = self.kept_close.get(service) else {
            return true;
        };
        visibility.includes(caller.namespace())
    }

    /// Why the caller may not be told of a service by its own name, if it may not. A node's proxy calls for pods of every
    /// namespace, and is told of all.
    pub(super) fn withheld(&self, caller: &SnapshotCaller, service: &str) -> Option<String> {
        if self.sees(caller, service) || self.is_node_proxy(caller) {
            return None;
        }
        let host = service
            .split_once('/')
            .and_then(|(_, host)| Hostname::new(host));
        if host.is_some_and(|host| self.providers.contains(&host)) {
            return None;
        }
        Some(format!(
            "`exportTo` hides it from namespace {}",
            caller.namespace()
        ))
    }

    /// Of these Addresses, those that the caller may be told of: no service that is not exported to it, and of workloads not which
    /// such services they stand behind. Workloads themselves are not exported: whoever has an address may ask whose it is.
    pub(super) fn told_of(
        &self,
        caller: &SnapshotCaller,
        mut found: Vec<Arc<Resource>>,
    ) -> Vec<Arc<Resource>> {
        if self.kept_close.len() == 0 || self.sees_all(caller) {
            return found;
        }
        found.retain(|one| self.withheld(caller, &one.name).is_none());
        for one in &mut found {
            if self.stands_behind(&one.name, |service| {
                self.withheld(caller, service).is_some()
            }) && let Some(told) = self.without_services(caller, one)
            {
                *one = told;
            }
        }
        found
    }

    /// Returns true if the caller is a node's proxy, which calls for pods of every namespace.
    pub(super) fn sees_all(&self, caller: &SnapshotCaller) -> bool {
        self.serves_node(caller) || self.is_node_proxy(caller)
    }

    /// Returns true if the workload stands behind a service that fulfils this condition.
    pub(super) fn stands_behind(&self, workload: &str, is_so: impl Fn(&str) -> bool) -> bool {
        let services = self.before.get(workload).into_iter();
        services
            .flat_map(|all| all.iter())
            .any(|service| is_so(service))
    }

    /// A workload, without the services that the caller may not be told of.
    pub(super) fn without_services(
        &self,
        caller: &SnapshotCaller,
        made: &Resource,
    ) -> Option<Arc<Resource>> {
        let mut message = wire::Address::decode(&*made.body).ok()?;
        let Some(wire::address::Type::Workload(workload)) = &mut message.r#type else {
            return None;
        };
        let services = &mut workload.services;
        services.retain(|service, _| self.withheld(caller, service).is_none());
        let (name, aliases) = (made.name.clone(), made.aliases.clone());
        Some(Arc::new(resource(name, aliases, message.encode_to_vec())))
    }
}
