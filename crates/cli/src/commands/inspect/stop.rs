//! `voile stop`: ends the mesh of `voile up` that runs on this machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::commands::inspect::monitoring::runtime;
use crate::commands::inspect::running_mesh::MeshArgs;

/// Stop the mesh of `voile up` that runs on this machine, as Ctrl-C does: applications first, then their sidecars.
///
/// Waits until nothing of it is left.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when it has ended, 2 if no mesh runs, or it has not ended in a minute."
)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    mesh: MeshArgs,
}

/// Longer than the grace of applications, sidecars and control planes together.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &StopArgs) -> ExitCode {
    match stop(args) {
        Ok(told) => {
            eprintln!("{told}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("voile stop: {reason}");
            ExitCode::from(2)
        }
    }
}

fn stop(args: &StopArgs) -> Result<String, String> {
    let runtime = runtime()?;
    let mesh = args.mesh.need(&runtime)?;
    let pid = mesh.running.pid;
    mesh.stop()?;
    let until = Instant::now() + PATIENCE;
    // Its folder goes last.
    while mesh.running.socket.exists() {
        if Instant::now() > until {
            return Err(format!(
                "process {pid} has not ended in {PATIENCE:?}; its logs are in {}",
                mesh.running.logs.display()
            ));
        }
        runtime.block_on(async { tokio::time::sleep(LOOK_EVERY).await });
    }
    let folder = mesh.folder().display();
    Ok(format!("voile up {folder} (process {pid}) has ended"))
}
