//! Graphs in files, and what the commands print.

use std::path::Path;
use std::process::ExitCode;

use std::io::Write as _;
use voile_graph::Graph;
use voile_model::SourceFile;

/// Exit code, or an error message for people. The message is empty if the error was printed
/// already.
pub(super) type Outcome = Result<ExitCode, String>;

/// Reads a graph; its problems go to standard error.
pub(super) fn read(path: &Path) -> Result<Graph, String> {
    parse(&load(path), true)
}

/// Reads a graph as `read` does, but says only what is an error: for the many processes of one graph.
pub(super) fn read_quietly(path: &Path) -> Result<Graph, String> {
    parse(&load(path), false)
}

fn load(path: &Path) -> SourceFile {
    let name = path.to_string_lossy().into_owned();
    match voile_model::files::read_text(path) {
        Ok(text) => SourceFile::new(name, text),
        Err(reason) => SourceFile::unreadable(name, reason),
    }
}

pub(in crate::commands::lab) fn parse(file: &SourceFile, warn: bool) -> Result<Graph, String> {
    let (graph, problems) = voile_graph::read(file);
    for problem in problems.iter().filter(|problem| warn || problem.is_error()) {
        eprintln!("{problem}");
    }
    graph.ok_or_else(|| {
        let errors = problems.iter().filter(|problem| problem.is_error()).count();
        let s = if errors == 1 { "" } else { "s" };
        format!("{}: {errors} error{s}", file.name)
    })
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
pub(super) fn say(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {error}"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
