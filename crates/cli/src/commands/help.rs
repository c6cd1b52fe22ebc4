//! The help of the whole program: its commands in groups, the first steps, shell completions and manual pages.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use super::Voile;

/// The groups of `voile --help`. Each visible command is in one of them.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Run",
        &[
            "up",
            "stop",
            "install",
            "upgrade",
            "uninstall",
            "tag",
            "inject",
        ],
    ),
    (
        "Inspect",
        &[
            "analyze",
            "explain",
            "who-can",
            "explain-code",
            "check",
            "status",
            "edges",
            "routes",
            "tap",
            "top",
            "dashboard",
            "config",
            "events",
            "logs",
            "bug-report",
        ],
    ),
    (
        "Measure",
        &["bench", "load", "fortio", "graph", "plan", "echo"],
    ),
    (
        "Experts",
        &[
            "control",
            "proxy",
            "node-agent",
            "agent",
            "cni",
            "redirect",
            "wait",
            "relay",
            "token",
            "revoke",
            "export",
            "generate",
            "crowd",
            "completions",
            "man",
        ],
    ),
];

/// The answer to `voile` without arguments.
const FIRST_STEPS: &str = "\
Voile is a service mesh, and the laboratory that measures service meshes.

  voile up examples/bookstore    run the mesh that a folder of YAML describes, on this machine
  voile analyze FOLDER           check your own YAML: every problem with file, line and cure
  voile install                  install the mesh on a Kubernetes cluster
  voile bench quick              measure what a mesh costs on this machine, in two minutes

`voile --help` lists all commands. `voile COMMAND --help` explains one.
";

/// The program's command line, with the commands of `--help` in their groups.
pub(super) fn command() -> Command {
    let command = Voile::command();
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}\n\n\
         `voile COMMAND --help` explains a command.\n",
        groups(&command)
    );
    command.help_template(template)
}

/// The commands by group, each with its purpose.
fn groups(command: &Command) -> String {
    let width = command.get_subcommands().map(|one| one.get_name().len());
    let width = width.max().unwrap_or_default();
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "{group}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:width$}  {about}");
        }
        text.push('\n');
    }
    text
}

/// Tells a person who wrote nothing but `voile` what to do next.
pub(super) fn print_first_steps() -> ExitCode {
    eprint!("{FIRST_STEPS}");
    ExitCode::from(2)
}

/// Print the script that completes voile's commands and options in a shell.
///
/// bash: voile completions bash > /etc/bash_completion.d/voile
/// zsh:  voile completions zsh > "${fpath[1]}/_voile"
/// fish: voile completions fish > ~/.config/fish/completions/voile.fish
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(&self) -> ExitCode {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Voile::command(), "voile", &mut script);
        match super::print(&script) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("voile completions: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

/// Write the manual pages of voile and of each command into a folder.
///
/// voile man /usr/local/share/man/man1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ManArgs {
    /// The folder; it is created if it is missing
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl ManArgs {
    pub(super) fn run(&self) -> ExitCode {
        let folder = &self.folder;
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(Voile::command(), folder));
        match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("voile man: {}: {error}", folder.display());
                ExitCode::FAILURE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::{GROUPS, Voile, command};

    #[test]
    fn each_visible_command_is_in_one_group_of_the_help() {
        let command_line = Voile::command();
        let visible = command_line
            .get_subcommands()
            .filter(|one| !one.is_hide_set());
        let mut visible: Vec<&str> = visible.map(clap::Command::get_name).collect();
        visible.sort_unstable();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        grouped.sort_unstable();
        assert_eq!(grouped, visible);
    }

    #[test]
    fn the_help_fits_a_hundred_columns() {
        let help = command().render_help().to_string();
        let long: BTreeSet<&str> = help.lines().filter(|line| line.len() > 100).collect();
        assert_eq!(long, BTreeSet::new(), "{help}");
    }
}
