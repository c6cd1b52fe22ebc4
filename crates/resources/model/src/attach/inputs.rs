//! What attachment reads of the mesh, and the diagnostics of what it refuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mesh::gateway_api::{Admission, ConditionReason, Reference, RefusedCondition};
use crate::mesh::{Mesh, MeshService, ServiceOrigin};
use crate::names::Namespace;
use crate::source::Source;
use crate::text::nearest_name;

/// The mesh, with indexes for attachment.
pub(super) struct AttachmentInputs<'m> {
    pub(super) mesh: &'m Mesh,
    /// Kubernetes' Services by namespace and name.
    pub(super) services: BTreeMap<(&'m Namespace, &'m str), &'m Arc<MeshService>>,
}

impl<'m> AttachmentInputs<'m> {
    pub(super) fn new(mesh: &'m Mesh) -> Self {
        let all = mesh.services.values();
        let ours = all.filter(|one| one.origin == ServiceOrigin::Kubernetes);
        let services = ours.map(|one| ((&one.key.namespace, &*one.name), one));
        Self {
            mesh,
            services: services.collect(),
        }
    }

    pub(super) fn service(&self, to: &Reference) -> Option<&'m Arc<MeshService>> {
        let key = (&to.name.namespace, &*to.name.name);
        self.services.get(&key).copied()
    }

    /// Refuses a reference to a Service that does not exist, and names the one that was probably meant.
    pub(super) fn unknown_service(
        &self,
        reason: ConditionReason,
        to: &Reference,
        before: &str,
    ) -> RefusedCondition {
        let known = self.services.keys();
        let known = known.map(|(namespace, name)| (namespace.as_str(), *name));
        let meant = nearest_name((to.name.namespace.as_str(), &to.name.name), known);
        let hint = meant.map(|(namespace, name)| format!("; did you mean `{namespace}/{name}`?"));
        let hint = hint.unwrap_or_default();
        let said = format!(
            "{before} the Service {}, which does not exist{hint}",
            to.name
        );
        RefusedCondition {
            missing: Some(format!("Service {}", to.name).into()),
            ..refusal(reason, &to.source, &to.field, said)
        }
    }

    /// Returns true if a resource of namespace `own` admits resources of namespace `from`.
    pub(super) fn admits(&self, admission: &Admission, own: &Namespace, from: &Namespace) -> bool {
        self.mesh.admits(admission, own, from)
    }

    /// Why a reference from a kind and namespace is not permitted.
    pub(super) fn unpermitted(
        &self,
        kind: &str,
        own: &Namespace,
        to: &Reference,
    ) -> Option<RefusedCondition> {
        let permits = |namespace: &Namespace| {
            let mut grants = self.mesh.gateway_api.grants.iter();
            grants.any(|grant| grant.permits(kind, namespace.as_str(), to))
        };
        if to.name.namespace == *own || permits(own) {
            return None;
        }
        let said = format!(
            "the reference to the {} {} crosses from {own}, and no ReferenceGrant in {} permits it",
            to.kind, to.name, to.name.namespace
        );
        Some(refusal(
            ConditionReason::RefNotPermitted,
            &to.source,
            &to.field,
            said,
        ))
    }
}

pub(super) fn refusal(
    reason: ConditionReason,
    source: &Source,
    field: &str,
    said: String,
) -> RefusedCondition {
    RefusedCondition {
        reason,
        source: source.clone(),
        field: field.into(),
        said,
        missing: None,
    }
}
