//! Acknowledgements by proxies, as the control planes report them: edits in force, ready proxies, refusals. Reports
//! each change once; `view` shows the state that still holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use voile_model::{Diagnostic, ResourceName, SourceFile};

use super::{Runner, same};
use crate::control_page::{ControlPages, EditStatus};
use crate::node;
use crate::pod_run::PodRun;
use crate::runner::options::UpError;

/// Time after which an edit that is not yet in force is reported.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct AcknowledgedEdits {
    pub(super) pages: ControlPages,
    /// Time of the last edit that is not yet in force, and the last message about it.
    edit: Option<(Instant, Option<String>)>,
    /// Reported refusals that still hold.
    refusals: BTreeSet<String>,
    problems: BTreeSet<String>,
    /// When certificates may be judged otherwise without an edit; none if there are none.
    pub(super) expiry_due: Option<Instant>,
}

impl AcknowledgedEdits {
    pub(super) fn nothing(now: Instant) -> Self {
        Self {
            pages: ControlPages::default(),
            edit: None,
            refusals: BTreeSet::new(),
            problems: BTreeSet::new(),
            expiry_due: Some(now),
        }
    }

    /// Everything that is wrong now, the gravest first.
    pub(super) fn troubles(&self) -> Vec<String> {
        let all = self.problems.iter().chain(&self.refusals);
        all.cloned().collect()
    }
}

impl Runner {
    /// Notes that the folder was edited, and that the run follows.
    pub(super) fn await_edit(&mut self) {
        self.acknowledged.edit = Some((Instant::now(), None));
    }

    /// The folder was edited, and not all of it is followed: nothing is said to be in force.
    pub(super) fn forget_edit(&mut self) {
        self.acknowledged.edit = None;
    }

    /// Reports changes of the proxies' acknowledgements.
    pub(super) fn note_acknowledgements(&mut self, now: Instant) {
        let refusals = self.acknowledged.pages.refusals();
        let problems = self.acknowledged.pages.problems();
        let said = &self.acknowledged;
        let mut news: Vec<String> = problems.difference(&said.problems).cloned().collect();
        news.extend(refusals.difference(&said.refusals).cloned());
        let over = said.refusals.difference(&refusals);
        let over = over.chain(said.problems.difference(&problems));
        news.extend(over.map(|text| format!("no longer: {text}")));
        self.acknowledged.refusals = refusals;
        self.acknowledged.problems = problems;
        for text in news {
            self.event(&text);
        }
        self.judge_edit(now);
    }

    fn judge_edit(&mut self, now: Instant) {
        let Some((since, said)) = self.acknowledged.edit.clone() else {
            return;
        };
        let proxies = self.proxies();
        let folders = self.folders();
        let text = match self.acknowledged.pages.verdict(&folders, &proxies, now) {
            EditStatus::InForce(count) => {
                self.acknowledged.edit = None;
                let proxies = if count == 1 { "proxy" } else { "proxies" };
                let errors = self.told_errors();
                self.event(&format!(
                    "the edit is in force: acknowledged by {count} {proxies}{errors}"
                ));
                return;
            }
            EditStatus::Refused => "the edit is not in force: a proxy rejects it".to_owned(),
            EditStatus::Waiting(_) if now.duration_since(since) < SAID_AFTER => return,
            EditStatus::Waiting(what) => {
                format!("the edit is not in force yet: waiting for {what}")
            }
        };
        if said.as_ref() != Some(&text) {
            self.event(&text);
            self.acknowledged.edit = Some((since, Some(text)));
        }
    }

    /// `namespace/name` of the proxies that should acknowledge: those of the pods that stay, and the node proxy.
    fn proxies(&self) -> BTreeSet<String> {
        let pods = self.pods.iter();
        let pods = pods.filter(|(_, pod)| pod.sidecar.is_some() && !pod.is_over());
        let node = self.node.iter().map(|_| node::NODE_PROXY.to_owned());
        pods.map(|(name, _)| name.to_string()).chain(node).collect()
    }

    /// Digests of the folders that the control plane should have read.
    fn folders(&self) -> BTreeMap<PathBuf, String> {
        let own = self.run_folder.config();
        let file = own.join(super::MESH_FILE);
        let file = SourceFile::new(file.to_string_lossy(), self.written.as_str());
        let mut folders = self.watch.digests();
        folders.insert(own, voile_watch::digest_of(&[file]));
        folders
    }

    /// Returns true if the pod's proxy has acknowledged everything that concerns it. A pod without a proxy has
    /// nothing to wait for.
    pub(super) fn has_acknowledged(&self, name: &ResourceName, pod: &PodRun, now: Instant) -> bool {
        let proxy = match () {
            () if pod.sidecar.is_some() => name.to_string(),
            () if self.plan.by_node && pod.plan.is_ambient() => node::NODE_PROXY.to_owned(),
            () => return true,
        };
        self.acknowledged.pages.has_acknowledged(&proxy, now)
    }

    /// A proxy of which nothing is acknowledged and nothing refused yet.
    pub(super) fn unacknowledged(&self) -> Option<String> {
        let now = Instant::now();
        let pages = &self.acknowledged.pages;
        if !pages.refusals().is_empty() {
            return None;
        }
        let proxies = self.proxies();
        let proxy = proxies
            .iter()
            .find(|proxy| !pages.has_acknowledged(proxy, now))?;
        Some(format!(
            "the proxy of {proxy} to acknowledge its configuration"
        ))
    }

    /// Reports certificates that newly expired: they do so without an edit.
    pub(super) fn note_expiry(&mut self, now: Instant) {
        if self.acknowledged.expiry_due.is_none_or(|due| now < due) {
            return;
        }
        let clock = SystemTime::now();
        let next = voile_analysis::next_change(&self.mesh, clock);
        let wait = next.and_then(|next| next.duration_since(clock).ok());
        self.acknowledged.expiry_due = wait.and_then(|wait| now.checked_add(wait));
        let mut found = match self.mesh.secrets.is_empty() {
            true => Vec::new(),
            false => voile_analysis::analyze(&self.mesh, clock),
        };
        found.retain(|one| one.code == voile_analysis::codes::REFUSED_CERTIFICATE);
        let known = |one: &Diagnostic| self.problems.iter().any(|known| same(known, one));
        let fresh: Vec<Diagnostic> = found.into_iter().filter(|one| !known(one)).collect();
        for one in fresh {
            self.event(&one.to_string());
            self.problems.push(one);
        }
    }

    /// Stores the last status pages of the control planes.
    pub(super) fn take_pages(&mut self, pages: ControlPages) {
        self.acknowledged.pages = pages;
    }

    /// From now on every control plane serves this root and no other: one that is started again makes none.
    pub(super) fn pin_root(&mut self) -> Result<(), UpError> {
        let state = |error: String| UpError::State(error);
        let directory = voile_identity::StateDir::open(&self.state);
        let directory = directory.map_err(|error| state(error.to_string()))?;
        let root = directory.read_public(super::ROOT_CERTIFICATE);
        let root = root.map_err(|error| state(error.to_string()))?;
        let root = root.and_then(|pem| voile_identity::RootFingerprint::of_certificate(&pem));
        let root = root.ok_or_else(|| state(format!("no {}", super::ROOT_CERTIFICATE)))?;
        for control in &mut self.controls {
            control.change_args(|args| {
                args.retain(|word| word != voile_identity::NEW_ROOT_FLAG);
                args.extend(["--expect-root".to_owned(), root.to_string()]);
            });
        }
        Ok(())
    }
}
