//! Edits of the folder: read, check, expand. A broken edit is reported and changes nothing that runs.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use voile_model::mesh::PodTemplate;
use voile_model::{Diagnostic, Mesh, Severity, SourceFile};
use voile_watch::{FolderWatch, WatchError};

use super::{Dataplane, Runner, UpError, same};
use crate::addresses::{Addresses, PodIsolation};
use crate::expand::{NOT_SERVED, PodPlan, RunPlan, expand};
use crate::rollout::{PodRoster, RolloutEnvironment};

/// Reads the folder's text as a mesh and a plan, with all problems in the order of the files.
pub(super) fn understand(
    sources: &[SourceFile],
    (previous, dataplane): (Option<&Mesh>, Dataplane),
    (roster, scene): (&mut PodRoster, &impl RolloutEnvironment),
    addresses: &mut Addresses,
) -> Result<(Mesh, RunPlan, Vec<Diagnostic>), UpError> {
    let (mut mesh, mut problems) = voile_model::check(sources, previous);
    if dataplane == Dataplane::Node {
        serve_by_node(&mut mesh);
    }
    problems.extend(voile_analysis::analyze(&mesh, std::time::SystemTime::now()));
    if addresses.layout() == PodIsolation::Namespaces {
        // Said of the other isolation.
        problems.retain(|problem| problem.code != voile_analysis::codes::NAMESPACES_ONLY);
    }
    roster.want(&mesh);
    roster.step(scene);
    let mut plan = expand(&mesh, roster, addresses)?;
    plan.by_node = dataplane.has_node();
    if !plan.by_node {
        let unserved = unserved(&plan);
        plan.problems.extend(unserved);
    }
    problems.extend(plan.problems.iter().cloned());
    Diagnostic::sort(&mut problems);
    Ok((mesh, plan, problems))
}

/// Ambient pods that no node proxy serves: nothing would enforce a policy before them.
fn unserved(plan: &RunPlan) -> Vec<Diagnostic> {
    let ambient = plan.pods.iter().filter(|pod| pod.is_ambient());
    let problem = |pod: &PodPlan| {
        let message = format!(
            "`{}` is ambient (istio.io/dataplane-mode), and no node proxy serves it: no policy would be enforced before it",
            pod.workload()
        );
        Diagnostic::error(NOT_SERVED, pod.source.clone(), message).help(
            "run it with --isolation netns --dataplane mixed, give it a sidecar (istio-injection: enabled), or remove the label",
        )
    };
    let mut problems: Vec<Diagnostic> = ambient.map(problem).collect();
    problems.dedup();
    problems
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

/// Returns true if a condition of Gateway API reports the problem in the status. The data plane answers requests that
/// it affects (500 for an absent backend), and the rest runs, as in a cluster.
pub(super) fn is_answered(mesh: &Mesh, problem: &Diagnostic) -> bool {
    let said = mesh.gateway_api.said.iter();
    let mut refusals = said.flat_map(|said| &said.refusals);
    refusals.any(|one| one.source == problem.source && one.said == problem.message)
}

pub(super) fn print(problems: &[Diagnostic]) {
    // Notes are shown on request (`voile analyze`).
    let told = problems.iter().filter(|one| one.severity != Severity::Note);
    for problem in told {
        let _ = writeln!(io::stderr(), "{problem}");
    }
}

/// `1 error`, `2 errors`.
pub(super) fn counted(errors: usize) -> String {
    if errors == 1 {
        "1 error".to_owned()
    } else {
        format!("{errors} errors")
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
                    "the folder cannot be read, the last good state stays: {error}"
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
            (Some(&self.mesh), self.options.dataplane),
            all,
            &mut addresses,
        );
        let (mesh, plan, problems) = match understood {
            Ok(understood) => understood,
            Err(error) => {
                self.event(&format!(
                    "the edit cannot be followed, the last good state stays: {error}"
                ));
                return Ok(());
            }
        };
        self.sources = sources;
        let fresh: Vec<String> = problems
            .iter()
            .filter(|problem| !self.problems.iter().any(|known| same(known, problem)))
            .map(ToString::to_string)
            .collect();
        for text in fresh {
            self.event(&text);
        }
        let errors = problems.iter().filter(|problem| problem.is_error()).count();
        self.problems = problems;
        if plan.problems.iter().any(Diagnostic::is_error) {
            self.forget_edit();
            self.event("the edit cannot run here: no pod is started or stopped for it");
            return Ok(());
        }
        if errors > 0 {
            self.forget_edit();
            self.event(&format!(
                "{} in the folder: what is named keeps its last good state",
                counted(errors)
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
        let plan = expand(&self.mesh, &roster, &mut self.addresses)?;
        self.plan = RunPlan {
            by_node: self.options.dataplane.has_node(),
            ..plan
        };
        self.roster = roster;
        self.apply()
    }
}
