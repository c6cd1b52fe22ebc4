//! `voile echo`.

use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> ExitCode {
    eprintln!("voile echo: not built yet");
    ExitCode::from(2)
}
