//! Edits of the folder: read, check, expand. An error is reported, and keeps only what it names from
//! its edit.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use voile_model::folding::fold;
use voile_model::mesh::PodTemplate;
use voile_model::{Diagnostic, Mesh, ResourceName, Severity, SourceFile};
use voile_watch::{FolderWatch, WatchError};

use super::{Runner, same};
use crate::addresses::{Addresses, PodIsolation};
use crate::expand::{ExpandContext, RunPlan, expand};
use crate::rollout::{EmptyEnvironment, PodRoster, RolloutEnvironment};
use crate::runner::options::{Dataplane, UpError, counted};

/// Reads the folder's text as a mesh and a plan, with all problems in the order of the files. With `previous`, a
/// controller that cannot run as it is written goes on as it was.
pub(super) fn understand(
    sources: &[SourceFile],
    (previous, dataplane): (Option<(&Mesh, &RunPlan)>, Dataplane),
    (roster, scene): (&mut PodRoster, &impl RolloutEnvironment),
    addresses: &mut Addresses,
) -> Result<(Mesh, RunPlan, Vec<Diagnostic>), UpError> {
    let (mut mesh, mut problems) = voile_model::check(sources, previous.map(|(mesh, _)| mesh));
    if dataplane == Dataplane::Node {
        serve_by_node(&mut mesh);
    }
    problems.extend(voile_analysis::analyze(&mesh, std::time::SystemTime::now()));
    if addresses.layout() == PodIsolation::Namespaces {
        // Said of the other isolation.
        problems.retain(|problem| problem.code != voile_analysis::codes::NAMESPACES_ONLY);
    }
    let mut context = ExpandContext {
        running: &[],
        by_node: dataplane.has_node(),
    };
    let mut refused = None;
    if let Some((before, plan)) = previous {
        // A rollout may end old pods before it makes new ones, so all are planned once as at a first start.
        let mut first = PodRoster::default();
        first.want(&mesh);
        first.step(&EmptyEnvironment);
        let attempt = expand(&mesh, &first, context, &mut addresses.clone())?;
        keep_controllers(&mut mesh, &attempt, before, plan);
        refused = Some(attempt.problems);
        context.running = &plan.pods;
    }
    roster.want(&mesh);
    roster.step(scene);
    let plan = expand(&mesh, roster, context, addresses)?;
    problems.extend(refused.unwrap_or_else(|| plan.problems.clone()));
    Diagnostic::sort(&mut problems);
    Ok((mesh, plan, problems))
}

/// Gives controllers their last good version if none of their pods can run as it is written now.
fn keep_controllers(mesh: &mut Mesh, attempt: &RunPlan, before: &Mesh, running: &RunPlan) {
    let runs = |plan: &RunPlan, key: &ResourceName| {
        let mut controllers = plan.pods.iter().filter_map(|pod| pod.controller.as_ref());
        controllers.any(|one| one.key == *key)
    };
    for controller in attempt
        .refused
        .iter()
        .filter_map(|one| one.controller.as_ref())
    {
        let key = &controller.key;
        if let Some(good) = before.deployments.get(key)
            && runs(running, key)
            && !runs(attempt, key)
        {
            mesh.deployments.insert(key.clone(), good.clone());
        }
    }
}

/// Changes the mesh for `--dataplane node`: the node proxy serves pods that would have a sidecar; gateways stay
/// unchanged.
pub fn serve_by_node(mesh: &mut Mesh) {
    let change = |template: &mut PodTemplate| {
        if template.has_sidecar && !template.is_gateway() {
            template.has_sidecar = false;
            template.ambient = true;
        }
    };
    let deployments = mesh.deployments.values_mut();
    deployments.for_each(|one| change(&mut Arc::make_mut(one).template));
    let pods = mesh.pods.values_mut();
    pods.for_each(|one| change(&mut Arc::make_mut(one).template));
}

