//! Number of declared workloads of each identity: the control plane's limits for an identity grow with it.

use std::collections::HashMap;
use std::sync::Arc;

use voile_model::mesh::{Mesh, Workload};
use voile_model::{Identity, Namespace};

/// Namespace and service account: the trust domain is everybody's.
type Account = (Namespace, Arc<str>);

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkloadCounts(HashMap<Account, usize>);

fn account(workload: &Workload) -> Account {
    let namespace = workload.key.namespace.clone();
    (namespace, workload.service_account.clone())
}

impl WorkloadCounts {
    pub(crate) fn of(mesh: &Mesh) -> Self {
        let mut counts = HashMap::new();
        for workload in mesh.workloads.values() {
            *counts.entry(account(workload)).or_default() += 1;
        }
        Self(counts)
    }

    /// The same after these workloads came, changed or went.
    pub(crate) fn after<'a>(
        &self,
        turns: impl Iterator<Item = &'a (Option<Arc<Workload>>, Option<Arc<Workload>>)>,
    ) -> Option<Self> {
        let mut counts = None;
        for (old, new) in turns {
            let (old, new) = (old.as_deref().map(account), new.as_deref().map(account));
            if old == new {
                continue;
            }
            let counts: &mut HashMap<_, _> = counts.get_or_insert_with(|| self.0.clone());
            if let Some(old) = old
                && let Some(count) = counts.get_mut(&old)
            {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&old);
                }
            }
            if let Some(new) = new {
                *counts.entry(new).or_default() += 1;
            }
        }
        counts.map(Self)
    }

    /// Number of workloads with an identity.
    pub(crate) fn with(&self, identity: &Identity) -> usize {
        let account = (identity.namespace.clone(), identity.service_account.clone());
        self.0.get(&account).copied().unwrap_or_default()
    }
}
