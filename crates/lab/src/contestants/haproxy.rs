//! HAProxy as two sidecars, from the committed templates in `benchmarks/peers/haproxy/`. It tells its counts on a Unix socket.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use voile_host::ready::Probe;

use super::listeners::{Listeners, fill};
use super::pair::Pair;
use super::{CLIENT, Contestant, Counts, Instance, Route, SERVER, Stage, peers_folder};
use crate::find::Peer;
use crate::plan::Way;
use crate::target::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/haproxy/client.cfg");
const SERVER_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/haproxy/server.cfg");
/// Its sidecars live on 127.14.0.1 and 127.14.0.2.
const NET: u8 = 14;
/// How long it may take to answer on its socket.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// Two HAProxies.
pub(super) struct Haproxy {
    peer: Peer,
    running: Option<Running>,
}

struct Running {
    pair: Pair,
    client_socket: PathBuf,
    server_socket: PathBuf,
}

impl Haproxy {
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            peer,
            running: None,
        }
    }
}

/// One column of its frontends, added up over those of one kind of traffic.
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

/// Adds up a column of its CSV over frontends whose names say that they are, or are not, for TCP.
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

impl Contestant for Haproxy {
    fn name(&self) -> &str {
        "haproxy"
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let folder = peers_folder(lab, "haproxy")?;
        let mut listeners = Listeners::choose(NET)?;
        let mut values = listeners.values(lab, &folder)?;
        let descriptors = values.iter().find(|(name, _)| name == "DESCRIPTORS");
        // Each connection has two sockets, one to either side.
        let most = descriptors.map_or(1000, |(_, most)| most.parse::<u64>().unwrap_or(2000) / 2);
        values.push(("MAXCONN".to_owned(), most.to_string()));
        let launch = |name: &str, template| {
            let path = folder.join(format!("{name}.cfg"));
            std::fs::write(&path, fill(template, &values)?)
                .map_err(|e| format!("writing {}: {e}", path.display()))?;
            let spec = lab
                .process(name, &self.peer.path)
                .args(["-db", "-f"])
                .arg(&path);
            spec.start().map_err(|e| e.to_string())
        };
        let client = launch("haproxy-client", CLIENT_TEMPLATE)?;
        let server = launch("haproxy-server", SERVER_TEMPLATE)?;
        self.running = Some(Running {
            pair: Pair {
                client,
                server,
                listeners,
            },
            client_socket: folder.join("client.sock"),
            server_socket: folder.join("server.sock"),
        });
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err("HAProxy was not started".to_owned());
        };
        let pair = &mut running.pair;
        // A probe's connection is a session that must not be counted as traffic, so it goes where none is measured alone.
        let [client, server] =
            [("clientonly", true), ("serveronly", false)].map(|(mode, client)| {
                let way = Way {
                    contestant: "haproxy".to_owned(),
                    mode: mode.to_owned(),
                    tls: false,
                    protocol: "http1".to_owned(),
                };
                let route = pair.listeners.route(lab, &way);
                (client, route.map(|route| route.entry))
            });
        for (is_client, address) in [client, server] {
            let child = if is_client {
                &mut pair.client
            } else {
                &mut pair.server
            };
            let address = address.ok_or("HAProxy has no listener for HTTP")?;
            lab.wait_ready(child, &Probe::Tcp(address))?;
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route> {
        let carries = ["http1", "tcp"].contains(&way.protocol.as_str());
        let running = self.running.as_ref().filter(|_| carries)?;
        running.pair.listeners.route(lab, way)
    }

    fn instances(&self, way: &Way) -> Vec<Instance> {
        self.running
            .as_ref()
            .map(|running| running.pair.instances(&way.mode))
            .unwrap_or_default()
    }

    fn counts(&self, protocol: &str) -> Counts {
        let running = self.running.as_ref().ok_or("HAProxy does not run")?;
        let (column, tcp) = match protocol {
            "tcp" => ("stot", true),
            _ => ("req_tot", false),
        };
        let mut counts = BTreeMap::new();
        counts.insert(CLIENT, statistic(&running.client_socket, column, tcp)?);
        counts.insert(SERVER, statistic(&running.server_socket, column, tcp)?);
        Ok(Some(counts))
    }

    fn stage(&self, _lab: &Lab<'_>, protocol: &str) -> Result<Option<Stage>, String> {
        let running = self.running.as_ref();
        Ok(running.and_then(|running| running.pair.listeners.stage(protocol)))
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        match &mut self.running {
            Some(running) => running.pair.alive(lab),
            None => Err("HAProxy does not run".to_owned()),
        }
    }

    fn version(&self) -> String {
        self.peer.version.clone()
    }

    fn commands(&self) -> Vec<String> {
        self.running
            .iter()
            .flat_map(|running| running.pair.commands())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "does less: static configuration, no control plane, certificates from files, no metrics by source and \
             destination"
                .to_owned(),
            "does less: cannot read SPIFFE URIs; it verifies the other side's chain and, in their place, its common name"
                .to_owned(),
            "tuned: keep-alive upstream, idle connections shared, logs off, no health checks"
                .to_owned(),
        ]
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.pair.stop();
        }
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
