//! The loop that turns edits into snapshots: wait for an edit, read the changes, check them, translate their dependents, publish.
//! Broken resources are reported and the last good ones stay in force. An equal snapshot is not published. Analysis, reports and
//! writes to the state directory wait until the configuration rests: see `deferred_work`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use voile_identity::{Authority, AuthorityStore, TrustStore};
use voile_model::check::{CheckOutcome, Checker, MeshPatch};
use voile_model::mesh::{Mesh, Workload};
use voile_model::{Diagnostic, SourceFile, codes};
use voile_xds::server::{ChangedNames, Snapshot, SubscriptionIndex};

use crate::deferred_work::{LastRead, Pending, ReloadScheduler, Reporter, RestedConfiguration};
use crate::departed_workloads::{DepartedWorkloads, MeshMembers, Register};
use crate::error::ControlError;
use crate::keys::{Keys, Texts};
use crate::last_good::LastGood;
use crate::options::FAREWELL;
use crate::revocations::RevocationFile;
use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use crate::source::Source;
use crate::status::Status;
use crate::status::gateway_api::Written;
use crate::translate::{translate_with, update};
use crate::virtual_addresses::{AssignedAddresses, VirtualAddresses};
use crate::workload_counts::WorkloadCounts;
use crate::ztunnel::{AmbientWorkloads, NodeAccount};

/// Legal, and nearly always a mistake: a folder that was not mounted, or the wrong one.
const NOTHING: &str = "the configuration has no resources: proxies receive an empty configuration";

/// State that the state directory keeps between two runs.
pub(crate) struct RememberedState {
    last_good: LastGood,
    virtual_addresses: VirtualAddresses,
    register: Register,
    revocations: RevocationFile,
    written: Written,
}

impl RememberedState {
    /// The roots of `authority` sign the lists of what is revoked. Proxies are told those of an authority that may change.
    pub(crate) fn open(state: &Path, authority: Arc<Authority>, tells_roots: bool) -> Self {
        Self {
            last_good: LastGood::new(state),
            virtual_addresses: VirtualAddresses::load(state),
            register: Register::new(state),
            revocations: RevocationFile::new(state, authority, tells_roots),
            written: Written::new(state),
        }
    }
}

/// Publishes a snapshot: first for all readers, then to the streams that it concerns.
pub(crate) struct Publisher {
    pub(crate) snapshots: watch::Sender<Arc<dyn Snapshot<SnapshotCaller>>>,
    pub(crate) staff: watch::Sender<Arc<AmbientWorkloads>>,
    pub(crate) interest: Arc<SubscriptionIndex>,
}

/// State that the loop carries from one reading to the next.
pub(crate) struct Reload<S> {
    pub(crate) source: S,
    pub(crate) publisher: Publisher,
    pub(crate) trust: Arc<TrustStore>,
    pub(crate) status: Arc<Status>,
    /// Time for which a removed workload's proxy still gets answers.
    pub(crate) farewell: Duration,
    /// Service accounts of node proxies.
    pub(crate) node_accounts: Arc<BTreeSet<NodeAccount>>,
    /// When what is read now became news.
    changed_at: Instant,
    virtual_addresses: VirtualAddresses,
    revocations: RevocationFile,
    keys: Keys,
    /// Keys that the current snapshot was made with.
    texts: Texts,
    checker: Checker,
    mesh: Option<Arc<Mesh>>,
    given: AssignedAddresses,
    /// The mesh with virtual addresses, where a service has one.
    addressed: Option<Arc<Mesh>>,
    snapshot: Option<Arc<MeshSnapshot>>,
    /// Of the last reading.
    known: LastRead,
    /// Work that waits until the configuration rests.
    pending: Option<Pending>,
    /// Absent while it works.
    rest: Option<ReloadScheduler>,
}

/// Cause of another snapshot.
enum News {
    Files,
    Keys,
    Authority(Arc<Authority>),
}

/// Result of a check.
struct CheckedMesh {
    /// None: nothing but what is said of each file.
    diagnostics: Option<Vec<Diagnostic>>,
    /// None: anything may have changed.
    changes: Option<MeshPatch>,
}

