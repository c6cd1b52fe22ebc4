//! Why a proxy has what it has: the documents, by file and line, that a resource was made of.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::Serialize;
use voile_model::mesh::{Mesh, MeshService, PeerAuthentication, Routing, Workload};
use voile_model::{Namespace, ResourceName, Source, WorkloadKey};
use voile_policy::selecting;
use voile_proto::type_url;
use voile_xds::server::SentResource;
use voile_xds::wire::parse_service_key;

use crate::ztunnel;

/// A document, and where it is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Document {
    kind: &'static str,
    name: String,
    file: String,
    line: u32,
}

/// A resource that a proxy holds.
#[derive(Debug, Serialize)]
pub(crate) struct ExplainedResource {
    #[serde(rename = "type")]
    kind: String,
    name: String,
    version: String,
    /// Documents that the resource was made of; none if no document declares it (fetched keys, lists of revoked
    /// certificates).
    documents: BTreeSet<Document>,
}

/// The mesh by the names that resources have.
pub(crate) struct ResourceIndex<'a> {
    mesh: &'a Mesh,
    by_uid: HashMap<&'a str, &'a Workload>,
}

impl<'a> ResourceIndex<'a> {
    pub(crate) fn new(mesh: &'a Mesh) -> Self {
        let by_uid = mesh.workloads.values().map(|one| (&*one.uid, &**one));
        Self {
            mesh,
            by_uid: by_uid.collect(),
        }
    }

    pub(crate) fn explain(&self, held: SentResource) -> ExplainedResource {
        ExplainedResource {
            documents: self.documents(&held.type_url, &held.name),
            kind: held.type_url.to_string(),
            name: held.name.to_string(),
            version: held.version.to_string(),
        }
    }

    fn documents(&self, kind: &str, name: &str) -> BTreeSet<Document> {
        let mut found = BTreeSet::new();
        match kind {
            type_url::ADDRESS => self.address(name, &mut found),
            type_url::SERVICE_POLICY => self.service_policy(name, &mut found),
            type_url::SERVICE_ROUTES => self.routes(name, &mut found),
            type_url::PROXY_CONFIGURATION => self.configuration(name, &mut found),
            type_url::AUTHORIZATION_POLICY => self.authorization(name, &mut found),
            type_url::AUTHORIZATION => {
                self.authorization(name, &mut found);
                let peers = self.mesh.peer_authentications.iter();
                for policy in peers.filter(|policy| ztunnel::is_made_of(self.mesh, name, policy)) {
                    found.insert(peer(policy));
                }
            }
            type_url::REQUEST_AUTHENTICATION => {
                let all = self.mesh.request_authentications.iter();
                for one in all.filter(|one| one.name.to_string() == *name) {
                    found.insert(document("RequestAuthentication", &one.name, &one.source));
                }
            }
            _ => {}
        }
        found
    }

    fn service(&self, name: &str) -> Option<&'a Arc<MeshService>> {
        self.mesh.services.get(&parse_service_key(name)?)
    }

    fn address(&self, name: &str, found: &mut BTreeSet<Document>) {
        if let Some(workload) = self.by_uid.get(name) {
            found.insert(of_workload(workload));
            if workload.ambient {
                self.peers(workload, found);
                for policy in self.mesh.authorization_for(workload) {
                    found.insert(document(
                        "AuthorizationPolicy",
                        &policy.name,
                        &policy.source,
                    ));
                }
            }
        }
        if let Some(service) = self.service(name) {
            found.insert(of_service(service));
        }
    }

    fn routes(&self, name: &str, found: &mut BTreeSet<Document>) {
        let Some(service) = self.service(name) else {
            return;
        };
        found.insert(of_service(service));
        for one in Routing::new(self.mesh).of(service) {
            found.insert(document("VirtualService", &one.name, &one.source));
        }
    }

    fn service_policy(&self, name: &str, found: &mut BTreeSet<Document>) {
        if let Some(workload) = self.by_uid.get(name) {
            found.insert(of_workload(workload));
            self.peers(workload, found);
        }
        if let Some(service) = self.service(name) {
            found.insert(of_service(service));
            for rule in self.mesh.destination_rules_of(service) {
                found.insert(document("DestinationRule", &rule.name, &rule.source));
                for (name, source) in &rule.merged {
                    found.insert(document("DestinationRule", name, source));
                }
            }
            for member in self.mesh.workloads_of(service) {
                self.peers(&member.workload, found);
            }
        }
    }

    fn configuration(&self, name: &str, found: &mut BTreeSet<Document>) {
        let Some(workload) = name
            .parse::<WorkloadKey>()
            .ok()
            .and_then(|key| self.mesh.workloads.get(&key))
        else {
            return;
        };
        found.insert(of_workload(workload));
        self.peers(workload, found);
        if let Some(sidecar) = self.mesh.sidecar_for(workload) {
            found.insert(document("Sidecar", &sidecar.name, &sidecar.source));
        }
        for policy in self.mesh.authorization_for(workload) {
            found.insert(document(
                "AuthorizationPolicy",
                &policy.name,
                &policy.source,
            ));
        }
        for (service, _) in self
            .mesh
            .services_of(workload)
            .into_iter()
            .map(|member| (member.service, member.ports))
        {
            found.insert(of_service(&service));
        }
    }

    fn authorization(&self, name: &str, found: &mut BTreeSet<Document>) {
        let Some((namespace, name)) = name.split_once('/') else {
            return;
        };
        let Some(namespace) = Namespace::new(namespace) else {
            return;
        };
        let name = ResourceName::new(namespace, name);
        if let Some(policy) = self.mesh.authorization_policies.get(&name) {
            found.insert(document(
                "AuthorizationPolicy",
                &policy.name,
                &policy.source,
            ));
        }
    }

    /// The PeerAuthentications that may have a say at a workload.
    fn peers(&self, workload: &Workload, found: &mut BTreeSet<Document>) {
        let namespace = &workload.key.namespace;
        found.extend(selecting(self.mesh, namespace, &workload.labels).map(|one| peer(one)));
        let wide = self.mesh.peer_authentications.iter().filter(|policy| {
            let place = &policy.name.namespace;
            let here = place == namespace || *place == self.mesh.config.root_namespace;
            here && policy.selector.is_none()
        });
        found.extend(wide.map(|one| peer(one)));
    }
}

fn document(kind: &'static str, name: &impl ToString, source: &Source) -> Document {
    Document {
        kind,
        name: name.to_string(),
        file: source.file.to_string(),
        line: source.line,
    }
}

fn of_workload(workload: &Workload) -> Document {
    document("workload", &workload.key, &workload.source)
}

fn of_service(service: &MeshService) -> Document {
    document("service", &service.key, &service.source)
}

fn peer(policy: &PeerAuthentication) -> Document {
    document("PeerAuthentication", &policy.name, &policy.source)
}
