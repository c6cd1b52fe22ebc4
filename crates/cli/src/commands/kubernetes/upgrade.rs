//! `voile upgrade`: a newer control plane with the values of the one that runs.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use voile_kubernetes::Client;
use voile_kubernetes::install::{
    self, ApplyMode, InstallError, Remaining, Removal, Upgrade, Workload,
};

use crate::commands::kubernetes::install::{InstallationArgs, ValueArgs, exit_code};
use crate::commands::values::Output;

/// Install a newer control plane with the values of the one that runs.
///
/// With --revision the new one runs beside the old one, under the same certificate authority, and changes nothing for pods that run.
/// The command waits until it is available, and prints what is left to do until the old one can go.
///
/// First, tags and labels of namespaces name the new revision: new pods get its proxies (--move-tags moves tags). Then the workloads
/// are restarted, so that their pods get them, too (--restart). Last, when no pod has proxies of the old revision, it is removed
/// (--remove). These flags do the steps together, or one call after the other: what is done is read from the cluster. Until the last
/// step the way back is the old tag and another restart.
///
/// No request fails if the workloads themselves can be restarted without one: two pods or more, a readiness probe, and a preStop hook
/// that lets the last requests come.
///
/// Without --revision the control plane is changed in its place, pod by pod.
///
/// Values of --values, --set and --set-string are laid over those that run.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when the steps are done, 1 when something is missing or not available or the cluster refuses, 2 when a value cannot be used."
)]
pub(crate) struct UpgradeArgs {
    // `--revision` is the new one.
    #[command(flatten)]
    cluster: InstallationArgs,

    /// The revision that runs; without it the only one.
    #[arg(long, value_name = "NAME")]
    from: Option<String>,

    // They are laid over those of the revision that runs.
    #[command(flatten)]
    values: ValueArgs,

    /// Let the tags of the old revision stand for the new one.
    #[arg(long, requires = "revision")]
    move_tags: bool,

    /// Restart the workloads whose pods have proxies of the old revision, one after the other, those that get new ones.
    #[arg(long, requires = "revision")]
    restart: bool,

    /// Remove the old revision, if no tag, namespace or pod needs it.
    #[arg(long, requires = "revision")]
    remove: bool,

    /// Change nothing; print what would be installed with which values, and what would be left to do.
    #[arg(long)]
    dry_run: bool,

    /// Format of what is left to do.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,

    /// The longest time to wait for the control plane, and for each workload, such as 90s or 5m.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::commands::values::duration)]
    timeout: Duration,
}

pub(crate) fn run(args: &UpgradeArgs) -> ExitCode {
    let done = crate::commands::on_runtime(execute(args), InstallError::Unavailable);
    exit_code("upgrade", done)
}

fn progress(line: &str) {
    eprintln!("{line}");
}

async fn execute(args: &UpgradeArgs) -> Result<ExitCode, InstallError> {
    let files = args.values.read_files()?;
    let client = args.cluster.address.connect().await?;
    let revisions = (args.from.as_deref(), args.cluster.revision.as_deref());
    let namespace = &args.cluster.namespace;
    let assignments = args.values.assignments();
    let upgrade = Upgrade::plan(&client, namespace, revisions, &files, &assignments).await?;
    if args.dry_run {
        let remaining = upgrade.remaining(&client).await?;
        print!("{}", report(&upgrade, &remaining, args));
        return Ok(ExitCode::SUCCESS);
    }
    install(&client, &upgrade, args.timeout).await?;
    if args.move_tags {
        upgrade.move_tags(&client, &progress).await?;
    }
    if args.restart {
        restart(&client, &upgrade, args.timeout).await?;
    }
    let mut remaining = upgrade.remaining(&client).await?;
    if args.remove {
        remove(&client, &upgrade, &remaining).await?;
        remaining = Remaining::default();
    }
    print!("{}", report(&upgrade, &remaining, args));
    Ok(ExitCode::SUCCESS)
}

async fn install(
    client: &Client,
    upgrade: &Upgrade,
    timeout: Duration,
) -> Result<(), InstallError> {
    upgrade.take_definitions(client).await?;
    let release = &upgrade.release;
    let manifests = release.manifests(&install::cluster_facts(client).await?)?;
    let changes = |line: &str| {
        if !line.ends_with(" unchanged") {
            progress(line);
        }
    };
    install::apply(client, release, &manifests, ApplyMode::Store, &changes).await?;
    install::wait(client, release, timeout, &progress).await?;
    upgrade.until_serving(client, timeout).await
}

/// Restarts the workloads whose namespaces no longer name the old revision.
async fn restart(
    client: &Client,
    upgrade: &Upgrade,
    timeout: Duration,
) -> Result<(), InstallError> {
    let remaining = upgrade.remaining(client).await?;
    let is_due =
        |one: &&Workload| one.is_restartable() && !remaining.namespaces.contains(&one.namespace);
    let due: Vec<&Workload> = remaining.workloads.keys().filter(is_due).collect();
    for (number, workload) in due.iter().enumerate() {
        progress(&format!(
            "restart {} of {}: {workload}",
            number + 1,
            due.len()
        ));
        install::restart(client, workload, timeout, &progress).await?;
    }
    Ok(())
}

async fn remove(
    client: &Client,
    upgrade: &Upgrade,
    remaining: &Remaining,
) -> Result<(), InstallError> {
    let from = &upgrade.from;
    if *remaining != Remaining::default() {
        let steps = upgrade.next_steps(remaining).join("\n  ");
        return Err(InstallError::Unavailable(format!(
            "the revision {from} stays: pods, namespaces or tags need it\ncure: these commands, in this order\n  {steps}"
        )));
    }
    let removal = Removal {
        namespace: &upgrade.release.namespace,
        revision: from,
        purge_definitions: false,
        confirm: &|_| false,
    };
    install::uninstall(client, removal, &progress).await
}

/// What is left to do.
fn report(upgrade: &Upgrade, remaining: &Remaining, args: &UpgradeArgs) -> String {
    let (from, to) = (&upgrade.from, upgrade.to());
    let steps = match args.remove && !args.dry_run {
        true => Vec::new(),
        false => upgrade.next_steps(remaining),
    };
    match args.output {
        Output::Json => {
            let workload = |(one, pods): (&Workload, &usize)| json!({"namespace": one.namespace, "kind": one.kind, "name": one.name, "pods": pods});
            let workloads: Vec<_> = remaining.workloads.iter().map(workload).collect();
            let report = json!({
                "from": from, "to": to, "image": upgrade.image, "values": upgrade.release.given(),
                "tags": remaining.tags, "namespaces": remaining.namespaces, "workloads": workloads, "next": steps,
            });
            format!("{report:#}\n")
        }
        Output::Text => {
            let (image, pods) = (&upgrade.image, remaining.workloads.values().sum::<usize>());
            let done = if args.dry_run { "would run" } else { "runs" };
            let mut text = format!("revision {to} {done} {image}\n");
            if args.dry_run {
                let values = upgrade.release.given();
                text += &format!("values: {values}\n");
            }
            text += &format!("pods with proxies of {from}: {pods}\n");
            if !steps.is_empty() {
                text += &format!("next:\n  {}\n", steps.join("\n  "));
            }
            text
        }
    }
}
