//! `voile analyze`: reads folders as the control plane would, or single files, and prints every problem. Data on stdout, talk on stderr.

mod sarif;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use voile_model::ignored::IgnoredRules;
use voile_model::{Diagnostic, Severity, SourceFile, codes, files};

/// Folders and the output format.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads every .yaml, .yml and .json file below the folders (hidden ones are skipped), and the named files, as one mesh.\n\
    Problems go to stdout, sorted by file and line; a summary goes to stderr. `voile explain-code V0123` explains a code.\n\n\
    error    not in force, or not as written   \n\
    warning  in force, but probably not intended\n\
    note     in force, and possibly intended\n\n\
    The annotation `voile.dev/ignore: V0301,V0415` on a resource hides these codes for its document. Hidden problems are counted in the summary, are marked as suppressed in SARIF, and do not affect the exit code.\n\n\
    Exit code: 0 without errors (warnings are allowed), 1 with errors, 2 if a folder cannot be read. With `--fail-on warning` (or note) also 1 with warnings (or notes)."
)]
pub(crate) struct AnalyzeArgs {
    /// Folders of YAML and single files, read together as one mesh
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Output format: text for people, json (one array of objects), or sarif (2.1.0, for code hosts and editors)
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
    /// Lowest severity to print
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "note")]
    severity: SeverityLevel,
    /// Lowest severity for exit code 1
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "error")]
    fail_on: SeverityLevel,
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

pub(crate) fn run(args: AnalyzeArgs) -> ExitCode {
    let mut files: Vec<SourceFile> = Vec::new();
    for path in &args.paths {
        match read(path) {
            Ok(read) => files.extend(read),
            Err(error) => {
                eprintln!("voile analyze: cannot read {}: {error}", path.display());
                return ExitCode::from(2);
            }
        }
    }
    let (mesh, mut diagnostics) = voile_model::check(&files, None);
    diagnostics.extend(voile_analysis::analyze(&mesh, std::time::SystemTime::now()));
    if args.strict {
        let foreign = diagnostics.iter_mut();
        foreign
            .filter(|one| one.code == codes::NO_MEANING)
            .for_each(|one| one.severity = Severity::Error);
    }
    let ignored = IgnoredRules::of(&files);
    diagnostics.extend(ignored.unknown(|code| super::explain_code::meaning(code).is_some()));
    Diagnostic::sort(&mut diagnostics);
    diagnostics.dedup();
    let (hidden, told): (Vec<_>, Vec<_>) = diagnostics
        .into_iter()
        .partition(|diagnostic| ignored.hides(diagnostic));
    let shown = |all: &[Diagnostic]| {
        let shown = all.iter().filter(|one| args.severity.takes(one));
        shown.cloned().collect::<Vec<_>>()
    };
    let printed = shown(&told);
    let text = match args.output {
        Output::Text => printed
            .iter()
            .map(|diagnostic| format!("{diagnostic}\n"))
            .collect(),
        Output::Json => json(&printed),
        Output::Sarif => sarif::sarif(&printed, &shown(&hidden)),
    };
    if let Err(error) = super::print(text.as_bytes()) {
        eprintln!("voile analyze: cannot write: {error}");
        return ExitCode::from(2);
    }
    let count = |severity| told.iter().filter(|one| one.severity == severity).count();
    let mut summary = format!(
        "{}, {}, {}, {}: {}, {}",
        counted(files.len(), "file"),
        counted(mesh.services.len(), "service"),
        counted(mesh.workloads.len(), "workload"),
        counted(mesh.deployments.len(), "deployment"),
        counted(count(Severity::Error), "error"),
        counted(count(Severity::Warning), "warning"),
    );
    if count(Severity::Note) > 0 {
        summary += &format!(", {}", counted(count(Severity::Note), "note"));
    }
    if !hidden.is_empty() {
        summary += &format!(", {} ignored", hidden.len());
    }
    eprintln!("{summary}");
    ExitCode::from(u8::from(told.iter().any(|one| args.fail_on.takes(one))))
}

/// The files below a folder, or one named file, with any ending.
fn read(path: &Path) -> io::Result<Vec<SourceFile>> {
    if !path.metadata()?.is_dir() {
        return Ok(vec![files::read_file(path)]);
    }
    let read = files::read_directory(path)?;
    if read.is_empty() {
        let path = path.display();
        eprintln!("voile analyze: there is no .yaml, .yml or .json file below {path}");
    }
    Ok(read)
}

/// `1 file`, `2 files`.
fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn json(diagnostics: &[Diagnostic]) -> String {
    let one = |diagnostic: &Diagnostic| {
        serde_json::json!({
            "code": diagnostic.code,
            "severity": diagnostic.severity.to_string(),
            "file": &*diagnostic.source.file,
            "line": diagnostic.source.line,
            "column": diagnostic.source.column,
            "field": diagnostic.field,
            "message": diagnostic.message,
            "help": diagnostic.help,
        })
    };
    let all: Vec<_> = diagnostics.iter().map(one).collect();
    format!("{:#}\n", serde_json::Value::Array(all))
}
