//! `voile`: the one binary. This file only chooses a command; each lives in `commands/`.

mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}