impl<S: Source> Reload<S> {
    pub(crate) fn new(
        source: S,
        reporter: Reporter,
        publisher: Publisher,
        trust: Arc<TrustStore>,
        status: Arc<Status>,
        kept: RememberedState,
        keys: Keys,
    ) -> Self {
        let RememberedState {
            last_good,
            virtual_addresses,
            register,
            revocations,
            written,
        } = kept;
        Self {
            source,
            publisher,
            trust,
            farewell: FAREWELL,
            node_accounts: Arc::default(),
            changed_at: Instant::now(),
            virtual_addresses,
            revocations,
            keys,
            texts: Texts::new(),
            checker: Checker::default(),
            mesh: None,
            given: AssignedAddresses::default(),
            addressed: None,
            snapshot: None,
            known: LastRead::default(),
            pending: None,
            rest: Some(ReloadScheduler {
                reporter,
                last_good,
                register,
                status: status.clone(),
                pause: None,
                judged_again: None,
                written,
                found: Arc::default(),
            }),
            status,
        }
    }

    /// Reads once. The first reading must succeed, or there must be a last good configuration; later ones only report.
    pub(crate) fn read(&mut self) -> Result<(), ControlError> {
        let started = Instant::now();
        let first = self.snapshot.is_none();
        self.changed_at = self.source.changed_at().unwrap_or(started);
        let files = match self.source.load() {
            Ok(files) => files,
            Err(error) if first => return self.begin_without(error),
            Err(error) => {
                self.unreadable(error);
                return Ok(());
            }
        };
        let revocations = match self.read_revocations() {
            Err(reason) if first => return Err(ControlError::State(reason)),
            Err(reason) => Some(format!(
                "{reason}; certificates revoked before stay revoked"
            )),
            Ok(stale) => stale,
        };
        let CheckedMesh {
            diagnostics,
            changes,
        } = self.check(&files)?;
        let tokens = |changes: &MeshPatch| !changes.tokens.is_empty();
        if let Some(mesh) = &self.mesh
            && changes.as_ref().is_none_or(tokens)
        {
            self.keys.want(mesh);
        }
        self.status.reloads.fetch_add(1, Ordering::Relaxed);
        let mut problems = Vec::new();
        if self.mesh.as_deref() == Some(&Mesh::default()) {
            problems.push(NOTHING.to_owned());
            tracing::warn!("{NOTHING}");
        }
        problems.extend(revocations);
        self.known = LastRead {
            files: Some(files.into()),
            diagnostics,
            problems,
        };
        let patched = changes.is_some();
        let changed = self.put_in_force(changes.as_ref());
        self.status.obeys(self.source.digests());
        if let Some(pending) = &mut self.pending {
            pending.first |= first;
            pending.read = true;
        }
        let version = self.version();
        tracing::info!(version, changed, patched, took = ?started.elapsed(), "configuration read");
        Ok(())
    }

    /// The source is away: what was good before is put into force, and stays until there is something to read.
    fn begin_without(&mut self, error: ControlError) -> Result<(), ControlError> {
        let Some(good) = self.rest.as_ref().and_then(|rest| rest.last_good.load()) else {
            return Err(error);
        };
        self.known.problems = self
            .read_revocations()
            .map_err(ControlError::State)?
            .into_iter()
            .collect();
        self.keys.want(&good);
        self.mesh = Some(good.into());
        self.give_addresses();
        self.put_in_force(None);
        self.unreadable(error);
        Ok(())
    }

    /// Keys of token issuers came or changed: the mesh that is in force, once more.
    fn keys_changed(&mut self) {
        self.changed_at = Instant::now();
        let changed = self.put_in_force(Some(&MeshPatch::default()));
        tracing::info!(
            version = self.version(),
            changed,
            "keys of token issuers updated"
        );
    }

    /// Another authority signs, or there are other roots: believed from now on, and told to every proxy.
    fn authority_changed(&mut self, authority: Arc<Authority>) {
        self.changed_at = Instant::now();
        if let Err(error) = self.trust.set_roots(authority.roots()) {
            tracing::error!(%error, "the roots of the new authority cannot be used");
            return;
        }
        self.revocations.set_authority(authority);
        let changed = self.put_in_force(Some(&MeshPatch::default()));
        tracing::info!(
            version = self.version(),
            changed,
            "the authority's roots are published"
        );
    }

