//! The output of a command of the program under test, within its deadline.

use std::time::Duration;

use voile_host::child::{ChildExit, Output, Spec};

use crate::shared_processes::Lab;

/// Runs a short command and returns what it prints. By way of a file: on a busy machine a process may have ended before
/// the lines that it wrote into a pipe are read.
pub(crate) fn output(lab: &Lab<'_>, spec: Spec, bound: Duration) -> Result<String, String> {
    let failed =
        |e: std::io::Error| format!("cannot create a file for the output of a command: {e}");
    let printed = tempfile::NamedTempFile::new_in(lab.folder).map_err(failed)?;
    let spec = spec.stdout(Output::File(printed.path().to_owned()));
    let mut child = spec.start().map_err(|e| e.to_string())?;
    let name = child.name().to_owned();
    match child.wait(bound) {
        Some(ChildExit::Code(0)) => {}
        Some(exit) => return Err(format!("{name} {exit}{}", lab.log_end(&name))),
        None => {
            return Err(format!(
                "{name} did not end within {bound:?}{}",
                lab.log_end(&name)
            ));
        }
    }
    std::fs::read_to_string(printed.path()).map_err(failed)
}
