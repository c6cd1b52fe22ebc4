//! nginx as two sidecars, from the committed templates in `benchmarks/peers/nginx/`. A master and its workers are one
//! instance. TCP needs its stream module, which distributions often package by itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get};

use super::listeners::{Listeners, fill};
use super::pair::Pair;
use super::{CLIENT, Contestant, Counts, Instance, Route, SERVER, Stage, peers_folder};
use crate::find::{Nginx as Found, Stream};
use crate::plan::Way;
use crate::target::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/nginx/client.conf");
const CLIENT_STREAM: &str = include_str!("../../../../benchmarks/peers/nginx/client-stream.conf");
const SERVER_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/nginx/server.conf");
const SERVER_STREAM: &str = include_str!("../../../../benchmarks/peers/nginx/server-stream.conf");
/// Its sidecars live on 127.13.0.1 and 127.13.0.2.
const NET: u8 = 13;

/// Two nginx.
pub(super) struct Nginx {
    found: Found,
    running: Option<Running>,
    /// How often we looked at its status pages, which count those requests too.
    looked: AtomicU64,
}

struct Running {
    pair: Pair,
    client_status: SocketAddr,
    server_status: SocketAddr,
}

/// What a status page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status {
    accepted: u64,
    requests: u64,
}

impl Nginx {
    pub(super) fn new(found: Found) -> Self {
        Self {
            found,
            running: None,
            looked: AtomicU64::new(0),
        }
    }

    /// The lines that only this installation and this user need.
    fn own_values(&self) -> [(String, String); 2] {
        let root = rustix::process::geteuid().is_root();
        let user = if root { "user root;" } else { "" };
        let module = match &self.found.stream {
            Stream::Module(path) => format!("load_module {};", path.display()),
            Stream::BuiltIn | Stream::Missing => String::new(),
        };
        [
            ("USER".to_owned(), user.to_owned()),
            ("STREAM_MODULE".to_owned(), module),
        ]
    }

    fn configuration(
        &self,
        template: &str,
        stream: &str,
        values: &[(String, String)],
    ) -> Result<String, String> {
        let stream = match self.found.stream {
            Stream::Missing => String::new(),
            _ => fill(stream, values)?,
        };
        let mut values = values.to_vec();
        values.push(("STREAM".to_owned(), stream));
        fill(template, &values)
    }

    fn status(page: SocketAddr) -> Result<Status, String> {
        let (status, body) =
            http_get(page, "/status").map_err(|e| format!("nginx's status page: {e}"))?;
        let text = String::from_utf8_lossy(&body);
        parse_status(&text)
            .filter(|_| status == 200)
            .ok_or_else(|| format!("nginx's status page answers {status}: {}", text.trim()))
    }
}

/// `server accepts handled requests`, and below it the three numbers.
fn parse_status(text: &str) -> Option<Status> {
    let mut lines = text.lines();
    lines.find(|line| line.trim() == "server accepts handled requests")?;
    let mut numbers = lines.next()?.split_ascii_whitespace();
    let accepted = numbers.next()?.parse().ok()?;
    let requests = numbers.nth(1)?.parse().ok()?;
    Some(Status { accepted, requests })
}

impl Contestant for Nginx {
    fn name(&self) -> &str {
        "nginx"
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let folder = peers_folder(lab, "nginx")?;
        let mut listeners = Listeners::choose(NET)?;
        let mut values = listeners.values(lab, &folder)?;
        values.extend(self.own_values());
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut launch = |name: &str, template, stream| {
            let status = free_port(local).map_err(|e| format!("a port for nginx: {e}"))?;
            values.retain(|(name, _)| name != "ADMIN_PORT");
            values.push(("ADMIN_PORT".to_owned(), status.port().to_string()));
            let path = folder.join(format!("{name}.conf"));
            std::fs::write(&path, self.configuration(template, stream, &values)?)
                .map_err(|e| format!("writing {}: {e}", path.display()))?;
            let spec = lab
                .process(name, &self.found.peer.path)
                .args(["-e", "stderr"])
                .arg("-p")
                .arg(&folder)
                .arg("-c")
                .arg(&path);
            Ok::<_, String>((spec.start().map_err(|e| e.to_string())?, status))
        };
        let (client, client_status) = launch("nginx-client", CLIENT_TEMPLATE, CLIENT_STREAM)?;
        let (server, server_status) = launch("nginx-server", SERVER_TEMPLATE, SERVER_STREAM)?;
        self.running = Some(Running {
            pair: Pair {
                client,
                server,
                listeners,
            },
            client_status,
            server_status,
        });
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err("nginx was not started".to_owned());
        };
        for (child, status) in [
            (&mut running.pair.client, running.client_status),
            (&mut running.pair.server, running.server_status),
        ] {
            lab.wait_ready(child, &Probe::Http(status, "/status".to_owned()))?;
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route> {
        let carries = match way.protocol.as_str() {
            "http1" => true,
            "tcp" => !matches!(self.found.stream, Stream::Missing),
            _ => false,
        };
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
        let running = self.running.as_ref().ok_or("nginx does not run")?;
        let looks = self.looked.fetch_add(1, Ordering::Relaxed) + 1;
        let mut counts = BTreeMap::new();
        for (role, page) in [
            (CLIENT, running.client_status),
            (SERVER, running.server_status),
        ] {
            let status = Self::status(page)?;
            let all = if protocol == "tcp" {
                status.accepted
            } else {
                status.requests
            };
            counts.insert(role, all.saturating_sub(looks));
        }
        Ok(Some(counts))
    }

    fn stage(&self, _lab: &Lab<'_>, protocol: &str) -> Result<Option<Stage>, String> {
        let running = self.running.as_ref();
        Ok(running.and_then(|running| running.pair.listeners.stage(protocol)))
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        match &mut self.running {
            Some(running) => running.pair.alive(lab),
            None => Err("nginx does not run".to_owned()),
        }
    }

    fn version(&self) -> String {
        self.found.peer.version.clone()
    }

    fn commands(&self) -> Vec<String> {
        self.running
            .iter()
            .flat_map(|running| running.pair.commands())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        let mut terms = vec![
            "does less: static configuration, no control plane, certificates from files, no metrics by source and \
             destination"
                .to_owned(),
            "does less: cannot read SPIFFE URIs; it verifies the other side's chain and, in their place, its common name \
             (over TCP the server's side verifies the chain only)"
                .to_owned(),
            "tuned: keep-alive upstream, logs off, SO_REUSEPORT listeners; memory and CPU of master and workers added up"
                .to_owned(),
        ];
        if matches!(self.found.stream, Stream::Missing) {
            terms.push(
                "no TCP: its stream module is not here (Debian: apt-get install libnginx-mod-stream)"
                    .to_owned(),
            );
        }
        terms
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
    fn the_status_page_is_understood() {
        let page = "Active connections: 1 \nserver accepts handled requests\n 17 17 42 \nReading: 0 Writing: 1 Waiting: 0 \n";
        assert_eq!(
            parse_status(page),
            Some(Status {
                accepted: 17,
                requests: 42
            })
        );
        assert_eq!(parse_status("<html>404</html>"), None);
    }
}