    /// Translates the current mesh, and publishes the snapshot if it is new. Returns true if it published. The report waits for a
    /// rest.
    fn put_in_force(&mut self, changes: Option<&MeshPatch>) -> bool {
        let before = std::mem::replace(&mut self.texts, self.keys.texts());
        let (snapshot, present) = self.translated(changes, before != self.texts);
        let changed = self.snapshot.as_deref() != Some(&snapshot);
        if changed {
            self.publish(snapshot);
        }
        let pending = self.judge_when_quiet();
        pending.changed |= changed;
        if let Some(present) = present {
            pending.present = Some(present);
        }
        changed
    }

    /// Reads the lists of revoked certificates. Returns a warning for the operator. On failure the last good lists stay in force.
    fn read_revocations(&mut self) -> Result<Option<String>, String> {
        let now = SystemTime::now();
        let read = self.revocations.read(now);
        let held = self.revocations.held();
        self.trust.set_revocations(held);
        self.status.revoked(held);
        if let Err(reason) = &read {
            self.status.failed_reloads.fetch_add(1, Ordering::Relaxed);
            tracing::error!(reason, "cannot use the certificate revocation lists");
        }
        read.map(|()| self.revocations.stale(now))
    }

    /// Brings the mesh up to what the files say.
    fn check(&mut self, files: &[Arc<SourceFile>]) -> Result<CheckedMesh, ControlError> {
        let mut outcome = {
            let mesh = self.mesh.as_mut().map(Arc::make_mut);
            self.checker.check(files, mesh)
        };
        if self.snapshot.is_none()
            && wrong(&outcome)
            && let Some(mut good) = self.rest.as_ref().and_then(|rest| rest.last_good.load())
        {
            outcome = self.checker.check(files, Some(&mut good));
            self.mesh = Some(good.into());
        }
        if self.snapshot.is_none() {
            never_read(&outcome)?;
        }
        let (mesh, diagnostics) = match outcome {
            CheckOutcome::Patched(patch, mut changes) => {
                if changes.services.is_empty() {
                    let mesh = self.addressed.as_mut().map(Arc::make_mut);
                    mesh.map(|mesh| patch.apply(mesh));
                } else {
                    // The virtual address of one service depends on all other services.
                    let before = self.give_addresses();
                    before.correct(&self.given, &mut changes.services);
                }
                return Ok(CheckedMesh {
                    diagnostics: None,
                    changes: Some(*changes),
                });
            }
            CheckOutcome::Whole(mesh, diagnostics) => (mesh, diagnostics),
        };
        if let (Some(pending), Some(before)) = (&mut self.pending, &self.mesh)
            && diagnostics.iter().any(Diagnostic::is_error)
        {
            pending.set_aside(before);
        }
        self.mesh = Some((*mesh).into());
        self.give_addresses();
        Ok(CheckedMesh {
            diagnostics: Some(diagnostics),
            changes: None,
        })
    }

    /// Gives virtual addresses to services that need them; what was given before.
    fn give_addresses(&mut self) -> AssignedAddresses {
        let Some(mesh) = &self.mesh else {
            return AssignedAddresses::default();
        };
        let given = self.virtual_addresses.give(mesh);
        self.addressed = given.applied(mesh).map(Arc::new);
        std::mem::replace(&mut self.given, given)
    }

    /// The snapshot of the mesh, and who is in it if that is another than before.
    fn translated(
        &self,
        changes: Option<&MeshPatch>,
        keys_changed: bool,
    ) -> (MeshSnapshot, Option<MeshMembers>) {
        let nothing = Mesh::default();
        let mesh = self.addressed.as_ref().or(self.mesh.as_ref());
        self.status
            .envoys
            .stand_on(mesh, changes, &self.texts, self.revocations.pem());
        let mesh = mesh.map_or(&nothing, |mesh| mesh);
        let before = self.snapshot.as_deref();
        let updated = before.zip(changes).and_then(|(before, changes)| {
            update(mesh, before, changes, (&self.texts, keys_changed))
        });
        let mut snapshot = updated.unwrap_or_else(|| translate_with(mesh, &self.texts, before));
        snapshot.staff = self.staff(mesh, changes);
        snapshot.workload_counts = self.workload_counts(mesh, changes);
        snapshot.revoke(self.revocations.resource(), self.revocations.held());
        snapshot.envoys = self.status.envoys.clone();
        snapshot.made.limits = self.status.limits.clone();
        let present = self.part(&mut snapshot);
        if let Some(before) = before {
            snapshot.keep_obeyed(before);
        }
        (snapshot, present)
    }

