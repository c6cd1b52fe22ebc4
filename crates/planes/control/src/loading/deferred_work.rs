//! Work that waits until the configuration rests, so that it never delays a change on its way to proxies. It is the analysis
//! across resources, the report, and the state for the next start. While edits never end, the work is done every few seconds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use voile_model::mesh::{Mesh, MeshService};
use voile_model::{Diagnostic, SourceFile};

use crate::departed_workloads::{MeshMembers, Register};
use crate::error::ControlError;
use crate::last_good::LastGood;
use crate::snapshot::MeshSnapshot;
use crate::status::gateway_api::Written;
use crate::status::{Documents, Status};

/// Quiet after which the configuration rests: people wait for what is said of their edit, and storms have shorter pauses.
const QUIET: Duration = Duration::from_millis(100);
/// Longest time for which work waits amid a storm of edits; a kill of the control plane loses no more. A larger mesh waits for
/// this multiple of its last work's duration, so that endless edits cost a twentieth of a core at most.
const LONGEST: Duration = Duration::from_secs(5);
const LONGEST_SHARE: u32 = 20;
/// So many times as long as the work took nothing is done before it is done again, but see `LONGEST`; the first edit after a pause is
/// told of at once.
const PAUSE: u32 = 200;

/// Result of the readings of the sources since the last report.
#[derive(Debug)]
pub struct Report {
    /// Problems of resources, sorted by place.
    pub diagnostics: Vec<Diagnostic>,
    /// Resources that fit the model but cannot be put into force.
    pub problems: Vec<String>,
    /// Why nothing could be read at all.
    pub unreadable: Option<ControlError>,
    /// Version of the snapshot now in force.
    pub version: String,
    /// True if any reading since the last report told proxies something new.
    pub changed: bool,
}

/// What is in force, and what was found in it, when the configuration last rested.
#[derive(Debug, Clone, Default)]
pub struct RestedConfiguration {
    /// Resources in force.
    pub mesh: Arc<Mesh>,
    /// The files that were read. None: nothing could be read yet.
    pub files: Option<Arc<[Arc<SourceFile>]>>,
    /// Problems of resources, sorted by place.
    pub diagnostics: Arc<[Diagnostic]>,
    /// Services that name no address, with the virtual addresses that they were given.
    pub addressed: Vec<Arc<MeshService>>,
}

/// Hears each report; called from a blocking thread.
pub type Reporter = Box<dyn FnMut(&Report) + Send>;

/// Result of the last reading.
#[derive(Clone, Default)]
pub(crate) struct LastRead {
    /// None: nothing could be read yet; what is in force is the last good configuration.
    pub(crate) files: Option<Arc<[Arc<SourceFile>]>>,
    /// None: what is said of each file is all there is.
    pub(crate) diagnostics: Option<Vec<Diagnostic>>,
    pub(crate) problems: Vec<String>,
}

/// A sound state that something wrong took the place of before there was a rest: it is the last good one all the same.
struct EarlierState {
    known: LastRead,
    changed: bool,
    first: bool,
    mesh: Mesh,
}

/// Work that waits for the rest.
pub(crate) struct Pending {
    begin: Instant,
    last: Instant,
    pub(crate) known: Option<LastRead>,
    pub(crate) changed: bool,
    /// There was no snapshot before.
    pub(crate) first: bool,
    /// Sources were read, and not only keys.
    pub(crate) read: bool,
    /// Workloads in the mesh, if they changed.
    pub(crate) present: Option<MeshMembers>,
    earlier: Option<Box<EarlierState>>,
    unreadable: Option<ControlError>,
}

impl Pending {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            begin: now,
            last: now,
            known: None,
            changed: false,
            first: false,
            read: false,
            present: None,
            earlier: None,
            unreadable: None,
        }
    }

    /// Stores the result of a successful reading, or of new keys.
    pub(crate) fn heard(&mut self, known: LastRead) {
        self.last = Instant::now();
        self.known = Some(known);
        self.unreadable = None;
    }

    /// Something wrong is about to take the place of what was read last, which is this mesh.
    pub(crate) fn set_aside(&mut self, mesh: &Mesh) {
        let is_wrong = |known: &mut LastRead| {
            let said = known.diagnostics.iter().flatten();
            said.into_iter().any(Diagnostic::is_error)
        };
        if let Some(known) = self.known.take_if(|known| !is_wrong(known)) {
            self.earlier = Some(Box::new(EarlierState {
                known,
                changed: std::mem::take(&mut self.changed),
                first: self.first,
                mesh: mesh.clone(),
            }));
        }
    }

    /// One that did not.
    pub(crate) fn unreadable(&mut self, error: ControlError) {
        self.last = Instant::now();
        self.unreadable = Some(error);
    }

    /// When to do it, where the work before wants a pause until then.
    pub(crate) fn due(&self, pause: Option<NextReload>) -> Instant {
        let rested = self.last + QUIET;
        let (until, longest) = pause.map_or((rested, LONGEST), |one| (one.until, one.longest));
        match self.first {
            true => self.begin,
            false => rested.max(until).min(self.begin + longest),
        }
    }
}

