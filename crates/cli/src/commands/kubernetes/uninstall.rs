//! `voile uninstall`: removes a control plane from a Kubernetes cluster.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use voile_kubernetes::install::{self, InstallError, Removal};

use crate::commands::kubernetes::install::{InstallationArgs, exit_code};

/// Remove the control plane that `voile install` installed, and all that it wrote.
///
/// Removes the webhooks first, then the control plane, then what it wrote: the ConfigMaps istio-ca-root-cert, the Secret
/// istio-ca-secret and Leases. Another control plane keeps what it shares. The namespace goes if `voile install` created it
/// and nothing else is in it.
///
/// Definitions of kinds stay, because all resources of these kinds would go with them; `--purge-crds` removes both. Pods keep
/// their sidecars until they are restarted.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when it is removed, 1 when there is none or the cluster refuses."
)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    cluster: InstallationArgs,

    /// Remove the definitions of kinds that `voile install` installed, and all their resources. Asks first.
    #[arg(long)]
    purge_crds: bool,

    /// Answer every question with yes.
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(args: &UninstallArgs) -> ExitCode {
    exit_code(
        "uninstall",
        crate::commands::on_runtime(execute(args), InstallError::Unavailable),
    )
}

async fn execute(args: &UninstallArgs) -> Result<ExitCode, InstallError> {
    let client = args.cluster.address.connect().await?;
    let confirm = |question: &str| args.yes || ask(question);
    let removal = Removal {
        namespace: &args.cluster.namespace,
        revision: args.cluster.revision.as_deref().unwrap_or_default(),
        purge_definitions: args.purge_crds,
        confirm: &confirm,
    };
    install::uninstall(&client, removal, &|line| eprintln!("{line}")).await?;
    Ok(ExitCode::SUCCESS)
}

/// Asks a person. Without a terminal nobody answers, and the answer is no.
pub(crate) fn ask(question: &str) -> bool {
    let input = std::io::stdin();
    if !input.is_terminal() {
        eprintln!("{question} Nobody can answer here: give --yes");
        return false;
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    let read = input.lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