    /// Counts the workloads of each identity.
    fn workload_counts(&self, mesh: &Mesh, changes: Option<&MeshPatch>) -> Arc<WorkloadCounts> {
        let before = self.snapshot.as_ref();
        let before = before.map(|before| &before.workload_counts);
        match before.zip(changes.filter(|changes| !changes.everything)) {
            Some((before, changes)) => {
                let after = before.after(changes.workloads.values());
                after.map_or_else(|| before.clone(), Arc::new)
            }
            None => WorkloadCounts::of(mesh).into(),
        }
    }

    /// Finds the node proxies.
    fn staff(&self, mesh: &Mesh, changes: Option<&MeshPatch>) -> Arc<AmbientWorkloads> {
        let before = self.snapshot.as_ref().map(|before| &before.staff);
        let Some((before, changes)) = before.zip(changes) else {
            return AmbientWorkloads::of(mesh, &self.node_accounts).into();
        };
        let place = |one: &Option<Arc<Workload>>| {
            let one = one.as_ref()?;
            let who = (one.service_account.clone(), one.node.clone());
            Some((who, one.has_sidecar, one.ambient || one.asks_for_ambient))
        };
        let is_ambient = |one: &Option<Arc<Workload>>| {
            let one = one.as_ref();
            one.is_some_and(|one| one.ambient || one.asks_for_ambient)
        };
        let mut turns = changes.workloads.values();
        let stays = match before.is_empty() {
            true => !turns.any(|(old, new)| is_ambient(old) || is_ambient(new)),
            false => turns.all(|(old, new)| place(old) == place(new)),
        };
        if stays && !changes.everything {
            return before.clone();
        }
        let staff = AmbientWorkloads::of(mesh, &self.node_accounts);
        match staff == **before {
            true => before.clone(),
            false => staff.into(),
        }
    }

    /// Notes who left, and gives who is there if that is another than before.
    fn part(&self, snapshot: &mut MeshSnapshot) -> Option<MeshMembers> {
        let before = self.snapshot.as_deref();
        if let Some(before) = before
            && before.has_same_callers(snapshot)
        {
            snapshot.departed = before.departed.clone();
            return None;
        }
        let present = MeshMembers::of(snapshot);
        let (was, departed) = match (before, &self.rest) {
            (Some(before), _) => (MeshMembers::of(before), (*before.departed).clone()),
            (None, Some(rest)) => rest.register.load(),
            (None, None) => (MeshMembers::default(), DepartedWorkloads::default()),
        };
        let end = Instant::now() + self.farewell;
        snapshot.departed = departed.follow(&was, &present, end).into();
        Some(present)
    }

    fn publish(&mut self, snapshot: MeshSnapshot) {
        let touched = match &self.snapshot {
            Some(before) => snapshot.touched_since(before),
            None => ChangedNames::everything(),
        };
        let touched = touched.at(Some(self.changed_at));
        if let Some(mesh) = &self.mesh {
            let config = &mesh.config;
            self.trust
                .set_trust_domain(&config.trust_domain, &config.trust_domain_aliases);
        }
        let snapshot = Arc::new(snapshot);
        let publishing = self.publisher.interest.publishing();
        self.status.published(&snapshot, &touched);
        self.publisher.staff.send_replace(snapshot.staff.clone());
        self.publisher.snapshots.send_replace(snapshot.clone());
        self.publisher.interest.announce(touched);
        drop(publishing);
        self.snapshot = Some(snapshot);
    }

