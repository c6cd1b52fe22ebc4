//! Metrics of the application behind those of the proxy on the metrics port, as Istio's agent merges them. The Pod declares port and
//! path (`ISTIO_PROMETHEUS_ANNOTATIONS`). Whatever the application answers, the proxy's own metrics are served.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use voile_probe::{Failure, read_metrics};
use voile_transport::CaptureExemption;

use super::health::probe_origin;

/// Longest page of an application. The port's 64 connections (`MAX_ADMIN_CONNECTIONS`) may each hold one that a caller does not read:
/// 64 MiB, before any caller is known. Istio takes 10 MiB.
const MAX_BYTES: usize = 1024 * 1024;
/// Pages that are read from the application at once.
const MAX_AT_ONCE: usize = 2;
/// Time for a page, within Prometheus' ten seconds for a scrape.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where an application serves metrics.
#[derive(Debug, Clone)]
pub struct ApplicationMetrics {
    port: u16,
    path: String,
    timeout: Duration,
    room: Arc<Semaphore>,
    exemption: Option<CaptureExemption>,
}

impl FromStr for ApplicationMetrics {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let text = |name: &str| json[name].as_str().filter(|text| !text.is_empty());
        let port = text("port").unwrap_or("80");
        let port = port.parse().ok().filter(|port| *port > 0);
        let path = text("path").unwrap_or("/metrics");
        if path.contains(|c: char| !c.is_ascii_graphic()) {
            return Err(format!("path: `{path}` is no path"));
        }
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Self {
            port: port.ok_or("port: expected a number from 1 to 65535")?,
            path: format!("{slash}{path}"),
            timeout: TIMEOUT,
            room: Arc::new(Semaphore::new(MAX_AT_ONCE)),
            exemption: None,
        })
    }
}

impl ApplicationMetrics {
    /// The port at which the application is asked.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same, on connections that the kernel leaves alone.
    pub(in crate::control) fn exempt_by(self, exemption: Option<CaptureExemption>) -> Self {
        Self { exemption, ..self }
    }

    /// The proxy's page with that of the application behind it. `local` is the address of ours at which it was asked.
    pub(in crate::control) async fn merge(&self, own: String, local: Option<IpAddr>) -> String {
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::debug!("{MAX_AT_ONCE} scrapes of the application are under way, the limit");
            return own;
        };
        let asked = self.clone();
        let page = tokio::task::spawn_blocking(move || {
            // Held by the question itself: an asker that goes away does not end it.
            let _permit = permit;
            asked.read(local)
        });
        match page.await {
            Ok(Ok(page)) => merged(own, &page),
            Ok(Err(failure)) => {
                tracing::debug!(%failure, "no metrics of the application");
                own
            }
            Err(error) => {
                tracing::debug!(%error, "no metrics of the application");
                own
            }
        }
    }

    /// At the address at which we were asked; an application that listens on loopback only is asked there.
    fn read(&self, local: Option<IpAddr>) -> Result<String, Failure> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let first = local.map_or(loopback, |own| own.to_canonical());
        let read_at = |address: IpAddr| {
            let origin = probe_origin(self.exemption, address);
            let bounds = (self.timeout, MAX_BYTES);
            read_metrics((address, self.port).into(), origin, &self.path, bounds)
        };
        match read_at(first) {
            Err(failure) if failure.refused && first != loopback => read_at(loopback),
            answer => answer,
        }
    }
}

/// Both pages as one. Prometheus takes one sample of each series: of figures about a process, those of the application.
fn merged(own: String, application: &str) -> String {
    let about_process = |line: &str| {
        let name = line
            .strip_prefix("# HELP ")
            .or(line.strip_prefix("# TYPE "));
        name.unwrap_or(line).starts_with("process_")
    };
    let mut page = match application.lines().any(about_process) {
        true => own
            .split_inclusive('\n')
            .filter(|line| !about_process(line))
            .collect(),
        false => own,
    };
    for line in application.lines().filter(|line| *line != "# EOF") {
        page.push_str(line);
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// An application that answers one request with these bytes.
    fn answering(answer: Vec<u8>) -> ApplicationMetrics {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut head = [0; 1024];
            let read = stream.read(&mut head).expect("a request");
            assert!(head[..read].starts_with(b"GET /app?x=1 HTTP/1.1\r\n"));
            let _ = stream.write_all(&answer);
            // Until the asker goes away.
            let _ = stream.read(&mut head);
        });
        let text = format!(r#"{{"scrape":"true","path":"app?x=1","port":"{port}"}}"#);
        let metrics = text.parse::<ApplicationMetrics>().expect("valid");
        let timeout = Duration::from_millis(500);
        ApplicationMetrics { timeout, ..metrics }
    }

    async fn page(answer: &[u8]) -> String {
        let own = "# TYPE process_threads gauge\nprocess_threads 3\nistio_requests_total 1\n";
        let metrics = answering(answer.to_vec());
        metrics.merge(own.to_owned(), None).await
    }

    #[tokio::test]
    async fn metrics_of_the_application_follow_those_of_the_proxy() {
        let length =
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\napp 1\n\n";
        let both = page(length).await;
        assert!(both.starts_with("# TYPE process_threads"), "{both}");
        assert!(
            both.ends_with("istio_requests_total 1\napp 1\n\n"),
            "{both}"
        );
        let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/openmetrics-text\r\n\r\n12\r\nprocess_threads 9\n\r\n5\r\n# EOF\r\n0\r\n\r\n";
        assert_eq!(
            page(chunks).await,
            "istio_requests_total 1\nprocess_threads 9\n"
        );
    }

    #[tokio::test]
    async fn an_application_that_fails_costs_none_of_the_proxys_metrics() {
        let large = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &vec![b'a'; MAX_BYTES + 2]].concat();
        for answer in [
            &b"HTTP/1.1 500 Broken\r\nContent-Length: 6\r\n\r\napp 1\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
            b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\napp 1\n",
            b"SSH-2.0\r\n\r\n",
            b"",
            &large,
        ] {
            let own = page(answer).await;
            assert!(own.ends_with("istio_requests_total 1\n"), "{}", own.len());
        }
    }
}
