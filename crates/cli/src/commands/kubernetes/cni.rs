//! `voile cni`: the CNI plugin. A container runtime runs it, by the name `voile-cni` and without arguments.

use std::process::ExitCode;

use voile_kubernetes::cni;

/// Let a new pod start when the node agent is ready for it: the CNI plugin.
///
/// A container runtime runs it for each pod, with the variables and the standard input of the CNI specification (ADD, DEL, CHECK,
/// GC, STATUS, VERSION). `voile node-agent` installs it on a node under the name `voile-cni`, behind the primary plugin. A program
/// of that name needs no argument.
///
/// While the node agent is away, a pod of the mesh is refused, and the kubelet tries again. Other pods start.
#[derive(Debug, clap::Args)]
pub(crate) struct CniArgs {}

pub(crate) fn run() -> ExitCode {
    let input = match std::io::read_to_string(std::io::stdin()) {
        Ok(input) => input,
        Err(error) => {
            eprintln!("voile cni: standard input: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = cni::run(&|name| std::env::var(name).ok(), &input);
    print!("{}", outcome.output);
    match outcome.success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
