//! `voile analyze`: reads folders as the control plane would, and prints every problem. Data on stdout, talk on stderr.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use voile_model::{Diagnostic, SourceFile};

/// What to read, and how to print.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads every .yaml, .yml and .json file below the folders (hidden ones are skipped) as one mesh.\n\
    Problems go to stdout, sorted by place; a summary goes to stderr.\n\n\
    Exit code: 0 without errors (warnings are allowed), 1 with errors, 2 when a folder cannot be read."
)]
pub(crate) struct Args {
    /// Folders of YAML, taken together as one mesh
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// How problems are printed: text for people, or json (one array of objects)
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let mut files: Vec<SourceFile> = Vec::new();
    for directory in &args.directories {
        match voile_model::files::read_directory(directory) {
            Ok(read) => files.extend(read),
            Err(error) => {
                eprintln!(
                    "voile analyze: cannot read the folder {}: {error}",
                    directory.display()
                );
                return ExitCode::from(2);
            }
        }
    }
    let (mesh, mut diagnostics) = voile_model::check(&files, None);
    diagnostics.extend(voile_analysis::analyze(&mesh));
    Diagnostic::sort(&mut diagnostics);
    let text = match args.output {
        Output::Text => diagnostics
            .iter()
            .map(|diagnostic| format!("{diagnostic}\n"))
            .collect(),
        Output::Json => json(&diagnostics),
    };
    if let Err(error) = std::io::stdout().write_all(text.as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("voile analyze: cannot write: {error}");
        return ExitCode::from(2);
    }
    let errors = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error())
        .count();
    eprintln!(
        "{}, {}, {}, {}: {}, {}",
        counted(files.len(), "file"),
        counted(mesh.services.len(), "service"),
        counted(mesh.workloads.len(), "workload"),
        counted(mesh.deployments.len(), "deployment"),
        counted(errors, "error"),
        counted(diagnostics.len() - errors, "warning"),
    );
    ExitCode::from(u8::from(errors > 0))
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
