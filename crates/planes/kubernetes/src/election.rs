//! One replica has the duties that only one may have: a Lease says which. The others serve all the same.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::watch;

use crate::error::explain;

/// A holder that has not renewed for so long has lost its duties.
const LEASE: Duration = Duration::from_secs(15);
/// A holder that cannot renew for so long gives up its duties itself, before another takes them.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time between two looks.
const RETRY: Duration = Duration::from_secs(2);

/// A replica that stands for election.
pub(crate) struct Candidate {
    leases: Api<Lease>,
    name: String,
    /// Name of this replica.
    own: String,
    /// What the Lease said last, and when that was new to us: clocks of other machines are not compared.
    seen: Option<(LeaseSpec, Instant)>,
    renewed: Option<Instant>,
    leads: watch::Sender<bool>,
}

impl Candidate {
    /// `own` must be another name than that of any other replica.
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        name: String,
        own: String,
    ) -> (Self, watch::Receiver<bool>) {
        let (leads, led) = watch::channel(false);
        let candidate = Self {
            leases: Api::namespaced(client, namespace),
            name,
            own,
            seen: None,
            renewed: None,
            leads,
        };
        (candidate, led)
    }

    /// Stands until `over`, then gives the Lease back, so that another replica need not wait.
    pub(crate) async fn run(mut self, over: impl Future<Output = ()>) {
        tokio::pin!(over);
        loop {
            match self.stand(&self.own.clone()).await {
                Ok(holds) => self.say(holds),
                // A write that came too late is no error: the next look shows whose was first.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => tracing::debug!("leases/{}: {}", self.name, explain(&error)),
            }
            if self.renewed.is_some_and(|at| at.elapsed() >= DEADLINE) {
                self.say(false);
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = &mut over => break,
            }
        }
        if *self.leads.borrow() {
            self.say(false);
            let _ = tokio::time::timeout(RETRY, self.stand("")).await;
        }
    }

    fn say(&mut self, holds: bool) {
        self.renewed = holds.then(Instant::now);
        let changed = self
            .leads
            .send_if_modified(|leads| std::mem::replace(leads, holds) != holds);
        if changed {
            let what = if holds {
                "is this one"
            } else {
                "is another one"
            };
            tracing::info!("the replica with the duties of leases/{} {what}", self.name);
        }
    }

    /// Takes or renews the Lease in the name of `holder`, if it is free or ours. Returns true if it is ours then.
    async fn stand(&mut self, holder: &str) -> Result<bool, kube::Error> {
        let found = self.leases.get_opt(&self.name).await?;
        let said = found
            .as_ref()
            .and_then(|lease| lease.spec.clone())
            .unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != said) {
            self.seen = Some((said.clone(), Instant::now()));
        }
        let current = said.holder_identity.as_deref().unwrap_or_default();
        let expired = self
            .seen
            .as_ref()
            .is_some_and(|(_, at)| at.elapsed() >= LEASE);
        if !current.is_empty() && current != self.own && !expired {
            return Ok(false);
        }
        let now = Some(MicroTime(Timestamp::now()));
        let changes_hands = current != self.own;
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: if changes_hands {
                now.clone()
            } else {
                said.acquire_time
            },
            renew_time: now,
            lease_transitions: Some(
                said.lease_transitions.unwrap_or(0) + i32::from(changes_hands && found.is_some()),
            ),
            ..LeaseSpec::default()
        };
        let parameters = PostParams::default();
        match found {
            Some(lease) => {
                let lease = Lease {
                    spec: Some(spec),
                    ..lease
                };
                self.leases.replace(&self.name, &parameters, &lease).await?;
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                };
                let lease = Lease {
                    metadata,
                    spec: Some(spec),
                };
                self.leases.create(&parameters, &lease).await?;
            }
        }
        Ok(holder == self.own)
    }
}
