//! Scenes: what each asks of its figures, what follows from its slices, and its page.
//!
//! ```text
//! slices ──► conclude ──► findings ──► view (tables, plots, words) ──► report.html, report.md, terminal; slices ──► CSV
//! ```

mod agreement;
mod data;
pub mod decisions;
mod figures;
mod generators;
mod graph;
mod lower;
mod page;
mod view;

pub use lower::read;

use crate::plots::plot::{Section, name_once};
use crate::record::Record;
use crate::record::scene::{Finding, SceneKind};
use crate::record::target_verdicts::TargetResult;
use data::SceneFigures;
use view::SceneView;

impl SceneKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Graph,
        Self::Agreement,
        Self::Generators,
        Self::Decisions,
        Self::ControlPlane,
        Self::Sidecars,
        Self::Nodes,
    ];

    /// File of its record.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Agreement => "agreement.json",
            Self::Generators => "generators.json",
            Self::Decisions => "decisions.json",
            Self::Graph => "graph.json",
            Self::ControlPlane => "control-plane.json",
            Self::Sidecars => "sidecars.json",
            Self::Nodes => "nodes.json",
        }
    }

    /// The end of its folder's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.file().trim_end_matches(".json")
    }
}

/// What a scene asks of its figures.
fn asked(record: &Record) -> Vec<Finding> {
    let scene = record.own_scene();
    match scene.kind {
        SceneKind::Agreement => agreement::asked(&scene.parts),
        SceneKind::Generators => generators::asked(&scene.parts),
        SceneKind::Decisions => decisions::asked(record),
        SceneKind::Graph => graph::asked(),
        // Each figure is asked for as it is measured.
        SceneKind::ControlPlane | SceneKind::Sidecars | SceneKind::Nodes => scene.findings.clone(),
    }
}

/// Fills the findings from the slices.
pub fn conclude(record: &mut Record) {
    let figures = SceneFigures::of(record);
    let mut findings = asked(record);
    findings.iter_mut().for_each(|one| one.conclude(&figures));
    if let Some(scene) = &mut record.scene {
        scene.findings = findings;
    }
}

/// What the page of a scene shows.
fn view_of(record: &Record) -> SceneView {
    let scene = record.own_scene();
    let mut own: Vec<&Finding> = scene.findings.iter().collect();
    let mut shown = match scene.kind {
        SceneKind::Agreement => agreement::view(record),
        SceneKind::Generators => generators::view(record, &SceneFigures::of(record)),
        SceneKind::Decisions => decisions::view(record, &SceneFigures::of(record)),
        SceneKind::Graph => graph::view(record, &SceneFigures::of(record)),
        SceneKind::ControlPlane | SceneKind::Sidecars | SceneKind::Nodes => {
            own = figures::own(record);
            figures::view(record, &own)
        }
    };
    shown.tables.insert(0, view::verdicts(&own));
    shown.sections.retain(|section| !section.plots.is_empty());
    name_once(&mut shown.sections);
    shown
}

/// The findings, for a terminal.
#[must_use]
pub fn terminal(record: &Record) -> String {
    page::terminal(&view_of(record))
}

/// The plots.
#[must_use]
pub fn sections(record: &Record) -> Vec<Section> {
    view_of(record).sections
}

/// Names and contents of the drawings.
#[must_use]
pub fn drawings(record: &Record) -> Vec<(&'static str, String)> {
    let view = view_of(record);
    let mut files = vec![
        ("report.html", page::html(record, &view)),
        ("report.md", page::markdown(record, &view)),
        (page::csv_file(record), page::csv(record)),
    ];
    let picture = view.picture.map(|(_, picture)| ("graph.svg", picture));
    files.extend(picture);
    files
}

/// The missed requirement for which a command fails; none if it does not.
#[must_use]
pub fn shortcoming(record: &Record) -> Option<&'static str> {
    let scene = record.own_scene();
    let outcomes = || scene.findings.iter().filter_map(|finding| finding.outcome);
    let missed = outcomes().any(|outcome| outcome == TargetResult::Missed);
    let broken = || {
        let mut ours = record.runs.iter().filter(|run| run.contestant == "voile");
        record.runs.is_empty() || ours.any(|run| !run.valid)
    };
    let nothing = scene.findings.iter().all(|finding| finding.ratio.is_none());
    match scene.kind {
        SceneKind::Graph => nothing.then_some("no round is valid on both sides"),
        SceneKind::Agreement => {
            let all = outcomes().all(|outcome| outcome == TargetResult::Reached);
            let agree = all && outcomes().next().is_some();
            (!agree).then_some("the generators do not agree within the bounds")
        }
        SceneKind::ControlPlane | SceneKind::Sidecars | SceneKind::Nodes => None,
        SceneKind::Generators | SceneKind::Decisions => {
            (missed || broken()).then_some("a bound is missed")
        }
    }
}