pub(super) fn print(problems: &[Diagnostic], sources: &[SourceFile]) {
    // Notes are shown on request (`voile analyze`).
    let told = problems.iter().filter(|one| one.severity != Severity::Note);
    for problem in fold(told.cloned().collect(), sources) {
        let _ = writeln!(io::stderr(), "{problem}");
    }
}

/// Watches the folder from now on, and reads it.
pub(super) fn watch_folder(folder: &Path) -> Result<(FolderWatch, Vec<SourceFile>), UpError> {
    let failed = |error: WatchError| UpError::Folder(io::Error::other(error));
    let mut watch = FolderWatch::new(&[folder.to_owned()]).map_err(failed)?;
    let sources = texts(&watch.load().map_err(failed)?);
    Ok((watch, sources))
}

/// The files as the model reads them.
fn texts(files: &[Arc<SourceFile>]) -> Vec<SourceFile> {
    files.iter().map(|file| SourceFile::clone(file)).collect()
}

impl Runner {
    /// Number of errors in the folder.
    pub(super) fn errors(&self) -> usize {
        self.problems.iter().filter(|one| one.is_error()).count()
    }

    /// The errors that stay in the folder, to follow a statement of what is in force.
    pub(super) fn told_errors(&self) -> String {
        match self.errors() {
            0 => String::new(),
            errors => format!("; {} in the folder", counted(errors)),
        }
    }

    /// The folder has changed: follow it as far as it is good.
    pub(super) fn edited(&mut self) -> Result<(), UpError> {
        let read = self.watch.load();
        for note in self.watch.take_notes() {
            self.event(&note);
        }
        let sources = match read {
            Ok(files) => texts(&files),
            Err(error) => {
                self.unreadable = true;
                self.event(&format!(
                    "the folder cannot be read; the last good state stays in force: {error}"
                ));
                return Ok(());
            }
        };
        if std::mem::take(&mut self.unreadable) {
            self.event("the folder can be read again");
        }
        if sources == self.sources {
            return Ok(());
        }
        // Addresses are only taken over with the plan.
        let (mut addresses, mut roster) = (self.addresses.clone(), self.roster.clone());
        let all = (&mut roster, &self.scene(Instant::now()));
        let understood = understand(
            &sources,
            (Some((&self.mesh, &self.plan)), self.options.dataplane),
            all,
            &mut addresses,
        );
        let (mesh, plan, problems) = match understood {
            Ok(understood) => understood,
            Err(error) => {
                self.event(&format!(
                    "the edit cannot be applied; the last good state stays in force: {error}"
                ));
                return Ok(());
            }
        };
        self.sources = sources;
        let is_known =
            |problem: &&Diagnostic| self.problems.iter().any(|known| same(known, problem));
        let fresh = problems.iter().filter(|problem| !is_known(problem));
        let fresh: Vec<Diagnostic> = fresh.cloned().collect();
        for problem in &fresh {
            self.event(&problem.to_string());
        }
        let is_new = fresh.iter().any(Diagnostic::is_error);
        self.problems = problems;
        self.acknowledged.expiry_due = Some(Instant::now());
        if is_new {
            self.forget_edit();
            self.event(&format!(
                "{} in the folder: the named resources keep their last good state",
                counted(self.errors())
            ));
        } else {
            self.await_edit();
        }
        (self.mesh, self.plan, self.addresses) = (mesh, plan, addresses);
        self.roster = roster;
        self.apply()
    }

    /// Replaces replicas in turn: starts and ends the pods that may come or go now.
    pub(super) fn roll(&mut self) -> Result<(), UpError> {
        let mut roster = self.roster.clone();
        if !roster.step(&self.scene(Instant::now())) {
            return Ok(());
        }
        let context = ExpandContext {
            running: &self.plan.pods,
            by_node: self.plan.by_node,
        };
        self.plan = expand(&self.mesh, &roster, context, &mut self.addresses)?;
        self.roster = roster;
        self.apply()
    }
}
