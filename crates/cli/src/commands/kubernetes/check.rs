//! `voile check`: checks a cluster before and after an installation.

use std::process::ExitCode;

use voile_kubernetes::install::{Checks, InstallError, Release};

use crate::commands::kubernetes::install::{InstallationArgs, exit_code};
use crate::commands::values::Output;

/// Check a Kubernetes cluster, and the control plane in it if there is one.
///
/// Each check has a number, a status and, unless it is ok, a cure. Without a control plane, or with `--before`, the checks say
/// whether one can be installed: version of the API server, namespace, permissions, definitions of kinds, names, webhooks of
/// others, and pod security of the namespaces that ask for sidecars. With a control plane they also say whether it is
/// available, whether its webhooks have its certificate authority, whether namespaces have the root certificate, and
/// whether proxies are connected. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 without errors (warnings are none), 1 with an error, 2 when a value cannot be used."
)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    cluster: InstallationArgs,

    /// Check only whether the control plane can be installed.
    #[arg(long)]
    before: bool,

    /// Format of the results.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    exit_code(
        "check",
        crate::commands::on_runtime(execute(args), InstallError::Unavailable),
    )
}

async fn execute(args: &CheckArgs) -> Result<ExitCode, InstallError> {
    let revision = args.cluster.revision.iter();
    let assignments: Vec<String> = revision.map(|name| format!("revision={name}")).collect();
    let release = Release::new(&args.cluster.namespace, &[], &assignments.into())?;
    let client = args.cluster.address.connect().await?;
    let checks = Checks::run(&client, &release, args.before).await;
    match args.output {
        Output::Json => println!("{:#}", checks.to_json()),
        Output::Text => print!("{}", checks.to_text()),
    }
    Ok(ExitCode::from(u8::from(!checks.passed())))
}
