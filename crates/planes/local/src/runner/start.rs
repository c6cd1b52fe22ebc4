//! Start of a mesh: waiting until all is ready, the explanation when it never is, and the command that runs once it
//! is.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use voile_host::child::{ChildExit, Output, Spec, SupervisedChild};
use voile_host::enclosure::InsideSocket;

use super::{Runner, STEP, UpError};
use crate::expand::PodPlan;
use crate::observer::Observation;
use crate::process::Process;

/// Time that the whole mesh gets to become ready at the start.
const START_DEADLINE: Duration = Duration::from_secs(90);
/// Ends of the control plane or a sidecar that are tolerated before the first readiness.
const START_RESTARTS: u32 = 3;
/// Condition that a folder without pods waits for. The folder is watched, so a pod may still come.
const NO_PODS: &str = "a pod: the folder has no Deployment, StatefulSet, DaemonSet, Job or Pod that runs here; add one";
/// Lines of a log that are shown when the start fails.
const LOG_LINES: usize = 8;

impl Runner {
    pub(super) fn await_start(&mut self) -> Result<(), UpError> {
        let nothing = Observation::default();
        let mut missing: Vec<String> = if self.control_was_ready {
            self.pods
                .iter()
                .filter_map(|(name, pod)| pod.missing(self.seen.get(name).unwrap_or(&nothing)))
                .collect()
        } else {
            vec!["control to be ready".to_owned()]
        };
        if self.control_was_ready && self.plan.pods.is_empty() {
            missing.push(NO_PODS.to_owned());
        }
        if missing.is_empty() {
            let coming = self.roster.comes_in_order();
            missing.extend(coming.map(|name| format!("the further pods of {name}")));
            missing.extend(self.uninformed());
            missing.extend(self.unserved());
            missing.extend(self.unacknowledged());
        }
        let waited = self.started.elapsed();
        let Some(first) = missing.first() else {
            self.was_ready = true;
            for (service, url) in self.reach.published() {
                // The one line that programs read. It is there when they hear that all is ready.
                let _ = writeln!(io::stdout(), "{service}\t{url}");
            }
            self.say(&format!(
                "ready after {:.1} s{}",
                waited.as_secs_f64(),
                self.unprotected()
            ));
            self.name_default_gateways();
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
            "; {first}{others} without a proxy: no policy is enforced before it \
             (label its namespace istio-injection: enabled or istio.io/dataplane-mode: ambient)"
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
