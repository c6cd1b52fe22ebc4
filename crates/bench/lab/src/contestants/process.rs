//! A process of an experiment, wherever it runs: here (maybe in a network namespace), or at the agent's on another host.

use std::time::Duration;

use voile_host::child::SupervisedChild;
use voile_host::ready::Probe;

use crate::agent::FarProcess;
use crate::machine::instance::Instance;
use crate::shared_processes::Lab;

/// A process that an experiment started. Dropping it ends it.
#[derive(Debug)]
pub(crate) enum Process {
    Here(SupervisedChild),
    There(FarProcess),
}

impl From<SupervisedChild> for Process {
    fn from(process: SupervisedChild) -> Self {
        Self::Here(process)
    }
}

impl Process {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Here(process) => process.name(),
            Self::There(process) => process.name(),
        }
    }

    /// Command line of the process; at the agent's, as the agent reports it.
    pub(crate) fn command_line(&self) -> &str {
        match self {
            Self::Here(process) => process.command_line(),
            Self::There(process) => process.command_line(),
        }
    }

    /// The process as an instance, which is charged for its work.
    pub(crate) fn instance(&self, role: &'static str) -> Instance {
        match self {
            Self::Here(process) => {
                Instance::here(process.name().to_owned(), role, process.group_pids())
            }
            Self::There(process) => process.instance(role),
        }
    }

    /// Waits until the process answers. The agent knows the probe of its own processes.
    pub(crate) fn wait_ready(&mut self, lab: &Lab<'_>, probe: &Probe) -> Result<(), String> {
        match self {
            Self::Here(process) => lab.wait_ready(process, probe),
            Self::There(process) => process.wait_ready(),
        }
    }

    /// Checks that the process still runs. The error is its exit.
    pub(crate) fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        match self {
            Self::Here(process) => match process.try_exit() {
                None => Ok(()),
                Some(exit) => {
                    let name = process.name();
                    Err(format!("{name} {exit}{}", lab.log_end(name)))
                }
            },
            Self::There(process) => process.alive(),
        }
    }

    /// Ends it.
    pub(crate) fn stop(&mut self, grace: Duration) {
        match self {
            Self::There(process) => process.stop(),
            Self::Here(process) => {
                process.stop(grace);
            }
        }
    }

    /// The one at the agent's.
    pub(crate) fn there(&self) -> Option<&FarProcess> {
        match self {
            Self::Here(_) => None,
            Self::There(process) => Some(process),
        }
    }

    /// The one here, to be ended among others.
    pub(crate) fn here(&mut self) -> Option<&mut SupervisedChild> {
        match self {
            Self::Here(process) => Some(process),
            Self::There(_) => None,
        }
    }
}
