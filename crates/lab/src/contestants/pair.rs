//! Two processes of a peer, one as each sidecar: what is the same for all peers that are configured by files.

use voile_host::child::{Supervised, stop_all};

use super::listeners::Listeners;
use super::{CLIENT, Instance, SERVER};
use crate::target::{Lab, STOP_GRACE};

/// A pair that runs.
pub(super) struct Pair {
    pub(super) client: Supervised,
    pub(super) server: Supervised,
    pub(super) listeners: Listeners,
}

impl Pair {
    /// The instances on the path of a mode.
    pub(super) fn instances(&self, mode: &str) -> Vec<Instance> {
        let instance = |child: &Supervised, role| Instance {
            name: child.name().to_owned(),
            role,
            pids: child.group_pids(),
        };
        let client = || instance(&self.client, CLIENT);
        let server = || instance(&self.server, SERVER);
        match mode {
            "clientonly" => vec![client()],
            "serveronly" => vec![server()],
            _ => vec![client(), server()],
        }
    }

    /// Which of them ended, and how.
    pub(super) fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        for child in [&mut self.client, &mut self.server] {
            if let Some(exit) = child.try_exit() {
                return Err(format!(
                    "{} {exit}{}",
                    child.name(),
                    lab.log_end(child.name())
                ));
            }
        }
        Ok(())
    }

    pub(super) fn commands(&self) -> Vec<String> {
        [&self.client, &self.server]
            .map(|child| child.command_line().to_owned())
            .to_vec()
    }

    pub(super) fn stop(&mut self) {
        stop_all([&mut self.client, &mut self.server], STOP_GRACE);
    }
}
