//! nginx as two sidecars, from the committed templates in `benchmarks/peers/nginx/`. A master and its workers are one
//! instance. TCP needs its stream module, which distributions often package by itself.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use voile_host::child::SupervisedChild;
use voile_host::ready::{Probe, http_get};

use crate::contestants::contestant::{ExpectedOutput, RecordedOutput, lines};
use crate::contestants::listeners::fill;
use crate::contestants::pair::{PairSide, SidecarProgram, Values, status_address, write};
use crate::definition::{AccessLog, PeerFeatures};
use crate::find::{Nginx as Found, StreamModule};
use crate::shared_processes::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/nginx/client.conf");
const CLIENT_STREAM: &str =
    include_str!("../../../../../../benchmarks/peers/nginx/client-stream.conf");
const SERVER_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/nginx/server.conf");
const SERVER_STREAM: &str =
    include_str!("../../../../../../benchmarks/peers/nginx/server-stream.conf");

/// Fields of a line of the access log: those of Istio's fields that nginx knows, for HTTP and for TCP.
const HTTP_FIELDS: [(&str, &str); 13] = [
    ("start_time", "$time_iso8601"),
    ("method", "$request_method"),
    ("path", "$request_uri"),
    ("protocol", "$server_protocol"),
    ("response_code", "$status"),
    ("bytes_received", "$request_length"),
    ("bytes_sent", "$body_bytes_sent"),
    ("duration", "$request_time"),
    ("upstream_service_time", "$upstream_response_time"),
    ("user_agent", "$http_user_agent"),
    ("authority", "$http_host"),
    ("upstream_host", "$upstream_addr"),
    ("downstream_remote_address", "$remote_addr:$remote_port"),
];
const TCP_FIELDS: [(&str, &str); 7] = [
    ("start_time", "$time_iso8601"),
    ("response_code", "$status"),
    ("bytes_received", "$bytes_received"),
    ("bytes_sent", "$bytes_sent"),
    ("duration", "$session_time"),
    ("upstream_host", "$upstream_addr"),
    ("downstream_remote_address", "$remote_addr:$remote_port"),
];

/// nginx's program and its features.
pub(crate) struct Nginx {
    found: Found,
    features: PeerFeatures,
}

/// A status page, and how often we looked at it: it counts those requests too.
pub(crate) struct Page {
    address: SocketAddr,
    looked: AtomicU64,
}

/// Figures of a status page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status {
    accepted: u64,
    requests: u64,
}

impl Nginx {
    pub(crate) fn new(found: Found, features: PeerFeatures) -> Self {
        Self { found, features }
    }

    /// Its access log, gathered for a second as the others' are; or none.
    fn access_log(&self, fields: &[(&str, &str)], side: PairSide) -> String {
        let Some(log) = self.features.log else {
            return "access_log off;".to_owned();
        };
        let (escape, format) = if log == AccessLog::Json {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("\"{name}\":\"{value}\""))
                .collect();
            ("json", format!("{{{}}}", fields.join(",")))
        } else {
            let fields: Vec<String> = fields
                .iter()
                .map(|(_, value)| format!("\"{value}\""))
                .collect();
            ("default", fields.join(" "))
        };
        format!(
            "log_format lab escape={escape} '{format}';\n    access_log ${{FOLDER}}/{}-access.log lab buffer=64k flush=1s;",
            side.word()
        )
    }

    /// The lines that only this installation and this user need.
    fn own_values(&self) -> [(String, String); 2] {
        let root = rustix::process::geteuid().is_root();
        let user = if root { "user root;" } else { "" };
        let module = match &self.found.stream {
            StreamModule::Module(path) => format!("load_module {};", path.display()),
            StreamModule::BuiltIn | StreamModule::Missing => String::new(),
        };
        [
            ("USER".to_owned(), user.to_owned()),
            ("STREAM_MODULE".to_owned(), module),
        ]
    }

    fn configuration(&self, side: PairSide, values: &Values) -> Result<String, String> {
        let (template, stream) = match side {
            PairSide::Client => (CLIENT_TEMPLATE, CLIENT_STREAM),
            PairSide::Server => (SERVER_TEMPLATE, SERVER_STREAM),
        };
        let with_log = |fields| {
            let log = fill(&self.access_log(fields, side), values)?;
            let mut values = values.clone();
            values.push(("ACCESS_LOG".to_owned(), log.trim_end().to_owned()));
            Ok::<_, String>(values)
        };
        let stream = match self.found.stream {
            StreamModule::Missing => String::new(),
            _ => fill(stream, &with_log(&TCP_FIELDS)?)?,
        };
        let mut values = with_log(&HTTP_FIELDS)?;
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

impl SidecarProgram for Nginx {
    const NET: u8 = 13;
    type Page = Page;

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
    ) -> Result<(SupervisedChild, Page), String> {
        let address = status_address(lab, values)?;
        let mut values = values.clone();
        values.extend(self.own_values());
        values.push(("ADMIN_ADDRESS".to_owned(), address.ip().to_string()));
        values.push(("ADMIN_PORT".to_owned(), address.port().to_string()));
        let name = format!("{}-{}", self.name(), side.word());
        let configuration = self.configuration(side, &values)?;
        let path = write(folder, &format!("{name}.conf"), &configuration)?;
        let spec = lab
            .process(side.role(), &name, &self.found.peer.path)?
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
            "tcp" => !matches!(self.found.stream, StreamModule::Missing),
            _ => false,
        }
    }

    fn count(&self, page: &Page, protocol: &str) -> Result<Option<u64>, String> {
        let looks = page.looked.fetch_add(1, Ordering::Relaxed) + 1;
        let status = status(page.address)?;
        let all = match protocol {
            "tcp" => status.accepted,
            _ => status.requests,
        };
        Ok(Some(all.saturating_sub(looks)))
    }

    fn recorded(
        &self,
        folder: &Path,
        side: PairSide,
        _page: &Page,
        _protocol: &str,
    ) -> Vec<RecordedOutput> {
        let count = || lines(&folder.join(format!("{}-access.log", side.word())));
        let log = self.features.log.map(|_| RecordedOutput {
            what: format!("lines in the {}'s access log", side.role()),
            count: count(),
            expected: ExpectedOutput::OneOf(1),
        });
        log.into_iter().collect()
    }

    fn version(&self) -> String {
        self.found.peer.version.clone()
    }

    fn terms(&self) -> Vec<String> {
        let mut terms = vec![
            "does less: static configuration, no control plane, certificates from files, no metrics by source and \
             destination"
                .to_owned(),
            "does less: cannot read SPIFFE URIs; it verifies the peer's certificate chain and its common name instead (over TCP the server's side verifies the chain only)"
                .to_owned(),
            "tuned: keep-alive upstream, logs off, SO_REUSEPORT listeners; memory and CPU of master and workers added up"
                .to_owned(),
        ];
        terms.extend(self.features.title());
        if matches!(self.found.stream, StreamModule::Missing) {
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
