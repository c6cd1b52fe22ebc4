//! Runs the commands of hooks, before and after slices and as events. They are bounded in time and end with the lab. Their
//! environment names the slice. The error of a failed hook has the end of its output.

use std::path::Path;
use std::time::Duration;

use voile_host::child::Spec;

use crate::definition::Definition;
use crate::generator::{BrokenSlice, wait_until};
use crate::machine::instance::Instance;
use crate::plan::PlannedSlice;
use crate::shared_processes::Lab;

/// The command of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HookPhase {
    Before,
    After,
}

impl HookPhase {
    fn word(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// Checks that all programs of hooks exist, before anything is started.
pub(crate) fn possible(definition: &Definition) -> Result<(), String> {
    let used = definition.hooks.iter().filter(|(name, _)| {
        let mut cells = definition.cells.iter();
        cells.any(|cell| cell.shape.hook == **name)
    });
    for (name, hook) in used {
        for (when, command) in [("before", &hook.before), ("after", &hook.after)] {
            let Some(program) = command.first() else {
                continue;
            };
            if !there(program) {
                return Err(format!("hook {name}, {when}: program {program} not found"));
            }
        }
    }
    Ok(())
}

/// Returns true if a program can be found as the kernel or a shell would find it.
pub(crate) fn there(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Does what a slice's hook says for that moment; nothing where it has none.
pub(crate) fn around(
    lab: &Lab<'_>,
    definition: &Definition,
    planned: &PlannedSlice,
    when: HookPhase,
    instances: &[Instance],
) -> Result<(), BrokenSlice> {
    let cell = &planned.cell;
    let Some(hook) = definition.hooks.get(&cell.shape.hook) else {
        return Ok(());
    };
    let command = match when {
        HookPhase::Before => &hook.before,
        HookPhase::After => &hook.after,
    };
    if command.is_empty() {
        return Ok(());
    }
    let name = format!("hook-{}-{}", cell.shape.hook, when.word());
    let pids: Vec<String> = instances
        .iter()
        .filter(|instance| instance.far.is_empty())
        .map(|instance| {
            let pids: Vec<String> = instance
                .pids_here()
                .iter()
                .map(ToString::to_string)
                .collect();
            format!("{}={}", instance.role, pids.join(","))
        })
        .collect();
    let spec = spec(lab, &name, &cell.contestant, command)
        .env("VOILE_LAB_HOOK", &cell.shape.hook)
        .env("VOILE_LAB_WHEN", when.word())
        .env("VOILE_LAB_MODE", &cell.mode)
        .env("VOILE_LAB_ROUND", planned.round.to_string())
        .env("VOILE_LAB_PIDS", pids.join(" "));
    run(lab, &name, spec, hook.bound).map_err(|broken| match broken {
        BrokenSlice::Failed(why) => {
            BrokenSlice::Failed(format!("hook {}, {}: {why}", cell.shape.hook, when.word()))
        }
        BrokenSlice::Stopped => BrokenSlice::Stopped,
    })
}

/// A command of that name; its output goes to a log.
pub(crate) fn spec(lab: &Lab<'_>, name: &str, contestant: &str, command: &[String]) -> Spec {
    lab.free_process(name, command[0].as_ref())
        .args(&command[1..])
        .env("VOILE_LAB_CONTESTANT", contestant)
        .env("VOILE_LAB_FOLDER", lab.folder)
}

/// Runs a command to its end, within its bound. If it takes longer, or the user asks to end, it ends with all processes that it
/// started.
pub(crate) fn run(
    lab: &Lab<'_>,
    name: &str,
    spec: Spec,
    bound: Duration,
) -> Result<(), BrokenSlice> {
    let mut child = spec
        .start()
        .map_err(|e| BrokenSlice::Failed(e.to_string()))?;
    let until = std::time::Instant::now() + bound;
    if !wait_until(&mut child, until, lab)? {
        return Err(BrokenSlice::Failed(format!(
            "it did not end within {bound:?}{}",
            lab.log_end(name)
        )));
    }
    match child.try_exit() {
        Some(exit) if exit.is_success() => Ok(()),
        Some(exit) => Err(BrokenSlice::Failed(format!(
            "it {exit}{}",
            lab.log_end(name)
        ))),
        None => Err(BrokenSlice::Failed("its exit status was lost".to_owned())),
    }
}
