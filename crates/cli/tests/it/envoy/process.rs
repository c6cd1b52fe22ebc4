//! A stock Envoy as a child process, which ends with its test.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::mesh::{get, wait_until};

/// An Envoy that runs.
pub(crate) struct Envoy {
    child: Child,
    log: tempfile::NamedTempFile,
    admin: SocketAddr,
}

impl Envoy {
    /// Starts it with this bootstrap, whose admin pages are there, and waits until it says that it is ready.
    pub(crate) fn start(program: &Path, bootstrap: &Path, admin: SocketAddr) -> Self {
        let mut envoy = Self::start_only(program, bootstrap, admin);
        wait_until("Envoy is ready", || {
            let ended = envoy.child.try_wait().expect("a child");
            assert!(ended.is_none(), "Envoy ended: {}", envoy.said());
            get(admin, "/ready").is_ok_and(|answer| answer.status == 200)
        });
        envoy
    }

    /// The same without waiting.
    pub(crate) fn start_only(program: &Path, bootstrap: &Path, admin: SocketAddr) -> Self {
        let log = tempfile::NamedTempFile::new().expect("a log file");
        let child = Command::new(program)
            .arg("-c")
            .arg(bootstrap)
            // Connections of the previous configuration are closed soon, not in ten minutes.
            .args(["--drain-time-s", "1", "--drain-strategy", "immediate"])
            .args(["--use-dynamic-base-id", "--concurrency", "1", "-l"])
            .arg(std::env::var("VOILE_LOG").unwrap_or("warning".into()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen().expect("the log file"))
            .spawn()
            .expect("Envoy starts");
        Self { child, log, admin }
    }

    /// Validates a bootstrap by Envoy, without running it.
    pub(crate) fn validate(program: &Path, bootstrap: &Path) -> Output {
        Command::new(program)
            .args([
                "--mode",
                "validate",
                "-l",
                "error",
                "--use-dynamic-base-id",
                "-c",
            ])
            .arg(bootstrap)
            .stdin(Stdio::null())
            .output()
            .expect("Envoy runs")
    }

    /// One of its admin pages.
    pub(crate) fn page(&self, path: &str) -> String {
        let answer = get(self.admin, path).expect("an admin page");
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// The sum of its counters with this end of a name.
    pub(crate) fn counted(&self, ends: &str) -> u64 {
        let page = self.page("/stats?usedonly");
        let values = page.lines().filter_map(|line| line.split_once(": "));
        let values = values.filter(|(name, _)| name.ends_with(ends));
        values
            .filter_map(|(_, value)| value.parse::<u64>().ok())
            .sum()
    }

    /// Envoy's log.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of Envoy\n{}", self.said());
        }
    }
}
