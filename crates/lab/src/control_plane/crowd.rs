//! The simulated proxies as a process, and the line protocol with it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::child::{Output, Spec, Supervised};

/// How long the crowd may take to come up and to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How often we look whether it has come.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How far changes have come, as the crowd says it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Report {
    pub(super) expected: u64,
    pub(super) reached: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    pub(super) updates: u64,
    pub(super) lost: u64,
}

/// Who is in sync.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Synced {
    pub(super) proxies: u64,
    pub(super) synced: u64,
    pub(super) last_ms: f64,
    pub(super) p50_ms: f64,
}

pub(super) struct Crowd {
    pub(super) child: Supervised,
    write: UnixStream,
    read: BufReader<UnixStream>,
}

impl Crowd {
    /// Starts it; `spec` lacks only the socket.
    pub(super) fn start(spec: Spec, folder: &Path) -> Result<Self, String> {
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
        let deadline = Instant::now() + ANSWER_WITHIN;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => return Err(failed(e)),
                Err(_) => {}
            }
            if let Some(exit) = child.wait(LOOK_EVERY) {
                let said = std::fs::read_to_string(folder.join("crowd.log")).unwrap_or_default();
                return Err(format!("the crowd {exit}: {}", said.trim_end()));
            }
            if Instant::now() > deadline {
                return Err(format!("the crowd is not there after {ANSWER_WITHIN:?}"));
            }
        };
        stream.set_nonblocking(false).map_err(failed)?;
        stream
            .set_read_timeout(Some(ANSWER_WITHIN))
            .map_err(failed)?;
        let read = BufReader::new(stream.try_clone().map_err(failed)?);
        Ok(Self {
            child,
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

    fn say(&mut self, line: &str) -> Result<(), String> {
        let written = self.write.write_all(line.as_bytes());
        written.map_err(|e| format!("the crowd is gone: {e}"))
    }

    fn ask<T: for<'a> Deserialize<'a>>(&mut self, line: &str) -> Result<T, String> {
        self.say(line)?;
        let mut answer = String::new();
        self.read
            .read_line(&mut answer)
            .map_err(|e| format!("the crowd does not answer: {e}"))?;
        serde_json::from_str(&answer)
            .map_err(|e| format!("the crowd answers something else ({e}): {answer}"))
    }
}
