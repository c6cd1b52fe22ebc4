//! Answers of a snapshot: which resources a caller may have, under which names.

use std::sync::Arc;
use std::time::Instant;

use tonic::Status;
use voile_proto::discovery::Node;
use voile_proto::type_url;
use voile_xds::server::{Allowance, DEPARTED, Resolution, Resource, Snapshot};
use voile_xds::wire::parse_search;

use crate::departed_workloads::DepartedWorkloads;
use crate::foreign_proxies;
use crate::shards::Shards;
use crate::snapshot::{
    BY_CERTIFICATE, MeshSnapshot, REVOKED, SnapshotCaller, allowance, name_lookup,
};
use crate::ztunnel::NodePolicy;

impl MeshSnapshot {
    /// Returns true if a certificate that proved the caller has been revoked since.
    fn is_revoked(&self, caller: &voile_identity::AuthenticatedCaller) -> bool {
        let mut proof = caller.certificates.iter();
        proof.any(|certificate| self.revoked.includes(*certificate))
    }

    /// Addresses at an address that the caller may see. Owners of that very address come first, then services with a range
    /// around it, the narrowest first. Services that are not exported to the caller do not exist for it.
    fn at_address(&self, caller: &SnapshotCaller, name: &str) -> Resolution {
        // A node's proxy calls for pods of every namespace.
        let all = self.serves_node(caller);
        let is_seen = |resource: &&Arc<Resource>| all || self.sees(caller, &resource.name);
        let mut seen = self.brought(name);
        seen.retain(|resource| is_seen(&resource));
        let mut ranged = Vec::new();
        if let Some(Ok(address)) = name.strip_prefix('/').map(str::parse) {
            for (_, service) in self.ranges.around(address) {
                let found = self.brought(service);
                if found.first().as_ref().is_some_and(is_seen) {
                    ranged.extend(found.iter().filter(is_seen).cloned());
                }
            }
        }
        let answers = |resource: &Arc<Resource>| resource.aliases.iter().any(|a| **a == *name);
        if ranged.is_empty() && !seen.iter().any(answers) {
            return Resolution::Unknown;
        }
        // The caller is told of the first that this is its answer; whoever has the address alone it knows by that.
        if seen.iter().any(answers) {
            ranged.append(&mut seen);
        }
        Resolution::Found(self.told_of(caller, ranged))
    }

    /// The policy or the routes of a service, as the caller's namespace gets them.
    pub(super) fn of_clients(
        &self,
        caller: &SnapshotCaller,
        type_url: &str,
        name: &str,
    ) -> Resolution {
        if let Some(reason) = self.withheld(caller, name) {
            return Resolution::Refused(reason);
        }
        let told = match type_url {
            type_url::SERVICE_ROUTES => {
                let routed = self.routes.get(name);
                routed.and_then(|routed| routed.for_clients_of(Some(caller.namespace())))
            }
            _ => self.policy_of(caller, name),
        };
        match told {
            Some(told) => Resolution::Found(vec![told.clone()]),
            None => Resolution::Unknown,
        }
    }

    fn address(&self, caller: &SnapshotCaller, name: &str) -> Resolution {
        if name.starts_with('/') {
            return self.at_address(caller, name);
        }
        let found = match parse_search(name) {
            Some((named, host)) => {
                // A caller that serves a node asks for pods of every namespace; any other caller asks for itself.
                let asker = match &named {
                    Some(_) if !self.serves_node(caller) => {
                        return Resolution::Refused(
                            "the caller asks for another namespace, and is not a node proxy"
                                .to_owned(),
                        );
                    }
                    Some(_) => named.as_ref(),
                    None => Some(caller.namespace()),
                };
                self.names.find(asker, host).map(|name| &**name)
            }
            None => Some(name),
        };
        let Some(name) = found else {
            return Resolution::Unknown;
        };
        match self.withheld(caller, name) {
            Some(reason) => Resolution::Refused(reason),
            // The name may be an address on another network, which belongs to services that are not exported.
            None => match self.told_of(caller, self.brought(name)) {
                found if found.is_empty() => Resolution::Unknown,
                found => Resolution::Found(found),
            },
        }
    }

    pub(super) fn is_node_proxy(&self, caller: &SnapshotCaller) -> bool {
        matches!(caller, SnapshotCaller::Known(caller) if self.staff.includes(caller))
    }

    pub(super) fn serves_node(&self, caller: &SnapshotCaller) -> bool {
        matches!(caller, SnapshotCaller::Known(caller) if self.staff.serves_node(caller))
    }

