//! The orderly end: no new client comes in, applications stop, sidecars drain, the control planes go last.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{Runner, STEP};
use crate::pod_run::{PodRun, finish};
use crate::process::Process;

/// Time that all sidecars together get to drain.
const SIDECARS_GRACE: Duration = Duration::from_secs(7);
/// Time that the control planes get to end.
const CONTROL_GRACE: Duration = Duration::from_secs(5);

impl Runner {
    /// Stops everything. A second word on `stop` ends the patience.
    pub(super) fn stop(mut self, stop: &Receiver<()>) {
        let leaving = std::mem::take(&mut self.leaving);
        let mut pods: Vec<PodRun> = leaving.into_iter().map(|leaving| leaving.pod).collect();
        pods.extend(std::mem::take(&mut self.pods).into_values());
        let _ = writeln!(io::stderr(), "voile up: stopping {} pods", pods.len());
        let grace = pods.iter().map(PodRun::grace).max().unwrap_or_default();
        let mut hurry = false;
        let (mut apps, mut sidecars) = (Vec::new(), Vec::new());
        for pod in pods {
            apps.extend(pod.apps);
            sidecars.extend(pod.sidecar);
        }
        sidecars.extend(self.node.take().map(|node| node.process));
        end(&mut apps, grace, &mut hurry, stop);
        end(&mut sidecars, SIDECARS_GRACE, &mut hurry, stop);
        end(&mut self.controls, CONTROL_GRACE, &mut hurry, stop);
        let _ = writeln!(io::stderr(), "voile up: stopped");
    }
}

fn end(processes: &mut [Process], grace: Duration, hurry: &mut bool, stop: &Receiver<()>) {
    processes.iter().for_each(Process::begin_stop);
    let deadline = Instant::now() + grace;
    while !finish(processes.iter_mut(), *hurry || Instant::now() >= deadline) {
        match stop.recv_timeout(STEP) {
            Ok(()) => *hurry = true,
            // No message can come any more; the deadline alone counts, and must still be paced.
            Err(RecvTimeoutError::Disconnected) => std::thread::yield_now(),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
