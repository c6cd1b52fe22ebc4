//! `voile analyze`: reads folders, single files or a cluster as the control plane would, and prints every problem. Data on
//! stdout, talk on stderr.

mod sarif;

use std::path::PathBuf;
use std::process::ExitCode;

use voile_kubernetes::namespace_of;
use voile_model::folding::{FoldedDiagnostic, fold};
use voile_model::ignored::IgnoredRules;
use voile_model::{Diagnostic, Mesh, Severity, codes};

use crate::commands::kubernetes::cluster::{ClusterArgs, ReadResources};

/// Folders and the output format.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads every .yaml, .yml and .json file below the folders (hidden ones are skipped), and the named files, as one mesh.\n\
    Problems go to stdout, sorted by file and line; a summary goes to stderr. `voile explain-code V0123` explains a code.\n\
    Problems that follow from another one are counted below it; --all prints them, and JSON names their cause in `follows`.\n\n\
    error    not in force, or not as written   \n\
    warning  in force, but probably not intended\n\
    note     in force, and possibly intended\n\n\
    The annotation `voile.dev/ignore: V0301,V0415` on a resource hides these codes for its document. Hidden problems are counted in the summary, are marked as suppressed in SARIF, and do not affect the exit code.\n\n\
    With --kubernetes the objects of a cluster are read, and folders and files as if they were applied to it. The place of a problem\n\
    is then KIND/NAMESPACE/NAME. Problems of the namespace -n (or of the context) are printed, those of all with -A; problems\n\
    of files and of objects without a namespace are always printed.\n\n\
    Exit code: 0 without errors (warnings are allowed), 1 with errors, 2 if a folder or the cluster cannot be read. With `--fail-on warning` (or note) also 1 with warnings (or notes)."
)]
pub(crate) struct AnalyzeArgs {
    /// Folders of YAML, single files and `-` for standard input, read together as one mesh; if left out the folder of the mesh
    /// that runs on this machine
    #[arg(value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// The same, as kubectl names them
    #[arg(short = 'f', long = "filename", value_name = "DIR|FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Report the problems of this namespace of the cluster; if left out that of the context
    #[arg(long, short, value_name = "NAME", requires = "kubernetes")]
    namespace: Option<String>,
    /// Report the problems of all namespaces of the cluster
    #[arg(
        long,
        short = 'A',
        requires = "kubernetes",
        conflicts_with = "namespace"
    )]
    all_namespaces: bool,
    /// Output format: text for people, json (one array of objects), or sarif (2.1.0, for code hosts and editors)
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
    /// Lowest severity to print
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "note")]
    severity: SeverityLevel,
    /// Lowest severity for exit code 1
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "error")]
    fail_on: SeverityLevel,
    /// Print each problem, also those that follow from another one
    #[arg(long)]
    all: bool,
    /// Also report kinds of other API groups, and files that are not resources, as errors
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Sarif,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum SeverityLevel {
    Error,
    Warning,
    Note,
}

impl SeverityLevel {
    /// Returns true if the diagnostic is at least as severe as this level.
    fn takes(self, diagnostic: &Diagnostic) -> bool {
        let least = match self {
            Self::Error => Severity::Error,
            Self::Warning => Severity::Warning,
            Self::Note => Severity::Note,
        };
        // Declared from worst to least.
        diagnostic.severity <= least
    }
}

pub(crate) fn run(args: &AnalyzeArgs) -> ExitCode {
    let paths: Vec<PathBuf> = args.paths.iter().chain(&args.files).cloned().collect();
    match ReadResources::read(&paths, &args.cluster) {
        Ok(read) => analyze(args, &read),
        Err(reason) => {
            eprintln!("voile analyze: {reason}");
            ExitCode::from(2)
        }
    }
}

