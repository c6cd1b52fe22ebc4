//! The simulated proxies as a process, and the line protocol with it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::child::{Output, Spec, SupervisedChild};

use super::CONNECT_A_SECOND;

/// Time for the crowd to start, beyond the time for its folder's size, and time for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Interval at which the lab checks if the crowd has started.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Interval at which the lab checks, while the crowd works, if the user asked to end.
const LOOK_FOR_END_EVERY: Duration = Duration::from_millis(200);
/// Message when the user ends the measurement.
pub(crate) const INTERRUPTED: &str = "interrupted";

/// Progress of changes, as the crowd reports it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Report {
    pub(super) expected: u64,
    pub(super) reached: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    pub(super) updates: u64,
}

/// Proxies in sync, as the crowd reports them.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Synced {
    pub(super) proxies: u64,
    pub(super) synced: u64,
    pub(super) last_ms: f64,
    pub(super) p50_ms: f64,
}

/// Result of a round of certificate requests.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct CertificationResult {
    pub(super) asked: u64,
    pub(super) certified: u64,
    pub(super) failures: Vec<String>,
    pub(super) seconds: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

/// An answer, or why there is none.
#[derive(Deserialize)]
#[serde(untagged)]
enum CrowdReply<T> {
    Refused { error: String },
    Given(T),
}

pub(super) struct ProxyCrowd<'a> {
    pub(super) child: SupervisedChild,
    stopped: &'a dyn Fn() -> bool,
    write: UnixStream,
    read: BufReader<UnixStream>,
}

impl<'a> ProxyCrowd<'a> {
    /// Starts the crowd; `spec` lacks only the socket. `more` is the time to read a large folder.
    pub(super) fn start(
        spec: Spec,
        folder: &Path,
        more: Duration,
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("the crowd's socket: {e}");
        let socket = folder.join("crowd.sock");
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let mut child = spec
            .arg("--commands")
            .arg(&socket)
            .stderr(Output::File(folder.join("crowd.log")))
            .start()
            .map_err(|e| e.to_string())?;
        let bound = ANSWER_WITHIN + more;
        let deadline = Instant::now() + bound;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(failed(e)),
                Err(_) => {}
            }
            if let Some(exit) = child.wait(LOOK_EVERY) {
                let said = std::fs::read_to_string(folder.join("crowd.log")).unwrap_or_default();
                return Err(format!("the crowd {exit}: {}", said.trim_end()));
            }
            if stopped() {
                return Err(INTERRUPTED.to_owned());
            }
            if Instant::now() > deadline {
                return Err(format!("the crowd did not connect within {bound:?}"));
            }
        };
        stream.set_nonblocking(false).map_err(failed)?;
        stream
            .set_read_timeout(Some(LOOK_FOR_END_EVERY))
            .map_err(failed)?;
        let read = BufReader::new(stream.try_clone().map_err(failed)?);
        Ok(Self {
            child,
            stopped,
            write: stream,
            read,
        })
    }

    /// Says that `name` carries this mark since then.
    pub(super) fn changed(&mut self, mark: u32, at: u64, name: &str) -> Result<(), String> {
        self.say(&format!("changed {mark} {at} {name}\n"))
    }

    pub(super) fn report(&mut self) -> Result<Report, String> {
        self.ask("report\n")
    }

    pub(super) fn clear(&mut self) -> Result<(), String> {
        self.ask::<serde_json::Value>("clear\n").map(drop)
    }

    pub(super) fn synced(&mut self, since: u64) -> Result<Synced, String> {
        self.ask(&format!("synced {since}\n"))
    }

    /// So many proxies, which have no certificates yet, get their first ones.
    pub(super) fn hold(&mut self, number: u32) -> Result<CertificationResult, String> {
        let more = Duration::from_secs_f64(f64::from(number) / CONNECT_A_SECOND);
        self.ask_within(&format!("hold {number}\n"), ANSWER_WITHIN + more * 10)
    }

    /// So many connections ask for certificates for so long.
    pub(super) fn certify(
        &mut self,
        connections: u32,
        time: Duration,
    ) -> Result<CertificationResult, String> {
        let line = format!("certify {connections} {}\n", time.as_millis());
        self.ask_within(&line, ANSWER_WITHIN + time)
    }

    /// Every proxy that holds a certificate renews it once within that time.
    pub(super) fn rotate(&mut self, time: Duration) -> Result<CertificationResult, String> {
        let line = format!("rotate {}\n", time.as_millis());
        self.ask_within(&line, ANSWER_WITHIN + time)
    }

    fn say(&mut self, line: &str) -> Result<(), String> {
        let written = self.write.write_all(line.as_bytes());
        written.map_err(|e| format!("lost the connection to the crowd: {e}"))
    }

    fn ask<T: for<'b> Deserialize<'b>>(&mut self, line: &str) -> Result<T, String> {
        self.ask_within(line, ANSWER_WITHIN)
    }

    fn ask_within<T: for<'b> Deserialize<'b>>(
        &mut self,
        line: &str,
        bound: Duration,
    ) -> Result<T, String> {
        self.say(line)?;
        let deadline = Instant::now() + bound;
        let mut answer = String::new();
        // A line that is incomplete at a timeout stays in `answer`.
        while let Err(error) = self.read.read_line(&mut answer) {
            let waits = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            if !waits || Instant::now() > deadline {
                return Err(format!("the crowd does not answer: {error}"));
            }
            if (self.stopped)() {
                return Err(INTERRUPTED.to_owned());
            }
        }
        match serde_json::from_str(&answer) {
            Ok(CrowdReply::Given(given)) => Ok(given),
            Ok(CrowdReply::Refused { error }) => Err(error),
            Err(e) => Err(format!("unexpected answer of the crowd ({e}): {answer}")),
        }
    }
}
