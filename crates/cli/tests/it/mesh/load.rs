//! `voile load` beside a test: it runs until the test ends it, so that it outlasts the test's actions on any machine.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::wait_until;

/// A generator that runs.
pub(crate) struct Load {
    what: &'static str,
    child: Option<Child>,
}

impl Load {
    /// One that asks this, with these options; it is under way. A request has failed that is not answered for 20 s.
    pub(crate) fn start(what: &'static str, url: &str, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_voile"));
        command.args(["load", url, "--duration", "0", "--timeout", "20s", "--json"]);
        command.args(options).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the generator starts");
        let status = format!("/proc/{}/status", child.id());
        let load = Self {
            what,
            child: Some(child),
        };
        // Before that it would end without a word.
        wait_until("the generator can be told to end", || catches(&status));
        load
    }

    /// Returns true if the load still runs. A load that ended before the event would prove nothing.
    pub(crate) fn runs(&mut self) -> bool {
        let child = self.child.as_mut().expect("it was started");
        matches!(child.try_wait(), Ok(None))
    }

    /// Ends it; what became of its requests.
    pub(crate) fn end(mut self) -> Value {
        let child = self.child.take().expect("it was started");
        kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
        let output = child.wait_with_output().expect("it ends");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            let said = String::from_utf8_lossy(&output.stderr);
            panic!("{}: the generator prints JSON: {error}\n{said}", self.what)
        })
    }

    /// The same, where none of its requests may have failed.
    pub(crate) fn none_failed(self) -> Value {
        let what = self.what;
        let result = self.end();
        assert_eq!(lost(&result), [], "{what}: {result:#}");
        result
    }
}

/// Failed requests of a load. Requests that a slow machine had not sent at the stop are not lost. Sent requests have one more
/// second for an answer. With a backlog, sending goes on to the end of that second, so the last requests cannot have an answer
/// yet.
pub(crate) fn lost(result: &Value) -> Vec<(&String, &Value)> {
    let errors = result["errors"].as_object().expect("errors by kind");
    let waits = errors.contains_key("unsent");
    let failed = |kind: &str| kind != "unsent" && !(waits && kind == "unanswered");
    let failed = errors.iter().filter(|(kind, _)| failed(kind));
    failed.collect()
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Already gone is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns true if a process handles the signal that ends it in good order.
fn catches(status: &str) -> bool {
    let text = std::fs::read_to_string(status).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::INT.as_raw() - 1)) != 0)
}
