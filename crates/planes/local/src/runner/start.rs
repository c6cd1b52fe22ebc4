//! Start of a mesh: waiting until all is ready, the explanation when it never is, and the command that runs once it
//! is.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use voile_host::child::{ChildExit, Output, Spec, SupervisedChild};
use voile_host::enclosure::InsideSocket;
use voile_model::ResourceName;

use super::{Runner, STEP};
use crate::expand::PodPlan;
use crate::observer::Observation;
use crate::process::Process;
use crate::runner::options::UpError;

/// Time that the whole mesh gets to become ready at the start.
const START_DEADLINE: Duration = Duration::from_secs(90);
/// Ends of the control plane or a sidecar that are tolerated before the first readiness.
const START_RESTARTS: u32 = 3;
/// Condition that a folder without pods waits for. The folder is watched, so a pod may still come.
const NO_PODS: &str = "a pod: the folder has no Deployment, StatefulSet, DaemonSet, Job or Pod that runs here; add one";
/// Lines of a log that are shown when the start fails.
const LOG_LINES: usize = 8;

/// Pods of a mesh that starts.
#[derive(Debug, Default)]
struct StartProgress {
    ready: usize,
    /// What keeps pods from being ready that wait for nothing but themselves.
    failed: Vec<String>,
    /// What is waited for.
    missing: Vec<String>,
}

impl StartProgress {
    /// What is waited for, once failed pods are left out if they may be: one pod must be ready, and nothing may depend
    /// on all of them. After the deadline whatever is not ready has failed.
    fn waits_for(mut self, tolerates: bool, waited: Duration) -> (Vec<String>, Vec<String>) {
        let is_late = waited >= START_DEADLINE;
        if !tolerates || self.ready == 0 || (!is_late && !self.missing.is_empty()) {
            self.missing.append(&mut self.failed);
        } else {
            self.failed.append(&mut self.missing);
        }
        (self.missing, self.failed)
    }
}

impl Runner {
    pub(super) fn await_start(&mut self) -> Result<(), UpError> {
        let waited = self.started.elapsed();
        let tolerates = !self.options.strict && self.options.once_ready.is_none();
        let (missing, failed) = self.progress().waits_for(tolerates, waited);
        let Some(first) = missing.first() else {
            self.begin(waited, &failed);
            return Ok(());
        };
        let sidecars = self.pods.values().filter_map(|pod| pod.sidecar.as_ref());
        let given_up = |process: &&Process| process.restarts >= START_RESTARTS;
        if let Some(process) = sidecars.chain(&self.controls).find(given_up) {
            return Err(UpError::Ends(process.name().to_owned()));
        }
        let what = match missing.len() {
            1 => first.clone(),
            more => format!("{first}, and {} more", more - 1),
        };
        if waited >= START_DEADLINE {
            return Err(UpError::Late {
                waited: START_DEADLINE,
                what: missing.join(", "),
            });
        }
        if what != self.waiting_for {
            let left = START_DEADLINE.saturating_sub(waited).as_secs();
            self.say(&format!("waiting for {what} (at most {left} s more)"));
            self.waiting_for = what;
        }
        Ok(())
    }

    fn progress(&self) -> StartProgress {
        let mut progress = StartProgress::default();
        if !self.control_was_ready {
            progress.missing.push("control to be ready".to_owned());
            return progress;
        }
        let nothing = Observation::default();
        for (name, pod) in &self.pods {
            match pod.missing(self.seen.get(name).unwrap_or(&nothing)) {
                None => progress.ready += 1,
                Some(what) if pod.has_failed(START_RESTARTS) => progress.failed.push(what),
                Some(what) => progress.missing.push(what),
            }
        }
        if self.plan.pods.is_empty() {
            progress.missing.push(NO_PODS.to_owned());
        }
        if progress.missing.is_empty() {
            let is_refused = |name: &&ResourceName| {
                let mut refused = self.plan.refused.iter();
                refused.any(|one| {
                    one.name.namespace == name.namespace && *one.workload() == *name.name
                })
            };
            let coming = self.roster.comes_in_order();
            let coming = coming.filter(|name| !is_refused(name));
            let missing = &mut progress.missing;
            missing.extend(coming.map(|name| format!("the further pods of {name}")));
            missing.extend(self.uninformed());
            missing.extend(self.unserved());
            missing.extend(self.unacknowledged());
        }
        progress
    }

    /// All is ready but for pods that `failed`.
    fn begin(&mut self, waited: Duration, failed: &[String]) {
        self.was_ready = true;
        for (service, url) in self.reach.published() {
            // The one line that programs read. It is there when they hear that all is ready.
            let _ = writeln!(io::stdout(), "{service}\t{url}");
        }
        for what in failed {
            self.say(&format!("continues without {what}"));
        }
        for refused in &self.plan.refused {
            self.say(&format!("{} is not started: it has an error", refused.name));
        }
        self.say(&format!(
            "ready after {:.1} s{}{}",
            waited.as_secs_f64(),
            self.told_errors(),
            self.unprotected()
        ));
        self.name_default_gateways();
    }