/// Pause after the work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NextReload {
    /// Until then it is not done again.
    until: Instant,
    /// Unless so long has passed since the first edit.
    longest: Duration,
}

impl NextReload {
    fn after(end: Instant, took: Duration) -> Self {
        Self {
            until: end + took.saturating_mul(PAUSE),
            longest: LONGEST.max(took.saturating_mul(LONGEST_SHARE)),
        }
    }
}

/// State that the work needs.
pub(crate) struct ReloadScheduler {
    pub(crate) reporter: Reporter,
    pub(crate) last_good: LastGood,
    pub(crate) register: Register,
    pub(crate) status: Arc<Status>,
    pub(crate) pause: Option<NextReload>,
    /// When the same configuration may be judged otherwise: a certificate expires.
    pub(crate) judged_again: Option<Instant>,
    pub(crate) written: Written,
    /// Of the last report.
    pub(crate) found: Arc<[Diagnostic]>,
}

impl ReloadScheduler {
    /// Does it. May take long.
    pub(crate) fn work(&mut self, pending: Pending, mesh: &Mesh, snapshot: &MeshSnapshot) {
        let begin = Instant::now();
        let version = snapshot.version.to_string();
        let Pending {
            known,
            changed,
            first,
            read,
            present,
            earlier,
            unreadable,
            ..
        } = pending;
        if let Some(present) = present {
            self.register.keep(&present, &snapshot.departed);
        }
        if let Some(earlier) = earlier {
            let news = earlier.changed || earlier.first;
            self.say(
                earlier.known,
                (earlier.changed, news),
                &earlier.mesh,
                snapshot,
            );
        }
        if let Some(known) = known {
            self.written.keep(mesh);
            let errors = self.say(known, (changed, changed || first), mesh, snapshot);
            let failed = u64::from(read && errors > 0);
            self.status
                .failed_reloads
                .fetch_add(failed, Ordering::Relaxed);
        }
        if let Some(why) = &unreadable {
            self.status.unreadable(why.to_string());
            (self.reporter)(&Report {
                diagnostics: Vec::new(),
                problems: Vec::new(),
                unreadable,
                version,
                changed: false,
            });
        }
        // An edit that concerns no proxy is in force without a word of theirs.
        self.status.rested();
        voile_memory::give_back();
        let end = Instant::now();
        self.pause = Some(NextReload::after(end, end - begin));
    }

    /// Analyses and reports a state, and keeps it if it is new. Returns its number of errors.
    fn say(
        &mut self,
        known: LastRead,
        (changed, is_new): (bool, bool),
        mesh: &Mesh,
        snapshot: &MeshSnapshot,
    ) -> usize {
        let mut diagnostics = known.diagnostics.unwrap_or_default();
        // Nobody can mend now what is not there to be read.
        if known.files.is_some() {
            let now = SystemTime::now();
            diagnostics.extend(voile_analysis::analyze(mesh, now));
            let next = voile_analysis::next_change(mesh, now);
            let wait = next.and_then(|next| next.duration_since(now).ok());
            self.judged_again = wait.and_then(|wait| Instant::now().checked_add(wait));
        }
        Diagnostic::sort(&mut diagnostics);
        let errors = diagnostics.iter().filter(|d| d.is_error()).count();
        let before = self.status.errors.swap(errors as u64, Ordering::Relaxed);
        let mut problems = snapshot.problems();
        problems.extend(known.problems);
        self.status.found(Documents::of(&diagnostics, &problems));
        let report = Report {
            diagnostics,
            problems,
            unreadable: None,
            version: snapshot.version.to_string(),
            changed,
        };
        (self.reporter)(&report);
        // A correction may change no resource in force: the configuration is better than before all the same.
        let is_other = is_new || errors as u64 != before;
        if let Some(files) = known.files.as_ref().filter(|_| is_other) {
            self.last_good.keep(files, mesh, &report.diagnostics);
        }
        self.found = report.diagnostics.into();
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_edit_after_a_pause_is_told_of_at_once_and_a_storm_of_them_now_and_then() {
        let mut pending = Pending::new();
        let (begin, ms) = (pending.begin, Duration::from_millis);
        // When the last edit was, what the work took that ended at the first, and when it is done again.
        for (last, took, due) in [
            (0, None, 100),
            (0, Some(0), 100),
            (40, Some(0), 140),
            (0, Some(15), 3000),
            (2950, Some(15), 3050),
            (0, Some(250), 5000),
            (4990, None, 5000),
            // A mesh so large that this would be most of a core.
            (0, Some(2000), 40_000),
        ] {
            pending.last = begin + ms(last);
            let seen = pending.due(took.map(|took| NextReload::after(begin, ms(took))));
            assert_eq!(seen, begin + ms(due), "edited at {last}, took {took:?}");
        }
        pending.first = true;
        let pause = NextReload::after(begin, ms(15));
        assert_eq!(pending.due(Some(pause)), begin, "the first reading");
    }
}
