//! Probes of the application, asked for by a kubelet that cannot speak mutual TLS: `/app-health/CONTAINER/readyz`, `…/livez`
//! and `…/startupz` on the metrics port, as Istio's injector writes them into pods, and lifecycle hooks at
//! `/app-lifecycle/CONTAINER/prestopz` and `…/poststartz`. Only what the pod declares can be asked, and nothing of the asker's
//! request is passed on.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;
use tokio::sync::Semaphore;
use voile_probe::{Failure, ProbeRequest, ask};
use voile_telemetry::admin::{PageRequest as Asked, PageResponse};
use voile_transport::CaptureExemption;

use super::health::probe_origin;

/// Questions under way at once; a kubelet asks each container's three probes in turn, and each may wait for its timeout.
const MAX_AT_ONCE: usize = 16;
/// Upper bound of a probe's time, above any `timeoutSeconds`: each probe holds a thread.
const LONGEST: Duration = Duration::from_secs(300);
/// Kubernetes' `timeoutSeconds` where it is not said.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Probes of the application, by path: the value of `ISTIO_KUBE_APP_PROBERS`.
#[derive(Debug, Clone)]
pub struct Probers {
    by_path: Arc<BTreeMap<String, Prober>>,
    /// Room for questions.
    room: Arc<Semaphore>,
    /// How the redirect rules recognise our connections.
    exemption: Option<CaptureExemption>,
}

impl Default for Probers {
    fn default() -> Self {
        Self {
            by_path: Arc::default(),
            room: Arc::new(Semaphore::new(MAX_AT_ONCE)),
            exemption: None,
        }
    }
}

#[derive(Debug, Clone)]
struct Prober {
    /// Port and question, or why it cannot be asked.
    what: Result<(u16, ProbeRequest), &'static str>,
    timeout: Duration,
}

impl FromStr for Probers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let written = json
            .as_object()
            .ok_or("expected an object of probes by path")?;
        let mut by_path = BTreeMap::new();
        for (path, prober) in written {
            let prober = Prober::read(path, prober).map_err(|error| format!("{path}: {error}"))?;
            by_path.insert(path.clone(), prober);
        }
        Ok(Self {
            by_path: Arc::new(by_path),
            ..Self::default()
        })
    }
}

impl Prober {
    fn read(path: &str, written: &Value) -> Result<Self, String> {
        let timeout = match &written["timeoutSeconds"] {
            Value::Null => TIMEOUT,
            seconds => Duration::from_secs(seconds.as_u64().ok_or("timeoutSeconds: not a number")?),
        };
        let words: Vec<&str> = path.split('/').collect();
        let what = match words[..] {
            ["", "app-health", container, "readyz" | "livez" | "startupz"]
            | ["", "app-lifecycle", container, "prestopz" | "poststartz"]
                if !container.is_empty() =>
            {
                question(written)?
            }
            _ => {
                let expected = "expected /app-health/CONTAINER/readyz, livez or startupz, or \
                    /app-lifecycle/CONTAINER/prestopz or poststartz";
                return Err(expected.to_owned());
            }
        };
        let timeout = if timeout.is_zero() { TIMEOUT } else { timeout };
        Ok(Self {
            what,
            timeout: timeout.min(LONGEST),
        })
    }
}

/// Port and question; inside, why Voile does not ask what others would.
fn question(written: &Value) -> Result<Result<(u16, ProbeRequest), &'static str>, String> {
    let kinds = ["httpGet", "tcpSocket", "grpc"];
    let mut said = kinds.into_iter().filter(|kind| written[kind].is_object());
    let (Some(kind), None) = (said.next(), said.next()) else {
        return Err(format!("expected one of {}", kinds.join(", ")));
    };
    let action = &written[kind];
    let port = action["port"].as_u64();
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0);
    let port = port.ok_or("port: expected a number from 1 to 65535")?;
    if !matches!(
        action["host"].as_str(),
        None | Some("" | "localhost" | "127.0.0.1")
    ) {
        return Ok(Err("probes of another host are not supported"));
    }
    let question = match kind {
        "tcpSocket" => ProbeRequest::Tcp,
        "grpc" => ProbeRequest::Grpc {
            service: action["service"].as_str().unwrap_or_default().to_owned(),
        },
        _ => match action["scheme"].as_str().unwrap_or("HTTP") {
            "HTTP" => http(action, false)?,
            "HTTPS" => http(action, true)?,
            _ => return Ok(Err("only probes by HTTP and HTTPS are supported")),
        },
    };
    question.fault().map_or(Ok(()), Err)?;
    Ok(Ok((port, question)))
}

fn http(action: &Value, tls: bool) -> Result<ProbeRequest, String> {
    let path = action["path"].as_str().unwrap_or("/");
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut headers = Vec::new();
    for header in action["httpHeaders"].as_array().into_iter().flatten() {
        let text = |field: &str| header[field].as_str().map(str::to_owned);
        let name = text("name").ok_or("httpHeaders: a field has no name")?;
        headers.push((name, text("value").unwrap_or_default()));
    }
    Ok(ProbeRequest::Http {
        tls,
        path: format!("{slash}{path}"),
        headers,
    })
}

impl Probers {
    /// The same, on connections that the kernel leaves alone.
    pub(in crate::control) fn exempt_by(self, exemption: Option<CaptureExemption>) -> Self {
        Self { exemption, ..self }
    }

