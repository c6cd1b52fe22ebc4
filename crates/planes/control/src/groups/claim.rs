//! Claim of a proxy that asks to join the mesh, and the check of the claim. The caller's identity is proven before.
//!
//! A claim grants nothing beyond the identity and the connection. The group must be of the caller's namespace and service
//! account. The address must be the one that the caller connects from, or one that the group allows.

use std::net::IpAddr;
use std::sync::Arc;

use prost_types::value::Kind;
use tonic::Status;
use voile_model::ResourceName;
use voile_model::mesh::WorkloadGroup;
use voile_proto::discovery::Node;
use voile_xds::wire::CLUSTER;

use super::member_address::may_claim;
use crate::snapshot::{MeshSnapshot, SnapshotCaller};

/// Field of a node's metadata that names the group, as Istio's agent writes it.
const GROUP: &str = "AUTO_REGISTER_GROUP";
/// Field with the namespace that the proxy believes to be in.
const NAMESPACE: &str = "NAMESPACE";
/// Field with its addresses, the first one first, for who does not say it in its name.
const ADDRESSES: &str = "INSTANCE_IPS";
/// Longest name of a group that is looked up, in bytes: Kubernetes takes no longer ones.
const MAX_GROUP_BYTES: usize = 253;
/// Longest locality that is kept, in bytes: regions and zones are a few words.
const MAX_LOCALITY_BYTES: usize = 256;

/// Claim of a proxy that asks to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) group: ResourceName,
    /// Proven service account of the caller.
    pub(super) account: Arc<str>,
    pub(super) address: IpAddr,
    /// The address that it connects from.
    pub(super) peer: Option<IpAddr>,
    /// `region/zone/subzone`, empty when not said.
    pub(super) locality: Arc<str>,
}

impl Claim {
    /// None from who says nothing of a group.
    pub(super) fn of(
        caller: &SnapshotCaller,
        peer: Option<IpAddr>,
        node: &Node,
    ) -> Option<Result<Self, Status>> {
        let said = |field: &str| {
            let value = node.metadata.as_ref()?.fields.get(field)?;
            match value.kind.as_ref()? {
                Kind::StringValue(text) if !text.is_empty() => Some(text.as_str()),
                _ => None,
            }
        };
        let group = said(GROUP)?;
        if group.len() > MAX_GROUP_BYTES {
            return Some(Err(Status::invalid_argument(format!(
                "the WorkloadGroup's name has {} bytes; at most {MAX_GROUP_BYTES} are allowed",
                group.len()
            ))));
        }
        let (SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _)) = caller;
        let identity = &caller.identity;
        if let Some(other) = said(NAMESPACE).filter(|said| *said != identity.namespace.as_str()) {
            return Some(Err(Status::permission_denied(format!(
                "WorkloadGroup {other}/{group}: {identity} is in another namespace"
            ))));
        }
        let named = node.id.split('~').nth(1).and_then(|text| text.parse().ok());
        let named = named.filter(|address: &IpAddr| !address.is_unspecified());
        let listed = || said(ADDRESSES)?.split(',').next()?.trim().parse().ok();
        let Some(address) = named.or_else(listed).map(|address| address.to_canonical()) else {
            return Some(Err(Status::invalid_argument(format!(
                "WorkloadGroup {}/{group}: neither the node id `{}` nor {ADDRESSES} has an address",
                identity.namespace, node.id
            ))));
        };
        let locality = node.locality.as_ref().map(|at| {
            let parts = [&at.region, &at.zone, &at.sub_zone];
            let said = parts.into_iter().take_while(|part| !part.is_empty());
            said.map(String::as_str).collect::<Vec<_>>().join("/")
        });
        let locality = locality.filter(|text| text.len() <= MAX_LOCALITY_BYTES);
        Some(Ok(Self {
            group: ResourceName::new(identity.namespace.clone(), group),
            account: identity.service_account.clone(),
            address,
            peer: peer.map(|peer| peer.to_canonical()),
            locality: locality.unwrap_or_default().into(),
        }))
    }

    /// Checks that the group in its current version is for the caller's service account and allows the address.
    pub(super) fn check_group(&self, found: &WorkloadGroup) -> Result<(), Status> {
        let Self { group, account, .. } = self;
        if found.service_account != *account {
            return Err(Status::permission_denied(format!(
                "WorkloadGroup {group} is for service account {}, not for {account}",
                found.service_account
            )));
        }
        may_claim(self.address, self.peer, &found.member_addresses)
            .map_err(|why| Status::permission_denied(format!("WorkloadGroup {group}: {why}")))
    }

    /// Its name in the mesh.
    pub(super) fn member(&self) -> String {
        WorkloadGroup::member(&self.group.name, self.address)
    }

    /// Checks the claim against the current mesh.
    pub(super) fn check(
        &self,
        caller: &SnapshotCaller,
        snapshot: &MeshSnapshot,
    ) -> Result<(), Status> {
        let Self { group, .. } = self;
        let Some(found) = snapshot.groups.get(group) else {
            return Err(Status::permission_denied(format!(
                "WorkloadGroup {group} does not exist"
            )));
        };
        self.check_group(found)?;
        let name = self.member();
        if let SnapshotCaller::Known(known) | SnapshotCaller::Envoy(known, _) = caller
            && let Some(pod) = known.pod.as_ref().filter(|pod| **pod != name)
        {
            return Err(Status::permission_denied(format!(
                "WorkloadGroup {group}: the caller's token is bound to pod {pod}, not to {name}"
            )));
        }
        let address = self.address;
        let own = format!(
            "{CLUSTER}/networking.istio.io/WorkloadEntry/{}/{name}",
            group.namespace
        );
        let place = format!("{}/{address}", found.network);
        let owners = snapshot.owners.get(&place);
        let mut owners = owners.into_iter().flat_map(|all| all.iter());
        match owners.find(|owner| ***owner != *own) {
            None => Ok(()),
            Some(owner) => Err(taken(group, address, owner)),
        }
    }
}

/// An address is somebody else's.
pub(super) fn taken(group: &ResourceName, address: IpAddr, owner: &str) -> Status {
    Status::permission_denied(format!(
        "WorkloadGroup {group}: {address} is the address of {owner}"
    ))
}
