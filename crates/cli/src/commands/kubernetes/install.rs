//! `voile install`: the control plane on a Kubernetes cluster. Reads the command line and prints; `voile-kubernetes` renders
//! and applies.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use voile_kubernetes::install::{
    self, ApplyMode, Assignments, ClusterFacts, InstallError, Manifest, Release,
};

use crate::commands::kubernetes::cluster::KubeconfigArgs;

/// The cluster and the control plane in it.
#[derive(Debug, clap::Args)]
pub(crate) struct InstallationArgs {
    /// Namespace of the control plane.
    #[arg(long, short, value_name = "NAME", default_value = "istio-system")]
    pub(crate) namespace: String,

    /// Revision of the control plane; without it the default revision.
    #[arg(long, value_name = "NAME")]
    pub(crate) revision: Option<String>,

    #[command(flatten)]
    pub(crate) address: KubeconfigArgs,
}

/// ManifestFormat of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ManifestFormat {
    Yaml,
    Json,
}

/// Degree of a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DryRun {
    /// Ask no cluster.
    Client,
    /// Let the API server check each object and store none.
    Server,
}

/// Install the control plane on a Kubernetes cluster, or change its installation.
///
/// The manifests and values are those of the Helm chart `deploy/helm/voile`, which is part of this program. They are applied by
/// server-side apply (field manager `voile`); then the command waits until all pods are available. The namespace is created if
/// it is missing. Progress is on stderr.
///
/// An object that another program installed is never changed: the command names it and stops.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when the control plane is available, 1 when it is not or the cluster refuses, 2 when a value cannot be used."
)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    cluster: InstallationArgs,

    /// Print the manifests and install nothing. `--dry-run=server` lets the API server check them.
    #[arg(long, value_enum, value_name = "client|server", num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    dry_run: Option<DryRun>,

    /// ManifestFormat of the manifests that are printed.
    #[arg(long, short, value_enum, default_value = "yaml")]
    output: ManifestFormat,

    #[command(flatten)]
    values: ValueArgs,

    /// Wait until the control plane is available.
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait: bool,

    /// The longest time to wait, such as 90s or 5m.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::commands::values::duration)]
    timeout: Duration,
}

impl InstallArgs {
    fn release(&self) -> Result<Release, InstallError> {
        let files = self.values.read_files()?;
        let mut assignments = self.values.assignments();
        if let Some(revision) = &self.cluster.revision {
            assignments.values.push(format!("revision={revision}"));
        }
        Release::new(&self.cluster.namespace, &files, &assignments)
    }
}

/// Values of the chart, as Helm's commands take them.
#[derive(Debug, clap::Args)]
pub(crate) struct ValueArgs {
    /// A value, such as replicaCount=3; may be given several times. It has precedence over files.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// A value that stays a text, such as podAnnotations.build=42; may be given several times. It has precedence over --set.
    #[arg(long, value_name = "KEY=TEXT")]
    set_string: Vec<String>,

    /// A file of values; may be given several times, and a later one has precedence.
    #[arg(long = "values", short = 'f', value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl ValueArgs {
    pub(crate) fn assignments(&self) -> Assignments {
        Assignments {
            values: self.set.clone(),
            texts: self.set_string.clone(),
        }
    }

    /// Files of values, with their names.
    pub(crate) fn read_files(&self) -> Result<Vec<(String, String)>, InstallError> {
        let read = |file: &PathBuf| {
            let name = file.display().to_string();
            match std::fs::read_to_string(file) {
                Ok(text) => Ok((name, text)),
                Err(error) => Err(InstallError::Values(format!("{name}: {error}"))),
            }
        };
        self.files.iter().map(read).collect()
    }
}

pub(crate) fn run(args: &InstallArgs) -> ExitCode {
    exit_code(
        "install",
        crate::commands::on_runtime(execute(args), InstallError::Unavailable),
    )
}

/// Prints the error, if there is one.
pub(crate) fn exit_code(command: &str, done: Result<ExitCode, InstallError>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("voile {command}: {error}");
            match error {
                InstallError::Values(_) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

async fn execute(args: &InstallArgs) -> Result<ExitCode, InstallError> {
    let release = args.release()?;
    if args.dry_run == Some(DryRun::Client) {
        show(&release.manifests(&ClusterFacts::default())?, args.output);
        return Ok(ExitCode::SUCCESS);
    }
    let client = args.cluster.address.connect().await?;
    let facts = install::cluster_facts(&client).await?;
    let manifests = release.manifests(&facts)?;
    let progress = |line: &str| eprintln!("{line}");
    if args.dry_run == Some(DryRun::Server) {
        install::apply(&client, &release, &manifests, ApplyMode::DryRun, &progress).await?;
        show(&manifests, args.output);
        return Ok(ExitCode::SUCCESS);
    }
    install::apply(&client, &release, &manifests, ApplyMode::Store, &progress).await?;
    if args.wait {
        install::wait(&client, &release, args.timeout, &progress).await?;
    }
    eprint!("\n{}", release.notes(&facts)?);
    Ok(ExitCode::SUCCESS)
}

fn show(manifests: &[Manifest], format: ManifestFormat) {
    match format {
        ManifestFormat::Yaml => {
            for manifest in manifests {
                print!(
                    "---\n# Source: voile/{}\n{}",
                    manifest.source, manifest.text
                );
            }
        }
        ManifestFormat::Json => {
            let items: Vec<&Value> = manifests.iter().map(|manifest| &manifest.object).collect();
            println!(
                "{:#}",
                json!({"apiVersion": "v1", "kind": "List", "items": items})
            );
        }
    }
}
