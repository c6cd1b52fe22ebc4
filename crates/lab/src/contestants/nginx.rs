//! nginx as two sidecars, from the committed templates in `benchmarks/peers/nginx/`. A master and its workers are one
//! instance. TCP needs its stream module, which distributions often package by itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use voile_host::child::Supervised;
use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get};

use super::listeners::fill;
use super::pair::{Peer, Side, Values, write};
use crate::find::{Nginx as Found, Stream};
use crate::target::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/nginx/client.conf");
const CLIENT_STREAM: &str = include_str!("../../../../benchmarks/peers/nginx/client-stream.conf");
const SERVER_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/nginx/server.conf");
const SERVER_STREAM: &str = include_str!("../../../../benchmarks/peers/nginx/server-stream.conf");

/// nginx as it was found.
pub(super) struct Nginx(pub(super) Found);

/// A status page, and how often we looked at it: it counts those requests too.
pub(super) struct Page {
    address: SocketAddr,
    looked: AtomicU64,
}

/// What a status page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status {
    accepted: u64,
    requests: u64,
}

impl Nginx {
    /// The lines that only this installation and this user need.
    fn own_values(&self) -> [(String, String); 2] {
        let root = rustix::process::geteuid().is_root();
        let user = if root { "user root;" } else { "" };
        let module = match &self.0.stream {
            Stream::Module(path) => format!("load_module {};", path.display()),
            Stream::BuiltIn | Stream::Missing => String::new(),
        };
        [
            ("USER".to_owned(), user.to_owned()),
            ("STREAM_MODULE".to_owned(), module),
        ]
    }

    fn configuration(&self, side: Side, values: &Values) -> Result<String, String> {
        let (template, stream) = match side {
            Side::Client => (CLIENT_TEMPLATE, CLIENT_STREAM),
            Side::Server => (SERVER_TEMPLATE, SERVER_STREAM),
        };
        let stream = match self.0.stream {
            Stream::Missing => String::new(),
            _ => fill(stream, values)?,
        };
        let mut values = values.clone();
        values.push(("STREAM".to_owned(), stream));
        fill(template, &values)
    }
}

fn status(page: SocketAddr) -> Result<Status, String> {
    let (status, body) =
        http_get(page, "/status").map_err(|e| format!("nginx's status page: {e}"))?;
    let text = String::from_utf8_lossy(&body);
    parse_status(&text)
        .filter(|_| status == 200)
        .ok_or_else(|| format!("nginx's status page answers {status}: {}", text.trim()))
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

impl Peer for Nginx {
    const NAME: &'static str = "nginx";
    const NET: u8 = 13;
    type Page = Page;

    fn launch(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        side: Side,
        values: &Values,
        _epoch: u32,
    ) -> Result<(Supervised, Page), String> {
        let address = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .map_err(|e| format!("a port for nginx: {e}"))?;
        let mut values = values.clone();
        values.extend(self.own_values());
        values.push(("ADMIN_PORT".to_owned(), address.port().to_string()));
        let name = format!("nginx-{}", side.word());
        let configuration = self.configuration(side, &values)?;
        let path = write(folder, &format!("{name}.conf"), &configuration)?;
        let spec = lab
            .process(side.role(), &name, &self.0.peer.path)?
            .args(["-e", "stderr"])
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(&path);
        let page = Page {
            address,
            looked: AtomicU64::new(0),
        };
        Ok((spec.start().map_err(|e| e.to_string())?, page))
    }

    fn probe(page: &Page, _listener: SocketAddr) -> Probe {
        Probe::Http(page.address, "/status".to_owned())
    }

    fn carries(&self, protocol: &str) -> bool {
        match protocol {
            "http1" => true,
            "tcp" => !matches!(self.0.stream, Stream::Missing),
            _ => false,
        }
    }

    fn count(page: &Page, protocol: &str) -> Result<u64, String> {
        let looks = page.looked.fetch_add(1, Ordering::Relaxed) + 1;
        let status = status(page.address)?;
        let all = match protocol {
            "tcp" => status.accepted,
            _ => status.requests,
        };
        Ok(all.saturating_sub(looks))
    }

    fn version(&self) -> String {
        self.0.peer.version.clone()
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
        if matches!(self.0.stream, Stream::Missing) {
            terms.push(
                "no TCP: its stream module is not here (Debian: apt-get install libnginx-mod-stream)"
                    .to_owned(),
            );
        }
        terms
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
