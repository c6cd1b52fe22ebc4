//! HAProxy as two sidecars, from the committed templates in `benchmarks/peers/haproxy/`. The lab reads its counts on a Unix
//! socket.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use voile_host::child::SupervisedChild;
use voile_host::ready::Probe;

use crate::contestants::contestant::{ExpectedOutput, RecordedOutput, lines};
use crate::contestants::listeners::fill;
use crate::contestants::pair::{PairSide, SidecarProgram, Values, write};
use crate::definition::PeerFeatures;
use crate::find;
use crate::shared_processes::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/haproxy/client.cfg");
const SERVER_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/haproxy/server.cfg");
/// Deadline of an answer on HAProxy's socket.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// HAProxy's program and its features. It writes no files by itself: its access log goes to its standard output, which is a file.
pub(crate) struct Haproxy {
    found: find::PeerProgram,
    features: PeerFeatures,
}

impl Haproxy {
    pub(crate) fn new(found: find::PeerProgram, features: PeerFeatures) -> Self {
        Self { found, features }
    }
}

/// Lines of its sections `global` and `defaults`, and of those for TCP, that switch its access log on.
const LOG_GLOBAL: &str = "log stdout format raw local0 info";
const LOG_HTTP: &str = "log global\n    option httplog";
const LOG_TCP: &str = "option tcplog";

/// Sum of one column of the statistics, over the frontends of one kind of traffic.
fn statistic(socket: &Path, column: &str, tcp: bool) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("HAProxy's socket {}: {e}", socket.display());
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream
        .set_read_timeout(Some(ANSWER_BOUND))
        .map_err(failed)?;
    stream.write_all(b"show stat -1 1 -1\n").map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    sum(&text, column, tcp).ok_or_else(|| format!("HAProxy's statistics have no column {column}"))
}

/// Sum of a column of the CSV, over frontends whose names mark them as TCP, or as not TCP.
fn sum(csv: &str, column: &str, tcp: bool) -> Option<u64> {
    let mut lines = csv.lines();
    let head = lines.find_map(|line| line.strip_prefix("# "))?;
    let at = head.split(',').position(|name| name == column)?;
    Some(
        lines
            .filter(|line| {
                let name = line.split(',').next().unwrap_or_default();
                !name.is_empty() && name.contains("_tcp_") == tcp
            })
            .filter_map(|line| line.split(',').nth(at)?.parse::<u64>().ok())
            .sum(),
    )
}

impl SidecarProgram for Haproxy {
    const NET: u8 = 14;
    /// Its socket.
    type Page = PathBuf;

    fn name(&self) -> &str {
        &self.features.contestant
    }

    fn launch(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        side: PairSide,
        values: &Values,
        _epoch: u32,
    ) -> Result<(SupervisedChild, PathBuf), String> {
        let template = match side {
            PairSide::Client => CLIENT_TEMPLATE,
            PairSide::Server => SERVER_TEMPLATE,
        };
        let mut values = values.clone();
        let descriptors = values.iter().find(|(name, _)| name == "DESCRIPTORS");
        // Each connection has two sockets, one to either side.
        let most = descriptors.map_or(1000, |(_, most)| most.parse::<u64>().unwrap_or(2000) / 2);
        values.push(("MAXCONN".to_owned(), most.to_string()));
        for (name, line) in [
            ("LOG_GLOBAL", LOG_GLOBAL),
            ("LOG_HTTP", LOG_HTTP),
            ("LOG_TCP", LOG_TCP),
        ] {
            let line = self.features.log.map_or("", |_| line);
            values.push((name.to_owned(), line.to_owned()));
        }
        let name = format!("{}-{}", self.name(), side.word());
        let path = write(folder, &format!("{name}.cfg"), &fill(template, &values)?)?;
        let spec = lab
            .process(side.role(), &name, &self.found.path)?
            .args(["-db", "-f"])
            .arg(&path);
        let socket = folder.join(format!("{}.sock", side.word()));
        Ok((spec.start().map_err(|e| e.to_string())?, socket))
    }

    fn probe(_socket: &PathBuf, listener: SocketAddr) -> Probe {
        // A connection is a session that must not be counted as traffic, so it goes where none is measured alone.
        Probe::Tcp(listener)
    }

    fn carries(&self, protocol: &str) -> bool {
        ["http1", "tcp"].contains(&protocol)
    }

    fn count(&self, socket: &PathBuf, protocol: &str) -> Result<Option<u64>, String> {
        let counted = match protocol {
            "tcp" => statistic(socket, "stot", true),
            _ => statistic(socket, "hrsp_2xx", false),
        };
        counted.map(Some)
    }

    fn recorded(
        &self,
        folder: &Path,
        side: PairSide,
        _socket: &PathBuf,
        _protocol: &str,
    ) -> Vec<RecordedOutput> {
        let log = format!("{}-{}.log", self.name(), side.word());
        let count = || folder.parent().map_or(0, |lab| lines(&lab.join(&log)));
        let log = self.features.log.map(|_| RecordedOutput {
            what: format!("lines in the {}'s access log", side.role()),
            count: count(),
            expected: ExpectedOutput::OneOf(1),
        });
        log.into_iter().collect()
    }

    fn version(&self) -> String {
        self.found.version.clone()
    }

    fn terms(&self) -> Vec<String> {
        let mut terms = vec![
            "does less: static configuration, no control plane, certificates from files, no metrics by source and \
             destination"
                .to_owned(),
            "does less: cannot read SPIFFE URIs; it verifies the peer's certificate chain and its common name instead"
                .to_owned(),
            "tuned: keep-alive upstream, idle connections shared, logs off, no health checks"
                .to_owned(),
        ];
        terms.extend(self.features.title());
        terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_added_up_over_the_frontends_of_one_kind() {
        let csv = "# pxname,svname,stot,req_tot,\n\
            outbound_plain,FRONTEND,3,40,\noutbound_tls,FRONTEND,2,2,\noutbound_tcp_tls,FRONTEND,7,,\n\n";
        assert_eq!(sum(csv, "req_tot", false), Some(42));
        assert_eq!(sum(csv, "stot", true), Some(7));
        assert_eq!(sum(csv, "no", true), None);
        assert_eq!(sum("", "stot", true), None);
    }
}