    /// Returns true if a node proxy may see a policy. A node's proxy keeps all policies; a pod's proxy keeps those of its
    /// namespace and of the mesh.
    fn concerns(&self, caller: &SnapshotCaller, policy: &NodePolicy) -> bool {
        let SnapshotCaller::Known(caller) = caller else {
            return false;
        };
        let here = || policy.global || policy.namespace == caller.identity.namespace;
        self.staff.serves_node(caller) || (self.staff.includes(caller) && here())
    }

    fn without_tunnels(&self, found: Resolution) -> Resolution {
        let Resolution::Found(mut all) = found else {
            return found;
        };
        for one in &mut all {
            if let Some(plain) = self.plain.get(&one.name) {
                *one = plain.clone();
            }
        }
        Resolution::Found(all)
    }

    /// One of the policies that the caller's workloads obey, or the keys of one. Of others it is told nothing: what a policy
    /// says is for whoever enforces it, and whether there is one is nobody else's business either.
    fn private(
        &self,
        caller: &SnapshotCaller,
        kind: &str,
        name: &str,
        all: &Shards<Arc<Resource>>,
    ) -> Resolution {
        let SnapshotCaller::Known(caller) = caller else {
            return Resolution::Refused(
                "only an authenticated Voile proxy may subscribe to it".to_owned(),
            );
        };
        match all.get(name) {
            Some(found) if self.obeyed.includes(&caller.identity, kind, name) => {
                Resolution::Found(vec![found.clone()])
            }
            Some(_) => {
                Resolution::Refused(format!("it applies to no workload of {}", caller.identity))
            }
            None => Resolution::Unknown,
        }
    }

    fn configuration(&self, caller: &SnapshotCaller, name: &str) -> Resolution {
        let SnapshotCaller::Known(caller) = caller else {
            return Resolution::Refused(
                "only an authenticated Voile proxy may subscribe to it".to_owned(),
            );
        };
        let Some(private) = self.configurations.get(name) else {
            return Resolution::Unknown;
        };
        if caller.identity != private.owner {
            return Resolution::Refused(format!(
                "it belongs to {}, not to {}",
                private.owner, caller.identity
            ));
        }
        match &caller.pod {
            Some(pod) if **pod != *private.pod => Resolution::Refused(format!(
                "the caller's token is bound to pod {pod}, not to {}",
                private.pod
            )),
            _ => Resolution::Found(vec![private.resource.clone()]),
        }
    }
}

impl Snapshot<SnapshotCaller> for MeshSnapshot {
    fn version(&self) -> Arc<str> {
        self.version.clone()
    }

    fn resolve(&self, caller: &SnapshotCaller, type_url: &str, name: &str) -> Resolution {
        match type_url {
            type_url::ADDRESS if self.is_node_proxy(caller) => {
                by_name(self.without_tunnels(self.address(caller, name)), name)
            }
            type_url::ADDRESS => self.address(caller, name),
            type_url::AUTHORIZATION => match self.node_policies.get(name) {
                Some(policy) if self.concerns(caller, policy) => {
                    Resolution::Found(vec![policy.resource.clone()])
                }
                _ => Resolution::Unknown,
            },
            type_url::SERVICE_POLICY | type_url::SERVICE_ROUTES
                if name_lookup::is_question(name) =>
            {
                self.of_meant(caller, type_url, name)
            }
            type_url::SERVICE_POLICY | type_url::SERVICE_ROUTES => {
                self.of_clients(caller, type_url, name)
            }
            type_url::AUTHORIZATION_POLICY => {
                self.private(caller, type_url, name, &self.authorization)
            }
            type_url::REQUEST_AUTHENTICATION => self.private(caller, type_url, name, &self.tokens),
            type_url::KEY_SET => self.private(caller, type_url, name, &self.key_sets),
            type_url::PROXY_CONFIGURATION => self.configuration(caller, name),
            // Lists are public: whom they name, everybody may know.
            type_url::REVOCATION_LISTS if name == type_url::REVOCATIONS => {
                match &self.revocations {
                    Some(lists) => Resolution::Found(vec![lists.clone()]),
                    None => Resolution::Unknown,
                }
            }
            _ => foreign_proxies::resolve(self, caller, type_url, name)
                .unwrap_or(Resolution::Unknown),
        }
    }

