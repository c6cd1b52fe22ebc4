//! Quotas of joining: the number and the rate of workloads that join by one WorkloadGroup or one identity. A stolen credential
//! can fill neither the state directory nor the time of the thread that writes it. No clock: time is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use voile_model::{Namespace, ResourceName};

use super::claim::Claim;
use super::members::MAX_MEMBERS;

/// Members of one group at one control plane: as many machines as the largest autoscaling groups of clouds have.
pub(super) const MAX_MEMBERS_OF_GROUP: usize = 5_000;
/// Members that one identity holds over all groups for it: half of all, so that one credential never keeps the others out.
pub(super) const MAX_MEMBERS_OF_IDENTITY: usize = MAX_MEMBERS / 2;
/// Joins a second, of one group and of one identity: each is a file that is written and read again.
pub(super) const JOINS_PER_SECOND: f64 = 100.0;
/// Joins at once beyond that: machines that start together.
pub(super) const JOIN_BURST: f64 = 500.0;
/// Groups and identities remembered before those without members are forgotten.
const FEW: usize = 256;

/// Members and joins of one group, or of one identity.
#[derive(Debug)]
struct Quota {
    members: usize,
    /// Joins that are left.
    left: f64,
    at: Instant,
}

impl Quota {
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = JOIN_BURST.min(self.left + elapsed * JOINS_PER_SECOND);
        self.at = now;
    }
}

/// Namespace and service account.
type Account = (Namespace, Arc<str>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    groups: HashMap<ResourceName, Quota>,
    identities: HashMap<Account, Quota>,
}

fn of<K: Eq + Hash>(all: &mut HashMap<K, Quota>, key: K, now: Instant) -> &mut Quota {
    if all.len() > FEW && !all.contains_key(&key) {
        all.retain(|_, quota| {
            quota.refill(now);
            quota.members > 0 || quota.left < JOIN_BURST
        });
    }
    let quota = all.entry(key).or_insert(Quota {
        members: 0,
        left: JOIN_BURST,
        at: now,
    });
    quota.refill(now);
    quota
}

fn account(claim: &Claim) -> Account {
    (claim.group.namespace.clone(), claim.account.clone())
}

impl Quotas {
    /// Counts a join, of a new member or of one that is there.
    ///
    /// # Errors
    /// There are too many members, or joins.
    pub(super) fn join(&mut self, claim: &Claim, is_new: bool, now: Instant) -> Result<(), String> {
        let group = of(&mut self.groups, claim.group.clone(), now);
        let identity = of(&mut self.identities, account(claim), now);
        let more = usize::from(is_new);
        if group.members + more > MAX_MEMBERS_OF_GROUP {
            return Err(format!(
                "{MAX_MEMBERS_OF_GROUP} workloads of the group have joined at this control plane, the limit"
            ));
        }
        if identity.members + more > MAX_MEMBERS_OF_IDENTITY {
            return Err(format!(
                "{MAX_MEMBERS_OF_IDENTITY} workloads of {} have joined at this control plane, the limit",
                claim.account
            ));
        }
        if group.left < 1.0 || identity.left < 1.0 {
            return Err(format!(
                "more than {JOINS_PER_SECOND} workloads join in a second: try again later"
            ));
        }
        for quota in [group, identity] {
            quota.left -= 1.0;
            quota.members += more;
        }
        Ok(())
    }

    /// A member is one no longer.
    pub(super) fn leave(&mut self, claim: &Claim) {
        let group = self.groups.get_mut(&claim.group);
        let identity = self.identities.get_mut(&account(claim));
        for quota in group.into_iter().chain(identity) {
            quota.members = quota.members.saturating_sub(1);
        }
    }
}