    fn unreadable(&mut self, error: ControlError) {
        self.status.failed_reloads.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "cannot read the configuration; the last one stays in force");
        let pending = self.pending.get_or_insert_with(Pending::new);
        pending.unreadable(error);
    }

    fn version(&self) -> String {
        self.snapshot
            .as_ref()
            .map(|snapshot| snapshot.version.to_string())
            .unwrap_or_default()
    }

    /// Follows the source until `ended`. Reading and translating block, so they leave the runtime's thread alone.
    pub(crate) async fn follow(
        mut self,
        authority: AuthorityStore,
        ended: impl Future<Output = ()>,
    ) {
        tokio::pin!(ended);
        let mut authorities = authority.subscribe();
        let mut working: Option<JoinHandle<ReloadScheduler>> = None;
        let keys = self.keys.clone();
        // Kept from turn to turn: news of keys that waits for others must not be lost.
        let mut news = std::pin::pin!(keys.changed());
        loop {
            let pause = self.rest.as_ref().and_then(|rest| rest.pause);
            let due = self.pending.as_ref().map(|pending| pending.due(pause));
            let due = due.filter(|_| working.is_none());
            let rest = self.rest.as_ref().filter(|_| self.pending.is_none());
            let again = rest.and_then(|rest| rest.judged_again);
            let edited = tokio::select! {
                () = &mut ended => break,
                () = self.source.changed() => News::Files,
                () = &mut news => {
                    news.set(keys.changed());
                    News::Keys
                }
                // The store lives as long as we do.
                Ok(()) = authorities.changed() => News::Authority(authorities.borrow_and_update().clone()),
                () = until(due) => {
                    working = self.work().map(tokio::task::spawn_blocking);
                    continue;
                }
                () = until(again) => {
                    self.judge_again();
                    continue;
                }
                rest = finished(&mut working) => {
                    working = None;
                    self.rest = rest;
                    continue;
                }
            };
            let read = tokio::task::spawn_blocking(move || {
                match edited {
                    // Only the first reading can fail, and that is over.
                    News::Files => drop(self.read()),
                    News::Keys => self.keys_changed(),
                    News::Authority(authority) => self.authority_changed(authority),
                }
                self
            });
            match read.await {
                Ok(back) => self = back,
                Err(error) => {
                    tracing::error!(%error, "reading the configuration panicked; further edits have no effect until a restart");
                    return;
                }
            }
        }
        if working.is_some() {
            self.rest = finished(&mut working).await;
        }
        // Work for the state directory must not be lost at the end of the process.
        if let Some(work) = self.work() {
            let _ = tokio::task::spawn_blocking(work).await;
        }
    }

    /// Has the configuration analysed once more, as it is.
    fn judge_again(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.judged_again = None;
        }
        self.judge_when_quiet();
    }

    /// Has what is known now analysed and reported when the configuration rests.
    fn judge_when_quiet(&mut self) -> &mut Pending {
        let mut known = self.known.clone();
        known.problems.extend(self.keys.missing());
        let pending = self.pending.get_or_insert_with(Pending::new);
        pending.heard(known);
        pending
    }

    /// Takes the work that is to be done while nothing changes, if there is some.
    fn work(&mut self) -> Option<impl FnOnce() -> ReloadScheduler + Send + 'static> {
        let mut rest = self.rest.take()?;
        let Some(mut pending) = self.pending.take() else {
            self.rest = Some(rest);
            return None;
        };
        if let Some(known) = &mut pending.known
            && known.diagnostics.is_none()
        {
            known.diagnostics = Some(self.checker.diagnostics());
        }
        // A copy: whoever held the mesh itself would have the next edit copy it.
        let mesh = Arc::new(self.mesh.as_deref().cloned().unwrap_or_default());
        let snapshot = self.snapshot.clone().unwrap_or_default();
        let files = self.known.files.clone();
        let addressed = self.given.services();
        Some(move || {
            rest.work(pending, &mesh, &snapshot);
            rest.status.explained_by(RestedConfiguration {
                mesh,
                files,
                diagnostics: rest.found.clone(),
                addressed,
            });
            rest
        })
    }
}

/// A first configuration with a document that may be a security resource and cannot be read is not put into force.
fn never_read(outcome: &CheckOutcome) -> Result<(), ControlError> {
    let CheckOutcome::Whole(_, diagnostics) = outcome else {
        return Ok(());
    };
    let is_never_read = |one: &&Diagnostic| one.code == codes::NEVER_READ;
    if !diagnostics.iter().any(|one| is_never_read(&one)) {
        return Ok(());
    }
    let all = diagnostics.iter().filter(|one| one.is_error());
    let all: Vec<String> = all.map(ToString::to_string).collect();
    Err(ControlError::NeverRead(all.join("\n")))
}

fn wrong(outcome: &CheckOutcome) -> bool {
    match outcome {
        CheckOutcome::Patched(..) => false,
        CheckOutcome::Whole(_, diagnostics) => diagnostics.iter().any(Diagnostic::is_error),
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// None when the work panicked: then nothing is reported or kept any more, and everything else goes on.
async fn finished(working: &mut Option<JoinHandle<ReloadScheduler>>) -> Option<ReloadScheduler> {
    let Some(handle) = working else {
        return std::future::pending().await;
    };
    handle
        .await
        .inspect_err(|error| tracing::error!(%error, "analysing the configuration panicked"))
        .ok()
}

#[cfg(test)]
mod tests;