    fn everything(&self, caller: &SnapshotCaller, type_url: &str) -> Resolution {
        match type_url {
            type_url::ADDRESS => {
                let all = self.all_addresses.values();
                match self.is_node_proxy(caller) {
                    true => self.without_tunnels(Resolution::Found(all.cloned().collect())),
                    false => {
                        // Nobody need know who stands only behind what is kept from it.
                        let concerns = |one: &&Arc<Resource>| {
                            let kept = |service: &str| self.withheld(caller, service).is_some();
                            !self.stands_behind(&one.name, kept)
                                || self.stands_behind(&one.name, |service| !kept(service))
                        };
                        let all = all.filter(concerns).cloned().collect();
                        Resolution::Found(self.told_of(caller, all))
                    }
                }
            }
            type_url::AUTHORIZATION => {
                let all = self.node_policies.values();
                let all = all.filter(|policy| self.concerns(caller, policy));
                Resolution::Found(all.map(|policy| policy.resource.clone()).collect())
            }
            type_url::SERVICE_POLICY
            | type_url::SERVICE_ROUTES
            | type_url::AUTHORIZATION_POLICY
            | type_url::REQUEST_AUTHENTICATION
            | type_url::KEY_SET
            | type_url::REVOCATION_LISTS
            | type_url::PROXY_CONFIGURATION => {
                Resolution::Refused("resources of this type must be requested by name".to_owned())
            }
            // Others may ask for types we have nothing of (ztunnel: Authorization) and wait for an answer.
            _ => foreign_proxies::envoy::everything(self, caller, type_url)
                .unwrap_or(Resolution::Found(Vec::new())),
        }
    }

    fn is_told_at_once(&self, caller: &SnapshotCaller, type_url: &str) -> bool {
        type_url == type_url::ADDRESS && self.is_node_proxy(caller)
    }

    fn besides(&self, caller: &SnapshotCaller, type_url: &str) -> Option<Vec<Arc<Resource>>> {
        let SnapshotCaller::Known(known) = caller else {
            return None;
        };
        if type_url != type_url::ADDRESS || !self.staff.includes(known) {
            return None;
        }
        let served = self.staff.served_by(known);
        let found = served.filter_map(|uid| self.all_addresses.get(uid).cloned());
        match self.without_tunnels(Resolution::Found(found.collect())) {
            Resolution::Found(all) => Some(all),
            Resolution::Unknown | Resolution::Lacking(_) | Resolution::Refused(_) => None,
        }
    }

    fn rests_on(
        &self,
        caller: &SnapshotCaller,
        type_url: &str,
        name: &str,
    ) -> Vec<(&'static str, Arc<str>)> {
        foreign_proxies::rests_on(self, caller, type_url, name)
    }

    fn serves(&self, type_url: &str) -> bool {
        allowance::SERVED.contains(&type_url)
    }

    fn account(&self, caller: &SnapshotCaller) -> Arc<str> {
        allowance::account(caller)
    }

    fn allowance(&self, caller: &SnapshotCaller) -> Allowance {
        allowance::of(self, caller)
    }

    fn introduce(&self, caller: &mut SnapshotCaller, node: &Node) {
        foreign_proxies::introduce(self, caller, node);
    }

    fn known_as(&self, caller: &SnapshotCaller) -> Vec<Arc<str>> {
        match caller {
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _) => {
                let by_certificate = !caller.certificates.is_empty();
                let both = by_certificate.then(|| BY_CERTIFICATE.into());
                both.into_iter()
                    .chain([DepartedWorkloads::called(caller)])
                    .collect()
            }
        }
    }

    fn farewell(&self, caller: &SnapshotCaller) -> Option<Instant> {
        match caller {
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _)
                if self.is_revoked(caller) =>
            {
                Some(Instant::now())
            }
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _) => {
                self.departed.farewell(caller)
            }
        }
    }

    fn parting(&self, caller: &SnapshotCaller) -> Status {
        match caller {
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _)
                if self.is_revoked(caller) =>
            {
                Status::unauthenticated(REVOKED)
            }
            SnapshotCaller::Known(_) | SnapshotCaller::Envoy(..) => {
                Status::permission_denied(DEPARTED)
            }
        }
    }
}

/// Adds the answer once more under the requested name: a ztunnel that asks on demand waits for that name and ignores aliases.
fn by_name(found: Resolution, name: &str) -> Resolution {
    let Resolution::Found(mut all) = found else {
        return found;
    };
    let is_alias = |one: &&Arc<Resource>| one.aliases.iter().any(|alias| **alias == *name);
    let answer = all.iter().find(is_alias).cloned();
    all.extend(answer.map(|one| {
        Arc::new(Resource {
            name: name.into(),
            aliases: Vec::new(),
            ..Resource::clone(&one)
        })
    }));
    Resolution::Found(all)
}