    /// Gateways that are started because Gateways ask for those of Istio's installation, and how to call them.
    fn name_default_gateways(&self) {
        let urls = self.reach.published();
        for (name, gateways) in self.mesh.default_gateways() {
            let all: Vec<String> = gateways.iter().map(|one| one.name.to_string()).collect();
            self.say(&format!(
                "{name} is started for the selector of Gateway {}",
                all.join(", ")
            ));
            let own = format!("{name}:");
            for (service, url) in &urls {
                if *service != name.to_string() && !service.starts_with(&own) {
                    continue;
                }
                let hosts = gateways.iter().flat_map(|one| &one.servers);
                let mut hosts = hosts.flat_map(|server| &server.hosts);
                let host = hosts.find(|one| !one.host.is_wildcard());
                let header =
                    host.map_or_else(String::new, |one| format!("-H 'Host: {}' ", one.host));
                self.say(&match url.starts_with("http://") {
                    true => format!("  {service}: try curl {header}{url}/"),
                    false => format!("  {service}: {url}"),
                });
            }
        }
    }

    /// Warns at "ready" that some pods have no proxy, so that no policy is enforced for them.
    fn unprotected(&self) -> String {
        let served =
            |pod: &PodPlan| pod.sidecar.is_some() || (self.plan.by_node && pod.is_ambient());
        let pods = self.plan.pods.iter().filter(|pod| !served(pod));
        let names: Vec<String> = pods.map(|pod| pod.name.to_string()).collect();
        let Some(first) = names.first() else {
            return String::new();
        };
        let others = match names.len() {
            1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        format!(
            "; {first}{others} without a proxy: no policy is enforced for it (label its namespace istio-injection: enabled or istio.io/dataplane-mode: ambient)"
        )
    }

    pub(super) fn once_ready(&mut self, command: &str, stop: &Receiver<()>) -> Result<u8, UpError> {
        let failed = |error| UpError::Command(command.to_owned(), error);
        let urls = self.reach.published();
        let variables = urls
            .into_iter()
            .map(|(service, url)| (url_name(&service), url));
        let mut running = match self.ground.network() {
            Some(network) => {
                // It is the user's, so it runs where the user is.
                let inside = network.inside().clone();
                let started = inside.run(command, variables.collect());
                started.map_err(failed)?;
                UserCommand::Outside(inside)
            }
            None => UserCommand::start(command, variables).map_err(failed)?,
        };
        loop {
            if let Some(code) = running.ended().map_err(failed)? {
                return Ok(code);
            }
            match stop.recv_timeout(STEP) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                    running.stop();
                    return Ok(0);
                }
                Err(RecvTimeoutError::Timeout) => self.step()?,
            }
        }
    }

    /// Shows the output of the processes that keep the mesh from being ready.
    pub(super) fn explain(&mut self, error: &UpError) {
        if !matches!(error, UpError::Late { .. } | UpError::Ends(_)) {
            return;
        }
        let nothing = Observation::default();
        let mut shown: Vec<(String, Vec<String>)> = Vec::new();
        if self.controls_ready < self.controls.len() {
            let controls = self.controls.iter_mut();
            let lines = |one: &mut Process| (one.name().to_owned(), one.last_lines(LOG_LINES));
            shown.extend(controls.map(lines));
        }
        for (name, pod) in &mut self.pods {
            if !pod.is_ready(self.seen.get(name).unwrap_or(&nothing)) {
                shown.extend(
                    pod.processes()
                        .map(|process| (process.name().to_owned(), process.last_lines(LOG_LINES))),
                );
            }
        }
        for (name, lines) in shown {
            self.say(&format!("last lines of {name}:"));
            for line in lines {
                let _ = writeln!(io::stderr(), "    {line}");
            }
        }
    }
}

/// The user's command.
enum UserCommand {
    Ours(SupervisedChild),
    Outside(InsideSocket),
}

impl UserCommand {
    fn start(command: &str, variables: impl Iterator<Item = (String, String)>) -> io::Result<Self> {
        let mut shell = Spec::new("once-ready", "/bin/sh")
            .args(["-c", command])
            .stdout(Output::Inherit)
            .stderr(Output::Inherit);
        for (name, value) in variables {
            shell = shell.env(name, value);
        }
        shell.start().map(Self::Ours).map_err(io::Error::other)
    }

    fn ended(&mut self) -> io::Result<Option<u8>> {
        match self {
            Self::Ours(child) => Ok(child.try_exit().map(|exit| match exit {
                ChildExit::Code(code) => u8::try_from(code).unwrap_or(1),
                ChildExit::Signal(_) => 1,
            })),
            Self::Outside(inside) => inside.ended(),
        }
    }

    fn stop(&self) {
        // Ours is stopped when it is dropped.
        if let Self::Outside(inside) = self {
            inside.stop();
        }
    }
}

/// `URL_NAMESPACE_SERVICE`.
fn url_name(service: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    format!("URL_{}", service.chars().map(letter).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_goes_on_without_pods_that_failed_unless_all_are_wanted_or_none_is_ready() {
        let (early, late) = (Duration::from_secs(1), START_DEADLINE);
        for (ready, failed, missing, tolerates, waited, waits) in [
            (2, "", "", true, early, false),
            (1, "a", "", true, early, false),
            (1, "a", "", false, early, true),
            (0, "a", "", true, early, true),
            (1, "a", "b", true, early, true),
            (1, "a", "b", true, late, false),
            (1, "a", "b", false, late, true),
            (0, "", "b", true, late, true),
        ] {
            let words = |text: &str| text.chars().map(String::from).collect();
            let progress = StartProgress {
                ready,
                failed: words(failed),
                missing: words(missing),
            };
            let said = format!("{progress:?} {tolerates} {waited:?}");
            let (missing, failed) = progress.waits_for(tolerates, waited);
            assert_eq!(!missing.is_empty(), waits, "{said}");
            assert!(missing.is_empty() || failed.is_empty(), "{said}");
        }
    }
}
