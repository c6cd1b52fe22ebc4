//! `voile explain-code`: what a code of a finding means, why it matters, and an example of wrong and right.

use std::process::ExitCode;

use voile_analysis::explanations::{all, explanation};

/// Explain a code that `voile analyze` prints, with a wrong and a right example.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0, or 2 if there is no such code.")]
pub(crate) struct ExplainCodeArgs {
    /// Codes such as V0401
    #[arg(value_name = "CODE", required_unless_present = "list")]
    codes: Vec<String>,
    /// Every code with its meaning, one a line
    #[arg(long, conflicts_with = "codes")]
    list: bool,
}

pub(crate) fn run(args: &ExplainCodeArgs) -> ExitCode {
    let mut text = String::new();
    if args.list {
        for (code, meaning) in tables() {
            text += &format!("{code}  {meaning}\n");
        }
    }
    for (index, code) in args.codes.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        match (explanation(code), meaning(code)) {
            (Some(explanation), _) => text += explanation.page,
            (None, Some(meaning)) => text += &format!("# {}\n\n{meaning}\n", code.to_uppercase()),
            (None, None) => {
                eprintln!(
                    "voile explain-code: there is no code `{}`: `voile explain-code --list` prints all codes",
                    voile_model::reading::clip(code)
                );
                return ExitCode::from(2);
            }
        }
    }
    match crate::commands::print(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("voile explain-code: cannot write: {error}");
            ExitCode::from(2)
        }
    }
}

/// Every code that any command prints, in order.
fn tables() -> impl Iterator<Item = (&'static str, &'static str)> {
    let analyzed = all().map(|one| (one.code, one.meaning));
    analyzed.chain(voile_graph::codes::TABLE.iter().copied())
}

/// Explanation of a code.
pub(crate) fn meaning(code: &str) -> Option<&'static str> {
    let mut tables = tables();
    let found = tables.find(|(known, _)| known.eq_ignore_ascii_case(code));
    found.map(|(_, meaning)| meaning)
}