fn analyze(args: &AnalyzeArgs, read: &ReadResources) -> ExitCode {
    let files = &read.files;
    let (mesh, mut diagnostics) = voile_model::check(files, None);
    diagnostics.extend(voile_analysis::analyze(&mesh, std::time::SystemTime::now()));
    if args.strict {
        let foreign = diagnostics.iter_mut();
        foreign
            .filter(|one| one.code == codes::NO_MEANING)
            .for_each(|one| one.severity = Severity::Error);
    }
    let ignored = IgnoredRules::of(files);
    diagnostics.extend(
        ignored.unknown(|code| crate::commands::inspect::explain_code::meaning(code).is_some()),
    );
    Diagnostic::sort(&mut diagnostics);
    diagnostics.dedup();
    let all = diagnostics.len();
    diagnostics.retain(|one| args.reports(one, read));
    let elsewhere = all - diagnostics.len();
    let (hidden, told): (Vec<_>, Vec<_>) = diagnostics
        .into_iter()
        .partition(|diagnostic| ignored.hides(diagnostic));
    let shown = |all: &[Diagnostic]| {
        let shown = all.iter().filter(|one| args.severity.takes(one));
        shown.cloned().collect::<Vec<_>>()
    };
    let printed = shown(&told);
    let text = match args.output {
        Output::Text if args.all => lines(&printed),
        Output::Text => lines(fold(printed, files)),
        Output::Json => json(fold(printed, files)),
        Output::Sarif => sarif::sarif(&printed, &shown(&hidden)),
    };
    if let Err(error) = crate::commands::print(text.as_bytes()) {
        eprintln!("voile analyze: cannot write: {error}");
        return ExitCode::from(2);
    }
    let mut summary = summary(read, &mesh, &told);
    if !hidden.is_empty() {
        summary += &format!(", {} ignored", hidden.len());
    }
    if elsewhere > 0 {
        summary += &format!(", {elsewhere} in other namespaces (-A shows them)");
    }
    eprintln!("{summary}");
    ExitCode::from(u8::from(told.iter().any(|one| args.fail_on.takes(one))))
}

impl AnalyzeArgs {
    /// Returns true if a problem is of a namespace that is asked for, of the whole cluster, or of a file.
    fn reports(&self, diagnostic: &Diagnostic, read: &ReadResources) -> bool {
        let asked = self.namespace.as_deref().unwrap_or(&read.namespace);
        let is_object = diagnostic.source.position().is_none();
        let own = is_object.then(|| namespace_of(&diagnostic.source.file));
        self.all_namespaces || own.flatten().is_none_or(|own| own == asked)
    }
}

fn summary(read: &ReadResources, mesh: &Mesh, told: &[Diagnostic]) -> String {
    let count = |severity| told.iter().filter(|one| one.severity == severity).count();
    let mut parts = Vec::new();
    if read.objects > 0 {
        parts.push(counted(read.objects, "object"));
    }
    let files = read.files.len() - read.objects;
    if files > 0 || parts.is_empty() {
        parts.push(counted(files, "file"));
    }
    parts.push(counted(mesh.services.len(), "service"));
    parts.push(counted(mesh.workloads.len(), "workload"));
    parts.push(counted(mesh.deployments.len(), "deployment"));
    let mut summary = format!(
        "{}: {}, {}",
        parts.join(", "),
        counted(count(Severity::Error), "error"),
        counted(count(Severity::Warning), "warning"),
    );
    if count(Severity::Note) > 0 {
        summary += &format!(", {}", counted(count(Severity::Note), "note"));
    }
    summary
}

/// `1 file`, `2 files`.
pub(crate) fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn lines(all: impl IntoIterator<Item = impl ToString>) -> String {
    let all = all.into_iter();
    all.map(|one| one.to_string() + "\n").collect()
}

/// All diagnostics; each that follows from another one is after it, and names its place.
fn json(folded: Vec<FoldedDiagnostic>) -> String {
    let one = |diagnostic: &Diagnostic, follows: Option<&Diagnostic>| {
        serde_json::json!({
            "code": diagnostic.code,
            "severity": diagnostic.severity.to_string(),
            "file": &*diagnostic.source.file,
            "line": diagnostic.source.position().map(|(line, _)| line),
            "column": diagnostic.source.position().map(|(_, column)| column),
            "field": diagnostic.field,
            "message": diagnostic.message,
            "help": diagnostic.help,
            "follows": follows.map(|cause| cause.source.to_string()),
        })
    };
    let both = |folded: &FoldedDiagnostic| {
        let following = folded.following.iter();
        let following = following.map(|follower| one(follower, Some(&folded.cause)));
        std::iter::once(one(&folded.cause, None))
            .chain(following)
            .collect::<Vec<_>>()
    };
    let all: Vec<_> = folded.iter().flat_map(both).collect();
    format!("{:#}\n", serde_json::Value::Array(all))
}
