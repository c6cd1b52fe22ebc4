//! `voile bug-report`: an archive of what a report of a fault on a cluster needs. `voile-kubernetes` reads the cluster; this writes the
//! archive and adds the pages of control planes and proxies.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::value_parser;
use flate2::Compression;
use flate2::write::GzEncoder;
use voile_kubernetes::bug_report::{BugReport, LogRange};
use voile_kubernetes::install::{InstallError, Release};
use voile_kubernetes::pods::{self, PodReference};

use crate::commands::inspect::monitoring::{PageServer, runtime};
use crate::commands::kubernetes::install::{InstallationArgs, exit_code};

/// Folder in the archive.
const FOLDER: &str = "voile-bug-report";

/// Collect what a report of a fault needs: an archive about the mesh of a Kubernetes cluster.
///
/// It has the results of `voile check`, the resources of the mesh, warnings among the cluster's events, the status of the control
/// plane, and logs of control planes, node agents and of proxies that are not ready or have ended. Pods that are named have the logs
/// and the configuration of their proxies in any case.
///
/// It has no Secret and no log of an application. It has names, addresses, hosts and policies of the mesh, and the access logs of
/// proxies: read it before you pass it on. Nothing in the cluster is changed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  voile bug-report\n  voile bug-report deploy/web svc/cart.shop --since-minutes 15\n\n\
    Exit code: 0 when the archive is written, even if parts are missing (missing.txt), 1 when it is not, 2 when a value cannot be used."
)]
pub(crate) struct BugReportArgs {
    /// Pods whose proxies are of interest: POD, POD.NAMESPACE, deploy/NAME, svc/NAME.NAMESPACE.
    #[arg(value_name = "POD")]
    pods: Vec<PodReference>,

    #[command(flatten)]
    cluster: InstallationArgs,

    /// The archive, a new file.
    #[arg(long, value_name = "FILE", default_value = "voile-bug-report.tar.gz")]
    out: PathBuf,

    /// Leave out lines of logs that are older.
    #[arg(long, value_name = "MINUTES", value_parser = value_parser!(u32).range(1..))]
    since_minutes: Option<u32>,

    /// Most lines of a log, the last ones.
    #[arg(long, value_name = "LINES", default_value_t = 5_000, value_parser = value_parser!(u32).range(1..))]
    lines: u32,
}

pub(crate) fn run(args: &BugReportArgs) -> ExitCode {
    exit_code("bug-report", execute(args))
}

fn execute(args: &BugReportArgs) -> Result<ExitCode, InstallError> {
    let revision = args.cluster.revision.iter();
    let assignments: Vec<String> = revision.map(|name| format!("revision={name}")).collect();
    let release = Release::new(&args.cluster.namespace, &[], &assignments.into())?;
    // Before minutes of work: the file must be new.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.out)
        .map_err(|error| {
            InstallError::Values(format!(
                "cannot create {}: {error}\ncure: name another file: --out FILE",
                args.out.display()
            ))
        })?;
    let report = collect(args, &release);
    let written = report.and_then(|report| {
        let written = write(file, &report).map(|()| report);
        written
            .map_err(|error| InstallError::Unavailable(format!("{}: {error}", args.out.display())))
    });
    let report = written.inspect_err(|_| {
        // Nothing half-written is left behind.
        let _ = std::fs::remove_file(&args.out);
    })?;
    for reason in &report.missing {
        eprintln!("missing: {reason}");
    }
    eprintln!(
        "{} files. Names, addresses and policies of the mesh are in them: read them before you pass them on.",
        report.files.len()
    );
    println!("{}", args.out.display());
    Ok(ExitCode::SUCCESS)
}

fn collect(args: &BugReportArgs, release: &Release) -> Result<BugReport, InstallError> {
    let runtime = runtime().map_err(InstallError::Unavailable)?;
    let client = runtime.block_on(args.cluster.address.connect())?;
    let mut proxies = Vec::new();
    for name in &args.pods {
        let namespace = client.default_namespace().to_owned();
        let port = runtime.block_on(pods::proxy(&client, name, &namespace))?;
        proxies.push(port);
    }
    let named: Vec<_> = proxies
        .iter()
        .map(|port| (port.namespace.clone(), port.pod.clone()))
        .collect();
    let range = LogRange {
        since: args
            .since_minutes
            .map(|minutes| Duration::from_secs(60 * u64::from(minutes))),
        lines: args.lines.into(),
    };
    let progress = |step: &str| eprintln!("{step} …");
    let report = BugReport::collect(&client, release, &named, range, &progress);
    let mut report = runtime.block_on(report)?;
    let version = env!("VOILE_VERSION");
    report.add("voile.txt", format!("voile {version}\n").into_bytes());
    progress("pages of control planes and proxies");
    let revision = args.cluster.revision.as_deref();
    let control = pods::control_planes(&client, &release.namespace, revision);
    let control = match runtime.block_on(control) {
        Ok(control) => control,
        Err(error) => {
            report.missing.push(error.to_string());
            Vec::new()
        }
    };
    let pages = control
        .into_iter()
        .flat_map(|port| [(port.clone(), "/debug/status"), (port, "/debug/events")])
        .chain(proxies.into_iter().map(|port| (port, "/config_dump")));
    for (port, path) in pages {
        let (namespace, pod) = (port.namespace.clone(), port.pod.clone());
        let server = PageServer::on_pod(port, &runtime);
        match server.page(path, Duration::ZERO) {
            Ok(page) => {
                let name = path.rsplit('/').next().unwrap_or_default();
                let path = format!("pods/{namespace}/{pod}/{name}.json");
                report.add(path, format!("{page:#}\n").into_bytes());
            }
            Err(error) => report.missing.push(error),
        }
    }
    let missing: String = report
        .missing
        .iter()
        .map(|one| format!("{one}\n"))
        .collect();
    report.add("missing.txt", missing.into_bytes());
    Ok(report)
}

fn write(file: std::fs::File, report: &BugReport) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (path, text) in &report.files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, Path::new(FOLDER).join(path), &**text)?;
    }
    archive.into_inner()?.finish()?.flush()
}