    /// Answers with the application's status: of HTTP its own, else 200 or 500.
    pub(in crate::control) async fn answer(&self, asked: &Asked) -> PageResponse {
        let Some(prober) = self.by_path.get(&asked.path) else {
            return PageResponse::not_found(&asked.path);
        };
        if asked.method != Method::GET {
            return PageResponse::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n");
        }
        let (port, question) = match prober.what.clone() {
            Ok(what) => what,
            Err(why) => return PageResponse::text(StatusCode::NOT_IMPLEMENTED, format!("{why}\n")),
        };
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            return PageResponse::text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{MAX_AT_ONCE} probes are in flight, the limit\n"),
            );
        };
        let (exemption, timeout, own) = (self.exemption, prober.timeout, asked.local);
        let answered = tokio::task::spawn_blocking(move || {
            // Held by the question itself: an asker that goes away does not end it.
            let _permit = permit;
            ask_either(own, port, exemption, &question, timeout)
        });
        match answered.await {
            Ok(Ok(status)) => PageResponse::text(status_or_failed(Some(status)), ""),
            Ok(Err(failure)) => {
                PageResponse::text(status_or_failed(failure.status), format!("{failure}\n"))
            }
            Err(error) => {
                PageResponse::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
            }
        }
    }
}

/// At the address at which we were asked, as a kubelet would; an application that listens on loopback only is asked there.
fn ask_either(
    own: Option<IpAddr>,
    port: u16,
    exemption: Option<CaptureExemption>,
    question: &ProbeRequest,
    timeout: Duration,
) -> Result<u16, Failure> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let first = own.map_or(loopback, |own| own.to_canonical());
    let ask_at = |address: IpAddr| {
        let origin = probe_origin(exemption, address);
        ask((address, port).into(), origin, question, timeout)
    };
    match ask_at(first) {
        Err(failure) if failure.refused && first != loopback => ask_at(loopback),
        answer => answer,
    }
}

fn status_or_failed(status: Option<u16>) -> StatusCode {
    let status = status.filter(|status| *status >= 200);
    status
        .and_then(|status| StatusCode::from_u16(status).ok())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of the probes, as text.
    fn first(text: &str) -> Result<String, String> {
        let probers = Probers::from_str(text)?;
        let mut all = probers.by_path.values().map(|prober| {
            let timeout = prober.timeout;
            match &prober.what {
                Ok((port, question)) => format!("{port} {question:?} {timeout:?}"),
                Err(why) => format!("{why} {timeout:?}"),
            }
        });
        Ok(all.next().unwrap_or_default())
    }

    #[test]
    fn what_an_injector_writes_is_read_and_what_nobody_would_is_refused() {
        let readyz = |prober: &str| format!("{{\"/app-health/app/readyz\":{prober}}}");
        for (text, expected) in [
            ("{}".to_owned(), Ok("")),
            (
                readyz(
                    r#"{"httpGet":{"path":"healthz","port":8080,"scheme":"HTTP"},"timeoutSeconds":2}"#,
                ),
                Ok("8080 Http { tls: false, path: \"/healthz\", headers: [] } 2s"),
            ),
            (
                readyz(r#"{"httpGet":{"port":1,"httpHeaders":[{"name":"Host","value":"x"}]}}"#),
                Ok("1 Http { tls: false, path: \"/\", headers: [(\"Host\", \"x\")] } 1s"),
            ),
            (
                readyz(r#"{"tcpSocket":{"port":80},"timeoutSeconds":9999}"#),
                Ok("80 Tcp 300s"),
            ),
            (
                readyz(r#"{"grpc":{"port":80,"service":"a"}}"#),
                Ok("80 Grpc { service: \"a\" } 1s"),
            ),
            (
                readyz(r#"{"httpGet":{"port":443,"scheme":"HTTPS"}}"#),
                Ok("443 Http { tls: true, path: \"/\", headers: [] } 1s"),
            ),
            (
                readyz(r#"{"httpGet":{"port":443,"scheme":"FTP"}}"#),
                Ok("only probes by HTTP and HTTPS are supported 1s"),
            ),
            (
                readyz(r#"{"httpGet":{"port":80,"host":"example.com"}}"#),
                Ok("probes of another host are not supported 1s"),
            ),
            (
                r#"{"/app-lifecycle/app/prestopz":{"httpGet":{"port":80}}}"#.to_owned(),
                Ok("80 Http { tls: false, path: \"/\", headers: [] } 1s"),
            ),
            ("[]".to_owned(), Err("expected an object")),
            ("{".to_owned(), Err("EOF")),
            (
                r#"{"/etc/passwd":{}}"#.to_owned(),
                Err("expected /app-health/"),
            ),
            (
                r#"{"/app-health//readyz":{}}"#.to_owned(),
                Err("expected /app-health/"),
            ),
            (readyz("{}"), Err("expected one of")),
            (readyz(r#"{"tcpSocket":{"port":0}}"#), Err("65535")),
            (readyz(r#"{"tcpSocket":{"port":"http"}}"#), Err("65535")),
            (
                readyz(r#"{"httpGet":{"port":1,"path":"/ HTTP/1.1\r\nA: b"}}"#),
                Err("request line"),
            ),
            (
                readyz(
                    r#"{"httpGet":{"port":1,"httpHeaders":[{"name":"A","value":"x\r\nB: c"}]}}"#,
                ),
                Err("a head"),
            ),
        ] {
            let read = first(&text);
            match (read, expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{text}"),
                (Err(said), Err(part)) => assert!(said.contains(part), "{text}: {said}"),
                (read, _) => panic!("{text}: {read:?}"),
            }
        }
    }
}
