//! The loop that turns edits into snapshots: wait for rest, read, check, translate, publish. What is broken is reported
//! and what was good stays in force; what is equal is not published.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use voile_identity::TrustStore;
use voile_model::{Diagnostic, Mesh, codes};
use voile_xds::server::Snapshot;

use crate::departed::{Present, Register};
use crate::error::ControlError;
use crate::keys::Keys;
use crate::last_good::LastGood;
use crate::options::FAREWELL;
use crate::revocations::RevocationFile;
use crate::snapshot::{Caller, MeshSnapshot};
use crate::source::Source;
use crate::status::Status;
use crate::translate::translate_with;
use crate::virtual_addresses::VirtualAddresses;

/// What a reading of the sources brought.
#[derive(Debug)]
pub struct Report {
    /// Problems of resources, sorted by place.
    pub diagnostics: Vec<Diagnostic>,
    /// What fits the model but cannot be put into force.
    pub problems: Vec<String>,
    /// Why nothing could be read at all.
    pub unreadable: Option<ControlError>,
    /// Version of the snapshot now in force.
    pub version: String,
    /// Whether proxies are told something new.
    pub changed: bool,
}

/// Hears each report; called from a blocking thread.
pub type Reporter = Box<dyn FnMut(&Report) + Send>;

/// Legal, and nearly always a mistake: a folder that was not mounted, or the wrong one.
const NOTHING: &str =
    "the configuration holds no resources: proxies that ask are told to serve nothing";

/// Whoever wrote the policy believes it in force. To serve what came with it would open what they want shut.
const HELD: &str = "the configuration holds a security policy that is not enforced yet: none of it is put in force, the \
                    last good configuration stays";

/// What the state directory remembers from one run to the next.
pub(crate) struct Kept {
    last_good: LastGood,
    virtual_addresses: VirtualAddresses,
    register: Register,
    revocations: RevocationFile,
}

impl Kept {
    /// `authorities` sign the lists of what is revoked.
    pub(crate) fn open(state: &Path, authorities: Vec<CertificateDer<'static>>) -> Self {
        Self {
            last_good: LastGood::new(state),
            virtual_addresses: VirtualAddresses::load(state),
            register: Register::new(state),
            revocations: RevocationFile::new(state, authorities),
        }
    }
}

/// What the loop carries from one reading to the next.
pub(crate) struct Reload<S> {
    pub(crate) source: S,
    pub(crate) reporter: Reporter,
    pub(crate) publish: watch::Sender<Arc<dyn Snapshot<Caller>>>,
    pub(crate) trust: Arc<TrustStore>,
    pub(crate) status: Arc<Status>,
    /// How long a removed workload's proxy is still told what it asks.
    pub(crate) farewell: Duration,
    kept: Kept,
    keys: Keys,
    mesh: Option<Mesh>,
    /// Of the last reading.
    diagnostics: Vec<Diagnostic>,
    held: bool,
    snapshot: Option<Arc<MeshSnapshot>>,
}

impl<S: Source> Reload<S> {
    pub(crate) fn new(
        source: S,
        reporter: Reporter,
        publish: watch::Sender<Arc<dyn Snapshot<Caller>>>,
        trust: Arc<TrustStore>,
        status: Arc<Status>,
        kept: Kept,
        keys: Keys,
    ) -> Self {
        Self {
            source,
            reporter,
            publish,
            trust,
            status,
            farewell: FAREWELL,
            mesh: kept.last_good.load(),
            kept,
            keys,
            diagnostics: Vec::new(),
            held: false,
            snapshot: None,
        }
    }

    /// Reads once. The first reading must succeed; later ones only report.
    pub(crate) fn read(&mut self) -> Result<(), ControlError> {
        let started = Instant::now();
        let first = self.snapshot.is_none();
        let files = match self.source.load() {
            Ok(files) => files,
            Err(error) if first => return Err(error),
            Err(error) => {
                self.unreadable(error);
                return Ok(());
            }
        };
        let revocations = match self.read_revocations() {
            Err(reason) if first => return Err(ControlError::State(reason)),
            Err(reason) => Some(format!("{reason}; what was revoked before stays revoked")),
            Ok(stale) => stale,
        };
        let (mut mesh, mut diagnostics) = voile_model::check(&files, self.mesh.as_ref());
        diagnostics.extend(voile_analysis::analyze(&mesh));
        Diagnostic::sort(&mut diagnostics);
        let held = diagnostics
            .iter()
            .any(|diagnostic| diagnostic.code == codes::UNENFORCED_KIND);
        if held {
            let Some(good) = self.mesh.take() else {
                self.report(diagnostics, vec![HELD.to_owned()], false);
                return Err(ControlError::Unenforced);
            };
            mesh = good;
        }
        self.keys.want(&mesh);
        let errors = diagnostics.iter().filter(|d| d.is_error()).count();
        self.status.errors.store(errors as u64, Ordering::Relaxed);
        self.status.reloads.fetch_add(1, Ordering::Relaxed);
        (self.diagnostics, self.held) = (diagnostics, held);
        let (changed, mut problems) = self.put_in_force(&mesh);
        problems.extend(revocations);
        if errors == 0 && (changed || first) {
            self.kept.last_good.keep(&files, &mesh);
        }
        if errors > 0 {
            self.status.failed_reloads.fetch_add(1, Ordering::Relaxed);
        }
        self.mesh = Some(mesh);
        let version = self.version();
        tracing::info!(version, changed, errors, took = ?started.elapsed(), "configuration read");
        self.report(self.diagnostics.clone(), problems, changed);
        Ok(())
    }

    /// Keys of token issuers came or changed: the mesh that is in force, once more.
    fn keys_changed(&mut self) {
        let Some(mesh) = self.mesh.take() else { return };
        let (changed, problems) = self.put_in_force(&mesh);
        self.mesh = Some(mesh);
        self.report(self.diagnostics.clone(), problems, changed);
    }

    /// Translates and, if it is something new, publishes. Says whether it was, and what cannot be put into force.
    fn put_in_force(&mut self, mesh: &Mesh) -> (bool, Vec<String>) {
        let addressed = self.kept.virtual_addresses.give(mesh);
        let keys = self.keys.texts();
        let (mut snapshot, mut problems) =
            translate_with(&addressed, &keys, self.snapshot.as_deref());
        snapshot.revoke(self.kept.revocations.resource());
        let present = Present::of(&snapshot);
        let (before, departed) = match &self.snapshot {
            Some(before) => (Present::of(before), before.departed.clone()),
            None => self.kept.register.load(),
        };
        snapshot.departed = departed.follow(&before, &present, Instant::now() + self.farewell);
        if let Some(before) = &self.snapshot {
            let departed = &snapshot.departed;
            let has_left = |identity: &_| departed.includes(identity);
            snapshot.obeyed.keep(&before.obeyed, has_left);
        }
        if self.held {
            problems.push(HELD.to_owned());
            tracing::error!("{HELD}");
        }
        if *mesh == Mesh::default() {
            problems.push(NOTHING.to_owned());
            tracing::warn!("{NOTHING}");
        }
        problems.extend(self.keys.missing());
        let changed = self.snapshot.as_deref() != Some(&snapshot);
        if changed {
            self.kept.register.keep(&present, &snapshot.departed);
            let config = &mesh.config;
            self.trust
                .set_trust_domain(&config.trust_domain, &config.trust_domain_aliases);
            let snapshot = Arc::new(snapshot);
            self.status.published(&snapshot);
            self.publish.send_replace(snapshot.clone());
            self.snapshot = Some(snapshot);
        }
        (changed, problems)
    }

    /// Reads what is revoked; gives what a person should know of it. What was good stays in force when it fails.
    fn read_revocations(&mut self) -> Result<Option<String>, String> {
        let now = SystemTime::now();
        let read = self.kept.revocations.read(now);
        let held = self.kept.revocations.held();
        self.trust.set_revocations(held);
        self.status.revoked(held);
        if let Err(reason) = &read {
            self.status.failed_reloads.fetch_add(1, Ordering::Relaxed);
            tracing::error!(reason, "the lists of revoked certificates cannot be used");
        }
        read.map(|()| self.kept.revocations.stale(now))
    }

    fn report(&mut self, diagnostics: Vec<Diagnostic>, problems: Vec<String>, changed: bool) {
        let version = self.version();
        (self.reporter)(&Report {
            diagnostics,
            problems,
            unreadable: None,
            version,
            changed,
        });
    }

    fn unreadable(&mut self, error: ControlError) {
        self.status.failed_reloads.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "the configuration cannot be read; the last one stays in force");
        let version = self.version();
        (self.reporter)(&Report {
            diagnostics: Vec::new(),
            problems: Vec::new(),
            unreadable: Some(error),
            version,
            changed: false,
        });
    }

    fn version(&self) -> String {
        self.snapshot
            .as_ref()
            .map(|snapshot| snapshot.version.clone())
            .unwrap_or_default()
    }

    /// Follows the source for ever. Reading and translating block, so they leave the runtime's thread alone.
    pub(crate) async fn follow(mut self) {
        loop {
            let keys = self.keys.clone();
            // A burst of edits that is cut off by news of keys goes on: the source remembers what it heard.
            let edited = tokio::select! {
                () = self.source.changed() => true,
                () = keys.changed() => false,
            };
            let read = tokio::task::spawn_blocking(move || {
                match edited {
                    // Only the first reading can fail, and that is over.
                    true => drop(self.read()),
                    false => self.keys_changed(),
                }
                self
            });
            match read.await {
                Ok(back) => self = back,
                Err(error) => {
                    tracing::error!(%error, "reading the configuration panicked; edits are no longer followed");
                    return;
                }
            }
        }
    }
}
